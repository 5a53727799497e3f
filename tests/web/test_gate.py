"""Nobody gets in without the token, from another site, or to another file."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.report_runs import sick_records, write
from support.serving import PATIENCE, Served, serving

from headway.cli.main import cli

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

MAX_LISTENERS = 100

SECRET = "a secret that lies outside"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    top = tmp_path_factory.mktemp("top")
    (top / "secret.txt").write_text(SECRET)
    outside = write(top / "outside", sick_records())
    folder = top / "runs"
    write(folder / "good", sick_records())
    (folder / "link").symlink_to(outside, target_is_directory=True)
    (folder / "half").mkdir()
    (folder / "half" / "run.json").symlink_to(outside / "run.json")
    write(folder / "mixed", sick_records())
    (folder / "mixed" / "events.jsonl").unlink(missing_ok=True)
    (folder / "mixed" / "events.jsonl").symlink_to(top / "secret.txt")
    with serving(folder) as up:
        yield up


def test_without_the_token_there_is_nothing(served: Served) -> None:
    for target in ("/", "/api/runs", "/api/events", "/metrics", "/static/list.js", "/run/x"):
        answer = served.ask(target, known=False)
        assert answer.status == 401, target
        assert b"token" in answer.body
        assert b"good" not in answer.body


@pytest.mark.parametrize("wrong", ["", "x", "ä", "%00", "a" * 4000])
def test_a_wrong_token_opens_nothing(served: Served, wrong: str) -> None:
    from urllib.parse import quote

    answer = served.ask(f"/?token={quote(wrong)}", known=False)
    assert answer.status == 401
    assert "set-cookie" not in answer.headers


def test_the_token_becomes_a_cookie_and_leaves_the_address(served: Served) -> None:
    answer = served.ask(f"/compare?run=1&token={served.token}&run=2", known=False)
    assert answer.status == 303
    assert answer.headers["location"] == "/compare?run=1&run=2"
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert "path=/" in cookie
    assert served.token not in answer.headers["set-cookie"]


def test_a_program_reads_the_metrics_with_the_token(served: Served) -> None:
    def ask(credentials: str) -> tuple[int, str]:
        headers = {"Authorization": credentials}
        answer = served.ask("/metrics", known=False, headers=headers)
        return answer.status, answer.body.decode()

    served.wait_for("good", lambda run: run["verdict"] == "error")
    status, text = ask(f"Bearer {served.token}")
    assert status == 200
    assert 'headway_run_step{run="good"} 119\n' in text
    assert 'headway_run_verdict{run="good",verdict="error"} 1\n' in text
    assert 'headway_run_findings{run="good",severity="error"} 2\n' in text
    for line in text.splitlines():
        assert line.startswith("# ") or re.fullmatch(r'headway_run_\w+\{run=".*"\} \S+', line)
    for wrong in ("", "Bearer", "Bearer x", f"Basic {served.token}", served.token, "Bearer \xff"):
        assert ask(wrong)[0] == 401, wrong


def test_names_cannot_leave_their_label() -> None:
    from headway.web.run_table import prometheus_text

    name = 'a"} 1\nheadway_run_step{run="b\\'
    counts = {"error": 0}
    run = {"name": name, "step": 1, "loss": "-Infinity", "speed": None, "changed": 1.5}
    run |= {"findings": counts, "state": "ended", "verdict": "healthy"}
    lines = prometheus_text([run]).splitlines()
    assert 'headway_run_loss{run="a\\"} 1\\nheadway_run_step{run=\\"b\\\\"} -Inf' in lines
    assert not any(line.startswith("headway_run_steps_per_second{") for line in lines)
    assert len(lines) == 2 * 7 + 6


@pytest.mark.parametrize(
    "content", [None, "", "short", "with a blank in it somewhere", "\xff" * 40]
)
def test_a_token_that_is_none_is_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "token").write_text(content, encoding="latin-1")
    words = ["serve", str(tmp_path), "--token-file", str(tmp_path / "token")]
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 2
    assert "token" in done.output


def test_a_redirect_stays_here(served: Served) -> None:
    answer = served.ask(f"//elsewhere.example/x?token={served.token}", known=False)
    assert answer.status == 303
    assert answer.headers["location"].startswith("/elsewhere.example")


@pytest.mark.parametrize(
    "cookie", ["", "headway-1=x", "headway-{port}=x", "headway-{port}={token}", "=;;\x80"]
)
def test_another_cookie_is_none(served: Served, cookie: str) -> None:
    said = cookie.format(port=served.port, token=served.token)
    answer = served.ask("/api/runs", known=False, headers={"Cookie": said})
    assert answer.status == 401


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "192.168.0.1", "a@b"]
)
def test_another_name_is_refused(served: Served, host: str) -> None:
    assert served.ask("/api/runs", host=host).status in (400, 421)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "[::1]:9000", "127.0.0.1:9999"])
def test_a_forwarded_port_is_still_this_server(served: Served, host: str) -> None:
    assert served.ask("/api/runs", host=host).status == 200


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1"])
def test_another_origin_is_refused(served: Served, origin: str) -> None:
    answer = served.ask("/api/runs", headers={"Origin": origin})
    assert answer.status == 403
    assert "access-control-allow-origin" not in answer.headers


def test_its_own_origin_is_not(served: Served) -> None:
    own = f"http://127.0.0.1:{served.port}"
    answer = served.ask("/api/runs", headers={"Origin": own, "Sec-Fetch-Site": "same-origin"})
    assert answer.status == 200
    assert "access-control-allow-origin" not in answer.headers


def test_another_site_may_link_here_and_fetch_nothing(served: Served) -> None:
    cross = {"Sec-Fetch-Site": "cross-site"}
    for target in ("/api/runs", "/static/report.js", "/"):
        assert served.ask(target, headers={**cross, "Sec-Fetch-Mode": "no-cors"}).status == 403
    assert served.ask("/", headers={**cross, "Sec-Fetch-Mode": "navigate"}).status == 200
    assert served.ask("/api/runs", headers={**cross, "Sec-Fetch-Mode": "navigate"}).status == 403


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"])
def test_it_takes_no_orders(served: Served, method: str) -> None:
    answer = served.ask("/api/runs", method=method)
    assert answer.status == 405
    assert answer.headers["allow"] == "GET, HEAD"


def test_head_is_get_without_the_body(served: Served) -> None:
    for target in ("/", "/api/runs", "/api/events"):
        answer = served.ask(target, method="HEAD")
        assert (answer.status, answer.body) == (200, b"")


@pytest.mark.parametrize(
    ("target", "known"),
    [("/", True), ("/", False), ("/api/runs", True), ("/nowhere", True), ("/static/x", True)],
)
def test_every_answer_is_guarded(served: Served, target: str, known: bool) -> None:
    headers = served.ask(target, known=known).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert "*" not in policy
    assert "http" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"] == "no-store"
    assert "server" not in headers


@pytest.mark.parametrize(
    "target",
    [
        "/../secret.txt",
        "/static/../../secret.txt",
        "/static/..%2f..%2fsecret.txt",
        "/static/%2e%2e/%2e%2e/app.py",
        "/static/..%5c..%5csecret.txt",
        "/static//etc/passwd",
        "/static/%2fetc%2fpasswd",
        "/static/app.py",
        "/static/uPlot.LICENSE%00.js",
        "/run/../../secret.txt",
        "/api/runs/../secret.txt",
        "/api/runs/%2e%2e%2fsecret.txt/charts",
        "/api/runs/good",
        "/api/runs/..",
        "/api/runs/%00",
        "/api/runs/" + "a" * 3000,
        "/secret.txt",
        "//secret.txt",
    ],
)
def test_there_is_no_way_to_another_file(served: Served, target: str) -> None:
    answer = served.ask(target)
    assert answer.status == 404, target
    assert SECRET.encode() not in answer.body
    assert b"root:" not in answer.body


def test_links_that_lead_out_are_not_followed(served: Served) -> None:
    served.wait_for("good", lambda run: run["checked"] == 1)
    runs = served.runs()
    assert set(runs) == {"good", "mixed"}
    key = runs["mixed"]["id"]
    for part in ("", "/charts", "/layers"):
        answer = served.ask(f"/api/runs/{key}{part}")
        assert answer.status == 200
        assert SECRET.encode() not in answer.body


def test_asking_writes_nothing(tmp_path: Path) -> None:
    write(tmp_path / "runs" / "one", sick_records())
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    with serving(tmp_path / "runs") as up:
        run = up.wait_for("one", lambda run: run["checked"] == 1)
        for part in ("", "/charts", "/layers", "/charts?from=10&to=20&points=100"):
            assert up.ask(f"/api/runs/{run['id']}{part}").status == 200
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def connections(served: Served, count: int, request: bytes) -> list[socket.socket]:
    """That many connections, each with this much of a request."""
    made = []
    for _ in range(count):
        one = socket.create_connection(("127.0.0.1", served.port), timeout=PATIENCE)
        one.sendall(request)
        made.append(one)
    return made


def test_half_sent_requests_take_no_place_from_others(served: Served) -> None:
    served.enter()
    half = connections(served, 500, b"GET / HTTP/1.1\r\nHost: x\r\n")
    try:
        assert served.ask("/api/runs").status == 200
    finally:
        for one in half:
            one.close()


def test_the_limit_of_open_pages_holds(served: Served) -> None:
    served.enter()
    request = f"GET /api/events HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\nCookie: "
    pages: list[socket.socket] = []
    answers: list[bytes] = []
    try:
        for _ in range(3):  # a server that reads late resets more than MAX_WAITING at a time
            more = connections(served, 100, f"{request}{served.cookie}\r\n\r\n".encode())
            pages += more
            answers += [one.recv(64).split(b" ")[1] for one in more]
        assert answers.count(b"200") <= MAX_LISTENERS
        assert set(answers) == {b"200", b"503"}
        assert served.ask("/api/runs").status == 200
    finally:
        for one in pages:
            one.close()
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:  # their places are free again
        (page,) = connections(served, 1, f"{request}{served.cookie}\r\n\r\n".encode())
        with page:
            if page.recv(64).split(b" ")[1] == b"200":
                return
        time.sleep(0.1)
    pytest.fail("no place became free")
