"""torchvision's references (and DETR, DeiT, MAE, DINO …, which took its MetricLogger):
`Epoch: [0]  [ 10/235]  eta: …  lr: 0.01  loss: 2.3 (2.4)  time: …  max mem: 1234`.

The first number is the median of the last twenty steps, the one in brackets the epoch's mean.
"""

from __future__ import annotations

import re
from pathlib import Path

from headway.sources.log.console import Dialect, collect, recognised, signal
from headway.sources.log.log import Log
from headway.sources.log.sample import Sample

FORMAT = "torchvision"
SAYS = "torchvision references console log"
_DIALECT = Dialect(
    FORMAT,
    row=re.compile(
        r"\bEpoch: \[(?P<epoch>\d{1,9})(?:/\d{1,9})?\]\s{1,4}"
        r"\[\s{0,9}(?P<step>\d{1,15})/(?P<of>\d{1,15})\]"
        r"(?=\s{1,4}eta:)"
    ),
    first_epoch=0,
    evaluation=re.compile(
        r"^(?:Test|Val|Eval)\w{0,10}:\s{1,4}\[\s{0,9}\d{1,15}/\d{1,15}\](?=\s{1,4}eta:)"
    ),
)


def recognise(sample: Sample) -> float:
    return recognised(_DIALECT, sample)


def read(path: Path) -> Log:
    log = collect(_DIALECT, path)
    signal(log, r"^(?!eval/).*(?:loss|norm)", fold="mean", span=20)
    return log
