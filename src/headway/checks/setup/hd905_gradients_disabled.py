from __future__ import annotations

from collections.abc import Iterable

from headway.checks.loss_context import missing_graph_reason
from headway.checks.symptoms import NOTHING_MOVES
from headway.core.check import Check, Needs
from headway.core.findings import Finding, Severity, Where
from headway.core.loss_facts import BackwardRootFacts
from headway.core.records import SetupRecord


class GradientsDisabled(Check):
    """The training forward pass runs with gradients disabled.

    ## What it checks
    How the model ran before a backward pass whose loss has no graph: under `no_grad`, in
    `inference_mode`, or with all parameters frozen.

    ## Why it matters
    Without a graph nothing can be learned. Backward raises an error whose message names neither the
    `no_grad` nor the line; if the error is avoided, the model does not change.

    ## How it is measured
    `torch.is_grad_enabled()` at every forward pass of a model since the last step, and
    `requires_grad` of its parameters. It is reported only if the loss has no graph, or the
    optimizer steps without any gradient.

    ## False alarms
    Validation, teachers and targets under `no_grad` are fine as long as there is also a forward
    pass with gradients.

    ## What to do
    Move the training forward pass out of the `no_grad` or `inference_mode` block or decorator; look
    for a `torch.set_grad_enabled(False)` that was never reversed, and for `requires_grad_(False)`
    on the whole model.

    ## References
    The documentation of `torch.no_grad` and `torch.inference_mode`.
    """

    code = "HD905"
    name = "gradients-disabled"
    severity = Severity.ERROR
    summary = "training under no_grad / inference_mode / requires_grad False"
    needs = Needs(kinds=(SetupRecord,), topics=("backward-root",))
    explains = (*NOTHING_MOVES, "HD108", "HD204")
    once = "segment"

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        facts = BackwardRootFacts.of(record)
        why = missing_graph_reason(facts)
        if why not in ("disabled", "frozen"):
            return
        forwards, at = facts.forwards, facts.forward_place
        inference = bool(forwards.inference)
        if why == "frozen":
            how = f"with all {facts.parameters} parameters frozen"
            cure = "Unfreeze the parameters to train: `requires_grad_(True)`."
        else:
            how = "in inference mode" if inference else "with gradients disabled (no_grad)"
            cure = (
                "Move this forward pass out of the no_grad or inference_mode block or "
                "decorator, or enable gradients again: torch.set_grad_enabled(True)."
            )
        where = facts.locate(rank=record.rank)
        if at.file is not None:
            where = Where(
                file=at.file,
                line=at.line,
                function=at.function,
                rank=record.rank or None,
            )
        yield self.find(
            record,
            f"the model ran {how} before the step: the loss has no graph and nothing is learned",
            where=where,
            remedies=[cure],
            inference_mode=inference,
            frozen=why == "frozen",
            backward_line=facts.place.line,
        )
