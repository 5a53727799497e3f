"""Small seeded simulators of a run's numbers, for logs written as other people's tools write them.

Each gives plain lists, one value per optimizer step; nothing here knows a check or a reader.
"""

from __future__ import annotations

import math
import random

NAN = float("nan")
INF = float("inf")


def falling(
    n: int, start: float, floor: float, seed: int, noise: float = 0.03, pace: float = 0.15
) -> list[float]:
    """A loss that falls from `start` towards `floor` like a power law, with batch noise."""
    rng = random.Random(seed)
    scale = max(pace * n, 1.0)
    return [
        max(floor + (start - floor) / (1 + i / scale) ** 1.2, 0.0) * math.exp(rng.gauss(0, noise))
        for i in range(n)
    ]


def around(n: int, level: float, seed: int, noise: float = 0.03) -> list[float]:
    """Noise around one level."""
    rng = random.Random(seed)
    return [level * math.exp(rng.gauss(0, noise)) for _ in range(n)]


def norms(n: int, seed: int, level: float = 1.0, start: float = 4.0) -> list[float]:
    """Gradient norms: larger at first, then log-normal with now and then a heavier tail."""
    rng = random.Random(seed)
    out = []
    for i in range(n):
        base = level * (1 + (start - 1) * math.exp(-i / (0.05 * n + 1)))
        tail = 1.8 if rng.random() < 0.01 else 1.0
        out.append(base * tail * math.exp(rng.gauss(0, 0.18)))
    return out


def cosine(n: int, peak: float, warmup: int = 0, floor: float = 0.0) -> list[float]:
    """Warm-up and a cosine to `floor`."""
    out = []
    for i in range(n):
        if i < warmup:
            out.append(peak * (i + 1) / warmup)
        else:
            share = (i - warmup) / max(n - warmup, 1)
            out.append(floor + (peak - floor) * 0.5 * (1 + math.cos(math.pi * share)))
    return out


def linear(n: int, peak: float, warmup: int = 0) -> list[float]:
    """Warm-up and a straight line to 0."""
    return [
        peak * (i + 1) / warmup if i < warmup else peak * (n - i) / max(n - warmup, 1)
        for i in range(n)
    ]


def lost_from(values: list[float], k: int, bad: float = NAN) -> list[float]:
    """The same, and `bad` from step `k` (counted from 1) to the end."""
    return values[: k - 1] + [bad] * (len(values) - k + 1)


def once(values: list[float], k: int, value: float) -> list[float]:
    """The same, with one value at step `k` (counted from 1)."""
    out = list(values)
    out[k - 1] = value
    return out


def bump(values: list[float], k: int, height: float, decay: float) -> list[float]:
    """A spike from step `k` that dies away over about `decay` steps."""
    return [
        v + (height * math.exp(-(i + 1 - k) / decay) if i + 1 >= k else 0.0)
        for i, v in enumerate(values)
    ]


def rising(values: list[float], k: int, per_step: float, most: float) -> list[float]:
    """From step `k` on it climbs away from where it was, up to `most`."""
    return [
        v
        if i + 1 < k
        else min(v + per_step * (i + 2 - k), most * (0.97 + 0.06 * ((i * 7) % 10) / 10))
        for i, v in enumerate(values)
    ]


def every(n: int, k: int) -> list[int]:
    """The steps a logger with interval `k` writes: k, 2k, …"""
    return list(range(k, n + 1, k))


def window(values: list[float], step: int, k: int) -> float:
    """The mean over the `k` steps that end at `step`."""
    part = values[step - k : step]
    return sum(part) / len(part)
