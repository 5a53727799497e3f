from __future__ import annotations

from dataclasses import dataclass

from headway.checks.symptoms import NOTHING_MOVES, POOR_FIT
from headway.checks.weights._shared import LayerShareCheck
from headway.core.check import Needs
from headway.core.numbers import say
from headway.core.records import SetupRecord, StepRecord


class SaturatedActivation(LayerShareCheck):
    """The tanh or sigmoid outputs of a hidden layer are saturated at their limits.

    ## What it checks
    The outputs of tanh and sigmoid in hidden layers. Output layers, and gates that multiply another
    value, are ignored.

    ## Why it matters
    At the limits the derivative is almost 0, so hardly any gradient passes: the layers before it
    stop learning.

    ## How it is measured
    The share of values within half a percent of the range from a limit (tanh beyond ±0.99, sigmoid
    below 0.005 or above 0.995). It is reported if that share is 80 % in three measurements in a
    row.

    ## False alarms
    Trained layers saturate in part; half of the values at the limits is not unusual. The gates of
    recurrent layers are meant to close.

    ## What to do
    Scale the inputs to about unit scale, use smaller initial weights (Xavier), normalise before the
    activation, or lower the learning rate.

    ## References
    Glorot and Bengio, "Understanding the difficulty of training deep feedforward neural networks".
    """

    code = "HD305"
    name = "saturated-activation"
    summary = "tanh/sigmoid outputs are saturated at their limits"
    needs = Needs(signals=("act/saturated_share",), kinds=(StepRecord, SetupRecord))
    explains = (*NOTHING_MOVES, *POOR_FIT, "HD203")

    @dataclass(frozen=True)
    class Limits:
        share: float = 0.8
        """Share of the values at the limits."""
        looks: int = 3
        """Consecutive measurements that are needed."""

    consequence = "hardly any gradient passes"
    remedies = (
        "Scale the inputs, or the initial weights before it, so that its inputs have "
        "about unit scale; or normalise before the activation.",
        "If this started during training, lower the learning rate.",
    )

    def describe(self, member: str, share: float) -> str:
        return f"{say(100 * share)} % of the outputs of {member} are saturated"
