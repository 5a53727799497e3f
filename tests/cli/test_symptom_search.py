"""`headway explain SYMPTOM`: a complaint leads to its page and to the checks to look at."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headway import registry
from headway.cli.symptom_search import SYMPTOMS, search_symptom

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    ("asked", "page", "code"),
    [
        ("nan", "recipes/nan.md", "HD101"),
        ("my loss is NaN", "recipes/nan.md", "HD101"),
        ("loss does not fall", "recipes/does-not-learn.md", "HD105"),
        ("the loss is not decreasing", "recipes/does-not-learn.md", "HD105"),
        ("oom", "recipes/out-of-memory.md", "HD808"),
        ("CUDA out of memory", "recipes/out-of-memory.md", "HD808"),
        ("memory leak", "recipes/memory.md", "HD803"),
        ("my job was killed", "recipes/killed.md", "HD913"),
        ("device-side assert triggered", "recipes/device-assert.md", "HD912"),
        ("DataLoader worker exited unexpectedly", "recipes/dataloader-worker.md", "HD514"),
        ("jupyter", "notebooks.md", "HD003"),
        ("DDP hangs", "recipes/ddp-hangs.md", "HD914"),
        ("NCCL timeout", "recipes/ddp-hangs.md", "HD914"),
        ("validation is much worse than training", "recipes/validation-worse.md", "HD903"),
        ("accuracy is bad", "recipes/bad-metric.md", "HD506"),
        ("loss spike", "recipes/spike.md", "HD103"),
        ("fp16", "recipes/fp16.md", "HD309"),
        ("fp16 overflow", "recipes/fp16.md", "HD311"),
        (
            "validation loss increases while training loss decreases",
            "recipes/validation-worse.md",
            "HD903",
        ),
        ("loss oscillates", "recipes/spike.md", "HD115"),
        ("loss is 0", "recipes/nan.md", "HD102"),
        ("segmentation fault", "recipes/killed.md", "HD913"),
        ("my training is slow", "", "HD805"),
        ("gradients are zero", "", "HD205"),
        ("exploding gradients", "", "HD202"),
        ("learning rate too low", "", "HD404"),
        ("weights do not change", "", "HD306"),
        ("Expected all tensors to be on the same device", "", "HD901"),
        ("modified by an inplace operation", "", "HD907"),
        ("my gpu is idle", "", "HD805"),
        ("no improvement", "recipes/does-not-learn.md", "HD105"),
        ("loss is 0.693", "recipes/does-not-learn.md", "HD105"),
        ("loss jumps after resume", "recipes/resume.md", "HD407"),
        ("checkpoint corrupt", "after.md", "HD702"),
        ("is my checkpoint safe", "security.md", "HD703"),
        ("loss is negative", "", "HD111"),
        ("ddp ranks differ", "recipes/ranks.md", "HD601"),
    ],
)
def test_a_symptom_leads_to_its_page(asked: str, page: str, code: str) -> None:
    found = search_symptom(asked)
    assert found is not None
    assert found.symptom is not None
    assert (found.symptom.page, found.checks[0].code) == (page, code)


def test_words_of_a_check_find_it_without_a_page() -> None:
    found = search_symptom("nonlinearity")
    assert found is not None
    assert "HD908" in [check.code for check in found.checks]


@pytest.mark.parametrize("asked", ["zebra crossing", "x", "", "  "])
def test_nothing_is_made_up(asked: str) -> None:
    assert search_symptom(asked) is None


def test_every_page_and_code_exists() -> None:
    for item in SYMPTOMS:
        assert not item.page or (DOCS / item.page).is_file(), item.page
        for code in item.codes:
            assert registry.find(code) is not None, code


def test_the_command(invoke) -> None:
    done = invoke("explain", "loss", "does", "not", "fall")
    assert done.exit_code == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:2] == ["My loss does not go down", "  Page: docs/recipes/does-not-learn.md"]
    assert lines[-1] == "Next: headway explain HD105"
    assert max(map(len, lines)) <= 80
    data = json.loads(invoke("explain", "oom", "--format", "json").stdout)
    assert (data["symptom"], data["page"]) == ("oom", "docs/recipes/out-of-memory.md")
    assert data["checks"][0]["code"] == "HD808"
