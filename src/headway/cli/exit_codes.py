"""Exit codes and one-line error messages.

0    no finding at or above --fail-on
1    findings
2    usage error, or unreadable input
3    the user's script crashed
4    internal error, or an error of the operating system (a full disk)
130  interrupted (Ctrl-C)
141  the reader of the output has closed the pipe
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from typing import Any

import click

from headway.errors import HeadwayError, InternalError
from headway.output.display_text import clean, wrap_for

USAGE, CRASHED, INTERNAL, INTERRUPTED, OUTPUT_CLOSED = 2, 3, 4, 130, 141
MAX_CHAIN = 20
"""Exceptions of a chain that are looked at."""


class OwnProcess:
    """The object of a command that is the whole program: its process may be forked.

    A command that is called from other code, a test for instance, does not have it.
    """


class OutputClosed(Exception):
    """The other end of the pipe was closed."""


def run_to_exit_code(work: Callable[[], Any]) -> int:
    """Run `work` and return the exit code; no exception leaves this function."""
    try:
        try:
            result = work()
            sys.stdout.flush()
        except BrokenPipeError as error:
            raise OutputClosed from error
        return result if isinstance(result, int) else 0
    except OutputClosed:
        _silence_stdout()
        return OUTPUT_CLOSED
    except (click.Abort, KeyboardInterrupt):
        return _interrupted()
    except click.ClickException as error:
        print_message(_usage(error))
        return USAGE
    except Exception as error:
        return _interrupted() if _stands_for_interrupt(error) else _exit_code_of(error)


def _exit_code_of(error: Exception) -> int:
    """Print the message of the error that is being handled; its exit code."""
    if isinstance(error, InternalError):
        return _internal(error, str(error))
    if isinstance(error, HeadwayError):
        _print_traceback()
        print_message(str(error))
        return error.exit_code
    if isinstance(error, OSError):  # a full disk is no internal error
        _silence_stdout()
        print_message(f"operating system error: {error}")
        return INTERNAL
    return _internal(error, f"{type(error).__name__}: {error}")


def _stands_for_interrupt(error: BaseException | None) -> bool:
    """Whether an exception is what is left of Ctrl-C.

    Native code that is interrupted, while it is imported for example, turns a KeyboardInterrupt
    into an exception of its own.
    """
    depth = 0
    while error is not None and depth < MAX_CHAIN:
        if isinstance(error, KeyboardInterrupt) or "KeyboardInterrupt" in str(error):
            return True
        error, depth = error.__cause__ or error.__context__, depth + 1
    return False


def _interrupted() -> int:
    print_message("interrupted")
    return INTERRUPTED


def _internal(error: Exception, message: str) -> int:
    print_message(
        f"internal error: {message or type(error).__name__}. Please report it with the output of "
        "`headway env`; HEADWAY_DEBUG=1 prints the traceback"
    )
    _print_traceback()
    return INTERNAL


def _usage(error: click.ClickException) -> str:
    message = error.format_message().strip().rstrip(".")
    context = getattr(error, "ctx", None)
    if context is None:
        return message
    return f"{message[:1].lower()}{message[1:]} (see `{context.command_path} --help`)"


def print_message(message: str) -> None:
    """Print one line to stderr."""
    with contextlib.suppress(OSError):  # stderr may be closed; the exit code remains
        text = f"headway: {' '.join(clean(message).split())}"
        print(wrap_for(sys.stderr, text), file=sys.stderr, flush=True)


def _print_traceback() -> None:
    if os.environ.get("HEADWAY_DEBUG"):
        import traceback

        traceback.print_exc()


def _silence_stdout() -> None:
    """Redirect stdout to /dev/null, so that the flush at exit does not fail on the pipe."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
