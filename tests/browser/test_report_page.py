"""The report in a real browser, offline: drawn, clicked, typed at, printed, and not to be tricked.

`report.mjs` does the looking, all pages with one browser; here the pages are made.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from support.browser_requirements import missing
from support.pictured_run import pictured_run
from support.report_runs import (
    busy_run,
    hostile_run,
    many_ranks_run,
    nothing,
    only_a_loss,
    ranks_run,
    sick_run,
    spiked_run,
    well_run,
)

HERE = Path(__file__).parent

pytestmark = pytest.mark.browser

LOOKS = {
    "sick": (
        "quiet",
        "charts_drawn",
        "nonfinite_seen",
        "verdict_first",
        "finding_clicked",
        "keyboard",
        "cursors_together",
        "zoomed_by_mouse",
        "log_scale",
        "curves_hidden",
        "enlarged",
        "incident_alone",
        "flag_opens_the_finding",
        "file_is_whole",
        "dark_and_light",
        "on_paper",
        "on_a_phone",
        "accessible",
    ),
    "spiked": (
        "range_without_the_spike",
        "smoothed",
        "other_axes",
        "address_shows_the_same",
        "tensor_drawn",
        "downloaded",
        "on_a_phone",
        "accessible",
    ),
    "busy": (
        "machine_drawn",
        "layers_switched",
        "layers_on_a_phone",
        "round_bytes",
        "on_a_phone",
        "accessible",
    ),
    "ranks": ("machine_of_every_rank", "on_a_phone", "accessible"),
    "many_ranks": ("machines_of_many_ranks", "on_a_phone", "accessible"),
    "pictured": ("quiet", "sample_shown", "on_a_phone", "accessible"),
    "well": ("quiet", "accessible"),
    "hostile": ("quiet", "inert", "accessible", "on_a_phone"),
    "only_loss": ("only_a_loss", "accessible"),
    "nothing": ("nothing_to_draw", "accessible"),
}
CASES = [f"{page}-{look}" for page, looks in LOOKS.items() for look in looks]


@pytest.fixture(scope="module")
def came(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What came of every look: an empty text, or what was wrong."""
    if (why := missing()) is not None:
        pytest.skip(f"{why}; `make test-browser` installs what the browser tests need")
    folder = tmp_path_factory.mktemp("pages")
    makers = {
        "sick": sick_run,
        "spiked": spiked_run,
        "busy": busy_run,
        "ranks": ranks_run,
        "many_ranks": many_ranks_run,
        "pictured": pictured_run,
        "well": well_run,
        "hostile": hostile_run,
        "only_loss": only_a_loss,
        "nothing": nothing,
    }
    for name, make in makers.items():
        make(folder / name).to_html(folder / f"{name}.html")
    pages = [
        {"name": f"{name}-{look}", "path": str(folder / f"{name}.html"), "look": look}
        for name, looks in LOOKS.items()
        for look in looks
    ]
    (folder / "pages.json").write_text(json.dumps(pages))
    done = subprocess.run(
        ["node", str(HERE / "report.mjs"), str(folder / "pages.json")],
        capture_output=True,
        encoding="utf-8",
        timeout=250,
    )
    assert done.returncode == 0, done.stderr
    read: dict[str, str] = json.loads(done.stdout)
    return read


@pytest.mark.parametrize("case", CASES)
def test_page(came: dict[str, str], case: str) -> None:
    assert came[case] == ""
