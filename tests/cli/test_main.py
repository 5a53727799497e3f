"""The group itself: help, version, mistakes, accidents."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable

import click
import pytest

import headway
from headway import registry
from headway.cli.exit_codes import run_to_exit_code
from headway.cli.main import COMMANDS, cli
from headway.errors import InternalError

OPTIONS = {
    "demo": ["--out", "--steps"],
    "check": [
        "--amp-dtype",
        "--baseline",
        "--clip-grad-norm",
        "--config",
        "--detect-anomaly",
        "--diff",
        "--fail-on",
        "--fix",
        "--format",
        "--grad-log-interval",
        "--ignore",
        "--max-seconds",
        "--max-steps",
        "--module",
        "--out",
        "--overfit",
        "--overlay",
        "--select",
        "--unsafe",
        "--verbose",
        "--write-baseline",
        "-m",
        "-v",
        "SCRIPT",
        "[-- ARGS]",
    ],
    "run": [
        "--baseline",
        "--clip-grad-norm",
        "--config",
        "--fail-on",
        "--format",
        "--ignore",
        "--module",
        "--notify",
        "--out",
        "--progress",
        "--require-guard",
        "--restarts",
        "--select",
        "--write-baseline",
        "-m",
        "SCRIPT",
        "[-- ARGS]",
    ],
    "diagnose": [
        "--baseline",
        "--config",
        "--fail-on",
        "--format",
        "--ignore",
        "--select",
        "--verbose",
        "--write-baseline",
        "-v",
        "PATH...",
    ],
    "report": ["--config", "--fail-on", "--ignore", "--output", "--select", "-o", "RUN"],
    "scan": [
        "--allow",
        "--baseline",
        "--config",
        "--fail-on",
        "--format",
        "--ignore",
        "--last-good",
        "--select",
        "--verbose",
        "--write-baseline",
        "-v",
        "PATH...",
    ],
    "serve": ["--allow-host", "--browser", "--host", "--port", "--token-file", "DIR"],
    "watch": ["--every", "--once", "RUN"],
    "export": ["--output", "-o", "RUN"],
    "fix": ["--diff", "--format", "--unsafe", "INCIDENT|REPORT.json"],
    "replay": ["--call", "--format", "--overlay", "--script", "INCIDENT", "[-- ARGS]"],
    "explain": ["--format", "CODE|SYMPTOM"],
    "checks": ["--config", "--format", "--ignore", "--select"],
    "env": ["--format"],
}
"""The whole command line. People have it in scripts: what stands here does not go away."""


def command(name: str) -> click.Command:
    found = cli.get_command(click.Context(cli), name)
    assert found is not None
    return found


def test_the_options_are_what_they_were():
    found = {
        name: sorted(
            word
            for item in command(name).params
            for word in (
                item.opts
                if isinstance(item, click.Option)
                else [item.make_metavar(click.Context(cli))]
            )
        )
        for name in COMMANDS
    }
    assert found == OPTIONS


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_says_what_the_command_says(name):
    assert COMMANDS[name] == (command(name).help or "").splitlines()[0]


def test_without_arguments_it_shows_its_help(invoke):
    result = invoke()
    assert result.exit_code == 0
    assert result.stdout == invoke("--help").stdout
    for name in COMMANDS:
        assert name in result.stdout


def test_version(invoke):
    result = invoke("--version")
    python = ".".join(map(str, sys.version_info[:3]))
    assert result.exit_code == 0
    assert re.fullmatch(
        rf"headway {re.escape(headway.__version__)} \(Python {python}, (torch "
        rf"\S+|no torch)\)\n",
        result.stdout,
    )


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["diagnos", "x"], "did you mean 'diagnose'"),
        (["zzz"], "no such command 'zzz'"),
        (["--nonsense"], "no such option"),
        (["diagnose"], "missing argument"),
        (["diagnose", "x", "--format", "yaml"], "--format"),
        (["diagnose", "x", "--select", "HD101,,HD2"], "separated by commas"),
        (["demo", "--steps", "1"], "--steps"),
    ],
)
def test_a_mistake_gets_one_line_and_2(invoke, args, words):
    result = invoke(*args)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("headway: ")
    assert words in result.stderr.lower()


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (KeyError("loss"), 4, "internal error: KeyError"),
        (InternalError("the tower leans"), 4, "internal error: the tower leans"),
        (OSError(28, "No space left on device"), 4, "operating system error"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (BrokenPipeError(), 141, ""),
    ],
)
def test_an_accident_is_told_calmly(invoke, monkeypatch, error, code, words):
    def raise_it(_code):
        raise error

    monkeypatch.setattr(registry, "get", raise_it)
    result = invoke("explain", "HD101")
    assert result.exit_code == code
    assert words in result.stderr
    assert "Traceback" not in result.stderr


def test_the_traceback_is_there_for_the_asking(invoke, monkeypatch):
    monkeypatch.setattr(registry, "get", lambda code: 1 / 0)
    monkeypatch.setenv("HEADWAY_DEBUG", "1")
    result = invoke("explain", "HD101")
    assert result.exit_code == 4
    assert "ZeroDivisionError" in result.stderr
    assert "Traceback" in result.stderr


@pytest.mark.skipif(os.name == "nt", reason="pipes of another kind")
def test_a_reader_who_leaves_is_no_error(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "headway", "checks"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    assert process.wait(60) == 141
    process.stderr.close()


def test_a_poor_terminal_still_gets_its_text(shell, sick):
    result = shell("diagnose", sick, PYTHONIOENCODING="ascii")
    assert result.returncode == 1, result.stderr
    assert "x error HD101 nonfinite-loss" in result.stdout
    assert result.stdout.isascii()


@pytest.mark.parametrize("args", [("explain", "HD101"), ("checks",), ("diagnose", "{sick}"), ()])
def test_torch_stays_out_of_it(sick, tmp_path, args):
    words = [arg.format(sick=sick) for arg in args]
    code = (
        "import sys\n"
        "from headway.cli.main import cli\n"
        f"try: cli.main({words!r}, prog_name='headway')\n"
        "except SystemExit: pass\n"
        "print(sorted({'torch', 'numpy'} & set(sys.modules)), file=sys.stderr)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=60
    )
    assert result.stderr.strip() == "[]"


def import_that_was_interrupted() -> None:
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt as error:
        raise ImportError("numpy cannot be imported") from error


def native_code_that_was_interrupted() -> None:
    raise RuntimeError("KeyboardInterrupt: ")


@pytest.mark.parametrize("work", [import_that_was_interrupted, native_code_that_was_interrupted])
def test_what_native_code_makes_of_ctrl_c_is_an_interruption(
    work: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_to_exit_code(work) == 130
    assert capsys.readouterr().err == "headway: interrupted\n"
