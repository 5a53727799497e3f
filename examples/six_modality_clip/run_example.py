"""Six modalities: a loss with B^6 logits, and the same loss without computing them.

python examples/six_modality_clip/run_example.py
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from example_runner import headway, python, section, verify  # noqa: E402

CLIP = HERE / "clip.py"


def result(out: Path) -> dict[str, Any]:
    """The results that the script measured."""
    measured: dict[str, Any] = json.loads((out / "result.json").read_text())
    return measured


def in_tensorboard(folder: Path) -> dict[str, list[float]]:
    """Scalars that TensorBoard's own reader finds."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [event.value for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def in_wandb(folder: Path) -> dict[str, list[float]]:
    """Values that W&B's own reader of offline runs finds."""
    (file,) = folder.rglob("*.wandb")
    shown = subprocess.run(
        [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(file)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    rows: dict[str, list[float]] = {}
    for record in map(json.loads, shown.stdout.splitlines()):
        if record["type"] == "history":
            for key, value in record["history"]["item"].items():
                rows.setdefault(key, []).append(value)
    return rows


def main(folder: Path) -> None:
    # W&B offline, and within the folder of the example.
    os.environ |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_CONSOLE": "off"}
    for name in ("DIR", "CACHE_DIR", "CONFIG_DIR", "DATA_DIR"):
        os.environ[f"WANDB_{name}"] = str(folder / "wandb")
    plain, guarded = folder / "plain", folder / "guarded"

    section("the published loss in numbers")
    seen = python(HERE / "published.py")
    rms, aligned = map(float, re.findall(r"rms (\S+), (\S+) for", seen.text)[0])
    theirs, ours = map(float, re.findall(r"norm (\S+) published, (\S+) ours", seen.text)[0])
    dense, chance, same = map(float, re.findall(r"\d\.\d{6}", seen.text))
    vanish = rms < 1e-6 and aligned < 1e-3
    verify("product form: the logits vanish, even if all features agree", vanish)
    verify("its loss is log B, that of a random guess", abs(dense - chance) < 1e-4)
    verify("ours without the rescaling is the same loss", abs(dense - same) < 1e-5)
    verify("its gradient is 10,000 times smaller than ours", theirs * 1e4 < ours)

    section("the published loss in a training")
    python(CLIP, folder / "product", "--loss", "product", "--batch", 6, "--missing", 0,
           "--steps", 60)  # fmt: skip
    end = result(folder / "product")
    verify("product form: no sample is retrieved although the loss falls", end["after"] < 0.05)
    verify("all six features concentrate on one coordinate of 512", end["narrow"] > 0.2)
    python(CLIP, folder / "norm", "--loss", "norm", "--batch", 4, "--half", "--steps", 4, "--guard",
           quiet=True)  # fmt: skip
    seen = headway("diagnose", folder / "norm" / "run", code=1)
    verify("norm form in fp16: NaN in the first step", seen.cause == "HD101")
    verify("the line is named", seen.names("published.py", 22))
    verify("and the reason", "A zero vector is divided by its norm" in seen.flat)
    verify("and a fix that was tested on that step", ".clamp_min(0.001))" in seen.flat)
    seen = python(CLIP, folder / "large", "--loss", "norm", "--batch", 64, code=1)
    verify("a batch of 64 does not fit on any machine", "TiB for one tensor" in seen.errors)

    section("ours: the same loss, computed along the lines that have a gradient")
    python(CLIP, plain)
    end = result(plain)
    verify(f"found {end['before']:.2f} before, {end['after']:.2f} after", end["after"] > 0.8)
    verify("before training, retrieval is near chance", end["before"] < 0.05)
    verify("and no coordinate dominates", end["narrow"] < 0.05)

    section("guarded: norms per layer in TensorBoard and W&B, with gradient checkpointing")
    python(CLIP, guarded, "--guard", "--checkpointing")
    verify("every loss is bit-identical", result(guarded)["losses"] == end["losses"])
    headway("diagnose", guarded / "run")
    for name, rows in (
        ("TensorBoard", in_tensorboard(guarded / "tensorboard")),
        ("W&B", in_wandb(guarded / "run")),
    ):
        norms, layers = rows["grad/global_norm"], [k for k in rows if k.startswith("grad_layer/")]
        print(f"  {name}: grad/global_norm {norms[0]:.2f} to {norms[-1]:.2f}, {layers[0]}, …")
        verify(f"{name}: grad/global_norm of every step", len(norms) == len(end["losses"]))
        verify(f"{name}: grad_layer/* of every layer", len(layers) == 6 * 4)
        verify(f"{name}: grad/has_nan is 0 throughout", not any(rows["grad/has_nan"]))

    section("activations: one encoder whose units are all 0")
    seen = headway("check", CLIP, "--max-steps", 8, "--fail-on", "warning", "--", folder / "dead",
                    "--dead", code=1)  # fmt: skip
    verify("HD304 is named as the cause", seen.cause == "HD304")
    verify("the encoder and the line are named", "encoders.3 (clip.py:60)" in seen.flat)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        main(Path(made))
