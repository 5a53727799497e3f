from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headway.checks.symptoms import POOR_FIT
from headway.core.check import Check, Needs
from headway.core.findings import Finding
from headway.core.model_facts import DropoutFacts
from headway.core.numbers import say
from headway.core.records import SetupRecord


class ExcessiveDropout(Check):
    """Dropout is so high that little of the signal remains.

    ## What it checks
    The rate of every dropout in the training forward pass, module or function, and of dropouts that
    directly follow each other.

    ## Why it matters
    If nine of ten values are dropped, each step sees a different tenth of the layer: the gradient
    is mostly noise and the model underfits. `p` is the share that is dropped; older code and other
    frameworks pass the share that is kept.

    ## How it is measured
    The share that remains after the dropout and those directly before it: at most 0.2.

    ## False alarms
    Rates up to 0.75 are in use, and many small dropouts at different depths are not multiplied.

    ## What to do
    Lower the rate: 0.1 in transformers, up to 0.5 before a classifier. If the number was meant as
    the share to keep, pass 1 minus it.

    ## References
    Srivastava et al., "Dropout"; stackoverflow.com/questions/44832497.
    """

    code = "HD909"
    name = "excessive-dropout"
    summary = "dropout is so high that the signal is lost"
    needs = Needs(kinds=(SetupRecord,), topics=("dropout",))
    explains = (*POOR_FIT, "HD103", "HD105", "HD207", "HD304", "HD404")
    once = "run"

    @dataclass(frozen=True)
    class Limits:
        kept: float = 0.2
        """Remaining share at or below which the signal is lost."""

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        if record.topic != "dropout":
            return
        facts = DropoutFacts.of(record)
        kept, p = facts.kept, facts.p
        member = facts.member or "a dropout"
        if kept is None or kept > self.limits.kept + 1e-9:
            return
        chain = p is not None and kept < 1 - p - 1e-9
        what = "several dropouts in a row leave" if chain else f"p={say(p or 1 - kept)} leaves"
        yield self.find(
            record,
            f"{member}: {what} {say(kept)} of the values (limit {say(self.limits.kept)}): the "
            f"signal is lost",
            subject=member,
            where=facts.locate(rank=record.rank, module=member, op="dropout"),
            remedies=[
                "Lower p: 0.1 to 0.5 is usual. If the number was meant as the share to keep, pass "
                "1 minus it."
            ],
            kept=kept,
            limit=self.limits.kept,
            p=p,
        )
