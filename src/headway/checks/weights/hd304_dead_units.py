from __future__ import annotations

from dataclasses import dataclass

from headway.checks.symptoms import NOTHING_MOVES, POOR_FIT
from headway.checks.weights._shared import LayerShareCheck
from headway.core.check import Needs
from headway.core.numbers import say
from headway.core.records import SetupRecord, StepRecord


class DeadUnits(LayerShareCheck):
    """The units of a hidden layer output zero for every sample in every step.

    ## What it checks
    The outputs of the rectifiers (ReLU and similar, GELU, SiLU, `clamp(min=0)`) of hidden layers.

    ## Why it matters
    A rectifier that is 0 for every sample has a gradient of 0 for every sample, so it cannot
    recover. If a whole layer is dead it cuts the network in two: the layers before it never learn,
    and the layers after it see the same values for every input.

    ## How it is measured
    The share of units (channels) that are 0 for every sample of the last three measurements, with
    at least 16 samples in total. It is reported if that share is 90 % in two measurements in a row.

    ## False alarms
    Activations that are mostly 0 are normal: a healthy ReLU layer may be 70 % zeros, with different
    units active for different samples. Units that are 0 for one batch count as alive. A hinge in a
    loss is not a layer.

    ## What to do
    Check the bias and the learning rate: one update that is too large pushes a whole layer below
    zero. Use a smaller learning rate or a warm-up, a bias of 0 and the initialisation for ReLU;
    LeakyReLU has a gradient everywhere, GELU and SiLU only near zero.

    ## References
    Lu et al., "Dying ReLU and Initialization"; AutoTrainer's dying ReLU.
    """

    code = "HD304"
    name = "dead-units"
    summary = "a layer's units output zero for every sample"
    needs = Needs(signals=("act/zero_share",), kinds=(StepRecord, SetupRecord))
    explains = (*NOTHING_MOVES, *POOR_FIT, "HD203", "HD204", "HD415")

    @dataclass(frozen=True)
    class Limits:
        share: float = 0.9
        """Share of a layer's units that are dead."""
        looks: int = 2
        """Consecutive measurements that are needed."""

    consequence = "they cannot recover"
    remedies = (
        "Check the bias and the weights of the layer before it, and the learning rate of "
        "the steps before: a single large update can cause this.",
        "Normalise before it, or use LeakyReLU, which has a gradient everywhere (GELU "
        "and SiLU only near 0).",
    )

    def describe(self, member: str, share: float) -> str:
        units = "all units" if share >= 1 else f"{say(100 * share)} % of the units"
        return f"{units} of {member} are 0 for every sample"
