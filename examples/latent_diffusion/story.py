"""Latent diffusion and a text transformer in one model: NaN from one step on, for ever.

python examples/latent_diffusion/story.py
"""

from __future__ import annotations

import json
import math
import re
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from telling import Result, chapter, holdfast, holds, python  # noqa: E402

BAD_BATCH, BAD_WEIGHT, LAST_GOOD = 92, 190, "step_0180.pt"
"""What faults.py lets happen, and the last checkpoint before the second of them."""

CHECKLIST = {
    "learning rate 5e-5 or lower": ("HD403", "HD308", "HD104"),
    "grad_clip_norm 0.5 or lower": ("HD202", "HD207", "HD208"),
    "loss validation before backward": ("HD101", "HD201"),
    "epsilon in all divisions": ("HD112", "HD504", "HD411"),
    "normalised latents": ("HD502", "HD511"),
    "2000 or more warm-up steps": ("HD103", "HD413"),
    "gradient accumulation": ("HD116", "HD209"),
    "bf16, with safeguards": ("HD309", "HD310", "HD311"),
}
"""What the notes ask for, and the checks that measure whether this training needs it."""


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="latent-diffusion-") as folder:
        runs = Path(folder)
        the_checklist(runs)
        clean = the_clean_run(runs)
        the_dead_run(runs)
        the_post_mortem(runs, clean)
        the_guarded_run(runs, clean)
        the_pictures(runs)


def the_checklist(runs: Path) -> None:
    chapter("The checklist, asked of the config")
    found = check(runs, "as_found", code=1)
    advised = check(runs, "as_advised", code=1, quiet=True)
    mended = check(runs, "mended")
    print(f"  {'item of the notes':34}{'as found':20}{'as advised':20}mended")
    for item, codes in CHECKLIST.items():
        answers = [answer(result, codes) for result in (found, advised, mended)]
        print(f"  {item:34}" + "".join(f"{text:20}" for text in answers).rstrip())
        holds(f"{item}: answered", all(answers))
    print()
    holds(
        "as found: the latents are unscaled, and bf16 weights lose most of each update",
        {"HD310", "HD502"} <= set(findings(found)) and "HD403" not in findings(found),
    )
    lost, worse = (share_lost(result) for result in (found, advised))
    holds(f"a smaller rate makes that worse: {lost} % lost, then {worse} %", worse > lost)
    holds(
        "fp32 weights and latents divided by their spread: nothing is found", not findings(mended)
    )
    holds(
        "gradient norms are shown while it runs", len(re.findall("grad norm", mended.errors)) >= 3
    )


def the_clean_run(runs: Path) -> float:
    chapter("The training, when nothing goes wrong")
    return train(runs, "train.py", "clean")


def the_dead_run(runs: Path) -> None:
    chapter("A bad batch, and later a bad weight: as it was found, and as it was first mended")
    for name, options in (("zeroed", ()), ("skipped", ("--skip",))):
        final = train(runs, "train.py", name, "--faults", *options, quiet=bool(options))
        losses = logged(runs / name)
        bad = [step for step, loss in losses.items() if not math.isfinite(loss)]
        holds(
            f"{name}: NaN at {BAD_BATCH}, then from {BAD_WEIGHT} to the end ({max(losses)})",
            bad == [BAD_BATCH, *range(BAD_WEIGHT, max(losses) + 1)] and math.isnan(final),
        )


def the_post_mortem(runs: Path, clean: float) -> None:
    chapter("Post-mortem: the log and the checkpoints")
    dead = runs / "zeroed"
    told = holdfast("diagnose", dead, code=1)
    report = holdfast("diagnose", dead, "--format", "json", code=1, quiet=True).json
    [first] = [
        item
        for item in report["findings"]
        if item["code"] == "HD101" and item["severity"] == "error"
    ]
    holds(f"the onset is step {BAD_WEIGHT}", first["step"] == BAD_WEIGHT)
    holds("it is the first cause", report["causes"][0]["message"] == first["message"])
    holds(f"the last good checkpoint is {LAST_GOOD}", LAST_GOOD in first["remedies"][0]["text"])
    holds("the config beside the log was read", "max_norm 0.5" in told.text)
    scanned = holdfast("scan", dead, code=1)
    holds(
        "the scan names the tensor, and the one number in it",
        "blocks.layers.0.norm1.weight (1 NaN of 48" in " ".join(scanned.text.split()),
    )
    good = holdfast("scan", dead, "--last-good").text.strip()
    holds(f"for a shell: {LAST_GOOD} alone", Path(good) == dead / LAST_GOOD)
    final = train(runs, "train.py", "resumed", "--resume", good)
    holds(f"gone on from there: {final:.3f}, {clean:.3f} clean", abs(final - clean) < 0.15)


