"""`subprocess.run` for commands of Python that need torch: torch is imported once, not each time.

A server imports torch and forks for each command, so a command is still a process of its own: with
its own modules (all but torch's), folder, environment, streams, signals and exit status. It saves
about three seconds of processor time per command. A test that is about starting Python, about what
is imported, or that talks to the process while it runs, calls `subprocess` itself.
"""

from __future__ import annotations

import array
import atexit
import io
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import IO, Any

_lock = threading.Lock()
_server: subprocess.Popen[bytes] | None = None
_line: socket.socket | None = None


def run(
    command: list[str],
    *,
    cwd: Path | str | None = None,
    env: dict[str, str] | None = None,
    timeout: float = 300,
    check: bool = False,
) -> subprocess.CompletedProcess[str]:
    """What `[sys.executable, "train.py", …]` or `[sys.executable, "-m", module, …]` prints."""
    assert command[0] == sys.executable, command
    request = {
        "arguments": [str(word) for word in command[1:]],
        "folder": str(cwd or Path.cwd()),
        "environment": dict(os.environ if env is None else env),
        "timeout": timeout,
    }
    with _lock, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        line = _connected()
        _send(line, request, out, err)
        status = json.loads(_receive(line)[0])
        texts = [_text(stream) for stream in (out, err)]
    if status is None:
        raise subprocess.TimeoutExpired(command, timeout, *texts)
    done = subprocess.CompletedProcess(command, status, *texts)
    if check:
        done.check_returncode()
    return done


def _text(stream: IO[bytes]) -> str:
    stream.seek(0)
    return stream.read().decode("utf-8").replace("\r\n", "\n")


def _connected() -> socket.socket:
    global _server, _line
    if _line is None or _server is None or _server.poll() is not None:
        _line, theirs = socket.socketpair()
        with theirs:
            _server = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
            )
        atexit.register(_stop, _server, _line)
    return _line


def _stop(server: subprocess.Popen[bytes], line: socket.socket) -> None:
    line.close()  # the server ends when nobody is there to ask
    server.wait()


def _send(line: socket.socket, message: Any, *streams: IO[bytes]) -> None:
    text = json.dumps(message).encode()
    descriptors = array.array("i", [stream.fileno() for stream in streams])
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)] if streams else []
    line.sendmsg([len(text).to_bytes(8, "big")], rights)
    line.sendall(text)


def _receive(line: socket.socket) -> tuple[bytes, list[int]]:
    head, rights, _, _ = line.recvmsg(8, socket.CMSG_SPACE(2 * array.array("i").itemsize))
    if len(head) < 8:
        raise EOFError
    descriptors = array.array("i")
    for _, _, data in rights:
        descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    text = b""
    while len(text) < int.from_bytes(head, "big"):
        text += line.recv(1 << 20)
    return text, list(descriptors)


# --- the server -----------------------------------------------------------------------------


def _serve(line: socket.socket) -> dict[str, Any]:
    """Fork for each request; the child leaves with the request it is to carry out."""
    while True:
        try:
            text, streams = _receive(line)
        except EOFError:
            os._exit(0)
        request: dict[str, Any] = json.loads(text)
        child = os.fork()
        if child == 0:
            line.close()
            for stream, number in zip(streams, (1, 2), strict=True):
                os.dup2(stream, number)
                os.close(stream)
            return request
        for stream in streams:
            os.close(stream)
        _send(line, _wait(child, request["timeout"]))


def _wait(child: int, timeout: float) -> int | None:
    """The child's exit status as `subprocess` gives it; None: it took too long."""
    alarm = threading.Timer(timeout, os.kill, (child, signal.SIGKILL))
    alarm.start()
    _, status = os.waitpid(child, 0)
    late = not alarm.is_alive()
    alarm.cancel()
    return None if late else os.waitstatus_to_exitcode(status)


def _become(request: dict[str, Any]) -> None:
    """Do as the interpreter does at its start, then run the script or the module."""
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    encoding = os.environ.get("PYTHONIOENCODING", "utf-8")
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w", closefd=False)), encoding)
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(io.FileIO(2, "w", closefd=False)),
        encoding,
        "backslashreplace",
        line_buffering=True,
    )
    first, *rest = request["arguments"]
    paths = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:1] = [str(Path.cwd()), *paths]
    if first == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(first).resolve().parent)
        sys.argv = [first, *rest]
        runpy.run_path(os.path.abspath(first), run_name="__main__")


if __name__ == "__main__":
    _become(_serve(socket.socket(fileno=int(sys.argv[1]))))
