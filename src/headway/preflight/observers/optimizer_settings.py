"""Tells what every optimizer is set to when it first steps."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer

from headway.preflight import rates
from headway.preflight.observer import Observer


class OptimizerSettings(Observer):
    """See the top of the file."""

    def start(self) -> None:
        self._places: dict[int, Any] = {}
        self._told: list[Optimizer] = []

    def optimizer_made(self, optimizer: Optimizer) -> None:
        self._places[id(optimizer)] = self.scene.place()

    def step_begins(self, optimizer: Optimizer) -> None:
        if any(optimizer is known for known in self._told):
            return
        self._told.append(optimizer)  # held, so that no identity is given twice
        facts = rates.settings(optimizer)
        self.evidence.tell("optimizer", {**facts, "place": self._places.get(id(optimizer))})
