"""Where non-finite inputs of an op come from, and whether they are intended (masks, literals)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from headway.explain import origin
from headway.explain.batch_samples import BatchSamples
from headway.explain.tensor_memory import MemoryOwners, MemoryWrite, MemoryWrites, describe_tensor
from headway.explain.traced_call import BadInput, BadLeaf, BadResult, TracedCall
from headway.torch_adapters.op_schema import PASSED_OVER, OpSchema, name_set, tensor_arguments
from headway.torch_adapters.tensor_values import (
    NAN,
    NEGATIVE,
    nonfinite_flags,
    plain_tensor,
    storage_address,
)

# Intended infinities: masks and literals in the code.

SOFTMAXES = name_set(
    "softmax log_softmax safe_softmax masked_softmax logsumexp logcumsumexp "
    "efficient_attention_forward flash_attention_forward native_multi_head_attention"
)
SELECTS = name_set(
    "nll_loss_forward nll_loss2d_forward cross_entropy_loss gather index index_select "
    "take masked_select embedding kl_div ctc_loss"
)
"""Ops that select elements: selecting a masked one is the origin, not the mask."""
REDUCES = name_set(
    "sum mean logsumexp amax max amin min prod linalg_vector_norm dot var std mse_loss"
)


def is_softmax(aten: str) -> bool:
    """Whether an op returns NaN for a fully masked row."""
    return aten in SOFTMAXES or aten.startswith("scaled_dot_product")


def has_infinite_literal(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether an argument is an infinite number."""
    return any(math.isinf(number) for number in _numbers((*args, *kwargs.values())))


def is_mask(tensor: Tensor, flags: int) -> bool:
    """Whether all elements are 0 or −inf, and both occur."""
    if flags != NEGATIVE:
        return False
    nothing = tensor == 0
    return bool(nothing.any()) and bool((nothing | (tensor == -math.inf)).all())


def is_leaf_mask(tensor: Tensor, flags: int, role: str) -> bool:
    """The same for a tensor from before the step; a buffer with some −inf counts as a mask."""
    if role == "buffer" and flags == NEGATIVE and tensor.numel() > 1:
        return bool(torch.isfinite(tensor).any())
    return role != "weight" and is_mask(tensor, flags)


def _numbers(values: Iterable[Any]) -> Iterator[float]:
    for value in values:
        if isinstance(value, float):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from (item for item in value if isinstance(item, float))


_CHOOSES = frozenset(("where", "masked_fill"))
MOST_DIGESTED = 1 << 26
"""Maximum bytes; more would take too long."""


def digest_memory(tensor: Tensor) -> int | None:
    """Checksum of the storage of a tensor: shows whether it was written."""
    if tensor.untyped_storage().nbytes() > MOST_DIGESTED:
        return None
    whole = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    whole.set_(tensor.untyped_storage())
    return int(whole.sum(dtype=torch.int64))


@dataclass(slots=True)
class CallArguments:
    """The arguments of a call, before it ran."""

    func: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    originals: Mapping[int, Tensor] = field(default_factory=dict)
    """`id` of a copy → the tensor that the op modified."""
    handed_over: BadResult | None = None
    """The non-finite values that a collective op sends to other ranks."""


