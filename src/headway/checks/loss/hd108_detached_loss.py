from __future__ import annotations

from collections.abc import Iterable

from headway.checks.loss_context import missing_graph_reason
from headway.checks.symptoms import NOTHING_MOVES
from headway.core.check import Check, Needs
from headway.core.findings import Finding, Severity, Where
from headway.core.loss_facts import BackwardRootFacts
from headway.core.records import SetupRecord


class DetachedLoss(Check):
    """The loss has no autograd graph: backward() cannot reach any parameter.

    ## What it checks
    Whether the tensor that `backward` is called on was computed from the parameters in a way that
    autograd can follow.

    ## Why it matters
    Backward raises an error. If `requires_grad=True` on the loss suppresses that error, backward
    runs and does nothing: no parameter gets a gradient and the optimizer has nothing to apply.

    ## How it is measured
    A loss without a graph although the model ran with gradients enabled; or a graph that leads to
    no parameter, if the optimizer then steps without any gradient. The reported line is that of the
    last call that left the graph: `detach`, `.item()`, `.data`, `torch.tensor`, `argmax`.

    ## False alarms
    A backward pass to the inputs alone (adversarial examples) is fine, as long as the optimizer's
    gradients come from another one.

    ## What to do
    Compute the loss from the model's output with torch functions only, and use `.item()` or
    `.detach()` only for logging, after that. Write `torch.stack(losses).mean()` instead of
    `torch.tensor(losses).mean()`.

    ## References
    ReLeaSE#39; Humbatova et al., "Taxonomy of real faults in deep learning systems".
    """

    code = "HD108"
    name = "detached-loss"
    severity = Severity.ERROR
    summary = "the loss has no autograd graph (detach, .item, .data, torch.tensor)"
    needs = Needs(kinds=(SetupRecord,), topics=("backward-root",))
    explains = (*NOTHING_MOVES, "HD106", "HD204", "HD509")
    once = "segment"

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        facts = BackwardRootFacts.of(record)
        if missing_graph_reason(facts) != "cut":
            return
        cut = facts.cut
        function, cut_at = cut.function, cut.place
        where = facts.locate(rank=record.rank)
        if cut_at.file is not None:
            where = Where(
                file=cut_at.file,
                line=cut_at.line,
                function=cut_at.function,
                op=function,
                rank=record.rank or None,
            )
        graph = facts.graph
        what = (
            "the graph of the loss leads to no parameter"
            if graph
            else "backward() is called on a loss without a graph"
        )
        how = f"; {_spell_call(function)} cut it" if function else ""
        silent = ", and requires_grad=True hides the error" if facts.leaf else ""
        yield self.find(
            record,
            f"{what}{how}{silent}. No parameter gets a gradient",
            where=where,
            remedies=[
                "Compute the loss from the model's output with torch functions only; use .item() "
                "and .detach() for logging only.",
                "Do not set requires_grad=True on the loss: that hides the error and trains "
                "nothing.",
            ],
            cut=function,
            leaf=facts.leaf,
            backward_line=facts.place.line,
            reached=facts.reached,
        )


def _spell_call(function: str) -> str:
    if function == "no_grad":
        return "computing it under no_grad"
    if function in ("tensor", "as_tensor", "asarray"):
        return f"torch.{function}(…)"
    if function == "__float__":
        return "float(…)"
    return f".{function}" if function == "data" else f".{function}()"
