"""The lab: experiments with I/O schedulers on simulated machines.

    import pandas
    rows = pandas.DataFrame(blockyard.lab.run("deadline-2009"))
"""

from __future__ import annotations

import json
import os
import typing
import warnings

from . import _blockyard

__all__ = ["experiments", "run"]


def experiments() -> list[dict[str, str]]:
    """The built-in experiments: `name`, `title` and `source` of each."""
    return [
        {"name": name, "title": title, "source": source}
        for name, title, source in _blockyard.experiments()
    ]


def run(
    experiment: str | os.PathLike[str],
    *,
    variants: typing.Iterable[str] = (),
    seeds: typing.Iterable[int] = (),
    set: typing.Mapping[str, typing.Any] = {},
    full: bool = False,
) -> list[dict[str, typing.Any]]:
    """Runs an experiment on all cores, and returns its rows: those of `blockyard lab run --json`.

    `experiment` is a name of `experiments()`, or the path of a TOML file. Without `variants` and
    `seeds` it runs all of them. `set` changes settings: `{"queue.elevator": "cfq"}`. `full` also
    runs the seeds, points and grids that a large experiment leaves out by default.

    Numbers are in base units. `ours` is the median of the runs, `low` and `high` are their range,
    `published` is the number of the publication, and `error` is `ours / published - 1`.
    """
    overrides = [f"{key}={_toml(value)}" for key, value in set.items()]
    report, notices = _blockyard.run_experiment(
        os.fspath(experiment), list(variants), list(seeds), overrides, full
    )
    for notice in notices:
        warnings.warn(notice, stacklevel=2)
    rows: list[dict[str, typing.Any]] = json.loads(report)["rows"]
    return rows


def _toml(value: typing.Any) -> str:
    """A value as TOML has it, where that differs from Python's text."""
    return str(value).lower() if isinstance(value, bool) else str(value)
