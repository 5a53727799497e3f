from __future__ import annotations

from collections.abc import Iterable

from headway.core.check import Check, Needs
from headway.core.facts import Place
from headway.core.findings import Finding, Severity
from headway.core.model_facts import InplaceFacts
from headway.core.records import SetupRecord


class InplaceHazard(Check):
    """An operation wrote into a tensor that the backward pass still needed.

    ## What it checks
    The script's crash over a tensor that was changed in place, and which two lines are behind it.

    ## Why it matters
    Torch notices only in `backward`, and names neither the line that wrote nor the one whose
    gradient needs what was there before.

    ## How it is measured
    Writes (`x += …`, `x[i] = …`, `x.relu_()`, `inplace=True`) are heard with the version they leave
    in the tensor, and forward operations with their place in the graph. When `backward`
    raises, the version in its message tells the write, and the node that complains tells the
    operation that needed it. An optimizer that stepped between forward and backward wrote, too.

    ## False alarms
    None: the script has crashed. Writes that do no harm are never told.

    ## What to do
    Make a new tensor: `x = x + 1` instead of `x += 1`, `torch.where` or `clone()` before an
    indexed write, `inplace=False`. Where an optimizer's step is between, do all backward passes
    first, or run the forward again after the step. Weights are written to under `torch.no_grad()`.

    ## References
    PyTorch, "Autograd mechanics": in-place operations with autograd.
    """

    code = "HD907"
    name = "inplace-hazard"
    severity = Severity.ERROR
    summary = "an in-place operation breaks a backward pass"
    needs = Needs(kinds=(SetupRecord,), topics=("inplace",))
    explains = ("HD204", "HD306")
    once = "segment"

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        facts = InplaceFacts.of(record)
        kind = facts.kind
        if record.topic != "inplace" or kind not in ("saved", "leaf", "view"):
            return
        yield self._broken(record, facts) if kind == "saved" else self._refused(record, facts)

    def _refused(self, record: SetupRecord, facts: InplaceFacts) -> Finding:
        op = facts.op
        what = "a weight" if facts.kind == "leaf" else "one of several views"
        return self.find(
            record,
            f"{_say(op)} writes into {what} that the graph is being recorded for: torch refuses",
            where=facts.locate(op=op),
            remedies=[
                "Write to weights under `torch.no_grad()`."
                if facts.kind == "leaf"
                else "Take a `clone()` before it is written to."
            ],
            error=facts.error,
        )

    def _broken(self, record: SetupRecord, facts: InplaceFacts) -> Finding:
        op, module, needed = facts.op, facts.module, facts.needed
        shape = [int(size) for size in facts.shape]
        maker = facts.maker
        tensor = f"a tensor of shape {shape}" + (f" (the output of {maker})" if maker else "")
        by_optimizer = facts.by_optimizer
        writer = "the optimizer's step" if by_optimizer else _say(op)
        at, needed_at = _line(facts.place), _line(needed.place)
        said = f"{writer}{f' at {at}' if at else ''} wrote into {tensor} that the backward"
        said += f" of {needed.op}" if needed.op else " pass"
        said += f" at {needed_at} still needs" if needed_at else " still needs"
        known = facts.place if at else needed.place if needed_at else facts.crash
        return self.find(
            record,
            said,
            where=known.where(module=module, op=op),
            remedies=[
                "Do every backward pass before the optimizer steps, or run the forward again after "
                "the step: the graph was made with the old weights."
                if by_optimizer
                else "Make a new tensor instead: `x = x + 1` for `x += 1`, `clone()` before an "
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
    return "an in-place operation" if op is None else _SIGNS.get(op, f"`{op}`")
