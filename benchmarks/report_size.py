"""A long run as one page: how large, how long, and whether one bad step in a million is still seen.

    python benchmarks/report_size.py [--steps 1000000] [--tensors 300] [--every 100] [--json FILE]

Writes a run directory of that many steps; every so many of them carry a gradient norm and an update
ratio of each tensor. One loss is NaN, and at another step one tensor's gradient and the global norm
jump. Then: the size of the report, the time it takes (diagnosis and charts apart), the peak memory,
and whether both bad steps are in the data of the page.
"""

from __future__ import annotations

import argparse
import base64
import json
import platform
import re
import resource
import sys
import tempfile
import time
from array import array
from pathlib import Path
from typing import Any

SRC = str(Path(__file__).resolve().parents[1] / "src")
sys.path.insert(0, SRC)

MOST_BYTES = 10_000_000
BAD = 32767


def make_run(folder: Path, steps: int, tensors: int, every: int) -> tuple[int, int]:
    """Write the run; the steps of the NaN and of the spike."""
    nan_at, spike_at = steps * 3 // 7, steps * 5 // 7
    spike_at -= spike_at % every
    names = [f"layers.{number}.weight" for number in range(tensors)]
    plain: dict[str, Any] = {name: {} for name in ("loss", "grad_norm", "lr")}
    columns = {name: {"every": every} for name in ("param/grad_norm", "param/update_ratio")}
    header = {
        "kind": "header",
        "schema": 1,
        "seg": 0,
        "seq": 0,
        "source": "holdfast",
        "world_size": 1,
        "signals": plain | columns,
        "axes": {"param": names},
        "facts": {"models": ["Benchmark"]},
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(json.dumps(header))
    # A few lines of columns, used over and over: what is in them does not change what they cost.
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
                f'"v":{{"loss":{said},"grad_norm":{norm},"lr":0.0003}}'
            )
            if step % every == 0:
                ours = norms[step // every % 8]
                grads = f"4000.0{ours[ours.index(',') :]}" if step == spike_at else ours
                line += f',"c":{{"param/grad_norm":[{grads}],"param/update_ratio":[{ours}]}}'
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
    codes = array("h", base64.b64decode(heat["codes"]))
    cell = codes[(spike_at - heat["start"]) // heat["width"]]
    return nan_seen, spike_seen, cell == 360 and BAD not in codes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--tensors", type=int, default=300)
    parser.add_argument("--every", type=int, default=100, help="steps from one look to the next")
    parser.add_argument("--json", type=Path, default=None, help="write the result here too")
    args = parser.parse_args()

    from holdfast import diagnose

    with tempfile.TemporaryDirectory() as scratch:
        run, out = Path(scratch) / "run", Path(scratch) / "report.html"
        nan_at, spike_at = make_run(run, args.steps, args.tensors, args.every)
        on_disk = sum(path.stat().st_size for path in run.iterdir())
        begun = time.perf_counter()
        report = diagnose(run)
        diagnosed = time.perf_counter()
        report.to_html(out)
        drawn = time.perf_counter()
        size = out.stat().st_size
        visible = seen(out.read_text(encoding="utf-8"), nan_at, spike_at)
    result = {
        "steps": args.steps,
        "tensors": args.tensors,
        "looks_every": args.every,
        "run_megabytes": round(on_disk / 1e6, 1),
        "report_megabytes": round(size / 1e6, 3),
        "diagnose_seconds": round(diagnosed - begun, 1),
        "charts_seconds": round(drawn - diagnosed, 1),
        "peak_megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "nan_seen": visible[0],
        "spike_seen": visible[1],
        "layer_seen": visible[2],
        "codes": [cause.code for cause in report.causes][:5],
        "python": platform.python_version(),
        "cpu": platform.machine(),
    }
    print(json.dumps(result, indent=2))
    ratio = on_disk / size
    print(f"{args.steps} steps × {args.tensors} tensors: the report is {ratio:.0f} times smaller")
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n")
    return 0 if size < MOST_BYTES and all(visible) else 1


if __name__ == "__main__":
    sys.exit(main())
