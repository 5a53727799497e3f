"""Reads mutants, and takes note of everything a reader must not do.

    python worker.py SEEDS RESULT --count N --seed S [--only READER]

Runs in a process of its own, with a limit on its memory. An audit hook sees files opened for
writing, commands, sockets and real unpicklings; the folder of the input is listed after each.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from mutate import mutated


def _peak() -> float:
    """Megabytes this program has held at most; `ru_maxrss` begins at what its parent held."""
    with contextlib.suppress(OSError, StopIteration):
        status = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in status if line.startswith("VmHWM")).split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


os.environ["HEADWAY_STRICT"] = "1"  # the net under the readers is not what is tested

SECONDS = 2.0
HANG = 20
ADDRESS_SPACE = 3 << 30
CHECKPOINTS = (
    *("torch-zip", "torch-legacy", "torchscript", "pickle", "npz", "safetensors", "training-args"),
    *("exported-program", "torch-tar", "hf-folder", "dcp", "deepspeed-folder"),
)
FOLDERS = ("hf-folder", "dcp", "deepspeed-folder")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_FORBIDDEN = (
    *(
        "os.system",
        "os.exec",
        "os.fork",
        "os.forkpty",
        "os.posix_spawn",
        "os.spawn",
        "os.startfile",
    ),
    *("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.symlink", "os.link", "os.truncate"),
    *("subprocess.Popen", "pty.spawn", "pickle.find_class", "ctypes.dlopen", "marshal.loads"),
    *("socket.connect", "socket.bind", "socket.getaddrinfo", "urllib.Request", "webbrowser.open"),
)


class Watch:
    """What happened while a reader was at work."""

    def __init__(self) -> None:
        self.armed = False
        self.seen: list[str] = []

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.armed:
            return
        if event == "open":
            mode, flags = args[1], args[2]
            writing = any(c in mode for c in "wax+") if isinstance(mode, str) else False
            if writing or (isinstance(flags, int) and flags & _WRITES):
                self.seen.append(f"opened {args[0]!r} for writing")
        elif event in _FORBIDDEN and not _importing(event):
            self.seen.append(f"{event}{args!r}"[:200])

    @contextlib.contextmanager
    def on(self) -> Any:
        self.armed, self.seen = True, []
        try:
            yield self
        finally:
            self.armed = False


def _importing(event: str) -> bool:
    """Whether the interpreter itself loads a module: it unmarshals compiled code."""
    if event != "marshal.loads":
        return False
    frame = sys._getframe(2)
    return "importlib" in frame.f_code.co_filename


def targets(reader: str, deep: bool) -> list[Callable[[Path], Any]]:
    """What a mutant is handed to."""
    from headway.checkpoints.checkpoint_discovery import open_checkpoint
    from headway.checkpoints.tensor_statistics import measure_all
    from headway.logs import readers
    from headway.postmortem.diagnose import diagnose
    from headway.postmortem.run_settings import settings_beside
    from headway.postmortem.scan import scan

    def measured(path: Path) -> None:
        for _ in measure_all(open_checkpoint(path).tensors, threads=1):
            pass

    if reader in CHECKPOINTS:
        some: list[Callable[[Path], Any]] = [measured]
        if reader == "training-args":
            some.append(settings_beside)
        return [*some, scan, diagnose] if deep else some
    own = {module.format: module for module in readers.readers()}[reader]
    return [own.read, readers.read, *([diagnose] if deep else [])]


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Read mutants and count."""
    from headway.errors import UnreadableInput

    rng = random.Random(options.seed)
    folders = sorted(path for path in options.seeds.iterdir() if path.is_dir())
    names = sorted({path.name.partition("@")[0] for path in folders})
    names = [name for name in names if options.only in (None, name)]
    files = {folder: _files(folder) for folder in folders}
    pool = [data for inside in files.values() for data in inside.values()]
    watch, counts, wrong = Watch(), Counter[str](), []
    refused, slowest = Counter[str](), (0.0, "")
    sys.addaudithook(watch)
    signal.signal(signal.SIGALRM, _too_long)
    place = Path(tempfile.mkdtemp(dir=options.scratch))
    began = time.monotonic()
    for number in range(options.count):
        if options.minutes and time.monotonic() - began > 60 * options.minutes:
            break
        reader = names[number % len(names)]
        folder = rng.choice([path for path in folders if path.name.partition("@")[0] == reader])
        inside = dict(files[folder])
        victim = rng.choice(sorted(inside))
        inside[victim] = mutated(inside[victim], rng.choice(pool), rng)
        home = place / "in"
        for name, data in inside.items():
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).write_bytes(data)
        path = home if reader in FOLDERS else home / next(iter(inside))
        counts[reader] += 1
        # At the first, everything is imported: no reader's time.
        for target in targets(reader, deep=number % options.deep == 0 or number < len(names)):
            before = time.process_time()
            said = ""
            signal.alarm(HANG)
            with watch.on():
                try:
                    target(path)
                except UnreadableInput:
                    refused[reader] += 1
                except BaseException as error:
                    said = f"{type(error).__name__}: {error}\n{traceback.format_exc(limit=-4)}"
            signal.alarm(0)
            spent = time.process_time() - before
            if number >= len(names):
                slowest = max(slowest, (spent, f"{reader} {target.__name__}"))
                if spent > SECONDS:
                    said = said or f"took {spent:.1f} s"
            said = said or "; ".join(watch.seen)
            extra = sorted(set(_files(home)) - set(inside))
            said = said or (f"left {extra} behind" if extra else "")
            if options.mark.exists():
                said = said or "the mark was touched: code was run"
                options.mark.unlink()
            if said:
                kept = options.kept / f"{options.seed}-{number}"
                if len(wrong) < 50:
                    shutil.copytree(home, kept, dirs_exist_ok=True)
                wrong.append({"reader": reader, "said": said[:1500], "kept": str(kept)})
        shutil.rmtree(home)
    shutil.rmtree(place)
    return {
        "counts": dict(counts),
        "refused": dict(refused),
        "wrong": wrong,
        "slowest": slowest,
        "peak_megabytes": _peak(),
        "torch_imported": "torch" in sys.modules,
    }


def _files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def _too_long(signum: int, frame: Any) -> None:
    raise TimeoutError(f"longer than {HANG} s")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("seeds", type=Path)
    parser.add_argument("result", type=Path)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--only")
    parser.add_argument("--deep", type=int, default=40, help="one in so many is diagnosed whole")
    parser.add_argument("--minutes", type=float, default=0)
    parser.add_argument("--mark", type=Path, required=True)
    parser.add_argument("--kept", type=Path, required=True)
    parser.add_argument("--scratch", type=Path)
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    options.result.write_text(json.dumps(run(options)))


if __name__ == "__main__":
    main()
