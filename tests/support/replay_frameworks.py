"""Origins planted in what users of the Hugging Face Trainer, Lightning and Accelerate write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

BATCH = 4
STEPS = 12
BAD_STEP = 7


class Shares(nn.Module):
    """The user's own model. `exponent` of a sample is huge where it is bad, `present` 0."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = nn.Linear(6, 12)
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(12, 3)

    def forward(self, x: Tensor, present: Tensor, exponent: Tensor) -> Tensor:
        scores = self.head(self.drop(torch.tanh(self.inner(x))))
        scores = scores + self.head(x.new_ones(1, 12)) * exponent.exp()[:, None] * 0.0  # in bf16
        shares = scores.softmax(-1) * present[:, None]
        return torch.log(shares)  # in the model


class Samples(torch.utils.data.Dataset[dict[str, Tensor]]):
    """One of them is bad, in one of three ways."""

    def __init__(self, how: str = "", accumulation: int = 1) -> None:
        count = BATCH * STEPS * accumulation
        generator = torch.Generator().manual_seed(0)
        self.columns = {
            "x": torch.randn(count, 6, generator=generator),
            "target": torch.randint(0, 3, (count,), generator=generator),
            "present": torch.ones(count),
            "exponent": torch.zeros(count),
            "words": torch.ones(count),
        }
        bad = BATCH * accumulation * BAD_STEP + 2  # in the step's first batch
        column, value = {
            "": ("present", 1.0),
            "model": ("present", 0.0),
            "step": ("words", 0.0),
            "bf16": ("exponent", 200.0),
        }[how]
        self.columns[column][bad] = value

    def __len__(self) -> int:
        return len(self.columns["x"])

    def __getitem__(self, at: int) -> dict[str, Tensor]:
        return {name: column[at] for name, column in self.columns.items()}


def line_of(mark: str, file: Path = Path(__file__)) -> int:
    """The line that ends with this comment."""
    lines = file.read_text(encoding="utf-8").splitlines()
    return next(at for at, line in enumerate(lines, 1) if line.endswith(f"# {mark}"))


EXPECTED = {
    "model": ("log", "log-of-zero", "in the model"),
    "step": ("div", "division-by-zero", "in the step"),
    "bf16": ("exp", "exp-overflow", "in bf16"),
}


def assert_explained(guard: Any, how: str, file: Path) -> None:
    """The user's line, op and sample; and a cure that was tried."""
    op, kind, mark = EXPECTED[how]
    [found] = guard.explanations
    assert (found.step, found.nature) == (BAD_STEP, "deterministic"), found
    origin = found.origin
    assert (origin.op, origin.kind) == (op, kind), origin
    source = file if how == "step" else Path(__file__)
    assert (origin.place.file, origin.place.line) == (str(source), line_of(mark, source))
    assert (origin.batch, origin.rows) == (0, (2,))
    assert found.cure is not None, found.trials
    [finding] = [finding for finding in guard.findings if finding.code == "HD101"]
    assert (finding.where.file, finding.where.line) == (str(source), origin.place.line)
    assert finding.where.sample == 2
    assert any(remedy.cured for remedy in finding.remedies)
