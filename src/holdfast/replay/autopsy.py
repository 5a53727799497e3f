"""What is to be known about a call whose result is bad, gathered while its tensors are there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from holdfast.replay import births, deliberate
from holdfast.replay.calls import Call, Leaf, Source, Trouble
from holdfast.replay.explanation import Operand
from holdfast.replay.finiteness import NAN, flags, plain
from holdfast.replay.op_facts import OpFacts
from holdfast.replay.operands import Owners, describe, tensor_arguments
from holdfast.replay.samples import Samples
from holdfast.replay.writes import Write, Writes, address

MOST_OPERANDS = 8


def digest(tensor: Tensor) -> int:
    """Of all the memory a tensor lies in: tells whether somebody has written there meanwhile."""
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


class Autopsy:
    """Knows where tensors come from, and looks at bad ones."""

    def __init__(
        self,
        calls: Sequence[Call],
        writes: Writes,
        owners: Owners,
        samples: Sequence[Samples],
        weight_shapes: frozenset[tuple[int, ...]],
    ) -> None:
        self._calls = calls
        self._writes = writes
        self._owners = owners
        self._samples = samples
        self._weight_shapes = weight_shapes
        self._leaves: dict[int, Leaf] = {}

    def examine(self, call: Call, given: Given, outputs: Sequence[tuple[Tensor, int]]) -> Trouble:
        """Where the bad numbers of these outputs come from; the call itself, perhaps."""
        bad, bad_flags = next((tensor, found) for tensor, found in outputs if found)
        all_flags = 0
        for _, found in outputs:
            all_flags |= found
        if call.facts.constant:
            return self._constant(bad, all_flags)
        arguments = list(tensor_arguments(call.facts, given.args, given.kwargs))
        sources = tuple(self._bad_sources(call, given, arguments))
        trouble = Trouble(all_flags, sources)
        trouble.deliberate = not all_flags & NAN and all(item.deliberate for item in sources)
        if not sources and trouble.deliberate:
            trouble.written = deliberate.has_literal(given.args, given.kwargs)
            trouble.deliberate = trouble.written or self._makes_mask(
                call, arguments, bad, bad_flags
            )
        if self._may_be_birth(call, trouble, bad):
            self._tell(call, trouble, given, arguments, bad)
        return trouble

    def handed_over(self, given: Given, facts: OpFacts) -> Trouble | None:
        """What a collective op is about to hand to the other ranks; None if all is well."""
        sources = tuple(
            self.source(name, tensor, found)
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

    def source(self, name: str, tensor: Tensor, found: int, memory: Tensor | None = None) -> Source:
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

    def _bad_sources(
        self, call: Call, given: Given, arguments: Sequence[tuple[str, Tensor]]
    ) -> Iterator[Source]:
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
                source = self.source(name, tensor, found, given.originals.get(id(argument)))
                yield self._exchanged(call, arguments, source) or source

    def _exchanged(
        self, call: Call, arguments: Sequence[tuple[str, Tensor]], source: Source
    ) -> Source | None:
        """Gloo ends some collectives by a copy out of memory of its own: what it brings is that of
        the ranks."""
        if call.facts.aten != "copy" or source.leaf is None or source.leaf.maker is not None:
            return None
        target = plain(arguments[0][1])
        if target is None or not self._writes.shared(target):
            return None
        return self.source(source.name, target, source.flags)

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

    def _constant(self, tensor: Tensor, found: int) -> Trouble:
        operand = describe(tensor, "constant", "constant")
        meant = not found & NAN
        return Trouble(
            found,
            deliberate=meant,
            written=True,
            kind=births.explain_leaf(operand),
            inputs=(operand,),
            output=operand,
        )

    def _makes_mask(
        self, call: Call, arguments: Sequence[tuple[str, Tensor]], bad: Tensor, found: int
    ) -> bool:
        """Whether a mask was computed: `mask.log()`, or −1e9 where half precision ends."""
        if call.phase != "forward" or not deliberate.is_mask(bad, found):
            return False
        if any(tensor.requires_grad for _, tensor in arguments):
            return False
        return torch.is_grad_enabled() or all(self._is_whole(tensor) for _, tensor in arguments)

    def _is_whole(self, argument: Tensor) -> bool:
        """Whether it is the batch's, a buffer's or made of whole numbers: where gradients are off
        nothing requires one, so that says nothing."""
        tensor = plain(argument)
        if tensor is None or self._owners.of(tensor) is not None:
            return True
        writes = self._writes.into(tensor)
        return bool(writes) and self._calls[writes[0].order].of_whole_numbers

    @staticmethod
    def _may_be_birth(call: Call, trouble: Trouble, bad: Tensor) -> bool:
        if trouble.deliberate:
            aten = call.facts.aten
            picks = aten in deliberate.SELECTS or aten in deliberate.REDUCES
            return (bool(trouble.sources) and picks) or bad.numel() == 1
        if not trouble.sources:
            return True
        inherited = any(source.flags & NAN for source in trouble.sources)
        return bool(trouble.flags & NAN) and not inherited

    def _tell(
        self,
        call: Call,
        trouble: Trouble,
        given: Given,
        arguments: Sequence[tuple[str, Tensor]],
        bad: Tensor,
    ) -> None:
        trouble.inputs = tuple(self._described(given, arguments))
        trouble.output = describe(bad, "output", "computed")
        trouble.rows = self._rows(call, given, arguments, bad)
        forward = call.forward
        trouble.kind = births.explain(
            births.BadCall(
                op=call.facts.aten,
                args=given.args,
                kwargs=given.kwargs,
                output=bad,
                phase=call.phase,
                node=call.node,
                forward_op=None if forward is None else forward.op,
                inputs=trouble.inputs,
                deliberate=bool(trouble.sources) and all(s.deliberate for s in trouble.sources),
                facts={"autocast": call.told_by.autocast, "module": call.told_by.module.path},
            )
        )

    def _described(
        self, given: Given, arguments: Sequence[tuple[str, Tensor]]
    ) -> Iterator[Operand]:
        for name, argument in arguments[:MOST_OPERANDS]:
            tensor = plain(argument)
            if tensor is None:
                continue
            memory = given.originals.get(id(argument), tensor)
            role, path = self._owners.of(memory) or (self._role(memory), name)
            yield describe(tensor, path, role)

    def _role(self, tensor: Tensor) -> str:
        writes = self._writes.into(tensor)
        if not writes:
            return "carried"
        maker = self._calls[writes[0].order].facts
        if maker.uninitialised:
            return "uninitialised"
        return "constant" if maker.constant else "computed"

    def _rows(
        self, call: Call, given: Given, arguments: Sequence[tuple[str, Tensor]], bad: Tensor
    ) -> tuple[int, ...]:
        if call.batch >= len(self._samples):
            return ()
        samples = self._samples[call.batch]
        for result in (bad, *_unreduced(call, given)):
            if self._by_sample(call, samples, result):
                return samples.with_bad(result)
        inputs = [
            tensor
            for _, argument in arguments
            if (tensor := plain(argument)) is not None
            and tensor.is_floating_point()
            and (self._owners.of(tensor) or _NOBODYS)[0] not in ("weight", "buffer")
            and samples.axis(tensor.shape) is not None
        ]
        for rule in (samples.with_bad, samples.standing_out):
            for tensor in inputs:
                if rows := rule(tensor):
                    return rows
        return ()

    def _by_sample(self, call: Call, samples: Samples, tensor: Tensor) -> bool:
        """Whether the rows of a result are samples; those of a weight's gradient are not."""
        if call.phase == "backward" and tuple(tensor.shape) in self._weight_shapes:
            return False
        return samples.axis(tensor.shape) is not None


_NOBODYS = ("computed", "")
_NO_REDUCTION = 0
_CHOOSES = frozenset(("where", "masked_fill"))


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


def _unreduced(call: Call, given: Given) -> Iterator[Tensor]:
    """What a loss was before it was summed up: the op once more, with `reduction="none"`."""
    names = call.facts.arguments
    if call.phase == "backward" or "reduction" not in names:
        return
    args, kwargs, position = list(given.args), dict(given.kwargs), names.index("reduction")
    if position < len(args):
        args[position] = _NO_REDUCTION
    else:
        kwargs["reduction"] = _NO_REDUCTION
    result = given.func(*args, **kwargs)
    yield result[0] if isinstance(result, tuple) else result


def _training(call: Call, given: Given) -> bool:
    """Whether a normalisation looks at the batch, not at what it has learnt of earlier ones."""
    for name in ("training", "train"):
        if name in call.facts.arguments:
            position = call.facts.arguments.index(name)
            value = given.args[position] if position < len(given.args) else given.kwargs.get(name)
            return bool(value)
    return "no_training" not in call.facts.aten
