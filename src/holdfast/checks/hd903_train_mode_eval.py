from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from holdfast.core.began import began
from holdfast.core.check import Check, Needs
from holdfast.core.facts import Facts
from holdfast.core.findings import Finding, Where
from holdfast.core.parameters import some
from holdfast.core.records import SetupRecord


class TrainModeEval(Check):
    """The model is evaluated with its dropout or batch norms in training mode.

    ## What it checks
    The mode of dropout and batch norm in passes of the trained model without gradients, where a
    loss or a comparison with labels follows; and whether batch norms have statistics to go by.

    ## Why it matters
    The score is that of a model with parts of it dropped at random, and of batch norms that look
    at the rest of the batch. It is too low, differs from call to call, and each validation pass
    changes the running statistics: the validation data leak into the model.

    ## How it is measured
    By `training` of each layer at the moment of the pass, for passes after the first update whose
    result is measured without gradients. Two such evaluations, or one where the run has no other.
    Dropouts that are active although the module around them is in evaluation mode count at once.
    Batch norms that keep no statistics, or never update them (momentum 0), count when they are
    evaluated.

    ## False alarms
    Samples drawn without a loss, teachers whose weights are an average, and one input run many
    times (Monte Carlo dropout) are not evaluations. Where the script also evaluates in evaluation
    mode as often, it knows what it does. Dropouts that alone were put back into training mode are
    wanted.

    ## What to do
    Call `model.eval()` before the evaluation and `model.train()` after it.

    ## References
    pytorch/vision#7103; huggingface/transformers#33844.
    """

    code = "HD903"
    name = "train-mode-eval"
    summary = "the model validates in train mode"
    needs = Needs(kinds=(SetupRecord,), topics=("evaluation",))

    def start(self) -> None:
        self.noisy: dict[str, int] = {}
        self.quiet: dict[str, int] = {}
        self.first: dict[str, tuple[Any, ...]] = {}
        """Model → its first evaluation in training mode, as plain data."""
        self.told: set[str] = set()

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        if record.topic != "evaluation":
            return
        facts = Facts.of(record)
        model = facts.text("model") or "the model"
        layers = [*facts.texts("dropouts"), *facts.texts("norms")]
        calls = facts.whole("calls") or 0
        unused = facts.texts("unused_statistics")
        if unused and f"{model} statistics" not in self.told:
            self.told.add(f"{model} statistics")
            yield self._statistics(record, facts, model, unused)
        if forced := facts.whole("forced"):
            if f"{model} forced" not in self.told:
                self.told.add(f"{model} forced")
                yield self._forced(record, facts, model, forced)
            return
        if not facts.flag("training") or not (layers or calls):
            self.quiet[model] = self.quiet.get(model, 0) + 1
            return
        at = (record.segment, record.seq, record.step, record.rank)
        where = facts.where(rank=record.rank, module=layers[0] if layers else None)
        line = (where.file, where.line, where.function, where.module)
        self.first.setdefault(model, (at, line, layers, calls))
        self.noisy[model] = self.noisy.get(model, 0) + 1
        if self.noisy[model] >= 2 and self.noisy[model] > self.quiet.get(model, 0):
            yield from self._active(model)

    def finish(self) -> Iterable[Finding]:
        for model in self.noisy:
            if not self.quiet.get(model):
                yield from self._active(model)

    def _active(self, model: str) -> Iterable[Finding]:
        if model in self.told:
            return
        self.told.add(model)
        (segment, seq, step, rank), line, layers, calls = self.first[model]
        file, number, function, module = line
        yield self.find(
            SetupRecord(segment, seq, "evaluation", {}, step, rank),
            f"{model} is evaluated in training mode: {len(layers) + calls} layers with dropout or "
            "batch statistics are active" + (f" ({some(layers)})" if layers else ""),
            subject=model,
            where=Where(file, number, function, module, rank=rank or None),
            remedies=["Call model.eval() before the evaluation, and model.train() after it."],
            model=model,
            layers=layers,
            evaluations=self.noisy[model],
        )

    def _forced(self, record: SetupRecord, facts: Facts, model: str, dropouts: int) -> Finding:
        return self.find(
            began(record),
            f"{model} is evaluated with active dropout although it is in evaluation mode: "
            f"{dropouts} dropout{'s do' if dropouts > 1 else ' does'} not follow model.eval()",
            subject=f"{model} forced",
            where=facts.where(rank=record.rank),
            remedies=[
                "Give the mode along: F.dropout(x, p, self.training), dropout_p=p if self.training "
                "else 0.0; or use nn.Dropout as a submodule, not in a plain list."
            ],
            model=model,
            dropouts=dropouts,
        )

    def _statistics(
        self, record: SetupRecord, facts: Facts, model: str, norms: list[str]
    ) -> Finding:
        if facts.flag("kept_statistics"):
            what = "have momentum 0: evaluation goes by their initial statistics, never updated"
        else:
            what = "keep no running statistics: evaluation goes by the batch at hand, as training"
        key = "made_at" if facts.table("made_at").text("file") else "place"
        return self.find(
            record,
            f"{len(norms)} batch norms of {model} {what} ({some(norms)})",
            subject=f"{model} statistics",
            where=facts.where(rank=record.rank, key=key, module=norms[0]),
            remedies=[
                "Leave track_running_stats=True and momentum at 0.1, so that evaluation has the "
                "statistics of the training data."
            ],
            model=model,
            layers=norms,
        )
