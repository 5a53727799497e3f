"""Finds what carries a finite but huge jump: layers, a part of the loss, samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from headway.explain.batch_samples import GradientShare
from headway.explain.explanation import Spike
from headway.explain.failing_step import FailingStep
from headway.explain.trace import Trace

MOST_LAYERS = 5
GREW = 3.0
"""Times its usual size from which a gradient has grown."""
STANDS_OUT = 5.0
"""Times the median from which a sample's share stands out, …"""
DEVIATIONS = 10.0
"""… if it is so many deviations away, as well."""
NORMAL = 1.4826
"""From the median deviation to the standard deviation of normal numbers."""
FEW = 4
CLEARLY = 10.0
"""Among a few samples: times the second largest."""


def find_spike(trace: Trace, scene: FailingStep, norms: Mapping[str, float] | None = None) -> Spike:
    """What grew most in a traced pass. `norms` are those of the gradients over all ranks, where
    there are several."""
    layers = _layers(norms or trace.ends.norms, scene)
    share = _telling_share(trace, [name for name, _ in layers])
    known = all(growth is not None for _, growth in layers)
    return Spike(
        component=_component(trace, scene),
        rows=() if share is None else outliers(share.sizes),
        layers=tuple(name for name, _ in layers),
        growth=tuple(growth or 0.0 for _, growth in layers) if known else (),
        batch=0 if share is None else share.batch,
    )


def outliers(sizes: Sequence[float]) -> tuple[int, ...]:
    """The few that are far larger than the rest."""
    if len(sizes) < 2:
        return ()
    if len(sizes) < FEW:
        second, first = sorted(sizes)[-2:]
        return (sizes.index(first),) if first > CLEARLY * second else ()
    middle = median(sizes)
    deviation = NORMAL * median(abs(size - middle) for size in sizes)
    limit = max(STANDS_OUT * middle, middle + DEVIATIONS * deviation)
    rows = tuple(row for row, size in enumerate(sizes) if size > limit)
    return rows if len(rows) <= len(sizes) // 2 else ()


def _layers(norms: Mapping[str, float], scene: FailingStep) -> list[tuple[str, float | None]]:
    """Those whose gradients grew most; the largest, where nobody knows what is usual."""
    usual = {name: scene.usual.get(f"grad_norm/{name}", 0.0) for name in norms}
    grown = [(name, norms[name] / usual[name]) for name in norms if usual[name] > 0]
    if grown:
        ranked = sorted(grown, key=lambda item: item[1], reverse=True)[:MOST_LAYERS]
        return [(name, growth) for name, growth in ranked if growth >= GREW]
    largest = sorted(norms, key=norms.__getitem__, reverse=True)[:MOST_LAYERS]
    return [(name, None) for name in largest]


def _component(trace: Trace, scene: FailingStep) -> str | None:
    """The part of the loss that grew most; the largest, where nobody knows what is usual."""
    values: dict[str, float] = {}
    for component in trace.ends.components:
        values[component.name] = max(values.get(component.name, 0.0), abs(component.value))
    usual = {name: abs(scene.usual.get(f"loss/{name}", 0.0)) for name in values}
    if all(usual.values()):
        return max(values, key=lambda name: values[name] / usual[name], default=None)
    return max(values, key=values.__getitem__, default=None)


def _telling_share(trace: Trace, layers: Sequence[str]) -> GradientShare | None:
    """In which some samples stand out: of the layer that grew most, or else nearest to the loss."""
    if trace.shares is None:
        return None
    writers = [trace.ends.written_by.get(name) for name in layers]
    of_weights = [
        trace.shares.of_weights[writer.order]
        for writer in writers
        if writer is not None and writer.order in trace.shares.of_weights
    ]
    candidates = [*of_weights, *trace.shares.of_activations]
    return next((share for share in candidates if outliers(share.sizes)), None)
