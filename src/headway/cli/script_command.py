"""What `check`, `run` and `replay` share: the user's script, how it runs, and its output."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import os
import runpy
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from headway.cli.options import is_first_rank
from headway.core.findings import Finding, Severity
from headway.core.numbers import say
from headway.core.records import Record, StepRecord
from headway.errors import UsageError
from headway.output.display_text import shell_quote
from headway.output.terminal import StatusLine, TerminalPage, format_seconds
from headway.rundir.remote_run import open_store
from headway.rundir.run_lock import RunLock

Command = TypeVar("Command", bound=Callable[..., Any])


def script_arguments(command: Command) -> Command:
    """`SCRIPT [-- ARGS]`, or `-m MODULE [-- ARGS]`."""
    for decorate in (
        click.argument("args", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGS]"),
        click.argument("script", required=False, metavar="SCRIPT"),
        click.option("-m", "--module", metavar="MODULE", help="Run a module, as `python -m` does."),
    ):
        command = decorate(command)
    return command


def resolve_script(script: str | None, module: str | None, args: tuple[str, ...]) -> Script:
    """The script to run. Raises UsageError if there is none."""
    if module is not None:
        given = args if script is None else (script, *args)
        return Script(Path(module), given, module)
    if script is None:
        raise UsageError("no script given: use `headway check train.py` or `-m package.module`")
    path = Path(script)
    if path.is_dir() and (path / "__main__.py").is_file():
        path = path / "__main__.py"
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise UsageError(f"the script {script} {what}: give the path of the training script")
    return Script(path.absolute(), args)


def torchrun_rank() -> int:
    """The rank in the environment, before torch is imported; 0 of a single process."""
    several = os.environ.get("WORLD_SIZE", "1") != "1"
    number = os.environ.get("RANK", "0")
    return int(number) if several and number.isdigit() else 0


def absolute_run_dir(out: Path | str) -> Path | str:
    """A run directory that stays the same if the script changes its folder; a URL as it is."""
    return out if isinstance(out, str) else out.absolute()


@contextlib.contextmanager
def lock_run_dir(folder: Path | str | None) -> Iterator[None]:
    """Refuse a run directory that another process uses, before the script starts."""
    lock = None
    if isinstance(folder, str):
        open_store(folder)  # raises without fsspec, or for a kind of store that is not installed
    elif folder is not None and is_first_rank():
        with contextlib.suppress(OSError):  # the recorder reports a folder that cannot be written
            folder.mkdir(parents=True, exist_ok=True)
            lock = RunLock.acquire(folder)
    try:
        yield
    finally:
        if lock is not None:
            lock.release()


def show_crash(error: BaseException) -> None:
    """The script's own traceback, without headway's frames."""
    ScriptCrash(error).show()


def redirect_script_output(form: str) -> AbstractContextManager[None]:
    """Send the script's output to stderr while a machine-readable format is written to stdout."""
    if form == "text":
        return nullcontext()
    return stdout_to_stderr()


class StepLines:
    """Prints loss, gradient norm and learning rate of every n-th step to stderr."""

    def __init__(self, interval: int) -> None:
        self._interval = interval
        self._page = TerminalPage(sys.stderr)

    def banner(self) -> None:
        """Print the torch version and the devices."""
        from headway.cli.env import torch_facts

        facts = torch_facts()
        devices = ", ".join(f"{item['device']} {item['name']}" for item in facts["devices"])
        text = f"torch {facts['version']} on {devices}, {facts['threads']} threads"
        self._page.line((text, "dim"), rest="  ")

    def __call__(self, record: Record) -> None:
        if not isinstance(record, StepRecord) or record.step % self._interval:
            return
        values = record.values
        parts = [f"step {record.step:>4}"]
        for name, word in (("loss", "loss"), ("grad_norm", "grad norm"), ("lr", "lr")):
            if name in values:
                parts.append(f"{word} {say(values[name], 4)}")
        if values.get("clip_coef", 1.0) < 1.0:
            parts.append(f"clipped to {say(values['grad_norm'] * values['clip_coef'], 3)}")
        norms = record.columns.get("param/grad_norm")
        if norms is not None and len(norms.values) > 1:
            parts.append(f"tensors {_range(norms.values)}")
            parts.append(f"zero {sum(norm == 0 for norm in norms.values)}/{len(norms.values)}")
            bad = sum(not math.isfinite(norm) for norm in norms.values)
            parts.append(f"NaN/Inf {bad}/{len(norms.values)}")
        if record.held:
            parts.append("update skipped")
        print("  ".join(parts), file=sys.stderr, flush=True)


