"""Edits that keep a call at the user's line finite, and the choice among them."""

from __future__ import annotations

from headway.explain.explanation import Origin
from headway.explain.remedies.edits.call_edits import CallEdit, DivisionEdit, EpsEdit, LogitEdit
from headway.explain.remedies.edits.domain_edits import (
    ExpEdit,
    HypotEdit,
    LogEdit,
    NormEdit,
    PowEdit,
    SqrtEdit,
    StdEdit,
    UnitRangeEdit,
    XLogYEdit,
)
from headway.explain.remedies.edits.masked_edits import (
    AttentionEdit,
    CtcEdit,
    InfinityEdit,
    LossEdit,
    MeanEdit,
    MemoryEdit,
    SoftmaxEdit,
)
from headway.explain.remedies.edits.other_forms import (
    BoundEdit,
    CastEdit,
    DeterminantEdit,
    EigenEdit,
    GammaEdit,
    HalfEdit,
    MaskedNanEdit,
    SoftplusEdit,
)
from headway.explain.remedies.float32 import involves_float16

__all__ = ["CallEdit", "edits_for"]

_EDITS: tuple[type[CallEdit], ...] = (
    LogEdit,
    XLogYEdit,
    SqrtEdit,
    PowEdit,
    NormEdit,
    HypotEdit,
    StdEdit,
    EpsEdit,
    LogitEdit,
    DivisionEdit,
    ExpEdit,
    UnitRangeEdit,
    SoftmaxEdit,
    AttentionEdit,
    LossEdit,
    CtcEdit,
    MeanEdit,
    InfinityEdit,
    MemoryEdit,
    GammaEdit,
    EigenEdit,
    DeterminantEdit,
    MaskedNanEdit,
    CastEdit,
)

_TOO_LARGE = {"overflow"}
"""Kinds for which an eps does not help."""


def edits_for(origin: Origin) -> list[CallEdit]:
    """Edits for the op of an origin; if there are none, edits for its kind."""
    softplus = [SoftplusEdit(origin)] if origin.op == "exp" and SoftplusEdit.fits(origin) else []
    if origin.kind in _TOO_LARGE:
        kinds: list[type[CallEdit]] = [ExpEdit]
        if origin.phase == "forward":
            kinds += [CastEdit, HalfEdit if involves_float16(origin) else BoundEdit]
        large = [edit for edit in kinds if origin.op in edit.ops]
        return [*softplus, *(edit(origin) for edit in large)]
    for_kind = [guard for guard in _EDITS if origin.kind in guard.kinds]
    if any(guard.anywhere for guard in for_kind):  # the fault lies elsewhere than at the op
        return [guard(origin) for guard in for_kind]
    for_op = [guard for guard in _EDITS if origin.op in guard.ops]
    for_both = [guard for guard in for_op if guard in for_kind]
    chosen = (for_both or for_op or for_kind) + [guard for guard in for_kind if not guard.ops]
    return [*softplus, *(guard(origin) for guard in dict.fromkeys(chosen))]
