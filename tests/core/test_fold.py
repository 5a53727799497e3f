"""Folding: a fault at every step is one finding with a count."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support.strategies import thoroughly

from headway.core.episodes import EPISODES, GAP, FindingEpisodes
from headway.core.findings import Finding, Severity
from headway.core.incident_events import INCIDENT, read_incident
from headway.core.records import EventRecord


def found(
    seq: int,
    *,
    code: str = "HD101",
    subject: str = "",
    severity: Severity = Severity.ERROR,
    segment: int = 0,
    **evidence: Any,
) -> Finding:
    return Finding(
        code,
        "nonfinite-loss",
        severity,
        step=seq * 10,
        message=f"at {seq}",
        evidence=evidence,
        subject=subject,
        segment=segment,
        seq=seq,
    )


def folded(*findings: Finding) -> list[Finding]:
    fold = FindingEpisodes()
    fold.add(findings)
    return fold.findings


def count(finding: Finding) -> int:
    return int(finding.evidence.get("count", 1))


def test_repeats_are_the_first_finding_with_a_count_and_the_last_step() -> None:
    [one] = folded(found(1, value=7), found(2, value=8), found(3, value=9))
    assert one.step == 10
    assert one.message == "at 1"
    assert one.evidence == {"value": 7, "count": 3, "last_step": 30}


def test_a_single_finding_stays_as_it_is() -> None:
    single = found(1, value=7)
    assert folded(single) == [single]
    assert "count" not in single.evidence


def test_repeats_far_apart_are_two_episodes() -> None:
    assert len(folded(found(1), found(1 + GAP))) == 1
    assert len(folded(found(1), found(2 + GAP))) == 2
    # The distance counts from the last repeat, not from the first.
    assert len(folded(found(1), found(1 + GAP), found(1 + 2 * GAP))) == 1


def test_other_subjects_checks_and_segments_stay_apart() -> None:
    assert len(folded(found(1, subject="a"), found(1, subject="b"))) == 2
    assert len(folded(found(1), found(1, code="HD201"))) == 2
    assert len(folded(found(1), found(2, segment=1))) == 2


def test_a_worse_finding_is_not_folded_into_a_milder_one() -> None:
    mild, bad = found(1, severity=Severity.INFO), found(2, severity=Severity.ERROR)
    assert [item.severity for item in folded(mild, bad)] == [Severity.INFO, Severity.ERROR]
    assert [item.severity for item in folded(bad, mild)] == [Severity.ERROR]


def test_a_worse_finding_is_never_lost_however_many_mild_ones_came_before() -> None:
    mild = [found(at * 2 * GAP, severity=Severity.INFO) for at in range(2 * EPISODES)]
    worse = found(5 * EPISODES * GAP, severity=Severity.ERROR)
    assert max(item.severity for item in folded(*mild, worse)) is Severity.ERROR


def test_what_comes_after_the_last_episode_is_counted_into_it() -> None:
    same_subject = [found(at * 2 * GAP) for at in range(EPISODES + 5)]
    assert len(folded(*same_subject)) == EPISODES
    assert sum(map(count, folded(*same_subject))) == EPISODES + 5
    new_subjects = [found(at, subject=f"p{at}") for at in range(EPISODES + 5)]
    assert len(folded(*new_subjects)) == EPISODES
    assert sum(map(count, folded(*new_subjects))) == EPISODES + 5


def test_even_then_a_worse_finding_is_not_counted_into_a_milder_one() -> None:
    full = [found(at, subject=f"p{at}") for at in range(EPISODES)]
    mild, worse = found(60, subject="x", severity=Severity.INFO), found(61, subject="x")
    counts = {item.severity: 0 for item in (mild, worse)}
    for item in folded(*full, mild, worse):
        counts[item.severity] += count(item)
    assert counts == {Severity.INFO: 1, Severity.ERROR: EPISODES + 1}


def test_adding_tells_which_findings_opened_an_episode() -> None:
    fold = FindingEpisodes()
    first, repeat, other = found(1), found(2), found(2, subject="b")
    assert fold.add([first, repeat, other]) == [first, other]
    assert fold.add([found(3)]) == []


def test_findings_stand_in_the_order_of_the_stream() -> None:
    late, early = found(9, code="HD207"), found(3, code="HD999")
    assert folded(late, early) == [early, late]


severities = st.sampled_from(Severity)


@thoroughly
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["HD101", "HD207"]),
            st.sampled_from(["", "a", "b"]),
            severities,
            st.integers(1, 2 * GAP),
        ),
        max_size=60,
    )
)
def test_every_finding_is_counted_once_and_the_worst_is_kept(
    told: list[tuple[str, str, Severity, int]],
) -> None:
    fold, seq, findings = FindingEpisodes(), 0, []
    for code, subject, severity, gap in told:
        seq += gap
        findings.append(found(seq, code=code, subject=subject, severity=severity))
        fold.add(findings[-1:])
    for code in ("HD101", "HD207"):
        before = [item for item in findings if item.code == code]
        after = [item for item in fold.findings if item.code == code]
        assert sum(map(count, after)) == len(before)
        assert max((i.severity for i in after), default=None) == max(
            (i.severity for i in before), default=None
        )


def test_memory_stays_bounded() -> None:
    fold = FindingEpisodes()
    for at in range(20_000):
        fold.add([found(at, subject=f"p{at}")])
    assert len(fold.findings) == EPISODES
    assert len(fold._open) == EPISODES


def test_a_remedy_that_was_tested_later_is_added_to_an_explained_finding() -> None:
    place = {"file": "train.py", "line": 7}
    origin = {"op": "sqrt", "phase": "backward", "kind": "sqrt-at-zero", "place": place}
    data = {"origins": [origin], "headline": "Sqrt at 0", "nature": "deterministic"}
    trial = {"text": "write `x + 1e-08`", "tried": "cured"}
    finding = found(3, code="HD201")
    fold = FindingEpisodes()
    fold.add([finding])
    for trials in ([], [trial]):
        event = EventRecord(0, 9, finding.step or 0, INCIDENT, {**data, "trials": trials})
        incident = read_incident(event)
        assert incident is not None
        fold.explain(incident)
    (explained,) = fold.findings
    assert explained.where.line == 7
    assert [(item.text, item.cured) for item in explained.remedies] == [(trial["text"], True)]
