"""mmengine (mmdet, mmseg, …): `Epoch(train)  [1][200/735]  lr: …  loss: …  grad_norm: nan`, or
`Iter(train) [  50/40000]  …`, and the older mmcv, `Epoch [1][200/735]  lr: …`.

A loss and a norm are means over the last ten iterations.
"""

from __future__ import annotations

import re
from pathlib import Path

from headway.sources.log.console import Dialect, collect, recognised, signal
from headway.sources.log.log import Log
from headway.sources.log.sample import Sample

FORMAT = "mmengine"
SAYS = "mmengine console log"
_OF = r"\[\s{0,9}(?P<{0}>\d{{1,15}})/(?P<{1}>\d{{1,15}})\]"
_DIALECT = Dialect(
    FORMAT,
    row=re.compile(
        r"\b(?:Epoch\(train\)|Epoch)\s{1,4}\[\s{0,6}(?P<epoch>\d{1,9})\]\[\s{0,9}(?P<step>\d{1,15})"
        r"/(?P<of>\d{1,15})\](?=\s{1,4}(?:base_)?lr:)"
        r"|\bIter(?:\(train\))? \[\s{0,9}(?P<iter>\d{1,15})/\d{1,15}\](?=\s{1,4}(?:base_)?lr:)"
    ),
    first_epoch=1,
    evaluation=re.compile(
        r"\b(?:Epoch|Iter)\(val\)\s{1,4}(?:\[\s{0,6}\d{1,9}\])?\[\s{0,9}\d{1,15}/\d{1,15}\](?=\s)"
    ),
    drop=frozenset({"eta"}),
)


def recognise(sample: Sample) -> float:
    return recognised(_DIALECT, sample)


def read(path: Path) -> Log:
    log = collect(_DIALECT, path)
    signal(log, r"^(?!eval/).*(?:loss|grad_norm)", fold="mean", span=10)
    return log
