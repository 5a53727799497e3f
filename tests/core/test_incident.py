"""An incident explains the findings of its step, whatever a log may hold in its place."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support.strategies import thoroughly

from headway.config import nearest_name
from headway.core.episodes import FindingEpisodes
from headway.core.findings import Finding, Remedy, Severity, Where
from headway.core.incident_events import explain_finding, incident_concerns, read_incident
from headway.core.records import EventRecord

DATA: dict[str, Any] = {
    "nature": "deterministic",
    "headline": "Log of 0, at loss.py:31, sample 5.",
    "origins": [
        {
            "kind": "log-of-zero",
            "phase": "forward",
            "op": "log",
            "module": "head",
            "place": {"file": "/me/loss.py", "line": 31, "function": "f", "source": "log(p)"},
            "rows": [5],
        }
    ],
    "trials": [
        {"key": "guard-input", "text": "Clamp p.", "tried": "cured", "why": ""},
        {"key": "fp32", "text": "Use float32.", "tried": "not tried", "why": "others worked"},
    ],
    "samples": [1871],
    "guilt": "batch",
}


def event(data: Any = None, step: int = 7) -> EventRecord:
    return EventRecord(0, 9, step, "incident", DATA if data is None else data)


def finding(code: str = "HD101", step: int = 7, **more: Any) -> Finding:
    remedies = (Remedy("Find the op."),)
    return Finding(code, "name", Severity.ERROR, step, "it broke", remedies=remedies, **more)


def test_the_place_the_reason_and_the_cures() -> None:
    incident = read_incident(event())
    assert incident is not None
    told = explain_finding(finding(), incident, aloud=True)
    assert told.message == "it broke. Log of 0, at loss.py:31, sample 5."
    assert told.where == Where("/me/loss.py", 31, "f", "head", "log", None, 5)
    assert told.remedies == (Remedy("Clamp p.", True, True), Remedy("Use float32."))
    assert told.evidence["data_set"] == [1871]
    assert explain_finding(told, incident, aloud=True) == told


def test_without_a_cure_the_general_advice_stays() -> None:
    incident = read_incident(event({**DATA, "trials": []}))
    assert incident is not None
    assert explain_finding(finding(), incident, aloud=False).remedies == (Remedy("Find the op."),)


def test_only_the_findings_of_its_step_are_explained_and_one_says_so() -> None:
    fold = FindingEpisodes()
    fold.add([finding(), finding("HD201"), finding("HD801"), finding("HD301", step=3)])
    incident = read_incident(event())
    assert incident is not None
    fold.explain(incident)
    told = {item.code: item for item in fold.findings}
    assert [code for code, item in told.items() if "why" in item.evidence] == ["HD101", "HD201"]
    assert told["HD101"].message.endswith("sample 5.")
    assert told["HD201"].message == "it broke"
    assert told["HD201"].where.line == 31


def test_a_fault_that_comes_again_may_be_looked_into_later() -> None:
    fold = FindingEpisodes()
    for seq, step in enumerate((3, 5, 7)):
        fold.add([finding(step=step, seq=seq)])
    incident = read_incident(event())
    assert incident is not None
    fold.explain(incident)
    (told,) = fold.findings
    assert (told.step, told.where.line, told.evidence["count"]) == (3, 31, 3)


def test_what_came_bad_into_the_step_is_told_where_it_is_named() -> None:
    origins = [{"kind": "poisoned-batch", "op": "linear", "rows": [2]}]
    incident = read_incident(event({**DATA, "origins": origins}))
    assert incident is not None
    assert incident_concerns(incident, finding("HD501"))
    assert not incident_concerns(incident, finding("HD301"))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=5,
)


@thoroughly
@given(st.fixed_dictionaries({}, optional=dict.fromkeys(DATA, JSON)))
def test_a_log_may_hold_anything(data: dict[str, Any]) -> None:
    incident = read_incident(event(data))
    assert incident is not None
    told = explain_finding(finding(), incident, aloud=True)
    assert told.to_dict()["code"] == "HD101"


def test_of_words_as_much_alike_the_one_with_more_letters_in_their_place() -> None:
    assert nearest_name("HD1O1", ["HD311", "HD101", "nonfinite-loss"]) == "HD101"
    assert nearest_name("xyz", ["HD101"]) is None
    assert nearest_name("HD101", []) is None


def test_an_explained_fault_takes_the_remedies_that_a_later_step_has_tested() -> None:
    fold = FindingEpisodes()
    first = read_incident(event({**DATA, "trials": []}, step=3))
    later = read_incident(event())
    elsewhere = read_incident(event({**DATA, "origins": [{"kind": "overflow", "op": "exp"}]}))
    assert first is not None
    assert later is not None
    assert elsewhere is not None
    for seq, step in enumerate((3, 7)):
        fold.add([finding(step=step, seq=seq)])
        fold.explain(first if step == 3 else elsewhere)
    assert not any(remedy.tested for remedy in fold.findings[0].remedies)
    fold.explain(later)
    (told,) = fold.findings
    assert (told.step, told.remedies) == (3, (Remedy("Clamp p.", True, True),))
