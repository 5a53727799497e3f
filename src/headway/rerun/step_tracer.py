"""Traces steps as they run, so that a bad one has its line without being run again.

`headway check` traces steps from the beginning of the script on. A guard traces the steps after a
bad one that could not be explained, because most faults repeat. Tracing does not change the values
that the script computes.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor, nn
from torch.amp.autocast_mode import autocast
from torch.optim import Optimizer

from headway.core.incident_events import TRACED
from headway.core.numbers import encode_numbers
from headway.output.notices import logger
from headway.rerun.bad_step import BadStep, is_bad_input
from headway.rerun.protocol import RerunHost
from headway.rerun.worker_origins import WorkerOrigins, merge_worker_origin
from headway.torch_adapters import patching
from headway.torch_adapters.module_stack import ModuleStack
from headway.torch_adapters.optimizer_adapter import notify_before_own_hooks
from headway.torch_adapters.runtime_state import compiled_code_runs, in_compiled_call, run_eagerly
from headway.torch_adapters.tensor_values import batch_tensors

if TYPE_CHECKING:
    from headway.explain.explanation import Origin, Trial
    from headway.explain.lasting_trace import LastingTrace, StepFacts
    from headway.rerun.strategies.iteration_state import IterationState

CLOSE_STEPS = 30
"""Steps of a check that are traced; after that only those that follow a bad one."""
ARMED_STEPS = 200
"""Steps that are traced after one that could not be explained: each takes longer."""
ARMED_COMPILED = 1
"""The same with compiled code, which runs eagerly meanwhile."""
MAX_ARMED = 8
"""How often a guard begins to trace."""
MAX_BATCHES = 8
MAX_RESULTS = 16
"""Bad steps whose origins are kept until they are requested: device values arrive a step late."""


Attempt = Callable[["Origin"], Sequence["Trial"]]
"""Tries the remedy for an origin."""


class StepOrigins(NamedTuple):
    """The origins of the bad values of one step."""

    origins: tuple[Origin, ...]
    bad_loss: bool
    rank: int | None = None
    """The failing rank, if there are several."""
    inputs: Sequence[Any] = ()
    """The batches of the step."""
    trials: Sequence[Trial] = ()
    """Remedies that were tried."""


class StepTracer:
    """Traces the steps of one training, in one process or on each of several ranks."""

    def __init__(self, *, shared: bool = False) -> None:
        self.shared = shared
        """Whether it outlives a guard."""
        self._session: _TraceSession | None = None
        self._traced_last = False
        """Whether the last step was traced."""
        self._every_step = False
        self._host: RerunHost | None = None
        self._left = MAX_ARMED
        self._until = 0
        self._batches: list[Any] = []
        self._fresh_batches = 0
        """Batches that came after the last backward pass: they belong to the next step."""
        self._results: dict[int, StepOrigins] = {}
        self._recorded: set[tuple[str, Any]] = set()

    @property
    def running(self) -> bool:
        """Whether steps are being traced."""
        return self._session is not None

    @property
    def idle(self) -> bool:
        """Whether no step is traced, and no origin of one waits to be recorded."""
        return self._session is None and not self._results

    @property
    def trace(self) -> LastingTrace | None:
        """The active trace."""
        return None if self._session is None else self._session.trace

    def trace_every_step(self, running: Callable[[], nn.Module | None]) -> None:
        """Begin now, before models are known; `running` returns the module that runs."""
        self._every_step = True
        self._begin(running)

    def use_host(self, host: RerunHost) -> None:
        """The guard of the training that runs now."""
        self._host = host

    def arm(self, host: RerunHost) -> bool:
        """A step was bad and is not explained: trace those that follow. False if it cannot."""
        self._host = host
        if self._session is None:
            if self._left <= 0 or in_compiled_call():
                return False
            self._left -= 1
            stack = ModuleStack(host.models)
            self._begin(stack.module, stack)
        steps = ARMED_COMPILED if compiled_code_runs() else ARMED_STEPS
        self._until = max(self._until, host.step + 1 + steps)
        if self._session is not None:
            self._session.trace.wake()
        return self._session is not None

    def _begin(
        self, running: Callable[[], nn.Module | None], stack: ModuleStack | None = None
    ) -> None:
        try:
            self._session = _TraceSession(self, running, stack)
        except Exception:  # ours: the script goes on
            logger.debug("steps cannot be traced", exc_info=True)
            self._left = 0

    def stop(self) -> None:
        """Stop tracing."""
        session, self._session = self._session, None
        if session is not None:
            session.stop()

    # Events of the training.

    def batch_drawn(self, batch: Any) -> None:
        if self._session is not None:
            self._batches = [*self._batches[1 - MAX_BATCHES :], batch]
            self._fresh_batches += 1

    def module_inputs(self, args: Any) -> None:
        """The first module got these, and no batch was drawn: the loop makes its own."""
        if self._session is not None and not self._batches:
            self.batch_drawn([item.detach() for item in batch_tensors(args)])

    def step_comes(self, optimizer: Optimizer, *, closure: bool) -> None:
        """An optimizer is about to step; its own ops are not traced, unlike those of a closure and
        of the user's hooks after the update."""
        if self._session is not None and not closure:
            self._session.pause(self._every_step, optimizer)

    def step_over(self, host: RerunHost) -> None:
        """An optimizer has stepped, or its step was skipped."""
        self._host = host
        self._traced_last = self._session is not None
        if self._session is None:
            return
        found = self._session.find_origins()
        if found is not None and found.origins:
            self._results.setdefault(host.step, found)
            for step in sorted(self._results)[:-MAX_RESULTS]:
                del self._results[step]
        self._session.trace.next_step()
        # Most faults show early; a later one is re-run, and wakes the trace for its repeats.
        if self._every_step and host.step >= max(CLOSE_STEPS, self._until):
            self._session.trace.rest()
        else:
            self._session.end_step()
        self._batches = self._batches[len(self._batches) - self._fresh_batches :]
        if not self._every_step and host.step >= self._until:
            self.stop()

    def current_origins(self) -> StepOrigins | None:
        """Where the bad values of the step that has just been made come from."""
        return None if self._session is None else self._session.find_origins()

    def pass_over(self, number: int) -> StepOrigins | None:
        """A backward pass of a script without an optimizer has ended: where its bad values come
        from; None: there are none, or it was not traced."""
        if self._session is None or self._session.trace.resting:
            return None
        found = self._session.find_origins()
        self._session.trace.next_step()
        self._batches = self._batches[len(self._batches) - self._fresh_batches :]
        if number >= CLOSE_STEPS:
            self._session.trace.rest()
        return found

    def record_unused(self, host: RerunHost, attempt: Attempt) -> None:
        """Record the origin in a step that is not bad: it may explain a later finding."""
        found = self._results.get(host.step)
        if found is None:
            return
        first = found.origins[0]
        key = (first.op, first.place)
        if key in self._recorded or len(self._recorded) >= MAX_RESULTS:
            return
        self._recorded.add(key)
        with self.set_aside():
            trials = attempt(first)
        record_origins(host, host.step, found.origins, trials)

    def collect(
        self,
        host: RerunHost,
        step: int,
        frame: FrameType | None = None,
        begin: IterationState | None = None,
    ) -> StepOrigins | None:
        """The origins of a bad step; with several ranks, those of the failing one. Every rank must
        call this. `frame`: that of the step, where it will not be run again; `begin`: the state
        when the step before it ended."""
        own = self._results.pop(step, None)
        if not self._traced_last:  # the same on all ranks: no vote is needed
            return None
        if own is not None and step == host.step:
            own = self.with_trials(host, frame, begin, own)
        if host.agreement.count > 1 and step != host.step:
            # On a device, a bad step is known only later. Until then a guard may have switched
            # itself off, which the others learn even later: no rank may wait for it.
            return own._replace(rank=host.agreement.rank) if own and own.bad_loss else None
        traces = host.agreement.gather(None if own is None else own._replace(inputs=()))
        if len(traces) == 1:
            return own
        known = {rank: found for rank, found in enumerate(traces) if found is not None}
        # The trace does not see what a collective writes, so the origin may be on another rank.
        certain = [rank for rank, found in known.items() if found.bad_loss] or list(known)
        if not certain:
            return None
        inputs = own.inputs if own is not None and certain[0] == host.agreement.rank else ()
        return known[certain[0]]._replace(rank=certain[0], inputs=inputs)

    def with_trials(
        self,
        host: RerunHost,
        frame: FrameType | None,
        begin: IterationState | None,
        found: StepOrigins,
    ) -> StepOrigins:
        """The same with its remedy as it was tried in a child process, if it can be."""
        if frame is None or found.trials or not found.origins:
            return found
        in_child = importlib.import_module("headway.rerun.step_in_child")
        with self.set_aside():
            tried = in_child.try_step(host, frame, found.origins[0], begin)
            return found._replace(trials=tried)

    @contextmanager
    def set_aside(self) -> Iterator[None]:
        """Trace nothing while a bad step is run again."""
        session = self._session
        before = session is None or session.trace.paused
        if session is not None:
            session.trace.paused = True
        try:
            yield
        finally:
            if session is not None:
                session.trace.paused = before

    # For the session.

    def learn(self) -> StepFacts:
        lasting_trace = importlib.import_module("headway.explain.lasting_trace")
        failing_step = importlib.import_module("headway.explain.failing_step")
        if self._host is None:
            step = failing_step.FailingStep((), (), list(self._batches), {})
        else:
            bad = BadStep(self._host.step, "nonfinite", (), None, None, None)
            step = replace(bad.as_failing_step(self._host), batches=list(self._batches))
        facts: StepFacts = lasting_trace.StepFacts(step, self._batches)
        return facts

    def batches(self) -> list[Any]:
        return self._batches

    def backward_began(self) -> None:
        self._fresh_batches = 0


