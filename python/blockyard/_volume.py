"""Volumes as files."""

from __future__ import annotations

import io
import os
import typing
import warnings

from . import _blockyard

Path = typing.Union[str, "os.PathLike[str]"]
Passphrase = typing.Union[str, bytes, bytearray, memoryview]


class Volume(io.RawIOBase):
    """The plaintext of a volume, as a file without a buffer.

    All methods of `io.RawIOBase` are there; `io.BufferedReader(volume)` reads with a buffer.
    `pread`, `pwrite` and `flush` may be called from any number of threads, and release Python's
    lock. Reads and writes at the position release it too, but share the position.
    """

    def __init__(self, native: _blockyard.Volume, name: str) -> None:
        self._native = native
        self._position = 0
        self.name = name

    @property
    def size(self) -> int:
        """The length in bytes."""
        return self._native.size

    @property
    def sector_size(self) -> int:
        """The length of an encryption sector in bytes: whole sectors cost least."""
        return self._native.sector_size

    @property
    def mode(self) -> str:
        """`rb` of a read-only volume, otherwise `rb+`."""
        return "rb+" if self.writable() else "rb"

    @property
    def description(self) -> str:
        """The length and the cipher, in one line."""
        return self._native.description

    def readable(self) -> bool:
        self._check_open()
        return True

    def writable(self) -> bool:
        return not self._native.read_only

    def seekable(self) -> bool:
        self._check_open()
        return True

    def pread(self, size: int, offset: int) -> bytes:
        """Reads at an offset; the result is shorter only at the end of the volume."""
        return self._native.pread(size, offset)

    def pwrite(self, data: typing.Any, offset: int) -> int:
        """Writes at an offset; the result is less than the data only at the end of the volume.

        At the end itself the call fails with ENOSPC, as that of a disk does.
        """
        self._check_writable()
        return self._native.pwrite(data, offset)

    def read(self, size: int | None = -1) -> bytes:
        if size is None or size < 0:
            return self.readall()
        data = self.pread(size, self._position)
        self._position += len(data)
        return data

    def readall(self) -> bytes:
        data = self.pread(max(self.size - self._position, 0), self._position)
        self._position += len(data)
        return data

    def readinto(self, buffer: typing.Any) -> int:
        """Reads into a buffer of the caller, without a copy."""
        size = self._native.readinto(buffer, self._position)
        self._position += size
        return size

    def write(self, data: typing.Any) -> int:
        """Writes at the position, without a copy; see `pwrite`."""
        size = self.pwrite(data, self._position)
        self._position += size
        return size

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if whence not in (os.SEEK_SET, os.SEEK_CUR, os.SEEK_END):
            raise ValueError(f"invalid whence ({whence})")
        size = self.size
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: size}[whence]
        if start + offset < 0:
            raise ValueError("a seek before the start of the volume")
        self._position = start + offset
        return self._position

    def tell(self) -> int:
        self._check_open()
        return self._position

    def flush(self) -> None:
        """Puts all completed writes on stable storage."""
        super().flush()
        if self.writable():
            self._native.flush()

    def close(self) -> None:
        """Flushes the volume, ends its threads and wipes its keys."""
        if self.closed:
            return
        try:
            super().close()
        finally:
            self._native.close()

    def __reduce__(self) -> typing.NoReturn:
        raise TypeError("a volume cannot be copied or pickled")

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed volume")

    def _check_writable(self) -> None:
        if not self.writable():
            raise io.UnsupportedOperation("the volume is open for reading only")

    def __repr__(self) -> str:
        state = "closed" if self.closed else self.description
        return f"<blockyard.Volume {self.name!r}: {state}>"


def open(
    path: Path,
    passphrase: Passphrase | None = None,
    *,
    key_file: Path | None = None,
    read_only: bool = True,
    kind: str | None = None,
    header: Path | None = None,
    partition: str | int | None = None,
    offset: int = 0,
    pim: int | None = None,
) -> Volume:
    """Opens a volume: an image, a block device, or the URI of an NBD export or a Ceph image.

    Without a `kind` it is LUKS or BitLocker, as its header says; the others are `"tcrypt"`
    (VeraCrypt, TrueCrypt), `"table"` (a file with a device-mapper table) and `"raw"`. `header` is a
    detached LUKS header. `partition` and `offset` (in bytes) say where on the disk the volume is.
    `pim` is VeraCrypt's.

    The passphrase is copied into memory that is locked, and wiped with the volume. Python's own
    object is not wiped: a program that cares passes a `bytearray`, and overwrites it afterwards.
    """
    native = _blockyard.Volume(
        path,
        passphrase=passphrase,
        key_file=key_file,
        read_only=read_only,
        kind=kind,
        header=header,
        partition=None if partition is None else str(partition),
        offset=offset,
        pim=pim,
    )
    for notice in native.notices:
        warnings.warn(f"{os.fspath(path)}: {notice}", stacklevel=2)
    return Volume(native, os.fspath(path))
