"""Whether half precision took part in a birth, and which."""

from __future__ import annotations

import torch

from headway.replay.explanation import Birth

HALVES = (torch.float16, torch.bfloat16)


def dtypes_of(birth: Birth) -> set[str]:
    """The dtypes of its operands, and the one autocast was casting to."""
    operands = [*birth.inputs, *([] if birth.output is None else [birth.output])]
    names = [operand.dtype for operand in operands] + [birth.autocast or ""]
    return {name.removeprefix("torch.") for name in names} - {""}


def half_in_play(birth: Birth) -> bool:
    return not dtypes_of(birth).isdisjoint({"float16", "bfloat16"})


def float16_in_play(birth: Birth) -> bool:
    return "float16" in dtypes_of(birth)
