"""detectron2: `iter: 19  total_loss: 9.2  loss_cls: 4.5  …  lr: 1.9e-05  max_mem: 2350M`.

A loss is the median of the last twenty iterations.
"""

from __future__ import annotations

import re
from pathlib import Path

from headway.sources.log.console import Dialect, collect, recognised, signal
from headway.sources.log.log import Log
from headway.sources.log.sample import Sample

FORMAT = "detectron2"
SAYS = "detectron2 console log"
_DIALECT = Dialect(
    FORMAT,
    row=re.compile(r"(?:^|\s)iter: (?P<step>\d{1,15})\s\s(?=total_loss: )"),
)


def recognise(sample: Sample) -> float:
    return recognised(_DIALECT, sample)


def read(path: Path) -> Log:
    log = collect(_DIALECT, path)
    signal(log, r"loss", fold="mean", span=20)
    return log
