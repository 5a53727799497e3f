"""torch-audit, in the zero-touch mode its README begins with, looking at every step."""

from __future__ import annotations

from typing import Any, ClassVar

from peer_tools.base import Alarm, Tool, codes

NOT_COUNTED = {
    "TA000",  # one of its own validators crashed: of the tool, not of the run
    "TA200",  # sizes for tensor cores, and
    "TA201",  # memory layout: advice about speed, given for nearly every model
}


class TorchAudit(Tool):
    name = "torch-audit"
    package = "torch-audit"
    reach = (
        "NaN, size and absence of gradients, input range, dead units, unused layers, decay settings"
    )
    means: ClassVar[dict[str, frozenset[str]]] = {
        "TA100": codes(101, 201, 301),
        "TA102": codes(104, 202, 207, 308),
        "TA104": codes(108, 204, 410, 905),
        "TA105": codes(304),
        "TA202": codes(901),
        "TA300": codes(901),
        "TA301": codes(501, 502),
        "TA302": codes(503),
        "TA305": codes(505),
        "TA405": codes(304, 316),
        "TA500": codes(106, 204, 402),
    }

    def preload(self) -> None:
        import torch_audit  # noqa: F401

    def begin(self, text: str) -> None:
        self.auditors: list[Any] = []

    def attach(self, model: Any, optimizer: Any) -> None:
        from torch_audit import autopatch

        self.auditors.append(autopatch(model, optimizer=optimizer, every_n_steps=1))

    def alarms(self) -> list[Alarm]:
        found = {}
        for auditor in self.auditors:
            for item in auditor.findings:
                if item.severity.value != "INFO" and item.rule_id not in NOT_COUNTED:
                    found.setdefault(item.rule_id, Alarm(item.rule_id, item.message))
        return list(found.values())


TOOL = TorchAudit
