"""Whether backward passes run in anomaly mode, and who switched it on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from headway.preflight.observer import Observer
from headway.preflight.user_source import find_line

TOPIC = "anomaly-mode"
ENOUGH = 3
"""Backward passes in a row: somebody may look at one step on purpose."""


class AnomalyMode(Observer):
    """Asks at the first backward passes."""

    def start(self) -> None:
        self._ours = torch.is_anomaly_enabled()  # switched on before the script began
        self._passes = 0
        self._on = 0
        self._place: dict[str, Any] | None = None

    def backward_begins(self, roots: Sequence[Tensor]) -> None:
        if self._passes > ENOUGH:
            return
        self._passes += 1
        if torch.is_anomaly_enabled() and not self._ours:
            self._on += 1
            self._place = self._place or find_line(self.scene, r"detect_anomaly")
        if self._passes == ENOUGH:
            self._tell()

    def finished(self) -> None:
        if 0 < self._passes < ENOUGH:
            self._tell()

    def _tell(self) -> None:
        facts: dict[str, Any] = {"backwards": self._passes, "on": self._on}
        if self._place is not None:
            facts["place"] = self._place
        self.evidence.tell(TOPIC, facts)
