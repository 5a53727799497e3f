"""Ultralytics' console: a head (`Epoch  GPU_mem  box_loss  cls_loss  …`), and a bar for each epoch.

A bar redraws itself with the mean over the epoch so far; the last redraw is the epoch's.
"""

from __future__ import annotations

import re
from pathlib import Path

from headway.sources.log.console import Rows, signal
from headway.sources.log.console_lines import glimpse, is_text, lines_of
from headway.sources.log.counters import ABSENT, LARGEST_EPOCH
from headway.sources.log.key_values import Pair, number
from headway.sources.log.log import Log
from headway.sources.log.sample import Sample
from headway.sources.log.shapes import whole

FORMAT = "ultralytics-console"
SAYS = "Ultralytics console log"
_HEAD = re.compile(r"^\s*Epoch\s+(?:GPU_mem|gpu_mem)\s+(\S.*?)\s*$", re.IGNORECASE)
_CELL = r"[-+]?(?:\d{1,20}(?:\.\d{0,20})?(?:e[-+]?\d{1,4})?|nan|inf)"
_ROW = re.compile(
    rf"^\s*(\d{{1,9}})/(\d{{1,9}})\s+([\d.]{{1,20}})([KMG]?B?)\s+((?:{_CELL}\s+){{1,40}}{_CELL})(?::|\s*$)",
    re.I,
)
_ALL = re.compile(rf"^\s*all((?:\s+{_CELL}){{3,12}})\s*$", re.IGNORECASE)
_CLASS = re.compile(r"^\s*Class\s+Images\s+(\S.*?)\)?:?(?:\s+\d+%.*)?$")
_COUNTED = ("Instances", "Size", "labels", "img_size", "GPU_mem")


def recognise(sample: Sample) -> float:
    if not is_text(sample):
        return 0.0
    looked = glimpse(sample)
    head = any(_HEAD.match(line) for line, _ in looked)
    return 0.9 if head and any(_ROW.match(line) for line, _ in looked) else 0.0


def read(path: Path) -> Log:
    rows = Rows(FORMAT, path)
    names: list[str] = []
    classes: list[str] = []
    drawn: dict[str, float] = {}
    at = ABSENT
    for line in lines_of(path):
        rows.lines += 1
        head = _HEAD.match(line)
        if head:
            names = head[1].split()
            continue
        row = _ROW.match(line)
        if row and names:
            rows.used += 1
            epoch = whole(number(row[1]), LARGEST_EPOCH)
            if drawn and epoch != at:
                rows.add(drawn, at, ABSENT, ABSENT)
            at = epoch
            cells = row[5].split()
            found = [
                Pair(name, number(cell), None, True, cell, 0)
                for name, cell in zip(names, cells, strict=False)
                if name not in _COUNTED
            ]
            drawn = rows.values(found)
            drawn["GPU_mem"] = number(row[3]) if row[3].count(".") <= 1 and row[3] != "." else 0.0
            rows.units["GPU_mem"] = row[4] or "G"
            continue
        kind = _CLASS.match(line)
        if kind:
            classes = kind[1].replace("(P", "(P)").split()
            continue
        every = _ALL.match(line)
        if every and classes and drawn:
            rows.used += 1
            cells = every[1].split()[1:]
            found = [
                Pair(name, number(cell), None, True, cell, 0)
                for name, cell in zip(classes, cells, strict=False)
                if name not in _COUNTED
            ]
            drawn.update(rows.values(found, "eval/"))
            continue
        rows.tell(line)
    if drawn:
        rows.add(drawn, at, ABSENT, ABSENT)
    log = rows.log()
    signal(log, r"loss", fold="mean", span=1)
    return log
