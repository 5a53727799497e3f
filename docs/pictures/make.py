"""Makes the pictures in `docs/images/`.

    make test-browser                          # once: installs node's packages and a Chromium
    .venv/bin/python docs/pictures/make.py     # all of them; or name some: screen layers

`terminal`  what `headway run train.py` prints in a terminal, as SVG. `train.py` is beside this.
`screen`    a terminal of 80×24 after `headway check classify.py`, which is beside this, as SVG.
`report`    the report on the run of `headway demo`, light and dark.
`widths`    the same report on a phone (390 px) and on a wide screen (1400 px).
`live`      the same run on the live page, light and dark.
`incident`  the bad step of a training on images (`train_pictures.py`), light and dark.
`layers`    machine and layers of a training that goes bad (`train_deep.py`), light and dark.
`compare`   the means of runs of three rates, with bands, light and dark.

Every run is a real one, made for the picture; nothing is drawn by hand.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import terminal

import headway
from headway.demo.walkthrough import DemoPrinter, DemoWalkthrough
from headway.output.terminal import TerminalPage

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
IMAGES = ROOT / "docs" / "images"
SCREENSHOTS = ROOT / "tests" / "browser" / "screenshots.mjs"
LARGEST = 200_000
WIDTH = 92
SCREEN_WIDTH, SCREEN_HEIGHT = 80, 24
PAGE_WIDTHS = (390, 1400)


def terminal_picture(scratch: Path) -> None:
    """A caught NaN: the line it was born in, the sample, and cures that were tried."""
    project = scratch / "project"
    project.mkdir()
    shutil.copy(HERE / "train.py", project)
    command = [sys.executable, "-m", "headway", "run", "train.py"]
    printed = terminal.run(command, project, WIDTH).replace(f"{project}{os.sep}", "")
    printed = re.sub(r"train-\d{8}-\d{6}", "train-1", printed)
    picture = terminal.svg(f"$ headway run train.py\n{printed}", "headway run train.py", WIDTH)
    (IMAGES / "caught-nan.svg").write_text(picture, encoding="utf-8")


def screen_picture(scratch: Path) -> None:
    """What is on a screen of 80×24 when `check` has ended: the finding, with its line and fix."""
    project = scratch / "classify"
    project.mkdir()
    shutil.copy(HERE / "classify.py", project)
    command = [sys.executable, "-m", "headway", "check", "classify.py"]
    printed = terminal.run(command, project, SCREEN_WIDTH, SCREEN_HEIGHT)
    lines = f"$ headway check classify.py\n{printed.rstrip()}\n$ ".split("\n")
    seen = "\n".join(lines[-SCREEN_HEIGHT:])
    if "HD110" not in seen:
        raise SystemExit("the finding is not on the screen")
    picture = terminal.svg(seen, "headway check classify.py", SCREEN_WIDTH)
    (IMAGES / "check-80x24.svg").write_text(picture, encoding="utf-8")


def _demo_run(scratch: Path) -> Path:
    run = scratch / "runs" / "speller"
    if not run.exists():
        os.chdir(ROOT)  # where a package's own lines are told from
        DemoWalkthrough(DemoPrinter(TerminalPage(io.StringIO())), run).run()
    return run


def report_picture(scratch: Path) -> None:
    """The report, light and dark."""
    page = scratch / "report.html"
    headway.diagnose(_demo_run(scratch)).to_html(page)
    subprocess.run(["node", str(SCREENSHOTS), page.as_uri(), str(IMAGES / "report")], check=True)


def widths_picture(scratch: Path) -> None:
    """The report on a phone and on a wide screen."""
    page = scratch / "report.html"
    headway.diagnose(_demo_run(scratch)).to_html(page)
    for width in PAGE_WIDTHS:
        name = str(IMAGES / "report")
        command = ["node", str(SCREENSHOTS), page.as_uri(), name, f"width={width}"]
        subprocess.run(command, check=True)


def live_picture(scratch: Path) -> None:
    """A run on the live page, light and dark."""
    from headway.web.run_entry import make_run_id

    run = _demo_run(scratch)
    command = [sys.executable, "-m", "headway", "serve", str(run.parent), "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT
    ) as server:
        try:
            address = _address(server).replace("/?", f"/run/{make_run_id(run.name)}?")
            subprocess.run(["node", str(SCREENSHOTS), address, str(IMAGES / "live")], check=True)
        finally:
            server.terminate()


def _train(folder: Path, *arguments: str) -> None:
    command = [sys.executable, str(HERE / "train_deep.py"), str(folder), *arguments]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)


def incident_picture(scratch: Path) -> None:
    """A bad step with its sample, light and dark."""
    run = scratch / "landscapes"
    command = [sys.executable, str(HERE / "train_pictures.py"), str(run)]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL, cwd=ROOT)
    page = scratch / "incident.html"
    headway.diagnose(run).to_html(page)
    command = ["node", str(SCREENSHOTS), page.as_uri(), str(IMAGES / "incident"), "#incidents"]
    subprocess.run(command, check=True)


def layers_picture(scratch: Path) -> None:
    """The sections of a report about the machine and the layers, light and dark."""
    _train(scratch / "deep" / "sensor")
    page = scratch / "deep.html"
    headway.diagnose(scratch / "deep" / "sensor").to_html(page)
    for part in ("system", "layers"):
        command = ["node", str(SCREENSHOTS), page.as_uri(), str(IMAGES / part), f"#{part}"]
        subprocess.run(command, check=True)


def compare_picture(scratch: Path) -> None:
    """Means of runs with a band, light and dark."""
    from headway.web.run_entry import make_run_id

    runs = scratch / "seeds"
    names = []
    for rate in ("0.0003", "0.001", "0.003"):
        for seed in ("1", "2"):
            names.append(f"rate-{rate}-seed-{seed}")
            _train(runs / names[-1], rate, seed, "150")
    command = [sys.executable, "-m", "headway", "serve", str(runs), "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT
    ) as server:
        try:
            chosen = "&".join(f"run={make_run_id(name)}" for name in names)
            address = _address(server).replace("/?", f"/compare?{chosen}&group=set:lr&")
            subprocess.run(
                ["node", str(SCREENSHOTS), address, str(IMAGES / "compare"), "1000"], check=True
            )
        finally:
            server.terminate()


def _address(server: subprocess.Popen[str]) -> str:
    """What the server says to open, its token included."""
    assert server.stdout is not None
    until = time.monotonic() + 60
    for line in server.stdout:
        if found := re.search(r"http://\S+", line):
            return found[0]
        if time.monotonic() > until:
            break
    raise SystemExit("the server names no address")


PICTURES: dict[str, Callable[[Path], None]] = {
    "terminal": terminal_picture,
    "screen": screen_picture,
    "report": report_picture,
    "widths": widths_picture,
    "live": live_picture,
    "incident": incident_picture,
    "layers": layers_picture,
    "compare": compare_picture,
}


def main(wanted: list[str]) -> int:
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        for name in wanted or PICTURES:
            PICTURES[name](Path(scratch).resolve())
    sizes = {path: path.stat().st_size for path in sorted(IMAGES.iterdir())}
    for path, size in sizes.items():
        print(f"{path.relative_to(ROOT)}: {size // 1000} KB")
    return int(max(sizes.values()) > LARGEST)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
