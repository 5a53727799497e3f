from __future__ import annotations

from collections.abc import Iterable

from headway.core.check import Check, Needs
from headway.core.facts import say_list
from headway.core.findings import Finding, Severity
from headway.core.model_facts import SharedModuleFacts
from headway.core.records import SetupRecord


class SharedModule(Check):
    """One module object is used as several layers, which therefore share their weights.

    ## What it checks
    Whether layers whose paths differ only by their number are, or contain, the same module object.

    ## Why it matters
    Layers that share a module have one set of weights. If that is not intended, the model has a
    fraction of the parameters that its depth suggests.

    ## How it is measured
    By the identity of the modules below the trained models. Modules without parameters are ignored.

    ## False alarms
    Sharing is often intended (ALBERT, universal transformers, deep equilibrium models), so this is
    information only.

    ## What to do
    If the layers should be independent, create the module inside the loop, or use
    `copy.deepcopy(layer)`. `[layer] * n` repeats one object n times.

    ## References
    habla-liaa/encodecmae#3; espnet/espnet#1278.
    """

    code = "HD910"
    name = "shared-module"
    summary = "one module object is used as several layers"
    needs = Needs(kinds=(SetupRecord,), topics=("shared-module",))
    explains = ()
    once = "run"

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        facts = SharedModuleFacts.of(record)
        count = facts.count or 0
        if count < 2 or not facts.paths:
            return
        yield self.find(
            record,
            f"{say_list(facts.paths)} are one {facts.kind or 'module'} object: {count} layers "
            f"share {facts.elements or 0} parameters",
            subject=facts.paths[0],
            severity=Severity.INFO,
            where=facts.locate(rank=record.rank, module=facts.paths[0]),
            remedies=[
                "If the layers should be independent, create a module for each of them, or use "
                "`copy.deepcopy`.",
            ],
            paths=facts.paths,
            layers=count,
            parameters=facts.elements,
        )
