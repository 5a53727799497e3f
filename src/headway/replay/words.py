"""An explanation in sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from headway.replay.explanation import Birth, Explanation, Guilt, Line

_PLAIN_GUILT: dict[str, Guilt] = {
    "poisoned-batch": "batch",
    "poisoned-weight": "weights",
    "poisoned-buffer": "weights",
}
GUILT = {
    "batch": "The batch alone is guilty: it fails with older weights, too.",
    "weights": "The weights are guilty: another batch fails with them, too.",
    "together": "Only this batch with these weights fails: each is fine with another.",
}


def plain_guilt(birth: Birth | None) -> Guilt | None:
    """Whose guilt it is, where that needs no experiment."""
    return None if birth is None else _PLAIN_GUILT.get(birth.kind)


def told(explanation: Explanation) -> Explanation:
    """The explanation with its sentences."""
    said = _what(explanation)
    spoken = replace(explanation, headline=said[:1].upper() + said[1:])
    return replace(spoken, summary=_summary(spoken))


def _summary(explanation: Explanation) -> str:
    parts = [explanation.headline]
    cure = explanation.cure
    if cure is not None:
        parts.append(f"Tried and cured: {cure.text}")
    elif explanation.trials and any(trial.tried == "not cured" for trial in explanation.trials):
        parts.append("No remedy that was tried cured it.")
    return " ".join(parts)


def place(line: Line | None) -> str:
    """`train.py:31`; empty where it is not known."""
    return "" if line is None else str(line)


def samples(explanation: Explanation) -> str:
    """`sample 5 (data set: 1871)`; empty where none can be named."""
    birth, spike = explanation.birth, explanation.spike
    rows = birth.rows if birth else spike.rows if spike else ()
    if not rows:
        return ""
    known = f" (data set: {_some(explanation.samples)})" if explanation.samples else ""
    return f"sample{'s' if len(rows) > 1 else ''} {_some(rows)}{known}"


def _what(explanation: Explanation) -> str:
    birth = explanation.birth
    if explanation.nature == "transient":
        return (
            "The same step, run again unchanged, went well: the fault was transient. Suspect the "
            "hardware, a race, or something outside of this step's state."
        )
    if explanation.nature == "compiler":
        return (
            "Run op by op the step goes well; compiled, it fails again: suspect the compiler's "
            "code, not yours."
        )
    if birth is not None:
        return _born(birth, explanation)
    if explanation.spike is not None:
        return _carried(explanation)
    if explanation.notes:
        return f"Not explained: {explanation.notes[0]}."
    return "The step fails again, but the op that began it was not seen."


def _born(birth: Birth, explanation: Explanation) -> str:
    where = f"at {place(birth.place)}" if birth.place else f"in {birth.op}"
    module = f" in {birth.module}" if birth.module else ""
    backward = " (in backward)" if birth.phase == "backward" else ""
    who = samples(explanation)
    rank = f" on rank {explanation.rank}" if explanation.rank is not None else ""
    return (
        f"{birth.cause.rstrip('.')}, {where}{module}{backward}{rank}"
        + (f", {who}" if who else "")
        + "."
    )


def _carried(explanation: Explanation) -> str:
    spike = explanation.spike
    assert spike is not None
    parts = []
    if spike.component:
        parts.append(f"component {spike.component}")
    if who := samples(explanation):
        parts.append(who)
    if spike.layers:
        grown = f"{spike.growth[0]:.3g} times its usual" if spike.growth else "the largest"
        parts.append(f"layer {spike.layers[0]}, {grown} gradient")
    if explanation.rank is not None:
        parts.insert(0, f"rank {explanation.rank}")
    return f"The jump is carried by {', '.join(parts)}." if parts else "The jump is everywhere."


def _some(items: Sequence[Any], most: int = 5) -> str:
    shown = ", ".join(str(item) for item in items[:most])
    return shown + (f" and {len(items) - most} more" if len(items) > most else "")
