"""Infers from a log's numbers what its columns are: cadence, digits, gradient norms before or after
clipping, parts of the loss.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from headway.core.signals import Signal
from headway.logs.log_names import Named
from headway.logs.log_table import Log, Series, Table
from headway.logs.setting_names import CLIP_LIMIT_NAMES

# Gradient norm before or after clipping. `clip_grad_norm_` returns the norm before clipping; a norm
# that is computed afterwards never exceeds the limit. If the limit is known, or both norms are
# logged, the clip coefficient follows.

MIN_NORMS = 8
"""Rows needed to decide whether norms are after clipping."""
AT_LIMIT = 0.4
"""Share of rows at the limit from which on the norm is after clipping."""
NEAR = 5e-3
"""Relative distance that counts as at the limit: clipping adds 1e-6, and logs round."""


@dataclass(frozen=True, slots=True)
class Clipping:
    """The known settings of gradient clipping."""

    limit: float | None = None
    after: bool = False
    """Whether the only norm in the log is the one after clipping."""
    both: bool = False

    @classmethod
    def of(cls, log: Log, names: Mapping[str, Named]) -> Clipping:
        """From the norms and settings of a log."""
        limit = _limit(log.facts)
        mine = {named.name: raw for raw, named in names.items()}
        raw = mine.get("grad_norm")
        if raw is None or raw not in log.table.series:
            return cls()
        if "clipped_grad_norm" in mine:
            return cls(limit, both=True)
        values = log.table.series[raw].numbers()
        values = values[np.isfinite(values)]
        if _stops_at(values, limit):
            return cls(limit, after=True)
        return cls(limit)

    @property
    def known(self) -> bool:
        """Whether the clip coefficient can be computed."""
        return not self.after and (self.both or self.limit is not None)

    def coefficient(self, values: Mapping[str, float]) -> float | None:
        """The factor that the gradients of a row were multiplied by; None if it is unknown."""
        norm = values.get("grad_norm")
        if not self.known or norm is None or not 0 < norm < math.inf:
            return None
        if self.both:
            clipped = values.get("clipped_grad_norm")
            if clipped is None or not 0 < clipped < math.inf:
                return None
            return min(clipped / norm, 1.0)
        assert self.limit is not None
        return min(self.limit / norm, 1.0)


def _limit(facts: Mapping[str, object]) -> float | None:
    for name in CLIP_LIMIT_NAMES:
        value = facts.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1e6:
            return float(value)
    return None


def _stops_at(values: np.ndarray, limit: float | None) -> bool:
    """Whether the norms pile up at a limit, as only clipped ones do."""
    if len(values) < MIN_NORMS:
        return False
    top = float(values.max())
    if limit is not None:
        if top > limit * (1 + NEAR):
            return False
    elif not _round(top):
        return False
    else:
        limit = top
    at_limit = float(np.mean(np.abs(values - limit) <= NEAR * limit))
    return at_limit >= AT_LIMIT


def _round(value: float) -> bool:
    """Whether it is a round number that people set as limit: 0.25, 0.5, 1, 2, 5, 10."""
    if value <= 0:
        return False
    nearest = float(f"{value:.1g}") if value >= 1 else float(f"{value:.2g}")
    return abs(value - nearest) <= NEAR * nearest


# The description of a column: what the reader knows of its format, completed and corrected by the
# values. A loss that is described as filtered but has a NaN was not filtered.

STEPS_PER_EPOCH = 100
"""Assumed for a log of epochs, so that its values count as means over many steps."""
DIGIT_SAMPLES = 400
"""Values from which the number of digits is taken."""
EXACT = 7
"""Digits of a float32: with as many, nothing was rounded."""
SUMS = ("scaler_skipped", "nan_steps")
"""Counts since the previous row."""


def described(table: Table, series: Series) -> Signal:
    """The description of a column from its values alone: its interval and digits."""
    steps = np.frombuffer(table.steps, dtype=np.int64)[series.where()] if len(series) else ()
    gaps = np.diff(steps)
    gaps = gaps[gaps > 0]
    every = max(int(np.median(gaps)), 1) if len(gaps) else 1
    return Signal(every=every, digits=digits_of(series))


def digits_of(series: Series) -> int | None:
    """Significant digits of the values; None if nothing was rounded."""
    values = series.numbers()
    if len(values) > DIGIT_SAMPLES:
        values = values[np.linspace(0, len(values) - 1, DIGIT_SAMPLES).astype(np.int64)]
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
    """The factor of a memory column to bytes, from its size: no training uses 64 bytes or 64 MB."""
    values = series.numbers()
    values = values[np.isfinite(values) & (values > 0)]
    usual = float(np.median(values)) if len(values) else 0.0
    if factor == 1.0 and 0 < usual < 1e7:
        return 2.0**30 if usual < 1e3 else 2.0**20
    if factor == 2.0**20 and 0 < usual < 100:
        return 2.0**30
    return factor


def corrected(log: Log, name: str, series: Series, known: Signal | None) -> Signal:
    """The description from the reader (`known`), completed and corrected by the values."""
    found = described(log.table, series)
    if known is None:
        signal = found
        if name in SUMS:
            signal = replace(signal, span=signal.every, fold="sum")
    else:
        signal = known
        if signal.every == 1 and found.every > 1:
            signal = replace(signal, every=found.every)
        if signal.digits is None:
            signal = replace(signal, digits=found.digits)
    if signal.nonfinite == "filtered" and not np.isfinite(series.numbers()).all():
        signal = replace(signal, nonfinite="kept")
    if log.unit == "epoch" and signal.span < STEPS_PER_EPOCH:
        fold = signal.fold if name in SUMS or known is not None else "mean"
        loss = name == "loss" or name.startswith("loss/")
        signal = replace(
            signal, span=STEPS_PER_EPOCH * signal.every, fold=fold if not loss else "mean"
        )
    return signal


# Components of a loss that are not called losses, `loss=1.20 (recon=0.80, reg=0.40)`: columns whose
# sum is the loss in every row, to the last printed digit.

MIN_SUM_ROWS, MAX_SUM_ROWS = 8, 500
"""Fewer rows may agree by chance; more are no better proof."""
MAX_PART_COLUMNS, MAX_PARTS = 10, 4
MAX_DECIMALS = 6
SHARE = 0.95
"""Share of rows in which the sum must hold; a line may be damaged."""


def find_loss_parts(table: Table, names: Mapping[str, Named]) -> dict[str, Named]:
    """Names for the columns that add up to the loss and are not named yet."""
    total = next((raw for raw, item in names.items() if item.name == "loss"), None)
    if total is None or total not in table.series:
        return {}
    series = table.series[total]
    where = series.where()
    if len(where) < MIN_SUM_ROWS:
        return {}
    loss = series.numbers()[:MAX_SUM_ROWS]
    columns: dict[str, NDArray[np.float64]] = {}
    for raw, other in table.series.items():
        known = names.get(raw)
        if raw == total or (known is not None and not known.name.startswith("loss/")):
            continue
        if len(other) == len(series) and np.array_equal(other.where(), where):
            values = other.numbers()[:MAX_SUM_ROWS]
            # A column of zeros is part of every sum.
            if np.isfinite(values).any() and np.ptp(values[np.isfinite(values)]) > 0:
                columns[raw] = values
    if not 2 <= len(columns) <= MAX_PART_COLUMNS:
        return {}
    return {
        raw: Named(f"loss/{raw.strip().lower().replace(' ', '_')}")
        for raw in _adding_up(loss, columns)
        if raw not in names
    }


def _adding_up(
    loss: NDArray[np.float64], columns: Mapping[str, NDArray[np.float64]]
) -> tuple[str, ...]:
    own = 10.0 ** -_decimals(loss)
    units = {raw: 10.0 ** -_decimals(values) for raw, values in columns.items()}
    finite = np.isfinite(loss)
    for values in columns.values():
        finite = finite & np.isfinite(values)
    if finite.sum() < MIN_SUM_ROWS:
        return ()
    for size in range(2, min(MAX_PARTS, len(columns)) + 1):
        for chosen in combinations(columns, size):
            allowed = 0.6 * (own + sum(units[raw] for raw in chosen))
            parts = [columns[raw][finite] for raw in chosen]
            # Each part must exceed the rounding, else it fits by chance.
            if any(np.median(np.abs(part)) < 4 * allowed for part in parts):
                continue
            if np.mean(np.abs(np.sum(parts, axis=0) - loss[finite]) <= allowed) >= SHARE:
                return chosen
    return ()


def _decimals(values: NDArray[np.float64]) -> int:
    """The number of decimals a column was printed with."""
    kept = values[np.isfinite(values)]
    for decimals in range(MAX_DECIMALS):
        if np.allclose(np.round(kept, decimals), kept, rtol=1e-12, atol=1e-12):
            return decimals
    return MAX_DECIMALS
