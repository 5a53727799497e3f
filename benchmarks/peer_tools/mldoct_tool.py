"""mldoct: `mldoctor check` over the script, and `mldoctor watch` over what the script prints.

The watchdog reads the lines of a script's output. The script runs once, in this process, and the
watchdog gets a script that prints the same lines, so that torch is not imported a second time.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from pathlib import Path
from typing import Any, ClassVar

from peer_tools.base import Alarm, Tool, codes

ALERTS = {
    "CRITICAL INSTABILITY DETECTED": "watch: nan",
    "Loss value exploded": "watch: divergence",
    "SMART EARLY STOPPING TRIGGERED": "watch: plateau",
    "CRITICAL VRAM LEAK": "watch: vram leak",
}


class Mldoct(Tool):
    name = "mldoct"
    package = "mldoct"
    reach = "four patterns in the source text; NaN and huge losses in printed lines"
    means: ClassVar[dict[str, frozenset[str]]] = {
        "missing_zero_grad": codes(206),
        "missing_eval": codes(903),
        "double_softmax": codes(110),
        "oom_leak": codes(801, 803),
        "watch: nan": codes(101),
        "watch: divergence": codes(104, 202),
        "watch: plateau": codes(105),
        "watch: vram leak": codes(802),
    }

    def preload(self) -> None:
        import mldoctor.linter
        import mldoctor.watchdog  # noqa: F401

    def run(self, script: str, steps: int, arguments: list[str]) -> tuple[list[Alarm], Any]:
        from mldoctor.linter import lint_script

        found = [
            Alarm(item["type"], item["message"], (item["line"],) if item["line"] else ())
            for item in lint_script(script)[0]
            # num_workers=0 is advice about speed, given for nearly every script
            if item["severity"] != "INFO" and item["type"] != "cpu_bottleneck"
        ]
        if "RANK" not in os.environ:
            found += self._watch(script, steps, arguments)
        return found, {}

    def _watch(self, script: str, steps: int, arguments: list[str]) -> list[Alarm]:
        from mldoctor import watchdog

        from peer_tools import watched

        printed = Path("printed.txt")
        with printed.open("w") as file:
            keep = os.dup(1)
            sys.stdout.flush()
            os.dup2(file.fileno(), 1)
            watched.run(Tool(), script, steps, arguments)
            sys.stdout.flush()
            os.dup2(keep, 1)
        again = Path("again.py")
        again.write_text(f"print(open({str(printed)!r}, errors='replace').read())")
        told = io.StringIO()
        watchdog.console.file = told
        with contextlib.redirect_stdout(io.StringIO()):
            watchdog.run_watchdog(str(again))
        text = told.getvalue()
        return [Alarm(rule, words) for words, rule in ALERTS.items() if words in text]


TOOL = Mldoct
