"""Which elements did it, where the bad output cannot tell: it is a sum over all of them, or holds
infinities that are meant."""

from __future__ import annotations

import torch
from torch import Tensor

from holdfast.replay.births.calls import BadCall
from holdfast.replay.births.numbers import how_many
from holdfast.replay.births.spread import masked_labels


def culprits(call: BadCall) -> Tensor | None:
    """A mask of the guilty, shaped like the output or an argument; None where nothing is to be
    added to what the output shows."""
    if call.op.startswith("nll_loss"):
        masked = masked_labels(call)
        return masked if how_many(masked) else None
    lost = torch.isnan(call.output)
    if how_many(lost) and how_many(torch.isinf(call.output)):
        return lost
    return None
