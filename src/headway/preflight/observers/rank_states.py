"""What each rank reports before a step, and what the reports of all ranks say together."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

SAME_FACTOR = 1e-3
"""Relative difference up to which two measured factors are equal."""


@dataclass
class RankState:
    """The report of one rank before a step."""

    weights: list[float]
    """A checksum of each parameter."""
    gradients: list[float]
    """A checksum of each gradient when backward ended; 0 without one, or if it is zero."""
    exchanged: list[bool]
    """Whether a gradient of this parameter went to other ranks."""
    varied: list[bool]
    """Whether the parameter has more than one value: a copy, not a common constant."""
    sizes: list[int]
    rates: list[float] = field(default_factory=list)
    shares: bool = False
    """Activations go from rank to rank: the model is spread over them."""
    averages: bool = False
    """Weights are exchanged: the ranks train independently in between."""
    norm: float | None = None
    """The norm of all gradients when backward ended."""
    factor: float | None = None
    """How the gradients were scaled between backward and the step, if all by one factor."""
    clip: float | None = None
    """The norm that `clip_grad_norm_` used."""


def find_replicas(states: Sequence[RankState]) -> list[str]:
    """Why each parameter is a replica; "" where it is a shard, or may be one."""
    found = []
    of_all = [
        zip(*(getattr(state, name) for state in states), strict=True)
        for name in ("sizes", "weights", "gradients", "exchanged", "varied")
    ]
    shares = any(state.shares for state in states)
    rows = list(zip(*of_all, strict=True))
    sent = sum(sizes[0] for sizes, _, _, exchanged, _ in rows if all(exchanged))
    data_parallel = 2 * sent >= sum(sizes[0] for sizes, *_ in rows)
    # Constants begin equal by chance: they count if everything else is a replica.
    complete = all(
        all(exchanged) or len(set(weights)) == 1
        for _, weights, _, exchanged, varied in rows
        if any(varied)
    )
    for sizes, weights, gradients, exchanged, varied in rows:
        equal = len(set(sizes)) == 1 and len(set(weights)) == 1
        if all(exchanged) and len(set(sizes)) == 1:
            found.append("exchanged")
        elif equal and len(set(gradients)) == 1 and gradients[0]:
            found.append("gradient")
        elif equal and (data_parallel or not shares) and (any(varied) or complete):
            found.append("start")
        else:
            found.append("")
    return found


def combine_checksums(state: RankState, why: Sequence[str]) -> float:
    """One checksum of the replicas of a rank; never 0, which would mean that it has none."""
    values = [value for value, reason in zip(state.weights, why, strict=True) if reason]
    return float(1 + zlib.crc32(repr(values).encode()) % (1 << 24))


def find_clip_norms(states: Sequence[RankState], why: Sequence[str]) -> list[float] | None:
    """The norms by which the ranks clip gradients that were equal; None where they do not."""
    if "gradient" not in why:
        return None
    norms = [state.clip for state in states if state.clip is not None]
    if len(norms) == len(states):
        return norms
    # By hand: each rank has scaled its gradients to the same norm, by a factor of its own.
    own = [state.norm for state in states if state.norm is not None and state.factor is not None]
    factors = [state.factor for state in states if state.factor is not None]
    if norms or len(own) < len(states) or min(factors) >= 1 - SAME_FACTOR:
        return None
    limits = [norm * factor for norm, factor in zip(own, factors, strict=True)]
    by_own = max(limits) - min(limits) <= SAME_FACTOR * max(limits)
    return own if by_own and max(factors) < 1 - SAME_FACTOR else None
