"""`make new-check` writes a check that is found, and a page of cases that pass."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.ending_corpus import ENDINGS
from support.new_check import FAMILIES, main, write_check

from headway import registry

ROOT = Path(__file__).parents[2]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """What a new check needs of the repository, without the pages of the other checks."""
    left_out = shutil.ignore_patterns("__pycache__", "*.md")
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for folder in ("checks", "support"):
        shutil.copytree(ROOT / "tests" / folder, tmp_path / "tests" / folder, ignore=left_out)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


@pytest.mark.slow
def test_the_new_check_passes_its_own_cases(copy: Path) -> None:
    check, page = write_check(copy, "HD150", "repeated-loss")
    assert check == copy / "src/headway/checks/loss/hd150_repeated_loss.py"
    assert page == copy / "tests/checks/hd150_repeated_loss.md"
    environment = {**os.environ, "PYTHONPATH": f"{copy / 'src'}{os.pathsep}{copy / 'tests'}"}
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "tests/checks/test_fixtures.py",
        ],
        cwd=copy,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def test_every_check_is_in_the_folder_of_its_digit() -> None:
    """What ends a run is in a folder of its own, whatever its digit."""
    for code, module in registry.modules().items():
        assert module.split(".")[2] == ("endings" if code in ENDINGS else FAMILIES[code[2]]), code


@pytest.mark.parametrize(
    ("code", "name", "words"),
    [
        ("HD101", "other-name", "never reused"),
        ("XX118", "other-name", "three digits"),
        ("HD150", "Other Name", "lower-case words"),
    ],
)
def test_a_code_or_name_that_cannot_be_used_writes_nothing(
    copy: Path, code: str, name: str, words: str
) -> None:
    before = sorted(copy.rglob("hd*"))
    with pytest.raises(ValueError, match=words):
        write_check(copy, code, name)
    assert sorted(copy.rglob("hd*")) == before


def test_the_command_names_what_it_wrote(
    copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(copy)
    assert main(["HD150", "repeated-loss"]) == 0
    assert "wrote src/headway/checks/loss/hd150_repeated_loss.py" in capsys.readouterr().out
    assert main(["HD150"]) == 2
    assert "usage" in capsys.readouterr().err
