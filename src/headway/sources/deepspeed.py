"""DeepSpeed: `step=10, skipped=2, lr=[0.001], mom=[(0.9, 0.999)]`, and whatever the script prints.

DeepSpeed's own lines hold no loss, so the lines around them are read too, as those of any log.
`skipped` counts from the beginning, and is turned into what was skipped since the line before.
Overflows are told in lines of their own.
"""

from __future__ import annotations

import re
from array import array
from pathlib import Path

import numpy as np

from headway.sources.log.console import Dialect, recognised, signal
from headway.sources.log.free_form import read_free
from headway.sources.log.log import Log
from headway.sources.log.sample import Sample

FORMAT = "deepspeed"
SAYS = "DeepSpeed console log"
_DIALECT = Dialect(FORMAT, row=re.compile(r"\bstep=\d{1,15}, skipped=\d{1,15}, lr=\["))


def recognise(sample: Sample) -> float:
    return recognised(_DIALECT, sample) * 0.6  # a trainer that runs on top of it knows more


def read(path: Path) -> Log:
    log = read_free(path, FORMAT)
    skipped = log.table.series.get("skipped")
    if skipped is not None and len(skipped):
        since = np.diff(skipped.numbers(), prepend=0.0)
        # Where it falls, the run began anew.
        skipped.values = array("d", np.where(since < 0, skipped.numbers(), since).tolist())
        signal(log, r"^skipped$", fold="sum")
    return log
