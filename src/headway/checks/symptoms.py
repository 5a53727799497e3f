"""Groups of findings that have the same causes, for the `explains` of checks."""

from __future__ import annotations

NONFINITE_STEP = ("HD101", "HD102", "HD201")
"""A non-finite loss or gradient."""

NONFINITE_CODES = (*NONFINITE_STEP, "HD301", "HD302", "HD303", "HD408", "HD701")
"""A non-finite number as it spreads through loss, gradients, weights and state."""

NONFINITE_OR_RANK = (*NONFINITE_CODES, "HD602")
"""The same, and the rank where it started."""

BAD_STEPS = ("HD103", "HD104", "HD115", "HD202", "HD207", "HD208", "HD308")
"""Updates that are too large."""

NOTHING_MOVES = ("HD105", "HD205", "HD306", "HD307", "HD404")
"""Updates that do not happen."""

NOTHING_LEARNED = (*NOTHING_MOVES, "HD113", "HD203", "HD509", "HD512")
"""A loss whose minimum is not what the user wants."""

POOR_FIT = ("HD115", "HD509", "HD512")
"""A model that fits its data badly: the loss oscillates, inputs are ignored, labels look random."""
