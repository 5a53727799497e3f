"""A few-shot detector: a loss term that is never computed, growing memory, and a misread norm."""

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

from example_runner import Result, headway, line_of, python, recorded, section, verify  # noqa: E402

BEFORE = HERE / "train.py"
SHORT = ("--epochs", 6, "--episodes", 18)
MIB = 1024**2


def column(log: str, name: str) -> list[float]:
    """The values that the training printed under this name, one per epoch."""
    return [float(found) for found in re.findall(rf"{name}: (\S+)", log)]


def growth(run: Path) -> float:
    """Growth of the process in MiB after its first 20 steps."""
    resident = recorded(run, "host_rss_bytes")
    return (resident[-1] - resident[2]) / MIB


def names_line(result: Result, text: str) -> bool:
    """Whether the result names the line of the script that contains this text."""
    return result.names("train.py", line_of(BEFORE, text))


def main(folder: Path) -> None:
    section("The original: the loss falls, and three values in the log are suspicious")
    words = ("run", "train.py", "--out", folder / "before", "--", *SHORT)
    ran = headway(*words, within=HERE)
    log = folder / "training.log"
    log.write_text("".join(f"{row}\n" for row in ran.text.splitlines() if row.startswith("Epoch")))
    verify("the loss falls", column(ran.text, "Total Loss")[-1] < column(ran.text, "Total Loss")[0])
    verify("CPE Loss is 0.00 in every epoch", set(column(ran.text, "CPE Loss")) == {0.0})
    grew = growth(folder / "before")
    verify(f"the process grew by {grew:.0f} MiB in 85 steps", grew > 15)
    verify("run: HD803 names the list that keeps graphs", "self.history['spatial_iou']" in ran.text)
    verify("… and the line that created the tensors in it", names_line(ran, "/ (heat + mask"))

    section("The log alone")
    read = headway("diagnose", log, code=1)
    verify("diagnose: the CPE component is dead (HD106)", read.cause == "HD106")
    verify("no explosion is reported: the norm does not grow", "HD202" not in read.codes)

    section("The script, for 55 steps")
    words = ("check", "train.py", "--max-steps", 55)
    seen = headway(*words, code=1, until="Not run", within=HERE)
    verify("check: HD106 is the most likely cause", seen.cause == "HD106")
    verify("… at the line that returns 0", names_line(seen, "return torch.zeros(()"))
    verify("check: HD107, the DFL term dominates", "HD107" in seen.codes)
    verify("… at the line that sums instead of averaging", names_line(seen, "upper).sum()"))
    verify("check: HD803, graphs are retained", "HD803" in seen.codes)
    verify("check: HD002, the norm is read before unscaling", "HD002" in seen.codes)
    verify("… at the line that reads it", names_line(seen, "p.grad.norm().item()"))

    section("A higher clipping limit changes nothing")
    words = ("train.py", "--epochs", 2, "--episodes", 18, "--gradient_clip_norm", 10)
    more = python(*words, within=HERE)
    one, ten = column(ran.text, "Total Loss")[1], column(more.text, "Total Loss")[1]
    same = abs(one - ten) < 0.01 * one
    verify(f"same loss with a limit of 1 and of 10: {one:.1f} and {ten:.1f}", same)

    section("Fixed")
    fixed = python("train_fixed.py", *SHORT, "--run_dir", folder / "after", within=HERE).text
    cpe, dfl = column(fixed, "CPE Loss"), column(fixed, "DFL Loss")
    verify("the CPE term is positive, and falls", min(cpe) > 0 and cpe[-1] < cpe[0])
    verify(f"the DFL term begins near ln 17 = 2.83: {dfl[0]}", 2 < dfl[0] < 3.2)
    verify("… and falls, and so does the box loss", dfl[-1] < dfl[0] and _falls(fixed, "Box Loss"))
    verify("the gradient norm is below 50", max(column(fixed, "Total Grad Norm")[1:]) < 50)
    flat = growth(folder / "after")
    verify(f"memory is flat: {flat:+.1f} MiB, before {grew:+.0f} MiB", flat < grew / 5)
    headway("diagnose", folder / "after")
    clean = headway("check", "train_fixed.py", "--max-steps", 55, until="55 steps", within=HERE)
    verify("check and diagnose find nothing", "headway: healthy" in clean.text)


def _falls(log: str, name: str) -> bool:
    values = column(log, name)
    return values[-1] < values[0]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        main(Path(place))
