"""The result of replaying an incident: does the step still fail?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from headway.core.numbers import say
from headway.explain import explanation as wording
from headway.explain.explanation import Explanation, Origin
from headway.explain.failing_step import Outcome
from headway.explain.incident_file.incident_folder import IncidentFolder

MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class ReplayOutcome:
    """What came of it."""

    reproduces: bool | None
    """None: that cannot be told."""
    said: str
    """What was seen, or why it cannot be told."""
    outcome: Outcome
    explanation: Explanation | None = None
    """Of this run, where one was sought."""
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        if self.reproduces is None:
            return "unclear"
        return "reproduces" if self.reproduces else "cured"


def refuse_replay(why: str) -> ReplayOutcome:
    """The step could not be run at all."""
    return ReplayOutcome(None, why, Outcome(error=why))


def judge_replay(
    capsule: IncidentFolder, outcome: Outcome, notes: Sequence[str] = ()
) -> ReplayOutcome:
    """Whether the step goes bad as it did. Where the weights or the limit are not known, that it
    does not is no proof."""

    def answer(reproduces: bool | None, said: str) -> ReplayOutcome:
        return ReplayOutcome(reproduces, said, outcome, notes=tuple(notes))

    if outcome.error is not None:
        return answer(None, outcome.error)
    if not outcome.complete:
        return answer(
            None,
            "the step was run, but made no backward pass: there is no loss and no gradient to "
            "judge by",
        )
    if not outcome.finite:
        return answer(True, describe_nonfinite(outcome))
    if capsule.symptom == "spike" and capsule.limit is None:
        return answer(None, "it was a spike, and the limit it was held to was not recorded")
    if not outcome.cured(capsule.limit):
        return answer(
            True, f"the gradient norm is {say(outcome.norm)}, {say(capsule.limit or 0)} was allowed"
        )
    if not capsule.has_state and capsule.explanation.guilt != "batch":
        why = next((item.why for item in capsule.left_out if item.what == "the weights"), "")
        return answer(
            None,
            "it does not happen here, which proves nothing: the incident holds no weights "
            f"({why}), so these are others",
        )
    loss = f"loss {say(outcome.losses[-1])}, " if outcome.losses else ""
    return answer(False, f"{loss}gradient norm {say(outcome.norm)}, every number is finite")


def add_explanation(
    rehearsed: ReplayOutcome, found: Explanation, capsule: IncidentFolder
) -> ReplayOutcome:
    """The same with what was found this time, and what only the run could know: whose guilt it was,
    and which rows are the guilty ones where the batch is made of nothing else."""
    recorded = capsule.explanation
    if not _same_origin(found.origin, recorded.origin):
        return replace(rehearsed, explanation=found)
    if capsule.rows_only:
        first = replace(found.origins[0], rows=recorded.guilty_rows)
        found = replace(found, origins=(first, *found.origins[1:]), samples=recorded.samples)
    guilt = recorded.guilt if found.guilt == "unknown" else found.guilt
    completed = wording.add_sentences(replace(found, guilt=guilt, rank=recorded.rank))
    return replace(rehearsed, explanation=completed)


def _same_origin(one: Origin | None, other: Origin | None) -> bool:
    if one is None or other is None:
        return False
    return (one.kind, one.op, one.phase) == (other.kind, other.op, other.phase)


def describe_nonfinite(outcome: Outcome) -> str:
    """What is not finite."""
    loss = next((value for value in outcome.losses if not math.isfinite(value)), None)
    bad = [name for name, norm in outcome.norms.items() if not math.isfinite(norm)]
    more = f" and {len(bad) - MOST_NAMED} more" if len(bad) > MOST_NAMED else ""
    names = ", ".join(bad[:MOST_NAMED]) + more
    if loss is not None:
        return f"the loss is {say(loss)}"
    return f"the loss is finite, the gradient of {names} is not"
