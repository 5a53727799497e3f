"""stabilityguard: GuardedOptimizer around the optimizer, with the settings of its README."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

from peer_tools.base import Alarm, Tool, codes


def guarded(optimizer: Any, model: Any, folder: str = "./sg_logs") -> Any:
    """Replaces the optimizer's step by the guarded one, which calls the original step."""
    from stabilityguard import GuardedOptimizer

    base = SimpleNamespace(
        step=optimizer.step,
        zero_grad=optimizer.zero_grad,
        param_groups=optimizer.param_groups,
        state=optimizer.state,
        state_dict=optimizer.state_dict,
    )
    made = GuardedOptimizer(
        base, model, spike_threshold=10.0, nan_action="skip", log_every=50, log_dir=folder
    )
    optimizer.step = made.step
    return made


class StabilityGuard(Tool):
    name = "stabilityguard"
    package = "stabilityguard"
    reach = "NaN and spikes of gradients, by module"
    at_least = 150
    means: ClassVar[dict[str, frozenset[str]]] = {
        "nan": codes(101, 112, 201),
        "spike": codes(104, 202, 207),
    }

    def preload(self) -> None:
        import stabilityguard  # noqa: F401

    def begin(self, text: str) -> None:
        self.guards: list[Any] = []

    def attach(self, model: Any, optimizer: Any) -> None:
        self.guards.append(guarded(optimizer, model))

    def alarms(self) -> list[Alarm]:
        found: dict[str, Alarm] = {}
        for path in sorted(Path("sg_logs").glob("*.json")):
            report = json.loads(path.read_text(encoding="utf-8"))
            rule = "nan" if report.get("nan_layers") else "spike"
            snapshot = report.get("snapshot", report)
            told = f"step {snapshot.get('step')}: {snapshot.get('spike_layer')}"
            found.setdefault(rule, Alarm(rule, told))
        if not found and any(guard.total_spikes for guard in self.guards):
            found["spike"] = Alarm("spike", "spikes were counted")
        return list(found.values())


TOOL = StabilityGuard
