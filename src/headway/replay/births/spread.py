"""The spread of too few numbers, or of numbers that are all the same; the mean of none at all."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headway.replay.births.calls import BadCall, Kind
from headway.replay.births.numbers import figure, how_many, nonfinite, share_are


def deviation(call: BadCall) -> Kind | None:
    """std and var."""
    value = call.argument(0)
    each = value.numel() // max(call.output.numel(), 1)
    correction = call.argument(2, "correction", 1)
    correction = 1 if correction is None else correction
    if each > correction:
        return None
    numbers = {0: "no number at all", 1: "a single number"}.get(each, f"{each} numbers")
    return Kind(
        "std-singular",
        f"{call.op} over {numbers}: it divides by n - {figure(float(correction))}, which is "
        f"{figure(float(each - correction))} for n = {each}; the shape is {tuple(value.shape)}",
    )


def normalisation(call: BadCall) -> Kind | None:
    """layer_norm, group_norm, batch_norm: by the root of a variance, plus an epsilon."""
    eps = next((value for value in reversed(call.args) if isinstance(value, float)), None)
    running = call.argument(4)
    if call.op.endswith("batch_norm") and isinstance(running, Tensor):
        below = running < 0
        if how_many(below):
            return Kind(
                "sqrt-of-negative",
                f"batch_norm by a running variance that is negative in {how_many(below)} of "
                f"{below.numel()} channels, and the square root of those is NaN",
            )
    if eps is None or eps > 1e-30:
        return None
    groups = _bad_groups(call.output)
    return Kind(
        "std-singular",
        f"{call.op} of numbers that are all the same, with an epsilon of {figure(eps)}: the "
        f"variance is 0 for {groups}, and 0/0 is NaN",
    )


def mean(call: BadCall) -> Kind | None:
    """mean, and the losses that average: over no element."""
    value = call.argument(0)
    if not isinstance(value, Tensor) or value.numel() or not how_many(torch.isnan(call.output)):
        return None
    return Kind(
        "mean-of-nothing",
        f"{call.op} over no elements: its input has shape {tuple(value.shape)}, and 0/0 is NaN",
    )


def class_loss(call: BadCall) -> Kind | None:
    """nll_loss: averaged over the labels that count, and none may; or the label's class is out."""
    labels, weight = call.argument(1), call.argument(2, "weight")
    ignored = int(call.argument(4, "ignore_index", -100))
    kept = labels != ignored
    if not how_many(kept):
        return Kind(
            "mean-of-nothing",
            f"the mean over the labels has none: all {labels.numel()} are {ignored}, the "
            "ignore_index, and 0/0 is NaN"
            if labels.numel()
            else "the mean over the labels has none: the batch of labels is empty, and 0/0 is NaN",
        )
    if isinstance(weight, Tensor) and float(weight[labels[kept]].sum()) == 0:
        return Kind(
            "mean-of-nothing",
            f"the classes of all {how_many(kept)} labels have weight 0: the mean divides by the "
            "sum of the weights, and 0/0 is NaN",
        )
    masked = masked_labels(call)
    return masked_target(masked, labels) if how_many(masked) else None


def masked_labels(call: BadCall) -> Tensor:
    """Where the label of an `nll_loss` is a class with a score of -inf."""
    scores, labels = call.argument(0), call.argument(1)
    classes = 0 if scores.dim() == 1 else 1
    chosen = scores.gather(classes, labels.clamp(min=0).unsqueeze(classes)).squeeze(classes)
    found: Tensor = (labels != call.argument(4, "ignore_index", -100)) & torch.isneginf(chosen)
    return found


def masked_target(masked: Tensor, labels: Any) -> Kind:
    first = ""
    if isinstance(labels, Tensor) and labels.shape == masked.shape:
        first = f" (the first is class {int(labels[masked][0])})"
    whose = "its" if how_many(masked) == 1 else "their"
    return Kind(
        "masked-target",
        f"{share_are(masked, 'targets')} masked with -inf{first}: {whose} probability is 0, and "
        "the log of that is -inf",
    )


def _bad_groups(output: Tensor) -> str:
    rows = nonfinite(output).reshape(output.shape[0], -1).any(1) if output.dim() else None
    if rows is None:
        return "the input"
    return f"{how_many(rows)} of {rows.numel()} rows of the input"
