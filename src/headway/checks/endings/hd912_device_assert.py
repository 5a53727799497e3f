from __future__ import annotations

import os
from collections.abc import Iterable

from headway.core.check import Check, Needs
from headway.core.ending_facts import DEVICE_ASSERT, DeviceAssertFacts
from headway.core.findings import Finding, Severity
from headway.core.numbers import say
from headway.core.records import EventRecord

TABLES = {"embedding": "the table has {} rows", "nll_loss": "there are {} classes"}


class DeviceAssert(Check):
    """A CUDA kernel failed an assertion, and the traceback names the wrong line.

    ## What it checks
    `device-side assert triggered`, `illegal memory access` and `unspecified launch failure`.

    ## Why it matters
    Kernels run later than the Python lines that launch them, so the traceback points at a line that
    only waited for the device. The CUDA context is lost: every later call fails, and the process
    must end.

    ## How it is measured
    The last batches are kept on the host, by reference. After the error a fresh process without
    CUDA runs the script on the CPU over these batches, with the weights of the last snapshot or the
    initial ones. There the same step raises a Python exception at the failing line, and the
    arguments of the op that raised show the value, its position and the limit.

    ## False alarms
    None: the device has failed. If the CPU runs the batches without an error, the finding says so;
    then the values depended on the state of the weights, or the kernel itself is at fault.

    ## What to do
    Fix the named sample, or enlarge the table or the number of classes. If nothing was found, run
    again with `CUDA_LAUNCH_BLOCKING=1`: the traceback then shows the failing line.

    ## References
    PyTorch, "CUDA semantics: Asynchronous execution".
    """

    code = "HD912"
    name = "device-assert"
    severity = Severity.ERROR
    summary = "a CUDA kernel failed an assertion"
    needs = Needs(kinds=(EventRecord,), events=(DEVICE_ASSERT,))
    explains = ("HD608",)
    ends_run = True

    def observe(self, record: EventRecord) -> Iterable[Finding]:
        facts = DeviceAssertFacts.of_event(record)
        evidence = {
            **facts.evidence(),
            "host_error": facts.host_error,
            "op": facts.op,
            "value": facts.value,
            "position": [int(at) for at in facts.position] or None,
            "limit": facts.limit,
            "out_of_range": facts.count,
            "why_not": facts.why_not,
        }
        yield self.find(
            record,
            _message(facts),
            where=facts.place.where(rank=record.rank, op=facts.op, sample=facts.sample),
            remedies=_remedies(facts),
            **{name: value for name, value in evidence.items() if value is not None},
        )


def _message(facts: DeviceAssertFacts) -> str:
    if not facts.found:
        return (
            f"{facts.error or 'a CUDA kernel failed'}; the failing line is unknown: "
            f"{facts.why_not or 'the step was not run on the host'}"
        )
    if facts.value is None:
        return f"on the host the step raises {facts.host_error}"
    where = f"sample {facts.sample}" if facts.sample is not None else "a sample"
    place = ", ".join(str(int(at)) for at in facts.position)
    text = f"`{facts.op}` receives {say(facts.value)} in {where} of the batch (position [{place}])"
    known = next((text for name, text in TABLES.items() if (facts.op or "").startswith(name)), None)
    if facts.limit is not None:
        valid = f"valid values are 0 to {facts.limit - 1}"
        text += f"; {known.format(facts.limit) if known else valid}"
    elif facts.host_error:
        text += f": {facts.host_error}"
    if facts.at.file and (facts.at.file, facts.at.line) != (facts.place.file, facts.place.line):
        text += f". The traceback names {os.path.basename(facts.at.file)}:{facts.at.line} instead"
    return text


def _remedies(facts: DeviceAssertFacts) -> list[str]:
    if not facts.found:
        return ["Run again with CUDA_LAUNCH_BLOCKING=1: the traceback then shows the failing line."]
    if facts.limit is not None:
        return [
            f"Fix or remove the sample, or raise the number of entries above "
            f"{say(facts.value or 0.0)} (now {facts.limit})."
        ]
    return ["Fix the values at the named line."]
