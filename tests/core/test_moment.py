"""A moment is plain data, and names the place of a record."""

from __future__ import annotations

from headway.core.records import StepRecord, moment_of, record_at
from headway.core.state import decode, encode


def test_a_record_can_be_put_back_where_it_stood() -> None:
    record = StepRecord(2, 17, 40, {"loss": 1.0}, rank=3)
    kept = decode(encode(moment_of(record)))
    again = record_at(kept)
    assert (again.segment, again.seq, again.step, again.rank) == (2, 17, 40, 3)
    assert not again.values
