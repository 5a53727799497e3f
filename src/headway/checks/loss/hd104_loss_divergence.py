from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from headway.checks.loss_context import (
    ValidationPoint,
    ends_above_best,
    find_overfitting,
    first_risen,
    has_competing_losses,
    is_far_above,
    keep_curve,
    note_validation,
    rises_beyond,
    split_thirds,
)
from headway.checks.symptoms import NONFINITE_STEP
from headway.core.check import Check, Needs
from headway.core.findings import Finding, Severity
from headway.core.numbers import say
from headway.core.records import Header, Moment, StepRecord, moment_of, record_at
from headway.core.signals import Signal
from headway.core.window import (
    BestLevel,
    DownsampledSeries,
    Window,
    detrended_sigma,
)

BACK = 3
"""Consecutive losses within the band that end a rise."""
PROOF = 5
"""Losses above the band that are enough if no further finite loss can follow."""
GROWN = 3.0
"""A rise whose worst loss is this multiple of its first comes from the updates, not new data."""
GRADUAL = 1.4
"""In a log: multiple of the best level that is enough for a rise without a jump."""
BLOWN_UP = 100.0
"""Multiple of the start level that is a divergence even if the loss is falling again."""
COARSE = 10
"""A value that covers this many steps (an epoch's mean) counts as that many single values."""
SHORT = 100
"""A log with fewer rows is judged a second time at its end, with more weight per row."""
QUIET, SLOW = 16, 3
"""Losses before a rise that show where it began, and the factor on that for a slow rise."""
SERIOUS = 0.25
"""Share of the progress that a curve must have lost at its end for an error, not a warning."""


