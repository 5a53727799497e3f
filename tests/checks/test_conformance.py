"""What every check must be, present and future: its names, its page, its fixture.

Each test goes through all checks and tells every one that fails. What every check must
do with a stream is in `test_conformance_streams.py`, with a bound in `…_bounds.py`.
"""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import get_args

from support.every_check import for_every_check
from support.literate_cases import read_page

import headway.checks
from headway import registry
from headway.core.check import HEADINGS, Check, Status
from headway.core.findings import Severity
from headway.core.records import EventRecord, SetupRecord, StepRecord, TensorRecord
from headway.core.signals import family

HERE = Path(__file__).parent
SIGNALS_PAGE = HERE.parents[1] / "docs" / "signals.md"

# Codes, names and the default severity are a contract: users, docs and outside tests rely on
# them. A check with a new code needs no entry until it has been released.
PUBLISHED = """
    HD001 check-crashed, HD002 blind-source,
    HD101 nonfinite-loss, HD102 masked-nonfinite-loss, HD103 loss-spike, HD104 loss-divergence,
    HD105 loss-stalled, HD106 dead-loss-component, HD107 dominant-loss-component,
    HD108 detached-loss, HD109 broadcast-loss, HD110 softmax-before-cross-entropy,
    HD111 loss-input-mismatch, HD112 all-labels-ignored, HD113 initial-loss-off,
    HD114 unreachable-target, HD115 loss-oscillation, HD116 sum-reduced-loss, HD117 target-leak,
    HD201 nonfinite-gradient, HD202 exploding-gradient, HD203 vanishing-gradient,
    HD204 missing-gradient, HD205 zero-gradient, HD206 gradients-not-cleared,
    HD207 gradient-spike, HD208 clipping-saturated, HD209 accumulation-unscaled,
    HD210 cross-sample-gradient,
    HD301 nonfinite-weight, HD302 nonfinite-buffer, HD303 nonfinite-activation, HD304 dead-units,
    HD305 saturated-activation, HD306 weight-unchanged, HD307 update-too-small,
    HD308 update-too-large, HD309 half-precision-weights, HD310 update-lost-to-rounding,
    HD311 fp16-overflow, HD312 fp16-underflow, HD313 loss-scale-collapsed,
    HD314 clip-before-unscale, HD315 autocast-inert, HD316 poor-initialisation,
    HD317 attention-logit-growth, HD318 output-logit-drift,
    HD401 parameter-not-optimized, HD402 stale-parameter, HD403 learning-rate-too-high,
    HD404 learning-rate-too-low, HD405 schedule-collapsed, HD406 learning-rate-jump,
    HD407 optimizer-state-lost, HD408 nonfinite-optimizer-state, HD409 frozen-weight-moved,
    HD410 nothing-trainable, HD411 unsafe-epsilon, HD412 over-regularised, HD413 ascending-update,
    HD414 silent-skips, HD415 late-unfreeze-or-freeze,
    HD501 nonfinite-input, HD502 unscaled-input, HD503 constant-input, HD504 empty-batch,
    HD505 label-out-of-range, HD506 class-imbalance, HD507 same-order-each-epoch,
    HD508 duplicate-worker-seed, HD509 input-ignored, HD510 batch-collapsed,
    HD511 unscaled-target, HD512 label-noise,
    HD601 rank-desync, HD602 rank-nonfinite, HD603 rank-order-shared, HD604 straggler-rank,
    HD605 clip-per-shard,
    HD701 nonfinite-checkpoint, HD702 unreadable-checkpoint, HD703 unsafe-pickle,
    HD704 extreme-weight, HD705 unchanged-checkpoint, HD706 weights-not-loaded,
    HD707 untied-weights,
    HD801 host-memory-growth, HD802 device-memory-growth, HD803 retained-graph,
    HD804 step-time-growth, HD805 data-starved, HD806 pageable-transfer, HD807 anomaly-mode-on,
    HD901 device-mismatch, HD902 eval-mode-training, HD903 train-mode-eval,
    HD904 optimizer-before-move, HD905 gradients-disabled, HD906 unregistered-module,
    HD907 inplace-hazard, HD908 missing-nonlinearity, HD909 excessive-dropout,
"""
ERRORS = """
    HD101 HD102 HD104 HD105 HD106 HD108 HD109 HD110 HD111 HD112 HD114 HD115
    HD201 HD202 HD204 HD206 HD210 HD301 HD302 HD303 HD306 HD308 HD309 HD310 HD311 HD313 HD314 HD316
    HD401 HD402 HD403 HD408 HD409 HD410 HD413 HD501 HD504 HD505 HD509 HD601 HD602 HD605
    HD701 HD702 HD703 HD801 HD802 HD803 HD901 HD902 HD905 HD906 HD907
"""
NAMES = dict(item.split() for item in PUBLISHED.replace("\n", " ").split(",") if item.strip())


