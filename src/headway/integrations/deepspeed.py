"""Observes DeepSpeed. It controls its own step, so headway records and never skips an update.

    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    watch = headway.integrations.deepspeed.watch(engine, run_dir="runs/first")
    for batch in loader:
        engine.backward(compute(engine, batch))
        engine.step()

Under ZeRO the gradients are in DeepSpeed's own buffers and `parameter.grad` is None; reading a
gradient by name is a collective that every rank must join. So the record contains what the engine
knows: the loss, the global gradient norm, the learning rate, the loss scale, and whether it skipped
the step, as it does by itself for non-finite gradients in fp16 and bf16. Rank 0 writes.
"""

from __future__ import annotations

from headway.integrations import _needs_torch  # noqa: F401

# isort: split

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from headway._version import __version__
from headway.config import Settings
from headway.core.findings import Finding
from headway.core.numbers import round_digits
from headway.errors import UsageError
from headway.guard import guard_inputs
from headway.guard.endings.failure import FailureMoment, record_failure
from headway.guard.recorder import Recorder
from headway.output.notices import Notices
from headway.policy import Action, Policy
from headway.rerun import in_script

OBSERVES = (
    "DeepSpeed controls its own step: headway observes and records this run, "
    "and cannot skip a bad update"
)


def watch(engine: Any, run_dir: str | Path | None = None, **options: Any) -> Watch:
    """Record every step of a DeepSpeed engine, and run the checks."""
    if not all(hasattr(engine, name) for name in ("backward", "step", "get_global_grad_norm")):
        raise UsageError(
            "headway.integrations.deepspeed.watch takes the engine that deepspeed.initialize "
            f"returned: got {type(engine).__name__}"
        )
    if in_script.is_requested():
        in_script.refuse_rerun("DeepSpeed updates the weights itself: replay the step with --call")
    return Watch(engine, run_dir, **options)


def engine_in(model: Any) -> Any:
    """The model itself if it is a DeepSpeed engine, else None. Does not import DeepSpeed."""
    loaded = sys.modules.get("deepspeed")
    kind = getattr(loaded, "DeepSpeedEngine", None)
    return model if kind is not None and isinstance(model, kind) else None


class Watch:
    """Has the interface of a guard, but only observes: `actions` stays empty."""

    def __init__(
        self,
        engine: Any,
        run_dir: str | Path | None = None,
        *,
        settings: Settings | None = None,
        trackers: Sequence[Any] = (),
        **unused: Any,
    ) -> None:
        """`unused`: options of a guard that have no effect here; a notice lists them."""
        self._notices = Notices()
        self._notices.once("observe", OBSERVES)
        given = sorted(name for name, value in unused.items() if value)
        if given:
            self._notices.once(
                "unused", f"these options have no effect under DeepSpeed: {', '.join(given)}"
            )
        self._engine = engine
        self._closed = False
        self._recorder = Recorder(
            settings=settings or Settings.load(),
            policy=Policy(),
            run_dir=run_dir if engine.global_rank == 0 else None,
            facts={
                "headway": __version__,
                "models": [type(engine.module).__name__],
                "optimizers": [type(engine.optimizer).__name__],
                "zero_stage": int(engine.zero_optimization_stage()),
            },
            notices=self._notices,
            always=("grad_norm", "lr", "step_time_s"),
        )
        shown = trackers if engine.global_rank == 0 else ()
        self._trackers = guard_inputs.attach_trackers(shown, self._recorder, None, self._notices)
        self._step = 0
        self._losses: list[Any] = []
        self._began = 0.0
        self._originals = {"backward": engine.backward, "step": engine.step}
        engine.backward, engine.step = self._backward, self._take_step

    @property
    def findings(self) -> list[Finding]:
        """The findings so far, in order."""
        return self._recorder.engine.findings

    @property
    def actions(self) -> list[Action]:
        """Always empty."""
        return []

    @property
    def run_dir(self) -> Path | None:
        """The run directory; None if the run is not, or no longer, written."""
        writer = self._recorder.writer
        return None if writer is None or writer.broken else writer.path

    def count_from(self, step: int) -> None:
        """Set the number of the next step."""
        self._step = step

    def saw_batch(self, batch: Any, waited: float | None = None) -> None:
        """Batches are not kept: no step is run again."""

    def step_done(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Stop watching and restore the engine."""
        if not self._closed:
            self._closed = True
            for name in self._originals:
                vars(self._engine).pop(name, None)
            self._recorder.close(self._step)
            self._trackers.close()

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None and not self._closed:
            record_failure(self._recorder, error, FailureMoment(steps=self._step))
        self.close()

    def _backward(self, loss: Any, *args: Any, **kwargs: Any) -> Any:
        self._losses.append(loss.detach())
        return self._originals["backward"](loss, *args, **kwargs)

    def _take_step(self, *args: Any, **kwargs: Any) -> Any:
        whole = self._engine.is_gradient_accumulation_boundary()
        skipped = self._engine.skipped_steps
        result = self._originals["step"](*args, **kwargs)
        if whole:
            self._record(skipped=self._engine.skipped_steps > skipped)
        return result

    def _record(self, *, skipped: bool) -> None:
        engine, now = self._engine, time.perf_counter()
        losses, self._losses = self._losses, []
        values: dict[str, float] = {}
        if losses:
            values["loss"] = sum(map(float, losses)) / len(losses)
        norm = engine.get_global_grad_norm()
        if norm is not None:
            values["grad_norm"] = float(norm)
        values["lr"] = float(engine.get_lr()[0])
        if engine.fp16_enabled():
            values["loss_scale"] = float(engine.optimizer.cur_scale)
            if skipped:
                values["scaler_skipped"] = 1.0
        if self._began:
            values["step_time_s"] = now - self._began
        if len(losses) > 1:
            values["micro_batches"] = float(len(losses))
        self._began = now
        rounded = {name: round_digits(value) for name, value in values.items()}
        self._recorder.step(self._step, rounded, {}, held=skipped)
        self._step += 1
