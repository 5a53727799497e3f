"""How many faults `headway check --fix` removes, and whether it leaves healthy scripts alone.

    python benchmarks/fixes.py                       # all scripts of corpus/fixes
    python benchmarks/fixes.py --kind numbers --json found.json
    python benchmarks/fixes.py --only softmax

Each script is copied to a folder of its own and fixed by `headway check --fix --unsafe`, in real
processes. Counted is how many get an edit that a fresh run confirmed, and in how many of these the
finding is gone when the written file is checked once more. The healthy version of each script goes
through the same command and must keep its bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = ROOT / "corpus/fixes"


def headway(*words: str, cwd: Path) -> dict[str, Any]:
    """The JSON of a command; empty if there is none."""
    done = subprocess.run(
        [sys.executable, "-m", "headway", *words],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        found: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        return {}
    return found


def measure(entry: dict[str, Any], *, healthy: bool, again: bool) -> dict[str, Any]:
    """The outcome of one script."""
    source = (SCRIPTS / entry["file"]).read_text(encoding="utf-8")
    steps = ("--max-steps", str(entry["steps"]))
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / entry["file"]
        script.write_text(source, encoding="utf-8")
        fix = ("check", "--fix", "--unsafe", "--format", "json", *steps, script.name)
        report = headway(*fix, cwd=script.parent)
        kept = [item["code"] for item in report.get("fixes", ()) if item["kept"]]
        found: dict[str, Any] = {
            "file": entry["file"],
            "kind": entry["kind"],
            "findings": sorted({item["code"] for item in report.get("findings", ())}),
            "fixed": kept if report.get("written") else [],
            "why": [item["why"] for item in report.get("fixes", ()) if not item["kept"]][:2],
        }
        if found["fixed"] and again:
            later = headway("check", "--format", "json", *steps, script.name, cwd=script.parent)
            codes = {item["code"] for item in later.get("findings", ())}
            found["gone"] = bool(later) and not codes & set(kept)
        if healthy:
            for old, new in entry["healthy"]:
                source = source.replace(old, new)
            script.write_text(source, encoding="utf-8")
            headway(*fix, cwd=script.parent)
            found["healthy_unchanged"] = script.read_text(encoding="utf-8") == source
    return found


def summary(rows: list[dict[str, Any]]) -> dict[str, list[int]]:
    def count(name: str, of: list[dict[str, Any]]) -> list[int]:
        asked = [row for row in of if name == "fixed" or name in row]
        return [sum(bool(row[name]) for row in asked), len(asked)]

    kinds = {
        kind: [row for row in rows if row["kind"] == kind] for kind in ("numbers", "mechanical")
    }
    return {
        "bad numbers with a confirmed fix": count("fixed", kinds["numbers"]),
        "mechanical faults with a confirmed fix": count("fixed", kinds["mechanical"]),
        "gone when checked again": count("gone", rows),
        "healthy scripts unchanged": count("healthy_unchanged", rows),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=["numbers", "mechanical"])
    parser.add_argument("--only", default="", help="part of a file's name")
    parser.add_argument("--no-healthy", action="store_true")
    parser.add_argument("--no-again", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    entries = tomllib.loads((SCRIPTS / "manifest.toml").read_text(encoding="utf-8"))["script"]
    rows = []
    for entry in entries:
        if args.kind in (None, entry["kind"]) and args.only in entry["file"]:
            row = measure(entry, healthy=not args.no_healthy, again=not args.no_again)
            rows.append(row)
            print(json.dumps(row), flush=True)
            if args.json:  # written as it grows: the whole set takes long
                args.json.write_text(json.dumps(_record(rows), indent=2) + "\n", encoding="utf-8")
    for name, (right, of) in summary(rows).items():
        print(f"{name}: {right} of {of}")


def _record(rows: list[dict[str, Any]]) -> dict[str, Any]:
    from importlib.metadata import version

    return {
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "torch": version("torch"),
        "hardware": f"{platform.machine()}, {os.cpu_count()} cores",
        **summary(rows),
        "scripts": rows,
    }


if __name__ == "__main__":
    main()
