"""Latent diffusion and a text transformer in one model: NaN from one step on, for ever.

python examples/latent_diffusion/story.py
"""

from __future__ import annotations

import json
import math
import re
import shutil
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from telling import Result, chapter, headway, holds, python  # noqa: E402

BAD_BATCH, BAD_WEIGHT, LAST_GOOD = 92, 190, "step_0180.pt"
"""What faults.py lets happen, and the last checkpoint before the second of them."""

CHECKLIST = {
    "learning rate 5e-5 or lower": ("HD403", "HD404", "HD104"),
    "grad_clip_norm 0.5 or lower": ("HD202", "HD207", "HD208"),
    "loss validation before backward": ("HD101", "HD201"),
    "epsilon in all divisions": ("HD112", "HD504", "HD411"),
    "normalised latents": ("HD502", "HD511"),
    "2000 or more warm-up steps": ("HD308", "HD103"),
    "gradient accumulation": ("HD116", "HD209"),
    "bf16, with safeguards": ("HD309", "HD310", "HD311"),
}
"""What the notes ask for, and the checks that measure whether this training needs it."""


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="latent-diffusion-") as folder:
        home = Path(folder)
        for file in (*HERE.glob("*.py"), *HERE.glob("*.json")):
            shutil.copy(file, home)
        the_checklist(home)
        clean = the_clean_run(home)
        the_dead_run(home)
        the_post_mortem(home, clean)
        the_guarded_run(home, clean)
        the_pictures(home)


def the_checklist(home: Path) -> None:
    chapter("The checklist, asked of the config")
    found = check(home, "as_found", code=1)
    advised = check(home, "as_advised", code=1, quiet=True)
    mended = check(home, "mended", quiet=True)
    print(f"  {'item of the notes':34}{'as found':20}{'as advised':20}mended")
    rows = {
        item: [answer(result, codes) for result in (found, advised, mended)]
        for item, codes in CHECKLIST.items()
    }
    for item, answers in rows.items():
        print(f"  {item:34}" + "".join(f"{text:20}" for text in answers).rstrip())
    print()
    holds(
        "every item is answered, by a finding or by checks that ran and found nothing",
        all(all(answers) for answers in rows.values()),
    )
    holds(
        "as found: the latents are unscaled, and bf16 weights lose most of each update",
        {"HD310", "HD502"} <= set(findings(found)),
    )
    holds("the rate was not too high", "HD403" not in findings(found))
    lost, worse = share_lost(found), share_lost(advised)
    holds(f"a lower one makes it worse: {lost} % of the update lost, then {worse} %", worse > lost)
    holds("fp32 weights, latents divided by their spread: nothing found", not findings(mended))
    holds("gradient norms are shown while it runs", mended.errors.count("grad norm") >= 4)


def the_clean_run(home: Path) -> float:
    chapter("The training, when nothing goes wrong")
    return train(home, "train.py", "clean")


def the_dead_run(home: Path) -> None:
    chapter("A bad batch, and later a bad weight: as it was found, and as it was first mended")
    for name, options in (("zeroed", ()), ("skipped", ("--skip",))):
        final = train(home, "train.py", name, "--faults", *options, quiet=bool(options))
        losses = logged(home / name)
        bad = [step for step, loss in losses.items() if not math.isfinite(loss)]
        holds(
            f"{name}: NaN at {BAD_BATCH}, then from {BAD_WEIGHT} to the end ({max(losses)})",
            bad == [BAD_BATCH, *range(BAD_WEIGHT, max(losses) + 1)] and math.isnan(final),
        )


def the_post_mortem(home: Path, clean: float) -> None:
    chapter("Post-mortem: the log and the checkpoints")
    told = headway("diagnose", "zeroed", code=1, within=home)
    report = headway("diagnose", "zeroed", "--format", "json", code=1, within=home, quiet=True).json
    [first] = [
        item
        for item in report["findings"]
        if item["code"] == "HD101" and item["severity"] == "error"
    ]
    holds(f"the onset is step {BAD_WEIGHT}", first["step"] == BAD_WEIGHT)
    holds("it is the first cause", report["causes"][0]["message"] == first["message"])
    holds(f"the last good checkpoint is {LAST_GOOD}", LAST_GOOD in first["remedies"][0]["text"])
    holds("the config beside the log was read", "max_norm 0.5" in told.text)
    scanned = headway("scan", "zeroed", code=1, within=home)
    holds(
        "the scan names the tensor, and the one number in it",
        "blocks.layers.0.norm1.weight (1 NaN of 48" in " ".join(scanned.text.split()),
    )
    good = headway("scan", "zeroed", "--last-good", within=home).text.strip()
    holds(f"for a shell: the path of {LAST_GOOD} alone", good == f"zeroed/{LAST_GOOD}")
    final = train(home, "train.py", "resumed", "--resume", good)
    holds(f"gone on from there: {final:.3f}, {clean:.3f} clean", abs(final - clean) < 0.15)


