"""Write the golden output of headway, or compare today's output with it.

    python tests/goldens/freeze.py compare                  # the quick subset, about a minute
    python tests/goldens/freeze.py compare --all            # everything
    python tests/goldens/freeze.py compare --only check     # one section; may be repeated
    python tests/goldens/freeze.py write [--all] [--only SECTION]

Only public surfaces are used (`python -m headway`, `headway.Guard`, files of the run directory), so
the goldens stay valid when modules move. Sections:

    check     `check --format json` on the scripts of the corpus
    diagnose  `diagnose --format json` on the sample logs, and on logs that external_logs.py makes
    scan      `scan --format json` on the sample checkpoints, and on some that are made here
    explain   findings and incident files of the origin set and of the held-out set
    runs      the run directories of the trainings in seeded_runs.py
    states    hashes of the final state of these trainings, guarded and unguarded

A section is two files: `SECTION.structure.json` (codes, steps, severities, places, numbers rounded
to six digits, flags, hashes) and `SECTION.text.json` (every sentence). A rewording changes only the
second. `write` without --all replaces the quick records and leaves the others.

Not compared: times, speeds, memory, versions, process numbers, folders of paths, lines inside
headway's own source, and findings about speed and memory (HD801, HD802, HD804, HD805).
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import hashlib
import importlib
import io
import json
import math
import multiprocessing
import os
import platform
import random
import re
import runpy
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TESTS = ROOT / "tests"
CORPUS = ROOT / "corpus"
DATA = TESTS / "data"
LIMIT_S = 240
AS_JSON = ("--format", "json")
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["HEADWAY_STRICT"] = "1"
sys.path[:0] = [str(HERE), str(TESTS), str(TESTS / "support"), str(ROOT / "src")]

Job = tuple[str, Callable[[], Any]]

QUICK_SCRIPTS = (
    *("faults/f01_", "faults/f03_", "faults/f09_", "faults/f15_", "faults/f33_", "faults/f39_"),
    *("faults/f54_", "faults/f56_", "faults/f61_", "healthy/h13_", "healthy/h19_", "healthy/h24_"),
)
QUICK_ORIGINS = (
    *("origin/confident-and-wrong", "origin/one-nan-sample", "origin/half-square"),
    *("origin/third-of-four", "heldout/log1p_of_minus_one", "heldout/mha_all_padding"),
    *("heldout/inside_checkpoint", "heldout/second_micro_batch_of_four", "heldout/vae_logvar"),
    *("heldout/two_optimizers_gan", "heldout/lbfgs_closure", "heldout/no_positives"),
)
QUICK_OUTSIDE = 12

# What must not be compared.

SPEED_OR_MEMORY = {"HD801", "HD802", "HD804", "HD805"}
VOLATILE_SIGNALS = {
    *("step_time_s", "samples_per_s", "loader_wait_s", "host_rss_bytes", "graphs_kept"),
    *("device_allocated_bytes", "tokens_per_s", "process_cpu_cores", "host_cpu_cores"),
    *("host_memory_used_bytes", "disk_read_bytes_per_s", "disk_write_bytes_per_s"),
    *("network_read_bytes_per_s", "network_write_bytes_per_s"),
}
VOLATILE_KEYS = {
    *("version", "versions", "headway", "torch", "python", "started", "when", "ended"),
    *("pid", "host", "cwd", "argv", "id", "seal", "sha256"),
    *("command_line", "git_commit", "git_dirty", "gpu", "packages"),
}
TIMED_KEYS = {*VOLATILE_SIGNALS, "seconds", "bytes", "memory", "time"}
"""Left out where a training really ran; kept where they are read from a sample file."""
TEXT_KEYS = {
    *("message", "text", "reason", "why", "headline", "summary", "cause", "notes", "shown"),
}
CODE_KEYS = {"source", "function", "tried"}
_SIZES = re.compile(r"\b\d[\d.,]*(e[+-]?\d+)?\s?(ns|µs|us|ms|s|min|h|kB|KB|MB|GB|KiB|MiB|GiB)\b")
_PATH = re.compile(r"(?<![\w./])/(?:[^\s/:'\"`,()]+/)+([^\s/:'\"`,()]*)")
_STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?([+-]\d\d:?\d\d|Z)?")
_VERSIONS = re.compile(r"\b(headway|torch|Python|python) \d+\.\d+\S*")
_HASH = re.compile(r"\b[0-9a-f]{64}\b")
_ADDRESS = re.compile(r"0x[0-9a-f]{6,}")
_PORT = re.compile(r"localhost:\d+|127\.0\.0\.1:\d+")


def mask(text: str, *, timed: bool) -> str:
    """The text without folders, dates, versions, hashes; `timed`: without times and sizes, too."""
    text = re.sub(rf"{re.escape(str(package_folder()))}/[^\s:]+(:\d+)?", "<headway>", text)
    text = _PATH.sub(r"…/\1", text)
    for pattern, instead in (
        (_STAMP, "<date>"),
        (_VERSIONS, r"\1 <version>"),
        (_HASH, "<hash>"),
        (_ADDRESS, "<address>"),
        (_PORT, "<port>"),
    ):
        text = pattern.sub(instead, text)
    return _SIZES.sub(r"<n> \2", text) if timed else text


def package_folder() -> Path:
    import headway

    return Path(str(headway.__file__)).parent


# A report or record is split into its structure and its sentences.


class Splitter:
    """Takes the sentences out of JSON data; they are listed by their place in it."""

    def __init__(self, *, timed: bool) -> None:
        self.timed = timed
        self.text: dict[str, str] = {}

    def split(self, value: Any, place: str = "", key: str = "") -> Any:
        """The data without its sentences."""
        if isinstance(value, Mapping):
            return self._split_mapping(value, place)
        if isinstance(value, list | tuple):
            if key == "not_run":
                return self._split_not_run(value, place)
            if key == "remedies":
                return self._split_remedies(value, place)
            return [
                self.split(item, f"{place}.{at}" if place else str(at), key)
                for at, item in enumerate(value)
            ]
        if isinstance(value, str):
            return self._split_text(value, place, key)
        return rounded(value)

    def _split_mapping(self, value: Mapping[str, Any], place: str) -> dict[str, Any]:
        if str(value.get("file") or "").startswith(str(package_folder())):
            value = {**value, "file": "<headway>", "line": None, "function": None, "source": ""}
        kept = {}
        for key, item in sorted(value.items()):
            name = str(key)
            if name in VOLATILE_KEYS or (item is None and place.endswith("where")):
                continue
            if self.timed and name in TIMED_KEYS:
                continue
            kept[name] = self.split(item, f"{place}.{name}" if place else name, name)
        return kept

    def _split_text(self, value: str, place: str, key: str) -> str:
        if key not in CODE_KEYS and (key in TEXT_KEYS or " " in value.strip()):
            self.text[place] = mask(value, timed=self.timed)
            return "…"
        return mask(value, timed=False)

    def _split_not_run(self, value: Iterable[Any], place: str) -> str:
        rows = [(str(item["code"]), str(item["reason"])) for item in value]
        self.text[place] = json.dumps([f"{code}: {reason}" for code, reason in rows])
        return " ".join(code.removeprefix("HD") for code, _ in rows)

    def _split_remedies(self, value: Iterable[Any], place: str) -> list[Any]:
        found = []
        for at, item in enumerate(value):
            self.text[f"{place}.{at}"] = mask(str(item["text"]), timed=self.timed)
            found.append({"tested": item["tested"], "cured": item.get("cured")})
        return found


def rounded(value: Any) -> Any:
    """A number with six significant digits; what JSON does not know, as text."""
    if isinstance(value, bool) or value is None or isinstance(value, int):
        return value
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else str(value)
    return mask(str(value), timed=True)


def without_speed(report: dict[str, Any]) -> dict[str, Any]:
    """The report without findings about speed and memory: they depend on the machine."""
    kept = [item for item in report["findings"] if item["code"] not in SPEED_OR_MEMORY]
    causes = [item for item in report["causes"] if item["code"] not in SPEED_OR_MEMORY]
    changed = {**report, "findings": kept, "causes": causes}
    if len(kept) != len(report["findings"]):
        changed["verdict"] = "<with findings about speed or memory>"
    for cause in causes:
        cause["findings"] = [code for code in cause["findings"] if code not in SPEED_OR_MEMORY]
    return changed


# Work is done in a fork of this process: torch is imported once, and nothing is left behind.


def in_fork(work: Callable[[], Any]) -> Any:
    """What `work` returns, as JSON data. It runs in an empty folder."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        process = multiprocessing.get_context("fork").Process(target=_child, args=(work, folder))
        process.start()
        process.join(LIMIT_S)
        if process.is_alive():
            process.kill()
            process.join()
            return {"failed": f"took longer than {LIMIT_S} s"}
        answer = folder / "answer.json"
        if not answer.is_file():
            log = (folder / "log").read_text(errors="replace")
            print(log[-2000:], file=sys.stderr)
            return {"failed": "no answer"}
        return json.loads(answer.read_text())


