"""The demo: its claims hold, and when one does not, it admits it."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest

from headway.cli.demo import create_folder
from headway.postmortem.diagnose import diagnose


@pytest.fixture(autouse=True)
def threads():
    """The demo sets torch to one thread; leave it as it was."""
    import torch

    before = torch.get_num_threads()
    yield
    assert torch.get_num_threads() == before


def test_a_short_demo(invoke, tmp_path):
    result = invoke("demo", "--steps", 20)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[-1] == f"Next: headway diagnose {Path('headway-runs', 'demo')}"
    assert "HD101 nonfinite-loss was found at step 12 and at no other step" in result.stdout
    assert "bit for bit" in result.stdout
    assert "\x1b" not in result.stdout
    assert max(map(len, lines)) <= 80
    report = diagnose(tmp_path / "headway-runs" / "demo")
    assert report.causes[0].code == "HD101"
    assert [item.step for item in report.findings if item.code == "HD101"] == [12]
    assert logging.getLogger("headway").handlers == []


class NoGuard:
    """What a guard looks like that does nothing."""

    findings = ()
    actions = ()
    explanations = ()
    replaying = False

    def __init__(self, *args, **kwargs):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def __call__(self, loader):
        return loader

    def backward(self, loss):
        loss.backward()


@pytest.mark.slow
def test_it_admits_what_did_not_hold(invoke, monkeypatch):
    import headway.demo.training as training

    monkeypatch.setattr(training, "Guard", NoGuard)
    result = invoke("demo", "--steps", 20)
    assert result.exit_code == 4
    assert "did not hold" in result.stdout
    assert "claims of the demo did not hold" in result.stderr
    assert "unchanged" in result.stderr


@pytest.mark.slow
def test_settings_of_the_folder_do_not_spoil_it(invoke, tmp_path):
    (tmp_path / "pyproject.toml").write_text('[tool.headway]\nignore = ["HD1"]\n')
    assert invoke("demo", "--steps", 20, "--out", tmp_path / "elsewhere").exit_code == 0
    assert (tmp_path / "elsewhere" / "run.json").is_file()


def test_without_torch(invoke, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    result = invoke("demo")
    assert result.exit_code == 2
    assert "pip install 'headway[torch]'" in result.stderr
    assert result.stdout == ""


def test_nothing_is_overwritten(tmp_path):
    wanted = tmp_path / "runs" / "demo"
    assert [create_folder(wanted).name for _ in range(3)] == ["demo", "demo-2", "demo-3"]


def test_a_folder_that_cannot_be(invoke, tmp_path):
    (tmp_path / "file").write_text("")
    result = invoke("demo", "--out", tmp_path / "file" / "demo")
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1


@pytest.mark.slow
def test_the_whole_demo_as_a_user_runs_it(shell):
    result = shell("demo")
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stderr == ""
    assert "its weights are the" in result.stdout
