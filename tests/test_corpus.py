"""The corpus is whole and its manifests are true; some of its scripts, checked for real."""

from __future__ import annotations

import re
import sys

import pytest
from support.corpus_runs import CORPUS, FIXED, Entry, check, entries
from support.ending_corpus import blind_endings, ending_scripts
from support.grids import every_nth

sys.path.insert(0, str(CORPUS.parent / "benchmarks"))

import corpus

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ALL = entries()
PROPER = [entry for entry in ALL if entry.half in ("tuned", "held-out")]
PUBLIC = [entry for entry in ALL if entry.half == "public"]
GIVE_AWAY = re.compile(r"\b(bug|buggy|fault|faulty|wrong|broken|oops|mistake)\b", re.IGNORECASE)


def test_every_fault_and_every_look_alike_has_its_script() -> None:
    faults = [entry.number for entry in PROPER if entry.file.startswith("faults/")]
    healthy = [entry.number for entry in PROPER if entry.file.startswith("healthy/")]
    assert sorted(faults) == list(range(1, 81))
    assert sorted(healthy) == list(range(1, 33))
    assert sum(entry.family == "public" for entry in PROPER) == 5


@pytest.mark.parametrize("entry", every_nth(ALL, 10), ids=lambda entry: entry.file)
def test_a_manifest_is_true(entry: Entry) -> None:
    text = entry.path.read_text(encoding="utf-8")
    compile(text, entry.file, "exec")
    entry.line_number()
    assert entry.healthy == (
        "healthy/" in entry.file or entry.family == "public" or entry.file.endswith(FIXED)
    )
    assert not GIVE_AWAY.search(text), "a script must not say what it is"
    if entry.family == "public":
        assert len(text.splitlines()) >= 150


WITHDRAWN = {170}
"""Public bugs whose script raised an error of its own."""


def test_no_script_is_left_out() -> None:
    there = {path.relative_to(CORPUS).as_posix() for path in CORPUS.rglob("*.py")}
    apart = ("origins/", "endings/", "blind_endings", "fixes/")  # sets with lists of their own
    listed = {entry.file.removesuffix(FIXED) for entry in ALL}
    assert {file for file in there if not file.startswith(apart)} == listed
    endings = {f"endings/{entry.script}" for entry in ending_scripts()}
    assert {file for file in there if file.startswith("endings/")} == endings
    blind = {f"{entry['set']}/{entry['script']}" for entry in blind_endings()}
    helpers = {file for file in there if "/helpers_" in file}
    assert {file for file in there if file.startswith("blind_endings")} == blind | helpers
    fixes = tomllib.loads((CORPUS / "fixes" / "manifest.toml").read_text(encoding="utf-8"))
    listed = {f"fixes/{item['file']}" for item in fixes["script"]}
    assert {file for file in there if file.startswith("fixes/")} == listed


def test_every_public_bug_has_its_source_and_its_fixed_version() -> None:
    text = (CORPUS / "manifest.public.toml").read_text(encoding="utf-8")
    items = tomllib.loads(text)["script"]
    numbers = [item["number"] for item in items]
    assert numbers == sorted(set(range(1, numbers[-1] + 1)) - WITHDRAWN)
    assert len(PUBLIC) == 2 * len(items)
    for item in items:
        assert re.fullmatch(
            r"https://(github\.com/[^/]+/[^/]+/(issues|pull)/\d+|.+)", item["source"]
        )
        assert item["mechanism"], item["file"]
    for entry in PUBLIC:
        compile(entry.path.read_text(encoding="utf-8"), entry.file, "exec")
        entry.line_numbers()


def test_every_origin_has_its_mark() -> None:
    scripts = sorted((CORPUS / "origins").glob("*.py"))
    assert len(scripts) >= 60
    for script in scripts:
        files = [script, *script.with_suffix("").glob("*.py")]
        marks = sum(file.read_text(encoding="utf-8").count("# <- origin") for file in files)
        assert marks == 1, script.name


SOME = ("f03", "f09", "f15", "f33", "f39", "f54", "f56", "f61", "h05", "h13", "h19", "h24")


@pytest.mark.slow
@pytest.mark.parametrize("name", SOME)
def test_some_of_them(name: str) -> None:
    [entry] = [item for item in PROPER if item.path.name.startswith(f"{name}_")]
    mark = check(entry)
    assert not mark.problem
    if entry.healthy:
        assert mark.found == ()
    else:
        assert mark.right, f"{mark.first} came first of {mark.found}"


def test_the_page_of_public_bugs_holds_what_was_measured() -> None:
    text = (corpus.ROOT / "docs" / "public-corpus.md").read_text(encoding="utf-8")
    assert f"{corpus.BEGIN}\n\n{corpus.public_tables()}\n{corpus.END}" in text
    assert f"has {len(PUBLIC) // 2} training scripts" in text


@pytest.mark.slow
@pytest.mark.parametrize("name", ["p041", "p060"])
def test_some_public_bugs_and_their_fixed_versions(name: str) -> None:
    bug, fixed = [item for item in PUBLIC if f"/{name}_" in item.file]
    assert check(bug).right
    assert not check(fixed).alarm
