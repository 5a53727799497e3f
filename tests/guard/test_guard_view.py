"""What a guard shows of itself, and what it says to a policy that is none."""

from __future__ import annotations

import io
import math
import sys
from pathlib import Path

import pytest
import torch

import headway
from headway.errors import UsageError


def test_a_guard_prints_its_state() -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = headway.Guard(model, optimizer)
    for x in guard([torch.ones(1, 2)] * 3):
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert repr(guard) == "<headway guard: watching, 3 steps, 0 actions>"
    guard.close()
    assert repr(guard) == "<headway guard: closed, 3 steps, 0 actions>"


def test_the_name_of_a_policy_is_no_policy() -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(UsageError, match=r"must be a headway\.Policy.*not 'agressive'"):
        headway.Guard(model, optimizer, policy="agressive")  # type: ignore[arg-type]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("factor", "words"),
    [(1.0, "headway: 3 steps guarded, no findings ({})\n"), (math.nan, "findings: HD101, HD201")],
)
def test_on_a_terminal_close_says_in_one_line_what_was_guarded(
    factor: float, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "300")
    guard = train_three(factor, tmp_path)
    guard.close()
    guard.close()
    assert words.format(tmp_path) in terminal.getvalue()
    assert terminal.getvalue().count("\n") == 1
    assert ("next: headway diagnose" in terminal.getvalue()) == math.isnan(factor)


def test_close_is_silent_without_a_terminal_and_without_a_step(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    train_three(1.0, tmp_path).close()
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    model = torch.nn.Linear(2, 1)
    headway.Guard(model, torch.optim.SGD(model.parameters(), 0.1)).close()
    assert capfd.readouterr() == ("", "")
    assert terminal.getvalue() == ""


def train_three(factor: float, run_dir: Path) -> headway.Guard:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    guard = headway.Guard(model, optimizer, run_dir=str(run_dir))
    for _ in range(3):
        (model(torch.ones(3, 2)).mean() * factor).backward()
        optimizer.step()
        optimizer.zero_grad()
    return guard
