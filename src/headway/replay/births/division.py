"""Dividing by nothing: by zero, by a norm of zero, by a spread of zero."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headway.replay.births.calls import BadCall, Kind
from headway.replay.births.numbers import (
    beside,
    how_many,
    nonfinite,
    overwritten,
    share_are,
    too_small_for_half,
)


def divide(call: BadCall) -> Kind | None:
    at = 2 if call.op == "addcdiv" else 1
    above, below = call.argument(at - 1), call.argument(at)
    zero = nonfinite(call.output) & (beside(below, call.output) == 0)
    if not how_many(zero):
        return None
    none_over_none = zero & torch.isnan(call.output)
    if not how_many(none_over_none):
        return Kind(
            "division-by-zero",
            f"division by 0: {share_are(_once(below, zero), 'divisors')} exactly 0"
            + too_small_for_half(call.output.dtype),
        )
    own = None if overwritten(call, above) else _its_own(above, below)
    if own == "norm":
        return Kind(
            "norm-at-zero",
            "a vector of zeros divided by its own norm: "
            f"{share_are(_once(below, zero), 'norms')} 0, and 0/0 is NaN",
        )
    if own == "std":
        return Kind(
            "std-singular",
            "numbers that are all the same, divided by their own standard deviation: "
            f"{share_are(_once(below, zero), 'deviations')} 0, and 0/0 is NaN",
        )
    return Kind(
        "zero-over-zero",
        f"0 divided by 0: {share_are(_once(below, zero), 'divisors')} exactly 0 with a 0 above, "
        "and 0/0 is NaN" + too_small_for_half(call.output.dtype),
    )


def remainder(call: BadCall) -> Kind | None:
    zero = nonfinite(call.output) & (beside(call.argument(1), call.output) == 0)
    if not how_many(zero):
        return None
    return Kind(
        "division-by-zero",
        f"remainder of a division by 0: {share_are(zero, 'divisors')} exactly 0",
    )


def reciprocal(call: BadCall) -> Kind | None:
    value = call.argument(0)
    gone = overwritten(call, value)
    zero = torch.isinf(call.output) & (torch.ones_like(call.output) if gone else value == 0).bool()
    if not how_many(zero):
        return None
    return Kind(
        "division-by-zero",
        f"division by 0: {share_are(zero, 'divisors')} exactly 0, and 1/0 is inf"
        + too_small_for_half(call.output.dtype),
    )


def weight_norm(call: BadCall) -> Kind | None:
    direction, dim = call.argument(0), int(call.argument(2, "dim", 0))
    norms = torch.linalg.vector_norm(
        direction.transpose(0, dim).flatten(1) if direction.dim() > 1 else direction[:, None], dim=1
    )
    zero = norms == 0
    if not how_many(zero):
        return None
    return Kind(
        "norm-at-zero",
        f"weight normalisation of a vector of zeros: {share_are(zero, 'norms')} 0, and 0/0 is NaN",
    )


def _once(below: Any, spread: Tensor) -> Tensor:
    """A mask over the divisors as they are, and not as they are broadcast."""
    if not isinstance(below, Tensor) or below.dim() == 0:
        return spread.any().reshape(1)
    for dim in _repeated(below, spread):
        spread = spread.any(dim, keepdim=True)
    return spread


def _its_own(above: Any, below: Any) -> str | None:
    """Whether tensors are divided by their own norm or standard deviation.

    Told from the numbers: it must hold for every other vector of the same call, and there must be
    one.
    """
    if not isinstance(above, Tensor) or not isinstance(below, Tensor):
        return None
    dims = _repeated(below, above)
    if not dims or above.shape != torch.broadcast_shapes(above.shape, below.shape):
        return None
    values = above.double()
    divisors = below.double().expand(above.shape).amax(dims, keepdim=True)
    others = divisors != 0
    if not how_many(others):
        return None
    rough = max(1e-3, 4 * torch.finfo(below.dtype).eps if below.is_floating_point() else 0.0)
    centred = bool((values.mean(dims).abs() <= rough * values.abs().amax(dims)).all())
    spreads = [values.std(dims, correction=correction, keepdim=True) for correction in (1, 0)]
    if centred and any(_same(spread, divisors, others, rough) for spread in spreads):
        return "std"
    norm = torch.linalg.vector_norm(values, dim=dims, keepdim=True)
    return "norm" if _same(norm, divisors, others, rough) else None


def _same(made: Tensor, given: Tensor, where: Tensor, rough: float) -> bool:
    return torch.allclose(made[where], given[where], rtol=rough, atol=0.0)


def _repeated(below: Tensor, spread: Tensor) -> tuple[int, ...]:
    """The dimensions along which one divisor serves many numbers."""
    missing = spread.dim() - below.dim()
    return tuple(
        dim
        for dim in range(spread.dim())
        if spread.shape[dim] > 1
        and (dim < missing or below.shape[dim - missing] == 1 or below.stride()[dim - missing] == 0)
    )
