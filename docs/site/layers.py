"""The layout of the package, drawn from the code: the import layers and what each part holds.

    python docs/site/layers.py     rewrites the drawn blocks of CONTRIBUTING.md

The architecture page gets the same blocks when the site is built.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "headway"
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
MARK = "<!-- import layers -->"
PARTS_MARK = "<!-- parts of the package -->"
END = "<!-- end of the drawn block -->"


def drawing() -> str:
    """The layers, top to bottom, as a fenced block."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    [layers] = [item["layers"] for item in contracts if item["id"] == "layers"]
    shown = [row.replace("headway.", "").replace("(", "").replace(")", "") for row in layers]
    return "\n".join(["```text", *shown, "```"])


def parts() -> str:
    """Every package and module directly below headway, with the first sentence of its docstring."""
    rows = ["| where | what it holds |", "|---|---|"]
    for path in sorted(PACKAGE.iterdir(), key=lambda path: (path.is_file(), path.name)):
        if path.is_dir() and (path / "__init__.py").is_file():
            rows.append(f"| `{path.name}/` | {_first_sentence(path / '__init__.py')} |")
        elif path.suffix == ".py" and not path.name.startswith("_"):
            rows.append(f"| `{path.name}` | {_first_sentence(path)} |")
    return "\n".join(rows)


def drawn(text: str) -> str:
    """A page with its drawn blocks as the code has them now."""
    for mark, block in ((PARTS_MARK, parts()), (MARK, drawing())):
        head, found, rest = text.partition(mark)
        if found:
            text = f"{head}{mark}\n\n{block}\n\n{END}{rest.partition(END)[2]}"
    return text


def _first_sentence(path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    paragraph = " ".join(docstring.split("\n\n")[0].split())
    return paragraph.partition(". ")[0].rstrip(".")


if __name__ == "__main__":
    CONTRIBUTING.write_text(drawn(CONTRIBUTING.read_text(encoding="utf-8")), encoding="utf-8")
