"""`headway replay INCIDENT`"""

from __future__ import annotations

import json
import os
import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from headway.cli import options
from headway.cli.demo import demand_torch
from headway.cli.waiting import waiting
from headway.errors import UsageError

if TYPE_CHECKING:
    from headway.cli.script import Crash, Script
    from headway.replay.capsule import Capsule
    from headway.replay.rehearsed import Rehearsed

REPRODUCES, CURED, CRASHED = 1, 0, 3


@dataclass(frozen=True)
class Replay:
    """What was run, and what came of it."""

    capsule: Capsule
    how: str
    """The script or function that was run."""
    rehearsed: Rehearsed | None
    crash: Crash | None = None

    @property
    def exit_code(self) -> int:
        if self.rehearsed is None or self.rehearsed.reproduces is None:
            return CRASHED
        return REPRODUCES if self.rehearsed.reproduces else CURED


@click.command()
@click.argument("incident", metavar="INCIDENT", type=click.Path(path_type=Path))
@click.option(
    "--script",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Run this script, the mended one say, instead of the recorded one.",
)
@click.option(
    "--call",
    metavar="MODULE:FUNCTION",
    help="Run no script: the function returns (model, step), and step(model, batch) the loss.",
)
@options.output_format("text", "json")
@click.argument("args", nargs=-1, metavar="[-- ARGS]")
def command(
    incident: Path, script: Path | None, call: str | None, form: str, args: tuple[str, ...]
) -> int:
    """Run a captured incident again: exit 1 if it reproduces, 0 if it is cured.

    INCIDENT is a folder RUN/incidents/N-stepK. The script that made it is run up to its loop over
    guard(loader), or its Trainer's first step, which then gets the captured batch with the captured
    weights and random numbers. No weight moves, and nothing is written into the run. ARGS replace
    the script's recorded arguments.

    \b
    Exit codes: 0 cured, 1 reproduces, 2 wrong usage or it cannot be told,
    3 the script itself crashed, 4 internal error.
    """
    if script is not None and call is not None:
        raise UsageError("give --script or --call, not both")
    _demand_one_process(incident)
    demand_torch("replay")
    with waiting(f"reading {incident}"):
        from headway.replay.capsule import read

        # The script may run in another folder.
        capsule = replace(read(incident), folder=incident.absolute())
    _demand_data(capsule)
    done = _call(capsule, call) if call else _run(capsule, _script(capsule, script, args))
    _demand_verdict(done)
    if done.crash is not None:
        done.crash.show()
    _write(done, incident, form)
    return done.exit_code


def _demand_one_process(incident: Path) -> None:
    ranks = os.environ.get("WORLD_SIZE", "1")
    if ranks not in ("", "1"):
        raise UsageError(
            f"a replay is one process, and here are {ranks}: {_with_a_group(incident)}"
        )


def _with_a_group(incident: Path) -> str:
    return (
        f"`torchrun --nproc-per-node 1 -m headway replay {shlex.quote(str(incident))}` gives the "
        "script a process group of one rank, and --call needs none"
    )


def _wants_a_group(crash: Crash) -> bool:
    """Whether a script has failed for being a single process that nobody has introduced."""
    error = crash.error
    if isinstance(error, KeyError):
        return error.args in (("RANK",), ("LOCAL_RANK",), ("WORLD_SIZE",))
    words = ("rendezvous", "process group", "init_process_group")
    return any(word in str(error) for word in words)


def _demand_data(capsule: Capsule) -> None:
    if not capsule.has_batch:
        why = next((item.why for item in capsule.left_out if item.what == "the data"), "unknown")
        raise UsageError(
            f"{capsule.folder} holds no data to replay ({why}); its README.md says what is known"
        )


def _demand_verdict(done: Replay) -> None:
    """Nothing crashed and yet nothing is known: say why, and what would help."""
    if done.crash is not None:
        return
    if done.rehearsed is None:
        raise UsageError(
            f"{done.how} ended without a loop over guard(loader), where the captured batch is "
            "handed over, and without a Trainer that has a HeadwayCallback; "
            "any other step can be replayed through --call"
        )
    if done.rehearsed.outcome.error is not None:
        raise UsageError(done.rehearsed.said)
    if done.rehearsed.reproduces is None:
        raise UsageError(f"it cannot be told whether it is cured: {done.rehearsed.said}")


