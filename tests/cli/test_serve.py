"""`headway serve` as it is started and ended; what it serves stands in tests/web."""

from __future__ import annotations

import builtins
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from support.serving import serving
from support.signals import default_interrupt

Invoke = Callable[..., Result]


def test_ctrl_c_ends_it_well(tmp_path: Path) -> None:
    pytest.importorskip("uvicorn")
    with serving(tmp_path) as up:
        assert up.ask("/").status == 200
        up.process.send_signal(signal.SIGINT)
        assert up.process.wait(timeout=30) == 0


def test_it_ends_although_somebody_listens(tmp_path: Path) -> None:
    pytest.importorskip("uvicorn")
    import http.client

    with serving(tmp_path) as up:
        up.runs()
        link = http.client.HTTPConnection("127.0.0.1", up.port, timeout=30)
        link.request("GET", "/api/events", headers={"Cookie": up.cookie})
        assert link.getresponse().readline() == b"retry: 2000\n"
        up.process.send_signal(signal.SIGINT)
        assert up.process.wait(timeout=30) == 0
        link.close()


def test_the_address_is_the_last_line_and_carries_the_token(tmp_path: Path) -> None:
    pytest.importorskip("uvicorn")
    with serving(tmp_path) as up:
        assert up.url.startswith(f"http://127.0.0.1:{up.port}/?token=")
        assert len(up.token) >= 32
        up.process.send_signal(signal.SIGINT)
        assert up.process.stdout is not None
        assert up.process.stdout.read() == ""


def test_an_open_address_is_said_to_be_one(tmp_path: Path) -> None:
    pytest.importorskip("uvicorn")
    command = [sys.executable, "-m", "headway", "serve", str(tmp_path), "--port", "0"]
    process = subprocess.Popen(
        [*command, "--host", "0.0.0.0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=default_interrupt,
    )
    assert process.stdout is not None
    address = process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=30)
    assert "?token=" in address
    assert "which is reachable from the network" in told
    assert "token" in told


def test_a_folder_that_is_not_there(tmp_path: Path, invoke: Invoke) -> None:
    pytest.importorskip("uvicorn")
    result = invoke("serve", tmp_path / "nowhere")
    told = result.stderr
    assert (result.exit_code, told.count("\n")) == (2, 1)
    assert "there is no folder" in told
    (tmp_path / "file").write_text("")
    result = invoke("serve", tmp_path / "file")
    told = result.stderr
    assert (result.exit_code, told.count("\n")) == (2, 1)
    assert "is not a folder" in told


def test_a_port_that_is_taken(tmp_path: Path, invoke: Invoke) -> None:
    pytest.importorskip("uvicorn")
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        result = invoke("serve", tmp_path, "--port", taken.getsockname()[1])
    told = result.stderr
    assert (result.exit_code, told.count("\n")) == (2, 1)
    assert "cannot listen" in told


@pytest.mark.parametrize("name", ["starlette", "uvicorn"])
def test_without_the_extra(
    tmp_path: Path,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    invoke: Invoke,
) -> None:
    for known in [*sys.modules]:
        if known.startswith(("starlette", "uvicorn", "headway.web")):
            monkeypatch.delitem(sys.modules, known)
    real = builtins.__import__

    def missing(wanted: str, *args: Any, **kwargs: Any) -> Any:
        if wanted.partition(".")[0] == name:
            raise ModuleNotFoundError(f"No module named {wanted!r}", name=wanted)
        return real(wanted, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    result = invoke("serve", tmp_path)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "pip install 'headway[web]'" in result.stderr


def test_help_says_that_nothing_is_written(invoke: Invoke) -> None:
    told = invoke("serve", "--help").stdout
    assert "DIR is only" in told
    assert "token" in told


def test_it_never_imports_torch(tmp_path: Path) -> None:
    pytest.importorskip("uvicorn")
    code = "import sys, headway.web.server; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
