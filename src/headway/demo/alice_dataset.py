"""The first chapter of "Alice's Adventures in Wonderland" (Lewis Carroll, 1865), in batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files

import torch

PAD = 0
"""The id of padding; characters count from 1."""
LENGTH = 64
"""Characters in the longest sample."""
SHORTEST = 32


@dataclass(frozen=True)
class Batch:
    """Samples: the id of each character, and of the next one."""

    number: int
    text: torch.Tensor
    target: torch.Tensor


class Alice:
    """The text as batches; the same seed gives the same batches."""

    def __init__(self, batches: int, *, batch_size: int = 12, seed: int = 0) -> None:
        text = files("headway.demo").joinpath("alice.txt").read_text(encoding="utf-8")
        self.alphabet = sorted(set(text))
        ids = {character: number for number, character in enumerate(self.alphabet, start=1)}
        self._text = torch.tensor([ids[character] for character in text])
        self._batches = batches
        self._size = batch_size
        self._seed = seed

    def __len__(self) -> int:
        return self._batches

    def __iter__(self) -> Iterator[Batch]:
        return (self.batch(number) for number in range(self._batches))

    def batch(self, number: int) -> Batch:
        """One batch: samples of different lengths, filled up with padding."""
        chance = torch.Generator().manual_seed(self._seed * 100_003 + number)
        starts = torch.randint(len(self._text) - LENGTH - 1, (self._size,), generator=chance)
        lengths = torch.randint(SHORTEST, LENGTH + 1, (self._size,), generator=chance)
        places = starts[:, None] + torch.arange(LENGTH)
        real = torch.arange(LENGTH) < lengths[:, None]
        text = torch.where(real, self._text[places], PAD)
        return Batch(number, text, torch.where(real, self._text[places + 1], PAD))


class AliceWithABlankLine(Alice):
    """The same batches, but one contains an empty sample.

    Together with the planted fault in the loss it gives NaN; the data itself is finite.
    """

    def __init__(self, batches: int, *, blank_in: int, blank_sample: int = 5) -> None:
        super().__init__(batches)
        self._blank_in = blank_in
        self._blank_sample = blank_sample

    def batch(self, number: int) -> Batch:
        batch = super().batch(number)
        if number == self._blank_in:
            batch.text[self._blank_sample] = PAD
            batch.target[self._blank_sample] = PAD
        return batch
