from __future__ import annotations

from collections.abc import Iterable

from headway.core.check import Check, Needs
from headway.core.facts import Place
from headway.core.findings import Finding, Severity
from headway.core.model_facts import InplaceFacts
from headway.core.records import SetupRecord


class InplaceHazard(Check):
    """An op wrote into a tensor that the backward pass still needed.

    ## What it checks
    A crash of the script because of a tensor that was changed in place, and the two lines that
    cause it.

    ## Why it matters
    Torch notices only in `backward`, and names neither the line that wrote nor the one whose
    gradient needs the old value.

    ## How it is measured
    Writes (`x += …`, `x[i] = …`, `x.relu_()`, `inplace=True`) are recorded with the resulting
    version of the tensor, and forward ops with their node in the graph. When `backward` raises, the
    version in its message identifies the write, and the failing node identifies the op that needed
    the value. An optimizer that stepped between forward and backward counts as a write, too.

    ## False alarms
    None: the script has crashed. Harmless writes are never reported.

    ## What to do
    Create a new tensor: `x = x + 1` instead of `x += 1`, `torch.where` or `clone()` before an
    indexed write, `inplace=False`. If an optimizer step is in between, do all backward passes
    first, or repeat the forward pass after the step. Write to weights under `torch.no_grad()`.

    ## References
    PyTorch, "Autograd mechanics": in-place operations with autograd.
    """

    code = "HD907"
    name = "inplace-hazard"
    severity = Severity.ERROR
    summary = "an in-place op breaks a backward pass"
    needs = Needs(kinds=(SetupRecord,), topics=("inplace",))
    explains = ("HD204", "HD306")
    once = "segment"

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        facts = InplaceFacts.of(record)
        kind = facts.kind
        if record.topic != "inplace" or kind not in ("saved", "leaf", "view"):
            return
        yield (
            self._broken_backward(record, facts)
            if kind == "saved"
            else self._rejected_write(record, facts)
        )

    def _rejected_write(self, record: SetupRecord, facts: InplaceFacts) -> Finding:
        op = facts.op
        what = "a weight" if facts.kind == "leaf" else "one of several views"
        return self.find(
            record,
            f"{_say(op)} writes into {what} that requires a gradient: torch raises an error",
            where=facts.locate(op=op),
            remedies=[
                "Write to weights under `torch.no_grad()`."
                if facts.kind == "leaf"
                else "Use a `clone()` before the write."
            ],
            error=facts.error,
        )

    def _broken_backward(self, record: SetupRecord, facts: InplaceFacts) -> Finding:
        op, module, needed = facts.op, facts.module, facts.needed
        shape = [int(size) for size in facts.shape]
        maker = facts.maker
        tensor = f"a tensor of shape {shape}" + (f" (the output of {maker})" if maker else "")
        by_optimizer = facts.by_optimizer
        writer = "the optimizer's step" if by_optimizer else _say(op)
        at, needed_at = _line(facts.place), _line(needed.place)
        message = f"{writer}{f' at {at}' if at else ''} wrote into {tensor} that the backward"
        message += f" of {needed.op}" if needed.op else " pass"
        message += f" at {needed_at} still needs" if needed_at else " still needs"
        known = facts.place if at else needed.place if needed_at else facts.crash
        return self.find(
            record,
            message,
            where=known.where(module=module, op=op),
            remedies=[
                "Do every backward pass before the optimizer steps, or repeat the forward pass "
                "after the step: the graph uses the old weights."
                if by_optimizer
                else "Create a new tensor instead: `x = x + 1` for `x += 1`, `clone()` before an "
                "indexed write, `inplace=False`."
            ],
            shape=shape,
            version=facts.version,
            expected_version=facts.expected,
            needed_at=needed_at or None,
            needed_by=needed.op,
            error=facts.error,
        )


def _line(place: Place) -> str:
    file, line = place.file, place.line
    return f"{file.rpartition('/')[2]}:{line}" if file and line is not None else ""


_SIGNS = {
    "__iadd__": "`+=`",
    "__isub__": "`-=`",
    "__imul__": "`*=`",
    "__itruediv__": "`/=`",
    "__setitem__": "an indexed write",
}


def _say(op: str | None) -> str:
    return "an in-place op" if op is None else _SIGNS.get(op, f"`{op}`")
