"""Explains a step that cannot be run again in this process: its line, and its remedy as tried.

The user's code around the step runs in a forked child. It must fail there as it did here; then it
runs with the remedy. In the child no optimizer steps, and no collective reaches another rank.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from types import FrameType
from typing import Any

from torch import Tensor

from headway.explain.explanation import Origin, Trial
from headway.rerun.child_origin import find_in_child, try_in_child
from headway.rerun.protocol import RerunHost, trained_parameters
from headway.rerun.step_tracer import StepOrigins, StepTracer
from headway.rerun.strategies.iteration_state import IterationState
from headway.rerun.strategies.lifted_body import (
    LiftedBody,
    LoopNode,
    loops_around,
    parse_source,
    read_variables,
)
from headway.rerun.strategies.loop_body import match_loop_variable
from headway.rerun.strategies.loop_follower import frame_of
from headway.rerun.strategies.loop_source import LoopSource, find_loop, find_part
from headway.torch_adapters.patching import call_after, install_patch
from headway.torch_adapters.process_groups.local_collectives import (
    can_run_alone,
    local_collectives,
)
from headway.torch_adapters.process_groups.rank_group import find_replicas
from headway.torch_adapters.process_groups.sharded_tensors import is_dtensor, is_flat
from headway.torch_adapters.tensor_values import count_nonfinite


def try_step(
    host: RerunHost, frame: FrameType | None, origin: Origin, begin: IterationState | None = None
) -> Sequence[Trial]:
    """The remedy for the origin of the step that the frame has just made, as it was tried.

    `begin`: the state when the step before it ended.
    """
    tried = (_try(host, origin, run) for run in _possible_runs(host, frame, begin))
    return next(filter(None, tried), ())


def explain_step(
    host: RerunHost, frame: FrameType | None, begin: IterationState | None = None
) -> StepOrigins | None:
    """The origin of a bad step that was not traced, which the frame has just made."""
    explained = (_explain(host, run) for run in _possible_runs(host, frame, begin))
    return next(filter(None, explained), None)


def _explain(host: RerunHost, run: Callable[[], None]) -> StepOrigins | None:
    tracer = StepTracer()
    if not tracer.arm(host):
        return None

    def trace() -> Origin | None:
        _run_passes(host, run)
        found = tracer.current_origins()
        return found.origins[0] if found is not None and found.origins else None

    try:
        made = find_in_child(trace)
    finally:
        tracer.stop()
    if made is None:
        return None
    return StepOrigins((made,), bad_loss=True, trials=_try(host, made, run))


def _possible_runs(
    host: RerunHost, frame: FrameType | None, begin: IterationState | None
) -> Iterator[Callable[[], None]]:
    """The code around the step. A loop may run one stage of a step after the other: then it is the
    body of the loop around it, in the state in which that began."""
    found = _find_code(frame)
    if found is None or not _is_on_the_host(host):
        return
    loop, inside = found
    body = _lift_body(loop.node, inside)
    if body is not None:
        yield lambda: body((None,))
    tree = None if begin is None or loop.part else parse_source(inside)
    around = [] if tree is None else loops_around([tree], inside.f_lineno)
    outer = next((node for node in around if node.lineno < loop.node.lineno), None)
    stages = None if outer is None else _lift_body(outer, inside)
    if stages is not None and begin is not None:
        yield partial(_run_from, begin, stages)


def _run_from(begin: IterationState, body: LiftedBody) -> None:
    begin.restore()
    body((None,))


def _lift_body(node: LoopNode, inside: FrameType) -> LiftedBody | None:
    """One iteration of a loop as a function."""
    again = ast.While(test=ast.Constant(True), body=node.body, orelse=[])
    try:
        return LiftedBody(inside, ast.copy_location(again, node))
    except (SyntaxError, ValueError):  # legal in its place, not in a function
        return None


def try_batch(
    host: RerunHost, frame: FrameType | None, origin: Origin, fetch: Callable[[], Any]
) -> Sequence[Trial]:
    """The same for a batch that the loop has skipped; `fetch` draws it again, in the child."""
    run = _run_with(host, frame, fetch)
    return () if run is None else _try(host, origin, run)


def explain_batch(
    host: RerunHost, frame: FrameType | None, fetch: Callable[[], Any]
) -> StepOrigins | None:
    """The origin of what a batch that the loop has skipped makes bad."""
    run = _run_with(host, frame, fetch)
    return None if run is None else _explain(host, run)


def _run_with(
    host: RerunHost, frame: FrameType | None, fetch: Callable[[], Any]
) -> Callable[[], None] | None:
    """The body of the loop, with another batch of its loader."""
    found = _find_code(frame)
    if found is None or host.latest is None or not _is_on_the_host(host):
        return None
    loop, inside = found
    if loop.part or not isinstance(loop.node, ast.For):
        return None
    variables = read_variables(inside, loop.targets)
    variable = match_loop_variable(loop.node, variables, host.latest.batch)
    if variable is None:
        return None
    try:
        body = LiftedBody(inside, loop.node)
    except (SyntaxError, ValueError):  # likewise
        return None
    value_for = variable.value_for
    return lambda: body((value_for(fetch(), 0),))


def _find_code(frame: FrameType | None) -> tuple[LoopSource, FrameType] | None:
    """The code around the step that can be run again, and its frame."""
    loop = find_loop(frame)
    if not isinstance(loop, LoopSource) or loop.obstacle:
        part = find_part(frame)
        if part is None:
            return None
        loop = part
    inside = frame_of(loop, frame)
    if inside is None:
        return None
    assigned = read_variables(inside, loop.carried).values()
    if any(isinstance(value, Tensor) and _is_result(value) for value in assigned):
        return None  # its value before the step is not known
    return loop, inside


def _is_result(value: Tensor) -> bool:
    return value.requires_grad or any(count_nonfinite(value))


def _is_on_the_host(host: RerunHost) -> bool:
    """A child cannot use a GPU, memory that processes share is not its own, and one rank does not
    have the weights that are sharded over several."""
    parameters = trained_parameters(host)
    sharded = any(map(is_dtensor, parameters)) or any(map(is_flat, host.models))
    if sharded or not can_run_alone():
        return False
    return all(p.device.type == "cpu" and not p.is_shared() for p in parameters)


def _try(host: RerunHost, origin: Origin, run: Callable[[], None]) -> Sequence[Trial]:
    def is_good() -> bool:
        passes = _run_passes(host, run)
        return bool(passes) and all(passes) and not _bad_buffers(host)

    def fails() -> Origin | None:
        return None if is_good() else origin

    return try_in_child(find_in_child(fails), is_good)


def _run_passes(host: RerunHost, run: Callable[[], None]) -> list[bool]:
    """In the child: whether each backward pass has a finite loss and finite gradients."""
    good: list[bool] = []
    parameters = trained_parameters(host)

    def passed(loss: Tensor, args: Any, result: Any) -> None:
        gradients = [p.grad for p in parameters if p.grad is not None]
        good.append(not any(any(count_nonfinite(item.detach())) for item in (loss, *gradients)))

    for parameter in parameters:
        parameter.grad = None
    for buffer in _buffers(host):
        buffer.nan_to_num_(0.0, 0.0, 0.0)
    with ExitStack() as around, suppress(Exception):
        around.enter_context(local_collectives())
        for replica in find_replicas(host.models):
            around.enter_context(replica.no_sync())
        around.enter_context(call_after(Tensor, "backward", passed))
        for optimizer in host.optimizers:
            around.callback(install_patch(optimizer, "step", _only_closure))
        run()
    return good


def _only_closure(closure: Callable[[], Any] | None = None, *args: Any, **more: Any) -> Any:
    return None if closure is None else closure()


def _buffers(host: RerunHost) -> list[Tensor]:
    found = [buffer for model in host.models for buffer in model.buffers()]
    return [buffer for buffer in found if buffer.is_floating_point()]


def _bad_buffers(host: RerunHost) -> bool:
    return any(any(count_nonfinite(buffer)) for buffer in _buffers(host))
