"""Which of an optimizer's gradients are whole on every rank and which are pieces.

The norm over all ranks counts a replica once and adds up the squares of the pieces, each divided by
the number of ranks that hold the same one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor


class Layout:
    """A list of gradients: where each has its place among the sums of squares."""

    def __init__(
        self,
        parameters: Sequence[Tensor],
        copies: Mapping[int, int],
        tail: Mapping[int, int],
        size: int,
        device: torch.device,
    ) -> None:
        """`copies` and `tail` (the place of a parameter that is cut up) go by identity."""
        held = [copies.get(id(p), size) for p in parameters]
        whole = [at for at, count in enumerate(held) if count == size]
        pieces = [at for at, count in enumerate(held) if count < size]
        self._whole = _index(whole, device)
        self._pieces = _index(pieces, device)
        self._shares = torch.tensor([1.0 / held[at] for at in pieces]).to(device, non_blocking=True)
        placed = [at for at in pieces if id(parameters[at]) in tail]
        self._placed = _index(placed, device)
        self._places = _index([tail[id(parameters[at])] for at in placed], device)
        self._any_pieces, self._any_placed = bool(pieces), bool(placed)

    def split(self, each: Tensor | None, total: Tensor) -> tuple[Tensor, Tensor]:
        """(norm of the replicas, norm of this rank's share of the pieces)."""
        if each is None or not self._any_pieces:
            return total, torch.zeros_like(total)
        plain = torch.linalg.vector_norm(each[self._whole])
        return plain, torch.linalg.vector_norm(each[self._pieces] * self._shares.sqrt())

    def write(self, sums: Tensor, each: Tensor | None) -> None:
        """Put this rank's share of the squares into their places."""
        if each is not None and self._any_placed:
            shares = torch.zeros_like(each)
            shares[self._pieces] = self._shares
            sums[self._places] = (each.square() * shares)[self._placed]

    def read(self, sums: Tensor, each: Tensor) -> Tensor:
        """Every gradient's norm over all ranks, where it is known."""
        if not self._any_placed:
            return each
        norms = each.clone()
        norms[self._placed] = sums[self._places].sqrt()
        return norms


def _index(positions: Sequence[int], device: torch.device) -> Tensor:
    return torch.tensor(positions, dtype=torch.int64).to(device, non_blocking=True)
