"""Weights of a checkpoint that are 0 in every element, and what speaks for a trained layer.

Many layers start at 0 on purpose: LoRA's B, the last layer of a residual branch, a control's
convolutions, a new head. So a 0 alone says little. It says much where the layer was trained: its
moments are not 0, or its bias is spread out in a model whose batch norms have counted batches.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from typing import Any

from headway.core.records import TensorRecord
from headway.core.saved import Saved, counted, is_embedding, is_first_moment, is_position
from headway.core.state import remember

ENOUGH_STEPS = 10
"""A warm-up from a rate of 0 leaves weights where they began; for so long at most."""
_MATRIX = re.compile(r"(^|[._/])(weight|kernel)$")
_ADAPTER = re.compile(r"lora|adapter", re.I)


@remember
@dataclass
class Zeroed:
    """What is gathered of one checkpoint."""

    zero: dict[str, str] = field(default_factory=dict)
    """Name → file, of the matrices that are 0."""
    others: int = 0
    """Matrices that are not."""
    spread: set[str] = field(default_factory=set)
    """Biases whose elements differ, and none of which is 0."""
    fed: set[str] = field(default_factory=set)
    """First moments that are not 0."""
    batches: bool = False
    """Whether a batch norm has seen any."""

    def add(self, record: TensorRecord) -> None:
        """One more tensor."""
        low, high = record.stats.get("min", 0.0), record.stats.get("max", 0.0)
        if record.role == "moment":
            if is_first_moment(record.name) and low < high:
                self.fed.add(record.name)
        elif record.name.endswith("running_mean"):
            self.batches = self.batches or low < high
        elif record.role != "weight" or record.nonfinite:
            return
        elif len(record.shape) == 1 and record.name.endswith("bias"):
            if low < high and not counted(record, "zero"):
                self.spread.add(record.name)
        elif is_matrix(record) and _is_layer(record.name):
            if low == high == 0.0 and counted(record, "zero") == counted(record, "numel") > 0:
                file = record.facts.get("file")
                self.zero[record.name] = file if isinstance(file, str) else ""
            else:
                self.others += 1

    def trained(self, saved: Saved) -> dict[str, str]:
        """The zero weights of layers that were trained, and how that is known."""
        found = {}
        owners = saved.trained_by() if self.zero and self.fed else {}
        steps = saved.count if saved.count is not None else saved.step
        for name in self.zero:
            if owners.get(name) in self.fed and steps is not None and steps >= ENOUGH_STEPS:
                found[name] = "though its moments are not: it was trained, and set to 0 since"
            elif self.batches and _MATRIX.sub(r"\1bias", name) in self.spread:
                found[name] = "though its bias is not: its output is the same for every input"
        return found

    def to_state(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_state(cls, state: Any) -> Zeroed:
        return cls(**state)


def is_matrix(record: TensorRecord) -> bool:
    """Whether it has rows and columns, and not only one of either."""
    return sum(size > 1 for size in record.shape) > 1


def _is_layer(name: str) -> bool:
    """Whether it is the matrix of a layer that does not begin at 0 as a rule."""
    ordinary = not (is_embedding(name) or is_position(name) or _ADAPTER.search(name))
    return bool(_MATRIX.search(name)) and ordinary
