from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headway.core.check import Check, Needs
from headway.core.facts import say_list
from headway.core.findings import Finding, Where
from headway.core.model_facts import EvaluationFacts
from headway.core.numbers import plural
from headway.core.records import SetupRecord


class TrainModeEval(Check):
    """The model is evaluated with its dropout or batch norms in training mode.

    ## What it checks
    The mode of dropout and batch norm in passes of the trained model without gradients that are
    followed by a loss or a comparison with labels; and whether batch norms have statistics to use.

    ## Why it matters
    The score is that of a model with random parts dropped, and of batch norms that use the rest of
    the batch. It is too low, differs from call to call, and each validation pass changes the
    running statistics: the validation data leak into the model.

    ## How it is measured
    From `training` of each layer during the pass, for passes after the first update whose result is
    measured without gradients. Two such evaluations are needed, or one if the run has no other.
    Batch norms without statistics, or that never update them (momentum 0), count when they are
    evaluated; so do two evaluations in which a functional dropout is active in evaluation mode.

    ## False alarms
    Samples drawn without a loss, teachers whose weights are an average, and one input run many
    times (Monte Carlo dropout) are not evaluations. A script that evaluates just as often in
    evaluation mode does this on purpose. Dropouts that alone were switched back to training mode
    are intended.

    ## What to do
    Call `model.eval()` before the evaluation and `model.train()` after it.

    ## References
    pytorch/vision#7103; huggingface/transformers#33844.
    """

    code = "HD903"
    name = "train-mode-eval"
    summary = "the model is evaluated in train mode"
    needs = Needs(kinds=(SetupRecord,), topics=("evaluation",))
    explains = ()
    once = "run"

    def start(self) -> None:
        self.noisy: dict[str, int] = {}
        self.quiet: dict[str, int] = {}
        self.called: dict[str, int] = {}
        """Model → evaluations in evaluation mode with active functional dropout."""
        self.first: dict[str, tuple[Any, ...]] = {}
        """Model → its first evaluation in training mode, as plain data."""

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        if record.topic != "evaluation":
            return
        facts = EvaluationFacts.of(record)
        model = facts.model or "the model"
        layers = [*facts.dropouts, *facts.norms]
        calls = facts.calls or 0
        unused = facts.unused_statistics
        if unused:
            yield self._statistics(record, facts, model, unused)
        if calls and not layers and facts.training is False:
            yield from self._called(record, facts, model, calls)
            return
        if not facts.training or not (layers or calls):
            self.quiet[model] = self.quiet.get(model, 0) + 1
            return
        at = (record.segment, record.seq, record.step, record.rank)
        where = facts.locate(rank=record.rank, module=layers[0] if layers else None)
        line = (where.file, where.line, where.function, where.module)
        self.first.setdefault(model, (at, line, layers, calls))
        self.noisy[model] = self.noisy.get(model, 0) + 1
        if self.noisy[model] >= 2 and self.noisy[model] > self.quiet.get(model, 0):
            yield from self._active(model)

    def _called(
        self, record: SetupRecord, facts: EvaluationFacts, model: str, calls: int
    ) -> Iterable[Finding]:
        """Functional dropout does not follow the mode of the model unless the mode is passed."""
        self.called[model] = self.called.get(model, 0) + 1
        if self.called[model] != 2:
            return
        yield self.find(
            record,
            f"{model} is in evaluation mode, but {calls} functional dropouts in its forward pass "
            f"are active",
            subject=f"{model} calls",
            where=facts.locate(rank=record.rank, place=facts.call_place),
            remedies=[
                "Pass `training=self.training` to F.dropout (and `dropout_p=0.0` to attention in "
                "evaluation), or use nn.Dropout, which follows model.eval()."
            ],
            model=model,
            calls=calls,
        )

    def finish(self) -> Iterable[Finding]:
        for model in self.noisy:
            if not self.quiet.get(model):
                yield from self._active(model)

    def _active(self, model: str) -> Iterable[Finding]:
        (segment, seq, step, rank), line, layers, calls = self.first[model]
        file, number, function, module = line
        yield self.find(
            SetupRecord(segment, seq, "evaluation", {}, step, rank),
            f"{model} is evaluated in training mode: {len(layers) + calls} layers with dropout or "
            "batch statistics are active" + (f" ({say_list(layers)})" if layers else ""),
            subject=model,
            where=Where(file, number, function, module, rank=rank or None),
            remedies=["Call model.eval() before the evaluation, and model.train() after it."],
            model=model,
            layers=layers,
            evaluations=self.noisy[model],
        )

    def _statistics(
        self, record: SetupRecord, facts: EvaluationFacts, model: str, norms: list[str]
    ) -> Finding:
        if facts.kept_statistics:
            what = "with momentum 0: evaluation uses the initial statistics, never updated"
        else:
            what = "without running statistics: evaluation uses the current batch, as in training"
        return self.find(
            record,
            f"{plural(len(norms), 'batch norm')} of {model} {what} ({say_list(norms)})",
            subject=f"{model} statistics",
            where=facts.locate(rank=record.rank, module=norms[0], place=facts.made_at),
            remedies=[
                "Keep track_running_stats=True and momentum at 0.1, so that evaluation uses the "
                "statistics of the training data."
            ],
            model=model,
            layers=norms,
        )