def _child(work: Callable[[], Any], folder: Path) -> None:
    gc.freeze()
    # A daemon may have no children of its own, and data loaders want workers.
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    place = folder / "work"
    place.mkdir()
    os.chdir(place)
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    seed_all()
    answer = work()
    # Times that are infinite or missing have no place in JSON; `default` keeps odd values visible.
    (folder / "answer.json").write_text(json.dumps(answer, default=str))
    os._exit(0)


def seed_all() -> None:
    import numpy as np
    import torch

    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    torch.set_num_threads(1)


def run_command(arguments: list[str]) -> dict[str, Any]:
    """`python -m headway` with these arguments, in this process: its JSON and its exit code."""
    told = io.StringIO()
    code: Any = 0
    sys.argv = ["headway", *arguments]
    with contextlib.redirect_stdout(told):
        try:
            runpy.run_module("headway", run_name="__main__", alter_sys=True)
        except SystemExit as left:
            code = left.code
    return parsed(told.getvalue(), code)


def parsed(told: str, code: Any) -> dict[str, Any]:
    start = told.find("{")
    report: dict[str, Any] = {"failed": told[-500:]} if start < 0 else json.loads(told[start:])
    return {**report, "exit": code}


# check


def check_jobs(everything: bool) -> Iterator[Job]:
    for name in ("tuned", "heldout", "blind"):
        for script in read_toml(CORPUS / f"manifest.{name}.toml")["script"]:
            file = script["file"]
            if everything or (name != "blind" and file.startswith(QUICK_SCRIPTS)):
                yield file, partial(check_script, script)


