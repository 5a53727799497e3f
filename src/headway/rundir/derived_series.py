"""Series that are drawn, and computed from two signals that a run records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from headway.rundir.downsample import Floats, Ints

# Our runs record the factor of a clipping, and the seconds that the loader took.
AFTER_CLIPPING, LOADER_SHARE = "clipped_grad_norm", "loader_share"


def derive_values(values: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    """The derived values of one step."""
    if "clip_coef" in values and "grad_norm" in values and AFTER_CLIPPING not in values:
        yield AFTER_CLIPPING, values["grad_norm"] * values["clip_coef"]
    if "loader_wait_s" in values and values.get("step_time_s", 0.0) > 0.0:
        yield LOADER_SHARE, min(values["loader_wait_s"] / values["step_time_s"], 1.0)


def derive_columns(
    values: Mapping[str, tuple[Ints, Floats]],
) -> Iterator[tuple[str, Ints, Floats]]:
    """The derived values of many steps: name, rows, numbers."""
    if {"clip_coef", "grad_norm"} <= values.keys() and AFTER_CLIPPING not in values:
        rows, norms, factors = _common(values["grad_norm"], values["clip_coef"])
        with np.errstate(over="ignore", invalid="ignore"):
            yield AFTER_CLIPPING, rows, norms * factors
    if {"loader_wait_s", "step_time_s"} <= values.keys():
        rows, waits, times = _common(values["loader_wait_s"], values["step_time_s"])
        known = times > 0
        with np.errstate(over="ignore", invalid="ignore"):
            yield LOADER_SHARE, rows[known], np.minimum(waits[known] / times[known], 1.0)


def _common(one: tuple[Ints, Floats], other: tuple[Ints, Floats]) -> tuple[Ints, Floats, Floats]:
    """The rows that both have, and the numbers of each there."""
    rows, first, second = np.intersect1d(one[0], other[0], assume_unique=True, return_indices=True)
    return rows, one[1][first], other[1][second]
