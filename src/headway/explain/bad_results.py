"""Inspects a call whose result is bad, while its tensors are still alive."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from headway.explain import bad_inputs, origin
from headway.explain.bad_inputs import BadInputTracker, CallArguments
from headway.explain.batch_samples import BatchSamples
from headway.explain.explanation import Operand
from headway.explain.tensor_memory import describe_tensor
from headway.explain.traced_call import BadResult, TracedCall
from headway.torch_adapters.compat import map_nested
from headway.torch_adapters.op_schema import tensor_arguments
from headway.torch_adapters.tensor_values import NAN, plain_tensor

MOST_OPERANDS = 8


class BadResultInspector:
    """Inspects calls with non-finite results."""

    def __init__(
        self,
        sources: BadInputTracker,
        samples: Sequence[BatchSamples],
        weight_shapes: frozenset[tuple[int, ...]],
        record_error: Callable[[Exception, Any], None],
    ) -> None:
        self._sources = sources
        self._samples = samples
        self._weight_shapes = weight_shapes
        self._record_error = record_error

    def examine(
        self, call: TracedCall, given: CallArguments, outputs: Sequence[tuple[Tensor, int]]
    ) -> BadResult:
        """Where the non-finite values of these outputs come from; possibly this call."""
        bad, bad_flags = next((tensor, found) for tensor, found in outputs if found)
        all_flags = 0
        for _, found in outputs:
            all_flags |= found
        if call.facts.constant:
            return self._constant(bad, all_flags)
        arguments = list(tensor_arguments(call.facts, given.args, given.kwargs))
        sources = tuple(self._sources.of_call(call, given, arguments))
        trouble = BadResult(all_flags, sources)
        fresh = _newly_bad(call, given, arguments, bad) if sources else None
        trouble.fresh = fresh is not None
        trouble.deliberate = not (all_flags & NAN or trouble.fresh) and all(
            item.deliberate for item in sources
        )
        if not sources and trouble.deliberate:
            trouble.written = bad_inputs.has_infinite_literal(given.args, given.kwargs)
            trouble.deliberate = trouble.written or self._makes_mask(
                call, arguments, bad, bad_flags
            )
        if call.facts.chooses or any(source.leaf is not None for source in sources):
            trouble.rows = self._rows_of_result(call, bad)
        if self._may_be_origin(call, trouble, bad):
            try:
                self._classify(call, trouble, given, arguments, bad, fresh)
            except Exception as error:  # the location is still useful without a cause
                trouble.kind = origin.OriginKind(
                    "unknown", f"{call.op} returns a non-finite result"
                )
                self._record_error(error, call.op)
        return trouble

    def _constant(self, tensor: Tensor, found: int) -> BadResult:
        rows: tuple[int, ...] = ()
        name, role, meant = "constant", "constant", not found & NAN
        if (original := self._sources.original(tensor)) is not None:
            role, (name, rows) = "batch", original
            meant = bad_inputs.is_leaf_mask(tensor, found, role)
        operand = describe_tensor(tensor, name, role)
        return BadResult(
            found,
            deliberate=meant,
            written=True,
            kind=origin.classify_leaf(operand),
            inputs=(operand,),
            output=operand,
            rows=rows,
        )

    def _makes_mask(
        self, call: TracedCall, arguments: Sequence[tuple[str, Tensor]], bad: Tensor, found: int
    ) -> bool:
        """Whether a mask is computed: `mask.log()`, or −1e9 in half precision."""
        if call.phase != "forward" or not bad_inputs.is_mask(bad, found):
            return False
        if any(tensor.requires_grad for _, tensor in arguments):
            return False
        return torch.is_grad_enabled() or all(
            self._sources.is_exact(tensor) for _, tensor in arguments
        )

    @staticmethod
    def _may_be_origin(call: TracedCall, trouble: BadResult, bad: Tensor) -> bool:
        if trouble.fresh:
            return True
        if trouble.deliberate:
            aten = call.facts.aten
            picks = aten in bad_inputs.SELECTS or aten in bad_inputs.REDUCES
            return (bool(trouble.sources) and picks) or bad.numel() == 1
        if not trouble.sources:
            return True
        inherited = any(source.flags & NAN for source in trouble.sources)
        return bool(trouble.flags & NAN) and not inherited

    def _classify(
        self,
        call: TracedCall,
        trouble: BadResult,
        given: CallArguments,
        arguments: Sequence[tuple[str, Tensor]],
        bad: Tensor,
        fresh: Tensor | None,
    ) -> None:
        trouble.inputs = tuple(self._described(given, arguments))
        trouble.output = describe_tensor(bad, "output", "computed")
        if fresh is not None:  # non-finite inputs belong to another origin
            given, bad = _cleared(given, bad, fresh)
        trouble.rows = self._rows(call, given, arguments, bad)
        forward = call.forward
        trouble.kind = origin.classify_origin(
            origin.BadCall(
                op=call.facts.aten,
                args=given.args,
                kwargs=given.kwargs,
                output=bad,
                phase=call.phase,
                node=call.node,
                forward_op=None if forward is None else forward.op,
                inputs=trouble.inputs,
                deliberate=fresh is None
                and bool(trouble.sources)
                and all(source.deliberate for source in trouble.sources),
                facts={
                    "autocast": call.located_call.autocast,
                    "module": call.located_call.module.path,
                },
            )
        )

    def _described(
        self, given: CallArguments, arguments: Sequence[tuple[str, Tensor]]
    ) -> Iterator[Operand]:
        for name, argument in arguments[:MOST_OPERANDS]:
            tensor = plain_tensor(argument)
            if tensor is None:
                continue
            memory = given.originals.get(id(argument), tensor)
            role, path = self._sources.owner(memory, name)
            yield describe_tensor(tensor, path, role)

    def _rows(
        self,
        call: TracedCall,
        given: CallArguments,
        arguments: Sequence[tuple[str, Tensor]],
        bad: Tensor,
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
            if (tensor := plain_tensor(argument)) is not None
            and tensor.is_floating_point()
            and self._sources.owner(tensor, "")[0] not in ("weight", "buffer")
            and samples.axis(tensor.shape) is not None
        ]
        for rule in (samples.with_bad, samples.standing_out):
            for tensor in inputs:
                if rows := rule(tensor):
                    return rows
        return ()

    def _rows_of_result(self, call: TracedCall, bad: Tensor) -> tuple[int, ...]:
        if call.batch >= len(self._samples) or not self._by_sample(
            call, self._samples[call.batch], bad
        ):
            return ()
        return self._samples[call.batch].with_bad(bad)

    def _by_sample(self, call: TracedCall, samples: BatchSamples, tensor: Tensor) -> bool:
        """Whether the rows of a result are samples, unlike those of a weight's gradient."""
        if call.phase == "backward" and tuple(tensor.shape) in self._weight_shapes:
            return False
        return samples.axis(tensor.shape) is not None