def check_script(script: Mapping[str, Any]) -> Any:
    path = str(CORPUS / script["file"])
    options = ["--max-steps", str(script["steps"]), *AS_JSON]
    arguments = ["check", path, *options, "--", "--seed", "0"]
    ranks = script.get("ranks", 1)
    if ranks > 1:
        report = run_under_torchrun(arguments, ranks)
    else:
        report = in_fork(partial(run_command, arguments))
    report.pop("memory", None)
    if "findings" not in report:
        return report
    if "inventory" in report:  # long, and of one piece
        plain = Splitter(timed=True).split(report["inventory"])
        report["inventory"] = digest(json.dumps(plain, sort_keys=True).encode())
    return without_speed(report)


def run_under_torchrun(arguments: list[str], ranks: int) -> dict[str, Any]:
    launcher = ["torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", *launcher, "-m", "headway", *arguments],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(package_folder().parent)},
            check=False,
        )
    return parsed(done.stdout, done.returncode)


def read_toml(path: Path) -> dict[str, Any]:
    name = "tomllib" if sys.version_info >= (3, 11) else "tomli"
    return dict(importlib.import_module(name).loads(path.read_text(encoding="utf-8")))


# diagnose


def diagnose_jobs(everything: bool) -> Iterator[Job]:
    for path in sorted(sample_logs()):
        name = str(path.relative_to(DATA))
        yield name, partial(in_fork, partial(run_command, ["diagnose", str(path), *AS_JSON]))
    cases = importlib.import_module("external_logs").CASES
    every = 1 if everything else max(1, len(cases) // QUICK_OUTSIDE)
    for case in cases[::every]:
        yield f"made/{case.name}", partial(in_fork, partial(diagnose_made, case))
    yield "made/hf-run", partial(in_fork, diagnose_folder)


def sample_logs() -> Iterator[Path]:
    for path in DATA.rglob("*"):
        parts = path.relative_to(DATA).parts
        if parts[0] in ("deepspeed", "hangs") or "__pycache__" in parts:
            continue
        if path.is_file():
            if path.name not in ("make.py", "expected.json") and parts[:2] != ("mlflow", "files"):
                yield path
        elif len(parts) == 1 or parts == ("mlflow", "files"):
            yield path


def diagnose_made(case: Any) -> dict[str, Any]:
    folder = Path("log")
    folder.mkdir()
    return run_command(["diagnose", str(case.write(folder.resolve())), *AS_JSON])


def diagnose_folder() -> dict[str, Any]:
    files = importlib.import_module("checkpoint_files")
    files.hf_run(Path("run"), saves=(100, 200, 300), bad_from=250, last=340)
    return run_command(["diagnose", "run", *AS_JSON])


# scan


def scan_jobs(everything: bool) -> Iterator[Job]:
    folders = [item for item in (DATA / "deepspeed").iterdir() if item.is_dir()]
    for path in sorted(path for path in folders if path.name != "__pycache__"):
        command = ["scan", str(path), *AS_JSON]
        yield f"deepspeed/{path.name}", partial(in_fork, partial(run_command, command))
    for name, make in CHECKPOINTS.items():
        yield f"made/{name}", partial(in_fork, partial(scan_made, make))


def scan_made(make: Callable[[Path], None]) -> dict[str, Any]:
    folder = Path("checkpoints")
    folder.mkdir()
    make(folder)
    return run_command(["scan", "checkpoints", *AS_JSON])


def _hf_nan(folder: Path) -> None:
    importlib.import_module("checkpoint_files").hf_run(folder, saves=(100, 200, 300), bad_from=300)


def _hf_clean(folder: Path) -> None:
    importlib.import_module("checkpoint_files").hf_run(folder, saves=(100, 200))


def _one_safetensors(folder: Path) -> None:
    files = importlib.import_module("checkpoint_files")
    files.safetensors(folder / "model.safetensors", files.weights(1, bad=3))


def _cut_short(folder: Path) -> None:
    files = importlib.import_module("checkpoint_files")
    path = files.safetensors(folder / "model.safetensors", files.weights(2))
    path.write_bytes(path.read_bytes()[:-40])


def _torch_files(folder: Path) -> None:
    """A trained layer behind one that never changes, Adam's moments, and at last a huge weight."""
    import torch
    from torch import nn

    head = nn.Linear(8, 2)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), head)
    optimizer = torch.optim.AdamW(head.parameters(), lr=0.01)
    for step in range(1, 41):
        optimizer.zero_grad()
        model(torch.randn(8, 6)).square().mean().backward()
        optimizer.step()
        if step % 10 == 0:
            if step == 40:
                with torch.no_grad():
                    head.weight[1] = 1e30
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, folder / f"step_{step}.pt")


