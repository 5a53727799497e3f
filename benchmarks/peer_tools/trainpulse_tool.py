"""trainpulse: the callback of its README, given loss, gradient norm and rate at every step."""

from __future__ import annotations

from typing import Any, ClassVar

from peer_tools.base import Alarm, Tool, codes


class Trainpulse(Tool):
    name = "trainpulse"
    package = "trainpulse"
    reach = "NaN, jumps and plateaus of loss, gradient norm and rate"
    at_least = 150  # its rules want 50 to 100 steps of history
    means: ClassVar[dict[str, frozenset[str]]] = {
        "nan_detector": codes(101, 112, 201),
        "loss_spike": codes(103, 104),
        "gradient": codes(202, 203, 207),
        "learning_rate": codes(405, 406),
        "plateau": codes(105),
    }

    def preload(self) -> None:
        import trainpulse  # noqa: F401

    def begin(self, text: str) -> None:
        self.callbacks: dict[int, Any] = {}
        self.steps: dict[int, int] = {}
        self.loss: float | None = None

    def lost(self, loss: float) -> None:
        self.loss = loss

    def attach(self, model: Any, optimizer: Any) -> None:
        from trainpulse import TrainingCallback

        self.callbacks[id(optimizer)] = callback = TrainingCallback()
        self.steps[id(optimizer)] = 0
        callback.on_step_begin(0)

    def stepped(self, optimizer: Any) -> None:
        callback = self.callbacks.get(id(optimizer))
        if callback is None:
            return
        step = self.steps[id(optimizer)]
        callback.on_step_end(
            step,
            loss=self.loss,
            grad_norm=norm_of(optimizer),
            lr=float(optimizer.param_groups[0]["lr"]),
        )
        self.steps[id(optimizer)] = step + 1
        callback.on_step_begin(step + 1)

    def alarms(self) -> list[Alarm]:
        found: dict[str, Alarm] = {}
        for callback in self.callbacks.values():
            for alert in callback.report().alerts:
                # A slow step is the machine's doing here, where several runs share it.
                if alert.severity.value != "info" and alert.detector != "step_time":
                    found.setdefault(alert.detector, Alarm(alert.detector, alert.message))
        return list(found.values())


def norm_of(optimizer: Any) -> float:
    """The norm a user would compute to log it."""
    import torch

    gradients = [p.grad for g in optimizer.param_groups for p in g["params"] if p.grad is not None]
    return float(torch.nn.utils.get_total_norm([grad.float() for grad in gradients]))


TOOL = Trainpulse
