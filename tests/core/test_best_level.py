"""The best level of a loss, its band, and the two measures of noise beside it."""

from __future__ import annotations

import json
import math
import random

import pytest

from headway.core.state import decode, encode
from headway.core.window import BestLevel, detrended_sigma, drift_sigma


def white(count: int, seed: int = 0) -> list[float]:
    noise = random.Random(seed)
    return [noise.gauss(0, 1) for _ in range(count)]


def test_scatter_sees_noise_and_no_trend() -> None:
    noise = white(2000)
    assert detrended_sigma(noise) == pytest.approx(1, rel=0.1)
    assert detrended_sigma([value + 5 * at for at, value in enumerate(noise)]) == pytest.approx(
        1, rel=0.1
    )
    assert detrended_sigma([3.0]) == 0


def test_wander_sees_slow_waves_and_little_of_the_noise() -> None:
    waves = [math.sin(at / 8) for at in range(100)]
    assert drift_sigma(waves) > 0.5
    assert detrended_sigma(waves) < 0.15
    assert drift_sigma(white(1000)) < 0.7
    assert drift_sigma([2.0 * at for at in range(100)]) == pytest.approx(0, abs=1e-9)


def test_the_band_holds_noise_and_not_the_start() -> None:
    best = BestLevel()
    assert best.band == math.inf
    for step, noise in enumerate(white(300)):
        best.learn(step, (0.5 + 2 * math.exp(-step / 50)) * math.exp(0.05 * noise))
    assert best.level == pytest.approx(0.5, rel=0.1)
    assert best.first == pytest.approx(2.5, rel=0.1)
    assert best.progressed
    assert 0.55 < best.band < 1


def test_however_noisy_half_of_the_progress_is_not_in_the_band() -> None:
    best = BestLevel()
    for step, noise in enumerate(white(300)):
        best.learn(step, (0.1 + 2 * math.exp(-step / 50)) * math.exp(0.5 * noise))
    assert best.band <= best.level + best.progress / 2


def test_signed_losses() -> None:
    best = BestLevel()
    for step, noise in enumerate(white(200)):
        best.learn(step, 3 - 5 * min(step / 100, 1) + 0.1 * noise)
    assert best.level == pytest.approx(-2, abs=0.2)
    assert -2 < best.band < 0.5


def test_a_new_start() -> None:
    best = BestLevel()
    for step in range(100):
        best.learn(step, 0.1)
    best.restart(3.0, [1.0, 1.1, 0.9, 1.0])
    assert (best.first, best.level) == (3.0, 1.0)
    assert 1.1 < best.band < 2.1


def test_it_survives_a_resume() -> None:
    best = BestLevel(12)
    for step in range(40):
        best.learn(step, 2.0 - step / 40)
    again = decode(json.loads(json.dumps(encode(best))))
    assert isinstance(again, BestLevel)
    assert encode(again) == encode(best)