def _old_torch_file(folder: Path) -> None:
    import torch

    state = {"weight": torch.randn(4, 4), "mean": torch.full((3,), float("inf"))}
    torch.save(state, folder / "old.pth", _use_new_zipfile_serialization=False)


def _own_snapshots(folder: Path) -> None:
    """The run directory of a guarded training."""
    import headway

    runs = importlib.import_module("seeded_runs")

    def watch(model: Any, optimizer: Any, **options: Any) -> Any:
        return headway.Guard(model, optimizer, run_dir=folder, **options)

    runs.averaged_and_resumed(watch)


def _foreign_object(folder: Path) -> None:
    """A pickle that would call something. Nothing in it is run."""
    import pickle

    class Call:
        def __reduce__(self) -> Any:
            return (print, ("called",))

    (folder / "model.pkl").write_bytes(pickle.dumps({"weight": Call()}))
    import torch

    torch.save({"weight": Call()}, folder / "model.pt")


CHECKPOINTS: dict[str, Callable[[Path], None]] = {
    "hf-nan": _hf_nan,
    "hf-clean": _hf_clean,
    "one-safetensors": _one_safetensors,
    "cut-short": _cut_short,
    "torch-files": _torch_files,
    "old-torch-file": _old_torch_file,
    "own-snapshots": _own_snapshots,
    "foreign-object": _foreign_object,
}


