"""Files are short, folders are small, and no name has two meanings: see CONTRIBUTING.md."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import headway

PACKAGE = Path(str(headway.__file__)).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
MAX_LINES = 400
MAX_MODULES = 25
IN_SEVERAL_PARTS = {
    "__init__", "__main__", "_shared", "base",  # what a name of Python or of a family stands for
    "deepspeed", "mlflow", "tensorboard", "trackio", "wandb",  # a tool that several parts deal with
    "check", "diagnose", "export", "report", "scan", "watch",  # a command, and what it runs
}  # fmt: skip


def test_files_are_short() -> None:
    lengths = {str(path): path.read_text(encoding="utf-8").count("\n") for path in MODULES}
    assert {path: lines for path, lines in lengths.items() if lines > MAX_LINES} == {}


def test_folders_are_small() -> None:
    counts = Counter(str(path.parent) for path in MODULES if path.stem != "__init__")
    assert {folder: count for folder, count in counts.items() if count > MAX_MODULES} == {}


def test_module_names_are_unique() -> None:
    names = Counter(path.stem for path in MODULES if path.stem not in IN_SEVERAL_PARTS)
    assert [name for name, count in names.items() if count > 1] == []
