from __future__ import annotations

from collections.abc import Iterable

from headway.checks.symptoms import POOR_FIT
from headway.core.check import Check, Needs
from headway.core.facts import say_list
from headway.core.findings import Finding, Severity, Where
from headway.core.model_facts import TrainingModeFacts
from headway.core.numbers import plural
from headway.core.records import SetupRecord


class EvalModeTraining(Check):
    """Dropout or batch norm is in evaluation mode, or switched off, while the model trains.

    ## What it checks
    The mode of every dropout and batch norm among the trained layers, in the forward passes that
    lead to an update; and whether a dropout that was active has been switched off.

    ## Why it matters
    A model that stays in evaluation mode trains without its regularisation, and its batch norms use
    statistics that are never updated: at the start mean 0 and variance 1, which does not
    normalise at all. No error is raised; the model is only worse.

    ## How it is measured
    From `training` and the rate of each layer during the forward pass, in two steps in a row.
    `F.dropout(x, p, self.training)` counts like a layer. A layer counts if something next to it is
    being trained.

    ## False alarms
    A frozen backbone in evaluation mode does not train, so it is not reported. Frozen batch norms
    in a model that is otherwise in training mode are a known way of fine-tuning. Passes in
    evaluation mode that only probe or attack the model come before the one that trains. A rate that
    goes to 0 without an evaluation in between is a schedule: information.

    ## What to do
    Call `model.train()` at the start of every epoch, and again after each validation.

    ## References
    fartashf/vsepp#4; NVIDIA/Megatron-LM#411 (an evaluation that sets the rate to 0 permanently).
    """

    code = "HD902"
    name = "eval-mode-training"
    severity = Severity.ERROR
    summary = "Dropout/BatchNorm in eval mode during training"
    needs = Needs(kinds=(SetupRecord,), topics=("training-mode", "evaluation"))
    explains = (*POOR_FIT, "HD103", "HD104", "HD105", "HD113", "HD202", "HD203", "HD404", "HD903")

    def start(self) -> None:
        self.reported: set[str] = set()
        self.momentum: dict[str, list[str]] = {}
        """Model → norms whose statistics never change, until an evaluation shows it."""
        self.place = (0, 0, 0, 0)

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        facts = TrainingModeFacts.of(record)
        model = facts.model or "the model"
        if record.topic == "evaluation":
            self.momentum.pop(model, None)
            return
        if record.topic != "training-mode":
            return
        if frozen := facts.momentum_zero:
            self.momentum[model] = frozen
            self.place = (record.segment, record.seq, record.step, record.rank)
        for finding in self._judge(record, facts, model):
            key = f"{model}: {finding.subject}"
            if key not in self.reported:
                self.reported.add(key)
                yield finding

    def finish(self) -> Iterable[Finding]:
        segment, seq, step, rank = self.place
        for model, norms in self.momentum.items():
            yield self.find(
                SetupRecord(segment, seq, "training-mode", {}, step, rank),
                f"{plural(len(norms), 'batch norm')} of {model} with momentum 0: "
                f"{say_list(norms)}; the statistics are never updated, and evaluation will use the "
                f"initial ones",
                subject=f"{model} momentum",
                severity=Severity.WARNING,
                where=Where(module=norms[0]),
                remedies=["Keep momentum at 0.1, or use None for an average over all batches."],
                layers=norms,
            )

    def _judge(
        self, record: SetupRecord, facts: TrainingModeFacts, model: str
    ) -> Iterable[Finding]:
        drops, norms = facts.dropouts_off, facts.norms_off
        calls = facts.calls_off or 0
        if facts.latched:
            after = facts.after_evaluation
            when = "since an evaluation" if after else "from one step to the next"
            yield self.find(
                record,
                f"dropout in {model} was active and has been off {when}, although the model is "
                f"in training mode: its rate was set to 0 and not restored",
                subject="latched",
                severity=None if after else Severity.INFO,
                where=facts.locate(rank=record.rank, module=model),
                remedies=[
                    "Do not set the rate to 0 for an evaluation: call model.eval() before it and "
                    "model.train() after it."
                ],
                model=model,
            )
        elif not facts.training and (drops or norms or calls):
            what = [plural(len(drops) + calls, "dropout")] if drops or calls else []
            what += [plural(len(norms), "batch norm")] if norms else []
            verb = "is" if len(drops) + calls + len(norms) == 1 else "are"
            layers = [*drops, *norms]
            yield self.find(
                record,
                f"{model} trains in evaluation mode: {' and '.join(what)} {verb} inactive"
                + (f" ({say_list(layers)})" if layers else ""),
                subject="whole",
                where=facts.locate(rank=record.rank, module=layers[0] if layers else model),
                remedies=[
                    "Call model.train() before the training loop, and again after every "
                    "evaluation that calls model.eval().",
                ],
                model=model,
                layers=layers,
                dropouts=len(drops) + calls,
                norms=len(norms),
            )
        elif drops and facts.wholly_trained:
            yield self.find(
                record,
                f"{len(drops)} dropouts of {model} are in evaluation mode while their layers "
                f"train: {say_list(drops)}",
                subject="part",
                severity=Severity.WARNING,
                where=facts.locate(rank=record.rank, module=drops[0]),
                remedies=[
                    "Call .train() on that part as well, or freeze it if it is not meant to train."
                ],
                model=model,
                layers=drops,
            )
