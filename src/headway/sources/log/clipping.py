"""Which gradient norm a log holds, before clipping or after, and how hard the clip is.

`clip_grad_norm_` returns the norm before; people who compute it themselves afterwards log a norm
that never passes the limit. Where the limit is known, or both norms are logged, the factor follows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from headway.sources.log.log import Log
from headway.sources.log.names import Named

LIMITS = (
    "max_norm",
    "max_grad_norm",
    "clip_grad",
    "grad_clip",
    "gradient_clip_val",
    "gradient_clipping",
    "clip_grad_norm",
)
"""What settings call the limit."""
FEWEST = 8
"""Of fewer rows nothing is said."""
AT_LIMIT = 0.4
"""The share of the rows that sit at the limit where the norm was taken after clipping."""
NEAR = 5e-3
"""What is so near to the limit sits at it: clipping divides by the norm plus 1e-6, and digits."""


@dataclass(frozen=True, slots=True)
class Clipping:
    """What is known of the clipping."""

    limit: float | None = None
    after: bool = False
    """The only norm in the log is the one after clipping."""
    both: bool = False

    @classmethod
    def of(cls, log: Log, names: Mapping[str, Named]) -> Clipping:
        """Look at the norms of a log."""
        limit = _limit(log.facts)
        mine = {named.name: raw for raw, named in names.items()}
        raw = mine.get("grad_norm")
        if raw is None or raw not in log.table.series:
            return cls()
        if "clipped_grad_norm" in mine:
            return cls(limit, both=True)
        values = log.table.series[raw].numbers()
        values = values[np.isfinite(values)]
        if _stops_at(values, limit):
            return cls(limit, after=True)
        return cls(limit)

    @property
    def known(self) -> bool:
        """Whether the factor can be told."""
        return not self.after and (self.both or self.limit is not None)

    def coefficient(self, values: Mapping[str, float]) -> float | None:
        """The factor the gradients of a row were multiplied by; None where it cannot be told."""
        norm = values.get("grad_norm")
        if not self.known or norm is None or not 0 < norm < math.inf:
            return None
        if self.both:
            clipped = values.get("clipped_grad_norm")
            if clipped is None or not 0 < clipped < math.inf:
                return None
            return min(clipped / norm, 1.0)
        assert self.limit is not None
        return min(self.limit / norm, 1.0)


def _limit(facts: Mapping[str, object]) -> float | None:
    for name in LIMITS:
        value = facts.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1e6:
            return float(value)
    return None


def _stops_at(values: np.ndarray, limit: float | None) -> bool:
    """Whether the norms end at a limit as only clipped ones do."""
    if len(values) < FEWEST:
        return False
    top = float(values.max())
    if limit is not None:
        if top > limit * (1 + NEAR):
            return False
    elif not _round(top):
        return False
    else:
        limit = top
    at_limit = float(np.mean(np.abs(values - limit) <= NEAR * limit))
    return at_limit >= AT_LIMIT


def _round(value: float) -> bool:
    """Whether somebody may have written it as a limit: 0.25, 0.5, 1, 2, 5, 10."""
    if value <= 0:
        return False
    nearest = float(f"{value:.1g}") if value >= 1 else float(f"{value:.2g}")
    return abs(value - nearest) <= NEAR * nearest
