"""Runs the demo, measures every claim and prints it."""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from headway.demo import model as model_source
from headway.demo.alice_dataset import Alice, AliceWithABlankLine
from headway.demo.training import (
    Guarded,
    ModelAndOptimizer,
    step_unguarded,
    train_clean,
    train_guarded,
)
from headway.output.terminal import TerminalPage

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


MARGIN = "   "
PLAIN_LINES = 6
"""Without a bar, about this many lines per training."""


class DemoPrinter:
    """Prints the demo."""

    def __init__(self, page: TerminalPage) -> None:
        self.page = page
        self._chapters = 0

    def chapter(self, title: str) -> None:
        """A heading."""
        self._chapters += 1
        self.page.gap()
        self.page.line((f"{self._chapters}  ", "cyan"), (title, "bold"))

    def say(self, text: str) -> None:
        """A paragraph."""
        self.page.line(text, first=MARGIN)

    def claim(self, text: str, *, holds: bool) -> None:
        """Print a measured claim, and whether it is true."""
        mark = ("good", "bold green") if holds else ("error", "bold red")
        claim = text if holds else f"did not hold: {text}"
        self.page.line(
            (self.page.mark(mark[0]), mark[1]), f" {claim}", first=MARGIN, rest=MARGIN + "  "
        )

    def code(self, place: str, line: str) -> None:
        """A line of code and its location."""
        self.page.line((place, "cyan"), first=MARGIN + "  ")
        self.page.line((line, "bold"), first=MARGIN + "    ")

    @contextmanager
    def training(
        self, steps: int, title: str = "training", *, quiet: bool = False
    ) -> Iterator[Callable[[int, float], None]]:
        """Shows the progress of a training and the messages of the guard.

        With `quiet`, nothing remains on the page.
        """
        if self.page.live:
            with self._bar(steps, title, keep=not quiet) as notify:
                yield notify
            return
        every = max(steps // PLAIN_LINES, 1)

        def print_line(step: int, loss: float) -> None:
            if not quiet and (step % every == 0 or step == steps - 1):
                self.say(f"step {step:3}  loss {loss:.3f}")

        with self._listening():
            yield print_line

    @contextmanager
    def _bar(self, steps: int, title: str, *, keep: bool) -> Iterator[Callable[[int, float], None]]:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        words = TextColumn("{task.description}", markup=False)
        numbers = TextColumn("{task.fields[status]}", markup=False)
        bar = Progress(
            TextColumn("  "),
            words,
            BarColumn(30),
            numbers,
            TimeElapsedColumn(),
            console=self.page.console,
            transient=not keep,
        )
        with bar, self._listening():
            yield _make_bar_updater(bar, bar.add_task(title, total=steps, status=""))

    @contextmanager
    def _listening(self) -> Iterator[None]:
        """Print the messages of the guard's logger."""
        logger = logging.getLogger("headway")
        handler = _GuardLogHandler(self)
        propagate, logger.propagate = logger.propagate, False
        logger.addHandler(handler)
        try:
            yield
        finally:
            logger.removeHandler(handler)
            logger.propagate = propagate


def _make_bar_updater(bar: Progress, task: TaskID) -> Callable[[int, float], None]:
    def notify(step: int, loss: float) -> None:
        bar.update(task, completed=step + 1, status=f"step {step}  loss {loss:.3f}")

    return notify


class _GuardLogHandler(logging.Handler):
    def __init__(self, printer: DemoPrinter) -> None:
        super().__init__(logging.WARNING)
        self._printer = printer

    def emit(self, record: logging.LogRecord) -> None:
        page = self._printer.page
        page.line(
            (page.mark("warning"), "yellow"),
            (f" {record.getMessage()}", "yellow"),
            first=MARGIN,
            rest=MARGIN + "  ",
        )


STEPS = 240
FINAL_STEPS = 20
"""The final loss is the mean over this many steps, because single batches vary."""
BLANK_SAMPLE = 5


@dataclass
class DemoWalkthrough:
    """Runs the demo and checks its claims."""

    printer: DemoPrinter
    run_dir: Path
    steps: int = STEPS
    broken: list[str] = field(default_factory=list)
    """Claims that did not hold."""

    @property
    def bad(self) -> int:
        """The step whose batch contains the blank line."""
        return self.steps * 3 // 5

    def run(self) -> list[str]:
        """Run the demo; the claims that did not hold."""
        with one_thread():
            data = AliceWithABlankLine(self.steps, blank_in=self.bad, blank_sample=BLANK_SAMPLE)
            guarded = self._train(data)
            self._show_finding(guarded)
            self._show_skipped_update(guarded)
            self._without_the_guard(guarded.before, data)
            self._show_rest_of_run(guarded, data)
            self._show_cause(guarded)
        return self.broken

    def _train(self, data: Alice) -> Guarded:
        size = ModelAndOptimizer.new(data).size
        self.printer.chapter("Training under the guard")
        self.printer.say(
            f"A transformer of {size:,} weights learns to spell from the first chapter of "
            f"“Alice in Wonderland”: {self.steps} steps on one core. "
            "One of the batches contains a blank line."
        )
        with self.printer.training(self.steps) as notify:
            return train_guarded(data, bad=self.bad, run_dir=self.run_dir, notify=notify)

    def _show_finding(self, guarded: Guarded) -> None:
        self.printer.chapter("What failed")
        found = [item for item in guarded.findings if item.code == "HD101"]
        self._claim(
            [item.step for item in found] == [self.bad],
            f"HD101 nonfinite-loss was found at step {self.bad} and at no other step",
        )

    def _show_skipped_update(self, guarded: Guarded) -> None:
        self.printer.chapter("What the guard did")
        steps = [action.step for action in guarded.actions]
        self._claim(
            steps == [self.bad],
            f"one update was skipped, that of step {self.bad} (action: {_rungs(guarded)})",
        )
        before, after = guarded.before.fingerprint(), guarded.fingerprint_after
        self._claim(
            before == after and guarded.learner.nonfinite_weights() == 0,
            "weights and optimizer state are unchanged, bit for bit: "
            f"sha256 {before[:12]} before, {after[:12]} after",
        )

    def _without_the_guard(self, copy: ModelAndOptimizer, data: Alice) -> None:
        self.printer.chapter("The same step without the guard")
        step_unguarded(copy, data.batch(self.bad))
        nonfinite, size = copy.nonfinite_weights(), copy.size
        after = step_unguarded(copy, data.batch(self.bad + 1))
        self._claim(
            nonfinite > 0 and not math.isfinite(after),
            f"in a copy without the guard, {nonfinite:,} of {size:,} weights are NaN after the "
            f"step, and the next loss is {_format_loss(after)}",
        )

    def _show_rest_of_run(self, guarded: Guarded, data: Alice) -> None:
        self.printer.chapter("The rest of the run")
        with self.printer.training(self.steps, "a clean run, for comparison", quiet=True) as notify:
            clean, clean_losses = train_clean(data, without=self.bad, notify=notify)
        first = guarded.losses[0]
        final, other = _final(guarded.losses), _final(clean_losses)
        self._claim(final < first, f"the loss kept falling: {first:.3f} → {final:.3f}")
        same = clean.fingerprint() == guarded.learner.fingerprint()
        self._claim(
            same or abs(final - other) <= 0.01 * other,
            f"a clean run without that batch ends at {other:.3f}"
            + (", and its weights are the same, bit for bit" if same else ""),
        )

    def _show_cause(self, guarded: Guarded) -> None:
        self.printer.chapter("The cause and the fix")
        self.printer.say(
            "The guard re-ran the bad step while watching every op, traced the NaN to the op that "
            "produced it, and tried remedies on the step."
        )
        line, code = planted_line()
        explanation = guarded.explanations[0] if guarded.explanations else None
        origin = explanation.origin if explanation else None
        place = origin.place if origin else None
        self._claim(
            place is not None and place.line == line,
            f"the line: {Path(place.file).name}:{place.line}" if place else "the line was named",
        )
        self.printer.code(f"headway/demo/model.py:{line}", code)
        if origin is not None:
            self.printer.say(f"{origin.cause}.")
        self._claim(
            origin is not None and origin.rows == (BLANK_SAMPLE,),
            f"the sample: row {BLANK_SAMPLE} of the batch, a blank line",
        )
        cure = explanation.cure if explanation else None
        self._claim(
            cure is not None,
            f"a tested fix: {cure.text}" if cure else "a fix was found",
        )

    def _claim(self, holds: bool, text: str) -> None:
        self.printer.claim(text, holds=holds)
        if not holds:
            self.broken.append(text)


def planted_line() -> tuple[int, str]:
    """Number and text of the faulty line."""
    lines, start = inspect.getsourcelines(model_source.loss_of)
    for number, line in enumerate(lines, start):
        if "/ real.sum" in line:
            return number, line.strip()
    raise LookupError("the planted line is missing")


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread: fastest for a small model, and steady on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _final(losses: Mapping[int, float]) -> float:
    # The bad step has no finite loss; in a short demo it may be among the last.
    last = [loss for loss in list(losses.values())[-FINAL_STEPS:] if math.isfinite(loss)]
    return sum(last) / len(last)


def _rungs(guarded: Guarded) -> str:
    return ", ".join(action.rung.value for action in guarded.actions) or "no action was taken"


def _format_loss(value: float) -> str:
    return "NaN" if math.isnan(value) else f"{value:.3f}"
