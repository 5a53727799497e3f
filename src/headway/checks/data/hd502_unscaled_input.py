from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headway.checks.symptoms import BAD_STEPS
from headway.core.check import Check, Needs
from headway.core.data_facts import InputScaleFacts
from headway.core.facts import onset_record
from headway.core.findings import Finding
from headway.core.numbers import say
from headway.core.records import SetupRecord

LARGE = (
    "Standardise the inputs (subtract the mean, divide by the standard deviation of the training "
    "set; pixels by 255), or start the model with a normalising layer.",
)
SMALL = (
    "Look for a scaling that is applied twice: by the data set and again by a transform or in "
    "the loop (`/ 255` after ToTensor, which already divides).",
)


class UnscaledInput(Check):
    """The inputs of the first layers are far from unit scale.

    ## What it checks
    The input of every layer with weights that gets its input from the data and not from another
    layer, as it arrives there: after everything that the loader, the loop or the model does to it.

    ## Why it matters
    Initialisations and learning rates are designed for inputs of about unit scale. Pixels of 0 to
    255 make the gradients of the first layer a hundred times too large: training is slow, unstable
    or fails. Inputs that were divided twice have hardly any signal compared with the biases.

    ## How it is measured
    Over all inspected batches: a root mean square above 30 with values beyond 100; or no value
    beyond 0.02; or a standard deviation of less than 2 % of the mean, so that all inputs are almost
    one number.

    ## False alarms
    Ids are inputs of embeddings, which are not checked. Layers that normalise have no weights to
    disturb, and their outputs have unit scale. A single tensor of zeros (a first hidden state)
    passes.

    ## What to do
    Standardise by the mean and standard deviation of the training set, once, and check the values
    right before the model: `print(x.mean(), x.std())`.

    ## References
    Stack Overflow 50762466, 47318871; LeCun et al., "Efficient BackProp", 4.3.
    """

    code = "HD502"
    name = "unscaled-input"
    summary = "float input far from unit scale (raw 0-255)"
    needs = Needs(kinds=(SetupRecord,), topics=("input-scale",))
    explains = (
        *BAD_STEPS,
        "HD105",
        "HD113",
        "HD203",
        "HD304",
        "HD305",
        "HD403",
        "HD404",
        "HD512",
        "HD509",
    )

    @dataclass(frozen=True)
    class Limits:
        rms: float = 30.0
        """Root mean square above which inputs are too large."""
        largest: float = 100.0
        """Value that the largest input must also exceed."""
        smallest: float = 0.02
        """Inputs that are all smaller have no signal."""
        spread: float = 0.02
        """Ratio of standard deviation to mean."""

    def start(self) -> None:
        self.reported: set[str] = set()

    def observe(self, record: SetupRecord) -> Iterable[Finding]:
        facts = InputScaleFacts.of(record)
        rms, largest = facts.rms, facts.max
        mean, std = facts.mean, facts.std
        batches, samples = facts.batches or 0, facts.samples or 0
        if rms is None or largest is None or mean is None or std is None or largest == 0:
            return
        limits = self.limits
        if rms > limits.rms and largest > limits.largest:
            what = f"have a root mean square of {say(rms)} (limit {say(limits.rms)})"
            cure = LARGE
        elif batches < 2 or samples < 16 or std == 0:
            return
        elif largest < limits.smallest:
            what = f"are all smaller than {say(largest)} (limit {say(limits.smallest)})"
            cure = SMALL
        elif std < limits.spread * abs(mean) and std < limits.spread:
            what = f"are all almost {say(mean)}, with a standard deviation of {say(std)}"
            cure = SMALL
        else:
            return
        if cure[0] in self.reported:
            return  # several layers get the same input
        self.reported.add(cure[0])
        module = facts.module
        # Scaled twice, or converted to floats without being scaled.
        line = facts.scaled_at if cure is SMALL else facts.converted_at
        place = None if line.file is None else line
        yield self.find(
            onset_record(record),
            f"the inputs of {module or 'the first layer'} {what}; the largest is {say(largest)}",
            subject=module or "",
            where=facts.locate(rank=record.rank, place=place, module=module),
            remedies=list(cure),
            value=rms,
            limit=limits.rms,
            largest=largest,
            mean=mean,
            std=std,
        )
