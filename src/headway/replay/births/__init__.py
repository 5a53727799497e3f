"""Why an op turned finite numbers into a non-finite one: the kinds of birth, in plain words.

    calls.py       the op at that moment, and what a kind is
    domain.py      log, sqrt, pow, acos outside of what they are defined for
    division.py    by zero, by a norm or a spread of zero
    spread.py      std of one number, mean of none, a target that is masked
    magnitude.py   past the largest number of the dtype
    infinities.py  arithmetic with infinities that were there
    backward.py    slopes that are infinite
    leaves.py      tensors that came bad

Every family looks at the numbers themselves and answers None where they do not bear it out: the
next one is asked then, and in the end nobody, which is said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from headway.replay.births import (
    backward,
    division,
    domain,
    infinities,
    magnitude,
    spread,
)
from headway.replay.births.calls import KINDS, BadCall, Kind
from headway.replay.births.leaves import explain_leaf
from headway.replay.births.numbers import floats, how_many, nonfinite, overwritten, share

__all__ = ["KINDS", "BadCall", "Kind", "explain", "explain_leaf"]

Family = Callable[[BadCall], Kind | None]

_FAMILIES: dict[str, tuple[Family, ...]] = {
    **dict.fromkeys(domain.LOG_OF, (domain.log,)),
    **dict.fromkeys(domain.INVERSES, (domain.inverse,)),
    **dict.fromkeys(("lgamma", "digamma"), (domain.gamma,)),
    **dict.fromkeys(("sqrt", "rsqrt"), (domain.sqrt,)),
    **dict.fromkeys(("div", "true_divide", "floor_divide"), (division.divide, infinities.divided)),
    **dict.fromkeys(("remainder", "fmod"), (division.remainder,)),
    **dict.fromkeys(("softmax", "log_softmax", "logsumexp"), (infinities.softmax,)),
    **dict.fromkeys(("exp", "expm1", "exp2", "sinh", "cosh"), (magnitude.exponential,)),
    **dict.fromkeys(("std", "var", "std_mean", "var_mean"), (spread.deviation,)),
    **dict.fromkeys(
        ("layer_norm", "group_norm", "batch_norm", "rms_norm"), (spread.normalisation,)
    ),
    **dict.fromkeys(("nll_loss", "nll_loss2d"), (spread.class_loss,)),
    "addcdiv": (division.divide,),
    "logit": (domain.logit,),
    "mul": (infinities.product,),
    "pow": (domain.power,),
    "slogdet": (domain.determinant,),
    "reciprocal": (division.reciprocal,),
    "weight_norm_interface": (division.weight_norm,),
}
_ALWAYS: tuple[Family, ...] = (
    spread.mean,
    infinities.sums,
    magnitude.overflow,
    infinities.let_through,
)
"""What may be wrong with any op."""
_SAME = {
    "vector_norm": "norm",
    "safe_softmax": "softmax",
    "fused_rms_norm": "rms_norm",
    "cudnn_ctc_loss": "ctc_loss",
}
_EMPTY = frozenset(("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided"))


def explain(call: BadCall) -> Kind:
    """Which kind of birth it is."""
    call = replace(call, op=_plain(call.op))
    with torch.no_grad():
        for family in _families(call):
            try:
                kind = family(call)
            except (RuntimeError, TypeError, ValueError, IndexError, AttributeError):
                continue  # a tensor of another make (sparse, sharded, quantised) or odd arguments
            if kind is not None:
                return kind
    return _unknown(call)


def _families(call: BadCall) -> Iterator[Family]:
    op = call.op
    if op in _EMPTY:  # in a backward pass, too, where an op allocates what it then writes into
        yield _uninitialised
    if call.phase == "backward":
        yield backward.slope
    if op.startswith("scaled_dot_product"):
        yield magnitude.attention
    if op == "ctc_loss":
        yield _no_alignment
    yield from _FAMILIES.get(op, ())
    yield from _ALWAYS


def _plain(op: str) -> str:
    """`layer_norm` of `native_layer_norm`, `nll_loss` of `nll_loss_forward`."""
    for prefix in ("native_", "linalg_", "special_"):
        op = op.removeprefix(prefix)
    op = op.removesuffix("_forward")
    return "batch_norm" if "batch_norm" in op and "backward" not in op else _SAME.get(op, op)


def _uninitialised(call: BadCall) -> Kind:
    bad = nonfinite(call.output)
    return Kind(
        "uninitialised-memory",
        f"{call.op} allocates memory and writes nothing into it; {share(bad, 'numbers')} that "
        "happened to be there are NaN or Inf",
    )


def _no_alignment(call: BadCall) -> Kind | None:
    lost = torch.isinf(call.output)
    if not how_many(lost):
        return None
    return Kind(
        "log-of-zero",
        f"{share(lost, 'targets')} cannot be aligned with the input at all (too long for it, "
        "repeated labels counted twice): the probability is 0, and -log(0) is inf",
    )


def _unknown(call: BadCall) -> Kind:
    values = [value for value in floats(call) if not overwritten(call, value)]
    came = "finite" if not any(how_many(nonfinite(value)) for value in values) else "not all finite"
    where = f" in {call.node}" if call.node else ""
    return Kind(
        "unknown",
        f"{call.op}{where} made {share(nonfinite(call.output), 'results')} NaN or Inf; its "
        f"{len(values)} inputs are {came}, and none of the known reasons fits them",
    )
