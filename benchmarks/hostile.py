"""Traps, archives, folders, special paths and ordinary checkpoints under `headway scan`.

    python benchmarks/hostile.py [--set 2] [--only TEXT] [-o FILE]

Each is scanned in a process of its own, which an audit hook watches: a command, a connection, a
write, or a file read outside of what was named counts as executed. Time is processor time without
the start of Python.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "src")]
LIMIT_S, LIMIT_BYTES = 10.0, 500 << 20
SPEAKS = ("not followed", "not judged", "outside the scanned", "cannot be read")

SERVER = """
import json, os, sys, time
import headway.cli.main, headway.postmortem.scan, zipfile, numpy
import importlib, pkgutil, headway.checkpoints, headway.checks, headway.cli
import headway.output

for package in (headway.checkpoints, headway.checks, headway.cli, headway.output):
    for found in pkgutil.walk_packages(package.__path__, package.__name__ + '.'):
        importlib.import_module(found.name)  # so that no scan has to

STARTED = ('os.system', 'os.exec', 'os.posix_spawn', 'os.spawn', 'os.fork', 'os.forkpty',
           'pty.spawn', 'subprocess.Popen', 'socket.connect', 'socket.bind', 'pickle.find_class',
           'os.remove', 'os.rename', 'os.mkdir', 'os.symlink', 'os.chmod', 'ctypes.dlopen')

def watch(root, case):
    seen = os.open(f'{root}/audit', os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def hook(event, args):
        if event in STARTED and args != (None,):
            os.write(seen, f'{event} {args!r:.200}\\n'.encode(errors='replace'))
        elif event == 'open' and isinstance(args[0], (str, bytes)):
            path = os.path.realpath(os.fsdecode(args[0]))
            writes = isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR)
            inside = path == case or path.startswith(case + os.sep)
            outside = path.startswith(('/etc/passwd', '/dev/', '/proc/', root)) and not inside
            if writes or outside:
                os.write(seen, f'open {path!r} {writes}\\n'.encode(errors='replace'))

    sys.addaudithook(hook)

for line in sys.stdin:
    root, case, limit, *words = json.loads(line)
    began = time.monotonic()
    pid = os.fork()
    if pid == 0:
        os.chdir(f'{root}/here')
        for number, name in ((0, '/dev/null'), (1, f'{root}/out'), (2, f'{root}/err')):
            os.dup2(os.open(name, os.O_RDWR | os.O_CREAT, 0o600), number)
        watch(root, case)
        code = 4
        try:
            headway.cli.main.cli(words)
        except SystemExit as ended:
            code = ended.code or 0
        except BaseException as error:
            os.write(2, f'Traceback: {error!r}'.encode(errors='replace'))
        finally:
            sys.stdout.flush(); sys.stderr.flush()
            os._exit(code)
    while True:
        done, status, usage = os.wait4(pid, os.WNOHANG)
        if done:
            break
        if time.monotonic() - began > limit:
            os.kill(pid, 9)
        time.sleep(0.005)
    took = usage.ru_utime + usage.ru_stime
    print(json.dumps([os.waitstatus_to_exitcode(status), time.monotonic() - began, took,
                      usage.ru_maxrss]), flush=True)
