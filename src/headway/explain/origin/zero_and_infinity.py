"""Origins in divisions by zero and in arithmetic with infinities."""

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
    format_number,
    format_share_are,
    is_overwritten,
    nonfinite_mask,
    note_eps_in_float16,
)

# Division by zero, by a zero norm, by a zero standard deviation.


def classify_division(call: BadCall) -> OriginKind | None:
    at = 2 if call.op == "addcdiv" else 1
    above, below = call.argument(at - 1), call.argument(at)
    zero = nonfinite_mask(call.output) & (expand_to_output(below, call.output) == 0)
    if not count_true(zero):
        return None
    none_over_none = zero & torch.isnan(call.output)
    if not count_true(none_over_none):
        return OriginKind(
            "division-by-zero",
            f"division by 0: {format_share_are(_once(below, zero), 'divisors')} exactly 0"
            + note_eps_in_float16(call.output.dtype),
        )
    own = None if is_overwritten(call, above) else _its_own(above, below)
    if own == "norm":
        return OriginKind(
            "norm-at-zero",
            "a zero vector is divided by its norm: "
            f"{format_share_are(_once(below, zero), 'norms')} 0, and 0/0 is NaN",
        )
    if own == "std":
        return OriginKind(
            "std-singular",
            "equal values are divided by their standard deviation: "
            f"{format_share_are(_once(below, zero), 'deviations')} 0, and 0/0 is NaN",
        )
    return OriginKind(
        "zero-over-zero",
        f"0 divided by 0: {format_share_are(_once(below, zero), 'divisors')} exactly 0 with a 0 "
        "dividend, and 0/0 is NaN" + note_eps_in_float16(call.output.dtype),
    )


def classify_remainder(call: BadCall) -> OriginKind | None:
    zero = nonfinite_mask(call.output) & (expand_to_output(call.argument(1), call.output) == 0)
    if not count_true(zero):
        return None
    return OriginKind(
        "division-by-zero",
        f"remainder of a division by 0: {format_share_are(zero, 'divisors')} exactly 0",
    )


def classify_reciprocal(call: BadCall) -> OriginKind | None:
    value = call.argument(0)
    gone = is_overwritten(call, value)
    zero = torch.isinf(call.output) & (torch.ones_like(call.output) if gone else value == 0).bool()
    if not count_true(zero):
        return None
    return OriginKind(
        "division-by-zero",
        f"division by 0: {format_share_are(zero, 'divisors')} exactly 0, and 1/0 is inf"
        + note_eps_in_float16(call.output.dtype),
    )


def classify_weight_norm(call: BadCall) -> OriginKind | None:
    direction, dim = call.argument(0), int(call.argument(2, "dim", 0))
    norms = torch.linalg.vector_norm(
        direction.transpose(0, dim).flatten(1) if direction.dim() > 1 else direction[:, None], dim=1
    )
    zero = norms == 0
    if not count_true(zero):
        return None
    return OriginKind(
        "norm-at-zero",
        f"weight normalisation of a zero vector: {format_share_are(zero, 'norms')} 0, "
        "and 0/0 is NaN",
    )


def _once(below: Any, spread: Tensor) -> Tensor:
    """A mask over the divisors before broadcasting."""
    if not isinstance(below, Tensor) or below.dim() == 0:
        return spread.any().reshape(1)
    for dim in _repeated(below, spread):
        spread = spread.any(dim, keepdim=True)
    return spread


def _its_own(above: Any, below: Any) -> str | None:
    """Whether a tensor is divided by its own norm or standard deviation.

    This is inferred from the values: it must hold for all other vectors of the same call, and
    there must be at least one.
    """
    if not isinstance(above, Tensor) or not isinstance(below, Tensor):
        return None
    dims = _repeated(below, above)
    if not dims or above.shape != torch.broadcast_shapes(above.shape, below.shape):
        return None
    values = above.double()
    divisors = below.double().expand(above.shape).amax(dims, keepdim=True)
    others = divisors != 0
    if not count_true(others):
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
    """The dimensions along which one divisor is broadcast."""
    missing = spread.dim() - below.dim()
    return tuple(
        dim
        for dim in range(spread.dim())
        if spread.shape[dim] > 1
        and (dim < missing or below.shape[dim - missing] == 1 or below.stride()[dim - missing] == 0)
    )


