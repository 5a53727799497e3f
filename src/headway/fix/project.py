"""The files that may be edited: their contents, diffs, writing and restoring."""

from __future__ import annotations

import difflib
import hashlib
import os
import shutil
import site
import sysconfig
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from headway.core.findings import SourceEdit
from headway.torch_adapters.source import SourceFile

Contents = Mapping[str, bytes]
"""New contents by absolute path."""


class EditRefused(Exception):
    """An edit that must not be made; the message says why."""


class Project:
    """The user's files: those below the repository or the folder of the script."""

    def __init__(self, script: Path, *, since: float | None = None) -> None:
        """`since`: the time at which the run began that proposed the edits, if it was now."""
        self.root = _find_root(script)
        self._since = since

    def edited(self, edits: Iterable[SourceEdit], current: Contents) -> dict[str, bytes]:
        """The contents after these edits of the current ones. Raises EditRefused."""
        by_file: dict[str, list[SourceEdit]] = {}
        for edit in edits:
            by_file.setdefault(os.path.realpath(edit.file), []).append(edit)
        return {path: self._edited_file(path, those, current) for path, those in by_file.items()}

    def _edited_file(self, path: str, edits: list[SourceEdit], current: Contents) -> bytes:
        self._require_own(path)
        content = current[path] if path in current else self._read(path)
        digest = hashlib.sha256(content).hexdigest()
        if any(edit.sha256 != digest for edit in edits):
            raise EditRefused(f"{path} has changed since it was read")
        try:
            file = SourceFile(path, content)
            spans = [(edit.start, edit.end, edit.new) for edit in edits]
            changed = file.replaced(spans).encode(file.encoding)
            SourceFile(path, changed)  # must still be Python
        except (SyntaxError, ValueError) as error:
            raise EditRefused(f"{path} cannot be edited: {error}") from error
        return changed

    def _read(self, path: str) -> bytes:
        try:
            changed = self._since is not None and os.stat(path).st_mtime > self._since
            content = Path(path).read_bytes()
        except OSError as error:
            raise EditRefused(f"{path} cannot be read: {error.strerror}") from error
        if changed:
            raise EditRefused(f"{path} has changed since the script started")
        return content

    def _require_own(self, path: str) -> None:
        if not Path(path).is_relative_to(self.root):
            raise EditRefused(f"{path} is outside of the project {self.root}")
        if is_installed(path):
            raise EditRefused(f"{path} belongs to an installed package")
        if not os.access(path, os.W_OK):
            raise EditRefused(f"{path} is not writable")

    def diff_between(self, old: Contents, new: Contents) -> str:
        """The unified diff between two sets of contents; files that `old` lacks are on disk."""
        pairs = [
            (path, old[path] if path in old else Path(path).read_bytes(), content)
            for path, content in sorted(new.items())
        ]
        return "".join(_diff(Path(path), one, other) for path, one, other in pairs)


class WrittenFiles:
    """Writes contents to disk; `restore` puts back what was there."""

    def __init__(self, contents: Contents) -> None:
        self._new = dict(contents)
        self._old: dict[str, bytes] = {}

    def write(self) -> None:
        for path, content in self._new.items():
            self._old[path] = Path(path).read_bytes()
            _write_atomically(path, content)

    def restore(self) -> list[str]:
        """Put the old bytes back; returns the files that changed in the meantime."""
        foreign = []
        for path, content in self._old.items():
            if Path(path).read_bytes() == self._new[path]:
                _write_atomically(path, content)
            else:
                foreign.append(path)
        self._old = {}
        return foreign


def is_installed(path: str) -> bool:
    """Whether a file belongs to Python or to an installed package."""
    if {"site-packages", "dist-packages"} & set(Path(path).parts):
        return True
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    folders = [sysconfig.get_paths()[name] for name in names] + site.getsitepackages()
    return any(Path(path).is_relative_to(os.path.realpath(folder)) for folder in folders)


def _find_root(script: Path) -> Path:
    folder = Path(os.path.realpath(script)).parent
    for parent in (folder, *folder.parents):
        if (parent / ".git").exists() or (parent / ".hg").exists():
            return parent
    here = Path(os.path.realpath(os.curdir))
    # A script in a folder below the working directory may import files beside that folder.
    return here if folder.is_relative_to(here) and here != Path(here.anchor) else folder


def _diff(path: Path, old: bytes, new: bytes) -> str:
    old_text, new_text = (_lines(str(path), content) for content in (old, new))
    name = os.path.relpath(path)
    shown = path.as_posix() if name.startswith(os.pardir) else Path(name).as_posix()
    found = difflib.unified_diff(old_text, new_text, f"a/{shown}", f"b/{shown}")
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in found
    )


def _lines(path: str, content: bytes) -> list[str]:
    return SourceFile(path, content).text.splitlines(keepends=True)


def _write_atomically(path: str, content: bytes) -> None:
    """A reader sees the old file or the new one, and a kill leaves one of them."""
    number, temporary = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".headway-")
    try:
        with os.fdopen(number, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        shutil.copymode(path, temporary)
        os.replace(temporary, path)
    except BaseException:  # Ctrl-C too: no temporary file stays in the project
        os.unlink(temporary)
        raise
