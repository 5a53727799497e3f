"""Runs scripts under one tool, each in a fork of this process; started by `benchmarks/peers.py`.

python under.py TOOL           # jobs as JSON lines on stdin, answers as JSON lines on stdout
torchrun … under.py TOOL JOB   # one job on several ranks; the answer in a file of each rank
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
sys.path.insert(0, str(HERE.parents[1] / "src"))

from peer_tools.base import CannotRun, Tool  # noqa: E402


def main() -> None:
    tool: Tool = importlib.import_module(f"peer_tools.{sys.argv[1]}").TOOL()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what tools print while they are imported is no answer
    _load()
    tool.preload()
    if len(sys.argv) > 2:
        job = json.loads(sys.argv[2])
        Path(job["out"] + os.environ["RANK"]).write_text(json.dumps(_answer(tool, job)))
        return
    for line in sys.stdin:
        job = json.loads(line)
        print(json.dumps(_apart(tool, job)), file=answers, flush=True)


def _load() -> None:
    """Import torch, and the modules that optimizers import later, once instead of in every fork."""
    for name in ("torch", "torch._dynamo", "numpy", "transformers", "lightning"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def _apart(tool: Tool, job: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "answer.json"
        process = multiprocessing.get_context("fork").Process(
            target=_in_child, args=(tool, job, out, folder)
        )
        began = time.perf_counter()
        process.start()
        process.join(job["limit"])
        if process.is_alive():
            process.kill()
            process.join()
            return {"state": "too slow", "alarms": [], "seconds": job["limit"]}
        answer: dict[str, Any] = {"state": "died", "alarms": [], "why": f"exit {process.exitcode}"}
        if out.is_file():
            answer = json.loads(out.read_text(encoding="utf-8"))
        answer["seconds"] = round(time.perf_counter() - began, 2)
        return answer


def _in_child(tool: Tool, job: dict[str, Any], out: Path, folder: str) -> None:
    gc.freeze()
    # A daemon may have no children of its own, and loaders want workers.
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    os.chdir(folder)
    log = os.open(Path(folder) / "log", os.O_WRONLY | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(log, stream)
    answer = _answer(tool, job)
    out.write_text(json.dumps(answer), encoding="utf-8")
    os._exit(0)


def _answer(tool: Tool, job: dict[str, Any]) -> dict[str, Any]:
    import torch

    from peer_tools import watched

    torch.set_num_threads(1)
    warnings.simplefilter("always")
    run = getattr(tool, "run", None)
    try:
        if run is not None:
            alarms, extra = run(job["script"], job["steps"], job["arguments"])
        else:
            alarms = watched.run(tool, job["script"], job["steps"], job["arguments"])
            extra = {}
    except (CannotRun, ModuleNotFoundError) as reason:
        return {"state": "cannot", "alarms": [], "why": str(reason)}
    except BaseException as error:
        traceback.print_exc()
        return {"state": "broke", "alarms": [], "why": f"{type(error).__name__}: {error}"[:300]}
    return {"state": "ran", "alarms": [alarm.to_dict() for alarm in alarms], **extra}


if __name__ == "__main__":
    main()
