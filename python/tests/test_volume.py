"""Volumes as files."""

import array
import copy
import errno
import io
import mmap
import os
import subprocess
import sys
import threading

import pytest
from conftest import PASSPHRASE, VOLUMES, formatted, unpacked

import blockyard


@pytest.fixture
def volume(image):
    with blockyard.open(image, PASSPHRASE, read_only=False) as volume:
        yield volume


def pattern(size):
    return bytes(index * 7 % 251 for index in range(size))


@pytest.mark.parametrize("name", ["l1-aes128-cbc-essiv-sha1", "q1-aes128-xts", "l2-xts256"])
def test_volume_of_another_program_has_its_plaintext(foreign, name):
    made = foreign(name)
    with blockyard.open(made.path, key_file=made.key_file) as volume:
        assert made.is_plaintext(volume.read(made.entry["plaintext_bytes"]))
    with blockyard.open(str(made.path), made.key_file.read_bytes()) as volume:
        assert made.is_plaintext(volume.pread(made.entry["plaintext_bytes"], 0))


def test_header_may_be_in_a_file_of_its_own(foreign):
    made = foreign("l2-detached")
    with blockyard.open(made.path, key_file=made.key_file, header=made.header) as volume:
        assert made.is_plaintext(volume.read(made.entry["plaintext_bytes"]))


@pytest.mark.parametrize(
    "name, options", [("own-veracrypt", {"kind": "tcrypt", "pim": 1}), ("own-bitlocker", {})]
)
def test_veracrypt_and_bitlocker_open(tmp_path, name, options):
    path = unpacked(tmp_path, f"img/{name}.img.xz")
    with blockyard.open(path, "correct-horse-battery-staple", **options) as volume:
        assert volume.size > 0 and len(volume.read(512)) == 512


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_passphrase_is_text_or_bytes(image, kind):
    with blockyard.open(image, kind(PASSPHRASE.encode())) as volume:
        assert volume.size > 0


def test_same_calls_as_on_a_file_have_the_same_results(volume, tmp_path):
    plain = tmp_path / "plain"
    plain.write_bytes(volume.readall())
    volume.seek(0)
    results = []
    with open(plain, "rb+", buffering=0) as file:
        for it in (volume, file):
            buffer = bytearray(700)
            result = [
                it.write(pattern(5000)),
                it.tell(),
                it.seek(-100, os.SEEK_CUR),
                it.read(50),
                it.seek(300),
                it.readinto(buffer),
                bytes(buffer),
                it.seek(-10, os.SEEK_END),
                it.read(100),
                it.read(1),
                it.seek(5, os.SEEK_END),
                it.read(1),
                it.readall(),
                it.seek(-20, os.SEEK_END),
                it.read(),
                it.seek(0),
                it.readline(),
                (it.readable(), it.writable(), it.seekable(), it.mode, it.closed),
            ]
            it.flush()
            results.append(result)
    assert results[0] == results[1]


@pytest.mark.parametrize(
    "buffer",
    [bytearray(3000), memoryview(bytearray(4000))[500:3500], array.array("I", [0] * 750)],
)
def test_readinto_fills_the_callers_buffer(volume, buffer):
    volume.pwrite(pattern(4000), 100)
    volume.seek(100)
    assert volume.readinto(buffer) == 3000
    assert bytes(buffer) == pattern(3000)
    assert volume.tell() == 3100


def test_readinto_fills_mapped_memory(volume):
    volume.pwrite(pattern(4096), 0)
    with mmap.mmap(-1, 4096) as memory:
        assert volume.readinto(memory) == 4096
        assert memory[:] == pattern(4096)


def test_buffers_that_cannot_be_filled_are_refused(volume):
    with pytest.raises(TypeError):
        volume.readinto(bytes(10))
    with pytest.raises(TypeError):
        volume.readinto("text")
    with pytest.raises(TypeError):
        volume.readinto(memoryview(bytearray(20))[::2])
    with pytest.raises(BufferError):
        volume.write(memoryview(bytearray(20))[::2])
    with pytest.raises(TypeError):
        volume.write("text")


