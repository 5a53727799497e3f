"""Where a loss is computed, as checks of losses name it."""

from __future__ import annotations

from headway.core.facts import Facts


def site_of(facts: Facts) -> str:
    """One text per line of code and function: two findings about one line are one finding."""
    place = facts.table("place")
    return f"{facts.text('function') or ''} {place.text('file') or ''}:{place.whole('line') or 0}"


def shape_of(facts: Facts) -> str:
    """`(32, 10)`; `?` where it is not known."""
    if "shape" not in facts:
        return "?"
    sizes = [str(int(size)) for size in facts.numbers("shape")]
    return f"({sizes[0]},)" if len(sizes) == 1 else f"({', '.join(sizes)})"


def not_class_ids(facts: Facts) -> bool:
    """Whether a loss over classes was given targets of a type and shape that name no classes."""
    target, prediction = facts.table("target"), facts.table("prediction")
    if target.text("dtype") in (None, "int64", "uint8") or "classes" not in facts:
        return False
    return target.numbers("shape") != prediction.numbers("shape")
