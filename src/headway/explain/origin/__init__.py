"""Classifies why an op made a non-finite value from finite ones.

    bad_call.py           the op at that moment; inputs that are already bad; infinite derivatives
    domain_and_range.py   log, sqrt, pow, acos outside their domain; overflow of the dtype
    zero_and_infinity.py  division by zero, std of one value, mean of none, masks and infinities

Each classifier checks the values themselves and returns None if they do not confirm its case; the
next one is tried then. If none confirms, the kind is `unknown`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from headway.explain.origin import bad_call, domain_and_range, zero_and_infinity
from headway.explain.origin.bad_call import (
    KINDS,
    BadCall,
    OriginKind,
    classify_leaf,
    count_true,
    float_arguments,
    format_share,
    format_share_are,
    is_overwritten,
    nonfinite_mask,
)

__all__ = ["KINDS", "BadCall", "OriginKind", "classify_leaf", "classify_origin"]

Classifier = Callable[[BadCall], OriginKind | None]

_CLASSIFIERS: dict[str, tuple[Classifier, ...]] = {
    **dict.fromkeys(domain_and_range.LOG_OF, (domain_and_range.classify_log,)),
    **dict.fromkeys(domain_and_range.INVERSES, (domain_and_range.classify_inverse,)),
    **dict.fromkeys(("lgamma", "digamma"), (domain_and_range.classify_gamma,)),
    **dict.fromkeys(("sqrt", "rsqrt"), (domain_and_range.classify_sqrt,)),
    **dict.fromkeys(
        ("div", "true_divide", "floor_divide"),
        (zero_and_infinity.classify_division, zero_and_infinity.classify_infinite_quotient),
    ),
    **dict.fromkeys(("remainder", "fmod"), (zero_and_infinity.classify_remainder,)),
    **dict.fromkeys(("softmax", "log_softmax", "logsumexp"), (zero_and_infinity.classify_softmax,)),
    **dict.fromkeys(
        ("exp", "expm1", "exp2", "sinh", "cosh"), (domain_and_range.classify_exponential,)
    ),
    **dict.fromkeys(
        ("std", "var", "std_mean", "var_mean"), (zero_and_infinity.classify_deviation,)
    ),
    **dict.fromkeys(
        ("layer_norm", "group_norm", "batch_norm", "rms_norm"),
        (zero_and_infinity.classify_normalisation,),
    ),
    **dict.fromkeys(("nll_loss", "nll_loss2d"), (zero_and_infinity.classify_class_loss,)),
    "addcdiv": (zero_and_infinity.classify_division,),
    "logit": (domain_and_range.classify_logit,),
    "mul": (zero_and_infinity.classify_product,),
    "pow": (domain_and_range.classify_power,),
    "slogdet": (domain_and_range.classify_determinant,),
    "reciprocal": (zero_and_infinity.classify_reciprocal,),
    "weight_norm_interface": (zero_and_infinity.classify_weight_norm,),
}
_ALWAYS: tuple[Classifier, ...] = (
    zero_and_infinity.classify_mean,
    zero_and_infinity.classify_sum,
    domain_and_range.classify_overflow,
    zero_and_infinity.classify_unmasked_infinity,
)
"""Classifiers for any op."""
_SAME = {
    "vector_norm": "norm",
    "safe_softmax": "softmax",
    "fused_rms_norm": "rms_norm",
    "cudnn_ctc_loss": "ctc_loss",
}
_EMPTY = frozenset(("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided"))


def classify_origin(call: BadCall) -> OriginKind:
    """The kind of an origin."""
    call = replace(call, op=_plain(call.op))
    with torch.no_grad():
        for family in _classifiers_for(call):
            try:
                kind = family(call)
            except (RuntimeError, TypeError, ValueError, IndexError, AttributeError):
                continue  # an unusual tensor (sparse, sharded, quantised) or argument
            if kind is not None:
                return kind
    return _unknown(call)


def _classifiers_for(call: BadCall) -> Iterator[Classifier]:
    op = call.op
    if op in _EMPTY:  # also in backward, where an op allocates its result first
        yield _uninitialised
    if call.phase == "backward":
        yield bad_call.classify_slope
    if op.startswith("scaled_dot_product"):
        yield domain_and_range.classify_attention
    if op == "ctc_loss":
        yield _no_alignment
    yield from _CLASSIFIERS.get(op, ())
    yield from _ALWAYS


def _plain(op: str) -> str:
    """`layer_norm` of `native_layer_norm`, `nll_loss` of `nll_loss_forward`."""
    for prefix in ("native_", "linalg_", "special_"):
        op = op.removeprefix(prefix)
    op = op.removesuffix("_forward")
    return "batch_norm" if "batch_norm" in op and "backward" not in op else _SAME.get(op, op)


def _uninitialised(call: BadCall) -> OriginKind:
    bad = nonfinite_mask(call.output)
    return OriginKind(
        "uninitialised-memory",
        f"{call.op} returns uninitialised memory, and {format_share_are(bad, 'values')} NaN or Inf",
    )


def _no_alignment(call: BadCall) -> OriginKind | None:
    lost = torch.isinf(call.output)
    if not count_true(lost):
        return None
    return OriginKind(
        "log-of-zero",
        f"{format_share(lost, 'targets')} cannot be aligned with the input (too long; repeated "
        "labels count twice): the probability is 0, and -log(0) is inf",
    )


def _unknown(call: BadCall) -> OriginKind:
    values = [value for value in float_arguments(call) if not is_overwritten(call, value)]
    state = (
        "finite"
        if not any(count_true(nonfinite_mask(value)) for value in values)
        else "not all finite"
    )
    where = f" in {call.node}" if call.node else ""
    return OriginKind(
        "unknown",
        f"{call.op}{where} returns {format_share(nonfinite_mask(call.output), 'values')} as NaN or "
        f"Inf; its {len(values)} inputs are {state}, and no known cause matches",
    )