# Standard deviation of too few or equal values; mean of no values.


def classify_deviation(call: BadCall) -> OriginKind | None:
    """std and var."""
    value = call.argument(0)
    each = value.numel() // max(call.output.numel(), 1)
    correction = call.argument(2, "correction", 1)
    correction = 1 if correction is None else correction
    if each > correction:
        return None
    numbers = {0: "no values", 1: "a single value"}.get(each, f"{each} values")
    return OriginKind(
        "std-singular",
        f"{call.op} over {numbers} (input shape {tuple(value.shape)}): it divides by n - "
        f"{format_number(float(correction))} = {format_number(float(each - correction))}",
    )


def classify_normalisation(call: BadCall) -> OriginKind | None:
    """layer_norm, group_norm, batch_norm divide by sqrt(variance + eps)."""
    eps = next((value for value in reversed(call.args) if isinstance(value, float)), None)
    running = call.argument(4)
    if call.op.endswith("batch_norm") and isinstance(running, Tensor):
        below = running < 0
        if count_true(below):
            return OriginKind(
                "sqrt-of-negative",
                f"batch_norm with a negative running variance in {count_true(below)} of "
                f"{below.numel()} channels: its square root is NaN",
            )
    if eps is None or eps > 1e-30:
        return None
    groups = _bad_groups(call.output)
    return OriginKind(
        "std-singular",
        f"{call.op} of equal values with eps = {format_number(eps)}: the variance is 0 for "
        f"{groups}, and 0/0 is NaN",
    )


def classify_mean(call: BadCall) -> OriginKind | None:
    """mean, and losses that average: over 0 elements."""
    value = call.argument(0)
    if not isinstance(value, Tensor) or value.numel() or not count_true(torch.isnan(call.output)):
        return None
    return OriginKind(
        "mean-of-nothing",
        f"{call.op} over 0 elements: its input has shape {tuple(value.shape)}, and 0/0 is NaN",
    )


def classify_class_loss(call: BadCall) -> OriginKind | None:
    """nll_loss: all labels are ignored, have weight 0, or are masked."""
    labels, weight = call.argument(1), call.argument(2, "weight")
    ignored = int(call.argument(4, "ignore_index", -100))
    kept = labels != ignored
    if not count_true(kept):
        return OriginKind(
            "mean-of-nothing",
            f"the mean is over 0 labels: all {labels.numel()} are {ignored}, the ignore_index, and "
            "0/0 is NaN"
            if labels.numel()
            else "the mean is over 0 labels: the batch of labels is empty, and 0/0 is NaN",
        )
    if isinstance(weight, Tensor) and float(weight[labels[kept]].sum()) == 0:
        return OriginKind(
            "mean-of-nothing",
            f"the classes of all {count_true(kept)} labels have weight 0: the mean divides by the "
            "sum of these weights, and 0/0 is NaN",
        )
    masked = masked_labels(call)
    return masked_target(masked, labels) if count_true(masked) else None


def masked_labels(call: BadCall) -> Tensor:
    """Mask of the labels of an `nll_loss` whose class has a score of -inf."""
    scores, labels = call.argument(0), call.argument(1)
    classes = 0 if scores.dim() == 1 else 1
    chosen = scores.gather(classes, labels.clamp(min=0).unsqueeze(classes)).squeeze(classes)
    found: Tensor = (labels != call.argument(4, "ignore_index", -100)) & torch.isneginf(chosen)
    return found