# explain

POISONED = ("poisoned-weight", "poisoned-buffer")
"""A state that is bad from the start: no step is run again for it. Section `runs` has one."""


def explain_jobs(everything: bool) -> Iterator[Job]:
    import torch

    scenarios = test_package("birth_set", "origin_set").SCENARIOS
    for dtype in (None, torch.bfloat16, torch.float16):
        for scenario in scenarios:
            name = f"origin/{scenario.name}"
            if dtype is not None:
                name = f"{name}/{str(dtype).removeprefix('torch.')}"
            if scenario.name == "loss-scale" or scenario.kind in POISONED:
                continue
            if dtype is not None and str(dtype).removeprefix("torch.") in scenario.excluded:
                continue
            if everything or name in QUICK_ORIGINS:
                yield name, partial(in_fork, partial(explain_scenario, scenario, dtype))
    heldout = test_package("heldout")
    scripts = {name: script for name, (script, _) in heldout.EXPECTED.items()}
    for name, script in {**scripts, **heldout.HEALTHY}.items():
        if everything or f"heldout/{name}" in QUICK_ORIGINS:
            yield f"heldout/{name}", partial(in_fork, partial(explain_script, script))


def test_package(*names: str) -> Any:
    """A package of the tests, wherever it lies below tests/."""
    for name in names:
        for path in sorted(TESTS.rglob(f"{name}/__init__.py")):
            return importlib.import_module(".".join(path.parent.relative_to(TESTS).parts))
    raise SystemExit(f"there is no package {' or '.join(names)} below tests/")


def explain_script(script: Callable[[str], Any]) -> Any:
    return explained(script(str(Path("run").resolve())))


def explain_scenario(scenario: Any, dtype: Any) -> Any:
    """Train on the healthy batches with a rate of 0, then on the bad one."""
    import headway

    case = scenario.case("cpu", dtype)
    optimizer, scaler = case.optimizer, case.scaler
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    policy = headway.Policy(hold_spikes=False, roll_backs=0, back_offs=0, halt=False)
    guard = headway.Guard(
        case.model,
        optimizer,
        scaler=scaler,
        policy=policy,
        settings=headway.Settings(),
        run_dir=Path("run").resolve(),
    )
    for batch in guard([*case.healthy, case.bad]):
        loss, parts = case.forward(batch)
        guard.backward(loss, **parts)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
        optimizer.zero_grad()
    guard.close()
    return explained(guard)


def explained(guard: Any) -> dict[str, Any]:
    """The findings, the actions, and the incident files on disk, each thing once."""
    incidents = {}
    for path in sorted(Path("run").glob("incidents/*/incident.json")):
        incident = json.loads(path.read_text())
        told = incident["explanation"]
        told.pop("headline", None)  # the summary begins with it
        for origin in told.get("origins", ()):  # all of an origin is in section `runs`
            for name in ("inputs", "output", "reached", "cause"):
                origin.pop(name, None)
            for name in ("place", "called_from"):
                (origin.get(name) or {}).pop("source", None)
        for trial in told.get("trials", ()):  # their texts are those of the remedies
            trial.pop("text", None)
        incidents[path.parent.name] = told
    findings = [plain(item) for item in guard.findings if item.code not in SPEED_OR_MEMORY]
    for item in findings:
        if "why" in item["evidence"]:  # then it is the incident's
            item["evidence"] = {"kind": item["evidence"].get("kind")}
    actions = [[item.step, item.to_dict()["action"]] for item in guard.actions]
    return dict(pruned({"findings": findings, "actions": actions, "incidents": incidents}))


