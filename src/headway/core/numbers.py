"""Numbers in JSON and in sentences.

JSON has no NaN. Writing `NaN` bare breaks strict readers and `null` loses which of the three it
was, so non-finite numbers are the strings "NaN", "Infinity" and "-Infinity", everywhere.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

_NONFINITE_BY_NAME = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def encode_number(value: float) -> float | str:
    """A finite number unchanged, a non-finite one as its name."""
    if math.isfinite(value):
        return value
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def encode_values(values: Mapping[str, float]) -> Mapping[str, float | str]:
    """The same for each value; fast if all are finite, as at most steps."""
    if all(map(math.isfinite, values.values())):
        return dict(values)
    return {name: encode_number(value) for name, value in values.items()}


def decode_number(value: object) -> float:
    """The number that `encode_number` wrote. Raises ValueError for anything else."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:  # an integer of more than 308 digits
            raise ValueError("not a number: an integer too large for any measurement") from None
    if isinstance(value, str) and value in _NONFINITE_BY_NAME:
        return _NONFINITE_BY_NAME[value]
    raise ValueError(f"not a number: {value!r}")


def encode_numbers(value: Any) -> Any:
    """The same structure with every non-finite float replaced by its name."""
    if isinstance(value, float):
        return encode_number(value)
    if isinstance(value, dict):
        return {str(key): encode_numbers(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [encode_numbers(item) for item in value]
    return value


def decode_numbers(value: Any) -> Any:
    """The same structure with every name of a non-finite float converted back."""
    if isinstance(value, str):
        return _NONFINITE_BY_NAME.get(value, value)
    if isinstance(value, dict):
        return {key: decode_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [decode_numbers(item) for item in value]
    return value


def round_digits(value: float, digits: int = 6) -> float:
    """The value rounded to `digits` significant digits; non-finite values unchanged."""
    return float(f"{value:.6g}" if digits == 6 else f"{value:.{digits}g}")


def say(value: float, digits: int = 3) -> str:
    """A number for a message: 0.00012 → 0.00012, 4970000 → 4.97e+06, NaN → NaN."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Inf" if value > 0 else "-Inf"
    return f"{value:.{digits}g}"


def say_nonfinite(nan: int, inf: int) -> str:
    """`3 NaN`, `2 Inf` or `3 NaN and 2 Inf`."""
    return " and ".join(f"{count} {kind}" for count, kind in ((nan, "NaN"), (inf, "Inf")) if count)


WAS = ("was", "were")


def plural(count: int, word: str, verbs: tuple[str, str] | None = None) -> str:
    """`1 error`, `2 errors`; with `("was", "were")`: `1 error was`."""
    text = f"{count} {word}" if count == 1 else f"{count} {word}s"
    return text if verbs is None else f"{text} {verbs[count != 1]}"


def ordinal(count: int) -> str:
    """`1st`, `2nd`, `11th`."""
    if 10 <= count % 100 <= 20:
        return f"{count}th"
    return f"{count}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(count % 10, 'th') }"


def say_bytes(count: float) -> str:
    """A byte count in a readable unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def natural_order(name: str) -> list[tuple[int, int | str]]:
    """A sort key that puts `version_10` after `version_9`."""
    parts = re.split(r"(\d{1,18})", name)
    return [(0, int(part)) if part.isdigit() else (1, part) for part in parts if part]