def the_guarded_run(home: Path, clean: float) -> None:
    chapter("The same training under the guard")
    final = train(home, "guarded.py", "guarded", "--faults")
    shown = headway("watch", "guarded/headway", "--once", within=home).text
    report = headway("diagnose", "guarded/headway", code=1, within=home)
    holds(
        f"the batch of step {BAD_BATCH} was skipped, for one number of sample 5",
        f"step {BAD_BATCH}: skip:" in shown and "in sample 5, at feature 7" in report.text,
    )
    holds(
        f"at step {BAD_WEIGHT} it went back to the last snapshot that was seen to be finite",
        f"step {BAD_WEIGHT}: roll-back:" in shown and "HD301" in report.codes,
    )
    holds(f"held-out loss {final:.3f}, {clean:.3f} clean", abs(final - clean) < 0.15)
    saved = headway("scan", "guarded", within=home, quiet=True)
    holds("every checkpoint of it is clean", "headway: healthy" in saved.text)
    good = headway("scan", "guarded", "--last-good", within=home).text.strip()
    step = int(re.findall(r"step_?(\d+)", good)[-1])
    holds(f"the last good one is of step {step}, long after both faults", step >= 240)


def the_pictures(home: Path) -> None:
    chapter("The loss, to look at")
    for name in ("zeroed", "guarded/headway"):
        page = f"{name.split('/')[0]}.html"
        headway("report", name, "-o", page, within=home)
        holds(f"{page} is one file", (home / page).stat().st_size > 50_000)
    try:
        import matplotlib
    except ImportError:
        print("  matplotlib is not installed: no plot")
        return
    matplotlib.use("Agg")
    from headway import diagnose

    axes = diagnose(home / "zeroed").plot("loss")
    axes.set_yscale("log")
    axes.figure.savefig(home / "loss_curve.png")
    holds("loss_curve.png is drawn", (home / "loss_curve.png").stat().st_size > 5_000)


def check(home: Path, config: str, *, code: int = 0, quiet: bool = False) -> Result:
    """Ask `headway check` about a config, all it has to say."""
    return headway(
        *("check", "train.py", "--max-steps", 40, "--grad-log-interval", 10, "--verbose"),
        *("--", "--config", f"{config}.json", "--out", "unused"),
        code=code, within=home, quiet=quiet,
    )  # fmt: skip


def findings(result: Result) -> list[str]:
    """The codes of what was found, symptoms included."""
    return re.findall(r"^ *[✗!] (?:error |warning )?(HD\d{3})", result.text, flags=re.M)


def answer(result: Result, codes: tuple[str, ...]) -> str:
    """What was found of these, or that they ran and found nothing; else nothing."""
    hits = [code for code in codes if code in findings(result)]
    skipped = re.findall(r"^  (HD\d{3})  ", result.text, flags=re.M)
    ran = [code for code in codes if code not in skipped]
    return ", ".join(hits) if hits else f"{len(ran)} checks passed" if ran else ""


def share_lost(result: Result) -> float:
    """Percent of the weights that a step leaves as they are."""
    return float(re.findall(r"([\d.]+) % of the elements of bfloat16", result.text)[0])


def train(home: Path, script: str, name: str, *options: object, quiet: bool = False) -> float:
    """Run a training; the held-out loss at its end."""
    words = (script, "--config", "mended.json", "--out", name, *options)
    return float(python(*words, within=home, quiet=quiet).text.split()[-1])


def logged(run: Path) -> dict[int, float]:
    """The losses of a run's log, by step."""
    rows = map(json.loads, (run / "training_log.jsonl").read_text().splitlines())
    return {row["step"]: row["loss"] for row in rows}


if __name__ == "__main__":
    main()
