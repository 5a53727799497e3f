"""One fault, one entry: repeats become a count and steps, whatever lies between them."""

from __future__ import annotations

from collections.abc import Iterable

from headway.core.check import Check, Needs
from headway.core.findings import Finding, Severity, Where
from headway.core.records import Header, StepRecord
from headway.core.signals import Signal
from headway.diagnosis import Cause, merge_repeats
from headway.engine import Engine
from headway.report import Report


def found(
    code: str, step: int, *, line: int | None = None, why: str = "", count: int = 1
) -> Finding:
    where = Where(file="train.py" if line else None, line=line)
    evidence = {"why": why} if why else {}
    return Finding(
        code, "a-name", Severity.ERROR, step, "words", where, evidence, seq=step, count=count
    )


def test_one_sample_over_four_epochs_is_one_finding() -> None:
    inputs = [found("HD501", step, line=9) for step in (125, 325, 525, 725)]
    losses = [found("HD101", step, line=9) for step in (125, 325, 525, 725)]
    causes = [Cause(one, (other,)) for one, other in zip(inputs, losses, strict=True)]
    findings, merged = merge_repeats([*inputs, *losses], causes)
    assert [(item.code, item.count, item.steps) for item in findings] == [
        ("HD501", 4, (125, 325, 525, 725)),
        ("HD101", 4, (125, 325, 525, 725)),
    ]
    [cause] = merged
    assert cause.root is findings[0]
    assert cause.symptoms == (findings[1],)
    assert findings[0].to_dict()["occurrences"] == {"count": 4, "steps": [125, 325, 525, 725]}


def test_an_explained_repeat_explains_the_group() -> None:
    findings, _ = merge_repeats([found("HD101", 9), found("HD101", 310, line=15, why="x / 0")], ())
    [one] = findings
    assert (one.step, one.where.line, one.evidence["why"], one.steps) == (9, 15, "x / 0", (9, 310))


def test_other_lines_and_severities_are_other_faults() -> None:
    findings, _ = merge_repeats([found("HD101", 1, line=3), found("HD101", 2, line=4)], ())
    assert len(findings) == 2


class EachBadStep(Check):
    """A check for this test."""

    code, name, summary, needs = "T1", "each", "each", Needs(signals=("loss",))
    severity = Severity.ERROR

    def observe(self, record: StepRecord) -> Iterable[Finding]:
        if record.values["loss"] > 1:
            yield self.find(record, "high")


def test_an_engine_counts_neighbours_and_far_repeats_alike() -> None:
    engine = Engine(checks=[EachBadStep()], strict=True)
    engine.feed(Header(source="t", signals={"loss": Signal()}))
    bad = {10, 11, 12, 600, 1500}
    for step in range(2000):
        engine.feed(StepRecord(0, step + 1, step, {"loss": 2.0 if step in bad else 0.5}))
    engine.finish()
    assert len(engine.findings) == 3, "three episodes, for what follows from when"
    [one] = Report.from_engine(engine, command="diagnose").findings
    assert (one.count, one.steps) == (5, (10, 11, 12, 600, 1500))