def masked_target(masked: Tensor, labels: Any) -> OriginKind:
    first = ""
    if isinstance(labels, Tensor) and labels.shape == masked.shape:
        first = f" (the first is class {int(labels[masked][0])})"
    whose = "its" if count_true(masked) == 1 else "their"
    return OriginKind(
        "masked-target",
        f"{format_share_are(masked, 'targets')} masked with -inf{first}: {whose} probability is 0, "
        "and log(0) is -inf",
    )


def _bad_groups(output: Tensor) -> str:
    rows = nonfinite_mask(output).reshape(output.shape[0], -1).any(1) if output.dim() else None
    if rows is None:
        return "the input"
    return f"{count_true(rows)} of {rows.numel()} rows of the input"


# Arithmetic with infinities that the inputs already contain, usually those of a mask.


def classify_softmax(call: BadCall) -> OriginKind | None:
    """softmax, log_softmax, logsumexp of a fully masked row, or of a row with +inf."""
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
            f"{call.op} of a fully masked row: {format_share_are(empty, 'rows')} all -inf, which "
            f"gives {made}",
        )
    infinite = torch.isposinf(value)
    if not count_true(infinite):
        return None
    return OriginKind(
        "infinity-minus-infinity",
        f"{call.op} subtracts the maximum of a row, and {format_share_are(infinite)} +inf: "
        "inf - inf is NaN",
    )


def classify_product(call: BadCall) -> OriginKind | None:
    """mul: 0 · inf, or the probability of a masked class."""
    one, two = (expand_to_output(call.argument(at), call.output) for at in (0, 1))
    lost = torch.isnan(call.output) & (_nothing_and_all(one, two) | _nothing_and_all(two, one))
    if count_true(lost):
        mask = (
            " The infinity is a constant in the code: do not build a mask by multiplying with it."
        )
        return OriginKind(
            "zero-times-infinity",
            f"0 times infinity is NaN: {format_share_are(lost, 'products')} 0 · inf."
            f"{mask if call.deliberate or count_infinite_scalars(call) else ''}",
        )
    if not call.deliberate or count_true(torch.isnan(call.output)):
        return None
    return masked_target(torch.isinf(call.output), None)


def classify_sum(call: BadCall) -> OriginKind | None:
    """add, sub, sum, mean, matrix products: infinities of both signs, or 0 · inf."""
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
        f"{call.op} computes inf - inf: {infinite} of its inputs are infinite"
        f"{' (from a mask)' if call.deliberate else ''}, and "
        f"{format_share_are(torch.isnan(call.output), 'results')} NaN",
    )


def classify_infinite_quotient(call: BadCall) -> OriginKind | None:
    """inf / inf."""
    one, two = (expand_to_output(call.argument(at), call.output) for at in (0, 1))
    lost = torch.isnan(call.output) & torch.isinf(one) & torch.isinf(two)
    if not count_true(lost):
        return None
    return OriginKind(
        "zero-times-infinity",
        f"infinity divided by infinity is NaN: {format_share_are(lost, 'quotients')} inf / inf",
    )


def classify_unmasked_infinity(call: BadCall) -> OriginKind | None:
    """A -inf of a mask that is selected or summed for the loss."""
    if not call.deliberate or count_true(torch.isnan(call.output)):
        return None
    picked = torch.isinf(call.output)
    if not count_true(picked):
        return None
    return masked_target(picked, _labels(call))


def _labels(call: BadCall) -> Any:
    """The index of a gather."""
    found = [
        value for value in call.args if isinstance(value, Tensor) and not value.is_floating_point()
    ]
    return found[0] if found else None


def _nothing_and_all(one: Tensor, two: Tensor) -> Tensor:
    return (one == 0) & torch.isinf(two)


_OF_MATRICES = frozenset(
    ("mm", "bmm", "addmm", "baddbmm", "addmv", "mv", "dot", "matmul", "linear", "convolution")
)
