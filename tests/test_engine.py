"""The engine: records in; findings, coverage and quarantine out."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.literate_cases import read_records
from support.strategies import junk, lightly, thoroughly

from headway import registry
from headway.checks.gradients.hd207_gradient_spike import GradientSpike
from headway.checks.loss.hd101_nonfinite_loss import NonfiniteLoss
from headway.checks.setup.hd001_check_crashed import CheckCrashed
from headway.config import Settings
from headway.core.check import Check, Needs
from headway.core.findings import Finding, Severity
from headway.core.records import (
    Column,
    EventRecord,
    Header,
    Record,
    SetupRecord,
    StepRecord,
    TensorRecord,
)
from headway.core.signals import Signal
from headway.engine import Engine
from headway.report import Report

HEADER = Header("test", signals={"loss": Signal(), "param/grad_norm": Signal()})


def step(number: int, *, segment: int = 0, **values: float) -> StepRecord:
    return StepRecord(segment, number, number, values or {"loss": 1.0})


class Counting(Check):
    """Says something about every record it sees, and keeps count."""

    code = "ACME1"
    name = "counting"
    summary = "counts"
    needs = Needs(signals=("loss",))

    def start(self) -> None:
        self.seen = 0
        self.segments: list[int] = []

    def begin(self, header: Header) -> None:
        self.segments.append(header.segment)

    def observe(self, record: Any) -> Iterable[Finding]:
        self.seen += 1
        yield self.find(record, f"record {self.seen}")


class Sick(Counting):
    """Raises where it is told to, the first time it gets there."""

    code = "ACME2"
    name = "sick"

    def __init__(self, at: str) -> None:
        super().__init__()
        self.at = at

    def begin(self, header: Header) -> None:
        super().begin(header)
        self._raise_at("begin")

    def observe(self, record: Any) -> Iterable[Finding]:
        self.seen += 1
        self._raise_at("observe")
        return ()

    def finish(self) -> Iterable[Finding]:
        self._raise_at("finish")
        return ()

    def _raise_at(self, place: str) -> None:
        if self.at == place:
            raise ZeroDivisionError(f"sick in {place}")


def engine(*checks: Check, strict: bool = False) -> Engine:
    return Engine(checks=[CheckCrashed(), *checks], strict=strict)


def test_of_ranks_that_decide_together_one_tells_every_step() -> None:
    """What is a rank's own is heard from each; without agreement, every rank's steps count."""
    well = Counting()
    well.needs = Needs(kinds=(StepRecord, TensorRecord), signals=("loss",))
    headers = [
        Header("test", signals={"loss": Signal()}, world_size=2, rank=rank) for rank in (0, 1)
    ]
    steps = [StepRecord(0, at, at, {"loss": 1.0}, rank=rank) for at in (1, 2) for rank in (0, 1)]
    tensors = [TensorRecord(0, 3, 2, "w", "weight", rank=rank) for rank in (0, 1)]
    engine(well).run([*headers, *steps, *tensors])
    assert well.seen == 2 + 2
    alone = Counting()
    engine(alone).run([HEADER, *steps])
    assert alone.seen == 4


# Quarantine


@pytest.mark.parametrize("place", ["begin", "observe", "finish"])
def test_a_check_that_raises_is_taken_out_and_reported_and_the_others_go_on(place: str) -> None:
    sick, well = Sick(place), Counting()
    runner = engine(sick, well)
    found = runner.run([HEADER, *(step(at) for at in range(1, 6))])
    crashes = [item for item in found if item.code == "HD001"]
    assert len(crashes) == 1
    assert crashes[0].subject == "ACME2"
    assert f"ZeroDivisionError: sick in {place}" in crashes[0].message
    assert crashes[0].where.file == __file__
    assert crashes[0].where.line
    assert well.seen == 5
    assert [item.reason for item in runner.not_run() if item.code == "ACME2"] == [
        "it crashed and was disabled (HD001)"
    ]


def test_a_check_that_raised_is_not_asked_again() -> None:
    sick = Sick("observe")
    runner = engine(sick)
    runner.run([HEADER, *(step(at) for at in range(1, 6)), Header("test", segment=1)])
    assert sick.seen == 1
    assert sick.segments == [0], "nor told of a new segment"


def test_a_crash_is_told_by_the_feed_in_which_it_happened() -> None:
    runner = engine(Sick("observe"))
    assert runner.feed(HEADER) == []
    [crash] = runner.feed(step(7))
    assert (crash.code, crash.step, crash.order) == ("HD001", 7, (0, 7))
    assert runner.opened == [crash]
    assert runner.feed(step(8)) == []
    assert runner.opened == []


@pytest.mark.parametrize("place", ["begin", "observe", "finish"])
def test_strict_lets_the_exception_through(place: str) -> None:
    with pytest.raises(ZeroDivisionError, match=f"sick in {place}"):
        engine(Sick(place), strict=True).run([HEADER, step(1)])


def test_a_generator_that_raises_in_the_middle_is_quarantined_too() -> None:
    class Halfway(Counting):
        def observe(self, record: Any) -> Iterable[Finding]:
            yield self.find(record, "so far")
            raise KeyError("and no further")

    found = engine(Halfway()).run([HEADER, step(1), step(2)])
    assert [item.code for item in found] == ["HD001"]


@pytest.mark.parametrize("answer", [None, 5, ["words"], [None]], ids=repr)
def test_a_check_that_answers_nonsense_is_quarantined(answer: Any) -> None:
    class Nonsense(Counting):
        def observe(self, record: Any) -> Any:
            return answer

    well = Sick("nowhere")
    found = engine(Nonsense(), well).run([HEADER, step(1), step(2)])
    assert [(item.code, item.subject) for item in found] == [("HD001", "ACME1")]
    assert well.seen == 2


def test_what_others_find_at_the_step_of_a_crash_counts_and_in_their_order() -> None:
    """At the third step, which is not the first: that one is fed check by check."""

    class Finds(Counting):
        def observe(self, record: Any) -> Iterable[Finding]:
            self.seen += 1
            if record.step == 3:
                yield self.find(record, f"{self.code} finds this")
                yield self.find(record, f"{self.code} finds that", subject="that")

    class Halfway(Finds):
        code = "ACME2"

        def observe(self, record: Any) -> Iterable[Finding]:
            yield from super().observe(record)
            if record.step == 3:
                raise KeyError("and no further")

    class Last(Finds):
        code = "ACME3"

    first, last = Finds(), Last()
    runner = engine(first, Halfway(), last)
    runner.feed(HEADER)
    found = [runner.feed(step(at)) for at in range(1, 6)]
    assert [len(each) for each in found] == [0, 0, 5, 0, 0]
    codes = [item.code for item in found[2]]
    assert codes == ["ACME1", "ACME1", "HD001", "ACME3", "ACME3"]
    assert found[2][2].subject == "ACME2"
    assert (first.seen, last.seen) == (5, 5)


def test_one_that_fails_while_being_told_of_a_crash_is_quarantined_once() -> None:
    class Nervous(Counting):
        """Looks at steps and events, and raises at every event."""

        code = "ACME3"
        needs = Needs(signals=("loss",), kinds=(StepRecord, EventRecord))

        def observe(self, record: Any) -> Iterable[Finding]:
            self.seen += 1
            raise ValueError("oh no")

    nervous = Nervous()
    found = engine(Sick("observe"), nervous).run([HEADER, step(1), step(2)])
    assert sorted(item.subject for item in found) == ["ACME2", "ACME3"]
    assert nervous.seen == 1


def test_a_crash_is_not_told_to_a_check_of_other_events() -> None:
    other = Counting()
    other.needs = Needs(kinds=(EventRecord,), events=("killed",))
    found = engine(Sick("observe"), other).run([HEADER, step(1), step(2)])
    assert [item.code for item in found] == ["HD001"]
    assert other.seen == 0


def test_a_crash_of_the_crash_reporter_itself_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Check, record: Any) -> Any:
        raise RuntimeError("the reporter is sick")

    monkeypatch.setattr(CheckCrashed, "observe", broken)
    well = Counting()
    runner = engine(Sick("observe"), well)
    runner.run([HEADER, step(1), step(2)])
    assert well.seen == 2
    assert {item.code for item in runner.not_run()} == {"HD001", "ACME2"}


def test_leaving_the_program_is_not_caught() -> None:
    class Interrupted(Counting):
        def observe(self, record: Any) -> Any:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine(Interrupted()).run([HEADER, step(1)])


# Coverage


def test_coverage_counts_what_ran_and_gives_a_reason_for_the_rest() -> None:
    class Hungry(Counting):
        code = "ACME4"
        needs = Needs(signals=("loss", "lr"))

    class Scanning(Counting):
        code = "ACME5"
        needs = Needs(kinds=(TensorRecord, SetupRecord))

    runner = engine(Counting(), Hungry(), Scanning())
    runner.run([HEADER, step(1)])
    assert runner.coverage() == (2, 4)
    assert {item.code: item.reason for item in runner.not_run()} == {
        "ACME4": "needs lr, which this source does not have",
        "ACME5": "no tensors or set-up facts of the kind it needs",
    }


def test_an_empty_stream_is_not_a_healthy_one() -> None:
    runner = engine(Counting())
    runner.run([])
    assert [item.reason for item in runner.not_run() if item.code == "ACME1"] == [
        "no steps of the kind it needs"
    ]


@pytest.mark.parametrize(
    ("needs", "signals", "words"),
    [
        (Needs(signals=("loss",)), {}, "needs loss, which this source does not have"),
        (Needs(any_of=("a", "b")), {"loss": Signal()}, "needs one of a, b"),
        (Needs(any_of=("a", "b")), {"b": Signal()}, None),
        (Needs(signals=("loss/*",)), {"loss": Signal()}, "needs loss/*"),
        (Needs(signals=("loss/*",)), {"loss/box": Signal()}, None),
        (Needs(signals=("loss",)), {"loss#1": Signal()}, None),
        (
            Needs(signals=("loss",), span=1),
            {"loss": Signal(span=10, fold="mean")},
            "loss is a mean over 10 steps; this rule is valid for at most 1",
        ),
        (Needs(signals=("loss",), span=10), {"loss": Signal(span=10)}, None),
        (
            Needs(signals=("loss",), nonfinite=True),
            {"loss": Signal(nonfinite="filtered")},
            "test filters non-finite values out of loss",
        ),
        (Needs(signals=("loss",)), {"loss": Signal(nonfinite="filtered")}, None),
    ],
)
def test_unmet_needs_say_what_is_missing(
    needs: Needs, signals: dict[str, Signal], words: str | None
) -> None:
    reason = needs.unmet(Header("test", signals=signals))
    assert (reason is None) if words is None else (words in (reason or "it could run"))


def test_a_check_whose_signals_are_missing_is_not_handed_steps() -> None:
    check = Counting()
    engine(check).run([Header("test"), step(1)])
    assert check.seen == 0


class OfWeights(Counting):
    code = "ACME5"
    needs = Needs(kinds=(TensorRecord,), roles=("weight", "buffer"))


class OfTensors(Counting):
    code = "ACME6"
    needs = Needs(kinds=(TensorRecord,))


@pytest.mark.parametrize(
    ("roles", "covered"),
    [
        (["weight"], {"ACME5", "ACME6"}),
        (("input", "buffer"), {"ACME5", "ACME6"}),
        (["input"], {"ACME6"}),
        ([], set()),
    ],
)
def test_a_scan_that_met_nothing_bad_counts_as_having_looked(roles: Any, covered: set[str]) -> None:
    runner = engine(OfWeights(), OfTensors())
    runner.run([HEADER, EventRecord(0, 1, 0, "scan", {"roles": roles})])
    assert {"ACME5", "ACME6"} - {item.code for item in runner.not_run()} == covered


def test_a_check_sees_the_roles_it_asks_for() -> None:
    picky, any_role = OfWeights(), OfTensors()
    runner = engine(picky, any_role)
    runner.run([HEADER, TensorRecord(0, 1, 0, "x", "input"), TensorRecord(0, 2, 0, "w", "weight")])
    assert (picky.seen, any_role.seen) == (1, 2)


@pytest.mark.parametrize(
    "other", [SetupRecord(0, 1, "model", {}), EventRecord(0, 1, 0, "note", {})], ids=repr
)
def test_facts_and_events_alone_do_not_cover_a_check_that_judges_steps(other: Any) -> None:
    class OfBoth(Counting):
        needs = Needs(signals=("loss",), kinds=(StepRecord, type(other)))

    check = OfBoth()
    runner = engine(check)
    runner.feed(HEADER)
    runner.feed(other)
    assert check.seen == 1, "it is told"
    assert "ACME1" in {item.code for item in runner.not_run()}, "but has judged nothing"
    runner.feed(step(2))
    assert "ACME1" not in {item.code for item in runner.not_run()}


@thoroughly
@given(
    st.sampled_from(["scan", "check-crashed", "action", "note", "end"]),
    st.dictionaries(st.sampled_from(["roles", "check", "error", "file", "line", "action"]), junk),
)
@example("check-crashed", {"file": math.inf, "line": math.nan})
@example("scan", {"roles": [[]]})
def test_an_event_of_a_damaged_log_may_say_anything(kind: str, data: dict[str, Any]) -> None:
    runner = engine(OfWeights(), OfTensors())
    runner.run([HEADER, EventRecord(0, 1, 0, kind, data), step(2)])
    Report.from_engine(runner, command="diagnose").to_json()


# Dispatch


def test_a_check_of_columns_is_spared_the_steps_without_any() -> None:
    class OfColumns(Counting):
        needs = Needs(signals=("param/grad_norm",), kinds=(StepRecord, EventRecord))

    check, other = OfColumns(), Counting()
    bare, full = step(1), StepRecord(0, 2, 2, {}, {"param/grad_norm": Column([1.0])})
    engine(check, other).run([HEADER, bare, full, EventRecord(0, 3, 2, "note")])
    assert check.seen == 2, "the step with a column, and the event"
    assert other.seen == 2, "both steps"


def test_a_check_of_columns_and_scalars_sees_every_step() -> None:
    class OfBoth(Counting):
        needs = Needs(signals=("param/grad_norm", "loss"))

    check = OfBoth()
    engine(check).run([HEADER, step(1), step(2)])
    assert check.seen == 2


def test_each_check_is_handed_the_kinds_it_asks_for_and_no_others() -> None:
    kinds = (StepRecord, SetupRecord, TensorRecord, EventRecord)
    checks = []
    for number, kind in enumerate(kinds):

        class OfOneKind(Counting):
            code = f"ACME{number}"
            needs = Needs(kinds=(kind,))
            got: Any = ()

            def observe(self, record: Any) -> Iterable[Finding]:
                self.got = (*self.got, type(record))
                return ()

        checks.append(OfOneKind())
    records = [
        step(1),
        SetupRecord(0, 2, "model", {}),
        TensorRecord(0, 3, 1, "w", "weight"),
        EventRecord(0, 4, 1, "note"),
    ]
    Engine(checks=checks).run([HEADER, *records])
    assert [check.got for check in checks] == [(kind,) for kind in kinds]


# Headers


def test_a_header_in_the_middle_lets_checks_in_and_out() -> None:
    without, with_it = Header("test"), Header("test", signals={"loss": Signal()})
    check = Counting()
    runner = engine(check)
    for record in (without, step(1), with_it, step(2), step(3), without, step(4)):
        runner.feed(record)
    assert check.seen == 2
    assert check.context.header is without
    assert "ACME1" not in {item.code for item in runner.not_run()}, "it did run, for a while"


def test_a_segment_begins_once_however_many_headers_it_has() -> None:
    check = Counting()
    runner = engine(check)
    for segment in (0, 0, 1, 1, 2):
        runner.feed(Header("test", segment=segment))
    assert check.segments == [0, 1, 2]


class OneTraining(Counting):
    """Reports at the end how many records its training had."""

    scope = "training"

    def observe(self, record: Any) -> Iterable[Finding]:
        self.seen += 1
        return ()

    def finish(self) -> Iterable[Finding]:
        yield self.find(step(0), f"{self.seen} records of segments {self.segments}")


def test_a_history_ends_where_another_training_begins() -> None:
    runner = engine(OneTraining(), Counting(), strict=True)
    runner.feed(HEADER)
    runner.feed(step(1))
    runner.feed(Header("test", signals=HEADER.signals, segment=1))
    assert [item.message for item in runner.feed(step(2, segment=1))] == ["record 2"]
    later = Header("test", signals=HEADER.signals, segment=2, training=1)
    assert [item.message for item in runner.feed(later)] == ["2 records of segments [0, 1]"]
    assert [item.message for item in runner.feed(step(3, segment=2))] == ["record 3"]
    assert [item.message for item in runner.finish()] == ["1 records of segments [2]"]


def test_begin_already_sees_the_new_header() -> None:
    class Looking(Counting):
        def begin(self, header: Header) -> None:
            assert self.context.header is header
            self.segments.append(header.segment)

    check = Looking()
    engine(check, strict=True).feed(Header("test", segment=3))
    assert check.segments == [3]


# Findings


def test_repeats_are_folded_but_every_one_is_told_by_its_feed() -> None:
    runner = engine(Counting())
    told = [runner.feed(record) for record in (HEADER, step(1), step(2), step(3))]
    assert [len(found) for found in told] == [0, 1, 1, 1]
    [one] = runner.findings
    assert one.step == 1
    assert one.evidence == {"count": 3, "last_step": 3}


def test_what_is_only_said_at_the_end_is_among_the_findings() -> None:
    class Late(Counting):
        def observe(self, record: Any) -> Iterable[Finding]:
            self.last = record
            return ()

        def finish(self) -> Iterable[Finding]:
            yield self.find(self.last, "now I know")

    runner = engine(Late())
    found = runner.run([HEADER, step(1)])
    assert [item.message for item in found] == ["now I know"]


def test_a_finding_says_who_found_it_where_and_how_bad_it_is() -> None:
    check = Counting()
    finding = check.find(
        StepRecord(2, 3, 40, rank=5), "words", subject="s", remedies=["do this"], value=math.nan
    )
    assert (finding.code, finding.name, finding.severity) == ("ACME1", "counting", Severity.WARNING)
    assert (finding.step, finding.order, finding.subject) == (40, (2, 3), "s")
    assert finding.where.rank == 5
    assert finding.to_dict()["evidence"] == {"value": "NaN"}
    [remedy] = finding.to_dict()["remedies"]
    assert (remedy["text"], remedy["tested"], remedy["cured"]) == ("do this", False, None)


# State


def run_of(losses: list[float], norms: list[float]) -> list[Record]:
    text = [f"loss: {', '.join(map(str, losses))}", f"grad_norm: {', '.join(map(str, norms))}"]
    return read_records(text)


values = st.sampled_from([1.0, 1.1, 0.9, 1.05, 300.0, math.nan])


@lightly
@given(st.lists(st.tuples(values, values), min_size=2, max_size=60), st.data())
def test_an_engine_goes_on_from_its_state_as_if_never_interrupted(
    pairs: list[tuple[float, float]], data: st.DataObject
) -> None:
    records = run_of([a for a, _ in pairs], [b for _, b in pairs])
    cut = data.draw(st.integers(1, len(records)))

    def checks() -> list[Check]:
        return [CheckCrashed(), NonfiniteLoss(), GradientSpike(), Counting()]

    first, whole = Engine(checks=checks(), strict=True), Engine(checks=checks(), strict=True)
    for record in records[:cut]:
        assert first.feed(record) == whole.feed(record)
    resumed = Engine(checks=checks(), strict=True)
    resumed.feed(records[0])
    resumed.load_state_dict(json.loads(json.dumps(first.state_dict(), allow_nan=False)))
    for record in records[cut:]:
        # Compared as text: NaN in the evidence equals nothing.
        assert repr(resumed.feed(record)) == repr(whole.feed(record))


def test_state_of_unknown_checks_and_attributes_is_left_alone() -> None:
    check = Counting()
    runner = engine(check)
    runner.load_state_dict({"ACME1": {"seen": 41, "of_another_version": 1}, "GONE1": {"x": 1}})
    assert check.seen == 41
    assert not hasattr(check, "of_another_version")


def test_limits_and_context_are_no_part_of_the_state() -> None:
    assert Counting().state_dict() == {"seen": 0, "segments": []}


class Hoarding(Counting):
    """Keeps what JSON cannot."""

    code = "ACME6"

    def start(self) -> None:
        super().start()
        self.leak_tracer = object()


def test_a_check_whose_state_cannot_be_written_does_not_lose_the_others_theirs() -> None:
    counting = Counting()
    runner = engine(counting, Hoarding())
    runner.run([HEADER, step(1)])
    state = runner.state_dict()
    assert state["ACME1"]["seen"] == 1
    assert "ACME6" not in state
    with pytest.raises(TypeError, match="cannot keep a object"):
        engine(Hoarding(), strict=True).state_dict()


@pytest.mark.parametrize(
    "damage",
    [{"$Gone": 1}, {"a": 1, "b": 2}, {"$tuple": 5}, {}, {"$Window": [1]}, {"$dict": [[[], 1]]}],
    ids=repr,
)
def test_a_state_that_cannot_be_read_leaves_that_check_fresh(damage: Any) -> None:
    check, other = Counting(), Sick("nowhere")
    runner = engine(check, other)
    state = runner.state_dict()
    state["ACME1"] |= {"seen": 5, "segments": damage}
    state["ACME2"] |= {"seen": 7}
    runner.load_state_dict(state)
    assert (check.seen, check.segments) == (0, []), "all of its state or none"
    assert other.seen == 7
    with pytest.raises((KeyError, ValueError, TypeError, IndexError)):
        engine(Counting(), strict=True).load_state_dict(state)


def test_a_check_that_was_never_asked_has_no_state_and_begins_again_with_it() -> None:
    runner = Engine(Settings(), strict=True)
    runner.feed(HEADER)
    before = runner.state_dict()
    assert before["HD202"] is None
    columns = Header("test", signals={"grad_norm": Signal()}, segment=1)
    for record in (columns, *(step(at, segment=1, grad_norm=2.0) for at in range(1, 4))):
        runner.feed(record)
    after = runner.state_dict()
    assert after["HD202"] is not None
    runner.load_state_dict(before)
    assert runner.state_dict()["HD202"] is None, "of a later time than the state"
    runner.feed(step(4, segment=1, grad_norm=2.0))
    once = Engine(Settings(), strict=True)
    for record in (HEADER, columns, step(4, segment=1, grad_norm=2.0)):
        once.feed(record)
    assert runner.state_dict()["HD202"] == once.state_dict()["HD202"]


@pytest.mark.parametrize("state", [{"ACME1": None}, {"ACME1": [1]}, {"ACME1": 5}], ids=repr)
def test_a_state_of_another_shape_leaves_that_check_fresh(state: Any) -> None:
    check = Counting()
    engine(check).load_state_dict(state)
    assert check.seen == 0


# Choosing checks


def test_the_engine_runs_the_checks_the_settings_choose() -> None:
    runner = Engine(Settings(select=("HD101", "HD207")))
    assert sorted(runner.state_dict()) == ["HD101", "HD207"]
    assert runner.coverage() == (0, 2)


def test_without_settings_every_stable_check_runs() -> None:
    chosen = {check.code for check in registry.chosen(Settings())}
    assert set(Engine().state_dict()) == chosen


# Once per subject


class Repeating(Check):
    """Finds the same two subjects at every step."""

    code = "ACME3"
    name = "repeating"
    summary = "repeats"
    needs = Needs(signals=("loss",))

    def observe(self, record: Any) -> Iterable[Finding]:
        yield self.find(record, "one", subject="one")
        yield self.find(record, "other", subject="other")


class OncePerSegment(Repeating):
    once = "segment"


class OncePerRun(Repeating):
    once = "run"


@pytest.mark.parametrize(
    ("check", "expected"), [(OncePerSegment, [0, 0, 1, 1]), (OncePerRun, [0, 0]), (Repeating, None)]
)
def test_a_check_that_reports_a_subject_once_is_relieved_of_keeping_account(
    check: type[Check], expected: list[int] | None
) -> None:
    one = Engine(checks=[check()], strict=True)
    found = [item for record in (HEADER, step(1), step(2)) for item in one.feed(record)]
    # What was reported survives a resume, as everything a check keeps does.
    other = Engine(checks=[check()], strict=True)
    other.load_state_dict(json.loads(json.dumps(one.state_dict())))
    later = Header("test", signals=HEADER.signals, segment=1, seq=3)
    rest = (later, step(3, segment=1), step(4, segment=1))
    found += [item for record in rest for item in one.feed(record)]
    assert [item.segment for item in found] == (expected or [0] * 4 + [1] * 4)
    resumed = [item.segment for record in (HEADER, step(2)) for item in other.feed(record)]
    assert bool(resumed) == (check is not OncePerRun)
