from __future__ import annotations

from collections.abc import Iterable

from headway.core.check import Check, Needs
from headway.core.findings import Finding, Severity
from headway.core.model_facts import DeviceMismatchFacts
from headway.core.records import SetupRecord


class DeviceMismatch(Check):
    """Model, batch or optimizer state lie on different devices.

    ## What it checks
    The devices of the tensors that meet in one operation.

    ## Why it matters
    The operation raises. Torch names the two devices, but not which tensor is on the wrong one: the
    model that was never moved, the labels that were forgotten, a tensor that a module keeps without
    registering it as a buffer, moments that were loaded on another device.

    ## How it is measured
    When the script raises such an error, the operation that ran then is taken apart: each of its
    tensors, whose parameter it is, and its device. Some operations on a `meta` tensor, which
    has no data, do not raise and compute nothing; those are told as well.

    ## False alarms
    Models spread over several devices on purpose move their activations along and never raise.
    Single numbers may lie on the host.

    ## What to do
    Move model and batch to one device: `model.to(device)` before the optimizer is made,
    `x, y = x.to(device), y.to(device)` in the loop. Tensors that a module makes in `__init__`
    follow it only as buffers (`register_buffer`); those it makes in `forward` need
    `device=x.device`. Load checkpoints with `map_location`.

    ## References
    PyTorch, "CUDA semantics": operations on tensors of different devices raise.
    """

    code = "HD901"
    name = "device-mismatch"
    severity = Severity.ERROR
    summary = "model, batch or optimizer state lie on different devices"
    needs = Needs(kinds=(SetupRecord,), topics=("device-mismatch",))
    explains = ("HD204", "HD306")
    once = "segment"

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        facts = DeviceMismatchFacts.of(record)
        devices = facts.devices
        if record.topic != "device-mismatch" or len(devices) < 2:
            return
        op, module = facts.op, facts.module
        tensors = [
            f"{name} on {device}"
            for item in facts.tensors
            if (name := item.name) and (device := item.device)
        ]
        met = ", ".join(tensors[:4]) or " and ".join(devices)
        said = f"tensors of different devices meet in {op or 'one operation'}"
        said += f" of {module}" if module else ""
        end = "" if facts.crashed else "; it does not raise, and computes nothing"
        yield self.find(
            record,
            f"{said}: {met}{end}",
            where=facts.locate(module=module, op=op),
            remedies=list(_remedies(facts, devices)),
            devices=devices,
            error=facts.error,
        )


def _remedies(facts: DeviceMismatchFacts, devices: list[str]) -> Iterable[str]:
    tensors = facts.tensors
    owned = [item for item in tensors if item.parameter]
    if "meta" in devices:
        yield (
            "A `meta` tensor has no data: give the model real weights first, with "
            "`model.to_empty(device=…)` and a load or an initialisation."
        )
    elif owned and len(owned) < len(tensors):
        yield "Move the batch to the model's device: `x = x.to(device)`, labels and masks too."
    yield (
        "Call `model.to(device)` once, before the optimizer is made; keep a module's own tensors "
        "as buffers (`register_buffer`), so that they move along."
    )