def _newly_bad(
    call: TracedCall, given: CallArguments, arguments: Sequence[tuple[str, Tensor]], bad: Tensor
) -> Tensor | None:
    """Mask of the non-finite values that an op made from finite ones; None if there are none."""
    if not call.facts.pointwise or bad_inputs.has_infinite_literal(given.args, given.kwargs):
        return None
    made = ~torch.isfinite(bad)
    if (lost := torch.isnan(bad)).any():
        made = lost
    for _, argument in arguments:
        tensor = plain_tensor(argument)
        if tensor is None:
            return None
        made = made & torch.isfinite(tensor)  # broadcast as in the op
    return made if made.any() else None


_HARMLESS = 0.5
"""A value in the domain of every function."""


def _cleared(given: CallArguments, bad: Tensor, fresh: Tensor) -> tuple[CallArguments, Tensor]:
    """The call with finite values in place of all other non-finite ones."""

    def finite(value: Any) -> Any:
        if isinstance(value, Tensor) and value.is_floating_point():
            return value.masked_fill(~torch.isfinite(value), _HARMLESS)
        return value

    args, kwargs = map_nested(finite, (given.args, dict(given.kwargs)))
    return replace(given, args=args, kwargs=kwargs), bad.masked_fill(~fresh, _HARMLESS)


_NO_REDUCTION = 0


def _unreduced(call: TracedCall, given: CallArguments) -> Iterator[Tensor]:
    """The loss before reduction: the op again with `reduction="none"`."""
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
