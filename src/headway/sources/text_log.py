"""Any log of `key: value`, `key=value` or `key value`, whoever printed it.

Recognised with little certainty: whoever knows the lines better goes first. Prose, source code,
settings, tables and JSON are no logs.
"""

from __future__ import annotations

import re
from pathlib import Path

from headway.sources.log.console import Rows
from headway.sources.log.console_lines import glimpse, is_text
from headway.sources.log.free_form import Reading, read_free, weight_of
from headway.sources.log.log import Log
from headway.sources.log.sample import Sample

FORMAT = "text"
SAYS = "text log of `key: value` or `key=value`"

_JSON = re.compile(r"^\s*(?:(?:\[\s?){0,20}\{\"|\"[^\"]{1,200}\"\s*:|[{}\[\]],?\s*$)")
_CODE = re.compile(
    r"^\s*(?:def |class |import |from \S+ import|return\b"
    r"|(?:if|for|while|with|elif)\b.*:\s*(?:#.*)?$"
    r"|else:|try:|@\w|#include|#!/|print\(|//|\}|[\w.]+ = [\w.]+\(|#|</?\w)"
)
_PROSE = re.compile(
    r"\b(?:the|and|was|we|for|after|with|that|this|which|it|is|to|of|our|are)\b", re.I
)


def recognise(sample: Sample) -> float:
    if not is_text(sample):
        return 0.0
    looked = [plain for plain, _ in glimpse(sample)]
    if not looked or sum(1 for line in looked if _JSON.match(line)) * 2 > len(looked):
        return 0.0
    reading = Reading(Rows(FORMAT, sample.path))
    rows = reading.rows
    sentences = 0
    for line in looked:
        used = rows.used
        reading.line(line)
        sentences += rows.used > used and len(_PROSE.findall(line)) >= 4
    reading.flush()
    if not len(rows) or sentences * 2 > rows.used:
        return 0.0
    code = sum(1 for line in looked if _CODE.match(line))
    often = max(reading.shapes.values(), default=0)
    share = rows.used / len(looked)
    if code > rows.used or (often < 2 and share < 0.3):
        return 0.0
    if not any(weight_of(name) for name in rows.table.series):
        return 0.0
    return 0.05 + 0.25 * min(share, 1.0)


def read(path: Path) -> Log:
    return read_free(path, FORMAT)
