"""What an op's schema says about how numbers flow through it, read once per op."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from headway.replay.op_names import bare, names

# Their results do not depend on the numbers in the tensors they are given.
_SHAPE_ONLY = names(
    "empty empty_like empty_strided empty_permuted empty_quantized new_empty "
    "new_empty_strided zeros zeros_like new_zeros ones ones_like new_ones full full_like "
    "new_full scalar_tensor rand rand_like randn randn_like randint randint_like arange "
    "linspace eye"
)
_UNINITIALISED = names("empty empty_like empty_strided empty_permuted new_empty new_empty_strided")
# In-place ops that leave nothing of what was there.
_OVERWRITES = names(
    "copy fill zero normal uniform random exponential bernoulli cauchy geometric "
    "log_normal foreach_copy foreach_zero"
)
_COLLECTIVE = frozenset(("c10d", "c10d_functional", "_c10d_functional"))
# Views that do not say so.
_SHARES_MEMORY = names(
    "unsafe_view reshape_alias unsafe_split unsafe_split_with_sizes unsafe_chunk"
)
_CHOOSES = names("where masked_fill nan_to_num masked_scatter")
# `lift_fresh` is how `torch.tensor(…)` comes into being.
_CONSTANT = names("lift_fresh full full_like new_full scalar_tensor")


@dataclass(frozen=True, slots=True)
class OpFacts:
    """How an op treats its arguments."""

    aten: str
    """The name in `BadCall`: without overload, leading underscore and in-place underscore."""
    arguments: tuple[str, ...] = ()
    mutated: frozenset[str] = frozenset()
    """Arguments that it changes."""
    overwrites: bool = False
    """Nothing of what they held is left."""
    view: bool = False
    """Only hands on memory that is there already."""
    shape_only: bool = False
    constant: bool = False
    """Makes a tensor of what is written in the code."""
    uninitialised: bool = False
    chooses: bool = False
    """Leaves out some of what it is given."""
    pointwise: bool = False
    """Every element of the result is made of those at its own place."""
    collective: bool = False
    """What it writes may come from another rank, and later."""


_known: dict[Any, OpFacts] = {}


def facts_of(func: Any) -> OpFacts:
    """The facts of an op as it is dispatched."""
    found = _known.get(func)
    if found is None:
        found = _known[func] = _read(func)
    return found


def _read(func: Any) -> OpFacts:
    schema = getattr(func, "_schema", None)
    if schema is None:  # a higher-order op: what it does inside is its own affair
        return OpFacts(bare(str(getattr(func, "__name__", func))))
    namespace, _, name = schema.name.rpartition("::")
    aten = bare(name)
    mutated = frozenset(
        argument.name
        for argument in schema.arguments
        if argument.alias_info is not None and argument.alias_info.is_write
    )
    aliased = [given.alias_info is not None for given in schema.returns]
    is_out = "out" in mutated or any(
        argument.name in mutated and getattr(argument, "is_out", False)
        for argument in schema.arguments
    )
    return OpFacts(
        aten=aten,
        arguments=tuple(argument.name for argument in schema.arguments),
        mutated=mutated,
        overwrites=is_out or (bool(mutated) and aten in _OVERWRITES),
        view=not mutated and (any(aliased) or aten in _SHARES_MEMORY) and aten not in _CONSTANT,
        shape_only=aten in _SHAPE_ONLY or aten in _CONSTANT,
        constant=aten in _CONSTANT,
        uninitialised=aten in _UNINITIALISED,
        chooses=aten in _CHOOSES,
        pointwise=torch.Tag.pointwise in func.tags,
        collective=namespace in _COLLECTIVE,
    )
