"""What the host knows of a step when it launches it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from headway.core.bound import LARGEST
from headway.live.batch_identity import Kept
from headway.live.turns import Turn
from headway.torch_tools.rng import Moment


@dataclass(slots=True)
class Note:
    """What the host knows of a step when it launches it."""

    step: int
    parameters: Sequence[Tensor]
    """Those that had a gradient, in the optimizer's order."""
    lr: float
    started: float
    sampled: bool
    limit: float = LARGEST
    """The bound that was enforced on the norm; on the host known only where it was broken."""
    values: dict[str, float] = field(default_factory=dict)
    components: tuple[str, ...] = ()
    updated: Sequence[Tensor] = ()
    buffers: Sequence[int] = ()
    batches: Sequence[Kept] = ()
    rates: Sequence[float] = ()
    nonfinite_counts: tuple[int, int] | None = None
    unseen: bool = False
    """Something non-finite that neither loss nor norm show: a line search, a clipping by NaN."""
    scale: Tensor | None = None
    """The loss scale of the step, on its device."""
    before: Moment | None = None
    """The random numbers before the step, where somebody may want to run it again."""
    turn: Turn | None = None
    """The turn of its loop that the step is, where the loop makes its own data."""
    again: bool = True
    """Whether every rank has what it needs to run the step again."""
    held: bool = False
    """The host held the update back; a fused kernel's own verdict comes with the readings."""
