from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headway.checks.loss_context import format_shape, loss_call_site, targets_are_not_class_ids
from headway.checks.symptoms import NOTHING_LEARNED
from headway.core.check import Check, Needs
from headway.core.facts import Place
from headway.core.findings import Finding, Severity
from headway.core.loss_facts import (
    LossCallFacts,
    LossScoresFacts,
    LossSoftmaxFacts,
    PredictionFacts,
)
from headway.core.numbers import say
from headway.core.records import Header, SetupRecord

TOLERANCE = 1e-3
"""Rounding tolerance for a logarithm of 1."""


@dataclass(frozen=True)
class Mismatch:
    """What is wrong, and how to fix it."""

    message: str
    remedy: str
    mild: bool = False
    at_activation: bool = False
    """Whether the fix belongs in the line of the activation, not in that of the loss."""


class LossInputMismatch(Check):
    """A loss function receives inputs that it is not defined for.

    ## What it checks
    The inputs of `nll_loss`, `binary_cross_entropy` (with and without logits), `kl_div` and
    `cross_entropy`; the axis over which a softmax in the loss normalises; and whether a
    hand-written likelihood uses log-probabilities.

    ## Why it matters
    The shapes fit but the formula is wrong. `nll_loss` of logits falls below 0 without bound,
    `binary_cross_entropy_with_logits` of a sigmoid's output can hardly change, a softmax over one
    class is always 1, and a softmax over the batch makes samples compete with each other. Training
    continues and learns something else, or nothing.

    ## How it is measured
    From the values and the graph of the inputs, in the first steps: log-probabilities are never
    above 0, probabilities sum to 1, soft targets are distributions. The softmax must be part of the
    loss formula; inside the model it may run over any axis. From the derivative of the loss with
    respect to the scores of the last layer: one negative entry in each row, and a formula that is
    linear up to there, mean that the loss is the score of the label without normalisation.

    ## False alarms
    Square scores (contrastive losses) may be normalised over either axis, scores of one row over
    the only axis they have. Target rows that are masked to 0 are fine. Several labels of 1 in a row
    of soft targets may be intended: a warning.

    ## What to do
    `nll_loss` and `kl_div` take log-probabilities (`log_softmax`), `binary_cross_entropy`
    probabilities, `…_with_logits` and `cross_entropy` logits. Apply a softmax over the axis of the
    classes (`dim=1` or `-1`); for one output use a sigmoid.

    ## References
    Stack Overflow 53813636 (NLL of logits), 59129802 (softmax over one output); TheDeepChecker.
    """

    code = "HD111"
    name = "loss-input-mismatch"
    severity = Severity.ERROR
    summary = "logits to NLL/BCE, probabilities to BCEWithLogits, softmax over one class or batch"
    needs = Needs(kinds=(SetupRecord,), topics=("loss-call", "loss-softmax", "loss-scores"))
    explains = (*NOTHING_LEARNED, "HD104", "HD110", "HD114", "HD202", "HD304", "HD305", "HD308")

    def start(self) -> None:
        self.reported: set[str] = set()

    def begin(self, header: Header) -> None:
        self.reported = set()

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        facts, softmax = LossCallFacts.of(record), LossSoftmaxFacts.of(record)
        site = loss_call_site(facts)
        if site in self.reported or _line(facts.place) in self.reported:
            return
        if record.topic == LossSoftmaxFacts.topic:
            found = _softmax(softmax)
        elif record.topic == LossScoresFacts.topic:
            found = _scores(LossScoresFacts.of(record))
        else:
            found = _call(facts)
        if found is None:
            return
        self.reported.add(site)
        prediction = facts.prediction
        where = facts.locate(rank=record.rank, op=facts.function)
        made_at = prediction.made_at
        if found.at_activation and made_at.file is not None:
            # The fix belongs in the line of the softmax, which has a record of its own: report
            # once.
            self.reported.add(_line(made_at))
            where = made_at.where(rank=record.rank, op=prediction.made_by)
        yield self.find(
            record,
            found.message,
            subject=site,
            severity=Severity.WARNING if found.mild else None,
            where=where,
            remedies=[found.remedy],
            function=facts.function,
            made_by=prediction.made_by,
            low=prediction.low,
            high=prediction.high,
            shape=format_shape(softmax.shape if softmax.shape is not None else prediction.shape),
            axis=softmax.axis,
        )


def _line(place: Place) -> str:
    return f"{place.file}:{place.line}"


def _softmax(facts: LossSoftmaxFacts) -> Mismatch | None:
    shape, axis, size = facts.shape or [], facts.axis, facts.size
    function = facts.function or "softmax"
    if size == 1 and shape:
        always = 0 if function == "log_softmax" else 1
        return Mismatch(
            f"{function} over axis {axis} of {format_shape(facts.shape)} runs over one number: its "
            f"result is always {always}",
            "For one output use a sigmoid; for classes give the model one output per class.",
        )
    batch_axis = facts.batch_axis and len(shape) > 1
    if batch_axis and shape[1] > 1 and shape[0] != shape[1]:
        return Mismatch(
            f"{function} over axis 0 of {format_shape(facts.shape)} runs over the batch, not over "
            "the classes: the samples compete with each other",
            "Normalise over the classes: dim=1 or dim=-1.",
        )
    return None


def _scores(facts: LossScoresFacts) -> Mismatch | None:
    rows, classes = facts.rows, facts.classes
    if rows is None or classes is None or classes < 2:
        return None
    return Mismatch(
        f"the loss is the negative score of each label ({classes} classes, {rows} rows), but the "
        f"scores are not normalised: it falls without bound as they grow",
        LOG_SOFTMAX,
    )


