from __future__ import annotations

from collections.abc import Iterable

from headway.core.check import Check, Needs
from headway.core.findings import Finding, Severity
from headway.core.model_facts import DeviceMismatchFacts
from headway.core.records import SetupRecord


class DeviceMismatch(Check):
    """Model, batch or optimizer state are on different devices.

    ## What it checks
    The devices of the tensors that are used in one op.

    ## Why it matters
    The op raises an error. Torch names the two devices, but not which tensor is on the wrong one:
    the model that was never moved, the labels that were forgotten, a tensor that a module stores
    without registering it as a buffer, moments that were loaded on another device.

    ## How it is measured
    When the script raises such an error, the op that ran is inspected: each of its tensors, the
    parameter it belongs to, and its device. Some ops on a `meta` tensor, which has no data, do not
    raise and compute nothing; those are reported as well.

    ## False alarms
    Models that are distributed over several devices on purpose move their activations and never
    raise. Single numbers may be on the host.

    ## What to do
    Move model and batch to one device: `model.to(device)` before the optimizer is created, `x, y =
    x.to(device), y.to(device)` in the loop. Tensors that a module creates in `__init__` follow it
    only as buffers (`register_buffer`); those it creates in `forward` need `device=x.device`. Load
    checkpoints with `map_location`.

    ## References
    PyTorch, "CUDA semantics": operations on tensors of different devices raise.
    """

    code = "HD901"
    name = "device-mismatch"
    severity = Severity.ERROR
    summary = "model, batch or optimizer state are on different devices"
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
        message = f"{op or 'one op'} uses tensors on different devices"
        message = f"{module}: {message}" if module else message
        end = "" if facts.crashed else "; no error is raised, but nothing is computed"
        yield self.find(
            record,
            f"{message}: {met}{end}",
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
            "A `meta` tensor has no data: create real weights first, with "
            "`model.to_empty(device=…)` and a load or an initialisation."
        )
    elif owned and len(owned) < len(tensors):
        yield "Move the batch to the model's device: `x = x.to(device)`, labels and masks too."
    yield (
        "Call `model.to(device)` once, before the optimizer is created; store a module's own "
        "tensors as buffers (`register_buffer`), so that they move with it."
    )
