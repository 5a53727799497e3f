"""What a script of the held-out set says about itself: where its bad number is born, and how.

The scripts are plain training loops. Nothing here touches them: `expect` only writes down what a
person who reads the script would answer.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import headway

Script = Callable[[str], headway.Guard]

MARK = "# born here"


@dataclass(frozen=True)
class Expected:
    """The answer to one script."""

    words: tuple[str, ...]
    """All of them stand in the explanation; alternatives are joined by `|`."""
    op: tuple[str, ...]
    """Any of these names is right."""
    module: str | None = ""
    """Path of the module; a path below it is right too. None: not asked."""
    samples: tuple[int, ...] | None = ()
    """Rows of the batch; none: no row is to be blamed, or every one. None: not asked."""
    step: int = 2
    called_from: bool = False
    """There is a line `# called here` that must be named too."""
    data_set: tuple[int, ...] | None = None
    """The data set's own numbers of those rows."""
    batch: int | None = None
    """Which of the micro-batches of the step."""
    component: str | None = None
    cure: bool = True
    """Something can be tried that cures the step."""


EXPECTED: dict[str, tuple[Script, Expected]] = {}
HEALTHY: dict[str, Script] = {}


def expect(
    words: str,
    op: str,
    module: str | None = "",
    *,
    samples: tuple[int, ...] | None = (),
    **more: object,
) -> Callable[[Script], Script]:
    """Write down what the explanation of a script must say."""
    expected = Expected(tuple(words.split()), tuple(op.split("|")), module, samples, **more)  # type: ignore[arg-type]

    def keep(script: Script) -> Script:
        EXPECTED[script.__name__] = (script, expected)
        return script

    return keep


def healthy(script: Script) -> Script:
    """A script in which nothing goes wrong, whatever it looks like."""
    HEALTHY[script.__name__] = script
    return script


def marked(script: Script, mark: str = MARK) -> tuple[str, int]:
    """File and line of a script's mark, in its own file or in a library beside it."""
    own = Path(inspect.getfile(script))
    wanted = f"{mark}: {script.__name__}"
    for path in (own, *sorted(own.parent.glob("*.py"))):
        for number, text in enumerate(path.read_text().splitlines(), 1):
            if text.rstrip().endswith(wanted):  # beside the line, or alone above it
                return str(path), number + (text.strip() == wanted)
    raise LookupError(wanted)
