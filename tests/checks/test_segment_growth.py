"""A signal followed through the segments of a run."""

from __future__ import annotations

from headway.checks.growth import GrowthRule
from headway.checks.resources._shared import SegmentGrowth
from headway.core.records import Header, StepRecord
from headway.core.signals import Cadence, Signal
from headway.core.state import decode, encode

RULE = GrowthRule(ratio=1.1, grace=0, horizon=100)


def header(segment: int, cadence: Cadence = "steps") -> Header:
    return Header("a tool", {"m": Signal()}, segment=segment, seq=1, cadence=cadence)


def feed(growth: SegmentGrowth, segment: int, slope: float, steps: int = 400) -> list[int]:
    told = []
    for step in range(steps):
        record = StepRecord(segment, step + 1, step)
        if growth.admit(record, 100.0 + slope * step, RULE) is not None:
            told.append(step)
    return told


def test_a_live_run_is_told_at_once_and_anew_in_each_segment() -> None:
    growth = SegmentGrowth()
    for segment in (0, 1):
        growth.begin(header(segment), "m")
        assert growth.watch.first is None  # a new process starts from a level of its own
        assert len(feed(growth, segment, 1.0)) == 1
    assert list(growth.at_the_end(RULE)) == []


def test_a_log_is_judged_at_its_end_with_the_segments_that_are_kept() -> None:
    for segments, found in ((4, 1), (0, 0)):
        growth = SegmentGrowth()
        growth.begin(header(0, "rows"), "m", segments=segments)
        assert feed(growth, 0, 1.0) == []
        growth = decode(encode(growth))
        growth.begin(header(1, "rows"), "m", segments=segments)
        feed(growth, 1, 0.0)
        told = list(growth.at_the_end(RULE))
        assert len(told) == found
        assert all(record.segment == 0 and record.step == 0 for record, _ in told)
