"""The live page of a long run: how soon it can be used, and whether it shows a single bad step.

    python benchmarks/page_speed.py [--steps 1000000] [--tensors 300] [--every 100] [--runs 8]
                                    [--patience 600] [--json FILE]

Writes the run of `report_size.py`, starts `headway serve`, opens the run's page in a browser at
once, and again when the server has read everything. Reports the seconds from opening the page to
the charts, to the mark of the one NaN, to the one spike, and to the layer × step pictures. With
`--runs`, the folder holds that many runs, and the page that compares them is opened twice and
zoomed: `drawn` is the time until the zoom is drawn from the data that is there, `detail` the time
until the server has answered with more. Anything that takes longer than `--patience` seconds is
null. The report of the run is written, too, and its size is reported; the CPU time of the server's
answers is measured without a browser, for the whole run and for parts of it. Needs the packages
that `make test-browser` installs.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

from report_size import make_run  # noqa: E402

MOST_SECONDS = 2.0
"""Until a planted value is drawn of a run that was read."""
MOST_PAINT_SECONDS, MOST_ZOOM_SECONDS, MOST_REPORT_MEGABYTES = 1.0, 0.2, 1.0
POINTS = 1300
"""Number of intervals that a wide browser window requests."""
LOOK = ROOT / "tests" / "browser" / "serve_speed.mjs"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--tensors", type=int, default=300)
    parser.add_argument("--every", type=int, default=100, help="steps between measurements")
    parser.add_argument("--runs", type=int, default=1, help="runs that are compared, up to 8")
    parser.add_argument("--patience", type=int, default=600, help="seconds per measurement")
    parser.add_argument("--run", type=Path, default=None, help="keep the runs in this folder")
    parser.add_argument("--shot", type=Path, default=None, help="write a picture of the page here")
    parser.add_argument("--json", type=Path, default=None, help="write the result here too")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.run or Path(scratch)
        if not (folder / "long").exists():
            make_run(folder / "long", args.steps, args.tensors, args.every)
        for number in range(1, args.runs):
            other = folder / f"long-{number}"
            if not other.exists():  # the same bytes: links cost no disk
                shutil.copytree(folder / "long", other, copy_function=os.link)
        on_disk = sum(path.stat().st_size for path in (folder / "long").iterdir())
        told, peak = looked_at(folder, args.patience, args.runs, args.shot)
        report = write_report(folder / "long")
        answers = answer_cost(folder, args.runs)
    result = {
        "steps": args.steps,
        "tensors": args.tensors,
        "looks_every": args.every,
        "run_megabytes": round(on_disk / 1e6, 1),
        "list_seconds": told["list"],
        "cold_seconds": told["cold"],
        "warm_seconds": told["warm"],
        "runs": args.runs,
        "compare_seconds": told["compare"],
        "server_peak_megabytes": peak,
        "server_cpu_seconds": answers,
        "report_megabytes": report,
        "date": datetime.date.today().isoformat(),
        "python": platform.python_version(),
        "cpu": platform.machine(),
        "load": round(os.getloadavg()[0], 1),
    }
    print(json.dumps(result, indent=2))
    cold, warm = told["cold"], told["warm"]
    print(
        f"{args.steps} steps × {args.tensors} tensors: charts {cold['charts']} s after the page is "
        f"opened while the run is unread, all that is planted after {cold['nan']} s (NaN) and "
        f"{cold['spike']} s (spike); opened again, {warm['nan']} s and {warm['spike']} s"
    )
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n")
    several = told["compare"] or {"first": 0.0, "again": 0.0, "zooms": []}
    paints = (cold["charts"], warm["charts"], several["first"], several["again"])
    zooms = [zoom["drawn"] for zoom in several["zooms"]]
    seen = (warm["nan"], warm["spike"])
    met = (
        all(time is not None and time <= MOST_PAINT_SECONDS for time in paints)
        and all(time <= MOST_ZOOM_SECONDS for time in zooms)
        and all(time is not None and time < MOST_SECONDS for time in seen)
        and report <= MOST_REPORT_MEGABYTES
    )
    return 0 if met else 1


def write_report(run: Path) -> float:
    """Megabytes of the report on the run."""
    page = run.parent / "report.html"
    command = [sys.executable, "-m", "headway", "report", str(run), "-o", str(page)]
    subprocess.run(
        command,
        check=True,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    return round(page.stat().st_size / 1e6, 2)


def answer_cost(folder: Path, runs: int) -> dict[str, float]:
    """CPU seconds of one answer about several runs; other processes hardly affect them."""
    sys.path.insert(0, str(ROOT / "src"))
    from headway.web import page_data, run_table
    from headway.web.access import ServedFolder
    from headway.web.own_run import OwnRun

    run = OwnRun(ServedFolder(folder), folder / "long")
    run.glance()
    run.prepare()
    begun = time.process_time()
    while run.draw(5.0):
        pass
    told = {"read_one_run": round(time.process_time() - begun, 2)}
    data = run.charts(None, None, POINTS)
    end = data.end if data is not None else 0
    parts = {
        "whole": (None, None),
        "half": (0, end // 2),
        "tenth": (0, end // 10),
        "1000": (0, 999),
    }
    for name, (low, high) in parts.items():
        spent = []
        for _ in range(5):
            begun = time.process_time()
            found = run.charts(low, high, POINTS)
            drawn = page_data.comparison_data([] if found is None else [(run, found)])
            json.dumps({**drawn, "runs": [run_table.summarize_run(run)]})
            spent.append(time.process_time() - begun)
        told[name] = round(runs * sorted(spent)[2], 3)
    return told


def looked_at(
    folder: Path, patience: int, runs: int, shot: Path | None
) -> tuple[dict[str, Any], int]:
    """What the browser saw, in seconds, and the server's peak memory."""
    server = subprocess.Popen(
        [sys.executable, "-m", "headway", "serve", str(folder), "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    try:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        command = [
            "node",
            str(LOOK),
            address,
            "long",
            str(patience),
            str(runs),
            *([str(shot)] if shot else []),
        ]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        told: dict[str, Any] = json.loads(done.stdout)
        return told, _peak(server.pid)
    finally:
        server.send_signal(signal.SIGINT)
        begun = time.monotonic()
        server.communicate(timeout=60)
        print(f"the server ended in {time.monotonic() - begun:.1f} s", file=sys.stderr)


def _peak(pid: int) -> int:
    """Megabytes; 0 where the system does not report it."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    line = next((line for line in status.splitlines() if line.startswith("VmHWM")), "")
    return int(line.split()[1]) // 1024 if line else 0


if __name__ == "__main__":
    sys.exit(main())
