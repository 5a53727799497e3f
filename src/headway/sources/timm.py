"""timm: `Train: 0 [  50/1251 (  4%)]  Loss: 6.93 (6.94)  Time: … LR: 1.000e-05  Data: …`.

The first number is this step's, the one in brackets the mean over the epoch so far.
"""

from __future__ import annotations

import re
from pathlib import Path

from headway.sources.log.console import Dialect, collect, recognised
from headway.sources.log.log import Log
from headway.sources.log.sample import Sample

FORMAT = "timm"
SAYS = "timm console log"
_DIALECT = Dialect(
    FORMAT,
    row=re.compile(
        r"\bTrain: (?P<epoch>\d{1,9}) \[\s{0,8}(?P<step>\d{1,15})/(?P<of>\d{1,15})\s{1,4}"
        r"\(\s{0,3}\d{1,3}%\)\](?=\s)"
    ),
    first_epoch=0,
    evaluation=re.compile(r"^Test(?: \(EMA\))?: \[\s{0,8}\d{1,15}/\d{1,15}\](?=\s)"),
)


def recognise(sample: Sample) -> float:
    return recognised(_DIALECT, sample)


def read(path: Path) -> Log:
    return collect(_DIALECT, path)
