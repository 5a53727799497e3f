"""Where the output logits stand: their common level, and how far the classes are apart."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from headway.preflight.call_sites import looked_at
from headway.preflight.observer import Call, Observer
from headway.preflight.spellings import spellings

LOSSES = spellings("cross_entropy")
NORMALISED = spellings("log_softmax", "logsumexp")
MOST_ROWS = 512


class OutputLogits(Observer):
    """Measures `logit_level`, `logit_spread` and `log_z` of what the loss normalises."""

    functions = (*LOSSES, *NORMALISED)

    def start(self) -> None:
        self._found: tuple[float, float, float] | None = None
        self._place: Any = None
        self._told = False

    def function_ended(self, call: Call) -> None:
        if not torch.is_grad_enabled() or not looked_at(self.scene.step):
            return
        logits = call.argument(0, "input")
        result = call.result
        if not isinstance(logits, Tensor) or not logits.requires_grad or logits.dim() < 2:
            return
        if not isinstance(result, Tensor) or not logits.is_floating_point():
            return
        classes = 1 if call.function in LOSSES else call.argument(1, "dim", -1)
        if not isinstance(classes, int) or logits.shape[classes] < 3:
            return
        if call.function in NORMALISED and classes not in (1, -1, logits.dim() - 1):
            return
        rows = logits.detach().movedim(classes, -1).reshape(-1, logits.shape[classes])
        rows = rows[:MOST_ROWS].float()
        if not rows.numel():
            return
        level, spread = rows.mean(1).mean(), rows.std(1).mean()
        self._found = (float(level), float(spread), float(rows.logsumexp(1).mean()))
        if not self._told:
            self._place = self.scene.place()

    def backward_begins(self, roots: Any) -> None:
        found, self._found = self._found, None
        if found is None:
            return
        if not self._told:
            self._told = True
            self.evidence.tell("output-logits", {"place": self._place})
        for name, value in zip(("logit_level", "logit_spread", "log_z"), found, strict=True):
            self.evidence.value(name, value)

    def step_ended(self, optimizer: Optimizer) -> None:
        self._found = None
