"""Writes the two files of a new check: `make new-check CODE=HD150 NAME=repeated-loss`.

The check is complete and its cases pass: it reports a loss above a limit. Replace the rule, the
page in the docstring and the cases.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

FAMILIES = {
    "0": "setup",
    "1": "loss",
    "2": "gradients",
    "3": "weights",
    "4": "optimizer",
    "5": "data",
    "6": "ranks",
    "7": "checkpoints",
    "8": "resources",
    "9": "setup",
}
"""The folder of a check by the first digit of its code."""

CHECK = '''\
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headway.core.check import Check, Needs
from headway.core.findings import Finding
from headway.core.numbers import say
from headway.core.records import StepRecord


class {title}(Check):
    """One sentence: what is wrong with the run.

    ## What it checks
    The signals or facts that are read.

    ## Why it matters
    What the fault costs if nobody notices it.

    ## How it is measured
    The rule, with its numbers.

    ## False alarms
    Healthy runs that look like this fault, and why they pass.

    ## What to do
    The first thing to look at, then the change that repairs it.

    ## References
    None.
    """

    code = "{code}"
    name = "{name}"
    summary = "one line for lists"
    needs = Needs(signals=("loss",))
    explains = ()

    @dataclass(frozen=True)
    class Limits(Check.Limits):
        highest: float = 10.0
        """The largest loss that passes."""

    def observe(self, record: StepRecord) -> Iterable[Finding]:
        loss = record.values.get("loss")
        if loss is not None and loss > self.limits.highest:
            yield self.find(
                record,
                f"loss is {{say(loss)}} (limit {{say(self.limits.highest)}})",
                remedies=["Say what to change."],
                loss=loss,
                limit=self.limits.highest,
            )
'''

CASES = """\
# {code} {name}

## The loss is above the limit at one step

```records
loss: 2.0*20, 11, 2.0*20
```

```findings
{code} warning @21 "limit 10"
```

## A noisy loss below the limit is quiet

```records
loss: 5..1~0.05*60
```

```findings
```
"""


def write_check(root: Path, code: str, name: str) -> list[Path]:
    """Write both files below `root`; raises ValueError if the code or the name cannot be used."""
    if not re.fullmatch(r"HD\d{3}", code):
        raise ValueError(f"CODE is HD and three digits, such as HD150: got {code!r}")
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        raise ValueError(f"NAME is lower-case words joined by hyphens: got {name!r}")
    checks = root / "src" / "headway" / "checks"
    used = sorted(path.name for path in checks.rglob(f"{code.lower()}_*.py"))
    if used:
        raise ValueError(f"{code} exists: {used[0]}; a code is never reused")
    stem = f"{code.lower()}_{name.replace('-', '_')}"
    words = {"code": code, "name": name, "title": name.title().replace("-", "")}
    files = {
        checks / FAMILIES[code[2]] / f"{stem}.py": CHECK,
        root / "tests" / "checks" / f"{stem}.md": CASES,
    }
    for path, template in files.items():
        path.write_text(template.format(**words), encoding="utf-8")
    return list(files)


def main(arguments: list[str]) -> int:
    """Write the files below the working directory, and say which."""
    if len(arguments) != 2:
        print("usage: make new-check CODE=HD150 NAME=repeated-loss", file=sys.stderr)
        return 2
    try:
        written = write_check(Path.cwd(), *arguments)
    except ValueError as error:
        print(f"new-check: {error}", file=sys.stderr)
        return 2
    for path in written:
        print(f"wrote {path.relative_to(Path.cwd())}")
    stem = written[0].stem.partition("_")[0]
    print(f"now edit both, then: .venv/bin/pytest tests/checks -k '{stem} or conformance'")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
