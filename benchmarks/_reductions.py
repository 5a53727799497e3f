"""All-reduce by formula and by simulation, for more ranks than can be measured.

A message of `n` bytes takes `alpha + n * beta` seconds (Hockney's model). Two algorithms that sum
one vector over `p` ranks and give every rank the sum:

- **ring**: `2 (p - 1)` rounds; in each, every rank sends a `p`-th of the vector to its neighbour;
- **tree**: up a binomial tree and down again, `2 ceil(log2 p)` rounds with the whole vector.

The closed forms assume that all ranks begin at the same time. The simulations have a clock for each
rank, which sends as soon as it has its input, so that ranks may also begin at different times.
Libraries choose the faster algorithm and pipeline it, so both are upper bounds for NCCL.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Clocks = NDArray[np.float64]


@dataclass(frozen=True)
class Network:
    """Seconds per message, and per byte."""

    alpha: float
    beta: float

    def message(self, size: float) -> float:
        return self.alpha + size * self.beta


@dataclass(frozen=True)
class Cost:
    """Cost of one all-reduce."""

    seconds: float
    messages: int
    """Messages of all ranks together."""
    sent: float
    """Bytes of all ranks together."""
    most_messages: int
    """Messages that the busiest rank sends."""


def ring(ranks: int, size: int, network: Network) -> Cost:
    """The closed form."""
    rounds = 2 * (ranks - 1)
    return Cost(
        seconds=rounds * network.message(size / ranks),
        messages=rounds * ranks,
        sent=rounds * size,
        most_messages=rounds,
    )


def tree(ranks: int, size: int, network: Network) -> Cost:
    """The closed form."""
    depth = math.ceil(math.log2(ranks))
    return Cost(
        seconds=2 * depth * network.message(size),
        messages=2 * (ranks - 1),
        sent=2 * (ranks - 1) * size,
        most_messages=depth,
    )


def simulate_ring(ranks: int, size: int, network: Network, begin: Clocks | None = None) -> Cost:
    """Every rank sends its part when it has received the part before."""
    clock = np.zeros(ranks) if begin is None else begin.copy()
    took = network.message(size / ranks)
    messages = 0
    for _ in range(2 * (ranks - 1)):
        arrived = np.roll(clock, 1) + took
        clock = np.maximum(clock + took, arrived)
        messages += ranks
    return Cost(float(clock.max()), messages, messages * size / ranks, 2 * (ranks - 1))


def simulate_tree(ranks: int, size: int, network: Network, begin: Clocks | None = None) -> Cost:
    """A rank passes the sum on when it has those of all its children; then down again."""
    clock = np.zeros(ranks) if begin is None else begin.copy()
    took = network.message(size)
    sent = np.zeros(ranks, dtype=np.int64)
    distances = [1 << bit for bit in range(math.ceil(math.log2(ranks)))]
    for distance in distances:
        children = np.arange(distance, ranks, 2 * distance)
        parents = children - distance
        clock[parents] = np.maximum(clock[parents], clock[children]) + took
        sent[children] += 1
    for distance in reversed(distances):
        children = np.arange(distance, ranks, 2 * distance)
        parents = children - distance
        clock[children] = clock[parents] + took
        clock[parents] += took
        sent[parents] += 1
    messages = int(sent.sum())
    return Cost(float(clock.max()), messages, float(messages * size), int(sent.max()))
