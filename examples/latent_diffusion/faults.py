"""The injected faults: a batch that contains an infinity, and later a flipped bit in a weight."""

from __future__ import annotations

import torch
from parts import Batch
from torch import nn

BATCH, SAMPLE, WEIGHT = 92, 5, 190
"""The step of the bad batch, the sample in it, and the step before which the bit flips."""

FLIPPED = "blocks.layers.0.norm1.weight"

met = set()


def poison(batch: Batch, step: int) -> Batch:
    """One element of a latent is infinite, as after an overflow in the encoder."""
    if step == BATCH:
        batch[1][SAMPLE, 7] = torch.inf
    return batch


def flip_a_bit(model: nn.Module, step: int) -> None:
    """A memory fault: flips the highest exponent bit, which turns a number like 1.02 into NaN."""
    if step == WEIGHT and step not in met:
        met.add(step)  # a bit flips once, whatever the training does next
        weight = dict(model.named_parameters())[FLIPPED].detach()
        weight.view(torch.int32)[3] ^= 1 << 30
