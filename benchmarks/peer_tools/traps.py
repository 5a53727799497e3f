"""Our own traps and ordinary files under `headway scan` and three scanners of pickles.

    python benchmarks/peers.py --traps [--venv FOLDER]     # writes the table of docs/peers.md

The scanners read files; none of them loads one. Each runs in the environment of the peers, once,
over a folder of files:

    python traps.py TOOL FOLDER                            # JSON: the tool's verdict on each file
"""

from __future__ import annotations

import importlib.util
import json
import platform
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

CLEAN, SPOKE, REFUSED = "clean", "spoke", "refused"
BEGIN, END = "<!-- traps: written by peer_tools/traps.py -->", "<!-- end of traps -->"


def headway_scan(path: Path) -> str:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))
    import headway

    try:
        report = headway.scan(str(path))
    except headway.HeadwayError:
        return REFUSED
    codes = {item.code for item in report.findings}
    if "HD703" in codes:
        return SPOKE
    return REFUSED if report.verdict == "unknown" or codes else CLEAN


def picklescan(path: Path) -> str:
    from picklescan.scanner import scan_directory_path, scan_file_path

    result = (scan_directory_path if path.is_dir() else scan_file_path)(str(path))
    if result.infected_files or result.issues_count:
        return SPOKE
    return REFUSED if result.scan_err else CLEAN


def modelscan(path: Path) -> str:
    from modelscan.modelscan import ModelScan

    found = ModelScan().scan(str(path))
    if found["summary"]["total_issues"]:
        return SPOKE
    # A file that no scanner of it reads is skipped, which its report says.
    skipped = found["summary"].get("skipped", {}).get("total_skipped", 0)
    return REFUSED if found["errors"] or (skipped and not found["summary"]["scanned"]) else CLEAN


def fickling(path: Path) -> str:
    from fickling.analysis import Severity, check_safety
    from fickling.fickle import StackedPickle

    if path.is_dir():
        said = {fickling(item) for item in path.rglob("*") if item.is_file()}
        return next(one for one in (SPOKE, REFUSED, CLEAN) if one in said)
    worst = CLEAN
    for data in _pickles_of(path):
        try:
            for pickled in StackedPickle.load(data):
                if check_safety(pickled).severity > Severity.LIKELY_SAFE:
                    return SPOKE
        except Exception:  # it cannot read the file, and says so
            worst = REFUSED
    return worst


def _pickles_of(path: Path) -> list[bytes]:
    if not zipfile.is_zipfile(path):
        return [path.read_bytes()]
    with zipfile.ZipFile(path) as archive:
        return [archive.read(name) for name in archive.namelist() if name.endswith(".pkl")]


TOOLS: dict[str, Callable[[Path], str]] = {
    "headway scan": headway_scan,
    "picklescan": picklescan,
    "modelscan": modelscan,
    "fickling": fickling,
}


def answer(tool: str, folder: Path) -> dict[str, str]:
    """The verdicts of a tool on all files of a folder."""
    said = {}
    for path in sorted(folder.iterdir()):
        try:
            said[path.name] = TOOLS[tool](path)
        except Exception as error:  # of the tool
            said[path.name] = f"{REFUSED}: {type(error).__name__}"
    return said


def write_files(folder: Path) -> dict[str, list[str]]:
    """Traps as single pickles, the same trap in other files and folders, and ordinary files."""
    root = Path(__file__).resolve().parents[2]
    sys.path[:0] = [str(root / "tests"), str(root / "src"), str(root / "benchmarks")]
    from support import (
        blind_traps,
        hostile_files,
        pickle_traps,
        third_blind_ordinary,
        third_blind_traps,
    )

    from peer_tools import files

    names: dict[str, list[str]] = {"pickles": [], "files": [], "ordinary": []}
    for kind in names:
        (folder / kind).mkdir()
    third = [
        item for item in third_blind_traps.pickles() if item[0] not in third_blind_traps.COSTLY
    ]
    for number, (_, data) in enumerate([*pickle_traps.pickles(), *blind_traps.pickles(), *third]):
        names["pickles"].append(f"{number:03}.pkl")
        (folder / "pickles" / names["pickles"][-1]).write_bytes(data)
    names["files"] = [path.name for _, path in pickle_traps.files(folder / "files")]
    (folder / "files" / "good.pt").unlink()
    for number, (kind, (name, content)) in enumerate(hostile_files.FILES.items()):
        if kind not in hostile_files.NO_PICKLE:
            names["files"].append(f"{number:03}-{name}")
            (folder / "files" / names["files"][-1]).write_bytes(content())
    files.healthy(folder / "ordinary")
    for name in third_blind_ordinary.ORDINARY:
        needed = third_blind_ordinary.NEEDS.get(name)
        if needed is None or importlib.util.find_spec(needed) is not None:
            (made_in := folder / "ordinary" / name).mkdir()
            third_blind_ordinary.write(made_in, name)
    names["ordinary"] = [path.name for path in sorted((folder / "ordinary").iterdir())]
    return names


def run(python: Path, root: Path, results: Path) -> None:
    """Run all tools, and write the result and the table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        names = write_files(folder)
        said: dict[str, dict[str, dict[str, str]]] = {}
        versions = {}
        for tool in TOOLS:
            own = sys.executable if tool.startswith("headway") else str(python)
            said[tool] = {kind: _ask(own, tool, folder / kind) for kind in names}
            versions[tool] = _version(own, tool.split()[0])
    record = {
        "date": time.strftime("%Y-%m-%d"),
        "hardware": platform.machine(),
        "python": platform.python_version(),
        "versions": versions,
        "counts": {kind: len(items) for kind, items in names.items()},
        "said": said,
    }
    path = results / f"{record['date']}-traps.json"
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    made = table(record)
    print(made)
    page = root / "docs" / "peers.md"
    text = page.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    page.write_text(f"{before}{BEGIN}\n\n{made}\n\n{END}{rest.partition(END)[2]}", encoding="utf-8")


def _ask(python: str, tool: str, folder: Path) -> dict[str, str]:
    done = subprocess.run(
        [python, __file__, tool, str(folder)], capture_output=True, text=True, check=True
    )
    said: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return said


def _version(python: str, name: str) -> str:
    program = f"import importlib.metadata as m; print(m.version({name!r}))"
    done = subprocess.run([python, "-c", program], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def table(record: dict[str, Any]) -> str:
    lines = [
        "| tool | version | traps as single pickles | called clean | in files and folders"
        " | called clean | ordinary files: false alarms | refused |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for tool, said in record["said"].items():
        cells = [tool, record["versions"][tool]]
        for kind in ("pickles", "files"):
            verdicts = list(said[kind].values())
            cells += [f"{verdicts.count(SPOKE)} of {len(verdicts)}", str(verdicts.count(CLEAN))]
        ordinary = list(said["ordinary"].values())
        refused = sum(item.startswith(REFUSED) for item in ordinary)
        cells += [f"{ordinary.count(SPOKE)} of {len(ordinary)}", str(refused)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(json.dumps(answer(sys.argv[1], Path(sys.argv[2]))))
