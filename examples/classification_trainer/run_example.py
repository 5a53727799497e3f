"""A classification trainer: headway names the line of six faults; then the fixed trainer runs."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
# The tensors are small: a second thread would only wait for the first.
os.environ["OMP_NUM_THREADS"] = "1"

from example_runner import headway, line_of, python, recorded, section, verify  # noqa: E402

FAULTS = {
    # script: (the check that finds it, text in the line, exit code)
    "detached_loss.py": ("HD108", "return loss.detach()", 1),
    "moved_too_late.py": ("HD904", "optimizer = torch.optim.AdamW(", 1),
    "left_on_meta.py": ("HD901", "both = self.patches(", 3),
    "fp16_unscaled.py": ("HD312", "loss.backward()", 1),
    "autocast_inert.py": ("HD315", "with torch.autocast(", 1),
    "clipped_too_early.py": ("HD314", "clip_grad_norm_(", 1),
}
OPTIONS_OF_THE_NOTES = (
    "--max-steps", 3, "--amp-dtype", "bf16", "--grad-log-interval", 1,
    "--no-detect-anomaly", "--clip-grad-norm", 1.0, "--verbose",
)  # fmt: skip


def faults() -> None:
    for name, (check, text, code) in FAULTS.items():
        section(name.removesuffix(".py").replace("_", " "))
        script = HERE / name
        words = ("check", name, "--fail-on", "warning")
        found = headway(*words, code=code, until="Not run", within=HERE)
        source = HERE / "comparer.py" if name == "left_on_meta.py" else script
        line = line_of(source, text)
        verify(f"{found.cause} is the cause", found.cause == check)
        verify(f"{source.name}:{line} is the line", found.names(source.name, line))


def sanity() -> None:
    section("The fixed trainer, for three steps")
    seen = headway("check", "train.py", *OPTIONS_OF_THE_NOTES, errors=True, within=HERE)
    verify("healthy", "headway: healthy" in seen.text)
    steps = re.findall(r"^step .*zero 0/8  NaN/Inf 0/8$", seen.errors, re.MULTILINE)
    verify("one line per step: no gradient is zero, NaN or Inf", len(steps) == 3)
    groups = re.findall(r"^AdamW group \d .* lr (\S+), weight_decay (\S+),", seen.text, re.M)
    expected = [("0.001", "0.01"), ("0.004", "0.01"), ("0.004", "0")]
    verify("three parameter groups, with learning rate and decay", groups == expected)
    verify("frozen and trainable parts", re.search(r"patches +2352  frozen", seen.text))

    section("Memory per epoch")
    words = ("check", "train.py", "--max-steps", 25, "--verbose", "--", "--batch_size", 32)
    seen = headway(*words, quiet=True, within=HERE)
    row = re.search(r"^Resident memory by epoch  (.*)$", seen.text, re.MULTILINE)
    print(f"  {row.group(0) if row else ''}\n")
    peaks = [float(size) for size in re.findall(r"([\d.]+) MiB", row.group(1) if row else "")]
    flat = len(peaks) == 3 and max(peaks) < 1.02 * peaks[0]
    verify("three epochs, and none needs 2 % more than the first", flat)


def whole_training(folder: Path) -> None:
    section("The whole training under the guard, in bf16 and in fp16 with a scaler")
    for dtype in ("bf16", "fp16"):
        run = folder / dtype
        words = ("train.py", "--amp_dtype", dtype, "--run_dir", run)
        log = python(*words, within=HERE).text
        losses = [float(item) for item in re.findall(r"loss ([\d.]+)", log)]
        accuracy = [float(item) for item in re.findall(r"accuracy ([\d.]+)", log)]
        verify(f"{dtype}: the loss falls, {losses}", losses[-1] < losses[0] / 2)
        verify(f"{dtype}: accuracy {accuracy[-1]}, by chance 0.38", accuracy[-1] > 0.8)
        norms = recorded(run, "grad_norm")
        verify(f"{dtype}: all {len(norms)} gradient norms are finite", max(norms) < float("inf"))
        scales = recorded(run, "loss_scale")
        if dtype == "fp16":
            verify(f"fp16: the loss scale was {max(scales):.0f} at most", max(scales) > 1)
        else:
            verify("bf16: no scaler is used, and none is needed", not scales)
        read = headway("diagnose", run, quiet=True)
        verify(f"{dtype}: diagnose finds nothing", "headway: healthy" in read.text)


if __name__ == "__main__":
    faults()
    sanity()
    with tempfile.TemporaryDirectory() as place:
        whole_training(Path(place))
