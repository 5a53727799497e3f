from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from headway.core.check import Check, Needs
from headway.core.findings import Finding, Severity
from headway.core.records import EventRecord

DAMAGED_LINES = "damaged-lines"
"""Event that the reader of a run directory adds when lines were no records."""


class DamagedRecord(Check):
    """Lines in the middle of the run's own record are damaged or out of order.

    ## What it checks
    Every line of the run directory: whether it is a record, and whether it follows the one before.

    ## Why it matters
    A line that cannot be read is a step that no check has seen, so the run cannot be called
    healthy. Lines out of order mean that two processes have written into one directory: their steps
    and their snapshots are mixed.

    ## How it is measured
    The reader counts the lines of each file that are not records, and those with a lower number
    than the line before.

    ## False alarms
    A killed process leaves one incomplete line at the end of each file, which is normal: it is
    counted in the report's notes and not reported here.

    ## What to do
    If lines are out of order, find the second process; give every run its own `run_dir`. A guard
    locks its directory, so this comes from two guards in one process, from copies joined by hand,
    or from a file system without locks. If lines are unreadable, check the disk or the network file
    system.

    ## References
    None.
    """

    code = "HD004"
    name = "damaged-record"
    severity = Severity.WARNING
    summary = "lines of the run directory are damaged or out of order"
    needs = Needs(kinds=(EventRecord,))
    explains = ()

    def observe(self, record: EventRecord) -> Iterable[Finding]:
        if record.kind != DAMAGED_LINES:
            return
        unreadable = _count(record.data, "unreadable")
        disordered = _count(record.data, "disordered")
        if not unreadable and not disordered:
            return
        what = [
            *([f"{unreadable} damaged"] if unreadable else []),
            *([f"{disordered} out of order"] if disordered else []),
        ]
        lines = _count(record.data, "lines")
        yield self.find(
            record,
            f"{' and '.join(what)} of {lines} lines in the run directory: the checks could not "
            "read them. "
            + (
                "Two processes wrote into one directory; give each its own run_dir"
                if disordered
                else "Check the disk, then run `headway diagnose` again"
            ),
            remedies=["Give every run its own `run_dir`."] if disordered else ["Check the disk."],
            unreadable=unreadable,
            disordered=disordered,
            lines=lines,
        )


def _count(data: Mapping[str, Any], name: str) -> int:
    value = data.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
