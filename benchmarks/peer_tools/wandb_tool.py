"""wandb.watch(model, log="all") in an offline run, with the loss logged at every step."""

from __future__ import annotations

from typing import Any

from peer_tools.base import Alarm, Tool


class Wandb(Tool):
    name = "wandb.watch"
    package = "wandb"
    reach = "n/a: it records and has no rule that could speak"
    sample = 12  # it records histograms and has no rule that could speak

    def preload(self) -> None:
        import os

        import wandb  # noqa: F401

        os.environ.update(WANDB_MODE="offline", WANDB_SILENT="false")

    def begin(self, text: str) -> None:
        import wandb

        self.warned: list[str] = []
        self.models: list[Any] = []
        self.run_ = wandb.init(project="peers", mode="offline", dir=".")
        wandb.termwarn = lambda text, *rest, **more: self.warned.append(str(text))
        self.loss = 0.0

    def attach(self, model: Any, optimizer: Any) -> None:
        import wandb

        if not any(seen is model for seen in self.models):
            wandb.watch(model, log="all", log_freq=1, idx=len(self.models))
            self.models.append(model)

    def lost(self, loss: float) -> None:
        self.loss = loss

    def stepped(self, optimizer: Any) -> None:
        self.run_.log({"loss": self.loss})

    def alarms(self) -> list[Alarm]:
        self.run_.finish()
        return [Alarm("warning", text) for text in self.warned]


TOOL = Wandb
