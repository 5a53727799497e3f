"""`headway diagnose`: the contract of its output, and its patience with bad input."""

from __future__ import annotations

import json
import os
import re

import pytest

ESCAPE = "\x1b"


@pytest.mark.parametrize(
    ("fail_on", "codes"),
    [
        ((), {"sick": 1, "uneasy": 0, "well": 0}),
        (("--fail-on", "error"), {"sick": 1, "uneasy": 0, "well": 0}),
        (("--fail-on", "warning"), {"sick": 1, "uneasy": 1, "well": 0}),
        (("--fail-on", "never"), {"sick": 0, "uneasy": 0, "well": 0}),
    ],
)
@pytest.mark.parametrize("form", ["text", "json", "github", "sarif"])
def test_exit_codes(invoke, sick, uneasy, well, fail_on, codes, form):
    for path in (sick, uneasy, well):
        result = invoke("diagnose", path, "--format", form, *fail_on)
        assert result.exit_code == codes[path.name], (path.name, result.stderr)
        assert result.stderr == ""


def test_json_is_schema_1(invoke, sick):
    told = json.loads(invoke("diagnose", sick, "--format", "json").stdout)
    assert list(told) == [
        *("schema", "tool", "version", "command", "verdict"),
        *("coverage", "causes", "findings", "not_run", "looked_at"),
    ]
    assert (told["schema"], told["tool"], told["command"]) == (1, "headway", "diagnose")
    assert told["verdict"] == "findings"
    assert list(told["coverage"]) == ["ran", "of"]
    assert list(told["causes"][0]) == ["code", "name", "message", "findings"]
    assert told["causes"][0]["code"] == "HD101"
    finding = told["findings"][0]
    assert list(finding) == [
        *("code", "name", "severity", "step", "where", "message"),
        *("occurrences", "evidence", "remedies"),
    ]
    assert list(finding["where"]) == ["file", "line", "function", "module", "op", "rank", "sample"]
    assert list(finding["remedies"][0]) == [
        *("text", "tested", "cured", "edits", "safe", "same_loss")
    ]
    assert list(told["not_run"][0]) == ["code", "reason"]
    assert finding["evidence"]["value"] == "NaN"
    assert finding["occurrences"] == {"count": 5, "steps": [51, 52, 53, 54, 55]}


def test_json_of_several_paths_is_a_list(invoke, sick, well):
    told = json.loads(invoke("diagnose", sick, well, "--format", "json").stdout)
    assert [item["path"] for item in told] == [str(sick), str(well)]
    assert [item["verdict"] for item in told] == ["findings", "healthy"]
    assert told[0]["schema"] == 1


def test_text_of_a_sick_run(invoke, sick):
    lines = invoke("diagnose", sick).stdout.splitlines()
    # The findings come last, next to the prompt; then the verdict and the next command.
    assert "headway: 1 error; most likely cause: HD101 nonfinite-loss" in lines[-6:]
    assert " checks could run" in " ".join(lines[-6:])
    at = lines.index("✗ error HD101 nonfinite-loss  step 51")
    assert len(lines) - at <= 20, "it is on a screen of 24 lines"
    assert "  5 times: steps 51, 52, 53, 54, 55" in lines
    assert lines[-1] == "Next: headway explain HD101"
    assert max(map(len, lines)) <= 80


def test_text_of_a_healthy_run(invoke, well):
    lines = invoke("diagnose", well).stdout.splitlines()
    said = " ".join(lines)
    assert "headway: no problems found in 80 losses, steps 1 to 80, but only " in said
    assert "Not looked at: " in said
    assert lines[-1] == f"Next: headway diagnose --verbose {well}"


def test_verbose_names_what_did_not_run(invoke, well):
    short = invoke("diagnose", well).stdout
    long = invoke("diagnose", well, "--verbose").stdout
    assert "HD804" not in short
    assert " checks could run" in short
    assert "  HD801  needs host_rss_bytes, which this source does not have" in long.splitlines()


def test_several_paths_one_of_them_missing(invoke, sick, well, tmp_path):
    result = invoke("diagnose", sick, tmp_path / "gone", well)
    assert result.exit_code == 2
    assert result.stderr == f"headway: {tmp_path / 'gone'} does not exist\n"
    assert result.stdout.splitlines()[0] == "headway: findings in 1 of 2 runs"
    assert f"{well}: no problems found" in " ".join(result.stdout.split())


