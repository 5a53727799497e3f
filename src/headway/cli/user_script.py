"""Runs the user's script in this process, as `python script.py` would."""

from __future__ import annotations

import contextlib
import os
import runpy
import shlex
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.torch_adapters.frames import is_headway_file, is_internal_file


@dataclass(frozen=True, slots=True)
class Script:
    """What to run."""

    file: Path
    argv: tuple[str, ...] = ()
    module: str | None = None
    """Its name where it was started by `python -m`."""
    cwd: Path | None = None
    """Where it was started; None: here."""

    @property
    def said(self) -> str:
        """As it is typed."""
        if self.module is not None:
            return f"-m {self.module}"
        return shlex.quote(os.path.relpath(self.file))

    def __str__(self) -> str:
        return self.module or str(self.file)

    def run(self) -> Any:
        """Run it as `__main__`; whatever it raises, SystemExit included, comes through."""
        with _set_argv(str(self.file), self.argv), _change_folder(self.cwd):
            if self.module is not None:
                with _prepend_sys_path(os.getcwd()):
                    return runpy.run_module(self.module, run_name="__main__", alter_sys=True)
            with _prepend_sys_path(str(self.file.parent)):
                return runpy.run_path(str(self.file), run_name="__main__")


@dataclass(frozen=True, slots=True)
class ScriptCrash:
    """How a script ended before its time."""

    error: BaseException

    def __str__(self) -> str:
        if isinstance(self.error, SystemExit):
            return f"it left with exit code {self.error.code}"
        lines = str(self.error).splitlines()
        return f"{type(self.error).__name__}: {lines[0] if lines else ''}".rstrip(": ")

    def show(self) -> None:
        """The traceback as Python would show it, without the frames that are ours."""
        if isinstance(self.error, SystemExit):
            if isinstance(self.error.code, str):  # `sys.exit("why")` prints why
                print(self.error.code, file=sys.stderr)
            return
        told = traceback.TracebackException.from_exception(self.error)
        _drop_own_frames(told)
        print("".join(told.format()), file=sys.stderr, end="")


def _drop_own_frames(told: traceback.TracebackException | None) -> None:
    while told is not None:
        kept = [frame for frame in told.stack if not is_headway_file(frame.filename)]
        # Above the script's first line there is only what started it.
        first = next(
            (at for at, frame in enumerate(kept) if not is_internal_file(frame.filename)), len(kept)
        )
        told.stack = traceback.StackSummary.from_list(kept[first:] or kept)
        _drop_own_frames(told.__cause__)
        told = told.__context__


def run_catching(work: Callable[[], Any]) -> ScriptCrash | None:
    """Do the work; how it crashed, if it did. A normal end, `sys.exit()` included, is no crash."""
    try:
        work()
    except SystemExit as error:
        return ScriptCrash(error) if error.code not in (None, 0) else None
    except Exception as error:  # the script's, whatever it is
        return ScriptCrash(error)
    return None


@contextlib.contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Whatever is printed meanwhile, by the script, its libraries or its children, goes to
    stderr."""
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
