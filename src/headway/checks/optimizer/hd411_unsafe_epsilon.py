from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headway.checks.symptoms import NONFINITE_OR_RANK
from headway.core.check import Check, Needs
from headway.core.findings import Finding
from headway.core.numbers import say
from headway.core.optimizer_facts import OptimizerFacts
from headway.core.records import SetupRecord

SMALLEST = {"float16": 2.0**-24, "bfloat16": 9.2e-41, "float32": 1.4e-45, "float64": 5e-324}
"""The smallest number above 0 of each dtype."""


class UnsafeEpsilon(Check):
    """The optimizer's eps is 0, rounds to 0, or is too small to have an effect.

    ## What it checks
    The `eps` of every optimizer that divides by a running size of the gradient.

    ## Why it matters
    If a gradient has been 0 or almost 0, the update is one tiny number divided by another:
    full-sized steps made of rounding noise, and 0/0 if both are 0. This happens rarely and late.

    ## How it is measured
    From the parameter groups. Reported: 0; less than 1e-12; and a value that rounds to 0 in the
    dtype of the state, as 1e-8 does in float16 (a fused optimizer computes in float32, so that is
    fine there).

    ## False alarms
    Some fields (radiance fields) use 1e-15 on purpose: ignore the code there, or set `least`.
    Adafactor's pair of values has another meaning and is not checked.

    ## What to do
    Keep the default of 1e-8, or raise it to 1e-6 for noisy gradients. Keep weights in float32
    rather than raise it for float16.

    ## References
    TheDeepChecker (an Adam eps of 1e-16).
    """

    code = "HD411"
    name = "unsafe-epsilon"
    summary = "the optimizer's eps is 0, rounds to 0 or is far too small"
    needs = Needs(kinds=(SetupRecord,), topics=("optimizer",))
    explains = (*NONFINITE_OR_RANK, "HD103", "HD207", "HD308")
    once = "run"

    @dataclass(frozen=True)
    class Limits:
        least: float = 1e-12
        """An eps below this has no effect."""

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        facts = OptimizerFacts.of(record)
        eps = facts.eps
        name = facts.optimizer or "the optimizer"
        if eps is None or eps < 0:
            return
        lost = [
            dtype
            for dtype in facts.dtypes
            if eps < SMALLEST.get(dtype, 0.0) / 2 and not facts.fused
        ]
        if eps == 0:
            what = "is 0: an update becomes 0/0 if a gradient was always 0"
        elif lost:
            what = f"rounds to 0 in {lost[0]}, the dtype of its state"
        elif eps < self.limits.least:
            what = f"is below {say(self.limits.least)}: gradients of almost 0 get full-sized steps"
        else:
            return
        yield self.find(
            record,
            f"eps={say(eps)} of {name} {what}",
            subject=name,
            where=facts.locate(rank=record.rank),
            remedies=["Keep eps at 1e-8, or raise it to 1e-6."]
            if not lost
            else ["Keep the weights in float32 (autocast for the rest), or set eps=1e-4."],
            eps=eps,
            limit=self.limits.least,
            optimizer=name,
        )