"""


class Server:
    """Forks one process per scan from one that has imported headway, and not torch."""

    def __init__(self) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )

    def scan(self, root: Path, case: Path, path: Path | str, *options: str) -> dict[str, Any]:
        here = root / "here"
        here.mkdir(exist_ok=True)
        for name in ("out", "err", "audit"):
            (root / name).unlink(missing_ok=True)
        words = [str(root), str(case), 6 * LIMIT_S, "scan", str(path), *options]
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(words), file=self.process.stdin, flush=True)
        code, seconds, cpu, peak = json.loads(self.process.stdout.readline())
        text = (root / "err").read_text(errors="replace")
        made = sorted(item.name for item in here.iterdir())
        return {
            "path": str(path),
            "exit": code,
            "seconds": round(seconds, 2),
            "cpu_s": round(cpu, 2),
            "peak_mb": peak >> 10,
            "executed": (root / "audit").read_text().splitlines() + made,
            "traceback": "Traceback" in text or "internal error" in text,
            "out": (root / "out").read_text(errors="replace"),
            "err": text,
        }


def judge(said: dict[str, Any], expected: str) -> tuple[bool, str]:
    """(as expected, what was said)."""
    try:
        report = json.loads(said["out"])
    except ValueError:
        report = {"findings": [], "sources": []}
    errors = [f for f in report["findings"] if f["severity"] == "error"]
    codes = sorted({f"{f['code']}-{f['severity']}" for f in report["findings"]})
    verdicts = sorted({item["verdict"] for item in report.get("sources", [])})
    summary = f"exit {said['exit']} {' '.join(codes)} [{', '.join(verdicts)}]"
    if said["traceback"] or said["exit"] not in (0, 1, 2):
        return False, summary
    if expected == "any":
        return True, summary
    if expected in ("refused", "fetched"):
        return said["exit"] == 2, summary
    if expected.startswith("unread "):  # read, or refused by the name of its format
        what = said["err"].replace(said["path"], "")  # not by the name of the file
        named = expected.partition(" ")[2].lower() in what.lower()
        return (said["exit"] == 2 and named) or (said["exit"] == 0 and not errors), summary
    if expected == "ordinary":
        return said["exit"] == 0 and not errors, summary
    if expected == "clean":
        return said["exit"] == 0 and verdicts == ["clean"] and not errors, summary
    notes = said["out"] + said["err"]
    speaks = said["exit"] in (1, 2) or bool(codes) or any(word in notes for word in SPEAKS)
    return speaks and (expected != "not clean" or "clean" not in verdicts), summary


def cases(number: int) -> Any:
    """(kind, name, expectation, function that makes it in a folder and returns the path)."""

    def file(name: str, data: Any) -> Any:
        def make(folder: Path) -> Path:
            (folder / name).write_bytes(data() if callable(data) else data)
            return folder / name

        return make

    def whole(write: Any) -> Any:
        def make(folder: Path) -> Path:
            write(folder)
            return folder

        return make

    if number == 2:
        from support import blind_folders, blind_ordinary, blind_streams, blind_traps

        traps, ordinary = blind_traps, blind_ordinary
        archives, folders = blind_streams.ARCHIVES, blind_folders.FOLDERS
        special = {
            name: (word, whole(make)) for name, (word, make) in blind_folders.SPECIAL.items()
        }
        absent: set[str] = set()
    else:
        from support import third_blind_files, third_blind_folders
        from support import third_blind_ordinary as ordinary  # type: ignore[no-redef]
        from support import third_blind_traps as traps  # type: ignore[no-redef]

        archives, folders = third_blind_files.FILES, third_blind_folders.FOLDERS
        special = third_blind_folders.PATHS
        needs = ordinary.NEEDS.items()  # type: ignore[attr-defined]
        absent = {name for name, package in needs if importlib.util.find_spec(package) is None}
    for name, data in traps.pickles():
        yield "traps", name, "not clean", file("x.pkl", data)
    for name, (called, expected, data) in archives.items():
        yield (
            "archives",
            name,
            "not clean" if expected == "spoken" else expected,
            file(called, data),
        )
    for name, (expected, make) in folders.items():
        yield "folders", name, expected, whole(make)
    for name, (expected, make) in special.items():
        yield "special paths", name, expected, make
    for name in (name for name in ordinary.ORDINARY if name not in absent):
        yield "ordinary", name, "ordinary", whole(lambda f, n=name: ordinary.write(f, n))


def library(path: Path | str) -> str:
    import safetensors

    try:
        with safetensors.safe_open(path, "numpy"):
            return "ordinary"
    except (safetensors.SafetensorError, OSError):
        return "not clean"


def run(number: int, only: str) -> list[dict[str, Any]]:
    rows = []
    server = Server()
    for kind, name, expected, make in cases(number):
        if only not in f"{kind}: {name}":
            continue
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as made:
            root = Path(made).resolve()
            folder = root / "case"
            folder.mkdir()
            path = make(folder)
            wanted = library(path) if expected == "library" else expected
            said = server.scan(root, folder, path, "--format", "json")
            right, summary = judge(said, wanted)
            if not right and wanted == "spoken":  # a note is in the text alone
                text = server.scan(root, folder, path)
                right = any(word in " ".join(text["out"].split()) for word in SPEAKS)
        if expected == "fetched":  # a URL that is named is opened, and copied to a folder
            said["executed"] = []
        bounded = said["cpu_s"] <= LIMIT_S and said["peak_mb"] <= LIMIT_BYTES >> 20
        row = {"kind": kind, "name": name, "expected": wanted, "right": right and bounded}
        row |= {
            "said": summary,
            **{k: said[k] for k in ("seconds", "cpu_s", "peak_mb", "executed")},
        }
        rows.append(row)
        if only or not row["right"] or said["executed"]:
            print(json.dumps(row), "\n   ", said["err"][-300:], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--set", type=int, choices=(2, 3), default=3, help="which blind set")
    parser.add_argument("--only", default="", help="cases whose kind and name contain this text")
    parser.add_argument("-o", "--out", type=Path)
    options = parser.parse_args()
    rows = run(options.set, options.only)
    kinds = Counter(row["kind"] for row in rows)
    summary = {
        kind: {
            "cases": count,
            "right": sum(row["right"] for row in rows if row["kind"] == kind),
            "executed": sum(bool(row["executed"]) for row in rows if row["kind"] == kind),
            "longest_cpu_s": max(row["cpu_s"] for row in rows if row["kind"] == kind),
            "largest_mb": max(row["peak_mb"] for row in rows if row["kind"] == kind),
        }
        for kind, count in kinds.items()
    }
    print(json.dumps(summary, indent=1))
    if options.out:
        record = {"date": time.strftime("%Y-%m-%d"), "hardware": platform.machine()}
        record |= {"python": platform.python_version(), "summary": summary, "rows": rows}
        options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
