"""Writes the sentences of an explanation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from headway.explain.explanation import Explanation, Guilt, Origin
from headway.torch_adapters.source import SourceLine

_PLAIN_GUILT: dict[str, Guilt] = {
    "poisoned-batch": "batch",
    "poisoned-weight": "weights",
    "poisoned-buffer": "weights",
}
GUILT_SENTENCES = {
    "batch": "The batch alone is guilty: it fails with older weights, too.",
    "weights": "The weights are guilty: another batch fails with them, too.",
    "together": "Only this batch with these weights fails: each is fine with another.",
}


def guilt_by_kind(birth: Origin | None) -> Guilt | None:
    """Whose guilt it is, where that needs no experiment."""
    return None if birth is None else _PLAIN_GUILT.get(birth.kind)


def add_sentences(explanation: Explanation) -> Explanation:
    """The explanation with its sentences."""
    said = _write_headline(explanation)
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


def format_line(line: SourceLine | None) -> str:
    """`train.py:31`; empty where it is not known."""
    return "" if line is None else str(line)


def format_samples(explanation: Explanation) -> str:
    """`sample 5 (data set: 1871)`; empty where none can be named."""
    birth, spike = explanation.birth, explanation.spike
    rows = birth.rows if birth else spike.rows if spike else ()
    if not rows:
        return ""
    known = f" (data set: {_list_some(explanation.samples)})" if explanation.samples else ""
    return f"sample{'s' if len(rows) > 1 else ''} {_list_some(rows)}{known}"


def _write_headline(explanation: Explanation) -> str:
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
        return _describe_origin(birth, explanation)
    if explanation.spike is not None:
        return _describe_spike(explanation)
    if explanation.notes:
        return f"Not explained: {explanation.notes[0]}."
    return "The step fails again, but the op that began it was not seen."


def _describe_origin(birth: Origin, explanation: Explanation) -> str:
    where = f"at {format_line(birth.place)}" if birth.place else f"in {birth.op}"
    module = f" in {birth.module}" if birth.module else ""
    backward = " (in backward)" if birth.phase == "backward" else ""
    who = format_samples(explanation)
    rank = f" on rank {explanation.rank}" if explanation.rank is not None else ""
    return (
        f"{birth.cause.rstrip('.')}, {where}{module}{backward}{rank}"
        + (f", {who}" if who else "")
        + "."
    )


def _describe_spike(explanation: Explanation) -> str:
    spike = explanation.spike
    assert spike is not None
    parts = []
    if spike.component:
        parts.append(f"component {spike.component}")
    if who := format_samples(explanation):
        parts.append(who)
    if spike.layers:
        grown = f"{spike.growth[0]:.3g} times its usual" if spike.growth else "the largest"
        parts.append(f"layer {spike.layers[0]}, {grown} gradient")
    if explanation.rank is not None:
        parts.insert(0, f"rank {explanation.rank}")
    return f"The jump is carried by {', '.join(parts)}." if parts else "The jump is everywhere."


def _list_some(items: Sequence[Any], most: int = 5) -> str:
    shown = ", ".join(str(item) for item in items[:most])
    return shown + (f" and {len(items) - most} more" if len(items) > most else "")
