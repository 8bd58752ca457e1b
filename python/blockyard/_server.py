"""NBD servers."""

from __future__ import annotations

import os
import typing
import urllib.parse
import weakref

from . import _blockyard
from ._volume import Passphrase, Path, Volume, open


class Server:
    """A running NBD server of one volume, and a context manager that stops it.

    The server runs on threads of its own, without Python's lock. It also stops when it is garbage,
    and at the end of the interpreter.
    """

    def __init__(
        self,
        volume: Volume,
        *,
        socket: Path | None = None,
        port: int | None = None,
        host: str = "127.0.0.1",
        export: str = "",
    ) -> None:
        if socket is None and port is None:
            raise ValueError("a server needs socket or port; port 0 takes a free one")
        address = None if port is None else (host, port)
        native = _blockyard.Server(volume._native, export=export, socket=socket, address=address)
        self._volume = volume
        self._socket = None if socket is None else os.path.abspath(os.fspath(socket))
        self._addresses = native.addresses
        self._export = urllib.parse.quote(export, safe="")
        self._stop = weakref.finalize(self, native.stop)

    @property
    def volume(self) -> Volume:
        """The volume. The program may read and write it meanwhile."""
        return self._volume

    @property
    def port(self) -> int | None:
        """The TCP port; None without one."""
        return self._addresses[0][1] if self._addresses else None

    @property
    def uri(self) -> str:
        """The address for NBD clients: that of the socket if there is one."""
        if self._socket is not None:
            place = urllib.parse.quote(self._socket)
            return f"nbd+unix:///{self._export}?socket={place}"
        host, port = self._addresses[0]
        name = f"[{host}]" if ":" in host else host
        return f"nbd://{name}:{port}/{self._export}"

    def stop(self) -> None:
        """Completes received requests, flushes the volume, ends the server and closes the volume.

        The call fails if the volume cannot be flushed: acknowledged writes may be lost then.
        """
        try:
            self._stop()
        finally:
            self._volume.close()

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def serve(
    path: Path,
    passphrase: Passphrase | None = None,
    *,
    key_file: Path | None = None,
    read_only: bool = True,
    socket: Path | None = None,
    port: int | None = None,
    host: str = "127.0.0.1",
    export: str = "",
    **options: typing.Any,
) -> Server:
    """Opens a volume and serves it over NBD: on a Unix socket, on a TCP port, or on both.

    Only the owner may use the socket (mode 0600). A TCP port has no protection: everyone who
    reaches it reads the plaintext, and writes it if the volume is not read-only. The other options
    are those of `open`.
    """
    volume = open(path, passphrase, key_file=key_file, read_only=read_only, **options)
    try:
        return Server(volume, socket=socket, port=port, host=host, export=export)
    except BaseException:
        volume.close()
        raise