def pruned(value: Any) -> Any:
    """Without the fields that are None or empty, to keep the file small."""
    if isinstance(value, list):
        return [pruned(item) for item in value]
    if not isinstance(value, dict):
        return value
    kept = {key: pruned(item) for key, item in value.items()}
    return {key: item for key, item in kept.items() if item not in (None, "", [], {})}


def plain(finding: Any) -> dict[str, Any]:
    """A finding as data, field by field."""
    where = ("file", "line", "function", "module", "op", "rank", "sample")
    return {
        "code": finding.code,
        "severity": finding.severity.name.lower(),
        "step": finding.step,
        "message": finding.message,
        "where": {name: getattr(finding.where, name) for name in where},
        "evidence": json.loads(json.dumps(dict(finding.evidence), default=str)),
        "remedies": [
            {"text": item.text, "tested": item.tested, "cured": item.cured}
            for item in finding.remedies
        ],
    }


# runs and states


def run_jobs(everything: bool) -> Iterator[Job]:
    runs = importlib.import_module("seeded_runs")
    for name, training in {**runs.HEALTHY, **runs.CHANGED}.items():
        yield name, partial(run_record, training)


def run_record(training: Callable[..., Any]) -> Any:
    return done_run(training)["run"]


@cache
def done_run(training: Callable[..., Any]) -> dict[str, Any]:
    """Run once for both sections."""
    done: dict[str, Any] = in_fork(partial(guarded_run, training))
    return done if "run" in done else {"run": done, "state": "failed"}


def guarded_run(training: Callable[..., Any]) -> dict[str, Any]:
    """Everything in the run directory, the findings of the guard or guards, the final state."""
    guards: list[Any] = []
    state = state_digest(training(_watch_into(guards)))
    files = {
        str(path.relative_to("run")): content_of(path)
        for path in sorted(Path("run").rglob("*"))
        if path.is_file()
    }
    findings = [plain(item) for guard in guards for item in guard.findings]
    run = {
        "files": files,
        "findings": [item for item in findings if item["code"] not in SPEED_OR_MEMORY],
        "steps": [guard.step for guard in guards],
        "rate_factor": [guard.rate_factor for guard in guards],
    }
    return {"run": run, "state": state}


def _watch_into(guards: list[Any]) -> Callable[..., Any]:
    import headway

    def watch(model: Any, optimizer: Any, **options: Any) -> Any:
        guards.append(
            headway.Guard(
                model,
                optimizer,
                run_dir=Path("run").resolve(),
                settings=headway.Settings(),
                **options,
            )
        )
        return guards[-1]

    return watch


def content_of(path: Path) -> Any:
    """The content of a file of a run directory, without what differs from run to run."""
    if path.suffix == ".jsonl":
        lines = path.read_text().splitlines()
        return [without_volatile(json.loads(line)) for line in lines]
    if path.suffix == ".json":
        return without_volatile(json.loads(path.read_text()))
    if path.suffix in (".pt", ".pth"):
        import torch

        try:
            content = torch.load(path, weights_only=True)
            # What the checks remember: measured times are in it, and names of private attributes.
            if isinstance(content, dict):
                content.pop("guard", None)
            return digest_of(content)
        except Exception as error:  # any kind of file may come to lie here
            return f"not read: {type(error).__name__}"
    if path.suffix in (".md", ".txt", ".py"):
        return {"text": path.read_text()}
    return f"{path.suffix} file"


def without_volatile(record: Any) -> Any:
    """A row or record of ours. How often a signal is measured can depend on the time it takes."""
    if not isinstance(record, dict):
        return record
    if isinstance(record.get("signals"), dict):
        signals = record["signals"].items()
        record["signals"] = {key: item for key, item in signals if key not in VOLATILE_SIGNALS}
    return record


def state_jobs(everything: bool) -> Iterator[Job]:
    runs = importlib.import_module("seeded_runs")
    for name, training in {**runs.HEALTHY, **runs.CHANGED}.items():
        yield name, partial(state_hashes, training, name in runs.HEALTHY)


