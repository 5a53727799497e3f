"""Facts about a loss that checks of several families read: its call site, why it has no graph,
whether other losses compete with it.
"""

from __future__ import annotations

import re
from typing import Literal

from headway.core.loss_facts import (
    BackwardRootFacts,
    LossCallFacts,
    LossFormulaFacts,
    SummedLossFacts,
)
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


def loss_call_site(facts: LossFormulaFacts | SummedLossFacts) -> str:
    """One text per line of code and function: two findings about one line are one finding."""
    return f"{facts.function or ''} {facts.place.file or ''}:{facts.place.line or 0}"


def format_shape(shape: list[float] | None) -> str:
    """`(32, 10)`; `?` where it is not known."""
    if shape is None:
        return "?"
    sizes = [str(int(size)) for size in shape]
    return f"({sizes[0]},)" if len(sizes) == 1 else f"({', '.join(sizes)})"


def targets_are_not_class_ids(facts: LossCallFacts) -> bool:
    """Whether a loss over classes was given targets of a type and shape that name no classes."""
    if facts.target.dtype in (None, "int64", "uint8") or facts.classes is None:
        return False
    return (facts.target.shape or []) != (facts.prediction.shape or [])


# Why a loss has no graph: it was cut off, or there never was one.

# Two checks tell the two apart, and must agree on it.


def missing_graph_reason(facts: BackwardRootFacts) -> Literal["cut", "disabled", "frozen"] | None:
    """Of a backward pass: None where its loss leads to parameters."""
    if facts.reached is None or facts.reached > 0:
        return None
    forwards = facts.forwards
    if forwards.with_graph or facts.graph:
        return "cut"
    if forwards.disabled or forwards.inference:
        return "disabled"
    if facts.trainable == 0 and facts.parameters:
        return "frozen"
    if not forwards.without_graph and facts.cut.function == "no_grad":
        return "disabled"
    return "disabled" if facts.grad_enabled is False else "cut"
