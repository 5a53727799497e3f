"""Origins in arithmetic with infinities that were already there, most often those of a mask."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headway.explain.origin.bad_call import (
    BadCall,
    OriginKind,
    count_infinite_scalars,
    count_true,
    expand_to_output,
    float_arguments,
    format_share,
    format_share_are,
    is_overwritten,
)
from headway.explain.origin.zero_division import masked_target


def classify_softmax(call: BadCall) -> OriginKind | None:
    """softmax, log_softmax, logsumexp: of a row that is masked throughout, or that holds +inf."""
    value = call.argument(0)
    if is_overwritten(call, value):
        return None
    dims = call.argument(1, "dim", -1)
    dims = [dims] if isinstance(dims, int) else list(dims) or list(range(value.dim()))
    empty = torch.isneginf(value).all(dims[0], keepdim=True)
    for dim in dims[1:]:
        empty = empty.all(dim, keepdim=True)
    if count_true(empty):
        made = "-inf, the log of 0" if call.op == "logsumexp" else "0/0, NaN"
        return OriginKind(
            "masked-softmax-row",
            f"{call.op} of a row in which everything is masked: {format_share(empty, 'rows')} "
            f"{'holds' if count_true(empty) == 1 else 'hold'} nothing but -inf, and so it "
            f"is {made}",
        )
    infinite = torch.isposinf(value)
    if not count_true(infinite):
        return None
    return OriginKind(
        "infinity-minus-infinity",
        f"{call.op} subtracts the largest number of a row, and {format_share_are(infinite)} +inf: "
        "inf - inf is NaN",
    )


def classify_product(call: BadCall) -> OriginKind | None:
    """mul: 0 · inf; or the probability of a class that is masked."""
    one, two = (expand_to_output(call.argument(at), call.output) for at in (0, 1))
    lost = torch.isnan(call.output) & (_nothing_and_all(one, two) | _nothing_and_all(two, one))
    if count_true(lost):
        mask = " The infinity is written in the code: a mask cannot be made by multiplying with it."
        return OriginKind(
            "zero-times-infinity",
            f"0 times infinity is NaN: {format_share_are(lost, 'products')} of those two."
            f"{mask if call.deliberate or count_infinite_scalars(call) else ''}",
        )
    if not call.deliberate or count_true(torch.isnan(call.output)):
        return None
    return masked_target(torch.isinf(call.output), None)


def classify_sum(call: BadCall) -> OriginKind | None:
    """add, sub, sum, mean, products of matrices: infinities of both signs, or 0 · inf inside."""
    if not count_true(torch.isnan(call.output)):
        return None
    values = [value for value in float_arguments(call) if not is_overwritten(call, value)]
    infinite = sum(count_true(torch.isinf(value)) for value in values) + count_infinite_scalars(
        call
    )
    if not infinite or any(count_true(torch.isnan(value)) for value in values):
        return None
    if call.op in _OF_MATRICES and any(count_true(value == 0) for value in values):
        return OriginKind(
            "zero-times-infinity",
            f"{call.op} multiplies {infinite} infinite inputs, and 0 times infinity is NaN",
        )
    return OriginKind(
        "infinity-minus-infinity",
        f"{call.op} takes an infinity from an infinity: {infinite} of its inputs are infinite"
        f"{' (those of a mask)' if call.deliberate else ''}, and "
        f"{format_share_are(torch.isnan(call.output), 'results')} NaN for it",
    )


def classify_infinite_quotient(call: BadCall) -> OriginKind | None:
    """inf / inf."""
    one, two = (expand_to_output(call.argument(at), call.output) for at in (0, 1))
    lost = torch.isnan(call.output) & torch.isinf(one) & torch.isinf(two)
    if not count_true(lost):
        return None
    return OriginKind(
        "zero-times-infinity",
        f"infinity divided by infinity: {format_share(lost, 'quotients')}, and inf · "
        "(1/inf) is inf · 0, "
        "NaN",
    )


def classify_unmasked_infinity(call: BadCall) -> OriginKind | None:
    """A mask's -inf that was picked out, or summed up, for the loss."""
    if not call.deliberate or count_true(torch.isnan(call.output)):
        return None
    picked = torch.isinf(call.output)
    if not count_true(picked):
        return None
    return masked_target(picked, _labels(call))


def _labels(call: BadCall) -> Any:
    """What a gather picked."""
    found = [
        value for value in call.args if isinstance(value, Tensor) and not value.is_floating_point()
    ]
    return found[0] if found else None


def _nothing_and_all(one: Tensor, two: Tensor) -> Tensor:
    return (one == 0) & torch.isinf(two)


_OF_MATRICES = frozenset(
    ("mm", "bmm", "addmm", "baddbmm", "addmv", "mv", "dot", "matmul", "linear", "convolution")
)
