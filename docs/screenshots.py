"""Makes the pictures of the report in `docs/images/`, light and dark, from the run of the demo.

    make test-browser                        # once: installs node's packages and a Chromium
    .venv/bin/python docs/screenshots.py     # under a minute

The run is real: a small transformer learns to spell, and one batch on the way holds a blank line.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import holdfast
from holdfast.demo.story import Story
from holdfast.demo.teller import Teller
from holdfast.sinks.page import Page

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
LARGEST = 200_000


def main() -> int:
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        run, page = Path(scratch) / "speller", Path(scratch) / "report.html"
        os.chdir(ROOT)
        Story(Teller(Page(io.StringIO())), run).run()
        holdfast.diagnose(run).to_html(page)
        # Where these folders lie on this machine is nobody's business.
        text = page.read_text(encoding="utf-8")
        for folder, said in ((scratch, "runs"), (f"{ROOT}{os.sep}", "")):
            text = text.replace(folder, said)
        page.write_text(text, encoding="utf-8")
        looking = ["node", str(ROOT / "tests" / "browser" / "screenshots.mjs"), str(page)]
        subprocess.run([*looking, str(IMAGES)], check=True)
    too_large = [path.name for path in IMAGES.glob("*.png") if path.stat().st_size > LARGEST]
    for path in sorted(IMAGES.glob("*.png")):
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size // 1000} KB")
    return 1 if too_large else 0


if __name__ == "__main__":
    sys.exit(main())