def record_origins(
    host: RerunHost, step: int, origins: Sequence[Origin], trials: Sequence[Trial] = ()
) -> None:
    """Record origins that a step shows though its update was not skipped."""
    wording = importlib.import_module("headway.explain.explanation")
    explanation = wording.add_sentences(
        wording.Explanation(
            step, "nonfinite", "deterministic", origins=tuple(origins), trials=tuple(trials)
        )
    )
    host.record_event(step, TRACED, encode_numbers(explanation.to_dict()))


class _TraceSession(patching.TorchListener):
    """An active trace, and the events it listens to."""

    def __init__(
        self,
        tracer: StepTracer,
        running: Callable[[], nn.Module | None],
        stack: ModuleStack | None,
    ) -> None:
        # Imported only now: a healthy run need not spend the time.
        lasting_trace = importlib.import_module("headway.explain.lasting_trace")
        self._tracer = tracer
        self._stack = stack
        self.trace: LastingTrace = lasting_trace.LastingTrace(tracer.learn, tracer.batches, running)
        self._eager = ExitStack()
        self._eager.enter_context(run_eagerly())
        if stack is not None:
            stack.install()
        self.trace.__enter__()
        patching.add_listener(self)
        self._autocast = patching.call_after(autocast, "__enter__", self._autocast_entered)
        self._autocast.__enter__()
        self._workers = WorkerOrigins(self.trace)
        self._hooked: dict[int, Callable[[], None]] = {}
        """Optimizers whose own hooks are announced, and how to end that."""

    def stop(self) -> None:
        for undo in self._hooked.values():
            undo()
        self._workers.close()
        self._autocast.__exit__(None, None, None)
        patching.remove_listener(self)
        if self._stack is not None:
            self._stack.remove()
        self.trace.__exit__(None, None, None)
        self._eager.close()

    def pause(self, every_step: bool, optimizer: Optimizer) -> None:
        """Trace nothing during the update of an optimizer."""
        if not self.trace.resting and id(optimizer) not in self._hooked:
            undo = notify_before_own_hooks(optimizer, self._updated)
            if undo is not None:
                self._hooked[id(optimizer)] = undo
        self.trace.paused = True
        # Some optimizers compile their step: uncompiled, it would round differently.
        if not every_step and self.trace.rest():
            self._eager.close()

    def _updated(self) -> None:
        """The hooks that the user has registered on an optimizer come next."""
        if not self.trace.resting:
            self.trace.paused = False

    def end_step(self) -> None:
        """The step has ended: trace the next one."""
        if self.trace.resting:
            self._eager.close()
            self._eager.enter_context(run_eagerly())
        self.trace.wake()

    def find_origins(self) -> StepOrigins | None:
        """Where the bad values of the step that ends now come from; None: there are none."""
        trace = self.trace
        if trace.suspicious and not (trace.ends.losses or trace.ends.gradients):
            trace.finish_step()  # without backward(): `torch.autograd.grad`
        if trace.suspicious and not (trace.ends.losses or trace.ends.gradients):
            trace.look_at_buffers()
        if not (trace.ends.losses or trace.ends.gradients):
            return None
        locate = importlib.import_module("headway.explain.locate")
        try:
            origins = locate.find_origins(trace, trace.finish_step())
            if origins and is_bad_input(origins[0]):
                made = self._workers.find(self._tracer.batches())
                if made is not None:
                    origins = (merge_worker_origin(origins[0], made), *origins[1:])
        except Exception:  # ours
            logger.debug("the trace could not be read", exc_info=True)
            return None
        return StepOrigins(origins, bool(trace.ends.losses), inputs=self._tracer.batches())

    def _autocast_entered(self, *_: Any) -> None:
        self.trace.notes.autocast_used = True

    # Events of torch.

    def backward_begins(self, roots: Sequence[Tensor]) -> None:
        if not self.trace.paused:
            if not self.trace.resting:
                self.trace.backward_begins(roots, {})
            self._tracer.backward_began()

    def backward_ended(self, roots: Sequence[Tensor]) -> None:
        if not (self.trace.paused or self.trace.resting):
            self.trace.finish_step()
