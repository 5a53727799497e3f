"""Links that lead out of docs/, to a benchmark or a source file: the site brings the file along.

Pages are also read on a code host, where `../benchmarks/origins.py` is right. In the site the file
is copied, as text, to `repository/benchmarks/origins.py.txt`; a folder becomes a page listing it.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLACE = "repository"
LARGEST = 400_000
AS_THEY_ARE = (".html", ".jpg", ".md", ".png", ".svg")
"""Files that a browser shows; all others are given as text."""
_LINK = re.compile(r"(?P<before>\]\()(?P<target>[^)#\s:]+)(?P<after>[)#])")


def targets(markdown: str, page: str) -> Iterator[str]:
    """The files and folders outside docs/ that a page links to, as paths from the root."""
    for match in _LINK.finditer(markdown):
        path = _from_root(match["target"], page)
        if path is not None and not _in_docs(path):
            yield path


def rewritten(markdown: str, page: str) -> str:
    """The page with such links leading to what the site brings along."""

    def lead(match: re.Match[str]) -> str:
        path = _from_root(match["target"], page)
        if path is None or (_in_docs(path) and not page.startswith(f"{PLACE}/")):
            return match[0]
        there = posixpath.relpath(place_of(path), posixpath.dirname(page) or ".")
        return f"{match['before']}{there}{match['after']}"

    return _LINK.sub(lead, markdown)


def place_of(path: str) -> str:
    """Where the site has a file or a folder of the repository."""
    if _in_docs(path):
        return path.removeprefix("docs/")
    if (ROOT / path).is_dir():
        return f"{PLACE}/{path}/{readme_of(path) or 'index.md'}"
    return f"{PLACE}/{path}" + ("" if path.endswith(AS_THEY_ARE) else ".txt")


def readme_of(path: str) -> str | None:
    """The page that a folder has about itself."""
    return "README.md" if (ROOT / path / "README.md").is_file() else None


def listing(path: str) -> str:
    """A page about a folder: its files, those that are text linked."""
    rows = [f"# {path}", "", "Files of the repository that these pages refer to.", ""]
    rows += [
        f"- [{name}]({posixpath.basename(place_of(f'{path}/{name}'))})" for name in files(path)
    ]
    return "\n".join(rows) + "\n"


def files(path: str) -> list[str]:
    """The files of a folder that are brought along: small and readable ones."""
    return sorted(
        item.name
        for item in (ROOT / path).iterdir()
        if item.is_file()
        and item.suffix in (".py", ".md", ".json", ".toml", ".txt", ".jsonl", ".csv")
        and item.stat().st_size < LARGEST
    )


def _in_docs(path: str) -> bool:
    return path.startswith("docs/")


def _from_root(target: str, page: str) -> str | None:
    """The path from the root of the repository; None where there is no such file."""
    here = page.removeprefix(f"{PLACE}/") if page.startswith(f"{PLACE}/") else f"docs/{page}"
    path = posixpath.normpath(posixpath.join(posixpath.dirname(here), target))
    return path if not path.startswith("..") and (ROOT / path).exists() else None
