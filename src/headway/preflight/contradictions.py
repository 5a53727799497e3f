"""Whether one and the same input comes with different labels."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor

MOST_INPUTS = 20_000
MOST_ROWS = 512
MOST_BYTES = 1 << 14
"""Of one sample, so that large ones are known by their beginning and never looked at for long."""


class Contradictions:
    """Remembers inputs by their hashes, with the labels they came with."""

    def __init__(self) -> None:
        self._labels: dict[bytes, int] = {}
        self._differing: set[bytes] = set()

    def take(self, inputs: list[Tensor], labels: Tensor) -> None:
        """A batch: everything the model was given, and the labels."""
        rows = labels.numel()
        if not inputs or rows > MOST_ROWS or len(self._labels) > MOST_INPUTS:
            return
        if not all(item.ndim and item.shape[0] == rows and item.is_cpu for item in inputs):
            return
        if any(item.layout is not torch.strided or not item.numel() for item in inputs):
            return
        if not any(_continuous(item) for item in inputs):
            return
        # As bytes: numpy does not know every dtype.
        flat = [item.detach().reshape(rows, -1).contiguous() for item in inputs]
        arrays = [item.view(torch.uint8).numpy() for item in flat]
        if sum(array[0].nbytes for array in arrays) > MOST_BYTES:
            return
        for row, label in enumerate(labels.tolist()):
            digest = blake2b(digest_size=12)
            for array in arrays:
                digest.update(array[row].tobytes())
            self._note(digest.digest(), int(label))

    def _note(self, key: bytes, label: int) -> None:
        before = self._labels.setdefault(key, label)
        if before != label:
            self._differing.add(key)

    def facts(self) -> dict[str, Any]:
        """How many inputs there were, and how many of them had several labels."""
        if not self._labels:
            return {}
        return {"inputs": len(self._labels), "contradictory": len(self._differing)}


def _continuous(item: Tensor) -> bool:
    """Whether these are measurements: whole numbers may well be the same by chance."""
    if not item.is_floating_point() or item[0].numel() < 2:
        return False
    return not bool((item == item.round()).all())
