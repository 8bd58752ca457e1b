"""Volumes for the tests: those of other programs, and new ones with a file system."""

import hashlib
import json
import lzma
import os
import pathlib
import subprocess

import pytest

VOLUMES = pathlib.Path(__file__).parents[2] / "testdata" / "volumes"
MANIFEST = {entry["name"]: entry for entry in json.loads((VOLUMES / "manifest.json").read_text())}

# The program itself: it formats volumes, and its output is compared.
BLOCKYARD = os.environ.get("BLOCKYARD_BINARY", "blockyard")
PASSPHRASE = "sésame, öffne dich"


def run(*words, **more):
    """Runs a program to its end, and returns its standard output."""
    done = subprocess.run(
        [os.fspath(word) for word in words], stdout=subprocess.PIPE, check=True, timeout=120, **more
    )
    return done.stdout


class Foreign:
    """A volume that another program has made."""

    def __init__(self, folder, name):
        self.entry = MANIFEST[name]
        self.path = unpacked(folder, self.entry["image"])
        self.header = unpacked(folder, self.entry["header"]) if "header" in self.entry else None
        self.key_file = VOLUMES / self.entry["key_file"]

    def is_plaintext(self, data):
        return hashlib.sha256(data).hexdigest() == self.entry["plaintext_sha256"]


def unpacked(folder, packed):
    path = folder / pathlib.Path(packed).stem
    path.write_bytes(lzma.decompress((VOLUMES / packed).read_bytes()))
    return path


@pytest.fixture
def foreign(tmp_path):
    return lambda name: Foreign(tmp_path, name)


@pytest.fixture
def image(tmp_path):
    """A new volume of 8 MiB behind its header, with a passphrase beyond ASCII."""
    return formatted(tmp_path / "volume.img", "24M")


def formatted(path, size):
    key = path.with_suffix(".key")
    key.write_text(PASSPHRASE)
    cheap = ["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"]
    run(BLOCKYARD, "format", path, "--size", size, "--key-file", key, "--batch-mode", *cheap)
    return path