class LossDivergence(Check):
    """The loss rises from its best level and does not return.

    ## What it checks
    The loss since it left the band around the best level of the run so far.

    ## Why it matters
    Every step after the onset is wasted, and every checkpoint saved after it is worse than the one
    before. Runs rarely recover from it without intervention.

    ## How it is measured
    The best level is the lowest median of 20 losses. A rise begins where the loss leaves the band
    of 6 robust standard deviations around it, and ends when three losses in a row are back in the
    band. A rise is judged after half as many steps as came before it (30 to 200), or three times
    the longest recovery so far. It is a divergence if the loss has doubled, has risen by 5 times
    its noise and its own slow drift, has lost half of the progress since the start, and neither
    falls nor touches the band. Without earlier progress it must have risen fivefold; a signed loss,
    by twice all progress. A loss of 100 times the start level and a rise that ends in NaN are
    reported at once. The finding is placed at the step where the loss left its best level. At the
    end of another tool's log a rise of a few rows counts if it does not fall and is worse than
    everything before; so does a curve that stays 15 % above its best level for its last fifth or
    longer, unless a quarter of the rise is recovered. A validation loss that ends 15 % above its
    best while the training loss falls is information: the model overfits.

    ## False alarms
    After a curriculum switch or a warm restart the loss falls again; once a quarter of the rise is
    recovered, the new level becomes the reference. Several optimizers with different losses (GAN,
    actor and critic) work against each other, so a rising loss means nothing: those runs are not
    judged. A script that trains another model with another optimizer (a teacher, then a student)
    begins a new series. In value-based reinforcement learning, ignore the code.

    ## What to do
    Resume from a checkpoint before the onset, with a lower learning rate or past the batches that
    started the rise. Check the gradient norm and the learning rate at the onset, not at the end.

    ## References
    Chowdhery et al., "PaLM", section 5.1 (go back about 100 steps, skip 200-500 batches); Bekman,
    "Machine Learning Engineering", on instabilities; TheDeepChecker's rule of twice the best loss.
    """

    code = "HD104"
    name = "loss-divergence"
    severity = Severity.ERROR
    summary = "sustained rise from the best level, no recovery"
    needs = Needs(signals=("loss",))
    scope = "training"
    explains = (*NONFINITE_STEP, "HD103", "HD202", "HD207", "HD208", "HD304", "HD305", "HD308")
    yields_to = ("HD101", "HD202", "HD308")
    remedies = (
        "Resume from a checkpoint before this step, with a lower learning rate or past the batches "
        "that started the rise; later checkpoints are worse.",
        "Check the gradient norm and the learning rate at this step: a spike points to a batch, "
        "the peak of the warm-up to the learning rate.",
    )

    @dataclass(frozen=True)
    class Limits:
        ratio: float = 2.0
        """Multiple of the level before the rise, for a positive loss."""
        ratio_without_progress: float = 5.0
        """The same, in a run that was never better than at its start."""
        sigmas: float = 6.0
        """Half width of the band around the best level, in robust standard deviations."""
        shortest: int = 30
        """Losses above the band before a rise is judged, early in a run."""
        longest: int = 200
        """The same, late in a run."""

    def start(self) -> None:
        self.coarse = False
        self.best = BestLevel(sigmas=self.limits.sigmas)
        self.signed = False
        """Whether the loss was ever below 0."""
        self.before = Window(100)
        """The losses before the rise, in the band or not: they show how far this run drifts."""
        self.onset: Moment | None = None
        """Where the loss left the band; None while it is in the band."""
        self.rise = DownsampledSeries(64)
        """The losses since the onset; below: how many, how many in the band, and how many last."""
        self.above = self.touches = self.inside = 0
        self.first_jump = self.worst = self.latest = self.peak = -math.inf
        """The first loss of the rise, the worst two in a row, the latest, and the highest level."""
        self.reported = False
        self.longest_return = 0
        """The longest rise that the run recovered from."""
        self.rivals: dict[str, float] = {}
        """The latest loss of each optimizer, if there are several."""
        self.first_step: int | None = None
        self.segment = 0
        self.ever_reported = False
        self.quiet: list[tuple[Moment, float]] = []
        """In such a log: the latest losses within the band."""
        self.left: Moment | None = None
        """The one among them with which the rise began."""
        self.pending = ""
        """In such a log: the ending of a divergence from which the run may still recover."""
        self.curve: list[tuple[Moment, float]] = []
        """In such a log: the losses since its start or restart, thinned."""
        self.validation: list[ValidationPoint] = []
        """In such a log: the evaluations, each with the latest training loss."""

    def begin(self, header: Header) -> None:
        self.coarse = header.signals.get("loss", Signal()).span >= COARSE
        if self.best.seen == 0:
            self.best = BestLevel(self._values(20), self.limits.sigmas)

    def observe(self, record: StepRecord) -> Iterable[Finding]:
        loss = record.values.get("loss")
        if loss is None or record.held or self._has_rivals(record):
            return
        yield from self._observe_loss(record, loss)

    def observe_row(self, record: StepRecord) -> Iterable[Finding]:
        loss = record.values.get("loss")
        if has_competing_losses(self.context.header):
            return
        note_validation(self.validation, record, self.curve)
        if loss is None:
            return
        if record.segment != self.segment and self.pending:
            # The run was restarted, so it did not recover by itself.
            yield self._finding(self.pending)
            self.pending = ""
        self._note_row(record, loss)
        yield from self.observe(record)

    def _observe_loss(self, record: StepRecord, loss: float) -> Iterable[Finding]:
        if not math.isfinite(loss):
            ending = "and then became NaN or Inf"
            yield from self._judge(PROOF, PROOF, ending)
            if self._grows_at_the_end(2 if self.coarse else 3):
                yield from self._report(ending)
            return
        self.signed = self.signed or loss < 0
        if self.onset is None and loss <= self.best.band:
            self.before.push(loss)
            self.best.learn(record.step, loss)
            if self.context.rows:
                self.quiet.append((moment_of(record), loss))
                if len(self.quiet) > 2 * SLOW * QUIET:
                    del self.quiet[: -SLOW * QUIET]
            return
        self._climb(record, loss)
        if self.inside >= BACK:
            self.longest_return = max(self.longest_return, self.above)
            self._recover()
        elif self.coarse or self.above % 5 == 0:
            least = self._values(self.limits.shortest)
            yield from self._judge(least, self._patience(), "and has not recovered")

    def finish(self) -> Iterable[Finding]:
        least = self._values(self.limits.shortest)
        ending = "and is still there at the end of the record"
        yield from self._judge(least, least, ending)
        if self._grows_at_the_end(3 if self.coarse else PROOF):
            yield from self._report(ending)
        if self.pending:
            yield self._finding(self.pending)
            self.pending = ""
            return
        found = list(self._judge_short_log()) or list(self._judge_curve())
        overfitting = None if found or self.ever_reported else find_overfitting(self.validation)
        if overfitting is not None:
            at, wording = record_at(overfitting.at), overfitting.as_finding()
            found = [self.find(at, subject="eval/loss", severity=Severity.INFO, **wording)]
        yield from found

    def _note_row(self, record: StepRecord, loss: float) -> None:
        if self.first_step is None:
            self.first_step = record.step
        elif record.segment != self.segment and record.step <= self.first_step:
            # The log of a restarted training, appended to that of the first attempt.
            reported = self.ever_reported
            self.start()
            self.begin(self.context.header)
            self.ever_reported, self.first_step = reported, record.step
        self.segment = record.segment
        self.curve = keep_curve(self.curve, moment_of(record), loss)

    def _judge_short_log(self) -> Iterable[Finding]:
        """Judge a short log again, as if each row were the mean of many steps."""
        if self.coarse or self.ever_reported or self.segment or not 5 <= len(self.curve) < SHORT:
            return
        again = LossDivergence()
        again.limits, again.context = self.limits, self.context
        again.coarse = True
        again.best = BestLevel(again._values(20), self.limits.sigmas)
        for moment, loss in self.curve:
            list(again._observe_loss(record_at(moment), loss))
        found = again._finding(again.pending) if again.pending else None
        # Single steps are noisy: the rise must be worse than everything before it.
        if found and found.evidence["level"] > max(again.before.values, default=math.inf):
            yield found
        elif again._grows_at_the_end(PROOF - 1):
            yield again._finding("and is still there at the end of the record")

    def _judge_curve(self) -> Iterable[Finding]:
        """Judge the whole curve of a log as a person sees it: does it end well above its best?"""
        curve = [point for point in self.curve if math.isfinite(point[1])]
        end = None if self.ever_reported else ends_above_best([loss for _, loss in curve])
        if end is None:
            return
        best, onset = curve[end.best_at][0], curve[end.rises_at][0]
        yield self.find(
            record_at(onset),
            f"loss has been at {say(end.level)} since step {onset[2]}, "
            f"{say(end.level / end.best)} times its best level of {say(end.best)} (step {best[2]})"
            f"; the run started at {say(end.first)}",
            severity=Severity.ERROR if end.lost > SERIOUS else Severity.WARNING,
            remedies=self.remedies,
            best=end.best,
            best_step=best[2],
            level=end.level,
            start=end.first,
            onset=onset[2],
            lost=end.lost,
        )

    def _grows_at_the_end(self, least: int) -> bool:
        """Whether the last rows of a log, or the rows before a NaN, rise beyond those before."""
        if not self.context.rows or self.onset is None or self.reported or self.signed:
            return False
        if self.above < least or self.inside or self.touches > self.above // 4:
            return False
        limits = self.limits
        ratio = limits.ratio if self.best.progressed else limits.ratio_without_progress
        losses = [loss for _, loss in self.rise.points]
        return rises_beyond(
            losses, self.before.values, self.best, ratio, count=self.above, coarse=self.coarse
        )

    def _judge(self, least: int, patience: int, ending: str) -> Iterable[Finding]:
        if self._diverged(least, patience):
            yield from self._report(ending)

    def _report(self, ending: str) -> Iterable[Finding]:
        """Report at once; for a log, only when it is known that the run did not recover."""
        if not self.context.rows:
            return (self._finding(ending),)
        self.reported = self.ever_reported = True
        self.pending = ending
        return ()

    def _patience(self) -> int:
        """Half as many values as came before, or three times the longest recovery so far."""
        before, limits = self.best.seen, self.limits
        least, most = self._values(limits.shortest), self._values(limits.longest)
        young = self._values(100) - before
        return max(least, young, min(before // 2, most), min(3 * self.longest_return, 5 * most))

    def _values(self, steps: int) -> int:
        """The number of values that stand for this number of steps."""
        return max(steps // COARSE, 4) if self.coarse else steps

    def _has_rivals(self, record: StepRecord) -> bool:
        """Whether several optimizers minimise different losses."""
        if "optimizers" in record.values:
            self.rivals.update(record.family("loss"))
        return len(set(self.rivals.values())) > 1

    def _climb(self, record: StepRecord, loss: float) -> None:
        if self.onset is None:
            self.onset = moment_of(record)
            self.left = first_risen(self.quiet, QUIET, SLOW)
            del self.quiet[:-QUIET]
            self.rise.clear()
            self.above = self.touches = 0
            self.first_jump = self.worst = self.latest = loss
            self.peak = -math.inf
        inside = loss <= self.best.band
        self.rise.push(record.step, loss)
        self.above += 1
        self.touches += inside
        self.inside = self.inside + 1 if inside else 0
        # Two in a row, because a single hard batch says nothing about the weights.
        self.worst = max(self.worst, min(loss, self.latest))
        self.latest = loss

    def _recover(self) -> None:
        for _, loss in self.rise.points:
            self.before.push(loss)
        self.onset = None
        self.inside = 0
        self.reported = False
        if self.pending:
            self.pending, self.ever_reported = "", False

    def _diverged(self, least: int, patience: int) -> bool:
        if self.onset is None or self.reported or self.above < least:
            return False
        best = self.best
        early, middle, late = split_thirds([loss for _, loss in self.rise.points])
        level = median(late)
        # New data are hardest in their first step; with damaged weights the loss keeps rising.
        self_made = self.worst - best.level > GROWN * (self.first_jump - best.level)
        if self_made and level > BLOWN_UP * best.first > 0:
            return True
        if self.above < patience or self.touches > self.above / 20:
            return False
        self.peak = max(self.peak, median(early), level)
        if not self_made and level < self.peak - (self.peak - best.level) / 4:
            # The run learns again, from a new start (a curriculum) or below the old one (a
            # restart).
            best.restart(max(self.peak, best.first), late)
            self._recover()
            return False
        before = median(middle if self_made else early)
        falling = level < before - (before - best.level) / 20
        lost_half = level >= best.first - best.progress / 2
        return lost_half and not falling and self._far_above(level, late)

    def _far_above(self, level: float, late: list[float]) -> bool:
        """Whether the rise is large against the best level and against the noise."""
        best, limits, before = self.best, self.limits, self.before.values
        if self.signed or best.level <= 0 or min(late) <= 0:
            # Signed losses (policy gradients, critics) drift: they must be worse than ever before.
            least = 2 * max(best.progress, abs(best.first))
            if self.context.rows:
                least = max(least, 10 * max(map(abs, before), default=0.0))
            return level - best.level > max(8 * detrended_sigma(late), least)
        ratio, sigmas = limits.ratio_without_progress, 8.0
        if best.progressed:
            ratio, sigmas = limits.ratio, 5.0
        gradual = False  # in a log: whether the rise began without a jump, perhaps within the band
        if best.progressed and self.context.rows and len(self.quiet) >= 3:
            below = max(best.level, median(loss for _, loss in self.quiet[-3:]))
            gradual = self.worst - best.level > GROWN * (self.first_jump - below)
        return is_far_above(
            level, late, before, best, GRADUAL if gradual else ratio, sigmas, gradual
        )

    def _finding(self, ending: str) -> Finding:
        assert self.onset is not None
        self.reported = self.ever_reported = True
        best = self.best
        level = median(split_thirds([loss for _, loss in self.rise.points])[2])
        return self.find(
            record_at(self.left or self.onset),
            f"loss rose from its best level of {say(best.level)} (step {best.step}) to "
            f"{say(level)} over {self.above} values {ending}; the run started at {say(best.first)}",
            remedies=self.remedies,
            best=best.level,
            best_step=best.step,
            level=level,
            start=best.first,
            onset=(self.left or self.onset)[2],
            values=self.above,
        )
