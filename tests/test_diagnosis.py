"""Diagnosis: which finding is only a symptom of which."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.counting import calls_made
from support.strategies import thoroughly

from headway import registry
from headway.core.findings import Finding, Severity
from headway.diagnosis import SLACK, Cause, diagnose

EXPLAINS = {check.code: check.explains for check in registry.all_checks() if check.explains}
YIELDS = {check.code: check.yields_to for check in registry.all_checks()}
ERROR, WARNING, INFO = Severity.ERROR, Severity.WARNING, Severity.INFO


def found(
    code: str,
    at: int | None = 0,
    severity: Severity = ERROR,
    *,
    segment: int = 0,
    subject: str = "",
    **evidence: object,
) -> Finding:
    return Finding(
        code,
        f"name-{code}",
        severity,
        step=at,
        message=f"{code} at {at}",
        subject=subject,
        segment=segment,
        seq=at or 0,
        evidence=evidence,
    )


def outline(causes: list[Cause]) -> list[tuple[str, list[str]]]:
    return [(cause.code, [item.code for item in cause.symptoms]) for cause in causes]


# The declarations


def test_every_check_declares_what_it_explains() -> None:
    for check in registry.all_checks():
        assert "explains" in vars(check), f"{check.code}: `explains = ()` if it explains nothing"


def test_a_check_explains_codes_only_and_never_itself() -> None:
    for cause, symptoms in EXPLAINS.items():
        for code in (cause, *symptoms):
            assert re.fullmatch(r"HD[1-9]\d\d", code), code
        assert cause not in symptoms, f"{cause} explains itself"
        assert len(set(symptoms)) == len(symptoms), f"{cause} names a symptom twice"


# What explains what


def test_a_dead_part_explains_that_it_is_dominated_and_not_that_another_is() -> None:
    dead = found("HD106", subject="cpe")
    over_it = replace(found("HD107", subject="dfl"), evidence={"next": "cpe"})
    over_another = replace(found("HD107", subject="dfl"), evidence={"next": "box"})
    assert outline(diagnose([dead, over_it])) == [("HD106", ["HD107"])]
    assert outline(diagnose([dead, over_another])) == [("HD106", []), ("HD107", [])]


def test_a_label_out_of_range_explains_what_is_raised_in_the_same_step() -> None:
    label, crash, later = found("HD505", 40), found("HD911", 40), found("HD911", 44)
    assert outline(diagnose([crash, label])) == [("HD505", ["HD911"])]
    assert outline(diagnose([label, later])) == [("HD911", []), ("HD505", [])]


def test_nothing_found_has_no_cause() -> None:
    assert diagnose([]) == []


def test_a_finding_nothing_explains_is_its_own_cause() -> None:
    only = found("HD804", 7)
    assert diagnose([only]) == [Cause(only, ())]


def test_what_is_said_of_the_log_stands_behind_what_is_said_of_the_run() -> None:
    log, run = found("HD002", 1, WARNING), found("HD207", 90, INFO)
    assert [cause.code for cause in diagnose([log, run])] == ["HD207", "HD002"]


def test_poisoned_input_explains_the_nan_loss_and_the_nan_gradient() -> None:
    findings = [found("HD101", 12), found("HD201", 12), found("HD501", 12)]
    for order in itertools.permutations(findings):
        [(root, symptoms)] = outline(diagnose(order))
        assert root == "HD501"
        assert sorted(symptoms) == ["HD101", "HD201"]


def test_a_cause_stands_before_its_symptom_not_after() -> None:
    early, late = found("HD206", 5), found("HD207", 40)
    assert outline(diagnose([early, late])) == [("HD206", ["HD207"])]
    early, late = found("HD207", 5), found("HD206", 40)
    assert sorted(outline(diagnose([early, late]))) == [("HD206", []), ("HD207", [])]


def test_a_cause_may_be_seen_a_little_after_its_symptom_for_scans_follow_the_alarm() -> None:
    loss = found("HD101", 10)
    assert outline(diagnose([loss, found("HD501", 10 + SLACK)])) == [("HD501", ["HD101"])]
    assert len(diagnose([loss, found("HD501", 11 + SLACK)])) == 2


def test_an_earlier_segment_comes_before_whatever_its_steps_say() -> None:
    before, after = found("HD501", 900, segment=0), found("HD101", 3, segment=1)
    assert outline(diagnose([before, after])) == [("HD501", ["HD101"])]
    before, after = found("HD101", 3, segment=0), found("HD501", 1, segment=1)
    assert len(diagnose([before, after])) == 2


def test_a_finding_without_a_step_holds_for_the_whole_run() -> None:
    assert outline(diagnose([found("HD101", 3), found("HD501", None)])) == [("HD501", ["HD101"])]
    assert outline(diagnose([found("HD101", None), found("HD501", 9)])) == [("HD501", ["HD101"])]


def test_a_symptom_of_a_symptom_belongs_to_the_cause_of_both() -> None:
    # HD206 explains HD209, HD209 explains HD308 as well: one cause, not two.
    chain = [found("HD402", 0), found("HD401", 0), found("HD307", 30)]
    assert "HD307" not in EXPLAINS["HD402"]
    assert outline(diagnose(chain)) == [("HD402", ["HD401", "HD307"])]


def test_unrelated_faults_are_two_causes() -> None:
    causes = diagnose([found("HD801", 3), found("HD501", 5), found("HD101", 5)])
    assert sorted(outline(causes)) == [("HD501", ["HD101"]), ("HD801", [])]


def test_two_findings_of_one_check_do_not_explain_each_other() -> None:
    assert len(diagnose([found("HD101", 1, subject="a"), found("HD101", 1, subject="b")])) == 2


def test_the_rank_stands_between_why_and_what() -> None:
    what = [found("HD101", 7), found("HD201", 7)]
    assert outline(diagnose([found("HD602", 7), *what])) == [("HD602", ["HD101", "HD201"])]
    for why in ("HD501", "HD301", "HD302", "HD303", "HD311", "HD408", "HD504"):
        causes = diagnose([*what, found("HD602", 7), found(why, 8)])
        assert outline(causes) == [(why, ["HD101", "HD201", "HD602"])], why


def test_a_rank_that_was_bad_later_explains_nothing_before() -> None:
    causes = diagnose([found("HD101", 7), found("HD602", 70)])
    assert sorted(outline(causes)) == [("HD101", []), ("HD602", [])]


def test_clipping_by_several_norms_explains_replicas_that_drift_apart() -> None:
    assert outline(diagnose([found("HD601", 100), found("HD605", 20)])) == [("HD605", ["HD601"])]


# What had passed


def test_a_nan_that_came_back_by_itself_is_not_the_death_that_follows() -> None:
    passed = found("HD101", 121, WARNING, recovered=True, rows=1, span=1)
    dead, saved = found("HD101", 227), found("HD701", 240)
    assert outline(diagnose([passed, dead, saved])) == [("HD101", ["HD701"]), ("HD101", [])]
    assert diagnose([passed, dead, saved])[0].root is dead
    # As long as it lasts it explains: five rows of ten steps, and what is seen a little later.
    passed = found("HD101", 121, WARNING, recovered=True, rows=5, span=10)
    for at, causes in ((171 + SLACK, 1), (172 + SLACK, 2)):
        assert len(diagnose([passed, found("HD201", at, WARNING)])) == causes


def test_an_update_that_was_held_back_poisons_no_weight() -> None:
    held = [found("HD501", 121), found("HD101", 121, held=True)]
    causes = diagnose([*held, found("HD301", 227)])
    assert outline(causes) == [("HD501", ["HD101"]), ("HD301", [])]
    taken = [found("HD501", 121), found("HD101", 121, held=False)]
    assert outline(diagnose([*taken, found("HD301", 227)])) == [("HD501", ["HD101", "HD301"])]


# Mild findings


def test_a_mild_remark_explains_no_error() -> None:
    causes = diagnose([found("HD501", 5, INFO), found("HD101", 5, ERROR)])
    assert outline(causes) == [("HD101", []), ("HD501", [])]
    assert outline(diagnose([found("HD501", 5, INFO), found("HD101", 5, INFO)])) == [
        ("HD501", ["HD101"])
    ]


def test_an_error_explains_the_mild_remark_that_could_otherwise_explain_it() -> None:
    weight, loss = found("HD301", 5, INFO), found("HD101", 5, ERROR)
    assert "HD301" in EXPLAINS["HD101"]
    assert "HD101" in EXPLAINS["HD301"]
    assert outline(diagnose([weight, loss])) == [("HD101", ["HD301"])]


# Circles

MUTUAL = [
    (one, other)
    for one, other in itertools.permutations(EXPLAINS, 2)
    if other in EXPLAINS[one] and one in EXPLAINS[other] and one in YIELDS[other]
]


def test_of_two_that_explain_each_other_exactly_one_yields() -> None:
    for one, other in itertools.combinations(EXPLAINS, 2):
        mutual = other in EXPLAINS[one] and one in EXPLAINS[other]
        assert (one in YIELDS[other]) + (other in YIELDS[one]) == mutual, (one, other)
    assert len(MUTUAL) == 21


@pytest.mark.parametrize(("first", "second"), MUTUAL)
def test_of_two_that_explain_each_other_one_is_the_cause(first: str, second: str) -> None:
    for order in ([found(first), found(second)], [found(second), found(first)]):
        assert outline(diagnose(order)) == [(first, [second])]


@pytest.mark.parametrize(("first", "second"), MUTUAL)
def test_unless_the_other_was_there_clearly_before(first: str, second: str) -> None:
    findings = [found(first, 50), found(second, 10)]
    assert outline(diagnose(findings)) == [(second, [first])]


CIRCLE = [found("HD101", 0), found("HD302", SLACK), found("HD301", 2 * SLACK)]
"""Each explains the next, and the last the first: the slack makes a circle of them."""


def test_a_circle_of_explanations_has_one_cause_its_earliest_finding() -> None:
    for order in itertools.permutations(CIRCLE):
        [cause] = diagnose(order)
        assert cause.code == "HD101"
        assert sorted(item.code for item in cause.symptoms) == ["HD301", "HD302"]


def test_a_circle_beside_an_unrelated_fault_is_not_lost() -> None:
    causes = diagnose([*CIRCLE, found("HD801", 1)])
    assert outline(causes) == [("HD101", ["HD302", "HD301"]), ("HD801", [])]


def test_a_symptom_seen_just_before_its_circle_is_not_its_cause() -> None:
    # HD313 began first by the clock, but explains nothing of the circle that explains it.
    circle = [found(item.code, (item.step or 0) + SLACK) for item in CIRCLE]
    [cause] = diagnose([found("HD313", 1), *circle])
    assert cause.code == "HD101"


# Order, and the whole


def test_worse_causes_come_first_then_those_that_explain_more_then_earlier_ones() -> None:
    causes = diagnose(
        [
            found("HD805", 0, WARNING),
            found("HD801", 9),
            found("HD501", 20),
            found("HD101", 20),
            found("HD601", 3),
            found("HD103", 1, INFO),
        ]
    )
    assert [cause.code for cause in causes] == ["HD501", "HD601", "HD801", "HD805", "HD103"]


def test_a_cause_in_json_names_its_symptoms_codes_once() -> None:
    findings = [found("HD501"), found("HD101", subject="a"), found("HD101", subject="b")]
    [cause] = diagnose(findings)
    assert cause.to_dict() == {
        "code": "HD501",
        "name": "name-HD501",
        "message": "HD501 at 0",
        "findings": ["HD501", "HD101"],
    }


codes = st.sampled_from(sorted({*EXPLAINS, *itertools.chain(*EXPLAINS.values()), "HD999", "ACME1"}))
findings = st.lists(
    st.builds(
        found,
        codes,
        st.none() | st.integers(0, 12),
        st.sampled_from(Severity),
        segment=st.integers(0, 1),
        subject=st.sampled_from(["", "a"]),
    ),
    max_size=14,
)


@thoroughly
@given(findings)
def test_every_finding_stands_in_exactly_one_cause(told: list[Finding]) -> None:
    causes = diagnose(told)
    shown = [item for cause in causes for item in (cause.root, *cause.symptoms)]
    assert sorted(map(id, shown)) == sorted(map(id, told))


@thoroughly
@given(findings)
def test_every_symptom_can_be_traced_to_its_cause_by_declarations(told: list[Finding]) -> None:
    for cause in diagnose(told):
        reached, frontier = {cause.code}, [cause.code]
        present = {item.code for item in told}
        while frontier:
            for code in EXPLAINS.get(frontier.pop(), ()):
                if code in present and code not in reached:
                    reached.add(code)
                    frontier.append(code)
        assert {item.code for item in cause.symptoms} <= reached


@thoroughly
@given(findings)
def test_a_mild_cause_has_only_mild_symptoms(told: list[Finding]) -> None:
    for cause in diagnose(told):
        if cause.root.severity is INFO:
            assert all(item.severity is INFO for item in cause.symptoms)


@thoroughly
@given(findings, st.randoms(use_true_random=False))
def test_the_order_of_the_findings_does_not_matter(told: list[Finding], random: object) -> None:
    # Equal findings cannot be told apart, so each gets its own subject.
    told = [
        found(item.code, item.step, item.severity, segment=item.segment, subject=str(at))
        for at, item in enumerate(told)
    ]
    shuffled = list(told)
    random.shuffle(shuffled)  # type: ignore[attr-defined]

    def groups(causes: list[Cause]) -> list[object]:
        return [
            (cause.root.subject, sorted(item.subject for item in cause.symptoms))
            for cause in causes
        ]

    assert groups(diagnose(told)) == groups(diagnose(shuffled))


def test_the_diagnosis_of_a_very_sick_run_stays_within_bounds() -> None:
    """Calls are counted, not seconds: a search that tried every grouping would make far more."""
    told = [
        found(code, at, subject=str(at))
        for at in range(10)
        for code in sorted({*EXPLAINS, *itertools.chain(*EXPLAINS.values())})
    ]
    calls, causes = calls_made(lambda: diagnose(told))
    assert calls < 3 * len(told) ** 2
    assert sum(1 + len(cause.symptoms) for cause in causes) == len(told)


@pytest.mark.parametrize("code", ["HD911", "HD913", "HD808", "HD809", "HD912", "HD514"])
def test_a_rank_that_failed_and_those_that_lost_it_are_one_cause(code: str) -> None:
    own, lost = found(code, 12, subject="rank 1"), found("HD608", 12)
    stopped = found("HD915", 13, INFO)
    (cause,) = diagnose([own, lost, stopped])
    assert cause.code == code
    assert {item.code for item in cause.symptoms} == {"HD608", "HD915"}


def test_what_ended_the_run_comes_before_faults_that_did_not() -> None:
    unused, crash, nan = found("HD204", 3), found("HD911", 70), found("HD101", 60)
    assert [cause.code for cause in diagnose([unused, crash])] == ["HD911", "HD204"]
    assert diagnose([nan, crash])[0].code == "HD101", "its own check may have raised"
    later = found("HD204", 80, segment=1)
    assert diagnose([crash, later])[0].code == "HD911"
    cut, crash_there = found("HD108", 70), found("HD911", 70)
    assert diagnose([cut, crash_there])[0].code == "HD108", "it may be what raised"
    survived = found("HD708", 70, survived=True)
    assert diagnose([unused, survived])[0].code == "HD204"
