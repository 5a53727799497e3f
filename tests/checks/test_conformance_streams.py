"""What every check must do with a stream, whatever is in it: driven by the check's own fixtures."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.literate_cases import Case, read_page

from headway import registry
from headway.core.check import Check
from headway.core.ending_facts import OUT_OF_MEMORY
from headway.core.findings import Finding
from headway.core.incident_events import INCIDENT
from headway.core.numbers import encode_numbers
from headway.core.records import Column, Header, Record, StepRecord
from headway.core.signals import Signal
from headway.engine import Engine

HERE = Path(__file__).parent
CODES = list(registry.modules())
EXTREMES = (math.nan, math.inf, -math.inf, 0.0, -1.0, 1e308, -1e308, 5e-324)
LISTED = 20
"""No list in the evidence may be longer."""

pytestmark = pytest.mark.parametrize("code", CODES)


@cache
def cases_of(code: str) -> list[Case]:
    page = HERE / (registry.get(code).__module__.rpartition(".")[2] + ".md")
    cases = read_page(page) if page.is_file() else []  # that it is there is tested elsewhere
    return [case for case in cases if case.not_run is None]


def firing(code: str) -> list[Case]:
    return [case for case in cases_of(code) if case.findings]


def quiet(code: str) -> list[Case]:
    return [case for case in cases_of(code) if not case.findings]


def stream(code: str, records: Sequence[Record], check: Check | None = None) -> list[Finding]:
    """All findings, not folded; an exception of the check comes through."""
    engine = Engine(checks=[check or registry.get(code)()], strict=True)
    return [*(found for record in records for found in engine.feed(record)), *engine.finish()]


def told(findings: Sequence[Finding]) -> list[str]:
    """Findings as text: NaN in the evidence equals itself."""
    return [
        json.dumps([item.order, item.subject, item.to_dict()], allow_nan=False) for item in findings
    ]


# --- nothing to see -------------------------------------------------------------------------


def test_an_empty_stream(code: str) -> None:
    assert stream(code, []) == []


def test_a_header_alone(code: str) -> None:
    needs = registry.get(code).needs
    described = {name: Signal() for name in (*needs.signals, *needs.any_of)}
    assert stream(code, [Header("fixture", signals=described)]) == []


def test_steps_on_which_nothing_was_measured(code: str) -> None:
    for case in cases_of(code):
        bare = [
            replace(record, values={}, columns={}) if isinstance(record, StepRecord) else record
            for record in case.records
            if isinstance(record, (Header, StepRecord))
        ]
        assert stream(code, bare) == [], case.title


# --- parts of it missing, or absurd ---------------------------------------------------------


def test_any_one_series_missing(code: str) -> None:
    for case in cases_of(code):
        for name in sorted(series_in(case.records)):
            stream(code, changed(case.records, lambda _, key, v, n=name: None if key == n else v))


def test_names_unknown(code: str) -> None:
    for case in cases_of(code):
        anonymous = [
            replace(record, axes={}) if isinstance(record, Header) else record
            for record in case.records
        ]
        stream(code, anonymous)


Blemish = tuple[float, int, float, int | None]
"""Where it begins (0 to 1), for how many steps, the value, in which series (None: in all)."""


def test_each_absurd_value_in_each_series(code: str) -> None:
    for case in firing(code):
        for which in range(len(series_in(case.records))):
            for value in EXTREMES:
                assert_survives(code, case, [(0.0, 1, value, which)])
                assert_survives(code, case, [(0.5, 20, value, which)])


@settings(
    max_examples=5, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
@given(
    blemishes=st.lists(
        st.tuples(
            st.floats(0, 0.999),
            st.integers(1, 60),
            st.sampled_from(EXTREMES),
            st.none() | st.integers(0, 7),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_absurd_values_do_not_break_it(code: str, blemishes: list[Blemish]) -> None:
    for case in firing(code):
        assert_survives(code, case, blemishes)


def assert_survives(code: str, case: Case, blemishes: Sequence[Blemish]) -> None:
    """No exception, and whatever is found can be written down."""
    names = sorted(series_in(case.records))
    steps = sum(isinstance(record, StepRecord) for record in case.records)
    spots: dict[tuple[int, str], float] = {}
    for begin, length, value, which in blemishes:
        chosen = names if which is None or not names else [names[which % len(names)]]
        first = int(begin * steps)
        spots |= {(at, name): value for at in range(first, first + length) for name in chosen}
    for finding in stream(code, changed(case.records, lambda at, key, v: spots.get((at, key), v))):
        assert_well_formed(registry.get(code), finding)


# --- resuming -------------------------------------------------------------------------------


def test_state_survives_json_in_the_middle(code: str) -> None:
    for case in cases_of(code):
        whole = told(stream(code, case.records))
        count = len(case.records)
        for cut in sorted({count // 4, count // 2, 3 * count // 4, count - 1} - {0}):
            assert told(list(interrupted(code, case.records, cut))) == whole, (case.title, cut)


def interrupted(code: str, records: Sequence[Record], cut: int) -> Iterator[Finding]:
    """The stream seen by two engines, the second taking up the first one's state."""
    first = Engine(checks=[registry.get(code)()], strict=True)
    for record in records[:cut]:
        yield from first.feed(record)
    state = json.loads(json.dumps(first.state_dict(), allow_nan=False))
    second = Engine(checks=[registry.get(code)()], strict=True)
    second.feed([record for record in records[:cut] if isinstance(record, Header)][-1])
    second.load_state_dict(state)
    for record in records[cut:]:
        yield from second.feed(record)
    yield from second.finish()


