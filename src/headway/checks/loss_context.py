"""Facts about a loss that checks of several families read: its call site, why it has no graph,
whether other losses compete with it.
"""

from __future__ import annotations

import re
from typing import Literal

from headway.core.facts import Facts
from headway.core.records import Header

# Logs in which a loss that rises, rests or swings means nothing: several sides work against each
# other, or the data change with the policy.

_SIDES = re.compile(
    r"(^|[_/.])(d|g|disc|gen|dis|discriminator|generator|adv|adversarial|policy|pg|actor|critic|"
    r"value|vf|q|q1|q2|qf|qf1|qf2|td|entropy)([_/.0-9]|$)"
)


def has_competing_losses(header: Header) -> bool:
    """Whether a log is that of reinforcement learning or of adversaries."""
    if header.cadence != "rows":
        return False
    return "reward" in header.signals or any(
        name.startswith("loss/") and _SIDES.search(name.removeprefix("loss/"))
        for name in header.signals
    )


# Where a loss is computed, as checks of losses name it.


def loss_call_site(facts: Facts) -> str:
    """One text per line of code and function: two findings about one line are one finding."""
    place = facts.table("place")
    return f"{facts.text('function') or ''} {place.text('file') or ''}:{place.whole('line') or 0}"


def format_shape(facts: Facts) -> str:
    """`(32, 10)`; `?` where it is not known."""
    if "shape" not in facts:
        return "?"
    sizes = [str(int(size)) for size in facts.numbers("shape")]
    return f"({sizes[0]},)" if len(sizes) == 1 else f"({', '.join(sizes)})"


def targets_are_not_class_ids(facts: Facts) -> bool:
    """Whether a loss over classes was given targets of a type and shape that name no classes."""
    target, prediction = facts.table("target"), facts.table("prediction")
    if target.text("dtype") in (None, "int64", "uint8") or "classes" not in facts:
        return False
    return target.numbers("shape") != prediction.numbers("shape")


# Why a loss has no graph: it was cut off, or there never was one.

# Two checks tell the two apart, and must agree on it.


def missing_graph_reason(facts: Facts) -> Literal["cut", "disabled", "frozen"] | None:
    """Of a backward pass: None where its loss leads to parameters."""
    reached = facts.whole("reached")
    if reached is None or reached > 0:
        return None
    forwards = facts.table("forwards")
    if forwards.whole("with_graph"):
        return "cut"
    if facts.flag("graph"):
        return "cut"
    if forwards.whole("disabled") or forwards.whole("inference"):
        return "disabled"
    if facts.whole("trainable") == 0 and facts.whole("parameters"):
        return "frozen"
    unheard = not any(forwards.whole(kind) for kind in forwards)
    if unheard and facts.table("cut").text("function") == "no_grad":
        return "disabled"
    if "grad_enabled" in facts and not facts.flag("grad_enabled"):
        return "disabled"
    return "cut"
