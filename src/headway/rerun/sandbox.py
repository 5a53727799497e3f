"""Runs a step again without any effect on the training.

Every pass begins in the state in which the step began: weights (their update was skipped), random
numbers, buffers, loss scale, no gradients. During a pass no optimizer updates anything, and the
measured values go to the pass and not to the record. Afterwards everything is as it was before the
first pass.
"""

from __future__ import annotations

import logging
import math
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from headway.errors import RankLost
from headway.explain.failing_step import FAILED_ON_OTHER_RANK, Outcome, StepPass
from headway.rerun.protocol import Rerun, RerunHost, trained_parameters
from headway.rerun.recorded_batch import RecordedBatch
from headway.rerun.rerun_group import StepAborted
from headway.rerun.sandbox_state import save_training_state
from headway.torch_adapters import patching
from headway.torch_adapters.modes import WriteUndo, no_dispatch_modes, no_function_modes
from headway.torch_adapters.optimizer_adapter import (
    CachedLossClosure,
    LossScaling,
    find_closure,
    rewind_scaler,
    with_closure,
)
from headway.torch_adapters.process_groups.local_collectives import local_collectives
from headway.torch_adapters.process_groups.sharded_tensors import local_part
from headway.torch_adapters.rng import RngState
from headway.torch_adapters.runtime_state import compiled_code_runs, run_eagerly
from headway.torch_adapters.step_skipping import HostBrake

if TYPE_CHECKING:
    from headway.rerun.rerun_group import RerunGroup


