"""nanoGPT: `iter 100: loss 3.2100, time 250.20ms, mfu 12.30%`, and every so often an evaluation,
`step 250: train loss 2.1000, val loss 2.2000`."""

from __future__ import annotations

import re
from pathlib import Path

from headway.sources.log.console import Dialect, collect, recognised
from headway.sources.log.log import Log
from headway.sources.log.sample import Sample

FORMAT = "nanogpt"
SAYS = "nanoGPT console log"
_DIALECT = Dialect(
    FORMAT,
    row=re.compile(r"^iter (?P<step>\d{1,15}): (?=loss )"),
    evaluation=re.compile(r"^step (?P<step>\d{1,15}): (?=train loss )"),
)


def recognise(sample: Sample) -> float:
    return recognised(_DIALECT, sample)


def read(path: Path) -> Log:
    return collect(_DIALECT, path)
