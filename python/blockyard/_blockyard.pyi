"""The native part, without positions: `Volume`, `Server` and `lab` of the package use it."""

import os
import typing

class Volume:
    def __new__(
        cls,
        path: str | os.PathLike[str],
        *,
        passphrase: str | bytes | bytearray | memoryview | None,
        key_file: str | os.PathLike[str] | None,
        read_only: bool,
        kind: str | None,
        header: str | os.PathLike[str] | None,
        partition: str | None,
        offset: int,
        pim: int | None,
    ) -> Volume: ...
    @property
    def notices(self) -> list[str]: ...
    @property
    def size(self) -> int: ...
    @property
    def sector_size(self) -> int: ...
    @property
    def read_only(self) -> bool: ...
    @property
    def description(self) -> str: ...
    def pread(self, size: int, offset: int) -> bytes: ...
    def readinto(self, buffer: typing.Any, offset: int) -> int: ...
    def pwrite(self, data: typing.Any, offset: int) -> int: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...

class Server:
    def __new__(
        cls,
        volume: Volume,
        *,
        export: str,
        socket: str | os.PathLike[str] | None,
        address: tuple[str, int] | None,
    ) -> Server: ...
    @property
    def addresses(self) -> list[tuple[str, int]]: ...
    def stop(self) -> None: ...

def info(
    path: str | os.PathLike[str],
    partition: str | None,
    offset: int,
) -> str: ...
def experiments() -> list[tuple[str, str, str]]: ...
def run_experiment(
    experiment: str,
    variants: list[str],
    seeds: list[int],
    set: list[str],
    full: bool,
) -> tuple[str, list[str]]: ...
