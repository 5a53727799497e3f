"""headway itself: `headway check SCRIPT`, under the same rules as the other tools."""

from __future__ import annotations

import contextlib
import io
import json
import os
from pathlib import Path
from typing import Any

from peer_tools.base import Alarm, Tool


class Headway(Tool):
    name = "headway check"
    package = "headway"
    reach = "set-up, data, loss, gradients, weights, modes, precision, memory, ranks"

    def preload(self) -> None:
        from headway import registry
        from headway.preflight.observers import all_observers

        registry.all_checks(), all_observers()

    def run(self, script: str, steps: int, arguments: list[str]) -> tuple[list[Alarm], Any]:
        from headway.cli.main import cli

        told = io.StringIO()
        command = ["check", script, "--max-steps", str(steps), "--format", "json"]
        with contextlib.suppress(SystemExit), contextlib.redirect_stdout(told):
            cli.main([*command, "--", *arguments], prog_name="headway")
        text = told.getvalue()
        if os.environ.get("RANK", "0") != "0" and "{" not in text:
            return [], {}  # the first rank speaks for all
        report = json.loads(text[text.index("{") :])
        loud = [item for item in report["findings"] if item["severity"] != "info"]
        names = {item["code"] for item in loud}
        first = next((c["code"] for c in report["causes"] if c["code"] in names), None)
        found = []
        for item in loud:
            where = item["where"]
            here = where.get("file") and Path(where["file"]).name == Path(script).name
            lines = (where["line"],) if here and where["line"] else ()
            found.append(Alarm(item["code"], item["message"], lines))
        return found, {"first": first}


TOOL = Headway
