"""What the numbers of a column say about themselves: how often they come, with how many digits.

A reader describes what it knows of its format. The rest is read off the values, and what they
contradict is put right: a loss that is said to be filtered and holds a NaN was not filtered.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from headway.core.signals import Signal
from headway.sources.log.log import Log
from headway.sources.log.table import Series, Table

EPOCH = 100
"""An epoch is taken for so many steps where the log does not say: a mean, not a single value."""
SAMPLED = 400
"""So many values show how many digits a column has."""
EXACT = 7
"""More digits than a float32 is sure of: nothing was rounded away."""
SUMS = ("scaler_skipped", "nan_steps")
"""Counts of what happened since the row before."""


def described(table: Table, series: Series) -> Signal:
    """What is known of a number whose log says nothing about it: a value every so many steps."""
    steps = np.frombuffer(table.steps, dtype=np.int64)[series.where()] if len(series) else ()
    gaps = np.diff(steps)
    gaps = gaps[gaps > 0]
    every = max(int(np.median(gaps)), 1) if len(gaps) else 1
    return Signal(every=every, digits=digits_of(series))


def digits_of(series: Series) -> int | None:
    """Significant digits of the values; None where nothing was rounded away."""
    values = series.numbers()
    if len(values) > SAMPLED:
        values = values[np.linspace(0, len(values) - 1, SAMPLED).astype(np.int64)]
    most = 0
    for value in values.tolist():
        if value == 0 or value != value or value in (np.inf, -np.inf):
            continue
        mantissa = repr(abs(value)).partition("e")[0].replace(".", "").lstrip("0")
        most = max(most, len(mantissa))
        if most >= EXACT:
            return None
    return most or 4


def unit_of(series: Series, factor: float) -> float:
    """What a memory column has to be multiplied by: nobody trains in 64 bytes, nor in 64 MB."""
    values = series.numbers()
    values = values[np.isfinite(values) & (values > 0)]
    usual = float(np.median(values)) if len(values) else 0.0
    if factor == 1.0 and 0 < usual < 1e7:
        return 2.0**30 if usual < 1e3 else 2.0**20
    if factor == 2.0**20 and 0 < usual < 100:
        return 2.0**30
    return factor


def honest(log: Log, name: str, series: Series, told: Signal | None) -> Signal:
    """The description checks can rely on."""
    found = described(log.table, series)
    if told is None:
        signal = found
        if name in SUMS:
            signal = replace(signal, span=signal.every, fold="sum")
    else:
        signal = told
        if signal.every == 1 and found.every > 1:
            signal = replace(signal, every=found.every)
        if signal.digits is None:
            signal = replace(signal, digits=found.digits)
    if signal.nonfinite == "filtered" and not np.isfinite(series.numbers()).all():
        signal = replace(signal, nonfinite="kept")
    if log.unit == "epoch" and signal.span < EPOCH:
        fold = signal.fold if name in SUMS or told is not None else "mean"
        loss = name == "loss" or name.startswith("loss/")
        signal = replace(signal, span=EPOCH * signal.every, fold=fold if not loss else "mean")
    return signal
