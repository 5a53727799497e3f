"""Measures gradients before a step: norms, zeros, whether they are fresh, and what the user's
clipping did to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat, zip_longest
from operator import attrgetter, is_
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from headway.torch_adapters.compat import tensor_version
from headway.torch_adapters.process_groups.sharded_tensors import (
    gradient_of,
    is_dtensor,
    local_part,
)
from headway.torch_adapters.tensor_values import dense_values

_HALF = (torch.float16, torch.bfloat16)


@dataclass(slots=True)
class GradientNorms:
    """Norms of gradients, on the device where they were computed."""

    each: Tensor
    """One per gradient, in the order given."""
    total: Tensor
    """The norm of all of them as one vector, 0-dimensional."""


class GradientPlan:
    """Caches whether a list of gradients has one layout, device and dtype.

    Reading them from hundreds of tensors costs the host more than the norms themselves, and the
    answer is the same at every step.
    """

    def __init__(self) -> None:
        self.key: tuple[int, ...] = ()
        self.uniform = False
        self.cut_up = False
        """Whether some are DTensors, of which this rank holds a part."""

    def update(self, parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        """Read them again if the parameters are not those of the last step."""
        key = tuple(map(id, parameters))
        if key != self.key:
            self.key = key
            self.cut_up = any(map(is_dtensor, gradients))
            gradients = [local_part(gradient) for gradient in gradients]
            self.uniform = all(
                gradient.layout is torch.strided
                and gradient.device == gradients[0].device
                and gradient.dtype == gradients[0].dtype
                for gradient in gradients
            )

    def forget_layout(self) -> None:
        """Called if the gradients differ from the expected layout."""
        self.key, self.uniform = (), False


def measure_norms(
    gradients: list[Tensor], *, uniform: bool = False, each: Sequence[Tensor] | None = None
) -> GradientNorms:
    """The norms of gradients; `each`: the single norms, if they are known.

    For ordinary float32 gradients these are the operations of `clip_grad_norm_`, so that clipping
    by `max_norm=` gives the same bits. Half-precision gradients are summed in float32: their own
    norm would overflow or round away.
    """
    if each is not None:
        norms = list(each)
    elif not gradients:
        norms = [torch.zeros(())]
    elif uniform:
        norms = _foreach_norm(gradients)
    else:
        norms = to_one_device(_single_norms(gradients))
    stacked = torch.stack(norms)
    return GradientNorms(stacked, torch.linalg.vector_norm(stacked, 2.0))


def to_one_device(norms: list[Tensor]) -> list[Tensor]:
    """The norms on one device and in one dtype."""
    device, dtype = norms[0].device, norms[0].dtype
    if all(norm.device == device and norm.dtype == dtype for norm in norms):
        return norms
    return [norm.to(device=device, dtype=torch.float32) for norm in norms]


def _single_norms(gradients: list[Tensor]) -> list[Tensor]:
    values = [dense_values(gradient) for gradient in gradients]
    by_kind: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for position, gradient in enumerate(values):
        by_kind.setdefault((gradient.device, gradient.dtype), []).append(position)
    norms: list[Tensor] = list(values)
    for positions in by_kind.values():
        found = _foreach_norm([values[at] for at in positions])
        for position, norm in zip(positions, found, strict=True):
            norms[position] = norm
    return norms


def _foreach_norm(gradients: list[Tensor]) -> list[Tensor]:
    if gradients[0].dtype in _HALF:
        return list(torch._foreach_norm(gradients, 2.0, dtype=torch.float32))
    return list(torch._foreach_norm(gradients, 2.0))


def collect_gradients(optimizer: Optimizer) -> tuple[list[Tensor], list[Tensor]]:
    """The parameters of an optimizer that have a gradient, and the gradients."""
    groups = optimizer.param_groups
    parameters = [*groups[0]["params"]] if len(groups) == 1 else _all_parameters(groups)
    gradients = [*map(_GRADIENT, parameters)]
    if any(map(is_, gradients, repeat(None))):
        parameters = [p for p, g in zip(parameters, gradients, strict=True) if g is not None]
        gradients = [gradient for gradient in gradients if gradient is not None]
    return parameters, gradients


_GRADIENT: Callable[[Tensor], Any] = attrgetter("grad")
"""Runs at every step for hundreds of tensors, so it executes no Python code per tensor."""


def _all_parameters(groups: Iterable[Mapping[str, Any]]) -> list[Tensor]:
    return [parameter for group in groups for parameter in group["params"]]


def scale_gradients(gradients: list[Tensor], coefficient: Tensor, *, uniform: bool) -> None:
    """Scale gradients in place, as `clip_grad_norm_` does."""
    if uniform:
        torch._foreach_mul_(gradients, coefficient)
    else:
        for gradient in gradients:
            gradient.mul_(coefficient.to(gradient.device))


def measure_zero_shares(gradients: Sequence[Tensor]) -> Tensor:
    """The share of elements that are exactly zero, per gradient (of the rows a sparse one has)."""
    stored = [
        values.abs() if values.is_complex() else values.float()
        for values in (dense_values(gradient) for gradient in gradients)
    ]
    nonzero = torch.stack(to_one_device(list(torch._foreach_norm(stored, 0.0))))
    counts = torch.tensor([max(values.numel(), 1) for values in stored], dtype=torch.float32)
    return 1.0 - nonzero / counts.to(nonzero.device, non_blocking=True)


# The user's clipping comes before the optimizer's hook, hides the true norm and spreads one NaN
# over all gradients. It takes any form: the parameters in another order than the optimizer's, some
# of them, several calls.


@dataclass(slots=True)
class ClipRecord:
    """One clipping: the norms before it, and the gradients after it."""

    parameters: Sequence[Tensor]
    norms: GradientNorms
    scale: Tensor | None
    """The loss scale the gradients still carried."""
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    """Version counters: a gradient with another one was changed since the clipping."""
    coefficient: Tensor | None = None
    """The factor on all of them."""
    factors: Tensor | None = None
    """The factor on each, where they differ."""
    total: Tensor | None = None
    """The norm that the clipping used."""


class ClipTracker:
    """The clippings of one optimizer's gradients since the last backward pass."""

    def __init__(self) -> None:
        self._notes: list[ClipRecord] = []
        self._open: ClipRecord | None = None

    def begin(
        self, parameters: Sequence[Tensor], norms: Sequence[Tensor] | None, scale: Tensor | None
    ) -> None:
        """These gradients are about to be clipped; `norms`: theirs, if they are known."""
        gradients = [p.grad for p in parameters if p.grad is not None]
        self._open = ClipRecord(
            parameters, measure_norms(gradients, each=norms), scale, before=_versions(parameters)
        )

    def end(self, total: Tensor, max_norm: float) -> None:
        """These gradients were clipped, from this norm to that limit."""
        note, self._open = self._open, None
        if note is not None:
            note.total = total.detach()
            note.coefficient = torch.clamp(max_norm / (note.total + 1e-6), max=1.0)
            note.after = _versions(note.parameters)
            self._notes.append(note)

    def forget(self) -> None:
        """The gradients are new."""
        self._notes, self._open = [], None

    def recall(self, parameters: Sequence[Tensor], scale: Tensor | None) -> ClipRecord | None:
        """One record of exactly these parameters, in its own order; None: not clipped.

        `scale` is the loss scale that gradients still carry if they were not clipped.
        """
        if not self._notes:
            return None
        note = self._notes[0]
        if len(self._notes) == 1 and _same(note.parameters, parameters):
            if note.after == _versions(note.parameters):
                return note
            return None
        return self._piece_together(parameters, scale)

    def _piece_together(
        self, parameters: Sequence[Tensor], scale: Tensor | None
    ) -> ClipRecord | None:
        known: dict[int, _UnclippedGradient] = {}
        for note in self._notes:
            assert note.coefficient is not None
            for at, parameter in enumerate(note.parameters):
                past = known.get(id(parameter))
                if past is not None and past.version == note.before[at]:
                    past.version = note.after[at]  # clipped again: the first norm is the true one
                    past.coefficient = past.coefficient * note.coefficient
                else:
                    norm = note.norms.each[at]
                    norm = norm if note.scale is None else norm / note.scale
                    known[id(parameter)] = _UnclippedGradient(
                        norm, note.coefficient, note.after[at]
                    )
        valid = [_valid(known.get(id(p)), p) for p in parameters]
        if not any(valid):
            return None
        each, coefficients = [], []
        for parameter, past in zip(parameters, valid, strict=True):
            if past is None:
                assert parameter.grad is not None
                norm = measure_norms([parameter.grad]).total
                past = _UnclippedGradient(
                    norm if scale is None else norm / scale, torch.ones_like(norm), 0
                )
            each.append(past.norm.float())
            coefficients.append(past.coefficient.to(past.norm.device, torch.float32))
        device = each[0].device
        norms = measure_norms([], each=[norm.to(device) for norm in each])
        factors = torch.stack([factor.to(device) for factor in coefficients])
        overall = torch.linalg.vector_norm(norms.each * factors) / norms.total
        overall = torch.where(norms.total > 0, overall, 1.0)
        return ClipRecord(parameters, norms, None, coefficient=overall, factors=factors)


