"""Edits of calls as positions in the user's file."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.core.findings import Finding, Severity, Where
from headway.fix.proposals.bad_numbers import propose_for_bad_number
from headway.torch_adapters.source import SourceFile

SOURCE = """import torch


def f(x, n):  # é
    y = torch.log(  # a comment
        x.sum(),  # another
    )
    if torch.log(x).any():
        y = y / n
    return [v for v in y]; z = torch.log(n)
"""


@pytest.mark.parametrize(
    ("line", "op", "kind", "old", "new"),
    [
        (5, "log", "log-of-zero", "x.sum(),", "x.sum().clamp_min(1e-12),"),
        (6, "log", "log-of-zero", "x.sum(),", "x.sum().clamp_min(1e-12),"),
        (8, "log", "log-of-zero", "torch.log(x)", "torch.log(x.clamp_min(1e-12))"),
        (9, "div", "division-by-zero", "y / n", "y / torch.where(n.abs() < 1e-06, 1e-06, n)"),
    ],
)
def test_only_the_operand_changes(
    tmp_path: Path, line: int, op: str, kind: str, old: str, new: str
) -> None:
    path = tmp_path / "train.py"
    path.write_text(SOURCE, encoding="utf-8")
    where = Where(str(path), line, "f", op=op)
    evidence = {"kind": kind, "phase": "forward"}
    finding = Finding("HD101", "x", Severity.ERROR, 1, "", where, evidence)
    remedy = next(propose_for_bad_number(finding))
    file = SourceFile.read(str(path))
    assert file is not None
    assert all(edit.sha256 == file.sha256 for edit in remedy.edits)
    spans = [(edit.start, edit.end, edit.new) for edit in remedy.edits]
    assert file.replaced(spans) == SOURCE.replace(old, new, 1)
    assert remedy.same_loss


def test_calls_inside_of_each_other_are_changed_one_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("gap = (d.abs() ** 1.5).sum(1) ** (1 / 1.5)\n")
    where = Where(str(path), 1, op="pow")
    evidence = {"kind": "pow-singular", "phase": "backward"}
    finding = Finding("HD201", "x", Severity.ERROR, 1, "", where, evidence)
    new = [edit.new for remedy in propose_for_bad_number(finding) for edit in remedy.edits]
    assert "(d.abs() ** 1.5).sum(1).clamp_min(1e-08)" in new
    assert "d.abs().clamp_min(1e-08)" in new


def test_nothing_is_proposed_without_a_line_or_for_a_library(tmp_path: Path) -> None:
    import torch

    evidence = {"kind": "log-of-zero"}
    for where in (Where(), Where(str(tmp_path / "gone.py"), 1, op="log")):
        finding = Finding("HD101", "x", Severity.ERROR, 1, "", where, evidence)
        assert list(propose_for_bad_number(finding)) == []
    library = Where(torch.functional.__file__, 1, op="log")
    finding = Finding("HD101", "x", Severity.ERROR, 1, "", library, evidence)
    assert list(propose_for_bad_number(finding)) == []
