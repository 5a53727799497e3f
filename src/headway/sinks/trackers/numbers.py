"""From a step's record to the keys people look for in a tracker.

    loss, loss/<component>, lr, loss_scale, clip_coef       as they are
    grad/global_norm                                        before clipping
    grad/max_norm, grad/min_norm, grad_layer/<parameter>    where the record has them
    grad/has_nan, grad/has_inf                              0 or 1
    memory/host_rss_bytes, memory/device_allocated_bytes    where they were measured
    lr/group<k>                                             of further parameter groups
    headway/held                                           1 where the update was held back
    headway/<anything else>                                step time, samples per second, …

A value that was not measured at a step is absent. Non-finite values stay what they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from headway.core.records import Column, StepRecord
from headway.core.signals import family
from headway.sinks.trackers.base import Row

_AS_THEY_ARE = frozenset({"loss", "lr", "loss_scale", "clip_coef"})
_RENAMED = {
    "grad_norm": "grad/global_norm",
    "host_rss_bytes": "memory/host_rss_bytes",
    "device_allocated_bytes": "memory/device_allocated_bytes",
}


def row_of(record: StepRecord, names: Sequence[str]) -> Row:
    """The numbers of a step. `names` are those of the parameters, in the order of the header."""
    values = {_key(name): float(value) for name, value in record.values.items()}
    values["headway/held"] = float(record.held)
    norms = [value for _, value in record.family("grad_norm")]
    layers = record.columns.get("param/grad_norm")
    if layers is not None and len(layers.values):
        norms += layers.values
        values["grad/max_norm"] = _extreme(layers.values, largest=True)
        values["grad/min_norm"] = _extreme(layers.values, largest=False)
        for at, norm in layers.items():
            values[f"grad_layer/{_name(names, at)}"] = float(norm)
    if norms:
        values["grad/has_nan"] = float(any(math.isnan(norm) for norm in norms))
        values["grad/has_inf"] = float(any(math.isinf(norm) for norm in norms))
    for at, rate in record.columns.get("group/lr", Column(())).items():
        values[f"lr/group{at}"] = float(rate)
    return Row(record.step, values)


def _key(name: str) -> str:
    root = family(name)
    further = name[len(root) :]
    if root in _AS_THEY_ARE or root.startswith("loss/"):
        return name
    return _RENAMED.get(root, f"headway/{root}") + further


def _name(names: Sequence[str], at: int) -> str:
    return names[at] if at < len(names) else str(at)


def _extreme(norms: Sequence[float], *, largest: bool) -> float:
    """The largest or smallest; NaN where one is, as torch has it."""
    if any(math.isnan(norm) for norm in norms):
        return math.nan
    return float(max(norms) if largest else min(norms))
