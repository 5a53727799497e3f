"""Training loops no part of the replay was developed against: a set to examine it with."""

from __future__ import annotations

from explain.heldout import (  # noqa: F401
    algebra,
    attention,
    batches,
    code_shapes,
    distributions,
    elementwise,
    harder,
    healthy,
    loops,
    losses,
    norms,
)
from explain.heldout.expected import EXPECTED, HEALTHY

__all__ = ["EXPECTED", "HEALTHY"]