def test_buffer_cannot_move_while_it_is_filled(volume):
    buffer = bytearray(1 << 20)
    thread = threading.Thread(target=lambda: [volume.readinto(buffer) for _ in range(8)])
    thread.start()
    while thread.is_alive():
        try:
            buffer.extend(b"x")
        except BufferError:
            break
        del buffer[-1:]
    thread.join()
    assert len(buffer) >= 1 << 20


def test_pythons_buffers_work_on_top(image):
    with blockyard.open(image, PASSPHRASE, read_only=False) as volume:
        writer = io.BufferedRandom(volume)
        for piece in range(1000):
            writer.write(bytes([piece % 256]) * 37)
        writer.seek(37 * 500)
        assert writer.read(37) == bytes([500 % 256]) * 37
        writer.detach()
    with io.BufferedReader(blockyard.open(image, PASSPHRASE)) as reader:
        assert all(reader.read(37) == bytes([piece % 256]) * 37 for piece in range(1000))
    assert reader.raw.closed


def test_written_data_is_there_after_the_end(image):
    with blockyard.open(image, PASSPHRASE, read_only=False) as volume:
        assert volume.write(memoryview(pattern(10000))) == 10000
        assert volume.pwrite(bytearray(b"later"), 7) == 5
    expected = pattern(7) + b"later" + pattern(10000)[12:]
    with blockyard.open(image, PASSPHRASE) as volume:
        assert volume.read(10000) == expected


def test_volume_is_read_only_by_default(image):
    with blockyard.open(image, PASSPHRASE) as volume:
        assert not volume.writable() and volume.mode == "rb"
        with pytest.raises(io.UnsupportedOperation):
            volume.write(b"x")
        with pytest.raises(io.UnsupportedOperation):
            volume.pwrite(b"x", 0)


def test_end_of_the_volume_is_that_of_a_disk(volume):
    end = volume.size
    assert volume.pread(100, end - 10) == volume.pread(10, end - 10)
    assert volume.pread(100, end) == b""
    assert volume.pwrite(b"x" * 100, end - 10) == 10
    with pytest.raises(blockyard.DeviceError) as raised:
        volume.pwrite(b"x", end)
    assert raised.value.errno == errno.ENOSPC


