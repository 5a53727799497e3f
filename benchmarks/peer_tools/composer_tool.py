"""Composer's NaNMonitor, called with each loss as Composer's Trainer calls it.

Its other monitors (OptimizerMonitor, ActivationMonitor, MemoryMonitor) record and do not judge. The
scripts are not written for Composer's Trainer: handing it the loss is the most that can be done.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

from peer_tools.base import Alarm, Tool, codes


class Composer(Tool):
    name = "Composer NaNMonitor"
    package = "mosaicml"
    reach = "a NaN loss; its other monitors record and do not judge"
    environment = "composer"
    means: ClassVar[dict[str, frozenset[str]]] = {"nan": codes(101, 112)}

    def preload(self) -> None:
        from composer.callbacks import NaNMonitor  # noqa: F401

    def begin(self, text: str) -> None:
        from composer.callbacks import NaNMonitor

        self.monitor = NaNMonitor()

    def attach(self, model: Any, optimizer: Any) -> None:
        """It needs only the loss, but it does not support a run without a model."""

    def lost(self, loss: float) -> None:
        import torch

        self.monitor.after_loss(SimpleNamespace(loss=torch.tensor(loss)), SimpleNamespace())

    def raised(self, error: BaseException, script: str) -> list[Alarm] | None:
        if isinstance(error, RuntimeError) and "NaN" in str(error):
            return [Alarm("nan", str(error))]
        return None


TOOL = Composer
