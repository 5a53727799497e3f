"""Why a loss has no graph: it was cut off, or there never was one.

Two checks tell the two apart, and must agree on it.
"""

from __future__ import annotations

from typing import Literal

from headway.core.facts import Facts


def lost_graph(facts: Facts) -> Literal["cut", "disabled", "frozen"] | None:
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
