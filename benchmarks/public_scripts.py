"""`headway check` and `headway run` over public training scripts, unmodified.

    make test-public PUBLIC=~/clones                 # every script of the manifest
    python benchmarks/public_scripts.py ~/clones --only mnist
    python benchmarks/public_scripts.py ~/clones --manifest mine.toml --json found.json

`~/clones` holds clones of the repositories, as `owner/name`, `owner+name/repo` (bare) or `name`.
`corpus/public/scripts.toml` lists repository, commit, script, arguments, and who makes the data;
the code itself is not stored here. Each script is copied out at its commit and runs three times:
plain, under `run`, and under `check`. It is unharmed if it ends with the same status and prints
the same (a script without a seed: the same but for the numbers). What `check` says at warning or
above is a known finding if the manifest lists it, otherwise it has to be looked at: a false alarm,
or a defect of the script that nobody had seen.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import pickle
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
STAND_INS = ROOT / "benchmarks" / "stand_ins"
MANIFEST = ROOT / "corpus" / "public" / "scripts.toml"
LIMIT_S = 240


def mnist(folder: Path) -> None:
    """MNIST's IDX files: each class is a bright block of its own place, 512 pictures and 128."""
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for start, count in (("train", 512), ("t10k", 128)):
        labels = rng.integers(0, 10, count).astype(np.uint8)
        pictures = rng.integers(0, 40, (count, 28, 28)).astype(np.uint8)
        for picture, label in zip(pictures, labels, strict=True):
            row, column = 9 * (label // 4), 7 * (label % 4)
            picture[row : row + 8, column : column + 6] += 180
        head = np.array([2051, count, 28, 28], dtype=">i4").tobytes()
        (raw / f"{start}-images-idx3-ubyte").write_bytes(head + pictures.tobytes())
        head = np.array([2049, count], dtype=">i4").tobytes()
        (raw / f"{start}-labels-idx1-ubyte").write_bytes(head + labels.tobytes())


def words(folder: Path) -> None:
    """`train.txt`, `valid.txt`, `test.txt`: a word follows the one before it, mostly."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for name, lines in (("train", 400), ("valid", 60), ("test", 60)):
        text = []
        for _ in range(lines):
            word, line = int(rng.integers(60)), []
            for _ in range(12):
                line.append(f"w{word}")
                word = (word * 7 + 3) % 60 if rng.random() < 0.9 else int(rng.integers(60))
            text.append(" " + " ".join(line) + " \n")
        (folder / f"{name}.txt").write_text("".join(text), encoding="utf-8")


def characters(folder: Path) -> None:
    """nanoGPT's `train.bin` and `val.bin` (uint16 ids) and `meta.pkl` (the vocabulary)."""
    folder.mkdir(parents=True, exist_ok=True)
    letters = "abcdefghijklmnopqrstuvwxyz \n"
    rng = np.random.default_rng(0)
    vocabulary = ["the", "loss", "falls", "and", "then", "rises", "again"]
    text = " ".join(rng.choice(vocabulary, 6000))
    ids = np.array([letters.index(letter) for letter in text], dtype=np.uint16)
    cut = len(ids) * 9 // 10
    ids[:cut].tofile(folder / "train.bin")
    ids[cut:].tofile(folder / "val.bin")
    forth = {letter: at for at, letter in enumerate(letters)}
    meta = {"vocab_size": len(letters), "stoi": forth, "itos": dict(enumerate(letters))}
    (folder / "meta.pkl").write_bytes(pickle.dumps(meta))


MAKERS: dict[str, Callable[[Path], None]] = {
    "mnist": mnist,
    "words": words,
    "characters": characters,
}


@dataclass(frozen=True)
class Script:
    """A public script, and what is known of it."""

    repository: str
    commit: str
    script: str
    folder: str = ""
    """Where it is started; its own folder if empty."""
    copy: tuple[str, ...] = ()
    """Folders of the repository that it needs; its own if empty."""
    arguments: tuple[str, ...] = ()
    data: tuple[tuple[str, str], ...] = ()
    """Data makers and the folders they write to, relative to where it is started."""
    steps: int = 20
    seeded: bool = True
    path: tuple[str, ...] = ()
    """Folders of the repository on PYTHONPATH."""
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
        lists["data"] = tuple((who, where) for who, where in item.get("data", ()))
        found.append(Script(**{**item, **lists}))
    return found


def clone_of(clones: Path, repository: str) -> Path | None:
    owner, name = repository.split("/")
    for place in (clones / owner / name, clones / f"{owner}+{name}" / "repo", clones / name):
        if place.is_dir():
            return place
    return None


def copy_out(clone: Path, item: Script, to: Path) -> str:
    """The files that a script needs, as they are in its commit. What is wrong, if anything is."""
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
    """Exit status (None: too slow), what it printed, what it wrote to stderr."""
    start = checkout / (item.folder or str(Path(item.script).parent))
    for who, where in item.data:
        MAKERS[who](start / where)
    command = [sys.executable, *before, str(checkout / item.script)]
    if before:
        command += ["--", *item.arguments]
        if "check" in before:
            at = command.index("check") + 2
            command[at:at] = ["--max-steps", str(item.steps), "--format", "json"]
    else:
        command += item.arguments
    stand_ins = [str(STAND_INS)] if not importlib.util.find_spec("torchvision") else []
    path = [str(ROOT / "src"), *(str(checkout / folder) for folder in item.path), *stand_ins]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1"}
    environment |= {"MPLBACKEND": "Agg", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    try:
        done = subprocess.run(
            command, cwd=start, env=environment, capture_output=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return None, "", ""
    return (
        done.returncode,
        done.stdout.decode(errors="replace"),
        done.stderr.decode("utf-8", "replace"),
    )


def unharmed(item: Script, plain: tuple[int | None, str], guarded: tuple[int | None, str]) -> bool:
    """The same status, and every line of the plain run in the same order."""
    lines = iter(_comparable(guarded[1], item.seeded))
    return plain[0] == guarded[0] and all(
        line in lines for line in _comparable(plain[1], item.seeded)
    )


def _comparable(text: str, seeded: bool) -> list[str]:
    text = re.sub(r"[\d.]+ ?(ms|s|sec|seconds)\b|ms/batch +[\d.]+|time:? +[\d.]+", "TIME", text)
    if not seeded:
        text = re.sub(r"[-+]?\d[\d.e+-]*", "N", text)
    return [
        line for line in text.replace("\r", "\n").splitlines() if "mfu" not in line.split()[-1:]
    ]


def judge(item: Script, clones: Path) -> dict[str, Any]:
    """One script: unharmed or not, and what `check` says of it."""
    row: dict[str, Any] = {"repository": item.repository, "script": item.script}
    clone = clone_of(clones, item.repository)
    if clone is None:
        return {**row, "state": "no clone"}
    with tempfile.TemporaryDirectory() as folder:
        outcomes = []
        for number, before in enumerate(((), ("-m", "headway", "run"), ("-m", "headway", "check"))):
            checkout = Path(folder) / str(number) / "checkout"
            problem = copy_out(clone, item, checkout)
            if problem:
                return {**row, "state": problem}
            outcomes.append(run_script(item, checkout, *before))
    plain, guarded, checked = outcomes
    if plain[0] != 0:
        return {**row, "state": f"does not run here: {plain[2].strip()[-200:]}"}
    if checked[0] is None or "{" not in checked[1]:
        return {**row, "state": f"check gave no report: {checked[2][-200:]}"}
    report = json.loads(checked[1][checked[1].index("{") :])
    loud = [f for f in report["findings"] if f["severity"] != "info"]
    return {
        **row,
        "state": "ran",
        "unharmed": unharmed(item, plain[:2], guarded[:2]),
        "known": sorted({f["code"] for f in loud if f["code"] in item.findings}),
        "missed": sorted(set(item.findings) - {f["code"] for f in loud}),
        "to look at": [
            f"{f['code']} {f['where']['line']} {f['message']}"
            for f in loud
            if f["code"] not in item.findings
        ],
        "coverage": report["coverage"],
    }


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
    ran = [row for row in rows if row["state"] == "ran"]
    alarmed = [row for row in ran if row["to look at"]]
    print(
        f"\n{len(ran)} of {len(rows)} scripts ran; {sum(r['unharmed'] for r in ran)} unharmed;"
        f" {sum(len(r['known']) for r in ran)} known findings;"
        f" {len(alarmed)} scripts with findings to look at"
    )
    if args.json:
        record = {
            "date": time.strftime("%Y-%m-%d"),
            "python": platform.python_version(),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores, CPU only",
            "scripts": rows,
        }
        args.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    sys.exit(any(not row["unharmed"] for row in ran))


def _told(row: dict[str, Any]) -> str:
    place = f"{row['repository']} {row['script']}"
    if row["state"] != "ran":
        return f"{place}: {row['state']}"
    told = ["unharmed" if row["unharmed"] else "HARMED"]
    told += [f"known {code}" for code in row["known"]]
    told += [f"not found {code}" for code in row["missed"]]
    told += [f"look at {text[:150]}" for text in row["to look at"]]
    return f"{place}: {'; '.join(told)}"


if __name__ == "__main__":
    main()
