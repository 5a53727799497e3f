"""The lines of source around a finding: what is underlined, and when nothing is shown."""

from __future__ import annotations

import hashlib
import json
from io import StringIO
from pathlib import Path
from typing import Any

from headway.core.findings import Finding, Remedy, Severity, SourceEdit, Where
from headway.diagnosis import Cause
from headway.engine import Engine
from headway.output.code_frame import edit_diff, frame_of
from headway.output.console import ReportPrinter
from headway.output.terminal import TerminalPage
from headway.report import Report
from headway.torch_adapters.source import SourceFile

SOURCE = """import torch

def loss_of(model, x, y):
    p = model(x).softmax(-1)
    weight = 1 / (x.sum() - x.sum())
\treturn torch.log(p) * weight
""".replace("\t", "    ")


def finding(file: Path, line: int, op: str | None, **evidence: Any) -> Finding:
    where = Where(file=str(file), line=line, op=op)
    return Finding("HD101", "a-name", Severity.ERROR, 3, "words", where, evidence)


def marked(shown: Finding) -> list[str]:
    """The underlined text of each underlined line."""
    return [
        line.text[line.column - 1 : line.column - 1 + line.width]
        for line in frame_of(shown)
        if line.column
    ]


def source(folder: Path) -> Path:
    path = folder / "train.py"
    path.write_text(SOURCE, encoding="utf-8")
    return path


def test_the_call_and_the_operator_are_underlined(tmp_path: Path) -> None:
    path = source(tmp_path)
    assert marked(finding(path, 6, "log")) == ["torch.log(p)"]
    assert marked(finding(path, 6, "mul")) == ["torch.log(p) * weight"]
    assert marked(finding(path, 5, "div")) == ["1 / (x.sum() - x.sum())"]
    assert marked(finding(path, 5, "sub")) == ["x.sum() - x.sum()"]
    assert marked(finding(path, 4, "softmax_")) == ["model(x).softmax(-1)"]


def test_an_unknown_op_underlines_the_statement(tmp_path: Path) -> None:
    assert marked(finding(source(tmp_path), 4, "linear")) == ["p = model(x).softmax(-1)"]
    assert marked(finding(source(tmp_path), 4, None)) == ["p = model(x).softmax(-1)"]


def test_two_lines_make_the_fault(tmp_path: Path) -> None:
    path = source(tmp_path)
    both = finding(path, 6, "log", made_at_file=str(path), made_at_line=4, made_by="softmax")
    assert [(line.number, line.main) for line in frame_of(both) if line.column] == [
        (4, False),
        (6, True),
    ]


def test_source_that_is_gone_or_has_changed_is_not_shown(tmp_path: Path) -> None:
    path = source(tmp_path)
    assert frame_of(finding(tmp_path / "gone.py", 4, "log")) == []
    assert frame_of(finding(path, 400, "log")) == []
    assert frame_of(finding(path, 6, "log", source="return torch.log(q)")) == []
    assert frame_of(finding(path, 6, "log", source="return torch.log(p) * weight"))


def test_a_file_that_is_no_python_has_a_frame_without_a_span(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("loss = = 3\n", encoding="utf-8")
    assert marked(finding(path, 1, "log")) == ["loss = = 3"]


def test_a_fix_is_a_diff_and_says_whether_it_was_tested(tmp_path: Path) -> None:
    path = source(tmp_path)
    start = SOURCE.index(".softmax(-1)")
    file = SourceFile.read(str(path))
    assert file is not None
    edit = file.edit(start, start + len(".softmax(-1)"), "")
    assert edit_diff([edit]) == ["-    p = model(x).softmax(-1)", "+    p = model(x)"]
    shown = finding(path, 4, "softmax")
    plain = Remedy("Remove it", edits=(edit,))
    other = Remedy("Write something else", edits=(edit,))
    cured = Remedy("Remove it", True, True, (edit,))
    for remedies, words in (
        ((plain,), "(not tested)"),
        ((cured,), "(tested on the failing step: cured)"),
        ((plain, other), "(not tested; 1 alternative with -v)"),
        ((other, cured), "(tested on the failing step: cured)"),
    ):
        fixed = Finding(**{**{n: getattr(shown, n) for n in shown.__slots__}, "remedies": remedies})
        made = Report.from_engine(Engine(), command="check")
        text = StringIO()
        printer = ReportPrinter(TerminalPage(text))
        printer.write(Report("check", (fixed,), (Cause(fixed, ()),), (), made.coverage))
        said = text.getvalue()
        assert words in " ".join(said.split())
        assert "something else" not in said
        assert "    -    p = model(x).softmax(-1)\n    +    p = model(x)\n" in said
    # Whoever makes the fix still sees in the report what it was.
    path.write_text(SOURCE.replace(".softmax(-1)", ""), encoding="utf-8")
    assert edit_diff([edit]) == ["-    p = model(x).softmax(-1)", "+    p = model(x)"]
    path.unlink()
    assert SourceEdit.from_dict(json.loads(json.dumps(edit.to_dict()))) == edit
    assert edit_diff([edit]) == ["-    p = model(x).softmax(-1)", "+    p = model(x)"]


def test_a_diff_needs_the_lines_and_opens_no_file(tmp_path: Path) -> None:
    path = source(tmp_path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert edit_diff([SourceEdit(str(path), 0, 1, "", digest)]) == []  # a log may name any file
    assert edit_diff([SourceEdit(str(path), 0, 1, "y", "", "x = 1", 0)]) == ["-x = 1", "+y = 1"]


def test_several_edits_of_the_same_lines_are_one_diff(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("a = 1\nb = f(a, 2)\n\nc = 3\n")
    file = SourceFile.read(str(path))
    assert file is not None
    at = file.text.index
    edits = [
        file.edit(at("c"), at("c"), "new\n"),
        file.edit(at("a, 2"), at("a, 2") + 1, "x"),
        file.edit(at("2)"), at("2)") + 1, "y"),
        file.edit(at("\n\n") + 1, at("\n\n") + 1, "d = 4\n"),
    ]
    changed = ["-b = f(a, 2)", "+b = f(x, y)", "+d = 4", "+new"]
    assert edit_diff(edits) == changed
    whole = file.edit(at("b"), at("c"), "")
    assert edit_diff([whole]) == ["-b = f(a, 2)", "-"]