def state_hashes(training: Callable[..., Any], must_agree: bool) -> dict[str, Any]:
    unguarded = importlib.import_module("seeded_runs").Unguarded
    with_guard = done_run(training)["state"]
    without = in_fork(partial(final_state, training, unguarded))
    if must_agree and with_guard != without:
        print(f"NOT BIT-IDENTICAL: {training.__name__}", file=sys.stderr)
    return {
        "guarded": with_guard,
        "unguarded": without,
        "identical": with_guard == without,
        "healthy": must_agree,
    }


def final_state(training: Callable[..., Any], watch: Callable[..., Any]) -> str:
    return state_digest(training(watch))


def state_digest(parts: list[Any]) -> str:
    """Of models, optimizers, schedulers and scalers, and of where the random numbers stand."""
    import torch

    return digest_of([part.state_dict() for part in parts] + [torch.get_rng_state()])


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:24]


def digest_of(value: Any) -> str:
    """A hash of nested data with tensors, bit for bit."""
    state = hashlib.sha256()
    _feed(state, value)
    return state.hexdigest()[:24]


def _feed(state: Any, value: Any) -> None:
    import torch

    if isinstance(value, torch.Tensor):
        dense = value.detach().cpu().contiguous()
        state.update(f"{dense.dtype} {tuple(dense.shape)}".encode())
        state.update(dense.reshape(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(value, Mapping):
        for key in sorted(value, key=repr):
            state.update(repr(key).encode())
            _feed(state, value[key])
    elif isinstance(value, list | tuple):
        state.update(f"[{len(value)}".encode())
        for item in value:
            _feed(state, item)
    else:
        state.update(repr(value).encode())


# Writing and comparing


SECTIONS: dict[str, Callable[[bool], Iterator[Job]]] = {
    "diagnose": diagnose_jobs,
    "scan": scan_jobs,
    "runs": run_jobs,
    "states": state_jobs,
    "explain": explain_jobs,
    "check": check_jobs,
}
TIMED = {"runs", "explain", "check"}
"""Sections with trainings that really run: times and sizes in their sentences are masked."""

SAME_SENTENCES = ("/bfloat16", "/float16")
"""Scenarios under autocast say what they say without it: of their sentences a digest is kept."""


def compute(section: str, everything: bool, verbose: bool) -> dict[str, dict[str, Any]]:
    """`structure` and `text` of a section, each with one entry per record."""
    found: dict[str, dict[str, Any]] = {"structure": {}, "text": {}}
    for name, work in SECTIONS[section](everything):
        began = time.perf_counter()
        splitter = Splitter(timed=section in TIMED)
        found["structure"][name] = splitter.split(work())
        if splitter.text:
            found["text"][name] = splitter.text
        if name.endswith(SAME_SENTENCES):
            text = json.dumps(splitter.text, sort_keys=True)
            found["text"][name] = {"digest": digest(text.encode())}
        if verbose:
            print(f"{time.perf_counter() - began:7.2f} s  {section} {name}", flush=True)
    return found


def golden_file(section: str, kind: str) -> Path:
    return HERE / f"{section}.{kind}.json"


def read_golden(section: str, kind: str) -> dict[str, Any]:
    path = golden_file(section, kind)
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}


def write_golden(section: str, kind: str, records: Mapping[str, Any]) -> None:
    """One record per line, sorted, so that a change shows as one changed line."""
    form: dict[str, Any] = {"sort_keys": True, "ensure_ascii": False, "separators": (",", ":")}
    lines = [f"{json.dumps(name)}: {json.dumps(records[name], **form)}" for name in sorted(records)]
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    golden_file(section, kind).write_text(text, encoding="utf-8")


REASONS = "reasons why checks did not run"


def pack_reasons(texts: dict[str, Any]) -> dict[str, Any]:
    """Lists of checks that were not run repeat the same sentences: they are kept once."""
    table: dict[str, str] = {}
    packed: dict[str, Any] = {}
    for name, text in texts.items():
        packed[name] = dict(text)
        for place, value in text.items():
            if place.split(".")[-1] == "not_run":
                reasons = [mask(item, timed=True) for item in json.loads(value)]
                keys = [digest(item.encode())[:6] for item in reasons]
                table.update(zip(keys, reasons, strict=True))
                packed[name][place] = digest(" ".join(keys).encode())[:12]
    return {**packed, REASONS: table} if table else packed


def write(sections: list[str], everything: bool, verbose: bool) -> None:
    for section in sections:
        found = compute(section, everything, verbose)
        found["text"] = pack_reasons(found["text"])
        for kind, records in found.items():
            if not everything:
                old = read_golden(section, kind)
                known = {**old.get(REASONS, {}), **records.get(REASONS, {})}
                records = {**old, **records}
                if known:
                    records[REASONS] = known
            write_golden(section, kind, records)
        print(f"{section}: {len(found['structure'])} records written")
    (HERE / "made_with.json").write_text(json.dumps(made_with(), indent=1) + "\n")


def made_with() -> dict[str, str]:
    """What the numbers depend on: with another of these, goldens need not agree."""
    import numpy as np
    import torch

    return {
        "python": ".".join(platform.python_version_tuple()[:2]),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "machine": platform.machine(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
    }


def known_made_with() -> dict[str, str]:
    return dict(json.loads((HERE / "made_with.json").read_text()))


def compare(sections: list[str], everything: bool, verbose: bool) -> int:
    """How many records differ."""
    here, there = made_with(), known_made_with()
    if here != there:
        print(f"these goldens were made with {there}, and this is {here}: numbers may differ")
    bad = 0
    for section in sections:
        found = compute(section, everything, verbose)
        found["text"] = pack_reasons(found["text"])
        for kind, records in found.items():
            golden = read_golden(section, kind)
            differing = 0
            for name in sorted(set(records) | (set(golden) if everything else set())):
                old, new = golden.get(name), records.get(name)
                if name == REASONS and isinstance(new, dict):
                    old = {key: (old or {}).get(key) for key in new}
                if jsonable(new) != old:
                    differing += 1
                    for line in list(differences(old, jsonable(new)))[:12]:
                        print(f"{section} {kind} {name}{line}")
            print(f"{section} {kind}: {len(records)} compared, {differing} differ", flush=True)
            bad += differing
    return bad


def jsonable(value: Any) -> Any:
    return json.loads(json.dumps(value))


def differences(old: Any, new: Any, place: str = "") -> Iterator[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(set(old) | set(new)):
            if old.get(key) != new.get(key):
                yield from differences(old.get(key), new.get(key), f"{place} > {key}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for at, (one, other) in enumerate(zip(old, new, strict=True)):
            if one != other:
                yield from differences(one, other, f"{place} > {at}")
    else:
        yield f"{place}:\n    was {str(old)[:400]}\n    is  {str(new)[:400]}"


def warm_up() -> None:
    """Import what every fork needs, once."""
    import torch

    import headway

    _ = (headway.Guard, headway.diagnose, headway.scan, headway.preflight)
    with contextlib.suppress(ImportError):
        importlib.import_module("torch._dynamo")  # else each first optimizer imports it
    torch.set_num_threads(1)
    run_command(["diagnose", str(DATA / "text" / "plain" / "nan.log"), *AS_JSON])
    run_command(["checks"])


def main() -> int:
    parser = argparse.ArgumentParser(description="Golden output: write it, or compare with it.")
    parser.add_argument("action", choices=["write", "compare"])
    parser.add_argument("--only", action="append", choices=list(SECTIONS), help="one section")
    parser.add_argument("--all", action="store_true", help="every record, not the quick subset")
    parser.add_argument(
        "--same-machine",
        action="store_true",
        help="exit with 5 instead of comparing when torch, Python or the processor is another",
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="name each record")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    if args.same_machine and made_with() != known_made_with():
        return 5
    warm_up()
    sections = args.only or list(SECTIONS)
    if args.action == "write":
        write(sections, args.all, args.verbose)
        return 0
    return 1 if compare(sections, args.all, args.verbose) else 0


if __name__ == "__main__":
    raise SystemExit(main())
