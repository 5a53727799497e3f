"""Looking a line up in the user's own source, where nothing has told which line it was."""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Iterable
from typing import Any

from holdfast.preflight.scene import Scene
from holdfast.torch_tools.places import Place, is_installed, with_function

_MEANT = re.compile(r"freez|frozen|stage|phase|thaw|lock|requires_grad|schedule|curriculum", re.I)
_TIMED = re.compile(r"epoch|step|iter|stage|phase", re.I)


def find_line(scene: Scene, pattern: str) -> dict[str, Any] | None:
    """The first line of the user's running files that matches, as facts carry a place."""
    wanted = re.compile(pattern)
    for file in users_files(scene):
        for number, text in enumerate(linecache.getlines(file), start=1):
            if wanted.search(text.partition("#")[0]):
                return with_function(Place(file, number)).to_dict()
    return None


def users_files(scene: Scene) -> list[str]:
    """The user's files that run now, innermost first."""
    files = (frame.f_code.co_filename for frame in scene.frames())
    return list(dict.fromkeys(file for file in files if not is_installed(file)))


def meant_by_name(functions: Iterable[str]) -> bool:
    """Whether a function that runs is there to freeze or to unfreeze."""
    return any(_MEANT.search(name) for name in functions)


def under_a_condition_on_time(file: str, line: int) -> bool:
    """Whether a line stands under an `if` that asks for an epoch or a step."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return False
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    return any(_TIMED.search(ast.unparse(node.test)) for node in around)