MOST_EARLY = 3
"""Findings that are shown while the script still runs."""


class StepProgress:
    """Shows the step, the time elapsed and the time left on a terminal while a script runs, and
    the first findings.
    """

    def __init__(
        self,
        max_steps: int | None = None,
        max_seconds: float | None = None,
        warm_seconds: float | None = None,
    ) -> None:
        self.line = StatusLine()
        self._max_steps = max_steps
        self._max_seconds = max_seconds
        self._warm_seconds = warm_seconds
        self._began = time.monotonic()
        self._first: tuple[int, float] | None = None
        """(step, time) of the first record."""
        self._early: set[str] = set()
        """Codes of findings that were shown."""

    def found(self, finding: Finding) -> None:
        """Show a finding as soon as it is known; the report has it in full."""
        new = finding.code not in self._early and len(self._early) < MOST_EARLY
        if not new or finding.severity < Severity.WARNING:
            return
        self._early.add(finding.code)
        where = finding.where
        at = f" at {Path(where.file).name}:{where.line}" if where.file and where.line else ""
        step = f"step {finding.step}: " if finding.step is not None else ""
        self.line.print_above(f"headway: {step}{finding.code} {finding.name}{at}")

    def __call__(self, record: Record) -> None:
        if isinstance(record, StepRecord) and self.line.live:
            self.line.show(self._text(record.step + 1, time.monotonic()))

    def _text(self, step: int, now: float) -> str:
        if self._first is None:
            self._first = (step, now)
        most = "at most " if self._warm_seconds is not None else ""
        of = f" of {most}{self._max_steps}" if self._max_steps is not None else ""
        left = self._seconds_left(step, now)
        about = f", about {format_seconds(left)} left" if left is not None else ""
        return f"headway: step {step}{of}, {format_seconds(now - self._began)} elapsed{about}"

    def _seconds_left(self, step: int, now: float) -> float | None:
        assert self._first is not None
        first, since = self._first
        limits = []
        if self._max_steps is not None and step > first:
            limits.append((now - since) / (step - first) * (self._max_steps - step))
        if self._warm_seconds is not None:
            limits.append(self._warm_seconds - (now - since))
        if self._max_seconds is not None:
            limits.append(self._max_seconds - (now - self._began))
        return min(limits, default=None)


def _range(norms: Sequence[float]) -> str:
    """The smallest and the largest finite norm."""
    finite = [norm for norm in norms if math.isfinite(norm)]
    return f"{say(min(finite), 2)}–{say(max(finite), 2)}" if finite else "none finite"


def require_torch(what: str) -> None:
    """Raise UsageError if torch is not installed."""
    if importlib.util.find_spec("torch") is None:
        raise UsageError(
            f"{what} runs a training script and needs torch, which is not installed: "
            "pip install 'headway[torch]'"
        )


