"""Settings: from TOML, or from the nearest pyproject.toml."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headway.config import Settings, environment_variables
from headway.errors import SettingsError
from headway.policy import Policy

FULL = """
select = ["hd1", "HD201"]
ignore = ["hd104"]
fail-on = "warning"

[limits.HD103]
sigmas = 10

[policy]
skips-in-a-row = 50
halt = false
"""


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def under_tool(text: str) -> str:
    """The same settings as they stand in a pyproject.toml."""
    return "[tool.headway]\n" + text.replace("[limits", "[tool.headway.limits").replace(
        "[policy]", "[tool.headway.policy]"
    )


def assert_full(settings: Settings) -> None:
    assert settings.select == ("HD1", "HD201")
    assert settings.ignore == ("HD104",)
    assert settings.fail_on == "warning"
    assert settings.limits == {"HD103": {"sigmas": 10}}
    assert settings.policy == {"skips_in_a_row": 50, "halt": False}
    assert Policy.from_mapping(settings.policy) == Policy(skips_in_a_row=50, halt=False)


def test_a_file_of_ones_own_is_read(tmp_path: Path) -> None:
    assert_full(Settings.load(write(tmp_path / "headway.toml", FULL)))


def test_a_pyproject_is_read_from_its_tool_table(tmp_path: Path) -> None:
    path = write(tmp_path / "pyproject.toml", under_tool(FULL))
    assert_full(Settings.load(path))
    assert_full(Settings.load(start=tmp_path))


def test_the_nearest_pyproject_upward_counts(tmp_path: Path) -> None:
    write(tmp_path / "pyproject.toml", under_tool('select = ["HD9"]'))
    deep = tmp_path / "a" / "b" / "c"
    deep.mkdir(parents=True)
    assert Settings.load(start=deep).select == ("HD9",)
    write(tmp_path / "a" / "pyproject.toml", under_tool('select = ["HD1"]'))
    assert Settings.load(start=deep).select == ("HD1",)
    write(tmp_path / "a" / "b" / "pyproject.toml", "[project]\nname = 'x'\n")
    assert Settings.load(start=deep) == Settings(), "the nearest one, even if it does not name us"


def test_the_search_begins_where_the_user_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "pyproject.toml", under_tool('fail-on = "never"'))
    monkeypatch.chdir(tmp_path)
    assert Settings.load().fail_on == "never"


@pytest.mark.parametrize(
    "text",
    [
        "[tool.headway\nselect = ",
        "[project]\nname = 'other'\n",
        "",
        "tool = 5\n",
        "[[tool]]\nheadway = 1\n",
    ],
    ids=["not TOML", "not ours", "empty", "tool is a number", "tool is a list"],
)
def test_somebody_elses_pyproject_is_not_ours_to_judge(tmp_path: Path, text: str) -> None:
    write(tmp_path / "pyproject.toml", text)
    assert Settings.load(start=tmp_path) == Settings()


def test_a_pyproject_that_is_no_text_is_not_ours_to_judge(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_bytes(b"\xff\xfe\x00junk")
    assert Settings.load(start=tmp_path) == Settings()


@pytest.mark.parametrize("what", ["missing", "folder", "binary", "not TOML"])
def test_a_file_the_user_named_must_be_readable(tmp_path: Path, what: str) -> None:
    path = tmp_path / "headway.toml"
    if what == "folder":
        path.mkdir()
    elif what == "binary":
        path.write_bytes(b"\xff\xfe\x00")
    elif what == "not TOML":
        path.write_text("select = ")
    with pytest.raises(SettingsError, match="cannot read settings from") as caught:
        Settings.load(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ignroe = []", "unknown setting 'ignroe'; did you mean 'ignore'?"),
        ("fail_on = 'error'", "unknown setting 'fail_on'; did you mean 'fail-on'?"),
        ("xyzzy = 1", "unknown setting 'xyzzy'; known: select, ignore, fail-on, limits, policy"),
        ("select = 'HD1'", "select must be a list of codes"),
        ("ignore = [101]", "ignore must be a list of codes"),
        ("fail-on = 'sometimes'", "fail-on must be one of error, warning, never: got 'sometimes'"),
        ("fail-on = ['error']", "fail-on must be one of error, warning, never: got ['error']"),
        ("limits = 5", "limits must be a table"),
        ("[limits]\nHD103 = 5", "HD103 must be a table"),
        ("policy = ['halt']", "policy must be a table"),
    ],
)
def test_a_mistake_names_the_file_and_the_key(tmp_path: Path, text: str, words: str) -> None:
    own = write(tmp_path / "headway.toml", text)
    project = write(tmp_path / "pyproject.toml", under_tool(text))
    for path in (own, project):
        with pytest.raises(SettingsError) as caught:
            Settings.load(path)
        assert words in str(caught.value)
        assert str(path) in str(caught.value)
    with pytest.raises(SettingsError):
        Settings.load(start=tmp_path)  # found, not named: a mistake in our own table still counts


def test_a_tool_entry_that_is_no_table_is_a_mistake(tmp_path: Path) -> None:
    path = write(tmp_path / "pyproject.toml", "[tool]\nheadway = 5\n")
    with pytest.raises(SettingsError, match="headway must be a table"):
        Settings.load(path)


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ({"skips_in_row": 5}, "unknown setting 'skips_in_row'; did you mean 'skips_in_a_row'?"),
        ({"skips_in_a_row": "many"}, "skips_in_a_row must be a whole number: got 'many'"),
        ({"halt": "no"}, "halt must be true or false: got 'no'"),
        ({"window": 0}, "must be at least 1: got 0"),
        ({"skips_per_window": -3}, "must be at least 1: got -3"),
    ],
)
def test_a_policy_that_does_not_fit_is_a_users_mistake(policy: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Policy.from_mapping(policy)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("select", "ignore", "wanted"),
    [
        ((), (), True),
        (("HD101",), (), True),
        (("HD1",), (), True),
        (("HD2",), (), False),
        ((), ("HD1",), False),
        (("HD101",), ("HD1",), False),
        (("HD2", "HD10"), (), True),
    ],
)
def test_what_is_ignored_stays_out_whatever_is_selected(
    select: tuple[str, ...], ignore: tuple[str, ...], wanted: bool
) -> None:
    assert Settings(select=select, ignore=ignore).wants("HD101") is wanted


def test_only_a_code_in_full_names_a_check() -> None:
    settings = Settings(select=("HD1", "HD207"))
    assert settings.named("HD207")
    assert not settings.named("HD101")


# The environment


def test_every_setting_has_a_variable_that_overrides_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "headway.toml", FULL + "\n[limits.HD207]\npatience = 3\n")
    values = {
        "HEADWAY_SELECT": "hd2, HD3",
        "HEADWAY_IGNORE": "HD207",
        "HEADWAY_FAIL_ON": "never",
        "HEADWAY_LIMITS_HD207_PATIENCE": "100",
        "HEADWAY_POLICY_SKIPS_IN_A_ROW": "7",
        "HEADWAY_ALLOW": "mine.Config,mine.*",
        "HEADWAY_BASELINE": "known.json",
    }
    assert values.keys() == environment_variables().keys()
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    settings = Settings.load(path)
    assert settings == Settings(
        select=("HD2", "HD3"),
        ignore=("HD207",),
        fail_on="never",
        limits={"HD103": {"sigmas": 10}, "HD207": {"patience": 100}},
        policy={"skips_in_a_row": 7, "halt": False},
        allow=("mine.Config", "mine.*"),
        baseline="known.json",
    )
    for name in values:
        monkeypatch.setenv(name, " ")  # as CI sets a variable that it does not have
    assert_full(replace(Settings.load(path), limits={"HD103": {"sigmas": 10}}))


def test_ignored_checks_of_the_environment_are_added() -> None:
    assert Settings(ignore=("HD1",)).with_environment({"HEADWAY_IGNORE": "HD2"}).ignore == (
        "HD1",
        "HD2",
    )


def test_values_of_the_policy_have_their_types() -> None:
    given = {"HEADWAY_POLICY_HALT": "false", "HEADWAY_POLICY_ON_OOM": "split"}
    given |= {"HEADWAY_POLICY_BACK_OFF_FACTOR": "0.25"}
    policy = Policy.from_mapping(Settings().with_environment(given).policy)
    assert policy == Policy(halt=False, on_oom="split", back_off_factor=0.25)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("HEADWAY_FAIL_ON", "sometimes", "HEADWAY_…: fail-on must be one of"),
        ("HEADWAY_POLICY_SKIPS_IN_ROW", "5", "did you mean 'skips_in_a_row'?"),
        ("HEADWAY_POLICY_WINDOW", "wide", "window must be a whole number"),
    ],
)
def test_a_mistake_in_the_environment(name: str, value: str, words: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Policy.from_mapping(Settings().with_environment({name: value}).policy)
    assert words in str(caught.value)


def test_other_variables_are_left_alone() -> None:
    """Kubernetes sets HEADWAY_SERVICE_HOST for a service of that name."""
    assert Settings().with_environment({"HEADWAY_SERVICE_HOST": "x", "HEADWAY_DEBUG": "1"}) == (
        Settings()
    )


def test_the_baseline_of_a_file_is_relative_to_it(tmp_path: Path) -> None:
    path = write(tmp_path / "deep" / "pyproject.toml", under_tool('baseline = "known.json"'))
    assert Settings.load(path).baseline == str(path.parent / "known.json")


def test_the_page_lists_every_variable() -> None:
    page = (Path(__file__).parents[1] / "docs" / "settings.md").read_text(encoding="utf-8")
    for name, meaning in environment_variables().items():
        assert f"| `{name}` | {meaning} |" in page
