"""Which lines of the set make or hand on a -inf, in the order they ran."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from explain.origin_set.scenario import Batch, Case, Scenario
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_HERE = str(Path(__file__).parent)
Place = tuple[str, int]


class _Lines(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.all: list[Place] = []
        self.infinite: list[Place] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        place = _place()
        if place is not None:
            self.all.append(place)
            tensors = [leaf for leaf in tree_leaves(made) if isinstance(leaf, Tensor)]
            floats = [value for value in tensors if value.is_floating_point()]
            if any(bool(torch.isneginf(value).any()) for value in floats):
                self.infinite.append(place)
        return made


def _place() -> Place | None:
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_filename.startswith(_HERE):
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back  # type: ignore[assignment]
    return None


def _run(case: Case, batch: Batch) -> _Lines:
    with _Lines() as lines:
        case.forward(batch)
    return lines


def deliberate_lines(scenario: Scenario, case: Case) -> set[Place]:
    """Where there is a -inf that does no harm: in a step that goes well, or before the origin."""
    guilty = scenario.line()
    if case.healthy:
        found = set(_run(case, case.healthy[0]).infinite)
        if found - {guilty}:
            return found - {guilty}
    if case.repair is not None:
        case.repair()
    lines = _run(case, case.bad)
    if case.repair is not None:
        return set(lines.infinite) - {guilty}
    made, ran = lines.infinite, lines.all
    if guilty not in ran:
        return set(made)
    before = set(ran[: ran.index(guilty)])
    return {place for place in made if place in before}
