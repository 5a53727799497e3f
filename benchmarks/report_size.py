"""The report of a long run: its size, its time, and whether it shows one bad step in a million.

    python benchmarks/report_size.py [--steps 1000000] [--tensors 300] [--every 100] [--one-by-one]
                                     [--json FILE]

Writes a run directory with `--steps` steps; every `--every` steps it has a gradient norm and an
update ratio of each tensor. One loss is NaN, and at another step one tensor's gradient and the
global norm jump. Then, in one run:

`parse`     `json.loads` of every line, and nothing else: the reference for everything below.
`report`    diagnosis and page, in a fresh process: time, peak memory, size; whether both bad steps
            are found and are in the data of the page.
`live`      the charts of the live page for the same run, never read before: the time to the first
            chart, to the exact one, and for a zoom.
`usable`    with node and a Chromium (`make test-browser` installs them): seconds until the report
            is drawn in a browser and answers a key.
`one_by_one` (with --one-by-one; minutes): the diagnosis and the charts with every step passed to
            every check as a separate record, as earlier versions did, and whether it finds the
            same.

Seconds are wall time; `cpu` is processor time, which other processes hardly affect: limits apply to
it. A browser is several processes, so its figure is wall time, the best of five runs.
"""

from __future__ import annotations

import argparse
import base64
import datetime
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from bisect import bisect_right
from importlib.metadata import version
from pathlib import Path
from typing import Any

SRC = str(Path(__file__).resolve().parents[1] / "src")

MOST_BYTES = 10_000_000
MOST_FIRST_PICTURE = 1.0
MOST_USABLE = 2.0
MOST_TO_PARSE = 4.0
FIRST_LEVEL, BAD_LEVEL = 3, 2


MACHINE = ("process_cpu_cores", "host_memory_used_bytes", "gpu_busy_share", "gpu_power_w")
"""Some of the signals about the machine; written with the measurements of the layers."""


