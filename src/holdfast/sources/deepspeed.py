"""DeepSpeed: `step=10, skipped=2, lr=[0.001], mom=[(0.9, 0.999)]`, and whatever the script prints.

DeepSpeed's own lines hold no loss, so the lines around them are read too, as those of any log.
`skipped` counts from the beginning. Overflows are told in lines of their own.
"""

from __future__ import annotations

import re
from pathlib import Path

from holdfast.sources.log.console import Dialect, recognised
from holdfast.sources.log.free_form import read_free
from holdfast.sources.log.log import Log
from holdfast.sources.log.sample import Sample

FORMAT = "deepspeed"
SAYS = "DeepSpeed console log"
_DIALECT = Dialect(FORMAT, row=re.compile(r"\bstep=\d{1,15}, skipped=\d{1,15}, lr=\["))


def recognise(sample: Sample) -> float:
    return recognised(_DIALECT, sample) * 0.6  # a trainer that runs on top of it knows more


def read(path: Path) -> Log:
    return read_free(path, FORMAT)
