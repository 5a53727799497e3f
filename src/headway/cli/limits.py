"""The limits of a check, with what its author wrote beneath each of them."""

from __future__ import annotations

import ast
import inspect
import textwrap
from dataclasses import MISSING, dataclass, fields
from itertools import pairwise
from typing import Any

from headway.core.check import Check


@dataclass(frozen=True)
class Limit:
    """A number the user may change."""

    name: str
    default: Any
    about: str


def limits_of(check: type[Check]) -> list[Limit]:
    """The limits in the order of the file."""
    about = _strings_beneath(check.Limits)
    return [
        Limit(
            item.name, None if item.default is MISSING else item.default, about.get(item.name, "")
        )
        for item in fields(check.Limits)
    ]


def _strings_beneath(limits: type) -> dict[str, str]:
    """Field → the string literal under it: Python drops those, the source has them."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(limits)))
    except (OSError, TypeError, SyntaxError):  # a package without sources
        return {}
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
    found = {}
    for field, below in pairwise(body):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
            and isinstance(below.value.value, str)
        ):
            found[field.target.id] = " ".join(below.value.value.split())
    return found
