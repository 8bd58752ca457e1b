"""The lab."""

import json

import pytest
from conftest import BLOCKYARD, run

import blockyard
from blockyard import lab

EXPERIMENT = """
name = "random-reads"
title = "Four readers on one disk"
[device]
kind = "disk"
[queue]
elevator = "noop"
[jobs.reads]
program = "fio"
sections.reads = { rw = "randread", bs = "4k", size = "256k", direct = 1, numjobs = 4 }
[variants.noop]
[variants.deadline]
set = { "queue.elevator" = "deadline" }
"""


@pytest.fixture
def experiment(tmp_path):
    path = tmp_path / "reads.toml"
    path.write_text(EXPERIMENT)
    return path


def test_rows_are_those_of_the_program(experiment):
    report = json.loads(run(BLOCKYARD, "lab", "run", experiment, "--json"))
    assert report["rows"] and lab.run(experiment) == report["rows"]


def test_variants_seeds_and_settings_are_chosen(experiment):
    words = ["--variant", "noop", "--seed", "7", "--set", "jobs.reads.sections.reads.numjobs=2"]
    report = json.loads(run(BLOCKYARD, "lab", "run", experiment, "--json", *words))
    own = lab.run(
        experiment,
        variants=["noop"],
        seeds=[7],
        set={"jobs.reads.sections.reads.numjobs": 2},
    )
    assert own == report["rows"] and {row["variant"] for row in own} == {"noop"}


def test_experiments_have_names_that_run_takes():
    names = [one["name"] for one in lab.experiments()]
    assert "deadline-2009" in names
    assert all(one["title"] and one["source"] for one in lab.experiments())


def test_unknown_experiment_and_setting_are_errors(experiment):
    with pytest.raises(blockyard.ExperimentError, match="neither a built-in experiment"):
        lab.run("unknown")
    with pytest.raises(blockyard.ExperimentError, match="elevator"):
        lab.run(experiment, set={"queue.elevator": "lift"})
