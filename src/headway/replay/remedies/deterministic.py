"""Deterministic algorithms only: what sums in another order each time, does not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from headway.replay.remedies.base import Remedy
from headway.replay.scene import Scene


class Deterministic(Remedy):
    key = "deterministic"
    text = "Call `torch.use_deterministic_algorithms(True, warn_only=True)` before training"
    safe = True

    def __init__(self, why_not: str = "") -> None:
        self.why_not = why_not

    @contextmanager
    def applied(self, scene: Scene) -> Iterator[None]:
        on = torch.are_deterministic_algorithms_enabled()
        warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(on, warn_only=warn_only)
