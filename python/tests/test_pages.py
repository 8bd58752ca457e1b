"""The examples of the pages, in their order."""

import pathlib
import re

import pytest
from conftest import BLOCKYARD, run

import blockyard

ROOT = pathlib.Path(__file__).parents[2]

# Packages in the examples that may be missing: readers without a way to PyPI, and pandas for its size.
OTHERS = {"dissect", "pandas"}


@pytest.fixture
def home(tmp_path, monkeypatch):
    """The folder of a reader, with the image that the examples open."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "files" / "etc").mkdir(parents=True)
    (tmp_path / "files" / "etc" / "hostname").write_text("inner\n")
    (tmp_path / "key").write_text("correct horse")
    run("mke2fs", "-q", "-t", "ext4", "-d", "files", "plain", "24M")
    cheap = ["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"]
    run(BLOCKYARD, "format", "home.img", "--size", "40M", "--key-file", "key", *cheap)
    run(BLOCKYARD, "load", "home.img", "-i", "plain", "--key-file", "key")


@pytest.mark.parametrize("page", ["docs/python.md", "python/README.md"])
def test_examples_of_a_page_run(page, home, monkeypatch, capsys):
    real = blockyard.lab.run
    # A part of the experiment, which takes minutes.
    part = {"variants": ["sd-cfq"], "seeds": [1]}
    monkeypatch.setattr(blockyard.lab, "run", lambda name: real(name, **part))
    blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(), re.M | re.S)
    names, missing = {}, set()
    for block in blocks:
        try:
            exec(compile(block, page, "exec"), names)
        except ModuleNotFoundError as error:
            package = error.name.split(".")[0]
            assert package in OTHERS, error
            missing.add(package)
    said = capsys.readouterr().out
    assert "dissect" in missing or "inner" in said
