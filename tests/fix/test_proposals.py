"""Edits for faults of the loop, of the loss's arguments and of the set-up, as text."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest

from headway.core.findings import Finding, Remedy, Severity, Where
from headway.fix.proposals import PROPOSERS, propose_edits
from headway.registry import get
from headway.report import Coverage, Report
from headway.torch_adapters.source import SourceFile

LOOP = """
for epoch in range(3):
    for a, b in loader:  # é
        loss = F.cross_entropy(model(a), b)
        loss.backward()
        optimizer.step()
"""


def proposed(path: Path, code: str, source: str, line: int, **evidence: Any) -> list[Remedy]:
    path.write_text(textwrap.dedent(source).lstrip("\n"), encoding="utf-8")
    where = Where(str(path), line)
    finding = Finding(code, get(code).name, Severity.ERROR, 1, "", where, evidence)
    report = Report("check", [finding], [], [], Coverage(1, 1))
    return [item for item in propose_edits(report, path).findings[0].remedies if item.edits]


def after(path: Path, remedy: Remedy) -> str:
    file = SourceFile.read(str(path))
    assert file is not None
    return file.replaced([(edit.start, edit.end, edit.new) for edit in remedy.edits])


def changes(path: Path, remedy: Remedy) -> tuple[list[str], list[str]]:
    """The lines that an edit removes, and those that it adds."""
    old, new = path.read_text("utf-8").splitlines(), after(path, remedy).splitlines()
    return (
        [line.strip() for line in old if line not in new],
        [line.strip() for line in new if line not in old],
    )


CLIP = """
for a, b in loader:
    scaler.scale(loss).backward()
    clip_grad_norm_(model.parameters(), 1.0)  # keep
    scaler.step(optimizer)
"""
FORWARD = """
class Net(nn.Module):
    def __init__(self):
        self.soft = nn.Softmax(dim=1)

    def forward(self, x):
        return self.soft(self.head(x))
"""
SHAPES = {"prediction_shape": "(16, 1)", "target_shape": "(16,)"}
EVALUATE = """
def evaluate():
    model.eval()

for epoch in range(3):
    for a, b in loader:
        loss.backward()
    evaluate()
"""
OPTIMIZER = """
model = Net()
optimizer = SGD(model.parameters(), lr=0.1)
model.head = nn.Linear(8, 2)
model = model.to(device)
"""
SAMPLER = """
sampler = DistributedSampler(data)
for epoch in range(3):
    for a, b in loader:
        loss.backward()
"""
STATE = """
for a in loader:
    out, hidden = model(a, hidden)
    loss.backward()
"""

CASES: list[tuple[str, str, int, dict[str, Any], list[str], list[str]]] = [
    ("HD206", LOOP, 4, {}, [], ["optimizer.zero_grad()"]),
    ("HD314", CLIP, 3, {}, [], ["scaler.unscale_(optimizer)"]),
    (
        *("HD110", FORWARD, 6, {"made_by": "softmax"}),
        *(["return self.soft(self.head(x))"], ["return self.head(x)"]),
    ),
    (
        *("HD110", "loss = ce(z.softmax(-1), y)  # é\n", 1, {"made_by": "softmax"}),
        *(["loss = ce(z.softmax(-1), y)  # é"], ["loss = ce(z, y)  # é"]),
    ),
    (
        *("HD109", "loss = criterion(out, y)\n", 1, SHAPES),
        *(["loss = criterion(out, y)"], ["loss = criterion(out.squeeze(-1), y)"]),
    ),
    (
        *("HD803", "for a in b:\n    self.total += loss\n", 1, {"holder": "the tensor `total`"}),
        *(["self.total += loss"], ["self.total += loss.item()"]),
    ),
    ("HD803", STATE, 2, {"carried": True}, [], ["hidden = hidden.detach()"]),
    ("HD902", EVALUATE, 5, {}, [], ["model.train()"]),
    ("HD402", OPTIMIZER, 2, {}, [], []),
    ("HD507", SAMPLER, 3, {}, [], ["sampler.set_epoch(epoch)"]),
    (
        *("HD505", "loss = F.cross_entropy(z, y)\n", 1, {"low": -1}),
        *(["loss = F.cross_entropy(z, y)"], ["loss = F.cross_entropy(z, y, ignore_index=-1)"]),
    ),
    (
        *("HD116", 'criterion = nn.MSELoss(reduction="sum")\n', 1, {}),
        *(
            ['criterion = nn.MSELoss(reduction="sum")'],
            ['criterion = nn.MSELoss(reduction="mean")'],
        ),
    ),
]


@pytest.mark.parametrize(("code", "source", "line", "evidence", "removed", "added"), CASES)
def test_the_first_edit_is_the_mechanical_one(
    tmp_path: Path,
    code: str,
    source: str,
    line: int,
    evidence: dict[str, Any],
    removed: list[str],
    added: list[str],
) -> None:
    path = tmp_path / "train.py"
    remedy = proposed(path, code, source, line, **evidence)[0]
    assert changes(path, remedy) == (removed, added)
    compile(after(path, remedy), "train.py", "exec")


def test_the_optimizer_moves_behind_the_last_change_of_the_model(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    remedy = proposed(path, "HD402", OPTIMIZER, 2)[0]
    assert after(path, remedy).splitlines()[-1] == "optimizer = SGD(model.parameters(), lr=0.1)"


def test_a_value_that_arrives_with_its_graph_is_not_computed_without_one(tmp_path: Path) -> None:
    path, holder = tmp_path / "train.py", {"holder": "the list `meter.values`"}
    keeps = "class Meter:\n    def add(self, v):\n        self.values.append(v)\n"
    makes = "def score(x):\n    v = model(x)\n    meter.values.append(v)\n"
    given = [item.text for item in proposed(path, "HD803", keeps, 3, **holder)]
    made = [item.text for item in proposed(path, "HD803", makes, 3, **holder)]
    assert not any("no_grad" in text for text in given)
    assert any("no_grad" in text for text in made)


def test_a_statement_that_shares_its_line_is_left_alone(tmp_path: Path) -> None:
    source = "for a, b in loader: loss.backward(); optimizer.step()\n"
    assert proposed(tmp_path / "train.py", "HD206", source, 1) == []


def test_line_endings_are_those_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    proposed(path, "HD206", LOOP, 4)
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    where = Where(str(path), 4)
    finding = Finding("HD206", "x", Severity.ERROR, 1, "", where)
    report = Report("check", [finding], [], [], Coverage(1, 1))
    remedy = propose_edits(report, path).findings[0].remedies[0]
    text = after(path, remedy)
    assert text.count("\n") == text.count("\r\n") == 6


def test_every_code_exists_and_unsafe_edits_are_marked(tmp_path: Path) -> None:
    assert all(get(code).code == code for code in PROPOSERS)
    path = tmp_path / "train.py"
    (remedy,) = proposed(path, "HD116", 'nn.MSELoss(reduction="sum")\n', 1)
    assert not remedy.safe


@pytest.mark.parametrize(
    ("target", "detached"),
    [("b", False), ("b.long()", False), ("table[a]", False), ("teacher(a)", True)],
)
def test_labels_of_the_data_are_not_detached(tmp_path: Path, target: str, detached: bool) -> None:
    """HD401 of a model that no optimizer holds: only a target that is computed can be meant."""
    source = f"for a, b in loader:\n    loss = criterion(model(a), {target})\n"
    texts = [item.text for item in proposed(tmp_path / "train.py", "HD401", source, 2)]
    assert any("detach" in text for text in texts) == detached