def test_threads_read_and_write_at_once(volume):
    block = 4096
    count = volume.size // block

    def work(start):
        for index in range(start, count, 4):
            volume.pwrite(index.to_bytes(4, "big") * (block // 4), index * block)
            assert volume.pread(4, index * block) == index.to_bytes(4, "big")

    threads = [threading.Thread(target=work, args=[start]) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index in range(count):
        assert volume.pread(block, index * block) == index.to_bytes(4, "big") * (block // 4)


def python(script, *words):
    """Runs a script, with a limit for one that waits for itself."""
    return subprocess.run(
        [sys.executable, "-c", script, *map(os.fspath, words)],
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
        check=True,
    ).stdout


def test_other_threads_run_while_a_call_waits(foreign, tmp_path):
    made = foreign("l2-small")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    # The thread opens the volume as soon as the main thread writes the key.
    script = """
import sys, threading, blockyard
image, pipe, key = sys.argv[1:]
thread = threading.Thread(target=lambda: print(blockyard.open(image, key_file=pipe).size))
thread.start()
open(pipe, "wb").write(open(key, "rb").read())
thread.join()
"""
    with blockyard.open(made.path, key_file=made.key_file) as volume:
        assert int(python(script, made.path, pipe, made.key_file)) == volume.size


def test_forked_child_is_refused_and_harms_nothing(image, tmp_path):
    script = """
import os, sys, blockyard
volume = blockyard.open(sys.argv[1], sys.argv[2], read_only=False)
server = blockyard.Server(volume, socket=sys.argv[3])
child = os.fork()
if child == 0:
    try:
        volume.pread(1, 0)
    except RuntimeError:
        sys.exit(7)
    sys.exit(1)
_, status = os.waitpid(child, 0)
with blockyard.open(server.uri, kind="raw") as client:
    client.read(512)
volume.pwrite(b"x", 0)
server.stop()
print(os.waitstatus_to_exitcode(status))
"""
    assert python(script, image, PASSPHRASE, tmp_path / "socket") == "7\n"


def test_wrong_passphrase_has_an_error_of_its_own(image):
    with pytest.raises(blockyard.WrongPassphraseError, match="no keyslot opens"):
        blockyard.open(image, "wrong")
    assert issubclass(blockyard.WrongPassphraseError, (blockyard.Error, ValueError))


def test_errors_of_the_system_have_their_numbers(tmp_path):
    missing = tmp_path / "missing"
    for call in [
        lambda: blockyard.open(missing, "x"),
        lambda: blockyard.open(VOLUMES / "img", key_file=missing),
        lambda: blockyard.info(missing),
    ]:
        with pytest.raises(FileNotFoundError) as raised:
            call()
        assert isinstance(raised.value, blockyard.DeviceError)
        assert raised.value.errno == errno.ENOENT
        assert str(missing) in str(raised.value)


def test_volume_in_use_is_busy(image, volume):
    with pytest.raises(blockyard.BusyError) as raised:
        blockyard.open(image, PASSPHRASE, read_only=False)
    assert raised.value.errno == errno.EBUSY


def test_file_without_a_volume_and_wrong_arguments_are_value_errors(image, tmp_path):
    noise = tmp_path / "noise"
    noise.write_bytes(os.urandom(1 << 20))
    for call, said in [
        (lambda: blockyard.open(noise, "x"), "no LUKS header"),
        (lambda: blockyard.open(image), "passphrase or key_file is missing"),
        (lambda: blockyard.open(image, "x", key_file=noise), "either passphrase or key_file"),
        (lambda: blockyard.open(image, "x", kind="zip"), "the kinds are"),
        (lambda: blockyard.open(image, "x", pim=3), "pim is for"),
        (lambda: blockyard.open(image, "x", partition="1", offset=512), "partition or offset"),
    ]:
        with pytest.raises(blockyard.VolumeError, match=said):
            call()
    assert issubclass(blockyard.VolumeError, (blockyard.Error, ValueError))


def test_volume_may_be_in_a_part_of_the_disk(image, tmp_path):
    disk = tmp_path / "disk"
    disk.write_bytes(bytes(1 << 20) + image.read_bytes())
    with blockyard.open(image, PASSPHRASE) as whole:
        with blockyard.open(disk, PASSPHRASE, offset=1 << 20) as part:
            assert part.read(65536) == whole.read(65536)


def test_closed_volume_is_that_of_io(image):
    volume = blockyard.open(image, PASSPHRASE)
    volume.close()
    volume.close()
    assert volume.closed
    for call in [
        volume.read, volume.tell, volume.flush, volume.readable, volume.seekable,
        lambda: volume.readinto(bytearray(1)), lambda: volume.pread(1, 0), lambda: volume.size,
        lambda: volume.seek(0),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match="closed"):
            call()


def test_damage_that_leaves_the_volume_usable_is_a_warning(image):
    with open(image, "rb+") as file:
        file.write(bytes(512))
    with pytest.warns(UserWarning, match="primary"):
        blockyard.open(image, PASSPHRASE).close()


def test_flush_reaches_the_disk(tmp_path):
    image = formatted(tmp_path / "volume.img", "24M")
    log = tmp_path / "log"
    script = """
import sys, blockyard
volume = blockyard.open(sys.argv[1], sys.argv[2], read_only=False)
volume.write(b"x" * 4096)
open("/dev/null").close()
volume.flush()
"""
    calls = "trace=openat,fsync,fdatasync,io_uring_enter"
    subprocess.run(
        ["strace", "-f", "-y", "-o", log, "-e", calls, sys.executable, "-c", script, image,
         PASSPHRASE],
        check=True,
        timeout=60,
    )  # fmt: skip
    _, flush = log.read_text().split("/dev/null", 1)
    assert "sync(" in flush and str(image) in flush


def test_disk_without_encryption_takes_no_passphrase(tmp_path):
    disk = tmp_path / "disk"
    disk.write_bytes(bytes(1 << 20))
    with pytest.raises(blockyard.VolumeError, match="takes no passphrase"):
        blockyard.open(disk, PASSPHRASE, kind="raw")


def test_volume_is_not_copied(volume):
    with pytest.raises(TypeError):
        copy.copy(volume)
    assert volume.pread(1, 0)
