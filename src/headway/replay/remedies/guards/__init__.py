"""Guards: calls of one family, made safe at the user's own line. One file per family."""

from __future__ import annotations

from headway.replay.explanation import Birth
from headway.replay.remedies.guards.base import Guard
from headway.replay.remedies.guards.divisions import DivGuard, EpsGuard, LogitGuard
from headway.replay.remedies.guards.empties import CtcGuard, LossGuard, MeanGuard, MemoryGuard
from headway.replay.remedies.guards.infinities import AttentionGuard, InfinityGuard, SoftmaxGuard
from headway.replay.remedies.guards.logs import LogGuard, XLogYGuard
from headway.replay.remedies.guards.ranges import ExpGuard, UnitGuard
from headway.replay.remedies.guards.roots import (
    HypotGuard,
    NormGuard,
    PowGuard,
    SqrtGuard,
    StdGuard,
)

__all__ = ["Guard", "guards_for"]

_GUARDS: tuple[type[Guard], ...] = (
    LogGuard,
    XLogYGuard,
    SqrtGuard,
    PowGuard,
    NormGuard,
    HypotGuard,
    StdGuard,
    EpsGuard,
    LogitGuard,
    DivGuard,
    ExpGuard,
    UnitGuard,
    SoftmaxGuard,
    AttentionGuard,
    LossGuard,
    CtcGuard,
    MeanGuard,
    InfinityGuard,
    MemoryGuard,
)

_TOO_LARGE = {"overflow"}
"""No eps helps against them."""


def guards_for(birth: Birth) -> list[Guard]:
    """Those that protect the op of a birth; where none knows the op, those for its kind."""
    if birth.kind in _TOO_LARGE:
        return [ExpGuard(birth)] if birth.op in ExpGuard.ops else []
    for_kind = [guard for guard in _GUARDS if birth.kind in guard.kinds]
    if any(guard.anywhere for guard in for_kind):  # the fault lies elsewhere than at the op
        return [guard(birth) for guard in for_kind]
    for_op = [guard for guard in _GUARDS if birth.op in guard.ops]
    for_both = [guard for guard in for_op if guard in for_kind]
    chosen = (for_both or for_op or for_kind) + [guard for guard in for_kind if not guard.ops]
    return [guard(birth) for guard in dict.fromkeys(chosen)]