def the_guarded_run(runs: Path, clean: float) -> None:
    chapter("The same training under the guard")
    final = train(runs, "guarded.py", "guarded", "--faults")
    run = runs / "guarded" / "holdfast"
    shown = holdfast("watch", run, "--once").text
    report = holdfast("diagnose", run, code=1)
    holds(
        f"the batch of step {BAD_BATCH} was skipped, for one number of sample 5",
        f"step {BAD_BATCH}: skip:" in shown and "in sample 5, at feature 7" in report.text,
    )
    holds(
        f"at step {BAD_WEIGHT} it went back to the last snapshot that was seen to be finite",
        f"step {BAD_WEIGHT}: roll-back:" in shown and "HD301" in report.codes,
    )
    holds(f"held-out loss {final:.3f}, {clean:.3f} clean", abs(final - clean) < 0.15)
    saved = holdfast("scan", runs / "guarded", quiet=True)
    holds("every checkpoint of it is clean", "holdfast: healthy" in saved.text)
    good = holdfast("scan", runs / "guarded", "--last-good").text.strip()
    step = int(re.findall(r"step_?(\d+)", good)[-1])
    holds(f"the last good one is of step {step}, long after both faults", step >= 240)


def the_pictures(runs: Path) -> None:
    chapter("The loss, to look at")
    for name in ("zeroed", "guarded/holdfast"):
        page = runs / f"{name.split('/')[0]}.html"
        holdfast("report", runs / name, "-o", page)
        holds(f"{page.name} is one file", page.stat().st_size > 50_000)
    try:
        import matplotlib
    except ImportError:
        print("  matplotlib is not installed: no plot")
        return
    matplotlib.use("Agg")
    from holdfast import diagnose

    axes = diagnose(runs / "zeroed").plot("loss")
    axes.set_yscale("log")
    axes.figure.savefig(runs / "loss_curve.png")
    holds("loss_curve.png is drawn", (runs / "loss_curve.png").stat().st_size > 5_000)


def check(runs: Path, config: str, *, code: int = 0, quiet: bool = False) -> Result:
    """Ask `holdfast check` about a config, all it has to say."""
    script = ("--config", HERE / f"{config}.json", "--out", runs / "unused")
    options = ("--max-steps", 40, "--grad-log-interval", 10, "--verbose")
    return holdfast("check", HERE / "train.py", *options, "--", *script, code=code, quiet=quiet)


def findings(result: Result) -> list[str]:
    """The codes of what was found, symptoms included."""
    return re.findall(r"^ *[✗!] (HD\d{3})", result.text, flags=re.M)


def answer(result: Result, codes: tuple[str, ...]) -> str:
    """What was found of these, or that they ran and found nothing; else nothing."""
    hits = [code for code in codes if code in findings(result)]
    skipped = re.findall(r"^  (HD\d{3})  ", result.text, flags=re.M)
    ran = [code for code in codes if code not in skipped]
    return ", ".join(hits) if hits else f"{len(ran)} checks passed" if ran else ""


def share_lost(result: Result) -> float:
    """Percent of the weights that a step leaves as they are."""
    return float(re.findall(r"([\d.]+) % of the elements of bfloat16", result.text)[0])


def train(runs: Path, script: str, name: str, *options: object, quiet: bool = False) -> float:
    """Run a training; the held-out loss at its end."""
    words = (HERE / script, "--config", HERE / "mended.json", "--out", runs / name, *options)
    return float(python(*words, quiet=quiet).text.split()[-1])


def logged(run: Path) -> dict[int, float]:
    """The losses of a run's log, by step."""
    rows = map(json.loads, (run / "training_log.jsonl").read_text().splitlines())
    return {row["step"]: row["loss"] for row in rows}


if __name__ == "__main__":
    main()
