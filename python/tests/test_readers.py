"""Readers of file systems by others, on top of a volume."""

import io

import pytest
from conftest import PASSPHRASE, formatted, run

import blockyard

START = 1 << 20
TEXT = b"a long line\n" * 30000


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    """A volume with a partition, and ext4 in it."""
    folder = tmp_path_factory.mktemp("readers")
    files = folder / "files"
    (files / "etc").mkdir(parents=True)
    (files / "etc" / "hostname").write_bytes(b"inner\n")
    (files / "long").write_bytes(TEXT)
    plain = folder / "plain"
    plain.write_bytes(bytes(24 << 20))
    # mke2fs clears the start of the disk, so the partition table comes later.
    run("mke2fs", "-q", "-t", "ext4", "-d", files, "-E", f"offset={START}", plain, "22M")
    run("sfdisk", "-q", plain, input=b"label: dos\n2048,,L\n")
    image = formatted(folder / "volume.img", "48M")
    with blockyard.open(image, PASSPHRASE, read_only=False) as volume:
        volume.write(plain.read_bytes())
    return image


@pytest.fixture
def volume(image):
    with blockyard.open(image, PASSPHRASE) as volume:
        yield volume


def test_dissect_finds_the_partition_and_reads_its_files(volume):
    disk = pytest.importorskip("dissect.volume.disk", reason="dissect.volume is not installed")
    extfs = pytest.importorskip("dissect.extfs", reason="dissect.extfs is not installed")
    [partition] = disk.Disk(volume).partitions
    files = extfs.ExtFS(partition.open())
    assert files.get("/etc/hostname").open().read() == b"inner\n"
    assert files.get("/long").open().read() == TEXT


def test_ext4_reads_files(volume):
    ext4 = pytest.importorskip("ext4", reason="the package ext4 is not installed")
    files = ext4.Volume(io.BufferedReader(volume), offset=START)
    with files.inode_at("/etc/hostname").open() as file:
        assert file.read() == b"inner\n"
    with files.inode_at("/long").open() as file:
        assert file.read() == TEXT


def test_sleuthkit_reads_files(volume):
    pytsk3 = pytest.importorskip("pytsk3", reason="pytsk3 is not installed")

    class Image(pytsk3.Img_Info):
        def __init__(self):
            super().__init__(url="", type=pytsk3.TSK_IMG_TYPE_EXTERNAL)

        def read(self, offset, size):
            return volume.pread(size, offset)

        def get_size(self):
            return volume.size

    files = pytsk3.FS_Info(Image(), offset=START)
    file = files.open("/long")
    assert file.read_random(0, file.info.meta.size) == TEXT
