from __future__ import annotations

from collections.abc import Iterable

from headway.checks.symptoms import NOTHING_MOVES, POOR_FIT
from headway.core.check import Check, Needs
from headway.core.facts import say_list
from headway.core.findings import Finding, Severity
from headway.core.model_facts import UnregisteredFacts
from headway.core.records import SetupRecord


class UnregisteredModule(Check):
    """Layers or weights are kept in a plain list or dict, where `parameters()` does not find them.

    ## What it checks
    The attributes of every module of the model (lists, tuples, dicts, plain objects and single
    tensors), for modules and weights that are not registered in the module.

    ## Why it matters
    They are used in the forward pass and get gradients, but the optimizer does not have them: they
    stay at their random initial values. They do not move to the GPU with the model, and they are
    missing from every checkpoint.

    ## How it is measured
    Among them, the weights that the loss depends on and that are in no optimizer.

    ## False alarms
    A teacher kept in a list on purpose gets no gradient. Layers that were added to the optimizer by
    hand are trained, so they are not reported, although they will be missing from checkpoints.

    ## What to do
    Use `nn.ModuleList`, `nn.ModuleDict`, `nn.ParameterList` or `nn.Parameter`, and create the
    optimizer after that.

    ## References
    pytorch/pytorch#59925.
    """

    code = "HD906"
    name = "unregistered-module"
    severity = Severity.ERROR
    summary = "submodules in a plain list/dict: invisible to parameters()"
    needs = Needs(kinds=(SetupRecord,), topics=("unregistered",))
    explains = (*NOTHING_MOVES, *POOR_FIT, "HD204", "HD401", "HD402", "HD415")
    once = "run"

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        facts = UnregisteredFacts.of(record)
        attribute = facts.attribute
        tensors = facts.tensors
        if record.topic != "unregistered" or not attribute or not tensors:
            return
        owner, kind = facts.owner or "the model", facts.kind or "plain container"
        holds = facts.holds
        elements = facts.elements or 0
        module = any(name not in ("Tensor", "Parameter") for name in holds)
        article = "" if kind in ("Tensor", "Parameter") else f"in a plain {kind} "
        cure = _CURES.get(kind, "nn.ModuleList") if module else "nn.Parameter or nn.ParameterList"
        yield self.find(
            record,
            f"{owner} keeps {say_list(holds) or 'layers'} {article}({attribute}): {tensors} "
            f"weights ({elements:,} elements) get gradients, but parameters() does not include "
            f"them and no optimizer trains them",
            subject=attribute,
            where=facts.locate(rank=record.rank, module=attribute),
            remedies=[f"Keep them in {cure}, and create the optimizer after that."],
            attribute=attribute,
            tensors=tensors,
            elements=elements,
            holds=holds,
        )


_CURES = {"dict": "nn.ModuleDict", "list": "nn.ModuleList", "tuple": "nn.ModuleList"}
