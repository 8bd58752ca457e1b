"""Encrypted disks without root and without a kernel module.

    with blockyard.open("home.img", passphrase="correct horse") as volume:
        volume.seek(4096)
        block = volume.read(4096)

docs/python.md of the project has the shapes, the errors and examples.
"""

from __future__ import annotations

import json
import os
import typing

from . import _blockyard, lab
from ._errors import (
    BusyError,
    DeviceAccessError,
    DeviceError,
    DeviceNotFoundError,
    Error,
    ExperimentError,
    VolumeError,
    WrongPassphraseError,
)
from ._server import Server, serve
from ._volume import Volume, open

__all__ = [
    "BusyError",
    "DeviceAccessError",
    "DeviceError",
    "DeviceNotFoundError",
    "Error",
    "ExperimentError",
    "Server",
    "Volume",
    "VolumeError",
    "WrongPassphraseError",
    "info",
    "lab",
    "open",
    "serve",
]


def info(
    path: str | os.PathLike[str],
    *,
    partition: str | int | None = None,
    offset: int = 0,
) -> dict[str, typing.Any]:
    """The facts of a header or a partition table: what `blockyard info --json` prints.

    The call needs no passphrase, and does not lock the volume.
    """
    facts: dict[str, typing.Any] = json.loads(_blockyard.info(path, None if partition is None else str(partition), offset))
    return facts
