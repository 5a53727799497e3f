"""The gradients of a model's parameters for one call: of the whole batch, or piece by piece."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor

from headway.guard.memory.micro_batches import CannotSplit, ModelCall, Reduction, join
from headway.torch_adapters.compat import map_nested, nested_leaves
from headway.torch_adapters.device_failure.device_memory import (
    is_out_of_memory,
    release_cached_memory,
)
from headway.torch_adapters.rng import RngState

SPLIT, SKIP = "split", "skip"
FREED = "backward through the graph a second time"

Gradients = Sequence[Tensor | None]


class SplitOwner(Protocol):
    """Decides what happens to a call that does not fit: see `SplitForward`."""

    mode: str

    def reduction(self, call: ModelCall) -> Reduction | None:
        """How scalars of the model are reduced. Raises CannotSplit."""

    def fitted(self, call: ModelCall, pieces: int, failure: str) -> None:
        """Number of pieces that fit."""

    def skip_in_backward(self, call: ModelCall, failure: str, why: str) -> None:
        """The update of this step must be skipped."""


class CallGraph:
    """The parameters of a model, and the outputs of one call that can have a gradient."""

    def __init__(self, call: ModelCall, leaves: Sequence[Any], positions: Sequence[int]) -> None:
        """`leaves`: everything that the call returned; `positions`: where its outputs are."""
        self.call = call
        self.positions = positions
        self.outputs: list[Tensor] = [leaves[at] for at in positions]
        self.parameters = [p for p in call.model.parameters() if p.requires_grad]

    def gradients(self, given: Gradients) -> Gradients:
        """The gradients of the parameters for these gradients of the outputs."""
        raise NotImplementedError


class Boundary(torch.autograd.Function):
    """Outputs whose backward pass gets the gradients of the parameters from a `CallGraph`."""

    @staticmethod
    def forward(ctx: Any, graph: CallGraph, *parameters: Tensor) -> tuple[Tensor, ...]:
        ctx.graph = graph
        ctx.set_materialize_grads(False)
        return tuple(item.detach() for item in graph.outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        return (None, *ctx.graph.gradients(gradients))


_apply: Any = Boundary.apply


def bind(graph: CallGraph, result: Any) -> Any:
    """The result of a call with its outputs cut off from their own graph.

    Caches for generation are left out: their tensors would keep the graph alive.
    """
    bound = dict(zip(graph.positions, _apply(graph, *graph.parameters), strict=True))
    leaves = iter(
        [
            None if is_cache(item) else bound.get(number, item)
            for number, item in enumerate(nested_leaves(result))
        ]
    )
    return map_nested(lambda item: next(leaves), result)


class WholeGraph(CallGraph):
    """The graph of the whole batch; released when its backward pass does not fit."""

    def __init__(
        self,
        owner: SplitOwner,
        call: ModelCall,
        leaves: Sequence[Any],
        positions: Sequence[int],
        before: RngState,
    ) -> None:
        """`before`: the random numbers before the call."""
        super().__init__(call, leaves, positions)
        self._owner = owner
        self._before = before
        self._random = not RngState().follows(before, before)
        self._casts = Casts()
        self._spent = False
        self._shared = False
        """Whether a graph of gradients was made, which shares its nodes with this one."""

    def gradients(self, given: Gradients) -> Gradients:
        failure = ""
        if self._spent:  # a second backward pass, with retain_graph=True
            return self._pieces([self.call], None, [self._before]).gradients(given)
        pairs = [(o, g) for o, g in zip(self.outputs, given, strict=True) if g is not None]
        self._shared = self._shared or torch.is_grad_enabled()
        try:
            found = differentiate(pairs, self.parameters, retain=self._shared)
            self._spent = not self._shared
            return found
        except Exception as error:
            if self._shared and FREED in str(error):
                self._spent = True
            elif not is_out_of_memory(error):
                raise
            failure = str(error)
        if self._shared and self._spent:
            return self.gradients(given)
        # Here the exception is gone, and with it the frames that hold tensors.
        pairs.clear()
        self._spent, self.outputs = True, []
        release_cached_memory()
        return self._in_pieces(given, failure)

    def _pieces(
        self, parts: Sequence[ModelCall], reduction: Reduction | None, states: list[RngState]
    ) -> MicroBatchGraph:
        graph = MicroBatchGraph(self.call, parts, reduction)
        graph.positions, graph.casts, graph.states = self.positions, self._casts, states
        return graph

    def _in_pieces(self, given: Gradients, failure: str) -> Gradients:
        owner, call = self._owner, self.call
        try:
            if owner.mode == SKIP:
                raise CannotSplit("Policy(on_oom='skip')")
            if self._random:
                raise CannotSplit("the random numbers of its forward pass cannot be drawn again")
            reduction = owner.reduction(call)
        except CannotSplit as why:
            owner.skip_in_backward(call, failure, str(why))
            return [torch.zeros_like(p) for p in self.parameters]
        pieces = 2
        while True:
            try:
                found = self._pieces(call.parts(pieces), reduction, []).gradients(given)
                owner.fitted(call, pieces, failure)
                return found
            except Exception as error:
                if not is_out_of_memory(error) or pieces >= call.rows:
                    raise
            release_cached_memory()
            pieces = min(2 * pieces, call.rows)


class MicroBatchGraph(CallGraph):
    """A batch in pieces: outputs without a graph first, then each piece again with its graph."""

    def __init__(
        self, call: ModelCall, parts: Sequence[ModelCall], reduction: Reduction | None
    ) -> None:
        super().__init__(call, (), ())
        self._parts = parts
        self._reduction = reduction
        self._random = False
        """Whether the forward pass drew random numbers: then the pieces must stay the same."""
        self._weights = None if reduction is None else reduction.weights(parts)
        self.casts = Casts()
        self.states: list[RngState] = []
        """The random numbers before each piece; empty: the model draws none."""

    def try_largest_part(self) -> None:
        """Run the largest piece forward and backward: does it fit, and what needs a gradient?"""
        now = RngState()
        try:
            with torch.enable_grad(), self.casts.again():
                leaves = nested_leaves(max(self._parts, key=lambda part: part.rows)())
            self.positions = [
                at for at, item in enumerate(leaves) if may_carry(item) and item.requires_grad
            ]
            zeros = [(leaves[at], torch.zeros_like(leaves[at])) for at in self.positions]
            del leaves
            with torch.no_grad():
                differentiate(zeros, self.parameters)
        finally:
            now.restore()

    @torch.no_grad()
    def run(self) -> Any:
        """The result for the whole batch."""
        results = []
        for part in self._parts:
            self.states.append(RngState())
            with self.casts.again():
                results.append(part())
        self._random = not RngState().follows(self.states[0], self.states[0])
        result = join(results, [part.rows for part in self._parts], self._weights)
        leaves = nested_leaves(result)
        self.outputs = [leaves[at] for at in self.positions]
        return result

    def gradients(self, given: Gradients) -> Gradients:
        """The sum over the pieces; in smaller ones where these fitted only before the loss."""
        pieces = len(self._parts)
        try:
            return self._add_pieces(given)
        except Exception as error:
            # Without outputs there was no forward pass: the caller chooses the pieces.
            fixed = not self.outputs or self._random or pieces >= self.call.rows
            if fixed or not is_out_of_memory(error):
                raise
        # Here the exception is gone, and with it the frames that hold tensors.
        release_cached_memory()
        parts = self.call.parts(min(2 * pieces, self.call.rows))
        smaller = MicroBatchGraph(self.call, parts, self._reduction)
        smaller.positions, smaller.casts, smaller.outputs = self.positions, self.casts, self.outputs
        return smaller.gradients(given)

    def _add_pieces(self, given: Gradients) -> Gradients:
        total: list[Tensor | None] = [None] * len(self.parameters)
        now, start = RngState(), 0
        try:
            for number, part in enumerate(self._parts):
                if self.states:
                    self.states[number].restore()
                with torch.enable_grad(), self.casts.again():
                    leaves = nested_leaves(part())
                pairs = [
                    (leaves[at], self._gradient_of(leaves[at], gradient, start, number))
                    for at, gradient in zip(self.positions, given, strict=True)
                    if gradient is not None
                ]
                del leaves
                for at, found in enumerate(differentiate(pairs, self.parameters)):
                    if found is not None:
                        before = total[at]
                        total[at] = found if before is None else before + found
                pairs.clear()
                start += part.rows
        finally:
            now.restore()
        return total

    def _gradient_of(self, output: Tensor, gradient: Tensor, start: int, number: int) -> Tensor:
        rows = self._parts[number].rows
        if len(self._parts) == 1:
            return gradient
        if output.numel() == 1 and gradient.numel() == 1 and self._weights is not None:
            return (gradient * self._weights[number]).reshape(output.shape)
        return gradient[start : start + rows]


class NoGraph(CallGraph):
    """A step that is skipped: its gradients are zero, so that other ranks can reduce theirs."""

    def gradients(self, given: Gradients) -> Gradients:
        return [torch.zeros_like(p) for p in self.parameters]


class Casts:
    """The autocast settings of a forward pass, for the same pieces in the backward pass."""

    def __init__(self) -> None:
        kinds = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
        self._settings = [
            (kind, torch.get_autocast_dtype(kind))
            for kind in kinds
            if torch.is_autocast_enabled(kind)
        ]

    @contextmanager
    def again(self) -> Iterator[None]:
        with ExitStack() as stack:
            for kind, dtype in self._settings:
                # Without the cache: a weight that was cast under no_grad would get no gradient.
                stack.enter_context(torch.autocast(kind, dtype=dtype, cache_enabled=False))
            yield


def differentiate(
    pairs: Sequence[tuple[Tensor, Tensor]], parameters: Sequence[Tensor], *, retain: bool = False
) -> Gradients:
    """The gradients of the parameters for these (output, its gradient)."""
    if not pairs or not parameters:
        return [None] * len(parameters)
    return torch.autograd.grad(
        [output for output, _ in pairs],
        parameters,
        [gradient for _, gradient in pairs],
        allow_unused=True,
        retain_graph=retain or None,
        create_graph=torch.is_grad_enabled(),
    )


def is_cache(item: Any) -> bool:
    """Whether an output is a key-value cache of `transformers`, which training does not use."""
    kind = type(item)
    return kind.__module__.startswith("transformers.") and "Cache" in kind.__name__


def may_carry(item: Any) -> bool:
    """Whether an output can have a gradient."""
    return isinstance(item, Tensor) and (item.is_floating_point() or item.is_complex())
