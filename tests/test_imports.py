"""What importing brings in: reading a log needs no torch and no numpy.

`benchmarks/startup.py` measures how long it takes.
"""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest

import headway
from headway.core.records import Header, StepRecord
from headway.core.signals import Signal
from headway.rundir.writer import RunDirWriter

HEAVY = (
    *("torch", "numpy", "pandas", "lightning", "transformers", "matplotlib"),
    *("tensorboard", "wandb", "mlflow", "trackio"),
)
WATCH = f"""
import sys

class Watch:
    # Sees every import that is tried, also of a package that is not installed.
    tried = []

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {HEAVY!r}:
            self.tried.append(name)

sys.meta_path.insert(0, Watch())
"""
TORCH_FREE = [
    "headway",
    "headway.config",
    "headway.diagnosis",
    "headway.engine",
    "headway.errors",
    "headway.policy",
    "headway.registry",
    "headway.report",
    "headway.rundir.writer",
    "headway.rundir.run_reader",
    *(
        f"headway.{folder.replace('/', '.')}.{path.stem}"
        for folder in ("core", "output/trackers")
        for path in sorted((Path(headway.__file__).parent / folder).glob("[a-z]*.py"))
    ),
]


NEED_TORCH = ("AdaGC", "Guard", "Snapshots", "ZClip", "checkpoint_activations", "preflight")


def python(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def heavy_imports(program: str) -> str:
    return python(f"{WATCH}\n{program}\nprint(sorted(set(Watch.tried)))")


def test_the_watch_sees_an_import_even_of_what_is_not_installed() -> None:
    assert heavy_imports("try: import pandas.core\nexcept ImportError: pass") != "[]"


def test_importing_the_torch_free_half_tries_neither_torch_nor_numpy() -> None:
    assert heavy_imports(f"import {', '.join(TORCH_FREE)}") == "[]"


def test_using_the_public_names_tries_neither_torch_nor_numpy() -> None:
    names = [name for name in headway.__all__ if name not in NEED_TORCH]
    assert heavy_imports(f"from headway import {', '.join(names)}") == "[]"


def test_diagnosing_a_run_tries_neither_torch_nor_numpy(tmp_path: Path) -> None:
    writer = RunDirWriter(tmp_path, notify=pytest.fail)
    writer.write(Header("headway", signals={"loss": Signal(), "grad_norm": Signal()}))
    for seq in range(1, 60):
        loss = math.nan if seq == 40 else 1.0
        writer.write(StepRecord(0, seq, seq, {"loss": loss, "grad_norm": 1.0}))
    writer.flush()
    program = (
        "import headway\n"
        f"report = headway.diagnose({str(tmp_path)!r})\n"
        "assert 'HD101' in [item.code for item in report.findings], report.findings\n"
        "report.to_json()"
    )
    assert heavy_imports(program) == "[]"


def test_every_check_can_be_imported_without_torch_or_numpy() -> None:
    assert heavy_imports("from headway import registry\nassert registry.all_checks()") == "[]"


@pytest.mark.parametrize("name", ["accelerate", "deepspeed", "lightning", "ray", "transformers"])
def test_an_adapter_without_torch_says_what_is_missing(name: str) -> None:
    said = python(
        "import sys\n"
        "class NoTorch:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'torch':\n"
        "            raise ModuleNotFoundError(name, name=name)\n"
        "sys.meta_path.insert(0, NoTorch())\n"
        f"try:\n    import headway.integrations.{name}\n"
        "except ImportError as error:\n    print(error)\n"
    )
    assert said.strip() == (
        "headway.integrations needs torch, which is not installed: pip install 'headway[torch]'"
    )
