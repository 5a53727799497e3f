"""Inputs with some samples exchanged, and what that changed in a tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from headway.torch_tools.nested import map_tensors, tensors_in

NOISE = 1e-4
"""Of the change in the samples that were exchanged: what others change by rounding."""

State = Literal["same", "apart", "mixed", "elsewhere"]
"""Of a tensor after samples were exchanged: nothing changed; only those samples did; others did,
too; no axis counts the samples."""


class Exchange(NamedTuple):
    """Samples that take the place of others along an axis."""

    axis: int
    size: int
    rows: tuple[int, ...]
    """The places that hold another sample."""
    order: tuple[int, ...]
    """Which sample stands at each place."""

    @classmethod
    def of_ends(cls, axis: int, size: int) -> Exchange:
        """The first and the last become copies of one in the middle."""
        rows = (0, size - 1) if size >= 4 else (0,)
        order = [size // 2 if at in rows else at for at in range(size)]
        return cls(axis, size, rows, tuple(order))

    @classmethod
    def of_all(cls, axis: int, size: int) -> Exchange:
        """Every place holds its neighbour's."""
        return cls(axis, size, tuple(range(size)), tuple((at + 1) % size for at in range(size)))

    def fits(self, tensor: Tensor) -> bool:
        return tensor.ndim > self.axis and tensor.shape[self.axis] == self.size

    def made(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        """The inputs with the exchange made in every tensor that has the axis."""

        def change(tensor: Tensor) -> Tensor:
            plain = tensor.detach()
            if not self.fits(plain):
                return plain.clone()
            return plain.index_select(self.axis, torch.tensor(self.order, device=plain.device))

        changed = map_tensors([list(args), dict(kwargs)], change)
        return changed[0], changed[1]

    def changes(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether it changes the inputs at all."""
        pairs = zip(
            tensors_in([list(args), dict(kwargs)]),
            tensors_in(list(self.made(args, kwargs))),
            strict=True,
        )
        return any(not torch.equal(one.detach(), other) for (_, one), (_, other) in pairs)

    def state(self, before: Tensor, after: Tensor, axes: Sequence[int] | None = None) -> State:
        """How a result differs; `axes`: those that may count the samples, unset: any."""
        if before.shape != after.shape:
            return "elsewhere"
        change = (
            (after.double() - before.double()).abs()
            if before.dtype != torch.bool
            else (after ^ before).double()
        )
        change = change.nan_to_num(0.0, 0.0, 0.0)
        own = float(change.max()) if change.numel() else 0.0
        if own == 0.0:
            return "same"
        own_axes = [at for at, size in enumerate(before.shape) if size == self.size]
        possible = own_axes if axes is None else [at for at in own_axes if at in axes]
        if not possible:
            return "elsewhere"
        others = torch.tensor(
            [at for at in range(self.size) if at not in self.rows], dtype=torch.long
        )
        rest = change
        for axis in own_axes:  # a table of all pairs has two
            rest = rest.index_select(axis, others.to(rest.device))
        if rest.numel() == 0 or float(rest.max()) <= NOISE * own:
            return "apart"
        return "mixed"


def plain_copy(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The inputs, cut off from the graph and from the script's own tensors."""
    copied = map_tensors([list(args), dict(kwargs)], lambda tensor: tensor.detach().clone())
    return copied[0], copied[1]
