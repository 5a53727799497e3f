"""The trainings of `forecast.py`: a table of settings, with what each was expected to do.

The development half was tuned until its runs behaved as expected. The held-out half was
written afterwards and was not changed after its first run: other rates, tasks and seeds, and some
families that the development half does not have.

A row: what is unusual | task and form | optimizer | rate | other fields of `Setting`, and changes.
`@150-170:inputs=10` multiplies the inputs by 10 from step 150 up to step 169, `@150:…` until the
end; `Training.apply` says what the other words do. `ramp=300` is the schedule `ramp`, `top=300`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from _forecast_trainings import Setting

DIVERGES, SURVIVES = "diverges", "survives"
DEVELOPMENT, HELD_OUT = "development", "held out"
END = 10_000

_DEVELOPMENT_DIVERGES = """
rate rises too far     | teacher             | sgd   | 0.01  | ramp=300
rate rises too far     | classes             | sgd   | 0.05  | ramp=300
rate rises too far     | pictures            | sgd   | 0.02  | ramp=300 momentum=0.9
rate rises too far     | language            | adamw | 0.001 | ramp=600 steps=240
rate rises too far     | linear              | sgd   | 0.05  | ramp=40
rate rises too far     | parity              | adamw | 0.002 | ramp=600
rate rises slowly      | teacher             | sgd   | 0.03  | ramp=20 steps=500
rate rises slowly      | classes             | sgd   | 0.3   | ramp=20 steps=500
peak after warm-up     | language            | adamw | 0.3   | warm-up=80 steps=240
peak after warm-up     | classes             | sgd   | 3     | warm-up=150
peak after warm-up     | teacher             | sgd   | 0.5   | warm-up=150
peak after warm-up     | pictures            | sgd   | 0.5   | warm-up=100 momentum=0.9
no qk-norm             | language post-norm  | adamw | 0.1   | warm-up=100 steps=240
no qk-norm             | language post-norm  | adamw | 0.2   | warm-up=150 steps=240
no qk-norm             | language            | sgd   | 3     | warm-up=120 steps=240
bfloat16               | teacher             | sgd   | 0.02  | ramp=50 half_precision=1
bfloat16               | classes             | adamw | 0.003 | ramp=500 half_precision=1
weight decay           | classes             | adamw | 0.01  | @100:weight_decay=-3
weight decay           | teacher             | adamw | 0.01  | @100:weight_decay=-1.5
weight decay           | pictures            | adamw | 0.005 | @120:weight_decay=60
weight decay           | classes             | sgd   | 0.1   | @100:weight_decay=-0.3
outlier data           | teacher             | sgd   | 0.05  | @150-170:inputs=10
outlier data           | pictures            | sgd   | 0.05  | @150-160:inputs=30 momentum=0.9
outlier data           | teacher             | sgd   | 0.05  | @150-190:targets=30
outlier data           | classes             | sgd   | 0.1   | @150-170:inputs=20
second moment          | teacher             | adamw | 0.02  | @120:beta2=0.3
second moment          | language            | adamw | 0.03  | @100:beta2=0.1 steps=240
second moment          | classes             | adamw | 0.03  | @120:beta2=0.1
second moment          | teacher deep        | adamw | 0.02  | @120:beta2=0.2
momentum               | teacher             | sgd   | 0.05  | @120:momentum=0.99
momentum               | classes             | sgd   | 0.1   | @120:momentum=0.995
momentum               | pictures            | sgd   | 0.1   | @120:momentum=0.998 momentum=0.9
batch cut              | teacher             | sgd   | 0.1   | @150:batch=1 batch=64
batch cut              | classes             | sgd   | 0.5   | @150:batch=1 batch=64
summed loss            | teacher             | sgd   | 0.03  | @150:loss=32
summed loss            | pictures            | sgd   | 0.05  | @150:loss=64
clipping removed       | teacher             | sgd   | 0.2   | @0:heavy=0.3 @150:clip=0 clip=1
clipping removed       | teacher deep        | sgd   | 0.3   | @150:clip=0 clip=0.3
"""

_DEVELOPMENT_SURVIVES = """
one bad batch          | teacher             | adamw | 0.002 | @150-151:inputs=30
one bad batch          | classes             | adamw | 0.002 | @150-151:inputs=30
one bad batch          | pictures            | adamw | 0.002 | @120-121:inputs=30 @200-201:inputs=50
one bad batch          | recurrent gru       | adamw | 0.002 | @150-151:targets=30
one bad batch          | language            | adamw | 0.003 | @120-121:rate=20 steps=240
bad stretch, clipped   | teacher             | sgd   | 0.02  | @150-165:targets=10 clip=1
bad stretch, clipped   | classes             | sgd   | 0.05  | @150-165:inputs=10 clip=1
plateau, then a drop   | parity              | adamw | 0.002 |
plateau, then a drop   | linear small        | sgd   | 0.2   | steps=400
plateau, then a drop   | recurrent gru       | adamw | 0.003 | steps=400
plateau, then a drop   | parity              | sgd   | 0.1   | steps=400
edge of stability      | linear              | sgd   | 0.3   |
edge of stability      | linear              | sgd   | 0.4   |
edge of stability      | classes             | sgd   | 0.8   |
warm restarts          | teacher             | adamw | 0.005 | restarts=100
warm restarts          | classes             | sgd   | 0.3   | restarts=100
warm restarts          | language            | adamw | 0.005 | restarts=80 steps=240
warm restarts          | pictures            | sgd   | 0.05  | restarts=100 momentum=0.9
curriculum             | teacher             | adamw | 0.002 | @150:hard=1
curriculum             | classes             | adamw | 0.003 | @150:hard=1
curriculum             | language            | adamw | 0.003 | @120:hard=1 steps=240
curriculum             | pictures            | adamw | 0.002 | @150:hard=1
large stable gradients | teacher             | adamw | 0.002 | @0:loss=1000
large stable gradients | language            | adamw | 0.002 | @100:loss=100 steps=240
large stable gradients | classes             | adamw | 0.002 | @150:loss=64
heavy-tailed targets   | teacher             | adamw | 0.001 | @0:heavy=0.3
heavy-tailed targets   | teacher             | adamw | 0.002 | @0:heavy=1 clip=1
high rate, clipped     | language            | adamw | 0.01  | warm-up=30 clip=0.5 steps=240
high rate, clipped     | recurrent relu      | sgd   | 0.02  | clip=0.1
high rate              | teacher             | adamw | 0.05  |
high rate              | classes             | adamw | 0.03  |
rate rises, not far    | teacher             | sgd   | 0.005 | ramp=10
rate rises, not far    | language            | adamw | 0.001 | ramp=20 steps=240
no qk-norm, low rate   | language            | adamw | 0.01  | warm-up=60 steps=240
momentum that swings   | teacher             | sgd   | 0.003 | momentum=0.99
momentum that swings   | classes             | sgd   | 0.005 | momentum=0.99
batch cut, low rate    | teacher             | adamw | 0.001 | @150:batch=2
batch cut, low rate    | classes             | sgd   | 0.02  | @150:batch=1
rate dropped           | teacher             | sgd   | 0.05  | drop=150
rate dropped           | pictures            | adamw | 0.01  | drop=150 batch=4
first steps explode    | recurrent relu      | sgd   | 0.03  |
"""

_HELD_OUT_DIVERGES = """
rate rises too far     | teacher             | adamw | 0.001 | ramp=1000
rate rises too far     | classes             | adam  | 0.002 | ramp=600
rate rises too far     | pictures batch-norm | sgd   | 0.01  | ramp=1000 momentum=0.9
rate rises too far     | language post-norm  | adamw | 0.001 | ramp=400 steps=240
rate rises too far     | language qk-norm    | adamw | 0.002 | ramp=300 steps=240
rate rises too far     | parity              | sgd   | 0.1   | ramp=100 steps=400 at=200
rate rises too far     | linear              | sgd   | 0.08  | ramp=30 steps=400
rate rises slowly      | teacher deep        | sgd   | 0.02  | ramp=50 steps=500
rate rises slowly      | pictures            | sgd   | 0.05  | ramp=40 steps=500
rate rises slowly      | linear              | sgd   | 0.2   | ramp=8 steps=500
peak after warm-up     | language qk-norm    | adamw | 0.3   | warm-up=120 steps=240
peak after warm-up     | classes             | sgd   | 5     | warm-up=200
peak after warm-up     | teacher deep        | sgd   | 0.8   | warm-up=120
peak after warm-up     | linear              | sgd   | 2     | warm-up=200
no qk-norm             | language post-norm  | adamw | 0.15  | warm-up=120 steps=240
no qk-norm             | language post-norm  | adam  | 0.12  | warm-up=80 steps=240
no qk-norm             | language            | adamw | 0.4   | warm-up=180 steps=240
bfloat16               | pictures            | sgd   | 0.05  | ramp=60 half_precision=1
bfloat16               | teacher deep        | sgd   | 0.02  | ramp=80 half_precision=1
weight decay           | classes             | adamw | 0.005 | @150:weight_decay=-5
weight decay           | pictures            | adamw | 0.01  | @120:weight_decay=-4
weight decay           | teacher             | sgd   | 0.05  | @150:weight_decay=-0.8
weight decay           | teacher             | adamw | 0.01  | @150:weight_decay=30
outlier data           | teacher             | sgd   | 0.04  | @180-200:inputs=12
outlier data           | pictures            | sgd   | 0.04  | @130-150:inputs=40 momentum=0.9
outlier data           | teacher deep        | sgd   | 0.05  | @150-190:targets=50
second moment          | classes             | adamw | 0.05  | @150:beta2=0.05
second moment          | teacher             | adamw | 0.03  | @180:beta2=0.2
second moment          | language            | adamw | 0.04  | @120:beta2=0.05 steps=240
momentum               | teacher deep        | sgd   | 0.05  | @150:momentum=0.99
momentum               | classes             | sgd   | 0.2   | @180:momentum=0.99
momentum               | parity              | sgd   | 0.2   | @200:momentum=0.995 steps=400
batch cut              | teacher deep        | sgd   | 0.15  | @150:batch=1 batch=64
summed loss            | classes             | sgd   | 0.1   | @180:loss=64
clipping removed       | teacher             | sgd   | 0.3   | @0:heavy=0.3 @170:clip=0 clip=1
rate jumps             | teacher             | sgd   | 0.02  | @150:rate=15
rate jumps             | classes             | adamw | 0.003 | @150:rate=150
rate jumps             | language            | adamw | 0.003 | @120:rate=120 steps=240
targets change scale   | teacher             | sgd   | 0.05  | @150:targets=20
variance head          | variance            | sgd   | 0.03  | ramp=60 steps=400
variance head          | variance            | sgd   | 0.05  | @150-160:targets=8
weights disturbed      | teacher             | sgd   | 0.1   | @150-151:noise=2
"""

_HELD_OUT_SURVIVES = """
one bad batch          | teacher deep        | adamw | 0.003 | @170-171:inputs=20
one bad batch          | language            | adamw | 0.005 | @130-131:rate=10 steps=240
one bad batch          | classes             | sgd   | 0.05  | @150-151:inputs=5
one bad batch | pictures batch-norm | adamw | 0.003 | @150-151:inputs=100 @220-221:inputs=100
one bad batch          | parity              | adamw | 0.002 | @150-151:targets=40
bad stretch, clipped   | teacher deep        | sgd   | 0.03  | @130-150:targets=8 clip=1
bad stretch, clipped   | pictures            | sgd   | 0.05  | @150-170:inputs=8 clip=0.5
plateau, then a drop   | parity              | adamw | 0.001 | steps=400
plateau, then a drop   | linear small        | sgd   | 0.3   | steps=400
plateau, then a drop   | recurrent gru       | adamw | 0.005 | steps=400
plateau, then a drop   | recurrent           | adamw | 0.003 | steps=400
plateau, then a drop   | parity              | adam  | 0.004 | @180:hard=1 steps=500
edge of stability      | linear              | sgd   | 0.35  |
edge of stability      | linear              | sgd   | 0.25  | steps=500
edge of stability      | classes             | sgd   | 0.6   | steps=400
edge of stability      | teacher             | sgd   | 0.08  | batch=128
warm restarts          | teacher deep        | adamw | 0.005 | restarts=60
warm restarts          | language post-norm  | adamw | 0.008 | restarts=80 steps=240
warm restarts          | classes             | adamw | 0.02  | restarts=75
warm restarts          | parity              | adamw | 0.005 | restarts=100 steps=400
curriculum             | teacher deep        | adamw | 0.003 | @120:hard=1
curriculum             | classes             | sgd   | 0.2   | @150:hard=1
curriculum             | language qk-norm    | adamw | 0.004 | @130:hard=1 steps=240
curriculum             | recurrent gru       | adamw | 0.005 | @150:hard=1
large stable gradients | pictures            | adamw | 0.002 | @100:loss=500
large stable gradients | teacher             | adamw | 0.003 | @0:targets=100
large stable gradients | parity              | adamw | 0.002 | @120:loss=200
heavy-tailed targets   | teacher             | adamw | 0.002 | @0:heavy=0.5
heavy-tailed targets   | teacher deep        | sgd   | 0.02  | @0:heavy=0.5 clip=0.5
high rate, clipped     | language post-norm  | adamw | 0.01  | warm-up=40 clip=0.3 steps=240
high rate              | teacher deep        | adamw | 0.02  |
high rate              | pictures            | adamw | 0.02  |
high rate              | classes             | adamw | 0.05  |
rate rises, not far    | classes             | sgd   | 0.02  | ramp=15
rate rises, not far    | language            | adamw | 0.001 | ramp=10 steps=240
no qk-norm, low rate   | language            | adamw | 0.02  | warm-up=80 steps=240
momentum that swings   | pictures            | sgd   | 0.005 | momentum=0.99
batch cut, low rate    | teacher deep        | adamw | 0.001 | @150:batch=1
rate dropped           | classes             | adamw | 0.03  | drop=150 batch=4
rate jumps, not far    | language            | adamw | 0.002 | @120:rate=5 steps=240
rate jumps, not far    | teacher             | sgd   | 0.01  | @150:rate=4
moments lost           | language            | adamw | 0.005 | @120-121:reset=0 steps=240
moments lost           | teacher             | adamw | 0.01  | @150-151:reset=0
weights disturbed      | classes             | adamw | 0.005 | @150-151:noise=0.5
weights disturbed      | pictures            | adamw | 0.005 | @150-151:noise=0.7
bfloat16               | teacher             | adamw | 0.005 | half_precision=1
bfloat16               | classes             | sgd   | 0.1   | half_precision=1
"""

_CHANGE = re.compile(r"@(\d+)(?:-(\d+))?:(\w+)=(\S+)")
_FIELDS = {field.name: str(field.type) for field in fields(Setting)}


_SCHEDULES = {"ramp": "top", "warm-up": "warm_up", "restarts": "at", "drop": "at"}
"""The number that belongs to a schedule."""


def _typed(word: list[str]) -> tuple[str, Any]:
    name, text = word
    kind = _FIELDS[_SCHEDULES.get(name, name)]
    if kind == "bool":
        return name, text == "1"
    return name, int(text) if kind == "int" else float(text) if kind == "float" else text


def _rows(table: str, half: str, expected: str) -> Iterator[dict[str, Any]]:
    for line in table.strip().splitlines():
        family, model, optimizer, rate, others = (part.strip() for part in line.split("|"))
        task, _, form = model.partition(" ")
        words = [word.split("=") for word in _CHANGE.sub("", others).split()]
        words += [["schedule", name] for name, _ in words if name in _SCHEDULES]
        changes = [
            (int(begin), int(end or END), what, float(value))
            for begin, end, what, value in _CHANGE.findall(others)
        ]
        yield {
            "family": family, "half": half, "expected": expected, "task": task, "form": form,
            "optimizer": optimizer, "rate": float(rate), "changes": tuple(changes),
            **{_SCHEDULES.get(name, name): value for name, value in map(_typed, words)},
        }  # fmt: skip


def settings() -> list[Setting]:
    """All trainings. Seeds differ, so that no two see the same data."""
    rows = [
        *_rows(_DEVELOPMENT_DIVERGES, DEVELOPMENT, DIVERGES),
        *_rows(_DEVELOPMENT_SURVIVES, DEVELOPMENT, SURVIVES),
        *_rows(_HELD_OUT_DIVERGES, HELD_OUT, DIVERGES),
        *_rows(_HELD_OUT_SURVIVES, HELD_OUT, SURVIVES),
    ]
    return [Setting(**row, seed=seed) for seed, row in enumerate(rows)]
