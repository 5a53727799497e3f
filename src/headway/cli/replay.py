"""`headway replay INCIDENT`"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

import click

from headway.cli import options
from headway.cli.script_command import require_torch
from headway.errors import UsageError
from headway.output.display_text import shell_quote
from headway.output.terminal import spinner

if TYPE_CHECKING:
    from headway.cli.script_command import Script, ScriptCrash
    from headway.explain.incident_file.incident_folder import IncidentFolder
    from headway.explain.replay_outcome import ReplayOutcome
    from headway.output.terminal import TerminalPage


# The function of --call: `package.module:function` or `path/to/file.py:function`.


def find_function(call: str) -> Callable[[], Any]:
    """Import the function. Raises UsageError if there is none, and whatever its module raises."""
    where, _, name = call.rpartition(":")
    if not where or not name:
        raise UsageError(
            f"--call {call!r} names no function: use package.module:function "
            "or path/to/file.py:function"
        )
    module = _from_file(Path(where)) if where.endswith(".py") else _from_name(where)
    function: Callable[[], Any] | None = getattr(module, name, None)
    if not callable(function):
        raise UsageError(f"--call {call!r}: there is no function {name!r} in {where}")
    return function


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"--call: there is no file {path}")
    sys.path.insert(0, str(path.absolute().parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _from_name(name: str) -> ModuleType:
    sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise UsageError(f"--call: there is no module {name!r} here") from error
        raise


# `headway replay INCIDENT`

REPRODUCES, CURED, CRASHED = 1, 0, 3
STYLES = {"reproduces": "bold red", "cured": "bold green", "crashed": "bold red"}


@dataclass(frozen=True)
class ReplayCommandResult:
    """The script or function that was run, and the outcome."""

    capsule: IncidentFolder
    how: str
    """The script or function that was run."""
    rehearsed: ReplayOutcome | None
    crash: ScriptCrash | None = None

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
    help="Run this script, for example the fixed one, instead of the recorded one.",
)
@click.option(
    "--call",
    metavar="MODULE:FUNCTION",
    help="Call a function, not a script: it returns (model, step); step(model, batch) is the loss.",
)
@click.option("--overlay", type=click.Path(path_type=Path), hidden=True)
@options.output_format("text", "json")
@click.argument("args", nargs=-1, metavar="[-- ARGS]")
def command(
    incident: Path,
    script: Path | None,
    call: str | None,
    overlay: Path | None,
    form: str,
    args: tuple[str, ...],
) -> int:
    """Re-run a captured incident: exit 1 if it reproduces, 0 if it is cured.

    INCIDENT is a folder RUN/incidents/N-stepK. The recorded script runs up to its loop over
    guard(loader), up to the first step of its Trainer, or until it reads its DataLoader after the
    first step. There it gets the captured batch, weights and random state. No weight changes and
    nothing is written to the run. ARGS replace the recorded arguments of the script.

    \b
    Exit codes: 0 cured, 1 reproduces, 2 usage error or no answer possible,
    3 the script crashed, 4 internal error.
    """
    if script is not None and call is not None:
        raise UsageError("give --script or --call, not both")
    _require_one_process(incident)
    require_torch("replay")
    with spinner(f"reading {incident}"):
        from headway.explain.incident_file.incident_folder import read_incident

        # The script may change the working directory.
        capsule = replace(read_incident(incident), folder=incident.absolute())
    _require_data(capsule)
    from headway.fix.fresh_run import overlay_from

    with overlay_from(overlay):
        done = _call(capsule, call) if call else _run(capsule, _script(capsule, script, args))
    _require_verdict(done)
    if done.crash is not None:
        done.crash.show()
    _write(done, incident, form)
    return done.exit_code


def _require_one_process(incident: Path) -> None:
    ranks = os.environ.get("WORLD_SIZE", "1")
    if ranks not in ("", "1"):
        raise UsageError(
            f"a replay needs one process, not {ranks}: {_suggest_process_group(incident)}"
        )


def _suggest_process_group(incident: Path) -> str:
    return (
        f"`torchrun --nproc-per-node 1 -m headway replay {shell_quote(str(incident))}` gives the "
        "script a process group of one rank, and --call needs none"
    )


def _needs_process_group(crash: ScriptCrash) -> bool:
    """Whether a script failed because it has no process group."""
    error = crash.error
    if isinstance(error, KeyError):
        return error.args in (("RANK",), ("LOCAL_RANK",), ("WORLD_SIZE",))
    words = ("rendezvous", "process group", "init_process_group")
    return any(word in str(error) for word in words)


def _require_data(capsule: IncidentFolder) -> None:
    if not capsule.has_batch:
        why = next((item.why for item in capsule.left_out if item.what == "the data"), "unknown")
        raise UsageError(f"{capsule.folder} contains no batch to replay ({why}); see its README.md")
    capsule.rng()  # raises if it is damaged, before the script runs


def _require_verdict(done: ReplayCommandResult) -> None:
    """Raise UsageError if nothing crashed and there is no verdict."""
    if done.crash is not None:
        return
    if done.rehearsed is None:
        raise UsageError(
            f"{done.how} ended before it used the captured batch: that needs a loop over "
            "guard(loader) or a DataLoader, or a Trainer of transformers or Lightning. Use --call "
            "for any other step"
        )
    if done.rehearsed.outcome.error is not None:
        raise UsageError(done.rehearsed.said)
    if done.rehearsed.reproduces is None:
        raise UsageError(f"cannot tell whether it is cured: {done.rehearsed.said}")


def _script(capsule: IncidentFolder, given: Path | None, args: tuple[str, ...]) -> Script:
    """The script to run. Raises UsageError if there is none."""
    from headway.cli.script_command import Script

    recorded = capsule.script or {}
    argv = args or tuple(map(str, recorded.get("argv", ())))
    if given is not None:
        if not given.is_file():
            raise UsageError(f"there is no script {given}")
        return Script(given.absolute(), argv)
    if not recorded.get("file"):
        raise UsageError(
            f"{capsule.folder} was captured without a script (in a notebook or a shell): "
            "give one with --script, or a function with --call"
        )
    file, cwd = Path(recorded["file"]), Path(recorded.get("cwd", os.curdir))
    if not file.is_file():
        raise UsageError(
            f"the script {file} no longer exists: give it with --script, or a function with --call"
        )
    return Script(file, argv, recorded.get("module"), cwd if cwd.is_dir() else None)


def _run(capsule: IncidentFolder, script: Script) -> ReplayCommandResult:
    from headway.cli.script_command import run_catching, stdout_to_stderr
    from headway.guard.script.guarded_run import replay_script
    from headway.integrations.automatic import run_with_callbacks
    from headway.rerun import in_script

    outcomes: list[ReplayOutcome] = []

    def leave(rehearsed: ReplayOutcome) -> NoReturn:
        outcomes.append(rehearsed)
        raise SystemExit(0)

    in_script.request_rerun(capsule, leave)
    try:
        with stdout_to_stderr():
            crash = run_catching(lambda: replay_script(lambda: run_with_callbacks(script.run)))
        seen = outcomes[0] if outcomes else in_script.rerun_result()
    finally:
        in_script.withdraw_request()
    how = str(script.file)
    if outcomes or crash is None:
        return ReplayCommandResult(capsule, how, seen)
    if seen is not None and seen.reproduces:  # a script may raise on NaN
        ended = f"the script then ended: {crash}"
        return ReplayCommandResult(capsule, how, replace(seen, notes=(*seen.notes, ended)))
    return ReplayCommandResult(capsule, how, None, crash)


def _call(capsule: IncidentFolder, call: str) -> ReplayCommandResult:
    from headway.cli.script_command import run_catching, stdout_to_stderr
    from headway.guard.script.script_guard import replay_call

    found: list[ReplayOutcome] = []
    with stdout_to_stderr():
        crash = run_catching(lambda: found.append(replay_call(capsule, find_function(call))))
    if crash is not None and isinstance(crash.error, UsageError):
        raise crash.error
    return ReplayCommandResult(capsule, call, found[0] if found else None, crash)


def _write(done: ReplayCommandResult, incident: Path, form: str) -> None:
    if form == "json":
        click.echo(json.dumps(_to_json(done, incident), indent=2, allow_nan=False, default=str))
        return
    from headway.output.terminal import TerminalPage

    page = TerminalPage(sys.stdout)
    hints: tuple[str, ...] = ()
    if done.crash is not None and _needs_process_group(done.crash):
        hints = (f"the script needs a process group: {_suggest_process_group(incident)}",)
    write_replay(page, done.capsule, done.rehearsed, done.crash, done.how, hints)
    page.next(_next(done, incident))


def write_replay(
    page: TerminalPage,
    capsule: IncidentFolder,
    outcome: ReplayOutcome | None,
    crash: ScriptCrash | None,
    how: str,
    hints: Sequence[str] = (),
) -> None:
    """Print everything but the last line."""
    from headway.explain.incident_file.contents import version_differences
    from headway.output.console import write_incident
    from headway.output.display_text import shorten_local_paths
    from headway.output.incident_view import read_incident_view

    verdict = "crashed" if outcome is None else outcome.verdict
    message = str(crash) if outcome is None else outcome.said
    page.line((f"{verdict}: ", STYLES[verdict]), message, rest="  ")
    page.line((f"step {capsule.step}, run by {shorten_local_paths(how)}", "dim"), rest="  ")
    for hint in hints:
        page.line(hint, rest="  ")
    new = outcome.explanation if outcome is not None else None
    page.gap()
    page.line(("What was found at capture" if new is None else "What was found", "bold"))
    write_incident(page, read_incident_view((new or capsule.explanation).to_dict()))
    notes = [*(() if outcome is None else outcome.notes)]
    notes += version_differences(capsule.index["versions"])
    if notes:
        page.gap()
    for note in notes:
        page.line((f"note: {note}", "dim"), rest="  ")
    if verdict == "reproduces":
        page.gap()
        page.line("Fix it and run the same command again: exit code 0 means cured.", rest="  ")


def _next(done: ReplayCommandResult, incident: Path) -> str:
    run_dir = incident.absolute().parents[1]
    if done.exit_code == CURED and (run_dir / "run.json").is_file():
        return f"headway diagnose {shell_quote(os.path.relpath(run_dir))}"
    from headway.explain.incident_file.incident_readme import code_of

    return f"headway explain {code_of(done.capsule.explanation)}"


def _to_json(done: ReplayCommandResult, incident: Path) -> dict[str, Any]:
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