def make_run(folder: Path, steps: int, tensors: int, every: int) -> tuple[int, int]:
    """Write the run; returns the steps of the NaN and of the spike."""
    nan_at, spike_at = steps * 3 // 7, steps * 5 // 7
    spike_at -= spike_at % every
    names = [f"layers.{number}.weight" for number in range(tensors)]
    plain: dict[str, Any] = {name: {} for name in ("loss", "grad_norm", "lr", *MACHINE)}
    layers = ("param/grad_norm", "param/update_ratio", "param/weight_norm")
    columns = {name: {"every": every} for name in layers}
    header = {
        "kind": "header",
        "schema": 1,
        "seg": 0,
        "seq": 0,
        "source": "headway",
        "world_size": 1,
        "signals": plain | columns,
        "axes": {"param": names},
        "facts": {"models": ["Benchmark"]},
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(json.dumps(header))
    # A few lines of columns are reused: their values do not affect the time.
    norms = [
        ",".join(f"{0.01 + 0.002 * ((7 * at + turn * 3) % 11):.6g}" for at in range(tensors))
        for turn in range(8)
    ]
    with open(folder / "steps.rank0.jsonl", "w", encoding="utf-8") as file:
        for step in range(steps):
            wave = (step * 2654435761 % 1000) / 1000
            loss = "NaN" if step == nan_at else round(2.0 + 2.0 / (1 + step / 5000) + wave / 20, 6)
            norm = 4000.0 if step == spike_at else round(0.8 + wave / 5, 6)
            said = f'"{loss}"' if isinstance(loss, str) else loss
            line = (
                f'{{"seg":0,"seq":{step + 1},"step":{step},'
                f'"v":{{"loss":{said},"grad_norm":{norm},"lr":0.0003'
            )
            if step % every == 0:
                ours = norms[step // every % 8]
                grads = f"4000.0{ours[ours.index(',') :]}" if step == spike_at else ours
                line += "," + ",".join(f'"{name}":{1e9 * (1 + wave):.6g}' for name in MACHINE) + "}"
                rest = ",".join(f'"{name}":[{ours}]' for name in layers[1:])
                line += f',"c":{{"param/grad_norm":[{grads}],{rest}}}'
            else:
                line += "}"
            file.write(line + "}\n")
    return nan_at, spike_at


def seen(page: str, nan_at: int, spike_at: int) -> tuple[bool, bool, bool]:
    """Whether the NaN, the spike of the norm and that of its layer are in the page's data."""
    match = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    assert match is not None
    data = json.loads(match[1])
    panels = {panel["id"]: panel for panel in data["panels"]}
    gaps = panels["loss"]["series"][0]["gaps"]
    nan_seen = ["NaN", nan_at, nan_at, 1] in gaps
    norms = panels["gradients"]["series"][0]
    spike_seen = (spike_at, 4000.0) in zip(norms["x"], norms["y"], strict=True)
    heat = next(item for item in data["maps"] if item["id"] == "param-grad_norm")
    codes = base64.b64decode(heat["codes"])
    level = codes[bisect_right(heat["starts"], spike_at) - 1]
    value = heat["lows"][0] + (level - FIRST_LEVEL) * heat["sizes"][0]
    return nan_seen, spike_seen, abs(value - 360) < 1 and BAD_LEVEL not in codes


_PARSE = """
with open(path / "steps.rank0.jsonl", "rb") as file:
    for line in file:
        json.loads(line)
figures = {}
"""
_REPORT = """
report = headway.diagnose(path)
report.to_html(out)
figures = {"codes": [[item.code, item.step] for item in report.findings][:5], "notes": report.notes}
"""
_LIVE = """
from headway.rundir.live_charts import LiveCharts
from headway.rundir.run_reader import RunDir
from headway.output.html.report_page import chart_document

def measured(first=None, last=None):
    begun, at_work = time.perf_counter(), time.process_time()
    json.dumps(chart_document([], timeline.window(first, last)))
    return [round(time.process_time() - at_work, 3), round(time.perf_counter() - begun, 3)]

timeline = LiveCharts(RunDir(path))
figures = {"[cpu, seconds]": "of each", "first_picture": measured()}
begun = time.perf_counter()
while timeline.read(1.0):
    pass
figures["read_whole"] = round(time.perf_counter() - begun, 1)
end = timeline.end
figures["whole"] = measured()
figures["zoom"] = max(measured(at, at + 50_000) for at in (0, end // 3, end // 2, end - 50_000))
figures["close_zoom"] = max(measured(at, at + 1000) for at in (0, end // 3, end // 2, end - 1000))
"""
_ONE_BY_ONE = """
from headway.rundir.chart_data import build_charts
from headway.engine import Engine
from headway.rundir.run_reader import RunDir

engine = Engine()
engine.run(RunDir(path).records())
diagnosed = time.process_time() - at_work
build_charts(RunDir(path).records())
figures = {"codes": [[item.code, item.step] for item in engine.findings][:5],
        "diagnose_cpu": round(diagnosed, 1)}
"""
_MEASURED = """
import json, resource, sys, time
from pathlib import Path
import headway, headway.registry
headway.registry.all_checks()
path, out = Path(sys.argv[1]), sys.argv[2]
begun, at_work = time.perf_counter(), time.process_time()
{work}
figures["seconds"] = round(time.perf_counter() - begun, 1)
figures["cpu"] = round(time.process_time() - at_work, 1)
figures["peak_megabytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
assert "torch" not in sys.modules
print(json.dumps(figures))
"""


def measured(work: str, run: Path, out: Path) -> dict[str, Any]:
    """Time and memory of a piece of work in a separate process."""
    code = _MEASURED.replace("{work}", work)
    done = subprocess.run(
        [sys.executable, "-c", code, str(run), str(out)],
        env={**os.environ, "PYTHONPATH": SRC},
        capture_output=True,
        text=True,
        check=True,
    )
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def usable(page: Path) -> dict[str, float] | None:
    """Seconds until a browser has drawn the page and answers; None without a browser."""
    script = Path(__file__).resolve().parents[1] / "tests" / "browser" / "usable.mjs"
    if shutil.which("node") is None or not (script.parent / "node_modules").is_dir():
        return None
    best: dict[str, float] | None = None
    for _ in range(5):
        done = subprocess.run(
            ["node", str(script), page.as_uri()], capture_output=True, text=True, timeout=120
        )
        if done.returncode:
            return None
        figures: dict[str, float] = json.loads(done.stdout)
        if best is None or figures["answered"] < best["answered"]:
            best = figures
    return best and {name: round(seconds, 2) for name, seconds in best.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--tensors", type=int, default=300)
    parser.add_argument("--every", type=int, default=100, help="steps between measurements")
    parser.add_argument("--one-by-one", action="store_true", help="the slow way as well")
    parser.add_argument("--json", type=Path, default=None, help="write the result here too")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        run, out = Path(scratch) / "run", Path(scratch) / "report.html"
        nan_at, spike_at = make_run(run, args.steps, args.tensors, args.every)
        on_disk = sum(path.stat().st_size for path in run.iterdir())
        parse = measured(_PARSE, run, out)
        report = measured(_REPORT, run, out)
        size = out.stat().st_size
        nan_seen, spike_seen, layer_seen = seen(out.read_text(encoding="utf-8"), nan_at, spike_at)
        live = measured(_LIVE, run, out)
        page = usable(out)
        slow = measured(_ONE_BY_ONE, run, out) if args.one_by_one else None
    found = ["HD101", nan_at] in report["codes"] and ["HD207", spike_at] in report["codes"]
    kept = {
        "report_below_10_MB": size < MOST_BYTES,
        "nan_and_spike_seen": nan_seen and spike_seen and layer_seen,
        "nan_and_spike_found": found,
        "first_picture_below_1_s": live["first_picture"][0] < MOST_FIRST_PICTURE,
        "zoom_below_2_s": max(live["zoom"][0], live["close_zoom"][0]) < MOST_USABLE,
    }
    if args.steps >= 1_000_000:  # a short run is looked at whole, and the start counts
        kept["report_to_parse_below_4"] = report["cpu"] < MOST_TO_PARSE * parse["cpu"]
    if page is not None:
        kept["usable_below_2_s"] = page["answered"] < MOST_USABLE
    result = {
        "date": datetime.date.today().isoformat(),
        "python": platform.python_version(),
        "numpy": version("numpy"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "load": round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None,
        "steps": args.steps,
        "tensors": args.tensors,
        "looks_every": args.every,
        "run_megabytes": round(on_disk / 1e6, 1),
        "report_megabytes": round(size / 1e6, 3),
        "parse": parse,
        "report": report,
        "report_to_parse": round(report["cpu"] / max(parse["cpu"], 0.01), 2),
        "live": live,
        "usable": page,
        "one_by_one": slow,
        "kept": kept,
    }
    if slow is not None:
        result["one_by_one_to_report"] = round(slow["cpu"] / max(report["cpu"], 0.01), 1)
    print(json.dumps(result, indent=2))
    print(
        f"{args.steps} steps × {args.tensors} tensors: the report is {on_disk / size:.0f} times "
        f"smaller than the run and takes {result['report_to_parse']} times as long as parsing it"
    )
    for name, holds in kept.items():
        print(f"{'kept    ' if holds else 'NOT KEPT'}  {name.replace('_', ' ')}")
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n")
    return 0 if all(kept.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