def test_what_cannot_be_read(invoke, tmp_path):
    (tmp_path / "file.txt").write_text("hello")
    (tmp_path / "empty").mkdir()
    for name, content in (("broken", "{"), ("list", "[]"), ("other", '{"kind": "event"}')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(content)
    for name in ("gone", "file.txt", "empty", "broken", "list", "other"):
        for form in ("text", "json"):
            result = invoke("diagnose", tmp_path / name, "--format", form)
            assert result.exit_code == 2, name
            assert result.stdout == ""
            assert result.stderr.count("\n") == 1
            assert name in result.stderr


def test_select_and_ignore(invoke, sick):
    def codes(*args):
        told = json.loads(invoke("diagnose", sick, "--format", "json", *args).stdout)
        return {item["code"] for item in told["findings"]}

    assert codes("--select", "HD101") == {"HD101"}
    assert codes("--select", "nonfinite-loss") == {"HD101"}
    assert codes("--select", "HD1", "--select", "HD2", "--ignore", "hd101") == {"HD201"}
    assert codes("--ignore", "HD1,HD2") == set()
    result = invoke("diagnose", sick, "--ignore", "HD777")
    assert result.exit_code == 2
    assert "HD777" in result.stderr


def test_settings_from_a_file(invoke, sick, tmp_path):
    ours = tmp_path / "ours.toml"
    ours.write_text('ignore = ["HD1", "HD2"]\n')
    assert invoke("diagnose", sick, "--config", ours).exit_code == 0
    # What is typed goes before what is written.
    assert invoke("diagnose", sick, "--config", ours, "--select", "HD101").exit_code == 1
    assert invoke("diagnose", sick, "--config", ours, "--ignore", "HD3").exit_code == 0
    ours.write_text('fail-on = "never"\n')
    assert invoke("diagnose", sick, "--config", ours).exit_code == 0
    assert invoke("diagnose", sick, "--config", ours, "--fail-on", "error").exit_code == 1


@pytest.mark.parametrize("content", ['select = ["HD777"]', "selekt = []", "select = 3", "select ="])
def test_settings_with_a_mistake(invoke, sick, tmp_path, content):
    ours = tmp_path / "ours.toml"
    ours.write_text(content)
    result = invoke("diagnose", sick, "--config", ours)
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert invoke("diagnose", sick, "--config", tmp_path / "gone.toml").exit_code == 2


def test_a_key_that_no_policy_has(invoke, sick, tmp_path):
    ours = tmp_path / "ours.toml"
    ours.write_text("[policy]\nskips-in-row = 3\n")
    for command in ("diagnose", "scan"):
        result = invoke(command, sick, "--config", ours)
        assert result.exit_code == 2
        assert "unknown setting 'skips_in_row'; did you mean 'skips_in_a_row'?" in result.stderr
    ours.write_text("[policy]\nskips-in-a-row = 3\n")
    assert invoke("diagnose", sick, "--config", ours).exit_code == 1


def test_names_from_strangers_are_only_text(invoke, make_run):
    name = "enc[red]x\x1b[31m\x1b]0;title\x07\u202egnp.evil"
    path = make_run(
        f'tensor: @1 weight {name} {{"nan": 3, "numel": 9, "shape": [9]}}', "loss: 1.0*3"
    )
    for form in ("text", "github"):
        out = invoke("diagnose", path, "--format", form).stdout
        assert "enc[red]xgnp.evil" in out
        assert ESCAPE not in out
        assert "\u202e" not in out


@pytest.mark.parametrize("environment", [{}, {"NO_COLOR": "1"}, {"COLUMNS": "40"}])
def test_a_pipe_gets_no_escapes_and_80_columns(shell, sick, environment):
    result = shell("diagnose", sick, **environment)
    assert result.returncode == 1
    assert ESCAPE not in result.stdout
    assert 60 < max(map(len, result.stdout.splitlines())) <= 80


@pytest.mark.skipif(os.name == "nt", reason="needs a pseudo-terminal")
@pytest.mark.slow
def test_a_terminal_gets_colour_unless_told_otherwise(sick, tmp_path):
    # A spinner, where reading takes long enough for one, moves the cursor: that is no colour.
    colour = re.compile(r"\x1b\[[0-9;]*3\d[0-9;]*m")
    assert colour.search(_on_terminal(["diagnose", str(sick)], tmp_path, {}))
    plain = _on_terminal(["diagnose", str(sick)], tmp_path, {"NO_COLOR": "1"})
    assert "HD101" in plain
    assert not colour.search(plain)


def _on_terminal(args, folder, environment) -> str:
    import pty
    import subprocess
    import sys

    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "headway", *args],
        stdout=theirs,
        stderr=theirs,
        cwd=folder,
        env={**_without_no_color(), "TERM": "xterm-256color", **environment},
    ):
        os.close(theirs)
        told = b""
        try:
            while piece := os.read(ours, 4096):
                told += piece
        except OSError:  # how a pseudo-terminal says that the other end has gone
            pass
    os.close(ours)
    return told.decode()


def _without_no_color() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
