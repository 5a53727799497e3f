"""How often what costs a little is measured."""

from __future__ import annotations

from dataclasses import dataclass

from headway.live import checksums, retention, samples


@dataclass(frozen=True, slots=True)
class Rhythm:
    """Steps between two measurements; a check of a few steps wants every one of them."""

    every: int = samples.EVERY
    zeros_every: int = samples.ZEROS_EVERY
    weights_every: int = checksums.WEIGHTS_EVERY
    """With several ranks: between two comparisons of their weights."""
    graphs_every: int = retention.EVERY
    """Between two counts of the graphs that are kept."""
    most_tensors: int = samples.MOST_TENSORS
    most_elements: int = samples.MOST_ELEMENTS


FULL = Rhythm(
    every=1,
    zeros_every=1,
    weights_every=1,
    graphs_every=5,
    most_tensors=2000,
    most_elements=1 << 27,
)
"""Everything at every step: for preflight."""
