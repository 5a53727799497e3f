"""The N-way contrastive loss."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headway.numerics.nway import features as prepare
from headway.numerics.nway.dense import LIMIT, dense_cross_entropy
from headway.numerics.nway.gather import Group, gathered, largest_of, ranks_of, shared_value
from headway.numerics.nway.names import Score, find_score
from headway.numerics.nway.products import HALF, can_multiply_halves
from headway.numerics.nway.scores import axis_weights, lines_of
from headway.numerics.nway.streaming import cross_entropy_along
from headway.numerics.nway.sums import sums_entropy, sums_form
from headway.numerics.nway.widest import widest


def nway_contrastive(
    features: Sequence[Tensor],
    *,
    score: str = "norm",
    scale: float | Tensor = 1 / 0.07,
    normalize: bool = True,
    reduction: str = "mean",
    axes: str = "mean",
    rescale: bool = True,
    block: int | None = None,
    gather: Group = None,
    targets: Tensor | None = None,
    mask: Tensor | None = None,
    limit: int = LIMIT,
    fuse: bool = True,
) -> Tensor:
    """How badly N modalities of the same samples find each other, exactly, at any batch size.

    `features` are N tensors (B, D); row i of each belongs to sample i. With the logits
    `scale * score(f_1[i_1], …, f_N[i_N])`, a tensor of B^N that is never made, the value is the
    mean over the N axes of the cross entropy along that axis at the hyper-diagonal, averaged
    (`reduction="mean"`) or summed ("sum") over the batch. It is computed in float32 for half
    precision, and returned so.

    score: "norm", "product", "leave-one-out", "variance", "std", "cosine", "distance" and others;
        or a published number, such as "v11". docs/nway.md says which to take.
    scale: the inverse temperature, a number or a tensor (see `Temperature`).
    normalize: whether rows are brought to length one first. Zero rows stay zero.
    axes: "mean", or "first-plus-rest": the loss along axis 1 plus the mean of the others.
    rescale: whether the product of unit rows is multiplied by D^(N/2 − 1). Without it, as
        published, its gradient vanishes.
    block: how many rows to compute at once; chosen if None.
    gather: True or a process group: contrast with the rows of all ranks. For
        DistributedDataParallel, which takes the mean of the ranks' gradients.
    targets: soft targets of shape (B,)*N instead of the hyper-diagonal. Takes memory of B^N.
    mask: of shape (B,)*N. A boolean one leaves tuples out; any other is multiplied with the logits,
        as published, so that a zero still counts in the softmax. Takes memory of B^N.
    limit: the bytes that `targets` and `mask` may take before they are refused.
    fuse: whether kernels may do the work between the matrix products on a GPU. The first call
        compiles them, for seconds. Where Triton cannot, plain torch does the same.
    """
    given = prepare.checked(features)
    chosen = find_score(score)
    if reduction not in ("mean", "sum"):
        raise ValueError(f"reduction must be 'mean' or 'sum', not {reduction!r}")
    if block is not None and block < 1:
        raise ValueError(f"block must be at least 1, not {block}")
    axis_weights(len(given), axes)  # complains of an unknown name
    dense = targets is not None or mask is not None
    if dense and not chosen.lines:
        raise ValueError(f"score {chosen.name!r} is of pairs and has no dense targets or masks")
    device = given[0].device
    with torch.autocast(device.type, enabled=False):
        ranks = ranks_of(gather, given[0].shape[0], device)
        if dense and ranks is not None:
            raise ValueError("dense targets and masks cannot be gathered over ranks")
        dtype = prepare.compute_dtype(given)
        if normalize and fuse and not dense and ranks is None and given[0].shape[0]:
            form = sums_form(chosen.name, given, dtype)
            if form is not None:
                share = given[0].shape[0] if reduction == "mean" else 1
                return sums_entropy(
                    form,
                    given,
                    _clamped(_as_scale(scale, device, dtype), dtype),
                    weights=[weight / share for weight in axis_weights(len(given), axes)],
                    block=block,
                    operands=_operands(chosen, given, normalize),
                )
        own = prepare.stacked(given, dtype, unit=normalize, fuse=fuse)
        count, rows, width = own.shape
        batch = ranks.total if ranks else rows
        if batch == 0:
            return own.sum()
        plain = _as_scale(scale, device, widest(device))
        factor = plain
        common = None
        if normalize:
            if rescale and chosen.name == "product":
                factor = factor * float(width) ** (count / 2 - 1)
        elif chosen.degree is not None and own.numel():
            common = prepare.common_scale(own)
            if ranks:
                common = largest_of(common, ranks)
            own = prepare.shrunk(own, common)
            factor = factor * common.to(factor.dtype) ** (chosen.degree or count)
        factor = _clamped(factor, dtype)
        gain = factor.detach()
        if common is not None:
            gain = _clamped(gain / common, dtype)
        factor = factor.to(dtype)
        if dense:
            value = dense_cross_entropy(
                chosen.name,
                list(own.unbind(0)),
                factor,
                common=common,
                shift=(chosen.constant * plain).to(dtype),
                targets=targets,
                mask=mask,
                axes=axes,
                limit=limit,
            )
        else:
            everybody = gathered(own, ranks) if ranks else own
            parts = [
                cross_entropy_along(
                    line,
                    factor,
                    gain=gain,
                    offset=ranks.offset if ranks else 0,
                    block=block,
                    operands=_operands(chosen, given, normalize),
                    fuse=fuse,
                )
                for line in lines_of(chosen.name, own, everybody, axes=axes, unit=normalize)
            ]
            value = parts[0] if len(parts) == 1 else torch.stack(parts).sum()
        if reduction == "mean":
            value = value / batch
        return shared_value(value, ranks) if ranks else value


def _as_scale(scale: float | Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    if not isinstance(scale, Tensor):
        # Filled on the device: a copy from the host would wait for it.
        return torch.full((), float(scale), dtype=dtype, device=device)
    if scale.numel() != 1:
        raise ValueError(f"scale must be one number, not of shape {tuple(scale.shape)}")
    return prepare.widened(scale.reshape(()).to(device), dtype)


def _clamped(factor: Tensor, dtype: torch.dtype) -> Tensor:
    """Beyond these bounds the logits themselves would overflow."""
    most = torch.finfo(dtype).max ** 0.85
    return factor.clamp(-most, most)


def _operands(score: Score, given: list[Tensor], normalize: bool) -> torch.dtype | None:
    """Half operands for matrix products, where features came as halves and their sums stay small.

    A product of several coordinates leaves the range of fp16.
    """
    dtype = given[0].dtype
    if dtype not in HALF or not normalize or any(f.dtype != dtype for f in given):
        return None
    if score.name == "product" and dtype == torch.float16:
        return None
    return dtype if can_multiply_halves(given[0].device) else None
