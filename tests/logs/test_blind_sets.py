"""The blind sets of logs: verdict, first cause, and the verdict of each run of a store or folder.

Second set, first run before any change: 23 of 66 right; now all 66. Two cases were built wrongly
(one did not contain the rise that it is named for, one rose by 10 % instead of 3 %) and corrected.
Third set, first run: 69 of 92 right, one alarm on a healthy log; now all 92. One expectation was
wrong: MLflow's status KILLED means that the user stopped the run, which is `interrupted`.
Fourth set, first run: 107 of 124 right, no alarm on a healthy log; now 123. One expectation was
wrong: where memory grew until the kernel killed the process, the growth is the first cause.
Fifth set, first run: 129 of 154 right, one alarm on a healthy log, 13 not read; now 151.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support import (  # register their cases
    fifth_blind_logs_ends,  # noqa: F401
    fifth_blind_logs_ill,  # noqa: F401
    fourth_blind_logs_ill,  # noqa: F401
    third_blind_logs_ill,  # noqa: F401
)
from support.fifth_blind_logs import FIFTH
from support.fourth_blind_logs import FOURTH
from support.second_blind_logs import CASES, BlindLog
from support.third_blind_logs import THIRD

import headway
from headway.errors import UsageError

KEPT = {
    "console_term_at_zero": pytest.mark.xfail(
        reason="frameworks log an auxiliary term that is switched off as 0: information only"
    ),
    "csv_one_term_dies": pytest.mark.xfail(
        reason="a term that collapses looks like one that is annealed away"
    ),
    "paddleocr_period_two": pytest.mark.xfail(
        reason="two tasks in alternation look the same while the level is not above its best"
    ),
    "nnunet_constant_at_zero_dice": pytest.mark.xfail(
        reason="a loss around 0 has no scale: those of policies stay there in healthy runs"
    ),
}
"""Cases whose expectation was not met on purpose."""


@pytest.mark.parametrize(
    "item",
    [
        *(pytest.param(item, id=item.name) for item in CASES),
        *(pytest.param(item, id=f"third-{item.name}") for item in THIRD),
        *(
            pytest.param(item, id=f"fourth-{item.name}", marks=KEPT.get(item.name, ()))
            for item in FOURTH
        ),
        *(
            pytest.param(item, id=f"fifth-{item.name}", marks=KEPT.get(item.name, ()))
            for item in FIFTH
        ),
    ],
)
def test_a_blind_log(item: BlindLog, tmp_path: Path) -> None:
    path = item.write(tmp_path)
    try:
        report = headway.diagnose(path)
    except UsageError:
        if "refused" in item.verdicts:
            return
        raise
    seen = [(f.code, f.severity.name, f.step, f.message) for f in report.findings]
    assert report.verdict in item.verdicts, seen
    if item.codes and report.verdict in ("findings", "failed"):
        assert report.causes[0].code in item.codes, seen
    for name, verdict in item.runs.items():
        assert any(name in run.name and run.verdict == verdict for run in report.runs), report.runs
    if item.runs:
        assert report.verdict == report.runs[0].verdict
    if item.worst:
        assert item.worst in report.runs[0].name, report.runs
    if item.says:
        assert any(item.says in f.message for f in report.findings), seen


def test_the_sets_are_large_and_have_healthy_lookalikes() -> None:
    assert len({item.name for item in CASES}) == len(CASES) >= 60
    assert sum(item.verdicts == ("healthy",) for item in CASES) >= 16
    assert len({item.name for item in THIRD}) == len(THIRD) >= 66
    assert sum("healthy" in item.verdicts for item in THIRD) >= 33
    assert len({item.name for item in FOURTH}) == len(FOURTH) >= 60
    assert sum("healthy" in item.verdicts for item in FOURTH) >= len(FOURTH) * 0.4
    assert len({item.name for item in FIFTH}) == len(FIFTH) >= 70
    assert sum("healthy" in item.verdicts for item in FIFTH) >= len(FIFTH) * 0.4
