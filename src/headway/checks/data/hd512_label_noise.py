from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headway.core.check import Check, Needs
from headway.core.data_facts import SampleFitFacts
from headway.core.facts import onset_record
from headway.core.findings import Finding, Severity
from headway.core.numbers import say
from headway.core.records import SetupRecord


class LabelNoise(Check):
    """The labels, or a large part of them, do not belong to the samples.

    ## What it checks
    How well the samples of the last batches are fitted: whether anything was learned that
    generalises to new batches, whether errors occur where the model is uncertain, and whether two
    classes are really one.

    ## Why it matters
    Labels that were shuffled against their samples, or are partly wrong, cannot be learned, only
    memorised. The loss has a floor that no change of the optimizer or the model will lower.

    ## How it is measured
    From 60 steps on. *Chance*: the loss of the last batches still equals the entropy of the labels
    and the predictions are no better than the most frequent class, although each update lowered the
    loss of its own batch, in total by more than half of that entropy or with gradients that are
    almost orthogonal to those of the next batch. *Memorised*: the loss falls a little from there,
    at most by a twelfth of what the updates did to their own batches, and the gradients of
    neighbouring batches never agreed. *Two labels*: the same input occurs with different labels,
    for one input in twenty. *Contradicted*: most samples are right and a tenth to nearly half are
    wrong, about as many among the most confident predictions as among all, in most classes; and the
    confidence of the model matches its accuracy. *Two in one*: two classes are confused with each
    other about half the time, while the others are learned. *Chance* and *memorised* are
    information until each sample was seen 1.5 times on average.

    ## False alarms
    If a task is hard, errors occur where the model is uncertain. A rule that combines several
    features looks like noise in the first pass over the data. At a low learning rate the updates
    do not lower the loss of their own batch either. Weighted and contrastive losses, maps and
    sequences are not judged.

    ## What to do
    Inspect samples together with their labels as the loss receives them. Look for arrays that were
    shuffled or sorted separately, an index that is off by one, a label file of another version, or
    two names for one class.

    ## References
    Humbatova et al., "DeepCrime" (TCL, TCO); Stack Overflow 46136553.
    """

    code = "HD512"
    name = "label-noise"
    summary = "labels fit no better than chance, or a large part of them is contradicted"
    needs = Needs(kinds=(SetupRecord,), topics=("sample-fit",))
    explains = ("HD105", "HD115", "HD404")

    @dataclass(frozen=True)
    class Limits:
        steps: int = 60
        samples: int = 300
        """Smallest number of samples in the last batches."""
        contradicted: float = 0.08
        """Share of wrong ones among the most confident predictions."""
        passes: float = 1.5
        """How often the samples must have been seen, on average, for more than information."""
        agreement: float = 0.05
        """Cosine of the gradients of neighbouring batches."""
        wasted: float = 12.0
        """Ratio of the fall of the loss on the updates' own batches to the fall on new ones."""
        unsure: float = 0.05
        """Largest difference between accuracy and confidence of a settled model."""
        contradictory: float = 0.05
        """Share of inputs that occur with several labels."""
        confused: float = 0.3
        """Share of one class predicted as the other, both ways."""

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        facts = SampleFitFacts.of(record)
        steps, samples = facts.steps or 0, facts.late_samples or 0
        classes = facts.classes or 0
        if steps < self.limits.steps or samples < self.limits.samples or classes < 2:
            return
        severity = None
        message = self._two_labels(facts)
        if message is None:
            message = self._chance(facts, steps) or self._memorised(facts, steps)
            if (facts.passes or 0) < self.limits.passes:
                severity = Severity.INFO  # the model may not have had time to learn the rule
        if message is None:
            severity = None
            message = self._two_in_one(facts) or self._contradicted(facts)
        if message is None:
            return
        yield self.find(
            onset_record(record),
            message,
            subject=facts.loss or "",
            where=facts.locate(rank=record.rank),
            severity=severity,
            remedies=[
                "Inspect samples together with their labels, as the loss receives them: look for "
                "arrays that were shuffled or sorted separately, an index off by one, or two "
                "names for one class.",
            ],
            late_loss=facts.late_loss,
            entropy=facts.entropy,
            wrong=facts.wrong,
            wrong_when_sure=facts.wrong_when_sure,
            passes=facts.passes,
        )

    def _chance(self, facts: SampleFitFacts, steps: int) -> str | None:
        loss, entropy = facts.late_loss, facts.entropy
        wrong, majority = facts.wrong, facts.majority
        fall, samples = facts.own_fall, facts.late_samples or 1
        alone = facts.alone
        if loss is None or entropy is None or wrong is None or majority is None or fall is None:
            return None
        if alone is not None and alone < 0.9:
            return None  # the updates may serve other parts of the loss
        luck = 3 * (majority * (1 - majority) / samples) ** 0.5
        learned = (1 - wrong) > majority + luck + 0.02
        if not 0.97 * entropy <= loss <= 1.3 * entropy or learned or entropy < 0.3:
            return None
        agreement, pairs = facts.agreement, facts.agreement_pairs or 0
        apart = agreement is not None and agreement < self.limits.agreement and pairs >= 5
        if fall * steps < 0.5 * entropy and not (apart and fall > 0):
            return None
        return (
            f"after {steps} steps the loss on new batches is {say(loss)}, no better than a "
            f"random guess (label entropy {say(entropy)}), with {say(100 * (1 - wrong))} % "
            f"correct. Each update lowers the loss of its own batch (by about {say(fall)}), "
            f"so {self._claim(facts)}"
        )

    def _claim(self, facts: SampleFitFacts) -> str:
        if (facts.passes or 0) < self.limits.passes:
            return "nothing that generalises is learned yet; train for two epochs to tell why"
        return "the labels do not follow from the inputs"

    def _memorised(self, facts: SampleFitFacts, steps: int) -> str | None:
        loss, entropy = facts.late_loss, facts.entropy
        first, fall = facts.early_loss, facts.own_fall
        alone = facts.alone
        if loss is None or entropy is None or first is None or fall is None or entropy < 0.3:
            return None
        if alone is not None and alone < 0.9:
            return None
        early, late = facts.early_agreement, facts.agreement
        pairs = facts.agreement_pairs or 0
        if early is None or late is None or pairs < 10:
            return None
        agreement, limit = (early + late) / 2, 1.5 * self.limits.agreement
        if agreement >= limit or max(early, late) >= 2 * self.limits.agreement:
            return None
        if first < 0.97 * entropy or not 0.75 * entropy <= loss <= entropy:
            return None
        if fall * steps < max(1.5 * entropy, self.limits.wasted * (entropy - loss)):
            return None
        return (
            f"after {steps} steps the loss is {say(loss)} (random guess: {say(entropy)}), although "
            f"each update lowers the loss of its own batch (by about {say(fall)}). Gradients "
            f"of neighbouring batches are almost orthogonal (cosine {say(agreement)}, limit "
            f"{say(limit)}): samples are memorised one by one, and {self._claim(facts)}"
        )

    def _two_labels(self, facts: SampleFitFacts) -> str | None:
        inputs, several = facts.inputs or 0, facts.contradictory or 0
        if several < max(20, self.limits.contradictory * inputs):
            return None
        return (
            f"{several} of {inputs} different inputs occur with several labels (limit "
            f"{say(100 * self.limits.contradictory)} %)"
        )

    def _two_in_one(self, facts: SampleFitFacts) -> str | None:
        pair = facts.pair
        if len(pair) != 6 or (facts.seen or 0) < 3:
            return None
        a, b, there, here, rest, count = pair
        limit = self.limits.confused
        if min(there, here) < limit or max(there, here) > 0.8 or rest > 0.15 or count < 20:
            return None
        return (
            f"classes {say(a)} and {say(b)} are confused with each other ({say(100 * there)} "
            f"% and {say(100 * here)} %, limit {say(100 * limit)} %), while "
            f"{say(100 * (1 - rest))} % of the others are right: the inputs do not "
            f"distinguish these two"
        )

    def _contradicted(self, facts: SampleFitFacts) -> str | None:
        wrong, sure = facts.wrong, facts.wrong_when_sure
        if wrong is None or sure is None:
            return None
        errors = [item for item in facts.class_errors if len(item) == 3 and item[2] >= 20]
        spread = [item for item in errors if item[1] >= 0.4 * wrong]
        if not 0.1 <= wrong <= 0.45 or sure < self.limits.contradicted or sure < 0.75 * wrong:
            return None
        if len(spread) < max(0.6 * len(errors), 2):
            return None
        top, rest = facts.sureness, facts.sureness_of_rest
        if top is not None and rest is not None:
            sureness = 0.25 * top + 0.75 * rest
            if sureness < 1 - wrong - self.limits.unsure:
                return None  # not settled yet: its confidence means little
        return (
            f"{say(100 * wrong)} % of the last predictions are wrong, and {say(100 * sure)} % of "
            f"the most confident ones (limit {say(100 * self.limits.contradicted)} %): "
            f"their labels contradict those of the other samples"
        )
