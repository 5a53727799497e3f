"""The N-way contrastive loss as a function and a module, its score names, and the learnable
temperature.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headway.numerics.nway import features as prepare
from headway.numerics.nway.features import (
    Group,
    apply_function,
    gathered,
    largest_of,
    ranks_of,
    shared_value,
    widest,
)
from headway.numerics.nway.gram import HALF, can_multiply_halves
from headway.numerics.nway.scores import axis_weights, lines_of
from headway.numerics.nway.streaming import (
    LIMIT,
    cross_entropy_along,
    dense_cross_entropy,
    sums_entropy,
    sums_form,
)

# The scores, what each is, and the version numbers they were published under.


@dataclass(frozen=True)
class Score:
    """A measure of how well N vectors belong together; `meaning` leaves out constants."""

    name: str
    meaning: str
    published: tuple[str, ...]
    """Old names: `v4` is `logitsversion` 4, `stable-v1` the first of the "stable" ones."""
    degree: int | None = 1
    """If all features grow by c the score grows by c to this power. 0: to the power N; None: by
    no power."""
    constant: float = 0.0
    """A constant that the published score adds. The softmax cancels it, unless a mask is multiplied
    with the logits."""
    lines: bool = True
    """A score of N vectors, with N axes; the others compare sample i with sample j."""


SCORES = {
    score.name: score
    for score in (
        Score("product", "Σ_z Π_k f_k", ("stable-v0", "v0"), degree=0),
        Score("norm", "‖S‖", ("stable-v1", "v7", "v8", "v10")),
        Score("norm-mean", "‖S‖ / N", ("v9",)),
        Score("leave-one-out", "Σ_k ⟨(S−f_k)/‖S−f_k‖, f_k⟩", ("v11", "v12")),
        Score("variance", "−(Σ‖f_k‖² − ‖S‖²/N)", ("v4", "v13", "v14"), degree=2, constant=1),
        Score("std", "−√(Σ‖f_k‖² − ‖S‖²/N)", ("v5",), constant=1),
        Score("coordinate-std", "−mean_z √(Q − S²/N)", ("v1", "v6"), constant=1),
        Score("coordinate-variance", "−√Σ_z (Q − S²/N)²", ("v2",), degree=2, constant=1),
        Score("coordinate-energy", "−Σ_z √Q", ("v3",), constant=1),
        Score("coordinate-spread", "Σ_z (m − √N m + √Q)", ("v15",)),
        Score("coordinate-evenness", "Σ_z (m + √N m − √Q)", ("v16",)),
        Score("coordinate-sixth", "Σ_z (S/N − m⁶/2)", ("v17",), degree=None),
        Score(
            "cosine",
            "geometric mean over k of ⟨f_k[i], m̂[j]⟩",
            ("stable-v2",),
            degree=None,
            lines=False,
        ),
        Score("distance", "−mean_k ‖f_k[i] − m[j]‖", ("stable-v3",), lines=False),
        Score("pairwise", "⟨f_k[i], f_l[j]⟩ for every pair", ("v-1",), degree=2, lines=False),
        Score("anchor", "⟨f_0[i], c[j]⟩/2 and ⟨c[i], c[j]⟩/2", ("svc",), degree=2, lines=False),
    )
}
"""S = Σ_k f_k, Q = Σ_k f_k², m = Σ_k |f_k| / N by coordinate; m̂ the unit mean, c the mean of
all but the first modality."""

_BY_ALIAS = {alias: score for score in SCORES.values() for alias in score.published}


def find_score(name: str) -> Score:
    """The score of that name, or of that published number (`v11`, `stable-v2`)."""
    found = SCORES.get(name) or _BY_ALIAS.get(name)
    if found is None:
        if name == "v18":
            raise ValueError(
                "score 'v18' never worked: it computed 6^3, which is 5 in Python, and raised"
            )
        raise ValueError(
            f"no score is called {name!r}; there are {', '.join(map(repr, SCORES))}, "
            "and the published numbers such as 'v11' or 'stable-v2'"
        )
    return found


# The N-way contrastive loss.


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
    """The contrastive loss over N modalities of the same samples, exact at any batch size.

    `features` are N tensors (B, D); row i of each belongs to sample i. With the logits
    `scale * score(f_1[i_1], …, f_N[i_N])`, a tensor of B^N that is never created, the value is the
    mean over the N axes of the cross entropy along that axis at the hyper-diagonal, averaged
    (`reduction="mean"`) or summed ("sum") over the batch. It is computed in float32 for half
    precision, and returned so.

    score: "norm", "product", "leave-one-out", "variance", "std", "cosine", "distance" and others;
        or a published number, such as "v11". docs/nway.md says which to use.
    scale: the inverse temperature, a number or a tensor (see `Temperature`).
    normalize: whether rows are normalised to length one first. Zero rows stay zero.
    axes: "mean", or "first-plus-rest": the loss along axis 1 plus the mean of the others.
    rescale: whether the product of unit rows is multiplied by D^(N/2 − 1). Without it, as
        published, its gradient vanishes.
    block: how many rows to compute at once; chosen if None.
    gather: True or a process group: contrast with the rows of all ranks. For
        DistributedDataParallel, which takes the mean of the ranks' gradients.
    targets: soft targets of shape (B,)*N instead of the hyper-diagonal. Takes memory of B^N.
    mask: of shape (B,)*N. A boolean mask excludes tuples; any other is multiplied with the logits,
        as published, so that a zero still counts in the softmax. Takes memory of B^N.
    limit: the bytes that `targets` and `mask` may take before they are refused.
    fuse: whether kernels may do the work between the matrix products on a GPU. The first call
        compiles them, which takes seconds. Without Triton, plain torch does the same.
    """
    given = prepare.checked(features)
    chosen = find_score(score)
    if reduction not in ("mean", "sum"):
        raise ValueError(f"reduction must be 'mean' or 'sum', not {reduction!r}")
    if block is not None and block < 1:
        raise ValueError(f"block must be at least 1, not {block}")
    axis_weights(len(given), axes)  # raises for an unknown name
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
    """Limits of the scale, beyond which the logits would overflow."""
    most = torch.finfo(dtype).max ** 0.85
    return factor.clamp(-most, most)


def _operands(score: Score, given: list[Tensor], normalize: bool) -> torch.dtype | None:
    """Half operands for matrix products, if the features are halves and their sums stay small.

    A product of several coordinates leaves the range of fp16.
    """
    dtype = given[0].dtype
    if dtype not in HALF or not normalize or any(f.dtype != dtype for f in given):
        return None
    if score.name == "product" and dtype == torch.float16:
        return None
    return dtype if can_multiply_halves(given[0].device) else None


# The N-way contrastive loss as a module.


class NWayContrastive(nn.Module):
    """`nway_contrastive` as a module; `scale` may be a module such as `Temperature`.

        criterion = NWayContrastive(score="norm", scale=Temperature())
        loss = criterion([image, *captions])

    The options are those of the function.
    """

    def __init__(
        self, *, score: str = "norm", scale: float | nn.Module = 1 / 0.07, **options: Any
    ) -> None:
        super().__init__()
        self.score = find_score(score).name
        self.scale = scale
        self.options = options

    def forward(
        self, *features: Any, targets: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """The loss of a sequence of features, or of features passed one by one."""
        many = features[0] if len(features) == 1 else features
        scale = self.scale() if isinstance(self.scale, nn.Module) else self.scale
        return nway_contrastive(
            many, score=self.score, scale=scale, targets=targets, mask=mask, **self.options
        )

    def extra_repr(self) -> str:
        shown = {"score": self.score, **self.options}
        if not isinstance(self.scale, nn.Module):
            shown["scale"] = self.scale
        return ", ".join(f"{name}={value!r}" for name, value in shown.items())


# A learnable scale (inverse temperature) with a limit.


class _Within(torch.autograd.Function):
    """A clamp that beyond the limit passes only gradients that lead back.

    A plain clamp passes none, so a scale beyond the limit could never return.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, least: float, most: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.bounds = least, most
        return x.clamp(least, most)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        least, most = ctx.bounds
        # A step goes against the gradient.
        away = ((x > most) & (grad < 0)) | ((x < least) & (grad > 0))
        return grad.masked_fill(away, 0), None, None


class Temperature(nn.Module):
    """The scale exp(s) with a learnable s, never above `maximum` nor below `minimum`.

        temperature = Temperature()
        loss = nway_contrastive(features, scale=temperature())

    As in CLIP, it starts at 1/0.07 and is at most 100. Exclude `log_scale` from weight decay.
    """

    def __init__(
        self, initial: float = 1 / 0.07, *, maximum: float = 100.0, minimum: float = 1e-2
    ) -> None:
        super().__init__()
        if not 0 < minimum <= initial <= maximum < math.inf:
            raise ValueError(
                "0 < minimum <= initial <= maximum does not hold for "
                f"{minimum}, {initial}, {maximum}"
            )
        self.maximum, self.minimum = maximum, minimum
        self.log_scale = nn.Parameter(torch.tensor(math.log(initial)))

    def forward(self) -> Tensor:
        bounds = math.log(self.minimum), math.log(self.maximum)
        return apply_function(_Within, self.log_scale.float(), *bounds).exp()

    def extra_repr(self) -> str:
        return f"maximum={self.maximum}, minimum={self.minimum}"
