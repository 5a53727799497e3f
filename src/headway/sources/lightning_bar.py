"""Lightning's progress bar: `Epoch 0:  50%|███  | 5/10 [00:01<00:01, 4.50it/s, loss=2.3]`.

A bar redraws itself; the step is epoch · length + batches done. Of several redraws at one count the
last is the one that was finished.
"""

from __future__ import annotations

import re
from pathlib import Path

from headway.sources.log.console import Dialect, Rows, recognised
from headway.sources.log.console_lines import lines_of, unlabelled
from headway.sources.log.counters import LARGEST, LARGEST_EPOCH
from headway.sources.log.key_values import number, pairs
from headway.sources.log.log import Log
from headway.sources.log.sample import Sample
from headway.sources.log.shapes import whole

FORMAT = "lightning-bar"
SAYS = "Lightning progress bars"
_BAR = re.compile(
    r"(?:Epoch|Training)\s?(?P<epoch>\d{0,9})(?:/\d{1,9})?:?\s{1,6}"
    r"(?:\d{1,3}%\|[^|]{0,200}\||[━╸╺ ]{3,200})"
    r"\s?(?P<step>\d{1,15})/(?P<of>\d{1,15})\s[^=\]]{0,80}?(?=\w[\w/ .-]{0,80}[=:])"
)
_DIALECT = Dialect(FORMAT, row=_BAR)


def recognise(sample: Sample) -> float:
    return recognised(_DIALECT, sample)


def read(path: Path) -> Log:
    rows = Rows(FORMAT, path)
    drawn: tuple[dict[str, float], int, int, int] | None = None
    for plain in lines_of(path):
        rows.lines += 1
        line, _ = unlabelled(plain)
        bar = _BAR.search(line)
        if bar is None:
            rows.tell(line)
            continue
        rows.used += 1
        values = rows.values(pairs(line[bar.end() :], rows.units))
        count = whole(number(bar["step"]), LARGEST)
        if not values or not count:
            continue  # a new bar shows the last epoch's numbers
        epoch = whole(number(bar["epoch"] or "0"), LARGEST_EPOCH)
        if (
            rows.counters.first_epoch is None
        ):  # Lightning counts from 0, a loop of one's own may not
            rows.counters.first_epoch = int(epoch == 1 and "%|" in line)
        if drawn is not None and drawn[1:3] != (epoch, count):
            rows.add(*drawn)
        drawn = (values, epoch, count, whole(number(bar["of"]), LARGEST))
    if drawn is not None:
        rows.add(*drawn)
    return rows.log()
