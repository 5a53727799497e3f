"""Latent diffusion and a text transformer in one model: NaN from one step to the end.

python examples/latent_diffusion/run_example.py
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

from example_runner import Result, headway, python, section, verify  # noqa: E402

BAD_BATCH, BAD_WEIGHT, LAST_GOOD = 92, 190, "step_0180.pt"
"""Steps of the faults in faults.py, and the last checkpoint before the second of them."""

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
"""Items of the notes, and the checks that measure whether this training needs them."""


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="latent-diffusion-") as folder:
        home = Path(folder)
        for file in (*HERE.glob("*.py"), *HERE.glob("*.json")):
            shutil.copy(file, home)
        measure_the_checklist(home)
        clean = run_without_faults(home)
        run_with_faults(home)
        diagnose_and_resume(home, clean)
        run_guarded(home, clean)
        draw_the_loss(home)


def measure_the_checklist(home: Path) -> None:
    section("The checklist, measured")
    found = check(home, "as_found", code=1)
    advised = check(home, "as_advised", code=1, quiet=True)
    fixed = check(home, "fixed", quiet=True)
    print(f"  {'item of the notes':34}{'as found':20}{'as advised':20}fixed")
    rows = {
        item: [answer(result, codes) for result in (found, advised, fixed)]
        for item, codes in CHECKLIST.items()
    }
    for item, answers in rows.items():
        print(f"  {item:34}" + "".join(f"{text:20}" for text in answers).rstrip())
    print()
    verify(
        "every item is answered, by a finding or by checks that ran and found nothing",
        all(all(answers) for answers in rows.values()),
    )
    verify(
        "as found: the latents are not scaled, and bf16 weights lose most of each update",
        {"HD310", "HD502"} <= set(findings(found)),
    )
    verify("the learning rate was not too high", "HD403" not in findings(found))
    lost, worse = share_lost(found), share_lost(advised)
    verify(f"a lower one is worse: {lost} % of the update lost, then {worse} %", worse > lost)
    verify("fp32 weights, latents divided by their spread: no findings", not findings(fixed))
    verify("gradient norms are printed during the run", fixed.errors.count("grad norm") >= 4)


def run_without_faults(home: Path) -> float:
    section("The training without faults")
    return train(home, "train.py", "clean")


def run_with_faults(home: Path) -> None:
    section("A bad batch, and later a bad weight: the original, and the first fix of the notes")
    for name, options in (("zeroed", ()), ("skipped", ("--skip",))):
        final = train(home, "train.py", name, "--faults", *options, quiet=bool(options))
        losses = logged(home / name)
        bad = [step for step, loss in losses.items() if not math.isfinite(loss)]
        verify(
            f"{name}: NaN at {BAD_BATCH}, then from {BAD_WEIGHT} to the end ({max(losses)})",
            bad == [BAD_BATCH, *range(BAD_WEIGHT, max(losses) + 1)] and math.isnan(final),
        )


def diagnose_and_resume(home: Path, clean: float) -> None:
    section("Post-mortem: the log and the checkpoints")
    diagnosed = headway("diagnose", "zeroed", code=1, within=home)
    report = headway("diagnose", "zeroed", "--format", "json", code=1, within=home, quiet=True).json
    [first] = [
        item
        for item in report["findings"]
        if item["code"] == "HD101" and item["severity"] == "error"
    ]
    verify(f"the onset is step {BAD_WEIGHT}", first["step"] == BAD_WEIGHT)
    verify("it is the most likely cause", report["causes"][0]["message"] == first["message"])
    verify(f"the last good checkpoint is {LAST_GOOD}", LAST_GOOD in first["remedies"][0]["text"])
    verify("the config next to the log was read", "max_norm 0.5" in diagnosed.text)
    scanned = headway("scan", "zeroed", code=1, within=home)
    verify(
        "the scan names the tensor, and counts one NaN in it",
        "blocks.layers.0.norm1.weight (1 NaN of 48" in " ".join(scanned.text.split()),
    )
    good = headway("scan", "zeroed", "--last-good", within=home).text.strip()
    verify(f"--last-good prints only the path of {LAST_GOOD}", good == f"zeroed/{LAST_GOOD}")
    final = train(home, "train.py", "resumed", "--resume", good)
    verify(f"resumed: loss {final:.3f}, {clean:.3f} without faults", abs(final - clean) < 0.15)


def run_guarded(home: Path, clean: float) -> None:
    section("The same training under the guard")
    final = train(home, "guarded.py", "guarded", "--faults")
    shown = headway("watch", "guarded/headway", "--once", within=home).text
    report = headway("diagnose", "guarded/headway", code=1, within=home)
    verify(
        f"the update of step {BAD_BATCH} was skipped because of one value in sample 5",
        f"step {BAD_BATCH}: skip:" in shown and "in sample 5, at feature 7" in report.text,
    )
    verify(
        f"at step {BAD_WEIGHT} the guard rolled back to the last snapshot that was finite",
        f"step {BAD_WEIGHT}: roll-back:" in shown and "HD301" in report.codes,
    )
    verify(f"held-out loss {final:.3f}, {clean:.3f} without faults", abs(final - clean) < 0.15)
    saved = headway("scan", "guarded", within=home, quiet=True)
    verify("every checkpoint of this run is clean", "headway: healthy" in saved.text)
    good = headway("scan", "guarded", "--last-good", within=home).text.strip()
    step = int(re.findall(r"step_?(\d+)", good)[-1])
    verify(f"the last good checkpoint is of step {step}, after both faults", step >= 240)


def draw_the_loss(home: Path) -> None:
    section("Report and plot of the loss")
    for name in ("zeroed", "guarded/headway"):
        page = f"{name.split('/')[0]}.html"
        headway("report", name, "-o", page, within=home)
        verify(f"{page} is one file", (home / page).stat().st_size > 50_000)
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
    verify("loss_curve.png is drawn", (home / "loss_curve.png").stat().st_size > 5_000)


def check(home: Path, config: str, *, code: int = 0, quiet: bool = False) -> Result:
    """Run `headway check` with a config, with all its output."""
    return headway(
        *("check", "train.py", "--max-steps", 40, "--grad-log-interval", 10, "--verbose"),
        *("--", "--config", f"{config}.json", "--out", "unused"),
        code=code, within=home, quiet=quiet,
    )  # fmt: skip


def findings(result: Result) -> list[str]:
    """The codes of all findings, including symptoms."""
    return re.findall(r"^ *[✗!] (?:error |warning )?(HD\d{3})", result.text, flags=re.M)


def answer(result: Result, codes: tuple[str, ...]) -> str:
    """Those of these codes that were found, or how many ran without a finding; "" if none ran."""
    hits = [code for code in codes if code in findings(result)]
    skipped = re.findall(r"^  (HD\d{3})  ", result.text, flags=re.M)
    ran = [code for code in codes if code not in skipped]
    return ", ".join(hits) if hits else f"{len(ran)} checks passed" if ran else ""


def share_lost(result: Result) -> float:
    """Percentage of the weights that a step does not change."""
    return float(re.findall(r"([\d.]+) % of the elements of bfloat16", result.text)[0])


def train(home: Path, script: str, name: str, *options: object, quiet: bool = False) -> float:
    """Run a training; the held-out loss at its end."""
    words = (script, "--config", "fixed.json", "--out", name, *options)
    return float(python(*words, within=home, quiet=quiet).text.split()[-1])


def logged(run: Path) -> dict[int, float]:
    """The losses of a run's log, by step."""
    rows = map(json.loads, (run / "training_log.jsonl").read_text().splitlines())
    return {row["step"]: row["loss"] for row in rows}


if __name__ == "__main__":
    main()
