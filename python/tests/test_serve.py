"""Servers."""

import gc
import subprocess

import pytest
from conftest import PASSPHRASE, run

import blockyard


def size_by_nbdinfo(uri):
    return int(run("nbdinfo", "--size", uri))


def test_volume_is_served_on_a_socket_until_the_end_of_the_block(image, tmp_path):
    with blockyard.serve(image, PASSPHRASE, socket=tmp_path / "a socket") as server:
        assert size_by_nbdinfo(server.uri) == server.volume.size
        uri = server.uri
    with pytest.raises(subprocess.CalledProcessError):
        size_by_nbdinfo(uri)
    assert server.volume.closed
    server.stop()


def test_client_writes_are_there_after_the_end(image, tmp_path):
    plain = tmp_path / "plain"
    plain.write_bytes(b"0123456789abcdef" * 4096)
    serving = dict(read_only=False, port=0, export="a disk")
    with blockyard.serve(image, PASSPHRASE, **serving) as server:
        assert server.port > 0
        run("nbdcopy", plain, server.uri)
        assert server.volume.pread(16, 16) == b"0123456789abcdef"
    with blockyard.open(image, PASSPHRASE) as volume:
        assert volume.read(1 << 16) == plain.read_bytes()


def test_served_volume_is_read_only_by_default(image, tmp_path):
    with blockyard.serve(image, PASSPHRASE, socket=tmp_path / "socket") as server:
        assert run("nbdinfo", "--is", "readonly", server.uri) == b""


def test_forgotten_server_stops(image, tmp_path):
    server = blockyard.serve(image, PASSPHRASE, socket=tmp_path / "socket", read_only=False)
    uri = server.uri
    del server
    gc.collect()
    with pytest.raises(subprocess.CalledProcessError):
        size_by_nbdinfo(uri)
    blockyard.open(image, PASSPHRASE, read_only=False).close()


def test_server_that_cannot_start_leaves_the_volume_free(image, tmp_path):
    with pytest.raises(ValueError, match="socket or port"):
        blockyard.serve(image, PASSPHRASE, read_only=False)
    with pytest.raises(FileNotFoundError):
        blockyard.serve(image, PASSPHRASE, read_only=False, socket=tmp_path / "no" / "socket")
    blockyard.open(image, PASSPHRASE, read_only=False).close()