def stem_of(check: type[Check]) -> str:
    return check.__module__.rpartition(".")[2]


@for_every_check
def test_file_class_and_name_agree(check: type[Check]) -> None:
    prefix, _, rest = stem_of(check).partition("_")
    assert re.fullmatch(r"HD\d{3}", check.code)
    assert check.code == prefix.upper()
    assert check.name == rest.replace("_", "-")
    assert check.__name__.lower() == rest.replace("_", "")
    assert check.__name__[0].isupper()


def test_codes_and_names_are_unique() -> None:
    checks = registry.all_checks()
    for label in ("code", "name"):
        labels = [getattr(item, label) for item in checks]
        assert len(labels) == len(set(labels))


@for_every_check
def test_name_and_severity_are_the_published_ones(check: type[Check]) -> None:
    if check.code not in NAMES:
        return  # not published yet
    assert check.name == NAMES[check.code]
    expected = Severity.ERROR if check.code in ERRORS.split() else Severity.WARNING
    assert check.severity == expected


def test_no_check_asks_where_its_records_come_from() -> None:
    """A rule depends on what its signals mean and on the cadence, never on who wrote the log."""
    asked = []
    for file in sorted(Path(headway.checks.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr in ("source", "foreign"):
                asked.append(f"{file.name}:{node.lineno} .{node.attr}")
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("headway."):
                part = (node.module or "").split(".")[1]
                if part not in ("core", "checks"):
                    asked.append(f"{file.name}:{node.lineno} imports {node.module}")
    assert not asked


@for_every_check
def test_docstring_is_a_page(check: type[Check]) -> None:
    page = inspect.cleandoc(check.__doc__ or "")
    opening, *sections = re.split(r"^## ", page, flags=re.M)
    assert len(opening.strip().splitlines()) == 1, "one sentence before the first heading"
    assert [section.splitlines()[0].strip() for section in sections] == list(HEADINGS)
    for section in sections:
        heading, _, body = section.partition("\n")
        assert body.strip(), f"nothing under {heading}"


@for_every_check
def test_summary_is_one_line(check: type[Check]) -> None:
    assert check.summary.strip() == check.summary
    assert check.summary
    assert "\n" not in check.summary


@for_every_check
def test_status_and_needs(check: type[Check]) -> None:
    assert check.status in get_args(Status)
    kinds = (StepRecord, SetupRecord, TensorRecord, EventRecord)
    assert check.needs.kinds
    assert set(check.needs.kinds) <= set(kinds)
    if TensorRecord in check.needs.kinds:
        assert check.needs.roles, "say which tensors, or coverage counts scans it cannot use"
        assert set(check.needs.roles) <= {"weight", "buffer", "moment", "gradient", "input"}
    if check.bound is not None:
        assert check.bound.signal in check.needs.signals


@for_every_check
def test_needed_signals_are_documented(check: type[Check]) -> None:
    documented = set(re.findall(r"`([^`]+)`", SIGNALS_PAGE.read_text(encoding="utf-8")))
    for name in (*check.needs.signals, *check.needs.any_of):
        known = family(name).replace("/*", "/<component>")
        assert known in documented, f"docs/signals.md does not know {name}"


@for_every_check
def test_limits_can_be_set_from_toml(check: type[Check]) -> None:
    assert is_dataclass(check.Limits)
    for item in fields(check.Limits):
        value = getattr(check.Limits(), item.name)
        assert isinstance(value, (bool, int, float, str)), item.name
        assert getattr(check({item.name: value}).limits, item.name) == value


@for_every_check
def test_fixture_page_has_a_firing_and_a_quiet_case(check: type[Check]) -> None:
    path = HERE / f"{stem_of(check)}.md"
    assert path.is_file(), f"write {path.name}: prose, records and the expected findings"
    assert path.read_text(encoding="utf-8").startswith(f"# {check.code} {check.name}\n")
    cases = read_page(path)
    assert any(case.findings for case in cases), "no case in which it fires"
    assert any(case.findings == [] and case.not_run is None for case in cases), "no quiet case"
