"""Facts of headers."""

import json
import os

import pytest
from conftest import BLOCKYARD, run, unpacked

import blockyard


@pytest.mark.parametrize("name", ["l1-aes128-cbc-essiv-sha1", "l2-xts256", "own-bitlocker"])
def test_info_is_that_of_the_program(tmp_path, name):
    path = unpacked(tmp_path, f"img/{name}.img.xz")
    facts = json.loads(run(BLOCKYARD, "info", "--json", path))
    assert facts and blockyard.info(path) == facts


def test_disk_with_partitions_shows_them(tmp_path):
    disk = tmp_path / "disk"
    disk.write_bytes(bytes(4 << 20))
    run("sfdisk", "-q", disk, input=b"label: gpt\n2048,2048,L\n")
    facts = blockyard.info(disk)
    assert facts["scheme"] == "gpt" and len(facts["partitions"]) == 1
    assert facts == json.loads(run(BLOCKYARD, "info", "--json", disk))
    for number in (1, "1"):
        with blockyard.open(disk, kind="raw", partition=number) as partition:
            assert partition.size == 1 << 20


def test_pipe_is_an_error_at_once(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(blockyard.Error):
        blockyard.info(pipe)
