from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from headway.core.check import Check, Needs
from headway.core.facts import LISTED, Parameters, say_list, trained_positions
from headway.core.findings import Finding, Severity, Where
from headway.core.numbers import WAS, plural
from headway.core.optimizer_facts import FreezeChangeFacts
from headway.core.records import (
    Column,
    Header,
    Moment,
    SetupRecord,
    StepRecord,
    moment_of,
    record_at,
)


class LateUnfreezeOrFreeze(Check):
    """A weight that was being trained stops changing in the middle of the run, or starts late.

    ## What it checks
    Weights that got gradients and changed from the start: whether they still do. And changes of
    `requires_grad` after the first step, if `headway check` observes them.

    ## Why it matters
    A helper that switches gradients off for its own purposes and does not switch them on again, or
    a `detach` under a condition, ends the training of a part of the model. The loss keeps falling,
    but more slowly.

    ## How it is measured
    A weight changed in nearly every measured step, and then has had no gradient at all (or one of
    exactly 0) for 20 measured steps and for four times its longest pause before, while others
    change. If the change of `requires_grad` was observed, 3 measured steps are enough, and the line
    is named.

    ## False alarms
    LayerDrop, idle experts and rare branches pause and continue: the limit follows their pauses. A
    freeze in a function with such a name, or under a condition on the epoch or the step, is
    information, and so is an unfreeze and the end of a branch (an auxiliary head) that is not the
    front of the model. With several optimizers only observed changes are judged, and nothing is
    judged while some learning rate is 0.

    ## What to do
    Check the named line: restore `requires_grad` after the helper is done, or use
    `torch.autograd.grad` and `detach` on its input instead.

    ## References
    pytorch/pytorch#115607 (as reported by TrainCheck).
    """

    code = "HD415"
    name = "late-unfreeze-or-freeze"
    summary = "a tensor stops (or starts) changing at step k"
    needs = Needs(
        signals=("param/update_ratio", "param/grad_norm"), kinds=(StepRecord, SetupRecord)
    )
    explains = ("HD306", "HD205", "HD204")

    @dataclass(frozen=True)
    class Limits:
        samples: int = 20
        """Measured steps without a change."""
        pauses: float = 4.0
        """Multiple of the longest pause before."""
        moved: int = 5
        """Measured steps in which it must have changed before."""
        heard_samples: int = 3
        """Measured steps without a change if the change of `requires_grad` was observed."""

    def start(self) -> None:
        self.trained: list[int] = []
        self._restart()

    def _restart(self) -> None:
        self.moves: dict[int, int] = {}
        self.still: dict[int, int] = {}
        self.longest: dict[int, int] = {}
        self.since: dict[int, Moment] = {}
        self.frozen: dict[str, dict[str, object]] = {}
        self.reported: set[str] = set()
        self.at_rest = False

    def begin(self, header: Header) -> None:
        self._restart()

    def observe(self, record: StepRecord | SetupRecord) -> Iterable[Finding]:
        if isinstance(record, SetupRecord):
            yield from self._add_facts(record)
            return
        rates = record.columns.get("group/lr")
        if rates is not None:
            self.at_rest = any(rate == 0 for rate in rates.values)
        ratios = record.columns.get("param/update_ratio")
        norms = record.columns.get("param/grad_norm")
        if ratios is None or norms is None or record.held or self.at_rest:
            return
        if record.values.get("scaler_skipped"):
            return
        self._add_sample(record, ratios, norms)
        several = "optimizers" in record.values
        yield from self._judge(several)

    def _add_facts(self, record: SetupRecord) -> Iterable[Finding]:
        parameters = Parameters.of(record)
        if parameters is not None:
            kept = self.trained
            now = trained_positions(parameters)
            # A parameter that is frozen late leaves the trained set, but it was trained before.
            self.trained = sorted({*kept, *now})
            return
        if record.topic != "freeze-change":
            return
        facts = FreezeChangeFacts.of(record)
        names = facts.names
        if facts.to:
            freed = [name for name in names if self.frozen.pop(name, None) is None]
            if freed and "unfrozen" not in self.reported:
                self.reported.add("unfrozen")
                yield self.find(
                    record,
                    f"{plural(len(freed), 'parameter', WAS)} unfrozen at step {facts.step}: "
                    f"{say_list(freed)}",
                    severity=Severity.INFO,
                    subject="unfrozen",
                    where=facts.locate(rank=record.rank, module=freed[0]),
                    remedies=[
                        "If this is intended, make sure that the optimizer has these parameters."
                    ],
                    tensors=freed[:LISTED],
                )
            return
        place = facts.place
        for name in names:
            self.frozen[name] = {
                "meant": facts.meant,
                "file": place.file,
                "line": place.line,
                "function": place.function,
            }

    def _add_sample(self, record: StepRecord, ratios: Column, norms: Column) -> None:
        gradients = dict(norms.items())
        moving = {at for at, ratio in ratios.items() if ratio > 0 and math.isfinite(ratio)}
        if not moving:
            return
        for at in moving:
            self.moves[at] = self.moves.get(at, 0) + 1
            pause = self.still.pop(at, 0)
            self.longest[at] = max(self.longest.get(at, 0), pause)
            self.since.pop(at, None)
        for at in self.moves:
            # No gradient, or only zeros; a clamped weight has one and does not change either.
            if at not in moving and gradients.get(at, 0.0) == 0:
                self.since.setdefault(at, moment_of(record))
                self.still[at] = self.still.get(at, 0) + 1

    def _judge(self, several: bool) -> Iterable[Finding]:
        limits = self.limits
        heard, silent = [], []
        for at, count in self.still.items():
            name = self.context.name("param", at)
            if name in self.reported or self.moves[at] < limits.moved:
                continue
            if name in self.frozen and count >= limits.heard_samples:
                heard.append(at)
            elif count >= max(limits.samples, limits.pauses * self.longest.get(at, 0)):
                silent.append(at)
        if heard:
            yield self._finding(heard, self._is_meant(heard))
        if silent and not several:
            yield self._finding(silent, not self._is_front(silent))

    def _is_meant(self, positions: list[int]) -> bool:
        names = [self.context.name("param", at) for at in positions]
        return all(self.frozen[name]["meant"] is True for name in names)

    def _is_front(self, positions: list[int]) -> bool:
        """Whether everything before some point of the model has stopped."""
        going = [at for at in self.moves if at not in self.still]
        return bool(going) and max(positions) < min(going)

    def _finding(self, positions: list[int], mild: bool) -> Finding:
        positions = sorted(positions)
        names = [self.context.name("param", at) for at in positions]
        self.reported.update(names)
        onset = min(self.since[at] for at in positions)
        place = self.frozen.get(names[0], {})
        line, file, function = place.get("line"), place.get("file"), place.get("function")
        by = "requires_grad was set to False" if place else "no gradient reaches them any more"
        return self.find(
            record_at(onset),
            f"{plural(len(names), 'parameter')} stopped training at step {onset[2]}: {by} "
            f"({say_list(names)})",
            severity=Severity.INFO if mild else None,
            subject=names[0],
            where=Where(
                file=file if isinstance(file, str) else None,
                line=line if isinstance(line, int) else None,
                function=function if isinstance(function, str) else None,
                module=names[0],
                rank=onset[3] or None,
            ),
            remedies=[
                "If this is not intended, set `requires_grad` back to True where it was switched "
                "off, or look for a `detach` or `no_grad` under a condition.",
            ],
            tensors=names[:LISTED],
            tensor_count=len(names),
            samples=min(self.still[at] for at in positions),
        )
