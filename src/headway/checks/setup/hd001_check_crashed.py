from __future__ import annotations

from collections.abc import Iterable

from headway.core.check import Check, Needs
from headway.core.findings import Finding, Where
from headway.core.records import EventRecord


class CheckCrashed(Check):
    """A check of headway or of a plug-in raised an exception.

    ## What it checks
    That every check works. A check that raises is disabled for the rest of the run; the other
    checks and the training continue.

    ## Why it matters
    From that step on the fault that this check looks for would not be found. No findings must never
    look like no problems, so the gap is reported.

    ## How it is measured
    The engine catches the exception and stores its type, message and line.

    ## False alarms
    None: it reports a problem of the tool, not of the training.

    ## What to do
    Report it with the run directory; until it is fixed, `--ignore` the code of the check. For a
    check of a plug-in, contact its author.

    ## References
    None.
    """

    code = "HD001"
    name = "check-crashed"
    summary = "a check raised an exception and was disabled; the run continued"
    needs = Needs(kinds=(EventRecord,))
    explains = ()

    def observe(self, record: EventRecord) -> Iterable[Finding]:
        if record.kind != "check-crashed":
            return
        crashed = str(record.data.get("check", "?"))
        yield self.find(
            record,
            f"check {crashed} crashed ({record.data.get('error', 'no message')}) and was "
            f"disabled; the run continues without it",
            subject=crashed,
            where=Where(file=record.data.get("file"), line=record.data.get("line")),
            remedies=[
                "Report it as a defect of headway, with this run directory.",
                f"Until it is fixed, use --ignore {crashed}.",
            ],
            check=crashed,
            error=record.data.get("error"),
        )