def _call(facts: LossCallFacts) -> Mismatch | None:
    if facts.swapped:
        return Mismatch(
            f"{facts.function} receives the labels as input and the output of the model as "
            f"target: it does not measure how well the output fits",
            f"Swap the two arguments: {facts.function}(output, labels).",
        )
    judge = _JUDGES.get(facts.function or "")
    found = None if judge is None else judge(facts, facts.prediction)
    return found or _refused(facts)


def _nll(facts: LossCallFacts, prediction: PredictionFacts) -> Mismatch | None:
    high = prediction.high
    if prediction.sums_to_one:
        return Mismatch(
            "nll_loss receives probabilities, but it expects log-probabilities", LOG_SOFTMAX
        )
    if high is not None and high > TOLERANCE:
        return Mismatch(
            f"nll_loss receives values up to {say(high)}: log-probabilities are never above 0, "
            f"so these are logits",
            LOG_SOFTMAX,
        )
    return _wrong_axis(facts, prediction)


def _cross_entropy(facts: LossCallFacts, prediction: PredictionFacts) -> Mismatch | None:
    classes, target = facts.classes, facts.target
    if classes == 1:
        return Mismatch(
            f"cross_entropy receives predictions of shape {format_shape(prediction.shape)}, one "
            f"class: the softmax is always 1 and the loss does not depend on the model",
            "For one output use binary_cross_entropy_with_logits; for regression, mse_loss.",
        )
    odd, low, high = target.odd_rows, target.low, target.high
    if odd is not None and odd > 0.5:
        labels = low is not None and high is not None and low >= -1e-6 and high <= 1 + 1e-6
        return Mismatch(
            f"cross_entropy receives targets of shape {format_shape(target.shape)}, and {odd:.0%} "
            f"of the rows are not distributions",
            "Use binary_cross_entropy_with_logits for several labels per sample, mse_loss for "
            "regression, and int64 class indices for classification.",
            mild=labels,
        )
    return _wrong_axis(facts, prediction)


def _wrong_axis(facts: LossCallFacts, prediction: PredictionFacts) -> Mismatch | None:
    made_by = prediction.made_by
    normalised = {"softmax": prediction.sums_to_one, "log_softmax": prediction.logs_of_one}
    if not prediction.made_whole or normalised.get(made_by or "") is not False:
        return None
    line = prediction.made_at.line
    shape = prediction.made_shape
    if len(shape) == 2 and shape[0] == shape[1]:
        return None
    return Mismatch(
        f"{facts.function} receives the output of a {made_by} over axis "
        f"{prediction.made_dim}"
        + (f" (line {line})" if line is not None else "")
        + ", which is not the class axis",
        "Normalise over the classes: dim=1 or dim=-1.",
        at_activation=True,
    )


def _binary(facts: LossCallFacts, prediction: PredictionFacts) -> Mismatch | None:
    low, high = prediction.low, prediction.high
    if low is None or high is None or (low >= 0 and high <= 1):
        return None
    return Mismatch(
        f"binary_cross_entropy receives values from {say(low)} to {say(high)}: it expects "
        f"probabilities, these are logits",
        "Use binary_cross_entropy_with_logits, or apply a sigmoid to the output.",
    )


def _binary_with_logits(facts: LossCallFacts, prediction: PredictionFacts) -> Mismatch | None:
    made_by = prediction.made_by
    if made_by not in ("sigmoid", "softmax"):
        return None
    line = prediction.made_at.line
    return Mismatch(
        f"binary_cross_entropy_with_logits receives the output of a {made_by}"
        + (f" (line {line})" if line is not None else "")
        + ": it applies a sigmoid itself, so the result stays between 0.5 and 0.73",
        f"Remove the {made_by} from the output and apply it at inference only.",
    )


def _kl(facts: LossCallFacts, prediction: PredictionFacts) -> Mismatch | None:
    high, low = prediction.high, facts.target.low
    if prediction.sums_to_one:
        return Mismatch(
            "kl_div receives probabilities, but it expects log-probabilities", LOG_SOFTMAX
        )
    if high is not None and high > TOLERANCE:
        return Mismatch(
            f"kl_div receives values up to {say(high)}: log-probabilities are never above 0",
            LOG_SOFTMAX,
        )
    if not facts.log_target and low is not None and low < -TOLERANCE:
        return Mismatch(
            f"kl_div receives targets down to {say(low)}: they must be probabilities",
            "Pass softmax(teacher) as the target, or its logarithm with log_target=True.",
        )
    return None


def _refused(facts: LossCallFacts) -> Mismatch | None:
    """A call that raised an error that no other check reports."""
    error = facts.error
    if not facts.raised or not error or facts.outside or facts.crossed:
        return None
    if (
        "device" in error
        or "Warning" in error.partition(":")[0]
        or targets_are_not_class_ids(facts)
    ):
        return None
    return Mismatch(
        f"{facts.function} rejects predictions of shape "
        f"{format_shape(facts.prediction.shape)} with targets of shape "
        f"{format_shape(facts.target.shape)}: {' '.join(error.split())}",
        "cross_entropy takes (N, C, …) and class indices (N, …); element-wise losses take two "
        "tensors of the same shape.",
    )


LOG_SOFTMAX = (
    "Apply log_softmax over the class axis to the output, or pass the logits to "
    "cross_entropy, which does both."
)
_JUDGES = {
    "nll_loss": _nll,
    "cross_entropy": _cross_entropy,
    "binary_cross_entropy": _binary,
    "binary_cross_entropy_with_logits": _binary_with_logits,
    "kl_div": _kl,
}
