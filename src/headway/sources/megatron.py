"""Megatron-LM (and its forks): ` iteration  10/ 100 | consumed samples: … | lm loss: 1.07E+01 | …`.

A loss is the mean over the iterations since the last line. With a loss scale, iterations that were
skipped are left out of it, so a NaN does not show: the line counts them instead.
"""

from __future__ import annotations

import re
from pathlib import Path

from headway.sources.log.console import Dialect, collect, recognised, signal
from headway.sources.log.log import Log
from headway.sources.log.sample import Sample

FORMAT = "megatron"
SAYS = "Megatron-LM console log"
_DIALECT = Dialect(
    FORMAT,
    row=re.compile(
        r"\biteration\s{1,10}(?P<step>\d{1,15})/\s{0,10}(?P<of>\d{1,15})\s\|(?=\s(?:consumed|elapsed))"
    ),
    evaluation=re.compile(
        r"\b(?:validation|test) loss at iteration (?P<step>\d{1,15})(?=[^|]{0,40}\|)"
    ),
    marker=re.compile(
        r"-{5,} (?:end of )?arguments -{5,}|setting number of micro-batches to constant"
    ),
)


def recognise(sample: Sample) -> float:
    return recognised(_DIALECT, sample)


def read(path: Path) -> Log:
    log = collect(_DIALECT, path)
    scale = log.table.series.get("loss scale")
    scaled = scale is not None and bool((scale.numbers() > 1).any())
    signal(log, r"\bloss$", fold="mean", nonfinite="filtered" if scaled else "kept", scope="global")
    signal(log, r"^(?:number of|skipped)", fold="sum")
    signal(log, r"^(?:grad norm|params norm|loss scale)$", scope="global")
    return log
