from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headway.core.check import Check, Needs
from headway.core.data_facts import SampleFitFacts
from headway.core.facts import onset_record
from headway.core.findings import Finding
from headway.core.numbers import say
from headway.core.records import SetupRecord


class LabelNoise(Check):
    """The labels do not belong to the samples, or a good part of them does not.

    ## What it checks
    How the samples of the last batches are fitted: whether anything was learned that holds for new
    batches, whether errors are where the model is unsure, and whether two classes are one.

    ## Why it matters
    Labels that were shuffled against their samples, or partly wrong, cannot be learned, only
    memorised. The loss has a floor, and nothing in the optimizer or the model will lower it.

    ## How it is measured
    From 60 steps on. *Chance*: the loss of the last batches is still the entropy of the labels and
    the guesses are no better than the most frequent class, although each update lowered the loss of
    its own batch, together by more than that entropy's half or with gradients that have nothing in
    common with the next batch's. *By heart*: the loss falls a little from there, by a twelfth of
    what the updates did to their own batches at most, and at no time did the gradients of
    neighbouring batches agree. *Two labels*: the very same input came with different ones, for
    one input in twenty. *Contradicted*: most samples are
    right and a tenth to nearly half are wrong, about as many among those the model is surest of as
    among all, in most classes; and it is by now as sure of itself as it is right. *Two in one*:
    two classes are taken for each other about half the time, while the others are learned.

    ## False alarms
    Where a task is hard, errors are where the model is unsure. At a low rate the updates do nothing
    for their own batch either. Weighted and contrastive losses, maps and sequences are not judged.

    ## What to do
    Look at samples together with their labels as the loss gets them. Look for arrays that were
    shuffled or sorted apart, an index that is off by one, a label file of another version, two
    names for one class.

    ## References
    Humbatova et al., "DeepCrime" (TCL, TCO); Stack Overflow 46136553.
    """

    code = "HD512"
    name = "label-noise"
    summary = "labels fit no better than chance, or a good part of them is contradicted"
    needs = Needs(kinds=(SetupRecord,), topics=("sample-fit",))
    explains = ("HD105", "HD115", "HD404")

    @dataclass(frozen=True)
    class Limits:
        steps: int = 60
        samples: int = 300
        """In the last batches."""
        contradicted: float = 0.08
        """Share of wrong ones among those the model is surest of."""
        agreement: float = 0.05
        """Cosine of the gradients of neighbouring batches."""
        wasted: float = 12.0
        """What updates did to the loss of their own batches, over what became of it."""
        unsure: float = 0.05
        """How far its sureness may lie below the share it has right, where it has settled."""
        contradictory: float = 0.05
        """Share of inputs that came with several labels."""
        confused: float = 0.3
        """Share of one class taken for another, both ways."""

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        facts = SampleFitFacts.of(record)
        steps, samples = facts.steps or 0, facts.late_samples or 0
        classes = facts.classes or 0
        if steps < self.limits.steps or samples < self.limits.samples or classes < 2:
            return
        said = self._two_labels(facts) or self._chance(facts, steps)
        said = said or self._memorised(facts, steps)
        said = said or self._two_in_one(facts) or self._contradicted(facts)
        if said is None:
            return
        yield self.find(
            onset_record(record),
            said,
            subject=facts.loss or "",
            where=facts.locate(rank=record.rank),
            remedies=[
                "Look at samples together with their labels, as the loss gets them: arrays that "
                "were shuffled or sorted apart, an index off by one, two names for one class.",
            ],
            late_loss=facts.late_loss,
            entropy=facts.entropy,
            wrong=facts.wrong,
            wrong_when_sure=facts.wrong_when_sure,
        )

    def _chance(self, facts: SampleFitFacts, steps: int) -> str | None:
        loss, entropy = facts.late_loss, facts.entropy
        wrong, majority = facts.wrong, facts.majority
        fall, samples = facts.own_fall, facts.late_samples or 1
        alone = facts.alone
        if loss is None or entropy is None or wrong is None or majority is None or fall is None:
            return None
        if alone is not None and alone < 0.9:
            return None  # other parts of the loss may well be what the updates serve
        luck = 3 * (majority * (1 - majority) / samples) ** 0.5
        learned = (1 - wrong) > majority + luck + 0.02
        if not 0.97 * entropy <= loss <= 1.3 * entropy or learned or entropy < 0.3:
            return None
        agreement, pairs = facts.agreement, facts.agreement_pairs or 0
        apart = agreement is not None and agreement < self.limits.agreement and pairs >= 5
        if fall * steps < 0.5 * entropy and not (apart and fall > 0):
            return None
        return (
            f"after {steps} steps the loss of new batches is {say(loss)}, that of guessing (the "
            f"entropy of the labels is {say(entropy)}), and {say(100 * (1 - wrong))} % are right, "
            f"although each update lowers the loss of its own batch (by about {say(fall)}): the "
            "labels do not follow from the inputs"
        )

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
            f"after {steps} steps the loss is {say(loss)} (guessing: {say(entropy)}), although "
            f"each update lowers the loss of its own batch (by about {say(fall)}), and gradients "
            f"of neighbouring batches have nothing in common (cosine {say(agreement)}, limit "
            f"{say(limit)}): samples are learned by heart, one by one, and the "
            "labels do not follow from the inputs"
        )

    def _two_labels(self, facts: SampleFitFacts) -> str | None:
        inputs, several = facts.inputs or 0, facts.contradictory or 0
        if several < max(20, self.limits.contradictory * inputs):
            return None
        return (
            f"{several} of {inputs} different inputs came with several labels (limit "
            f"{say(100 * self.limits.contradictory)} %): the same sample under another name"
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
            f"classes {say(a)} and {say(b)} are taken for each other ({say(100 * there)} % and "
            f"{say(100 * here)} %, limit {say(100 * limit)} %), while {say(100 * (1 - rest))} % of "
            "the others are right: nothing in the inputs tells these two apart"
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
                return None  # it is still on its way: what it is sure of means little
        return (
            f"{say(100 * wrong)} % of the last samples are wrong, and {say(100 * sure)} % of those "
            f"the model is surest of (limit {say(100 * self.limits.contradicted)} %): their labels "
            "contradict what all the others say"
        )
