"""A few-shot detector: a term that is never computed, memory that grows, and a norm misread."""

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

from telling import Result, chapter, headway, holds, line_of, python, recorded  # noqa: E402

BEFORE = HERE / "train.py"
SHORT = ("--epochs", 6, "--episodes", 18)
MIB = 1024**2


def column(log: str, name: str) -> list[float]:
    """What the training printed under this name, epoch by epoch."""
    return [float(found) for found in re.findall(rf"{name}: (\S+)", log)]


def growth(run: Path) -> float:
    """MiB that the process grew by after its first 20 steps."""
    resident = recorded(run, "host_rss_bytes")
    return (resident[-1] - resident[2]) / MIB


def names_line(result: Result, text: str) -> bool:
    """Whether the line of the script that holds this text was named."""
    return result.names("train.py", line_of(BEFORE, text))


def tell(folder: Path) -> None:
    chapter("As it was: the run looks alive, and three things in its log are odd")
    words = ("run", "train.py", "--out", folder / "before", "--", *SHORT)
    ran = headway(*words, within=HERE)
    log = folder / "training.log"
    log.write_text("".join(f"{row}\n" for row in ran.text.splitlines() if row.startswith("Epoch")))
    holds("the loss falls", column(ran.text, "Total Loss")[-1] < column(ran.text, "Total Loss")[0])
    holds("CPE Loss is 0.00 in every epoch", set(column(ran.text, "CPE Loss")) == {0.0})
    grew = growth(folder / "before")
    holds(f"the process grew by {grew:.0f} MiB in 85 steps, and goes on", grew > 15)
    holds("run: HD803 names who keeps the graphs", "self.history['spatial_iou']" in ran.text)
    holds("… and the line that made what is kept", names_line(ran, "/ (heat + mask"))

    chapter("The log alone")
    read = headway("diagnose", log, code=1)
    holds("diagnose: the CPE component is dead (HD106)", read.cause == "HD106")
    holds("no explosion is claimed: the norm is large and does not grow", "HD202" not in read.codes)

    chapter("The script, for 55 steps")
    words = ("check", "train.py", "--max-steps", 55)
    seen = headway(*words, code=1, until="Not run", within=HERE)
    holds("check: HD106 is the most likely cause", seen.cause == "HD106")
    holds("… at the line that returns 0", names_line(seen, "return torch.zeros(()"))
    holds("check: HD107, the DFL term decides alone", "HD107" in seen.codes)
    holds("… at the line that sums where others average", names_line(seen, "upper).sum()"))
    holds("check: HD803, graphs are kept", "HD803" in seen.codes)
    holds("check: HD002, the norm is read while it is still scaled", "HD002" in seen.codes)
    holds("… at the line that reads it", names_line(seen, "p.grad.norm().item()"))

    chapter("What raising the clip would have done")
    words = ("train.py", "--epochs", 2, "--episodes", 18, "--gradient_clip_norm", 10)
    more = python(*words, within=HERE)
    one, ten = column(ran.text, "Total Loss")[1], column(more.text, "Total Loss")[1]
    holds(f"clip 1 and clip 10 train alike: {one:.1f} and {ten:.1f}", abs(one - ten) < 0.01 * one)

    chapter("Mended")
    told = python("train_fixed.py", *SHORT, "--run_dir", folder / "after", within=HERE).text
    cpe, dfl = column(told, "CPE Loss"), column(told, "DFL Loss")
    holds("the CPE term lives, and falls", min(cpe) > 0 and cpe[-1] < cpe[0])
    holds(f"the DFL term begins near ln 17 = 2.83: {dfl[0]}", 2 < dfl[0] < 3.2)
    holds("… and falls, and so does the box loss", dfl[-1] < dfl[0] and _falls(told, "Box Loss"))
    holds("the norm is a number one can read", max(column(told, "Total Grad Norm")[1:]) < 50)
    flat = growth(folder / "after")
    holds(f"memory is flat: {flat:+.1f} MiB, before {grew:+.0f} MiB", flat < grew / 5)
    headway("diagnose", folder / "after")
    clean = headway("check", "train_fixed.py", "--max-steps", 55, until="55 steps", within=HERE)
    holds("check and diagnose find nothing", "headway: healthy" in clean.text)


def _falls(log: str, name: str) -> bool:
    values = column(log, name)
    return values[-1] < values[0]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        tell(Path(place))
