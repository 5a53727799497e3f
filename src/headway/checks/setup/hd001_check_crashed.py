from __future__ import annotations

from collections.abc import Iterable

from headway.core.check import Check, Needs
from headway.core.findings import Finding, Where
from headway.core.records import EventRecord


class CheckCrashed(Check):
    """A check of headway's own, or of a plug-in, raised an exception.

    ## What it checks
    That every check does its work. One that raises is taken out of the run; the others, and the
    training, go on.

    ## Why it matters
    From that step on the fault that check looks for would go unseen. Silence must never read as
    health, so the gap is reported.

    ## How it is measured
    The engine catches the exception and keeps its type, message and line.

    ## False alarms
    None: it reports what happened to the tool, not to the training.

    ## What to do
    Report it with the run directory; until then `--ignore` the check's code. For a plug-in's check,
    ask its author.

    ## References
    None.
    """

    code = "HD001"
    name = "check-crashed"
    summary = "a check raised; it was quarantined, the run went on"
    needs = Needs(kinds=(EventRecord,))
    explains = ()

    def observe(self, record: EventRecord) -> Iterable[Finding]:
        if record.kind != "check-crashed":
            return
        crashed = str(record.data.get("check", "?"))
        yield self.find(
            record,
            f"check {crashed} crashed ({record.data.get('error', 'no message')}) "
            "and was taken out; the run went on without it",
            subject=crashed,
            where=Where(file=record.data.get("file"), line=record.data.get("line")),
            remedies=[
                "Report it as a defect of headway, with this run directory.",
                f"Until it is mended: --ignore {crashed}.",
            ],
            check=crashed,
            error=record.data.get("error"),
        )
