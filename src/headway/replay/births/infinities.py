"""Arithmetic with infinities that were there already, most often those of a mask."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headway.replay.births.calls import BadCall, Kind
from headway.replay.births.numbers import (
    beside,
    floats,
    how_many,
    infinite_scalars,
    overwritten,
    share,
    share_are,
)
from headway.replay.births.spread import masked_target


def softmax(call: BadCall) -> Kind | None:
    """softmax, log_softmax, logsumexp: of a row that is masked throughout, or that holds +inf."""
    value = call.argument(0)
    if overwritten(call, value):
        return None
    dims = call.argument(1, "dim", -1)
    dims = [dims] if isinstance(dims, int) else list(dims) or list(range(value.dim()))
    empty = torch.isneginf(value).all(dims[0], keepdim=True)
    for dim in dims[1:]:
        empty = empty.all(dim, keepdim=True)
    if how_many(empty):
        made = "-inf, the log of 0" if call.op == "logsumexp" else "0/0, NaN"
        return Kind(
            "masked-softmax-row",
            f"{call.op} of a row in which everything is masked: {share(empty, 'rows')} "
            f"{'holds' if how_many(empty) == 1 else 'hold'} nothing but -inf, and so it is {made}",
        )
    infinite = torch.isposinf(value)
    if not how_many(infinite):
        return None
    return Kind(
        "infinity-minus-infinity",
        f"{call.op} subtracts the largest number of a row, and {share_are(infinite)} +inf: "
        "inf - inf is NaN",
    )


def product(call: BadCall) -> Kind | None:
    """mul: 0 · inf; or the probability of a class that is masked."""
    one, two = (beside(call.argument(at), call.output) for at in (0, 1))
    lost = torch.isnan(call.output) & (_nothing_and_all(one, two) | _nothing_and_all(two, one))
    if how_many(lost):
        mask = " The infinity is written in the code: a mask cannot be made by multiplying with it."
        return Kind(
            "zero-times-infinity",
            f"0 times infinity is NaN: {share_are(lost, 'products')} of those two."
            f"{mask if call.deliberate or infinite_scalars(call) else ''}",
        )
    if not call.deliberate or how_many(torch.isnan(call.output)):
        return None
    return masked_target(torch.isinf(call.output), None)


def sums(call: BadCall) -> Kind | None:
    """add, sub, sum, mean, products of matrices: infinities of both signs, or 0 · inf inside."""
    if not how_many(torch.isnan(call.output)):
        return None
    values = [value for value in floats(call) if not overwritten(call, value)]
    infinite = sum(how_many(torch.isinf(value)) for value in values) + infinite_scalars(call)
    if not infinite or any(how_many(torch.isnan(value)) for value in values):
        return None
    if call.op in _OF_MATRICES and any(how_many(value == 0) for value in values):
        return Kind(
            "zero-times-infinity",
            f"{call.op} multiplies {infinite} infinite inputs, and 0 times infinity is NaN",
        )
    return Kind(
        "infinity-minus-infinity",
        f"{call.op} takes an infinity from an infinity: {infinite} of its inputs are infinite"
        f"{' (those of a mask)' if call.deliberate else ''}, and "
        f"{share_are(torch.isnan(call.output), 'results')} NaN for it",
    )


def divided(call: BadCall) -> Kind | None:
    """inf / inf."""
    one, two = (beside(call.argument(at), call.output) for at in (0, 1))
    lost = torch.isnan(call.output) & torch.isinf(one) & torch.isinf(two)
    if not how_many(lost):
        return None
    return Kind(
        "zero-times-infinity",
        f"infinity divided by infinity: {share(lost, 'quotients')}, and inf · (1/inf) is inf · 0, "
        "NaN",
    )


def let_through(call: BadCall) -> Kind | None:
    """A mask's -inf that was picked out, or summed up, for the loss."""
    if not call.deliberate or how_many(torch.isnan(call.output)):
        return None
    picked = torch.isinf(call.output)
    if not how_many(picked):
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
