"""The loss that the Hugging Face Trainer should have logged.

The Trainer logs a mean over several steps, and a NaN spoils it in one of two ways. With
`logging_nan_inf_filter` (the default) it is swallowed: a window of nothing but NaN is logged as 0.
Without, it stays in the running sum: every later loss is logged as NaN, though the guard held that
one update back and the run is well.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


class LoggedLoss:
    """The losses since the last log, those that are no numbers counted apart."""

    def __init__(self) -> None:
        self._total: Tensor | None = None
        self._good: Tensor | None = None
        self._seen = 0
        self._steps = 0

    def add(self, loss: Tensor) -> None:
        """One micro-batch was trained on. Nothing is read: the numbers stay on their device."""
        finite = torch.isfinite(loss)
        value = torch.where(finite, loss, 0.0)
        self._total = value if self._total is None else self._total + value
        self._good = finite.long() if self._good is None else self._good + finite
        self._seen += 1

    def stepped(self) -> None:
        """The micro-batches of a step are complete."""
        self._steps += 1

    def correct(self, logged: float, *, filtered: bool) -> float:
        """What a log of these losses must say: `logged` itself where it is right.

        `filtered`: the Trainer leaves non-finite losses out, as it was asked to.
        """
        total, good, seen, steps = self._total, self._good, self._seen, self._steps
        if total is None or good is None or not steps:
            return logged
        left = int(good)
        if left == seen:
            return logged if math.isfinite(logged) else float(total) / steps
        if not filtered or left == 0:
            return math.nan
        return float(total) / left * seen / steps
