"""Notifications: a webhook, a command, a function; failures are said once and stop nothing."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from headway import Guard
from headway.cli.main import cli
from headway.core.findings import Finding, Severity
from headway.errors import UsageError
from headway.output.notices import MAX_NOTIFICATIONS, Notifier


def train(bad: int = 20, **options: Any) -> dict[str, torch.Tensor]:
    """Thirty steps, one of them NaN; the weights at the end."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Guard(model, optimizer, **options) as guard:
        for step in range(30):
            x = torch.randn(8, 4)
            if step == bad:
                x[0, 0] = float("nan")
            guard.backward(model(x).square().mean())
            optimizer.step()
            optimizer.zero_grad()
    return model.state_dict()


@contextmanager
def webhook(status: int = 200) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A local server, and what was posted to it."""
    posted: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/hook/secret", posted
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_webhook_hears_of_the_finding_and_the_end(tmp_path: Path) -> None:
    with webhook() as (url, posted):
        train(run_dir=tmp_path / "run", notify=url)
    first, last = posted[0], posted[-1]
    assert first["event"] == "finding"
    assert first["step"] == 20
    assert first["severity"] == "error"
    assert first["code"].startswith("HD")
    assert "run" in first["text"]
    assert last == {**last, "event": "end", "status": "finished", "steps": 30}
    # A webhook is a secret: it is not written anywhere.
    assert not any(b"secret" in path.read_bytes() for path in tmp_path.rglob("*.json*"))


def test_a_command_gets_the_text(tmp_path: Path) -> None:
    heard = tmp_path / "heard"
    program = tmp_path / "hear.py"
    program.write_text(
        "import os, sys\n"
        f"with open({str(heard)!r}, 'a') as file:\n"
        "    file.write(os.environ['HEADWAY_EVENT'] + ' ' + sys.stdin.read())\n"
    )
    train(run_dir=tmp_path / "run", notify=f"{sys.executable} {program}")
    lines = heard.read_text().splitlines()
    assert lines[0].startswith("finding headway, run on ")
    assert " at step 20: " in lines[0]
    assert lines[-1].endswith("run finished after 30 steps")


def test_a_failing_target_is_said_once_and_changes_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    plain = train(bad=-1)
    with webhook(status=500) as (url, posted):
        watched = train(bad=-1, notify=[url, url])
        assert posted
        assert all(item["event"] == "end" for item in posted)
    said = [record.message for record in caplog.records if "notification" in record.message]
    assert len(said) == 1
    assert "127.0.0.1 (HTTPError 500)" in said[0]
    assert "secret" not in said[0]
    assert all(torch.equal(plain[name], watched[name]) for name in plain)


def test_a_slow_target_does_not_delay_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.output.notices.ENDING_SECONDS", 0.1)
    go_on, heard = threading.Event(), []

    def slow(message: dict[str, Any]) -> None:
        go_on.wait(30)
        heard.append(message["event"])

    train(notify=slow)  # would not return before the target if a step waited for it
    assert heard == []
    go_on.set()


def test_not_every_finding_of_a_bad_run_is_sent() -> None:
    heard: list[dict[str, Any]] = []
    notifier = Notifier(lambda message: heard.append(message), "run", lambda *_: None)
    for step in range(MAX_NOTIFICATIONS + 5):
        notifier.finding(Finding("HD101", "nonfinite-loss", Severity.ERROR, step, "NaN"))
        notifier.finding(Finding("HD103", "loss-spike", Severity.INFO, step, "spike"))
    notifier.ended("failed", 7)
    assert [item["event"] for item in heard] == ["finding"] * MAX_NOTIFICATIONS + ["end"]
    assert "not sent" in heard[-2]["text"]


@pytest.mark.parametrize(
    "wrong", [3, "", "ftp://host/x", "https://", "no-such-command-of-ours -x", "'unclosed"]
)
def test_a_wrong_target_is_refused_at_once(wrong: Any) -> None:
    with pytest.raises(UsageError, match="notify"):
        train(notify=[wrong])


def test_the_command_line_refuses_it_too(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('trained')\n")
    done = CliRunner().invoke(cli, ["run", "--notify", "no-such-command-of-ours", str(script)])
    assert done.exit_code == 2
    assert "no-such-command-of-ours" in done.output


def test_a_command_that_needs_a_shell_is_refused_with_the_one_that_works(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="none runs; give sh -c 'cat >> /tmp/told'"):
        Notifier("cat >> /tmp/told", "a run", lambda *_: None)
    told = tmp_path / "told"
    train(notify=f"sh -c 'cat >> {told}'")
    assert "HD101" in told.read_text()


def test_a_failing_command_is_reported_with_its_exit_code() -> None:
    told: list[str] = []
    done = threading.Event()

    def once(_: str, text: str) -> None:
        told.append(text)
        done.set()

    Notifier("sh -c 'exit 3'", "a run", once).ended("finished", 3)
    assert done.wait(20)
    assert told == ["a notification could not be sent to sh (exit code 3); training continues"]
