"""Where the bad numbers that an op was given come from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from headway.replay import births, deliberate
from headway.replay.calls import Call, Leaf, Source, Trouble
from headway.replay.finiteness import NAN, flags, plain
from headway.replay.op_facts import OpFacts
from headway.replay.operands import Owners, describe, tensor_arguments
from headway.replay.samples import Samples
from headway.replay.writes import Write, Writes, address

_CHOOSES = frozenset(("where", "masked_fill"))
MOST_DIGESTED = 1 << 26
"""Bytes; more would take too long."""


def digest(tensor: Tensor) -> int | None:
    """Of all the memory a tensor lies in: tells whether somebody has written there meanwhile."""
    if tensor.untyped_storage().nbytes() > MOST_DIGESTED:
        return None
    whole = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    whole.set_(tensor.untyped_storage())
    return int(whole.sum(dtype=torch.int64))


@dataclass(slots=True)
class Given:
    """The arguments of a call, as they were before it."""

    func: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    originals: Mapping[int, Tensor] = field(default_factory=dict)
    """Of copies (by identity) of what the op has changed: the tensors themselves."""
    handed_over: Trouble | None = None
    """What was bad of that which a collective op gave to the other ranks."""


class Sources:
    """Knows who wrote the memory of every tensor, and whose it was before."""

    def __init__(
        self,
        calls: Sequence[Call],
        writes: Writes,
        owners: Owners,
        samples: Sequence[Samples],
    ) -> None:
        self._calls = calls
        self._writes = writes
        self._owners = owners
        self._samples = samples
        self._leaves: dict[int, Leaf] = {}

    def of_call(
        self, call: Call, given: Given, arguments: Sequence[tuple[str, Tensor]]
    ) -> Iterator[Source]:
        """The inputs of a call that were bad, and where each comes from."""
        facts = call.facts
        if facts.shape_only:
            return
        ignored = facts.mutated if facts.overwrites else frozenset[str]()
        if "batch_norm" in facts.aten and _training(call, given):
            ignored |= {"running_mean", "running_var"}
        masks = {name: tensor for name, tensor in arguments if tensor.dtype == torch.bool}
        for name, argument in arguments:
            tensor = plain(argument)
            if tensor is None or name in ignored:
                continue
            found = flags(tensor)
            if found and facts.aten in _CHOOSES:
                found = flags(_chosen(facts.aten, name, tensor, masks))
            if found:
                source = self.of(name, tensor, found, given.originals.get(id(argument)))
                yield self._exchanged(call, arguments, source) or source

    def of(self, name: str, tensor: Tensor, found: int, memory: Tensor | None = None) -> Source:
        """Where the bad numbers of a plain tensor come from; `memory`: where they were, if it is
        a copy."""
        memory = tensor if memory is None else memory
        writes = self._writes.into(memory)
        bad = tuple(write.order for write in writes if write.flags)
        if bad:
            meant = all(self._deliberate(order) for order in bad)
            return Source(name, found, writers=bad, deliberate=meant and not found & NAN)
        if self._writes.shared(memory):
            return Source(name, found)  # another rank's
        leaf = self._leaf(name, tensor, found, memory, writes)
        return Source(name, found, leaf=leaf, deliberate=leaf.deliberate)

    def handed_over(self, given: Given, facts: OpFacts) -> Trouble | None:
        """What a collective op is about to hand to the other ranks; None if all is well."""
        sources = tuple(
            self.of(name, tensor, found)
            for name, argument in tensor_arguments(facts, given.args, given.kwargs)
            if not name.startswith("output")
            and (tensor := plain(argument)) is not None
            and (found := flags(tensor))
        )
        all_flags = 0
        for source in sources:
            all_flags |= source.flags
        meant = not all_flags & NAN and all(source.deliberate for source in sources)
        return Trouble(all_flags, sources, deliberate=meant) if sources else None

    def owner(self, tensor: Tensor, name: str) -> tuple[str, str]:
        """(role, name) of a plain tensor."""
        return self._owners.of(tensor) or (self._role(tensor), name)

    def original(self, tensor: Tensor) -> tuple[str, tuple[int, ...]] | None:
        """(name, samples) of what a bad tensor was copied from, if that is the batch's."""
        name = self._owners.original(tensor)
        return None if name is None else (name, self._sample_of_leaf(tensor))

    def owned(self, tensor: Tensor) -> bool:
        return self._owners.of(tensor) is not None

    def _role(self, tensor: Tensor) -> str:
        writes = self._writes.into(tensor)
        if not writes:
            return "carried"
        maker = self._calls[writes[0].order].facts
        if maker.uninitialised:
            return "uninitialised"
        return "constant" if maker.constant else "computed"

    def is_whole(self, argument: Tensor) -> bool:
        """Whether it is the batch's, a buffer's or made of whole numbers: where gradients are off
        nothing requires one, so that says nothing."""
        tensor = plain(argument)
        if tensor is None or self._owners.of(tensor) is not None:
            return True
        writes = self._writes.into(tensor)
        return bool(writes) and self._calls[writes[0].order].of_whole_numbers

    def _exchanged(
        self, call: Call, arguments: Sequence[tuple[str, Tensor]], source: Source
    ) -> Source | None:
        """Gloo ends some collectives by a copy out of memory of its own: what it brings is that of
        the ranks."""
        if call.facts.aten != "copy" or source.writers or _is_somebodys(source.leaf):
            return None
        target = plain(arguments[0][1])
        if target is None or not self._writes.shared(target):
            return None
        return self.of(source.name, target, source.flags)

    def _deliberate(self, order: int) -> bool:
        trouble = self._calls[order].trouble
        return trouble is not None and trouble.deliberate

    def _leaf(
        self, name: str, tensor: Tensor, found: int, memory: Tensor, writes: Sequence[Write]
    ) -> Leaf:
        maker = self._calls[writes[-1].order] if writes else None
        key = address(memory)
        known = self._leaves.get(key)
        if known is not None and known.maker is maker:
            return known
        role, path = self._owners.of(memory) or ("carried", name)
        unseen = False
        if role == "carried" and maker is not None:
            changed = len(writes) == 1 and maker.digest not in (None, digest(memory))
            unseen = changed or not maker.facts.uninitialised
            role = "computed" if unseen else "uninitialised"
        operand = describe(tensor, path, role)
        meant = deliberate.is_leaf_mask(tensor, found, role)
        leaf = Leaf(operand, births.explain_leaf(operand), (), meant, maker, unseen)
        if role == "batch":
            leaf.rows = self._sample_of_leaf(tensor)
        self._leaves[key] = leaf
        return leaf

    def _sample_of_leaf(self, tensor: Tensor) -> tuple[int, ...]:
        return next((rows for item in self._samples if (rows := item.with_bad(tensor))), ())


def _is_somebodys(leaf: Leaf | None) -> bool:
    return leaf is not None and leaf.operand.role in ("weight", "buffer", "batch", "data")


def _chosen(aten: str, name: str, tensor: Tensor, masks: Mapping[str, Tensor]) -> Tensor:
    """An argument without the elements the op leaves out."""
    if aten == "where" and name in ("self", "other") and "condition" in masks:
        taken = masks["condition"]
    elif aten == "masked_fill" and name == "self" and "mask" in masks:
        taken = masks["mask"]
    else:
        return tensor
    nothing = torch.zeros((), dtype=tensor.dtype, device=tensor.device)
    if name == "self" and aten == "where":
        return torch.where(taken, tensor, nothing)
    return torch.where(taken, nothing, tensor)


def _training(call: Call, given: Given) -> bool:
    """Whether a normalisation looks at the batch, not at what it has learnt of earlier ones."""
    for name in ("training", "train"):
        if name in call.facts.arguments:
            position = call.facts.arguments.index(name)
            value = given.args[position] if position < len(given.args) else given.kwargs.get(name)
            return bool(value)
    return "no_training" not in call.facts.aten