def _script(capsule: Capsule, given: Path | None, args: tuple[str, ...]) -> Script:
    """The script that is meant. Raises UsageError if there is none."""
    from headway.cli.script import Script

    recorded = capsule.script or {}
    argv = args or tuple(map(str, recorded.get("argv", ())))
    if given is not None:
        if not given.is_file():
            raise UsageError(f"there is no script {given}")
        return Script(given.absolute(), argv)
    if not recorded.get("file"):
        raise UsageError(
            f"{capsule.folder} was made without a script (in a notebook or a shell): "
            "give one with --script, or a function with --call"
        )
    file, cwd = Path(recorded["file"]), Path(recorded.get("cwd", os.curdir))
    if not file.is_file():
        raise UsageError(
            f"the script {file} is not here any more: give it with --script, "
            "or a function with --call"
        )
    return Script(file, argv, recorded.get("module"), cwd if cwd.is_dir() else None)


def _run(capsule: Capsule, script: Script) -> Replay:
    from headway.cli.script import attempt, output_aside
    from headway.live import rehearsal

    told: list[Rehearsed] = []

    def leave(rehearsed: Rehearsed) -> NoReturn:
        told.append(rehearsed)
        raise SystemExit(0)

    rehearsal.demand(capsule, leave)
    try:
        with output_aside():
            crash = attempt(script.run)
        seen = told[0] if told else rehearsal.result()
    finally:
        rehearsal.withdraw()
    how = str(script.file)
    if told or crash is None:
        return Replay(capsule, how, seen)
    if seen is not None and seen.reproduces:  # a loop may well end itself over a NaN
        ended = f"the script then ended by itself: {crash}"
        return Replay(capsule, how, replace(seen, notes=(*seen.notes, ended)))
    return Replay(capsule, how, None, crash)


def _call(capsule: Capsule, call: str) -> Replay:
    from headway.cli.called import find_function
    from headway.cli.script import attempt, output_aside
    from headway.live.called import rehearse_call

    found: list[Rehearsed] = []
    with output_aside():
        crash = attempt(lambda: found.append(rehearse_call(capsule, find_function(call))))
    if crash is not None and isinstance(crash.error, UsageError):
        raise crash.error
    return Replay(capsule, call, found[0] if found else None, crash)


def _write(done: Replay, incident: Path, form: str) -> None:
    if form == "json":
        click.echo(json.dumps(_to_json(done, incident), indent=2, allow_nan=False, default=str))
        return
    from headway.cli.incident_page import write_replay
    from headway.sinks.page import Page

    page = Page(sys.stdout)
    hints: tuple[str, ...] = ()
    if done.crash is not None and _wants_a_group(done.crash):
        hints = (f"the script wants a process group: {_with_a_group(incident)}",)
    write_replay(page, done.capsule, done.rehearsed, done.crash, done.how, hints)
    page.next(_next(done, incident))


def _next(done: Replay, incident: Path) -> str:
    run_dir = incident.absolute().parents[1]
    if done.exit_code == CURED and (run_dir / "run.json").is_file():
        return f"headway diagnose {shlex.quote(os.path.relpath(run_dir))}"
    from headway.replay.page import code_of

    return f"headway explain {code_of(done.capsule.explanation)}"


def _to_json(done: Replay, incident: Path) -> dict[str, Any]:
    from headway._version import __version__
    from headway.core.numbers import encode_numbers

    seen = done.rehearsed
    explanation = seen.explanation if seen is not None and seen.explanation is not None else None
    content = {
        "schema": 1,
        "tool": "headway",
        "version": __version__,
        "command": "replay",
        "verdict": "crashed" if seen is None else seen.verdict,
        "said": str(done.crash) if seen is None else seen.said,
        "incident": str(incident),
        "ran": done.how,
        "step": done.capsule.step,
        "symptom": done.capsule.symptom,
        "losses": [] if seen is None else seen.outcome.losses,
        "grad_norm": None if seen is None else seen.outcome.norm,
        "notes": [] if seen is None else list(seen.notes),
        "recorded": done.capsule.explanation.to_dict(),
        "explanation": None if explanation is None else explanation.to_dict(),
    }
    return dict(encode_numbers(content))
