"""Keras' progress bar: `32/32 [====] - 1s 2ms/step - loss: 0.5 - accuracy: 0.8` under `Epoch 3/10`.

Every number is the mean over the epoch so far, and the last redraw of a bar is the epoch's; the
redraws before it are the same mean, unfinished, and are left out.
"""

from __future__ import annotations

import re
from pathlib import Path

from headway.sources.log.console import Dialect, Rows, recognised, signal
from headway.sources.log.console_lines import lines_of, unlabelled
from headway.sources.log.counters import ABSENT, LARGEST_EPOCH
from headway.sources.log.key_values import number, pairs
from headway.sources.log.log import Log
from headway.sources.log.sample import Sample
from headway.sources.log.shapes import whole

FORMAT = "keras"
SAYS = "Keras progress bars"
_BAR = re.compile(
    r"(?P<step>\d{1,9})/(?P<of>\d{1,9}) (?:\[[=>.]{5,60}\]|[━╸╺][━╸╺ ]{2,60})\s{0,2}-?\s?"
    r".{0,60}?(?=\w+: )"
)
_EPOCH = re.compile(r"^Epoch (\d{1,9})/(\d{1,9})\s*$")
_DIALECT = Dialect(FORMAT, row=_BAR)


def recognise(sample: Sample) -> float:
    return recognised(_DIALECT, sample)


def read(path: Path) -> Log:
    rows = Rows(FORMAT, path)
    epoch = ABSENT
    last: dict[str, float] = {}
    at = ABSENT
    for plain in lines_of(path):
        rows.lines += 1
        line, _ = unlabelled(plain)
        head = _EPOCH.match(line)
        if head:
            if last:
                rows.add(last, at, ABSENT, ABSENT)
                last = {}
            epoch = whole(number(head[1]), LARGEST_EPOCH)
            continue
        bar = _BAR.search(line)
        if bar is None:
            rows.tell(line)
            continue
        rows.used += 1
        values = rows.values(pairs(line[bar.end() :], rows.units))
        if values:
            last, at = values, epoch
    if last:
        rows.add(last, at, ABSENT, ABSENT)
    log = rows.log()
    signal(log, r"^(?!val_)", fold="mean", span=1)
    return log
