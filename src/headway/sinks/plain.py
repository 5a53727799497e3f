"""Text from strangers, made safe to print.

Parameter names, paths and messages come from other people's files. Printed as they are, an escape
sequence in one of them could recolour the terminal, move the cursor or rewrite lines already shown.
"""

from __future__ import annotations

import re
import unicodedata

_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours, cursor movements
    r"|\x1b[\]PX^_].*?(?:\x07|\x1b\\|$)"  # window titles, links
    r"|\x1b.?",
    re.S,
)
_UNSEEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Control characters, invisible ones (text direction among them), halves of characters."""


def clean(text: object) -> str:
    """The text on one line, without escape sequences, control and invisible characters."""
    bare = _ESCAPES.sub("", str(text))
    if bare.isascii() and bare.isprintable():
        return bare
    spaced = re.sub(r"[\t\n\v\f\r\x85\u2028\u2029]+", " ", bare)
    return "".join(mark for mark in spaced if unicodedata.category(mark) not in _UNSEEN)
