"""Infinities that somebody meant to be there."""

from __future__ import annotations

from headway.core.records import TensorRecord


def looks_like_mask(record: TensorRecord) -> bool:
    """Whether a tensor's infinities are those of an additive attention mask (0 and -Inf).

    Such a tensor holds no NaN, and it is called a mask or all its finite elements are 0.
    """
    infinite, elements = record.stats.get("inf", 0), record.stats.get("numel", 0)
    if not infinite or record.stats.get("nan", 0):
        return False
    return "mask" in record.name.lower() or (
        infinite < elements and record.stats.get("norm") == 0.0
    )
