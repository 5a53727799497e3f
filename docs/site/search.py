"""Asks the search of the built site about symptoms: `python docs/site/search.py` after a build.

`make docs` runs it. It needs node, and says so where there is none.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "build" / "site"
QUESTIONS = {
    "loss does not go down": "recipes/does-not-learn.html",
    "loss not decreasing": "recipes/does-not-learn.html",
    "loss does not fall": "recipes/does-not-learn.html",
    "model does not learn": "recipes/does-not-learn.html",
    "training is stuck": "recipes/does-not-learn.html",
    "loss goes up": "recipes/spike.html",
    "overfitting": "recipes/validation-worse.html",
    "oom": "recipes/out-of-memory.html",
    "loss is nan": "recipes/nan.html",
    "CUDA out of memory": "recipes/out-of-memory.html",
    "memory leak": "recipes/memory.html",
    "DDP hangs": "recipes/ddp-hangs.html",
    "my job was killed": "recipes/killed.html",
    "loss spikes": "recipes/spike.html",
    "validation worse than training": "recipes/validation-worse.html",
    "jupyter": "notebooks.html",
}
"""What people type, and the page that must come first."""
EXCLUDED = ("decisions/", "mapping.html", "first-use.html")
"""Pages for contributors, which are no answer to a user's question."""


def first_pages(questions: list[str], site: Path = SITE) -> list[list[str]]:
    """The first pages for each question, as the site's own search worker ranks them."""
    command = ["node", str(Path(__file__).with_name("search.mjs")), str(site)]
    done = subprocess.run(
        [*command, json.dumps(questions)], capture_output=True, text=True, timeout=120, check=True
    )
    found: list[list[str]] = json.loads(done.stdout)
    return found


def problems(site: Path = SITE) -> list[str]:
    """Questions whose first page is another one, and pages that must not be in the index."""
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    found = sorted({item["location"].split("#")[0] for item in index["docs"]})
    wrong = [f"{page} is in the search index" for page in found if page.startswith(EXCLUDED)]
    for (question, page), pages in zip(
        QUESTIONS.items(), first_pages(list(QUESTIONS), site), strict=True
    ):
        if pages[:1] != [page]:
            wrong.append(f"{question!r} leads to {', '.join(pages) or 'nothing'}, not to {page}")
    return wrong


def main() -> int:
    if shutil.which("node") is None:
        print("the search was not tried: there is no node")
        return 0
    wrong = problems()
    print("\n".join(wrong) or f"the search answers {len(QUESTIONS)} symptoms")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
