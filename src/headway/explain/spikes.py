"""Where a gradient spike comes from: layers, a loss component, samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from headway.explain.batch_samples import GradientShare
from headway.explain.explanation import Spike
from headway.explain.failing_step import FailingStep
from headway.explain.trace import Trace

MOST_LAYERS = 5
GREW = 3.0
"""A gradient has grown if its norm is at least this many times its usual norm."""
STANDS_OUT = 5.0
"""A sample is an outlier if its share exceeds this many times the median …"""
DEVIATIONS = 10.0
"""… and is this many standard deviations above it."""
NORMAL = 1.4826
"""Factor from the median absolute deviation to the standard deviation (normal distribution)."""
FEW = 4
CLEARLY = 10.0
"""With fewer than FEW samples: factor over the second largest."""


def find_spike(
    trace: Trace, failing_step: FailingStep, norms: Mapping[str, float] | None = None
) -> Spike:
    """What grew most in a traced pass. `norms`: gradient norms over all ranks, if there are
    several."""
    layers = _layers(norms or trace.ends.norms, failing_step)
    share = _share_with_outliers(trace, [name for name, _ in layers])
    known = all(growth is not None for _, growth in layers)
    return Spike(
        component=_component(trace, failing_step),
        rows=() if share is None else outliers(share.sizes),
        layers=tuple(name for name, _ in layers),
        growth=tuple(growth or 0.0 for _, growth in layers) if known else (),
        batch=0 if share is None else share.batch,
    )


def outliers(sizes: Sequence[float]) -> tuple[int, ...]:
    """Indices of the few values that are far larger than the rest."""
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


def _layers(
    norms: Mapping[str, float], failing_step: FailingStep
) -> list[tuple[str, float | None]]:
    """Parameters whose gradients grew most; the largest gradients if the usual ones are unknown."""
    usual = {name: failing_step.usual.get(f"grad_norm/{name}", 0.0) for name in norms}
    grown = [(name, norms[name] / usual[name]) for name in norms if usual[name] > 0]
    if grown:
        ranked = sorted(grown, key=lambda item: item[1], reverse=True)[:MOST_LAYERS]
        return [(name, growth) for name, growth in ranked if growth >= GREW]
    largest = sorted(norms, key=norms.__getitem__, reverse=True)[:MOST_LAYERS]
    return [(name, None) for name in largest]


def _component(trace: Trace, failing_step: FailingStep) -> str | None:
    """The loss component that grew most; the largest if the usual values are unknown."""
    values: dict[str, float] = {}
    for component in trace.ends.components:
        values[component.name] = max(values.get(component.name, 0.0), abs(component.value))
    usual = {name: abs(failing_step.usual.get(f"loss/{name}", 0.0)) for name in values}
    if all(usual.values()):
        return max(values, key=lambda name: values[name] / usual[name], default=None)
    return max(values, key=values.__getitem__, default=None)


def _share_with_outliers(trace: Trace, layers: Sequence[str]) -> GradientShare | None:
    """The share with outliers: of the layer that grew most, or else nearest to the loss."""
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
