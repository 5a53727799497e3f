"""The story of a fine-tuning that learned nothing, and logged a loss of 0.

python examples/sft_lora/story.py
"""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from telling import Result, chapter, headway, holds, python  # noqa: E402

SFT = HERE / "sft.py"


def rows(out: Path) -> list[dict[str, Any]]:
    """What the Trainer logged, from the newest checkpoint of a run."""
    newest = max(out.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    state = json.loads((newest / "trainer_state.json").read_text())
    return [row for row in state["log_history"] if "loss" in row]


def result(out: Path) -> dict[str, float]:
    """What the script measured at its end."""
    measured: dict[str, float] = json.loads((out / "result.json").read_text())
    return measured


def named(report: Result, code: str) -> dict[str, Any]:
    """The finding with that code."""
    found = [finding for finding in report.json["findings"] if finding["code"] == code]
    holds(f"{code} is found", found)
    first: dict[str, Any] = found[0]
    return first


def main(folder: Path) -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # a story of the CPU, wherever it is told
    base, sick, guarded = folder / "base", folder / "sick", folder / "guarded"

    chapter("a base model, and a fine-tuning that ran to its end")
    python(HERE / "base.py", base, quiet=True)
    python(SFT, base, sick, "--weights", "float16")
    logged, end = rows(sick), result(sick)
    holds("every gradient norm in the log is NaN", all(math.isnan(r["grad_norm"]) for r in logged))
    holds("the loss is logged as 0.0", all(row["loss"] == 0.0 for row in logged[1:]))
    holds("accuracy 0.0, answer rate 0.0", end["accuracy"] == end["answer_rate"] == 0.0)

    chapter("after: what its folder tells")
    seen = headway("diagnose", sick, code=1)
    holds("HD102 is named as the cause", seen.cause == "HD102")
    holds("the NaN loss behind the 0 is spoken of", "replaces a NaN loss by 0" in seen.flat)
    holds("the saved adapter is seen to be dead", "HD701" in seen.codes)

    chapter("before: what a check of two steps would have told")
    seen = headway("check", SFT, "--", base, folder / "unused", "--weights", "float16", code=1)
    holds("HD309 is named as the cause", seen.cause == "HD309")
    holds("and why it is NaN: eps rounds to 0 in fp16", "HD411" in seen.codes)

    chapter("during: the same training under the guard")
    python(SFT, base, folder / "held", "--weights", "float16", "--guard", guarded, code=1,
           quiet=True)  # fmt: skip
    report = headway("diagnose", guarded, "--format", "json", code=1, quiet=True)
    holds("HD309 is the cause", report.json["causes"][0]["code"] == "HD309")
    bad = named(report, "HD201")
    holds("the first bad update was held back, at step 1", bad["step"] == 1)
    events = [json.loads(line) for line in (guarded / "events.jsonl").read_text().splitlines()]
    did = [event["data"]["action"] for event in events if event.get("event") == "action"]
    print(f"  the guard: {', '.join(did)}")
    holds("it rolled back, and gave up when that did not help", did[-1] == "halt")

    chapter("cured: fp32 weights, in fp32 and under bf16 autocast")
    outs = {"fp16 weights": sick, "fp32": folder / "fp32", "fp32, bf16 autocast": folder / "bf16"}
    for name, asked in (("fp32", ()), ("fp32, bf16 autocast", ("--bf16",))):
        seen = headway("run", "--out", folder / f"run-{outs[name].name}", SFT, "--", base,
                        outs[name], "--weights", "float32", *asked, quiet=bool(asked))  # fmt: skip
        holds("the guard finds nothing", "headway: healthy" in seen.text)
    for name in list(outs)[1:]:
        logged, end = rows(outs[name]), result(outs[name])
        norms, losses = [r["grad_norm"] for r in logged], [r["loss"] for r in logged]
        holds(f"{name}: every gradient norm is finite", all(map(math.isfinite, norms)))
        holds(f"{name}: the loss fell from {losses[0]:.2f} to {losses[-1]:.2f}",
              losses[-1] < losses[0] / 2)  # fmt: skip
        holds(f"{name}: answer rate {end['answer_rate']:.2f}", end["answer_rate"] > 0.8)
        holds(f"{name}: accuracy {end['accuracy']:.2f}", end["accuracy"] > 0.3)

    chapter("what each costs, on this machine")
    print(f"  {'':22}{'samples/CPU s':>14}{'weights':>12}{'peak memory':>14}{'accuracy':>11}")
    for name, out in outs.items():
        end = result(out)
        print(
            f"  {name:22}{end['samples_per_cpu_second']:14.0f}"
            f"{end['weights_bytes'] / 2**10:8.0f} KiB"
            f"{end['peak_memory_bytes'] / 2**20:10.0f} MiB{end['accuracy']:11.2f}"
        )
    whole, half = result(outs["fp32"]), result(sick)
    holds("fp16 weights take half the bytes", half["weights_bytes"] * 2 == whole["weights_bytes"])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        main(Path(made))
