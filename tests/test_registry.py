"""Finding the checks: ours by file name, other people's by entry point."""

from __future__ import annotations

import importlib.metadata
import inspect
import logging
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from headway import registry
from headway.checks.loss.hd101_nonfinite_loss import NonfiniteLoss
from headway.checks.setup.hd001_check_crashed import CheckCrashed
from headway.config import Settings
from headway.core.check import Check, Needs
from headway.core.records import Header, StepRecord
from headway.core.signals import Signal
from headway.engine import Engine
from headway.errors import InternalError, SettingsError, UsageError


class Foreign(Check):
    """A check of somebody else's package."""

    code = "ACME1"
    name = "repeated-loss"
    summary = "the loss repeats"
    needs = Needs(signals=("loss",))

    @dataclass(frozen=True)
    class Limits(Check.Limits):
        repeats: int = 20
        share: float = 0.5
        loud: bool = False

    def observe(self, record: Any) -> Any:
        yield self.find(record, f"limit {self.limits.repeats}")


class EntryPoint:
    """What `importlib.metadata` gives, as far as the registry looks."""

    def __init__(self, what: Any) -> None:
        self.name = "acme"
        self.value = "acme.checks:Acme"
        self._what = what

    def load(self) -> Any:
        if isinstance(self._what, Exception):
            raise self._what
        return self._what


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Lets a test install the checks of other packages."""
    caches = (registry.modules, registry.find, registry.all_checks, registry._entry_point_checks)

    def put(*what: Any) -> None:
        monkeypatch.setattr(
            importlib.metadata,
            "entry_points",
            lambda *, group: (
                [EntryPoint(item) for item in what] if group == "headway.checks" else []
            ),
        )
        for cached in caches:
            cached.cache_clear()

    put()
    yield put
    monkeypatch.undo()
    for cached in caches:
        cached.cache_clear()


def chosen(**settings: Any) -> dict[str, Check]:
    return {check.code: check for check in registry.chosen(Settings(**settings))}


# Ours


def test_a_check_is_found_by_its_code_or_its_name_in_any_case() -> None:
    for asked in ("HD101", "hd101", "nonfinite-loss", "Nonfinite-Loss"):
        assert registry.get(asked) is NonfiniteLoss


def test_every_file_holds_the_check_it_is_named_for() -> None:
    for code, module in registry.modules().items():
        check = registry.get(code)
        assert check.code == code
        assert module.endswith(f"{code.lower()}_{check.name.replace('-', '_')}")


def test_all_checks_are_sorted_by_code_and_no_code_is_used_twice() -> None:
    codes = [check.code for check in registry.all_checks()]
    assert codes == sorted(set(codes))
    assert {"HD001", "HD101", "HD207"} <= set(codes)


def test_listing_the_modules_imports_none_of_them() -> None:
    program = (
        "import sys; from headway import registry; codes = registry.modules(); "
        "assert 'HD101' in codes, codes; registry.get('HD101'); "
        "print(sorted(name for name in sys.modules if name.startswith('headway.checks.')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == (
        "['headway.checks.loss', 'headway.checks.loss.hd101_nonfinite_loss', "
        "'headway.checks.nonfinite_rows']"
    ), done.stderr


@pytest.mark.parametrize(
    ("asked", "hint"),
    [
        ("HD1O1", "did you mean HD101?"),
        ("hd2lo", "did you mean HD210?"),
        ("HD019", "did you mean HD109?"),
        ("HDD101", "did you mean HD101?"),
        ("H806", "did you mean HD806?"),
        ("HD999", "; `headway checks` lists them all"),
        ("HD100", "; `headway checks` lists them all"),
        ("nonfinit-loss", "did you mean nonfinite-loss?"),
        ("zzz", "lists them all"),
        ("", "lists them all"),
    ],
)
def test_an_unknown_code_is_a_users_mistake_with_the_nearest_one_named(
    asked: str, hint: str
) -> None:
    with pytest.raises(UsageError, match="there is no check") as caught:
        registry.get(asked)
    assert hint in str(caught.value)


def test_a_file_with_two_checks_is_our_own_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    module = inspect.getmodule(NonfiniteLoss)
    second = type("Second", (Check,), {"__module__": NonfiniteLoss.__module__})
    monkeypatch.setattr(module, "Second", second, raising=False)
    with pytest.raises(InternalError, match="exactly one check, found 2"):
        registry._class_in(NonfiniteLoss.__module__)


# Choosing


def test_select_and_ignore_take_codes_and_their_beginnings() -> None:
    assert set(chosen(select=("HD101",))) == {"HD101"}
    assert {code[:3] for code in chosen(select=("HD1",))} == {"HD1"}
    assert not any(code.startswith("HD1") for code in chosen(ignore=("HD1",)))
    assert "HD101" not in chosen(select=("HD1",), ignore=("HD101",))


def test_a_check_gets_the_limits_of_the_settings(install: Any) -> None:
    install(Foreign)
    assert chosen()["ACME1"].limits == Foreign.Limits()
    mine = chosen(limits={"ACME1": {"repeats": 3, "share": 1}})["ACME1"].limits
    assert (mine.repeats, mine.share, mine.loud) == (3, 1, False)


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"ACME2": {}}, "unknown setting 'ACME2'; did you mean 'ACME1'?"),
        ({"ACME1": {"repeat": 3}}, "limits of ACME1 in the settings: unknown setting 'repeat'"),
        ({"ACME1": {"repeat": 3}}, "did you mean 'repeats'?"),
        ({"ACME1": {"repeats": "many"}}, "repeats must be a whole number: got 'many'"),
        ({"ACME1": {"repeats": 2.5}}, "repeats must be a whole number: got 2.5"),
        ({"ACME1": {"repeats": True}}, "repeats must be a whole number: got True"),
        ({"ACME1": {"share": [0.5]}}, "share must be a number: got [0.5]"),
        ({"ACME1": {"loud": 1}}, "loud must be true or false: got 1"),
    ],
)
def test_limits_that_do_not_fit_are_a_users_mistake(
    install: Any, limits: dict[str, Any], words: str
) -> None:
    install(Foreign)
    with pytest.raises(SettingsError) as caught:
        chosen(limits=limits)
    assert words in str(caught.value)


# Lifecycle


def with_status(status: str) -> type[Check]:
    return type("Aged", (Foreign,), {"status": status, "code": "ACME9"})


def test_a_check_in_preview_runs_only_when_named_in_full(install: Any) -> None:
    install(with_status("preview"))
    assert "ACME9" not in chosen()
    assert "ACME9" not in chosen(select=("ACME",))
    assert "ACME9" in chosen(select=("ACME9",))
    assert "ACME9" not in chosen(select=("ACME9",), ignore=("ACME9",))


def test_a_removed_check_never_runs_but_keeps_its_page(install: Any) -> None:
    install(with_status("removed"))
    assert "ACME9" not in chosen()
    assert "ACME9" not in chosen(select=("ACME9",))
    assert registry.get("ACME9").status == "removed"
    assert chosen(limits={"ACME9": {"repeats": 1}}), "nor does an old setting for it break anything"


def test_a_deprecated_check_still_runs(install: Any) -> None:
    install(with_status("deprecated"))
    assert "ACME9" in chosen()


# Other people's


def test_an_installed_check_is_found_and_runs_beside_ours(install: Any) -> None:
    install(Foreign)
    assert registry.get("acme1") is Foreign
    assert registry.get("repeated-loss") is Foreign
    assert Foreign in registry.all_checks()
    engine = Engine(Settings(select=("ACME", "HD101")))
    engine.run([Header("test", signals={"loss": Signal()}), StepRecord(0, 1, 1, {"loss": 1.0})])
    assert [(item.code, item.message) for item in engine.findings] == [("ACME1", "limit 20")]


def test_an_installed_check_that_raises_is_quarantined_like_ours(install: Any) -> None:
    class Sick(Foreign):
        def observe(self, record: Any) -> Any:
            raise RuntimeError("broken plug-in")

    install(Sick)
    engine = Engine(Settings(select=("ACME", "HD001")))
    engine.run([Header("test", signals={"loss": Signal()}), StepRecord(0, 1, 1, {"loss": 1.0})])
    assert [(item.code, item.subject) for item in engine.findings] == [(CheckCrashed.code, "ACME1")]


@pytest.mark.parametrize(
    ("what", "words"),
    [
        (ImportError("no module named acme"), "ImportError: no module named acme"),
        (AttributeError("acme has no Acme"), "AttributeError"),
        ("just text", "not a subclass"),
        (object, "not a subclass"),
        (Foreign(), "not a subclass"),
        (type("Thief", (Foreign,), {"code": "HD101"}), "start with HD are reserved for headway"),
        (type("Nameless", (Check,), {}), "AttributeError"),
    ],
)
def test_a_broken_package_is_left_out_loudly_and_harms_nobody(
    install: Any, caplog: pytest.LogCaptureFixture, what: Any, words: str
) -> None:
    install(what, Foreign)
    with caplog.at_level(logging.WARNING, logger="headway"):
        codes = list(chosen())
    assert codes.count("ACME1") == 1, "the good one beside it is there"
    assert codes.count("HD101") == 1
    [message] = [record.getMessage() for record in caplog.records]
    assert words in message
    assert "acme.checks:Acme" in message
