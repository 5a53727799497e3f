"""Finds checks and pages by a symptom in the user's own words: `nan`, `loss does not fall`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass

from headway import registry
from headway.core.check import Check


@dataclass(frozen=True, slots=True)
class Symptom:
    """A complaint, the page about it, and the checks to look at first."""

    title: str
    page: str
    """Below `docs/`; empty if the pages of the checks say it all."""
    words: str
    """Words and phrases with which people describe it, separated by commas."""
    codes: tuple[str, ...]


SYMPTOMS = (
    Symptom(
        "The loss is NaN",
        "recipes/nan.md",
        "nan, inf, not a number, infinite, nonfinite, non-finite, loss nan, nan loss, nan gradient",
        ("HD101", "HD201", "HD501", "HD303", "HD301", "HD102"),
    ),
    Symptom(
        "My loss does not go down",
        "recipes/does-not-learn.md",
        "loss does not fall, not go down, does not decrease, not learning, does not learn, stuck, "
        "plateau, flat loss, stalled, constant loss, no progress, loss not decreasing, "
        "improvement, no improvement, not improve, loss is 0.693, 0.693, 2.303, random guess, "
        "chance level",
        ("HD105", "HD110", "HD401", "HD204", "HD404", "HD206", "HD306", "HD512"),
    ),
    Symptom(
        "It trains, but the metric is bad",
        "recipes/bad-metric.md",
        "metric is bad, accuracy, low accuracy, bad metric, metric, f1, map, predicts one class, "
        "same class, wrong predictions, poor results",
        ("HD506", "HD903", "HD106", "HD107", "HD512", "HD505", "HD509"),
    ),
    Symptom(
        "Validation is much worse than training",
        "recipes/validation-worse.md",
        "validation, val loss, validation worse, validation loss increases, validation loss goes "
        "up, val loss increases, val loss goes up, overfit, overfitting, generalise, generalize, "
        "test accuracy, eval, evaluation",
        ("HD903", "HD117", "HD507", "HD508", "HD512", "HD902"),
    ),
    Symptom(
        "CUDA out of memory",
        "recipes/out-of-memory.md",
        "oom, out of memory, cuda out of memory, cuda oom, gpu memory, vram, ram",
        ("HD808", "HD809", "HD803", "HD802"),
    ),
    Symptom(
        "Memory grows",
        "recipes/memory.md",
        "memory, memory leak, leak, leaks, memory grows, memory keeps growing, memory increases",
        ("HD803", "HD802", "HD801", "HD808", "HD809"),
    ),
    Symptom(
        "My job was killed",
        "recipes/killed.md",
        "killed, job killed, job was killed, sigkill, exit code 137, 137, oom killer, preempted, "
        "vanished, process died, segmentation fault, segfault, core dumped, exit code",
        ("HD913", "HD809", "HD801", "HD915"),
    ),
    Symptom(
        "A device-side assert",
        "recipes/device-assert.md",
        "device side assert, device-side assert, cuda error, assert triggered, illegal memory "
        "access, cublas",
        ("HD912", "HD505"),
    ),
    Symptom(
        "A DataLoader worker exited",
        "recipes/dataloader-worker.md",
        "dataloader worker, worker exited, worker exited unexpectedly, dataloader, num workers, "
        "shared memory, bus error",
        ("HD514", "HD508", "HD804"),
    ),
    Symptom(
        "Jupyter and Colab",
        "notebooks.md",
        "jupyter, notebook, notebooks, colab, ipython, cell",
        ("HD003",),
    ),
    Symptom(
        "Several ranks hang",
        "recipes/ddp-hangs.md",
        "hang, hangs, hung, deadlock, freezes, stops responding, ddp hangs, nccl timeout, timeout, "
        "waits forever",
        ("HD914", "HD607", "HD608", "HD604"),
    ),
    Symptom(
        "A spike in the loss",
        "recipes/spike.md",
        "spike, spikes, jump, loss spike, explode, explodes, exploding, diverge, diverges, "
        "divergence, blows up, loss rises, loss increases, goes up",
        ("HD103", "HD104", "HD207", "HD202", "HD403", "HD115"),
    ),
    Symptom(
        "The loss swings",
        "recipes/spike.md",
        "oscillate, oscillation, loss oscillates, swing, fluctuate, zigzag, unstable, noisy loss",
        ("HD115", "HD403", "HD103"),
    ),
    Symptom(
        "The loss is 0",
        "recipes/nan.md",
        "loss is 0, loss 0, loss is zero, loss zero, zero loss, loss becomes 0, loss drops to 0",
        ("HD102", "HD112", "HD106", "HD117"),
    ),
    Symptom(
        "Gradients explode, vanish or are zero",
        "",
        "exploding gradients, gradient explosion, gradients explode, vanishing gradients, "
        "gradients vanish, zero gradients, gradients are zero, gradient is zero, no gradient, "
        "grad is none",
        ("HD202", "HD203", "HD205", "HD204", "HD207"),
    ),
    Symptom(
        "The learning rate",
        "",
        "learning rate, lr, warmup, warm up, scheduler, schedule",
        ("HD403", "HD404", "HD405", "HD406", "HD417"),
    ),
    Symptom(
        "Weights do not change",
        "",
        "weights do not change, weights not updating, parameters not updating, parameters do not "
        "change, model does not update, frozen",
        ("HD306", "HD401", "HD204", "HD310", "HD404"),
    ),
    Symptom(
        "Training is slow",
        "",
        "slow, slower, training is slow, slows down, data loader slow, gpu utilization, "
        "throughput, step time, bottleneck, speed, gpu is idle, idle gpu, gpu not used",
        ("HD805", "HD804", "HD806", "HD807"),
    ),
    Symptom(
        "Tensors on two devices",
        "",
        "same device, two devices, different devices, all tensors to be on, wrong device",
        ("HD901", "HD904"),
    ),
    Symptom(
        "backward() raises an error",
        "",
        "second time, retain graph, inplace, in-place, inplace operation, does not require grad, "
        "element 0 of tensors, grad_fn",
        ("HD907", "HD803", "HD108", "HD905"),
    ),
    Symptom(
        "fp16 and bf16",
        "recipes/fp16.md",
        "fp16, bf16, half precision, mixed precision, amp, autocast, loss scale, grad scaler, "
        "overflow, underflow",
        ("HD309", "HD311", "HD312", "HD313", "HD314", "HD315"),
    ),
    Symptom(
        "One term of the loss is dead",
        "recipes/dead-term.md",
        "loss component, loss term, one loss zero, dead term, dominates, multi task",
        ("HD106", "HD107"),
    ),
    Symptom(
        "A resume goes wrong",
        "recipes/resume.md",
        "resume, checkpoint, restart, after loading, load state, after resume, jumps after resume, "
        "worse after resume",
        ("HD407", "HD701", "HD702", "HD706", "HD406"),
    ),
    Symptom(
        "A checkpoint cannot be read",
        "after.md",
        "corrupt checkpoint, checkpoint is corrupt, corrupted, damaged, truncated, unreadable, "
        "cannot load checkpoint, can't load checkpoint, failed finding central directory",
        ("HD702", "HD701", "HD706"),
    ),
    Symptom(
        "Is this checkpoint safe to load?",
        "security.md",
        "safe, unsafe, malicious, pickle, virus, weights only, checkpoint safe, untrusted",
        ("HD703",),
    ),
    Symptom(
        "The loss is negative",
        "",
        "negative, loss is negative, negative loss, loss below zero",
        ("HD111",),
    ),
    Symptom(
        "The ranks differ",
        "recipes/ranks.md",
        "ranks differ, ranks diverge, replicas differ, ranks out of sync, desync, desynchronised, "
        "same data on every rank, same batches",
        ("HD601", "HD603", "HD606", "HD605"),
    ),
    Symptom(
        "Gradient clipping",
        "recipes/clipping.md",
        "clip, clipping, gradient norm, grad norm, max norm",
        ("HD208", "HD202", "HD605"),
    ),
)
_WORD = re.compile(r"[a-z0-9]+")
_COMMON = frozenset((
    "a", "an", "the", "my", "is", "are", "it", "its", "of", "in", "on", "to", "does", "do", "not",
    "after", "with", "when", "while", "few", "steps", "step", "training", "train", "model", "run",
    "runs", "keeps", "get", "gets", "every", "each", "error", "problem", "bad", "too", "much",
))  # fmt: skip
_ENDINGS = ("ing", "ion", "ed", "es", "s", "e")
_STEM = 4
"""Letters that must be left of a word without its ending."""
SHORTEST = 3
"""Letters of a word that is searched for."""
MAX_MATCHES = 8
FITS = 2
"""Score from which a page is named: a word of its title, or all words of a phrase."""


@dataclass(frozen=True, slots=True)
class SymptomMatch:
    """The result of a search: the page, if one fits, and checks, the best first."""

    symptom: Symptom | None
    checks: tuple[type[Check], ...]


def search_symptom(query: str) -> SymptomMatch | None:
    """The page and the checks for a symptom; None if nothing fits."""
    words = [word for word in _content_words(query) if len(word) >= SHORTEST]
    if not words:
        return None
    scored = [(_phrase_score(query, words, item), item) for item in SYMPTOMS]
    best, symptom = max(scored, key=lambda pair: pair[0])
    fits = best >= FITS
    named = [
        check.code
        for check in registry.all_checks()
        if set(_content_words(check.name)) == set(words)
    ]
    codes = [*named, *(symptom.codes if fits else ())]
    scores = {check.code: _check_score(words, check) for check in registry.all_checks()}
    # A check must have every word of the query, unless a page was found.
    least = 2.0 * len(words)
    others = sorted((code for code in scores if scores[code] >= least), key=lambda c: -scores[c])
    found = [registry.find(code) for code in dict.fromkeys([*codes, *others])]
    checks = tuple(check for check in found if check is not None)[:MAX_MATCHES]
    if not checks:
        return None
    return SymptomMatch(symptom if fits else None, checks)


def _words(text: str) -> list[str]:
    """The words without their endings: `decreases` and `decreasing` are one."""
    return [_stem(word) for word in _WORD.findall(text.lower())]


def _stem(word: str) -> str:
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= _STEM:
            return word.removesuffix(ending)
    return word


def _content_words(text: str) -> list[str]:
    found = [word for word in _WORD.findall(text.lower()) if word not in _COMMON]
    return [_stem(word) for word in found] or _words(text)


def _phrase_score(query: str, words: Sequence[str], symptom: Symptom) -> float:
    """How well a query fits: a whole phrase counts most, then words of the title and phrases."""
    asked = " ".join(_words(query))
    score = 0.0
    for phrase in symptom.words.split(","):
        known = " ".join(_words(phrase))
        if known == asked:
            score += 20
        elif f" {known} " in f" {asked} ":
            score += 4 * len(known.split())
        else:
            own = set(_content_words(phrase))
            shared = own & set(words)
            if shared and own <= set(words):
                score += 3
            elif shared:
                score += len(shared) / (len(own) + len(words))
    title = set(_content_words(symptom.title))
    return score + 2 * len(title & set(words))


def _check_score(words: Sequence[str], check: type[Check]) -> float:
    name, summary = set(_words(check.name)), set(_words(check.summary))
    text = set(_words(inspect.getdoc(check) or ""))
    return sum(
        5.0 if word in name else 3.0 if word in summary else 2.0 if word in text else 0.0
        for word in words
    )