class BadInputTracker:
    """Finds which op wrote the memory of a tensor, or which input owns it."""

    def __init__(
        self,
        calls: Sequence[TracedCall],
        writes: MemoryWrites,
        owners: MemoryOwners,
        samples: Sequence[BatchSamples],
    ) -> None:
        self._calls = calls
        self._writes = writes
        self._owners = owners
        self._samples = samples
        self._leaves: dict[int, BadLeaf] = {}
        self.unwritten_role = "carried"
        """The role of a tensor that no recorded op wrote."""

    # For a trace over many steps.

    def replace_owners(self, owners: MemoryOwners) -> None:
        """Parameters, buffers and batches as they are known by now."""
        self._owners = owners

    def forget_leaves(self) -> None:
        """Another step begins, in which the same memory may hold something else."""
        self._leaves.clear()

    def name_leaves(self) -> None:
        """Name the leaves that were found before their owner was known."""
        for address, leaf in self._leaves.items():
            known = self._owners.at(address)
            if leaf.operand.role == "carried" and known is not None:
                leaf.operand = replace(leaf.operand, role=known[0], name=known[1])
                leaf.kind = origin.classify_leaf(leaf.operand)

    def of_call(
        self, call: TracedCall, given: CallArguments, arguments: Sequence[tuple[str, Tensor]]
    ) -> Iterator[BadInput]:
        """The non-finite inputs of a call, and where each comes from."""
        facts = call.facts
        if facts.shape_only:
            return
        ignored = facts.mutated if facts.overwrites else frozenset[str]()
        if "batch_norm" in facts.aten and _training(call, given):
            ignored |= {"running_mean", "running_var"}
        masks = {name: tensor for name, tensor in arguments if tensor.dtype == torch.bool}
        for name, argument in arguments:
            tensor = plain_tensor(argument)
            if tensor is None or name in ignored:
                continue
            found = nonfinite_flags(tensor)
            if found and facts.aten in _CHOOSES:
                found = nonfinite_flags(_selected_elements(facts.aten, name, tensor, masks))
            if found:
                source = self.of(name, tensor, found, given.originals.get(id(argument)))
                yield self._from_collective(call, arguments, source) or source

    def of(self, name: str, tensor: Tensor, found: int, memory: Tensor | None = None) -> BadInput:
        """Where the non-finite values of a plain tensor come from; `memory`: the original, if it is
        a copy."""
        memory = tensor if memory is None else memory
        writes = self._writes.into(memory)
        if any(self._calls[write.order].facts is PASSED_OVER for write in writes):
            return BadInput(name, found, passed_over=True)
        bad = tuple(write.order for write in writes if write.flags)
        if bad:
            meant = all(self._deliberate(order) for order in bad)
            meant = meant and not found & NAN
            return BadInput(
                name, found, writers=bad, deliberate=meant, owner=self._owners.of(memory)
            )
        if self._writes.shared(memory):
            return BadInput(name, found)  # from another rank
        leaf = self._leaf(name, tensor, found, memory, writes)
        return BadInput(name, found, leaf=leaf, deliberate=leaf.deliberate)

    def handed_over(self, given: CallArguments, facts: OpSchema) -> BadResult | None:
        """The non-finite values that a collective op sends to other ranks; None if there are
        none."""
        sources = tuple(
            self.of(name, tensor, found)
            for name, argument in tensor_arguments(facts, given.args, given.kwargs)
            if not name.startswith("output")
            and (tensor := plain_tensor(argument)) is not None
            and (found := nonfinite_flags(tensor))
        )
        all_flags = 0
        for source in sources:
            all_flags |= source.flags
        meant = not all_flags & NAN and all(source.deliberate for source in sources)
        return BadResult(all_flags, sources, deliberate=meant) if sources else None

    def owner(self, tensor: Tensor, name: str) -> tuple[str, str]:
        """(role, name) of a plain tensor."""
        return self._owners.of(tensor) or (self._role(tensor), name)

    def original(self, tensor: Tensor) -> tuple[str, tuple[int, ...]] | None:
        """(name, samples) of the batch tensor that a bad tensor was copied from."""
        name = self._owners.original(tensor)
        return None if name is None else (name, self._sample_of_leaf(tensor))

    def owned(self, tensor: Tensor) -> bool:
        return self._owners.of(tensor) is not None

    def _role(self, tensor: Tensor) -> str:
        writes = self._writes.into(tensor)
        if not writes:
            return self.unwritten_role
        maker = self._calls[writes[0].order].facts
        if maker.uninitialised:
            return "uninitialised"
        return "constant" if maker.constant else "computed"

    def is_exact(self, argument: Tensor) -> bool:
        """Whether it belongs to the batch or a buffer, or was cast from integers. With gradients
        disabled, requires_grad does not show this."""
        tensor = plain_tensor(argument)
        if tensor is None or self._owners.of(tensor) is not None:
            return True
        writes = self._writes.into(tensor)
        return bool(writes) and self._calls[writes[0].order].from_integers

    def _from_collective(
        self, call: TracedCall, arguments: Sequence[tuple[str, Tensor]], source: BadInput
    ) -> BadInput | None:
        """Gloo ends some collectives with a copy from its own memory: the values come from the
        ranks."""
        if call.facts.aten != "copy" or source.writers or _has_owner(source.leaf):
            return None
        target = plain_tensor(arguments[0][1])
        if target is None or not self._writes.shared(target):
            return None
        return self.of(source.name, target, source.flags)

    def _deliberate(self, order: int) -> bool:
        trouble = self._calls[order].trouble
        return trouble is not None and trouble.deliberate

    def _leaf(
        self, name: str, tensor: Tensor, found: int, memory: Tensor, writes: Sequence[MemoryWrite]
    ) -> BadLeaf:
        maker = self._calls[writes[-1].order] if writes else None
        key = storage_address(memory)
        known = self._leaves.get(key)
        if known is not None and known.maker is maker:
            return known
        role, path = self._owners.of(memory) or ("carried", name)
        unseen = False
        if role == "carried" and maker is not None:
            changed = len(writes) == 1 and maker.digest not in (None, digest_memory(memory))
            unseen = changed or not maker.facts.uninitialised
            role = "computed" if unseen else "uninitialised"
        operand = describe_tensor(tensor, path, role)
        meant = is_leaf_mask(tensor, found, role)
        leaf = BadLeaf(operand, origin.classify_leaf(operand), (), meant, maker, unseen)
        if role == "batch":
            leaf.rows = self._sample_of_leaf(tensor)
        self._leaves[key] = leaf
        return leaf

    def _sample_of_leaf(self, tensor: Tensor) -> tuple[int, ...]:
        return next((rows for item in self._samples if (rows := item.with_bad(tensor))), ())


def _has_owner(leaf: BadLeaf | None) -> bool:
    return leaf is not None and leaf.operand.role in ("weight", "buffer", "batch", "data")


def _selected_elements(aten: str, name: str, tensor: Tensor, masks: Mapping[str, Tensor]) -> Tensor:
    """An argument without the elements that the op does not select."""
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


def _training(call: TracedCall, given: CallArguments) -> bool:
    """Whether a normalisation uses the statistics of the batch, not the running ones."""
    for name in ("training", "train"):
        if name in call.facts.arguments:
            position = call.facts.arguments.index(name)
            value = given.args[position] if position < len(given.args) else given.kwargs.get(name)
            return bool(value)
    return "no_training" not in call.facts.aten
