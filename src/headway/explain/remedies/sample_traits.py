"""What the failing samples of a batch have in common, and the other samples do not; and how a
whole batch differs from the one before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from headway.explain.explanation import Origin, Spike
from headway.explain.failing_step import FailingStep
from headway.torch_adapters.nested_state import find_tensors

Carrier = TypeVar("Carrier", Origin, Spike)
FAR = 10.0
"""Values are unusual if they are this many times larger or smaller than those of the others …"""
APART = 3.0
"""… and this many times the largest of them."""
MOST_ALIKE = 0.25
"""Share of the other samples that may be as unusual: they did not fail, by chance."""


def find_common(failing_step: FailingStep, batch: int, rows: Sequence[int]) -> str:
    """`inputs about 3,000 times the usual`; empty if nothing is common to these rows only."""
    if not rows or not 0 <= batch < len(failing_step.batches):
        return ""
    found = [trait for trait in _traits(failing_step.batches[batch], rows) if trait]
    return " and ".join(dict.fromkeys(found[:2]))


def blame_batch(failing_step: FailingStep, healthy: Sequence[Any], spike: Spike) -> Spike:
    """The spike of a whole batch, if nearly all of its rows differ from those of a healthy batch.

    A few rows may still have the largest gradients; naming them alone would mislead.
    """
    for at, batch in enumerate(failing_step.batches):
        common = next(filter(None, _traits_of_all(batch, healthy[-1] if healthy else None)), "")
        if common:
            return replace(spike, rows=(), batch=at, common=common)
    return spike


def _traits_of_all(batch: Any, other: Any) -> Iterator[str]:
    """How the numbers of a batch differ from those of another batch of the run."""
    pairs = zip(find_tensors(batch), find_tensors(other), strict=False)
    for at, ((path, column), (same, before)) in enumerate(pairs):
        comparable = path == same and column.shape[1:] == before.shape[1:]
        if not comparable or not all(_has_finite_rows(one) for one in (column, before)):
            continue
        sizes, usual = _row_sizes(column), _row_sizes(before)
        few = float(sizes.quantile(MOST_ALIKE))  # nearly all rows are larger than this
        if few > max(FAR * float(usual.median()), APART * float(usual.max())) > 0:
            ratio = float(sizes.square().mean().sqrt() / usual.square().mean().sqrt())
            yield f"{_name(at)} about {_round(ratio)} times those of the batch before"


def _has_finite_rows(tensor: Tensor) -> bool:
    usable = tensor.is_floating_point() and _has_rows(tensor, (0,))
    return usable and bool(torch.isfinite(tensor).all())


def _row_sizes(tensor: Tensor) -> Tensor:
    """Root mean square of each row."""
    return tensor.detach().reshape(len(tensor), -1).double().square().mean(dim=1).sqrt()


def _name(at: int) -> str:
    return "inputs" if at == 0 else "targets" if at == 1 else f"values in batch[{at}]"


def add_common(failing_step: FailingStep, carrier: Carrier) -> Carrier:
    """The origin or the spike, with what its samples have in common."""
    if not carrier.rows:
        return carrier
    common = find_common(failing_step, carrier.batch, carrier.rows)
    return replace(carrier, common=common)


def _traits(batch: Any, rows: Sequence[int]) -> Iterator[str]:
    columns = [tensor.detach() for _, tensor in find_tensors(batch) if _has_rows(tensor, rows)]
    for at, column in enumerate(columns):
        others = sorted(set(range(len(column))) - set(rows))
        if len(others) < 2 or len(others) < len(rows):
            continue
        name = _name(at)
        flat = column.reshape(len(column), -1)
        if column.is_floating_point():
            yield _of_numbers(flat.double(), rows, others, name)
        else:
            yield _of_labels(flat, rows, others, name)


def _has_rows(tensor: Tensor, rows: Sequence[int]) -> bool:
    plain = tensor.layout is torch.strided and not tensor.is_nested and not tensor.is_complex()
    return plain and tensor.ndim > 0 and tensor.numel() > 0 and len(tensor) > max(rows)


def _of_numbers(flat: Tensor, rows: Sequence[int], others: Sequence[int], name: str) -> str:
    if not bool(torch.isfinite(flat).all()):
        return ""  # the headline already says that the data are not finite
    sizes = flat.square().mean(dim=1).sqrt()
    theirs, usual = sizes[list(rows)], float(sizes[list(others)].median())
    if usual == 0:
        return ""
    wide = flat.shape[1] > 1  # a single 0 or any single number is nothing special
    if wide and bool((theirs == 0).all()) and not bool((sizes[list(others)] == 0).any()):
        return f"{name} that are all 0"
    alike = [row for row in others if float(sizes[row]) > FAR * usual]
    rest = sorted(set(others) - set(alike))
    far = [*rows, *(alike if len(alike) <= MOST_ALIKE * len(others) else ())]
    largest = float(sizes[rest if len(far) > len(rows) else list(others)].max())
    if float(sizes[far].min()) > max(FAR * usual, APART * largest):
        pooled = [float(sizes[list(some)].square().mean().sqrt()) for some in (far, rest)]
        more = f", like {len(alike)} more of the batch" if alike else ""
        return f"{name} about {_round(pooled[0] / pooled[1])} times the usual{more}"
    constant = (flat == flat[:, :1]).all(dim=1)
    alone = bool(constant[list(rows)].all()) and not bool(constant[list(others)].any())
    return f"{name} that are constant" if alone and wide else ""


def _of_labels(flat: Tensor, rows: Sequence[int], others: Sequence[int], name: str) -> str:
    if flat.shape[1] != 1:
        return ""
    values = set(flat[list(rows), 0].tolist())
    if len(rows) < 2 or len(values) != 1 or values & set(flat[list(others), 0].tolist()):
        return ""
    return f"the label {next(iter(values))}"


def _round(factor: float) -> str:
    """One digit: samples differ, and the scale is what matters."""
    return f"{float(f'{factor:.0e}'):,.0f}" if factor < 1e6 else f"{factor:.0e}"
