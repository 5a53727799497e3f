"""`Policy(on_oom=…)`: runs a model in micro-batches when the whole batch does not fit.

The guarded models get a boundary around their forward pass. Inside of it the batch may run whole or
in pieces; outside of it nothing changes: the loss is that of the user's own code on the outputs of
the whole batch, and the gradient that comes back is passed through the pieces one by one. So the
gradient is that of the whole batch for any loss, and ranks need not agree: each one's
gradient is the same as without pieces.

    out = model(x)     # ran out of memory: in pieces without a graph, outputs concatenated
    loss = f(out, y)   # as always
    loss.backward()    # each piece again with its graph; gradients added
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headway.guard.memory.micro_batches import (
    MEAN,
    CannotSplit,
    ModelCall,
    Reduction,
    join,
    verify_split,
)
from headway.guard.memory.model_call_graphs import (
    SKIP,
    SPLIT,
    MicroBatchGraph,
    NoGraph,
    WholeGraph,
    bind,
    is_cache,
    may_carry,
)
from headway.output.notices import Notices
from headway.torch_adapters.autograd_graph import walk_graph
from headway.torch_adapters.compat import nested_leaves
from headway.torch_adapters.device_failure.device_memory import (
    is_out_of_memory,
    names_host_memory,
    release_cached_memory,
    requested_bytes,
)
from headway.torch_adapters.frames import current_frame, describe_frame, is_user_frame, walk_callers
from headway.torch_adapters.patching import install_patch
from headway.torch_adapters.process_groups.sharded_tensors import is_dtensor
from headway.torch_adapters.rng import RngState
from headway.torch_adapters.runtime_state import compiled_code_runs

CHECKED_CALLS = 4
"""First calls whose graph is searched for weights from outside of the model."""
OUT_OF_MEMORY = "out-of-memory"

ReportEvent = Callable[[int, str, Mapping[str, Any]], None]


class SplitForward:
    """The boundaries around the models of one guard."""

    def __init__(
        self,
        models: Sequence[nn.Module],
        mode: str,
        *,
        report: ReportEvent,
        step: Callable[[], int],
        passive: Callable[[], bool],
        skip_update: Callable[[], None],
        restore_buffers: Callable[[], Any],
        notices: Notices,
    ) -> None:
        """`passive`: calls go through unchanged, as while a step is run again; `skip_update`: the
        current step must not be applied; `restore_buffers`: as they were before it."""
        self.mode = mode
        self._report = report
        self._step = step
        self._passive = passive
        self._skip_update = skip_update
        self._restore_buffers = restore_buffers
        self._notices = notices
        self._inside = False
        self._calls = 0
        self._fits: dict[int, float] = {}
        """Model → largest number of input elements that fitted at once, after one that did not."""
        self._reductions: dict[int, Reduction | None] = {}
        self._refusal: dict[int, str] = {}
        """Models that cannot be split, and why: their steps are skipped."""
        self._unbound: set[int] = set()
        """Models whose graph cannot be cut off."""
        self._undo = [self._wrap(model) for model in models]

    def close(self) -> None:
        """Remove the boundaries."""
        while self._undo:
            self._undo.pop()()

    def _wrap(self, model: nn.Module) -> Callable[[], None]:
        if any(is_dtensor(p) for p in model.parameters()) or _is_flat(model):
            self._say(model, "its parameters are sharded")
            return lambda: None
        original = model.forward

        @functools.wraps(original)  # signatures are read by HF's Trainer
        def forward(*args: Any, **kwargs: Any) -> Any:
            if self._inside or torch.compiler.is_compiling() or self._passive():
                return original(*args, **kwargs)
            self._inside = True
            try:
                return self._call(ModelCall(model, original, args, kwargs))
            finally:
                self._inside = False

        return install_patch(model, "forward", forward)

    # One call.

    def _call(self, call: ModelCall) -> Any:
        grown = torch.is_grad_enabled()
        if grown and any(tensor.requires_grad for tensor in call.tensors()):
            self._say(call.model, "its inputs require gradients")
            return call()
        if grown and compiled_code_runs():
            self._say(call.model, "it is compiled")
            return call()
        pieces = self._known_pieces(call)
        failure = ""
        if pieces == 1:
            before = RngState()
            try:
                result = call()
                return self._bind(call, result, before) if grown else result
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                failure = str(error)
            # Here the exception is gone, and with it the frames that hold tensors.
            before.restore()
            self._restore_buffers()
            release_cached_memory()
            pieces = 2
        if not grown:
            return self._evaluate(call, pieces, failure)
        return self._split(call, pieces, failure)

    def _known_pieces(self, call: ModelCall) -> int:
        fits = self._fits.get(id(call.model))
        if fits is None or call.rows < 2:
            return 1
        return min(max(-int(-call.elements // fits), 1), call.rows)

    def _bind(self, call: ModelCall, result: Any, before: RngState) -> Any:
        """Cut the graph of a result off, so that its memory can be released on request."""
        leaves = nested_leaves(result)
        outputs = [item for item in leaves if isinstance(item, Tensor) and item.grad_fn is not None]
        strange = [item for item in leaves if not (_is_known(item) or is_cache(item))]
        if not outputs:
            return result
        if strange:
            self._say(call.model, f"it returns a {type(strange[0]).__name__}")
            return result
        self._calls += 1
        if self._calls <= CHECKED_CALLS and (why := _reaches_outside(call.model, outputs)):
            self._say(call.model, why)
            self._unbound.add(id(call.model))
        if id(call.model) in self._unbound:
            return result
        at = [n for n, item in enumerate(leaves) if any(item is output for output in outputs)]
        return bind(WholeGraph(self, call, leaves, at, before), result)

    # After it did not fit.

    def reduction(self, call: ModelCall) -> Reduction | None:
        """How scalars of the model are reduced; proved once. Raises CannotSplit."""
        key = id(call.model)
        if key in self._refusal:
            raise CannotSplit(self._refusal[key])
        if key not in self._reductions:
            try:
                self._reductions[key] = verify_split(call)
            except CannotSplit as why:
                if call.rows > 1:
                    self._refusal[key] = str(why)
                raise
        return self._reductions[key]

    def _split(self, call: ModelCall, pieces: int, failure: str) -> Any:
        why = "Policy(on_oom='skip')"
        if self.mode == SPLIT:
            try:
                reduction = self.reduction(call)
            except CannotSplit as refusal:
                why = str(refusal)
            else:
                return self._in_pieces(call, pieces, reduction, failure)
        return self._skip(call, failure, why)

    def _in_pieces(
        self, call: ModelCall, pieces: int, reduction: Reduction | None, failure: str
    ) -> Any:
        while True:
            graph = MicroBatchGraph(call, call.parts(pieces), reduction)
            try:
                graph.try_largest_part()
                result = graph.run()
                break
            except Exception as error:
                if not is_out_of_memory(error) or pieces >= call.rows:
                    raise
            release_cached_memory()
            pieces = min(2 * pieces, call.rows)
        self.fitted(call, pieces, failure)
        return bind(graph, result)

    def fitted(self, call: ModelCall, pieces: int, failure: str) -> None:
        """Number of pieces that fit."""
        key = id(call.model)
        largest = call.elements / pieces
        if key not in self._fits or largest < self._fits[key]:
            self._fits[key] = largest
        if failure:
            self.record(call, failure, "split", pieces=pieces)

    def _skip(self, call: ModelCall, failure: str, why: str) -> Any:
        """Outputs without a graph, for the user's code to go on with; the update is skipped."""
        result = self._evaluate(call, 1, "", proved=False)
        self.record(call, failure, SKIP, why=why)
        self._skip_update()
        leaves = nested_leaves(result)
        return bind(
            NoGraph(call, leaves, [n for n, o in enumerate(leaves) if may_carry(o)]), result
        )

    def skip_in_backward(self, call: ModelCall, failure: str, why: str) -> None:
        """The backward pass did not fit, and cannot run in pieces any more."""
        if self.mode == SPLIT and id(call.model) not in self._refusal:
            self._fits.setdefault(id(call.model), call.elements / 2)  # the next one begins in two
        self.record(call, failure, SKIP, why=why)
        self._skip_update()

    @torch.no_grad()
    def _evaluate(self, call: ModelCall, pieces: int, failure: str, *, proved: bool = True) -> Any:
        """The outputs without a graph, in as many pieces as it takes."""
        while True:
            try:
                if pieces == 1:
                    return call()
                parts = call.parts(pieces)
                reduction = self.reduction(call) if proved else MEAN
                weights = None if reduction is None else reduction.weights(parts)
                result = join([part() for part in parts], [part.rows for part in parts], weights)
                if proved:
                    self.fitted(call, pieces, failure)
                return result
            except CannotSplit as why:
                raise torch.OutOfMemoryError(f"{failure} (not run in pieces: {why})") from None
            except Exception as error:
                if not is_out_of_memory(error) or pieces >= call.rows:
                    raise
                failure = failure or str(error)
            release_cached_memory()
            pieces = min(2 * pieces, call.rows)

    # Reports.

    def record(self, call: ModelCall, failure: str, action: str, **more: Any) -> None:
        """Write the event that HD808 and HD809 read."""
        self._report(
            self._step(),
            OUT_OF_MEMORY,
            {
                "memory_of": "host" if not failure or names_host_memory(failure) else "device",
                "survived": True,
                "action": action,
                "error": failure.strip().partition("\n")[0],
                "place": _current_place(),
                "requested": requested_bytes(failure),
                "rows": call.rows,
                "shapes": [list(tensor.shape) for tensor in call.tensors()],
                **more,
            },
        )

    def _say(self, model: nn.Module, why: str) -> None:
        self._notices.once(
            f"oom-{id(model)}-{why}",
            f"Policy(on_oom=…) does not protect {type(model).__name__}: {why}",
        )


def _reaches_outside(model: nn.Module, outputs: Sequence[Tensor]) -> str:
    """Why the gradients of the model's parameters are not all that a backward pass computes."""
    own = {id(p) for p in model.parameters()}
    for node in walk_graph(item.grad_fn for item in outputs):
        if "CheckpointFunction" in type(node).__name__:
            return "it uses re-entrant activation checkpointing (pass use_reentrant=False)"
        variable = getattr(node, "variable", None)
        if isinstance(variable, Tensor) and id(variable) not in own:
            return "its forward pass uses trainable tensors that are not its parameters"
    return ""


def _current_place() -> dict[str, Any]:
    """The user's line that called the model, or its backward pass."""
    frame = next(filter(is_user_frame, walk_callers(current_frame(1))), None)
    return {} if frame is None else describe_frame(frame).to_dict()


def _is_known(item: Any) -> bool:
    return item is None or isinstance(item, (Tensor, bool, int, float, str))


def _is_flat(model: nn.Module) -> bool:
    return any(type(p).__name__ == "FlatParameter" for p in model.parameters())
