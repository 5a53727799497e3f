"""What the gradients were before the user clipped them.

Clipping comes before the optimizer's hook, hides the true norm and spreads one NaN over all
gradients. It may come in any form: the parameters in another order than the optimizer's, a part of
them, several calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headway.live.probes import Norms, measure


@dataclass(slots=True)
class ClipNote:
    """What was seen at one clipping: the norms before, and how the gradients were left."""

    parameters: Sequence[Tensor]
    norms: Norms
    scale: Tensor | None
    """The loss scale the gradients still carried."""
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    """Version counters: a gradient that has another one by now was changed by somebody else."""
    coefficient: Tensor | None = None
    """What all of them together were multiplied by."""
    factors: Tensor | None = None
    """What each was, where not all were multiplied by the same."""
    total: Tensor | None = None
    """The norm that the clipping went by."""


class Clips:
    """The clippings of one optimizer's gradients since they were last filled."""

    def __init__(self) -> None:
        self._notes: list[ClipNote] = []
        self._open: ClipNote | None = None

    def begin(
        self, parameters: Sequence[Tensor], norms: Sequence[Tensor] | None, scale: Tensor | None
    ) -> None:
        """These gradients are about to be clipped; `norms` where somebody has them already."""
        gradients = [p.grad for p in parameters if p.grad is not None]
        self._open = ClipNote(
            parameters, measure(gradients, each=norms), scale, before=_versions(parameters)
        )

    def end(self, total: Tensor, max_norm: float) -> None:
        """They were, by this norm to that limit."""
        note, self._open = self._open, None
        if note is not None:
            note.total = total.detach()
            note.coefficient = torch.clamp(max_norm / (note.total + 1e-6), max=1.0)
            note.after = _versions(note.parameters)
            self._notes.append(note)

    def forget(self) -> None:
        """The gradients are others now."""
        self._notes, self._open = [], None

    def recall(self, parameters: Sequence[Tensor], scale: Tensor | None) -> ClipNote | None:
        """One note about exactly these parameters, in an order of its own; None: nobody clipped.

        `scale` is what gradients that were not clipped still carry.
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
    ) -> ClipNote | None:
        known: dict[int, _Past] = {}
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
                    known[id(parameter)] = _Past(norm, note.coefficient, note.after[at])
        valid = [_valid(known.get(id(p)), p) for p in parameters]
        if not any(valid):
            return None
        each, coefficients = [], []
        for parameter, past in zip(parameters, valid, strict=True):
            if past is None:
                assert parameter.grad is not None
                norm = measure([parameter.grad]).total
                past = _Past(norm if scale is None else norm / scale, torch.ones_like(norm), 0)
            each.append(past.norm.float())
            coefficients.append(past.coefficient.to(past.norm.device, torch.float32))
        device = each[0].device
        norms = measure([], each=[norm.to(device) for norm in each])
        factors = torch.stack([factor.to(device) for factor in coefficients])
        overall = torch.linalg.vector_norm(norms.each * factors) / norms.total
        overall = torch.where(norms.total > 0, overall, 1.0)
        return ClipNote(parameters, norms, None, coefficient=overall, factors=factors)


@dataclass(slots=True)
class _Past:
    """One gradient before it was first clipped, and the factor it was multiplied by since."""

    norm: Tensor
    coefficient: Tensor
    version: int


def _valid(past: _Past | None, parameter: Tensor) -> _Past | None:
    gradient = parameter.grad
    return (
        past
        if past is not None and gradient is not None and past.version == gradient._version
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
    return tuple([-1 if p.grad is None else p.grad._version for p in parameters])
