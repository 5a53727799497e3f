"""Facts about a loss that checks of several families read: its call site, why it has no graph,
whether other losses compete with it.
"""

from __future__ import annotations

import math
import re
from statistics import median
from typing import Literal

from headway.core.loss_facts import (
    BackwardRootFacts,
    LossCallFacts,
    LossFormulaFacts,
    SummedLossFacts,
)
from headway.core.records import Header, Moment
from headway.core.window import log_sigma

# Logs in which a rising, constant or oscillating loss means nothing: several losses work against
# each other, or the data depend on the policy.

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


# The call site of a loss.


def loss_call_site(facts: LossFormulaFacts | SummedLossFacts) -> str:
    """A key for line and function, so that two findings about one line are one finding."""
    return f"{facts.function or ''} {facts.place.file or ''}:{facts.place.line or 0}"


def format_shape(shape: list[float] | None) -> str:
    """`(32, 10)`; `?` if unknown."""
    if shape is None:
        return "?"
    sizes = [str(int(size)) for size in shape]
    return f"({sizes[0]},)" if len(sizes) == 1 else f"({', '.join(sizes)})"


def targets_are_not_class_ids(facts: LossCallFacts) -> bool:
    """Whether the dtype and shape of the targets of a classification loss cannot be class
    indices."""
    if facts.target.dtype in (None, "int64", "uint8") or facts.classes is None:
        return False
    return (facts.target.shape or []) != (facts.prediction.shape or [])


# Why a loss has no graph: it was cut, or there never was one. Two checks distinguish these cases
# and must agree.


def missing_graph_reason(facts: BackwardRootFacts) -> Literal["cut", "disabled", "frozen"] | None:
    """The reason for a backward pass; None if its loss depends on parameters."""
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


# Where a loss began to rise.


def rise_begins_after(quiet: list[tuple[Moment, float]]) -> Moment | None:
    """The first of the latest losses that is above the low ones; None if there is none."""
    losses = [loss for _, loss in quiet]
    if len(losses) < 2 or min(losses) <= 0:
        return None
    low = median(sorted(losses)[: max(len(losses) // 3, 1)])
    limit = low * math.exp(min(2 * log_sigma(losses), 1.0))
    after = None
    for moment, loss in reversed(quiet):
        if loss <= limit:
            return after
        after = moment
    return None


def split_thirds(losses: list[float]) -> tuple[list[float], list[float], list[float]]:
    """The first, middle and last third."""
    third = max(len(losses) // 3, 1)
    return losses[:third], losses[third:-third] or losses, losses[-third:]
