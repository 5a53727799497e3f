"""A fine-tuning that learned nothing, and logged a loss of 0.

python examples/sft_lora/run_example.py
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

from example_runner import Result, headway, python, section, verify  # noqa: E402

SFT = HERE / "sft.py"


def rows(out: Path) -> list[dict[str, Any]]:
    """The Trainer's log, from the newest checkpoint of a run."""
    newest = max(out.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    state = json.loads((newest / "trainer_state.json").read_text())
    return [row for row in state["log_history"] if "loss" in row]


def result(out: Path) -> dict[str, float]:
    """The results that the script measured at its end."""
    measured: dict[str, float] = json.loads((out / "result.json").read_text())
    return measured


def named(report: Result, code: str) -> dict[str, Any]:
    """The finding with that code."""
    found = [finding for finding in report.json["findings"] if finding["code"] == code]
    verify(f"{code} is found", found)
    first: dict[str, Any] = found[0]
    return first


def main(folder: Path) -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the results below are those of a CPU
    base, failed, guarded = folder / "base", folder / "failed", folder / "guarded"

    section("a base model, and a fine-tuning that completed")
    python(HERE / "base.py", base, quiet=True)
    python(SFT, base, failed, "--weights", "float16")
    logged, end = rows(failed), result(failed)
    verify("every gradient norm in the log is NaN", all(math.isnan(r["grad_norm"]) for r in logged))
    verify("the loss is logged as 0.0", all(row["loss"] == 0.0 for row in logged[1:]))
    verify("accuracy 0.0, answer rate 0.0", end["accuracy"] == end["answer_rate"] == 0.0)

    section("after: diagnose the folder")
    seen = headway("diagnose", failed, code=1)
    verify("HD102 is named as the cause", seen.cause == "HD102")
    verify("the report says that NaN was logged as 0", "replaces a NaN loss by 0" in seen.flat)
    verify("the saved adapter is non-finite", "HD701" in seen.codes)

    section("before: a check of two steps")
    seen = headway("check", SFT, "--", base, folder / "unused", "--weights", "float16", code=1)
    verify("HD309 is named as the cause", seen.cause == "HD309")
    verify("and the reason for the NaN: eps rounds to 0 in fp16", "HD411" in seen.codes)

    section("during: the same training under the guard")
    python(SFT, base, folder / "skipped", "--weights", "float16", "--guard", guarded, code=1,
           quiet=True)  # fmt: skip
    report = headway("diagnose", guarded, "--format", "json", code=1, quiet=True)
    verify("HD309 is the cause", report.json["causes"][0]["code"] == "HD309")
    bad = named(report, "HD201")
    verify("the first bad update was skipped, at step 1", bad["step"] == 1)
    events = [json.loads(line) for line in (guarded / "events.jsonl").read_text().splitlines()]
    actions = [event["data"]["action"] for event in events if event.get("event") == "action"]
    print(f"  actions of the guard: {', '.join(actions)}")
    verify("it rolled back, and halted when that did not help", actions[-1] == "halt")

    section("fixed: fp32 weights, in fp32 and under bf16 autocast")
    outs = {"fp16 weights": failed, "fp32": folder / "fp32", "fp32, bf16 autocast": folder / "bf16"}
    for name, asked in (("fp32", ()), ("fp32, bf16 autocast", ("--bf16",))):
        seen = headway("run", "--out", folder / f"run-{outs[name].name}", SFT, "--", base,
                        outs[name], "--weights", "float32", *asked, quiet=bool(asked))  # fmt: skip
        verify("the guard finds nothing", "headway: healthy" in seen.text)
    for name in list(outs)[1:]:
        logged, end = rows(outs[name]), result(outs[name])
        norms, losses = [r["grad_norm"] for r in logged], [r["loss"] for r in logged]
        verify(f"{name}: every gradient norm is finite", all(map(math.isfinite, norms)))
        verify(f"{name}: the loss fell from {losses[0]:.2f} to {losses[-1]:.2f}",
              losses[-1] < losses[0] / 2)  # fmt: skip
        verify(f"{name}: answer rate {end['answer_rate']:.2f}", end["answer_rate"] > 0.8)
        verify(f"{name}: accuracy {end['accuracy']:.2f}", end["accuracy"] > 0.3)

    section("speed and memory on this machine")
    print(f"  {'':22}{'samples/CPU s':>14}{'weights':>12}{'peak memory':>14}{'accuracy':>11}")
    for name, out in outs.items():
        end = result(out)
        print(
            f"  {name:22}{end['samples_per_cpu_second']:14.0f}"
            f"{end['weights_bytes'] / 2**10:8.0f} KiB"
            f"{end['peak_memory_bytes'] / 2**20:10.0f} MiB{end['accuracy']:11.2f}"
        )
    whole, half = result(outs["fp32"]), result(failed)
    verify("fp16 weights take half the bytes", half["weights_bytes"] * 2 == whole["weights_bytes"])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        main(Path(made))