@dataclass(frozen=True, slots=True)
class Script:
    """The user's script and its arguments."""

    file: Path
    argv: tuple[str, ...] = ()
    module: str | None = None
    """The module name if it runs as `python -m MODULE`."""
    cwd: Path | None = None
    """The folder to run it in; None for the current one."""

    @property
    def typed(self) -> str:
        """The script as typed on a command line."""
        if self.module is not None:
            return f"-m {self.module}"
        return shell_quote(os.path.relpath(self.file))

    @property
    def given(self) -> str:
        """Its arguments, as typed behind the script on a command line of headway."""
        return f" -- {' '.join(map(shell_quote, self.argv))}" if self.argv else ""

    def __str__(self) -> str:
        return self.module or str(self.file)

    def run(self) -> Any:
        """Run it as `__main__`. Exceptions, SystemExit included, propagate."""
        with _set_argv(str(self.file), self.argv), _change_folder(self.cwd):
            if self.module is not None:
                with _prepend_sys_path(os.getcwd()):
                    return runpy.run_module(self.module, run_name="__main__", alter_sys=True)
            with _prepend_sys_path(str(self.file.parent)):
                overlaid = _run_overlaid(str(self.file))
                return overlaid or runpy.run_path(str(self.file), run_name="__main__")


def _run_overlaid(file: str) -> dict[str, Any] | None:
    """Run a script whose edited text only this process sees; None if it is not edited."""
    from headway.torch_adapters.source_overlay import run_overlaid  # imports torch

    return run_overlaid(file)


@dataclass(frozen=True, slots=True)
class ScriptCrash:
    """The exception that ended a script."""

    error: BaseException

    def __str__(self) -> str:
        if isinstance(self.error, SystemExit):
            return f"exited with code {self.error.code}"
        lines = str(self.error).splitlines()
        return f"{type(self.error).__name__}: {lines[0] if lines else ''}".rstrip(": ")

    def show(self) -> None:
        """Print the traceback as Python would, without headway's own frames."""
        if isinstance(self.error, SystemExit):
            if isinstance(self.error.code, str):  # `sys.exit("why")` prints why
                print(self.error.code, file=sys.stderr)
            return
        shown = traceback.TracebackException.from_exception(self.error)
        _drop_own_frames(shown)
        print("".join(shown.format()), file=sys.stderr, end="")


def _drop_own_frames(shown: traceback.TracebackException | None) -> None:
    from headway.torch_adapters.frames import is_headway_file, is_internal_file  # imports torch

    while shown is not None:
        kept = [frame for frame in shown.stack if not is_headway_file(frame.filename)]
        # Frames above the script's first line belong to runpy.
        first = next(
            (at for at, frame in enumerate(kept) if not is_internal_file(frame.filename)), len(kept)
        )
        shown.stack = traceback.StackSummary.from_list(kept[first:] or kept)
        _drop_own_frames(shown.__cause__)
        shown = shown.__context__


def run_catching(work: Callable[[], Any]) -> ScriptCrash | None:
    """Run `work`; the crash, if there was one. `sys.exit()` and `sys.exit(0)` are no crash."""
    try:
        work()
    except SystemExit as error:
        return ScriptCrash(error) if error.code not in (None, 0) else None
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # of the script; some libraries derive from it
        return ScriptCrash(error)
    return None


@contextlib.contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Send everything that this process and its children print to stderr."""
    sys.stdout.flush()
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError, ValueError):  # closed, or no files at all
            kept = os.dup(1)
            stack.callback(os.close, kept)
            os.dup2(2, 1)
            stack.callback(os.dup2, kept, 1)
            stack.callback(sys.stdout.flush)
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        yield


def keep_stdout_clean() -> None:
    """Send what this process prints from now on to stderr: the script may print at exit, too."""
    sys.stdout.flush()
    with contextlib.suppress(OSError, ValueError):
        os.dup2(2, 1)
    sys.stdout = sys.stderr


@contextlib.contextmanager
def _set_argv(name: str, argv: Sequence[str]) -> Iterator[None]:
    before = sys.argv
    sys.argv = [name, *argv]
    try:
        yield
    finally:
        sys.argv = before


@contextlib.contextmanager
def _change_folder(folder: Path | None) -> Iterator[None]:
    before = os.getcwd()
    if folder is not None:
        os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@contextlib.contextmanager
def _prepend_sys_path(folder: str) -> Iterator[None]:
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(folder)
