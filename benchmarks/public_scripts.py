"""`headway check` and `headway run` over public training scripts, unmodified.

    make test-public PUBLIC=~/clones                 # every script of the manifest
    python benchmarks/public_scripts.py ~/clones --only mnist
    python benchmarks/public_scripts.py ~/clones --manifest mine.toml --json found.json

`~/clones` holds clones of the repositories, as `owner/name`, `owner+name/repo` (bare) or `name`.
`corpus/public/scripts.toml` lists repository, commit, script, arguments, and who makes the data;
the code itself is not stored here. Each script is checked out at its commit and runs three times:
plain, under `run`, and under `check`. It is unharmed if it ends with the same status and prints
the same (for a script without a seed, numbers may differ). A finding of `check` at warning or above
is known if the manifest lists it; otherwise it needs to be inspected: it is a false alarm, or a
defect of the script that was not known.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from _public_data import MAKERS

ROOT = Path(__file__).resolve().parents[1]
STAND_INS = ROOT / "benchmarks" / "stand_ins"
MANIFEST = ROOT / "corpus" / "public" / "scripts.toml"
LIMIT_S = 240
TIMES = re.compile(
    r"[\d.]+ ?(ms|s|sec|seconds)\b|(ms/batch|time:?|SPS:|took) +[\d.]+|\d+m \d+|\d+:\d+ min"
    r"|[\d/-]+[ T]\d+:\d+:\d+[,\d]*|\w*(runtime|per_second)\W+[\d.:]+|/tmp/[^\s'\"]+"
)


@dataclass(frozen=True)
class Script:
    """A public script, and its known findings."""

    repository: str
    commit: str
    script: str
    folder: str = ""
    """Working directory; its own folder if empty."""
    copy: tuple[str, ...] = ()
    """Folders of the repository that it needs; its own if empty."""
    arguments: tuple[str, ...] = ()
    data: tuple[tuple[str, str], ...] = ()
    """Data makers and the folders they write to, relative to where it is started."""
    steps: int = 20
    seeded: bool = True
    """False: it draws random numbers that no seed controls, or prints the time."""
    path: tuple[str, ...] = ()
    """Folders of the repository on PYTHONPATH."""
    needs: tuple[str, ...] = ()
    """Packages besides torch and NumPy that it imports, and that have no stand-in."""
    stand_ins: tuple[str, ...] = ()
    """Modules of `benchmarks/stand_ins` for packages that may not be installed."""
    environment: tuple[tuple[str, str], ...] = ()
    ranks: int = 1
    """More than one: started by torchrun."""
    seconds: int = 0
    """Not 0: the script has no argument that makes it short, and is stopped after this time."""
    findings: tuple[str, ...] = ()
    """Codes that are right about this script."""
    why: str = ""


def read_manifest(path: Path) -> list[Script]:
    try:
        import tomllib
    except ModuleNotFoundError:  # Python 3.10
        import tomli as tomllib  # type: ignore[no-redef]
    found = []
    for item in tomllib.loads(path.read_text(encoding="utf-8"))["script"]:
        lists = {k: tuple(v) for k, v in item.items() if isinstance(v, list)}
        for name in ("data", "environment"):
            lists[name] = tuple((who, where) for who, where in item.get(name, ()))
        found.append(Script(**{**item, **lists}))
    return found


def clone_of(clones: Path, repository: str) -> Path | None:
    owner, name = repository.split("/")
    for place in (clones / owner / name, clones / f"{owner}+{name}" / "repo", clones / name):
        if place.is_dir():
            return place
    return None


def copy_out(clone: Path, item: Script, to: Path) -> str:
    """Check out the files that a script needs; returns an error message, or ""."""
    inside = item.copy or (str(Path(item.script).parent),)
    listed = _git(clone, "ls-tree", "-r", "--name-only", item.commit, "--", *inside)
    if listed.returncode or not listed.stdout:
        return f"commit {item.commit[:12]} or its files are not in the clone"
    for name in listed.stdout.decode().splitlines():
        shown = _git(clone, "show", f"{item.commit}:{name}")
        if shown.returncode == 0:  # a partial clone may lack large files of data
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            (to / name).write_bytes(shown.stdout)
    return "" if (to / item.script).is_file() else f"{item.script} is not in the clone"


def _git(clone: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    command = ["git", "-C", str(clone), *arguments]
    return subprocess.run(command, capture_output=True, check=False)


def run_script(item: Script, checkout: Path, *before: str) -> tuple[int | None, str, str]:
    """Exit status (None: too slow), stdout and stderr."""
    start = checkout / (item.folder or str(Path(item.script).parent))
    for who, where in item.data:
        MAKERS[who](start / where)
    started = subprocess.Popen(
        _command(item, checkout, before),
        cwd=start,
        env=_environment(item, checkout),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    stop = item.seconds if "check" not in before else 0
    try:
        out, err = started.communicate(timeout=stop or LIMIT_S)
        status: int | None = started.returncode
    except subprocess.TimeoutExpired:
        os.killpg(started.pid, signal.SIGKILL)
        out, err = started.communicate()
        status = 0 if stop else None
    return status, out.decode(errors="replace"), err.decode(errors="replace")


def _command(item: Script, checkout: Path, before: tuple[str, ...]) -> list[str]:
    command = [sys.executable]
    if item.ranks > 1:
        command += ["-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", str(item.ranks)]
    command += before
    if "check" in before:
        command += ["--max-steps", str(item.steps), "--format", "json"]
    command.append(str(checkout / item.script))
    return [*command, *(["--"] if before else []), *item.arguments]


def _environment(item: Script, checkout: Path) -> dict[str, str]:
    """With stand-ins for the packages that are not installed."""
    stand_ins = checkout.parent / "stand_ins"
    stand_ins.mkdir(exist_ok=True)
    for name in ("sitecustomize", *item.stand_ins):
        if name == "sitecustomize" or not importlib.util.find_spec(name):
            shutil.copy(STAND_INS / f"{name}.py", stand_ins)
    path = [ROOT / "src", *(checkout / folder for folder in item.path), stand_ins]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, path)),
        "PYTHONUNBUFFERED": "1",
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
        "MPLBACKEND": "Agg",
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(checkout.parent / "home"),
        "CUDA_VISIBLE_DEVICES": "",
        **dict(item.environment),
    }


def unharmed(item: Script, plain: tuple[int | None, str], guarded: tuple[int | None, str]) -> bool:
    """The same status, and every line of the plain run in the same order."""
    return plain[0] == guarded[0] and first_missing(item, plain[1], guarded[1]) is None


def first_missing(item: Script, plain: str, guarded: str) -> str | None:
    """The first line of the plain run that the guarded run does not print.

    Of scripts that are stopped by the clock, as many lines as both have. The lines of several
    ranks come in any order.
    """
    wanted = _comparable(plain, item)
    seen = _comparable(guarded, item)
    if item.seconds:
        own = [line for line in seen if not line.startswith("headway")]
        if not own and wanted:
            return wanted[0]
        wanted = wanted[: max(min(len(wanted), len(own)) - 1, 0)]
    if item.ranks > 1:
        wanted, seen = sorted(wanted), sorted(seen)
    lines = iter(seen)
    return next((line for line in wanted if line not in lines), None)


def _comparable(text: str, item: Script) -> list[str]:
    text = TIMES.sub("TIME", text)
    if not item.seeded:
        text = re.sub(r"[-+]?\d[\d.e+-]*", "N", text)
    return [
        line for line in text.replace("\r", "\n").splitlines() if "mfu" not in line.split()[-1:]
    ]


def judge(item: Script, clones: Path) -> dict[str, Any]:
    """One script: whether it is unharmed, and the findings of `check`."""
    row: dict[str, Any] = {
        "repository": item.repository,
        "commit": item.commit,
        "script": item.script,
    }
    clone = clone_of(clones, item.repository)
    if clone is None:
        return {**row, "state": "no clone"}
    lacking = [package for package in item.needs if not importlib.util.find_spec(package)]
    if lacking:
        return {**row, "state": f"needs {', '.join(lacking)}"}
    with tempfile.TemporaryDirectory() as folder:
        outcomes = []
        for number, before in enumerate(((), ("-m", "headway", "run"), ("-m", "headway", "check"))):
            checkout = Path(folder) / str(number) / "checkout"
            problem = copy_out(clone, item, checkout)
            if problem:
                return {**row, "state": problem}
            outcomes.append(run_script(item, checkout, *before))
            if outcomes[0][0] != 0:
                return {**row, "state": f"does not run here: {outcomes[0][2].strip()[-200:]}"}
    plain, guarded, checked = outcomes
    if checked[0] is None or "{" not in checked[1]:
        return {**row, "state": f"check gave no report: {checked[2][-200:]}"}
    report = json.loads(checked[1][checked[1].index("{") :])
    whole = unharmed(item, plain[:2], guarded[:2])
    loud = [f for f in report["findings"] if f["severity"] != "info"]
    return {
        **row,
        "state": "ran",
        "unharmed": whole,
        **({} if whole else _harm(item, plain, guarded)),
        "lines": len(_comparable(plain[1], item)),
        "equal numbers": unharmed(replace(item, seeded=True), plain[:2], guarded[:2]),
        "known": sorted({f["code"] for f in loud if f["code"] in item.findings}),
        "missed": sorted(set(item.findings) - {f["code"] for f in loud}),
        "to look at": [
            f"{f['code']} {f['where']['line']} {f['message']}"
            for f in loud
            if f["code"] not in item.findings
        ],
        "coverage": report["coverage"],
    }


def _harm(
    item: Script, plain: tuple[int | None, str, str], guarded: tuple[int | None, str, str]
) -> dict[str, Any]:
    missing = first_missing(item, plain[1], guarded[1])
    return {"statuses": [plain[0], guarded[0]], "missing": missing, "stderr": guarded[2][-600:]}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("clones", type=Path, nargs="?", help="folder with the repositories")
    parser.add_argument("--manifest", type=Path, default=MANIFEST)
    parser.add_argument("--only", default="", help="part of a repository's or script's name")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    scripts = [s for s in read_manifest(args.manifest) if args.only in f"{s.repository}/{s.script}"]
    if args.clones is None:
        names = sorted({script.repository for script in scripts})
        print("no clones given: make test-public PUBLIC=FOLDER, with clones of", ", ".join(names))
        return
    rows = []
    for item in scripts:
        rows.append(judge(item, args.clones.resolve()))
        print(_told(rows[-1]), flush=True)
        if args.json:
            args.json.write_text(json.dumps(_record(rows), indent=1) + "\n", encoding="utf-8")
    ran = [row for row in rows if row["state"] == "ran"]
    alarmed = [row for row in ran if row["to look at"]]
    print(
        f"\n{len(ran)} of {len(rows)} scripts ran; {sum(r['unharmed'] for r in ran)} unharmed,"
        f" {sum(r['equal numbers'] for r in ran)} of them with equal numbers;"
        f" {sum(len(r['known']) for r in ran)} known findings;"
        f" {len(alarmed)} scripts with findings to look at"
    )
    sys.exit(any(not row["unharmed"] for row in ran))


def _record(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "torch": version("torch"),
        "headway": version("headway"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, CPU only",
        "scripts": rows,
    }


def _told(row: dict[str, Any]) -> str:
    place = f"{row['repository']} {row['script']}"
    if row["state"] != "ran":
        return f"{place}: {row['state']}"
    equal = "equal numbers" if row["equal numbers"] else "other numbers"
    parts = [
        f"unharmed, {equal}" if row["unharmed"] else f"HARMED {row['statuses']} {row['missing']!r}"
    ]
    parts += [f"known {code}" for code in row["known"]]
    parts += [f"not found {code}" for code in row["missed"]]
    parts += [f"look at {text[:150]}" for text in row["to look at"]]
    return f"{place}: {'; '.join(parts)}"


if __name__ == "__main__":
    main()
