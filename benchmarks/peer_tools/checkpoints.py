"""Saved files under the three tools that read them: found, missed, false alarms, and speed.

    python checkpoints.py [--megabytes 500] [--rounds 2]     # rows of JSON

A tool "spoke" if it prints a finding at warning or above, or reports that the file cannot be read.
weightlens always exits with 0, so its output is parsed.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
sys.path.insert(0, str(HERE.parents[1] / "src"))

import torch  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

from peer_tools import files  # noqa: E402


def headway_scan(path: Path) -> list[str]:
    import headway

    try:
        report = headway.scan(str(path))
    except headway.HeadwayError as error:
        return [f"unreadable: {error}".replace(str(path), path.name)[:120]]
    return [item.code for item in report.findings if item.severity.name != "INFO"]


def weightlens(path: Path) -> list[str]:
    from rich.console import Console
    from weightlens.cli import run_cli

    told = io.StringIO()
    console = Console(file=told, width=200, no_color=True)
    code = run_cli(["analyze", str(path)], console=console)
    text = told.getvalue()
    found = re.findall(r"^\s+(?:warn|error)\s+([\w-]+)", text, re.MULTILINE)
    return list(dict.fromkeys(found)) or ([f"exit {code}"] if code else [])


def picklescan(path: Path, strict: bool = False) -> list[str]:
    from picklescan.scanner import scan_file_path

    logging.getLogger("picklescan").setLevel(logging.CRITICAL)
    try:
        result = scan_file_path(str(path), strict=strict)
    except Exception as error:
        return [f"exit 2: {type(error).__name__}"]  # as its command line answers
    if result.issues_count:
        return [f"{g.module}.{g.name}" for g in result.globals if g.safety.value == "dangerous"]
    return ["scan failed"] if result.scan_err else []


READERS: dict[str, Callable[[Path], list[str]]] = {
    "headway scan": headway_scan,
    "weightlens": weightlens,
    "picklescan": picklescan,
    "picklescan --strict": partial(picklescan, strict=True),
}
COMMANDS = {
    "headway scan": [sys.executable, "-m", "headway", "scan", "--fail-on", "never"],
    "weightlens": [str(Path(sys.executable).parent / "lens"), "analyze"],
    "picklescan": [str(Path(sys.executable).parent / "picklescan"), "-p"],
}


def big(folder: Path, megabytes: int) -> dict[str, Path]:
    torch.manual_seed(0)
    rows = megabytes * 1_000_000 // 4 // 1024 // 20
    state = {f"layers.{n}.weight": torch.randn(rows, 1024) * 0.02 for n in range(20)}
    torch.save(state, folder / "big.pt")
    save_file(state, folder / "big.safetensors")
    return {".pt": folder / "big.pt", ".safetensors": folder / "big.safetensors"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for kind, paths in files.write(folder / "files").items():
            for path in paths:
                for name, read in READERS.items():
                    row = {"part": "checkpoints", "tool": name, "kind": kind}
                    row["file"] = f"{kind}/{path.name}"
                    try:
                        with contextlib.redirect_stdout(io.StringIO()):
                            rules = read(path)
                        row.update(state="ran", spoke=bool(rules), rules=rules[:4])
                    except Exception as error:
                        why = f"{type(error).__name__}: {error}"[:200]
                        row.update(state="broke", spoke=False, rules=[], why=why)
                    print(json.dumps(row), file=out, flush=True)
        for ending, path in big(folder, args.megabytes).items():
            taken: dict[str, list[float]] = {name: [] for name in COMMANDS}
            wall: dict[str, list[float]] = {name: [] for name in COMMANDS}
            for _ in range(args.rounds):
                for name, command in COMMANDS.items():
                    before, began = os.times(), time.perf_counter()
                    subprocess.run([*command, str(path)], capture_output=True, check=False)
                    after = os.times()
                    wall[name].append(time.perf_counter() - began)
                    used = after.children_user - before.children_user
                    taken[name].append(used + after.children_system - before.children_system)
            for name in COMMANDS:
                seconds = statistics.median(taken[name])
                row = {
                    "part": "checkpoints",
                    "tool": name,
                    "kind": "speed",
                    "file": f"{args.megabytes} MB {ending}",
                    "state": "ran",
                    "seconds": round(seconds, 2),
                    "wall": round(statistics.median(wall[name]), 2),
                    "told": f"{seconds:.1f} s",
                }
                print(json.dumps(row), file=out, flush=True)


if __name__ == "__main__":
    main()