class RerunSandbox:
    """A context manager around all passes over one bad step."""

    def __init__(
        self,
        host: RerunHost,
        observer: Any,
        *,
        before: RngState,
        scale: Tensor | None,
        batches: Sequence[RecordedBatch] = (),
        judged: Sequence[Tensor] = (),
        others: Sequence[Any] = (),
    ) -> None:
        """`before`: the random numbers before the step; `scale`: its loss scale; `batches`: those
        that the passes use; `judged`: for a spike, the parameters whose gradient norm jumped;
        `others`: schedules and averages that may belong to this training."""
        self._host = host
        self._observer = observer
        self._others = others
        self._before = before
        self._scale = scale
        self._batches = batches
        self._group = host.rerun_group
        self._judged = frozenset(map(id, judged))
        self._optimizers = host.optimizers
        self._names = host.parameter_names()
        self._scaling = LossScaling(host.scaling.scaler)
        self._brakes: dict[int, HostBrake] = {}
        self._undo, self._within = ExitStack(), ExitStack()
        self._written = WriteUndo()
        self._pass: StepPass | None = None
        self._components: Mapping[str, Tensor] = {}
        self._settled = False
        """Whether the optimizer of the judged gradients has stepped."""

    @property
    def is_running_pass(self) -> bool:
        """Whether a pass runs now."""
        return self._pass is not None

    def __enter__(self) -> RerunSandbox:
        with ExitStack() as undo:  # if anything fails here, undo what was done
            for kept in self._batches:
                undo.enter_context(kept.as_given())
            copy = self._group is not None and self._group.settles
            scaler, others = self._scaling.scaler, self._others
            save_training_state(self._host, undo, scaler, others=others, copy_gradients=copy)
            for hook in (
                # Also optimizers that no guard watches: nothing may be updated.
                register_optimizer_step_pre_hook(self._hold_any),
                register_optimizer_step_post_hook(self._release_any),
            ):
                undo.callback(hook.remove)
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        with self._undo:
            self.leave(None)
            if self._group is not None and not isinstance(error[1], RankLost):
                self._group.finish()
                patching.add_listener(self)  # the guard must not see it
                patching.remove_listener(self._observer)
                self._group.settle()
                patching.add_listener(self._observer)
                patching.remove_listener(self)

    # One pass.

    def enter(self, one: StepPass) -> None:
        """Restore the state before the step, and enter the modes of the pass."""
        self._pass, self._components, self._settled = one, {}, False
        patching.add_listener(self)
        patching.remove_listener(self._observer)
        if self._group is not None:
            self._group.begin(self._host.buffers.restore)
        else:  # other ranks may exist, and run nothing again
            self._within.enter_context(local_collectives())
            self._host.buffers.restore()
        for parameter in self._parameters():
            parameter.grad = None
        scaler = self._scaling.scaler
        if scaler is not None and self._scale is not None:
            rewind_scaler(scaler, self._scale)
        self._before.restore()
        # "again" asks whether compiled code is at fault: it must run as it did.
        if one.purpose != "again" or not compiled_code_runs():
            # Code that has once run under a mode stays uncompiled.
            self._within.enter_context(run_eagerly())
            self._within.enter_context(self._written)
        for manager in one.within:
            self._within.enter_context(manager)

    def leave(self, error: BaseException | None) -> None:
        """The pass is over, complete or not."""
        one, self._pass = self._pass, None
        if one is None:
            return
        with suppress(Exception):  # a body may have left a mode of its own on top
            self._within.close()
        self._within = ExitStack()
        self._written.put_back()
        self._written = WriteUndo()
        for brake in self._brakes.values():
            brake.release()
        for kept in self._batches:
            kept.restore()
        patching.add_listener(self._observer)
        patching.remove_listener(self)
        outcome = one.outcome
        if error is not None:
            aborts = isinstance(error, StepAborted)
            outcome.error = FAILED_ON_OTHER_RANK if aborts else format_error(error)
        if self._group is not None:

            def aborted() -> None:
                outcome.error = outcome.error or FAILED_ON_OTHER_RANK

            self._group.end(failed=error is not None, aborted=aborted)

    def run_pass(self, one: StepPass, rerun: Rerun) -> Iterator[Any]:
        """Run one pass; whatever the step raises is part of the outcome.

        Yields the batches for the user's loop, if the step cannot be called.
        """
        error: BaseException | None = None
        try:
            self.enter(one)
            if rerun.may_raise:
                # Not for a pass in the user's own loop: a traceback would be lost.
                self._within.enter_context(silenced())
            yield from rerun.run(one.batches)
        except GeneratorExit:  # the loop was left
            raise
        except BaseException as raised:  # of the user's own step, whatever it is
            error = raised
            if not isinstance(raised, Exception):
                raise
        finally:
            self.leave(error)
            if error is not None:
                error.__traceback__ = None  # it would keep the step's tensors

    # Hooks of the optimizers, during a pass.

    def before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        """Prevent the update; a closure is called once, as usual."""
        steps = {id(p) for group in optimizer.param_groups for p in group["params"]}
        closure = find_closure(args, kwargs)
        answer = None
        if closure is not None:
            with torch.enable_grad():
                answer = CachedLossClosure(closure, closure(), held=True)
        self._look_at_gradients(optimizer)
        self._settled = self._settled or not steps.isdisjoint(self._judged)
        brake = self._brakes.setdefault(id(optimizer), HostBrake(optimizer))
        with no_function_modes():  # a remedy's mode must not intervene
            brake.skip()
        return None if answer is None else with_closure(args, kwargs, answer)

    @torch.no_grad()
    def _look_at_gradients(self, optimizer: Optimizer) -> None:
        """The body itself may have made finite gradients non-finite after backward."""
        one = self._pass
        if one is not None and not one.outcome.complete:  # without backward(): `autograd.grad`
            self.backward_ended(())
        if one is None or not one.outcome.finite:
            return
        held = [
            parameter
            for group in optimizer.param_groups
            for parameter in group["params"]
            if parameter.grad is not None
        ]
        with no_function_modes(), no_dispatch_modes():
            bad = _nonfinite(held)
        if not bad:
            return
        if one.observer is not None:
            one.observer.gradients_ready(bad)
        one.outcome.norms.update(self._norms(bad))

    def after_step(self, optimizer: Optimizer) -> None:
        brake = self._brakes.get(id(optimizer))
        if brake is not None:
            brake.release()

    def _hold_any(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        if self.is_running_pass and all(optimizer is not mine for mine in self._optimizers):
            return self.before_step(optimizer, args, kwargs)
        return None

    def _release_any(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self.is_running_pass and all(optimizer is not mine for mine in self._optimizers):
            self.after_step(optimizer)

    # Called by the torch patches, during a pass.

    def components(self, named: Mapping[str, Tensor]) -> None:
        """The named parts of the loss whose backward comes next."""
        self._components = named

    def backward_begins(self, roots: Sequence[Tensor]) -> None:
        if self._pass is not None and self._pass.observer is not None:
            self._pass.observer.backward_begins(roots, self._components)

    @torch.no_grad()
    def backward_ended(self, roots: Sequence[Tensor]) -> None:
        one = self._pass
        if one is None:
            return
        one.outcome.losses += [float(self._scaling.unscaled(root)) for root in roots]
        for name, part in self._components.items():
            value = float(part.detach())
            one.outcome.components[name] = one.outcome.components.get(name, 0.0) + value
        self._components = {}
        with_gradients = [p for p in self._parameters() if p.grad is not None]
        if one.observer is not None:
            one.observer.gradients_ready(with_gradients)
        self._measure(one.outcome, with_gradients)

    def clipping(
        self, parameters: Sequence[Tensor], norms: Sequence[Tensor] | None, total: Tensor
    ) -> None:
        """Norms are measured right after backward: before any clipping."""

    def clipped(self, total: Tensor, max_norm: float) -> None: ...

    def scaled(self, scaler: GradScaler, loss: Tensor, result: Tensor) -> None:
        self._scaling.scaled(scaler, loss, result)

    def scaler_steps(self, scaler: GradScaler, optimizer: Optimizer) -> None: ...

    def scaler_stepped(self, scaler: GradScaler, optimizer: Optimizer) -> None: ...

    def scaler_for(self, loss: Tensor) -> GradScaler | None:
        """The scaler with which a loss must still be scaled."""
        return self._scaling.needed_for(loss)

    def _measure(self, outcome: Outcome, parameters: Sequence[Tensor]) -> None:
        norms = self._norms(parameters)
        # Under several optimizers a bad gradient may be cleared before the next backward.
        bad = {name: norm for name, norm in outcome.norms.items() if not math.isfinite(norm)}
        if self._group is not None and math.isfinite(outcome.made):
            outcome.made = self._group.local_norm(norms.values())
        if not self._judged:
            outcome.norms = {**norms, **bad}
        elif not self._settled:
            names = {self._names.get(id(p)) for p in parameters if id(p) in self._judged}
            outcome.norms = (
                {name: norm for name, norm in norms.items() if name in names}
                if self._group is None
                else self._over_all_ranks(self._group)
            )

    def _over_all_ranks(self, group: RerunGroup) -> dict[str, float]:
        """Of every parameter, whether or not it has a gradient on this rank."""
        judged = [p for p in self._parameters() if id(p) in self._judged]
        scale = self._scaling.scale()
        norms = group.norms(judged)
        divisor = 1.0 if scale is None else float(scale)
        names = [self._names.get(id(p), f"parameter {at}") for at, p in enumerate(judged)]
        return {name: norm / divisor for name, norm in zip(names, norms, strict=True)}

    def _norms(self, parameters: Sequence[Tensor]) -> dict[str, float]:
        if not parameters:
            return {}
        gradients = [local_part(p.grad) for p in parameters if p.grad is not None]
        with no_dispatch_modes():  # what is only read need not be traced
            read = _read_norms(gradients)
        scale = self._scaling.scale()
        divisor = 1.0 if scale is None else float(scale)
        names = [self._names.get(id(p), f"parameter {at}") for at, p in enumerate(parameters)]
        return {name: norm / divisor for name, norm in zip(names, read, strict=True)}

    def _parameters(self) -> list[Tensor]:
        return trained_parameters(self._host)


@contextmanager
def silenced() -> Iterator[None]:
    """What the step has printed, logged or drawn as a progress bar is not shown again."""
    own, call_handlers = threading.get_ident(), logging.Logger.callHandlers

    def of_other_threads(self: logging.Logger, record: logging.LogRecord) -> None:
        # Hooks of a backward pass on a device run in threads that Python did not start.
        ours = threading.get_ident() == own or threading.current_thread().name.startswith("Dummy-")
        if not ours:
            call_handlers(self, record)

    logging.Logger.callHandlers = of_other_threads  # type: ignore[method-assign]
    # A progress bar writes to the stream that it found when it was created.
    tqdm = getattr(sys.modules.get("tqdm.std"), "tqdm", None)
    bars = [bar for bar in getattr(tqdm, "_instances", ()) if not getattr(bar, "disable", True)]
    for bar in bars:
        bar.disable = True
    try:
        with (
            open(os.devnull, "w", encoding="utf-8") as nowhere,
            redirect_stdout(nowhere),
            redirect_stderr(nowhere),
        ):
            yield
    finally:
        logging.Logger.callHandlers = call_handlers  # type: ignore[method-assign]
        for bar in bars:
            bar.disable = False


def format_error(error: BaseException | None) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _nonfinite(parameters: Sequence[Tensor]) -> list[Tensor]:
    """Those whose gradient has a non-finite element."""
    if not parameters:
        return []
    gradients = [local_part(p.grad) for p in parameters if p.grad is not None]
    suspects = zip(parameters, gradients, _read_norms(gradients), strict=True)
    # A norm overflows before its elements do, so only a finite one is proof.
    return [
        parameter
        for parameter, gradient, norm in suspects
        if not math.isfinite(norm) and not bool(torch.isfinite(_values(gradient)).all())
    ]


def _values(gradient: Tensor) -> Tensor:
    return gradient.coalesce().values() if gradient.is_sparse else gradient


def _read_norms(gradients: Sequence[Tensor]) -> list[float]:
    tensors = [_values(gradient) for gradient in gradients]
    first = tensors[0]
    alike = all(t.dtype == torch.float32 and t.device == first.device for t in tensors)
    if alike and all(t.layout is torch.strided and t.numel() for t in tensors):
        return torch.stack(list(torch._foreach_norm(list(tensors)))).double().tolist()
    norms = [torch.linalg.vector_norm(tensor, dtype=_wide(tensor)) for tensor in tensors]
    return torch.stack([norm.to(first.device, torch.float64) for norm in norms]).tolist()


def _wide(tensor: Tensor) -> torch.dtype | None:
    """Sums of squares in the tensor's own dtype would overflow in half precision."""
    return torch.float32 if tensor.dtype in (torch.float16, torch.bfloat16) else None
