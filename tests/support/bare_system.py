"""`python bare_system.py ARGS…`: runs headway without what Windows or macOS lack.

No /proc, no `os.fork`, `os.sysconf`, `os.waitid` and `os.sched_getaffinity`, no `fcntl`, `resource`
and `pwd`, and only the signals that Windows has.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib
import io
import os
import signal
import sys
from typing import Any

WINDOWS_SIGNALS = {"SIGABRT", "SIGFPE", "SIGILL", "SIGINT", "SIGSEGV", "SIGTERM", "SIG_DFL"}
WINDOWS_SIGNALS |= {"SIG_IGN"}
HIDDEN_CALLS = ("fork", "forkpty", "sysconf", "waitid", "sched_getaffinity", "getuid", "geteuid")
HIDDEN_CALLS += ("getloadavg", "WNOHANG", "O_NONBLOCK", "O_NOFOLLOW", "O_DIRECTORY", "getpgid")
HIDDEN_MODULES = ("fcntl", "resource", "pwd", "grp", "termios", "pty")


def hide() -> None:
    """Remove it all from this process."""
    for name in HIDDEN_CALLS:
        if hasattr(os, name):
            delattr(os, name)
    for name in HIDDEN_MODULES:
        sys.modules[name] = None  # type: ignore[assignment]
    for name in [name for name in dir(signal) if name.startswith("SIG") and name.isupper()]:
        if name not in WINDOWS_SIGNALS:
            delattr(signal, name)
    for name in ("setitimer", "alarm", "ITIMER_REAL", "pthread_kill", "sigwait"):
        if hasattr(signal, name):
            delattr(signal, name)
    for owner, name in (
        (builtins, "open"),
        (io, "open"),
        (os, "open"),
        (os, "stat"),
        (os, "listdir"),
        (os, "scandir"),
        (os, "readlink"),
    ):
        setattr(owner, name, _without_proc(getattr(owner, name)))


def _without_proc(call: Any) -> Any:
    def checked(path: Any = ".", *args: Any, **kwargs: Any) -> Any:
        text = os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else ""
        # psutil has no other way on Linux; on other systems it asks them.
        own = sys._getframe(1).f_globals.get("__name__", "").startswith("psutil")
        if not own and (text == "/proc" or text.startswith(("/proc/", "/sys/"))):
            raise FileNotFoundError(2, "No such file or directory", text)
        return call(path, *args, **kwargs)

    return checked


if __name__ == "__main__":
    # Libraries of Python itself that look for these names once, when they are imported.
    for module in ("asyncio", "multiprocessing.util", "selectors", "subprocess", "tempfile"):
        importlib.import_module(module)
    with contextlib.suppress(ImportError):
        importlib.import_module("psutil")
    if {"check", "run"} & set(sys.argv) and "--restarts" not in sys.argv:
        importlib.import_module("torch")  # that for Windows does without; that for Linux does not
    hide()
    from headway.cli.main import main

    main()