@pytest.mark.parametrize("repeated", [0, 10], ids=["exact", "steps-repeated"])
def test_a_resume_is_no_fault(code: str, repeated: int) -> None:
    for case in quiet(code):
        assert told(stream(code, resumed(case.records, repeated))) == [], case.title


def resumed(records: Sequence[Record], repeated: int) -> list[Record]:
    """The stream with a new segment in its middle, which may repeat the last steps."""
    cut = len(records) // 2
    header = next(record for record in reversed(records[: cut + 1]) if isinstance(record, Header))
    before = records[: max(cut, 1)]
    again = [
        record
        for record in before[max(len(before) - repeated, 0) :]
        if isinstance(record, StepRecord)
    ]
    after = [header, *again, *(record for record in records[len(before) :])]
    return [*before, *(replace(record, segment=record.segment + 1) for record in after)]


# --- what it says ---------------------------------------------------------------------------


def test_findings_are_repeatable(code: str) -> None:
    for case in cases_of(code):
        assert told(stream(code, case.records)) == told(stream(code, case.records)), case.title


def test_findings_are_well_formed(code: str) -> None:
    for case in firing(code):
        for finding in stream(code, case.records):
            assert_well_formed(registry.get(code), finding)


def assert_well_formed(check: type[Check], finding: Finding) -> None:
    assert (finding.code, finding.name) == (check.code, check.name)
    assert finding.severity <= check.severity, "milder than the class says, never worse"
    texts = [finding.message, *(remedy.text for remedy in finding.remedies)]
    assert all(text and "\n" not in text for text in texts), texts
    # Only a step that was run again, and a call that ran out of memory, have tried remedies.
    if INCIDENT not in check.needs.signals and OUT_OF_MEMORY not in check.needs.events:
        assert not any(remedy.tested for remedy in finding.remedies), "nothing was tried here"
    json.dumps(encode_numbers(dict(finding.evidence)), allow_nan=False)
    for key, value in finding.evidence.items():
        assert not isinstance(value, (list, tuple, dict)) or len(value) <= LISTED, key


# --- records, changed -----------------------------------------------------------------------


def series_in(records: Sequence[Record]) -> set[str]:
    """Names of the scalars and columns of the steps."""
    steps = [record for record in records if isinstance(record, StepRecord)]
    return {name for record in steps for name in (*record.values, *record.columns)}


def changed(
    records: Sequence[Record], change: Callable[[int, str, float], float | None]
) -> list[Record]:
    """The records with `change(which step, series, value)` for each value; None drops it."""
    result: list[Record] = []
    at = -1
    for record in records:
        if not isinstance(record, StepRecord):
            result.append(record)
            continue
        at += 1
        values: dict[str, Any] = {name: change(at, name, v) for name, v in record.values.items()}
        values = {name: value for name, value in values.items() if value is not None}
        columns = {}
        for name, column in record.columns.items():
            new = [(where, change(at, name, v)) for where, v in column.items()]
            kept = [(where, value) for where, value in new if value is not None]
            if kept:
                columns[name] = Column([v for _, v in kept], [where for where, _ in kept])
        result.append(replace(record, values=values, columns=columns))
    return result