@dataclass(slots=True)
class _UnclippedGradient:
    """One gradient before it was first clipped, and the factor it was multiplied by since."""

    norm: Tensor
    coefficient: Tensor
    version: int


def _valid(past: _UnclippedGradient | None, parameter: Tensor) -> _UnclippedGradient | None:
    gradient = parameter.grad
    return (
        past
        if past is not None and gradient is not None and past.version == tensor_version(gradient)
        else None
    )


def _same(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    """The same parameters, in any order."""
    if len(some) != len(others):
        return False
    if all(one is other for one, other in zip(some, others, strict=True)):
        return True
    return set(map(id, some)) == set(map(id, others))


def _versions(parameters: Sequence[Tensor]) -> tuple[int, ...]:
    return tuple([-1 if (grad := p.grad) is None else tensor_version(grad) for p in parameters])


# A few parameters of an optimizer serve as tokens. The identity and the version counter of a
# token's gradient change when a backward adds to it, when `zero_grad` zeroes it and when it is set
# to None: no number has to be read from the device.

GradientStamp = tuple[tuple[int, int] | int | None, ...]
"""Identity and version of each gradient, None where there is none; all identities and then all
versions, if there are all."""


MAX_TOKENS = 12
"""Enough for a few parts that are trained alternately."""


class GradientFreshness:
    """Detects whether gradients were cleared, and whether a backward pass has reached them.

    Looks at the first, the middle and the last parameter of the last steps.
    """

    def __init__(self, parameters: Sequence[Tensor] = ()) -> None:
        # The first step shows which of them get gradients; until then all are tokens.
        self._tokens = list(parameters)
        self._plain = not any(map(is_dtensor, self._tokens))
        self._last: GradientStamp = self._stamp()
        self._before: GradientStamp = ()
        self.cleared = True
        """Whether the gradients were cleared since the last step."""
        self.filled = False
        """Whether a backward has added to them since the last step."""

    def choose(self, parameters: Sequence[Tensor]) -> None:
        """Choose tokens among the parameters with a gradient; some of the earlier ones stay."""
        count, tokens = len(parameters), self._tokens
        if (
            count >= 3 <= len(tokens)
            and tokens[0] is parameters[0]
            and tokens[1] is parameters[count // 2]
            and tokens[2] is parameters[-1]
        ):
            return  # at almost every step
        chosen = [parameters[at] for at in sorted({0, count // 2, count - 1})]
        if any(new is not old for new, old in zip_longest(chosen, self._tokens[: len(chosen)])):
            known = set(map(id, chosen))
            chosen += [token for token in self._tokens if id(token) not in known]
            self._tokens = chosen[:MAX_TOKENS]
            self._plain = not any(map(is_dtensor, self._tokens))

    def backward_begins(self) -> bool:
        """True if the gradients were cleared since the last call: earlier losses do not count."""
        self._before = self._stamp()
        fresh = self._before != self._last or not any(self._before)
        self.cleared = self.cleared or fresh
        return fresh

    def backward_ended(self) -> bool:
        """True when the backward added to these gradients."""
        self._last = self._stamp()
        reached = not self._tokens or self._last != self._before
        self.filled = self.filled or reached
        return reached

    def look(self) -> None:
        """The gradients were changed, but not cleared."""
        self._last = self._stamp()

    def stepped(self) -> None:
        """A step was made; the gradients are used."""
        self._last = self._stamp()
        self.cleared = self.filled = False

    def _stamp(self) -> GradientStamp:
        if self._plain:  # at every backward pass and step: no call per gradient
            gradients = [*map(_GRADIENT, self._tokens)]
            missing = sum(map(is_, gradients, repeat(None)))
            if not missing:
                return (*map(id, gradients), *map(tensor_version, gradients))
            if missing == len(gradients):
                return (None,) * missing
            return tuple([None if g is None else (id(g), tensor_version(g)) for g in gradients])
        stamps: list[tuple[int, int] | None] = []
        for token in self._tokens:
            gradient = gradient_of(token)
            stamps.append(
                None if gradient is None else (id(gradient), tensor_version(local_part(gradient)))
            )
        return tuple(stamps)
