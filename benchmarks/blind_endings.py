"""Runs a set of endings in corpus/ under `headway run` and judges the report about each of them.

    python benchmarks/blind_endings.py [--set blind_endings_2] [--check] -o result.json [name ...]
    python benchmarks/blind_endings.py --gpu --json result.json

Each script runs once under `headway run` (with `ranks`, under torchrun). `headway diagnose` then
reads the run directory, and its answer is compared with cases.json. A script that hangs is
diagnosed while it hangs, and then killed. Scripts that need a CUDA device run with `--gpu` only.
"""

import argparse
import concurrent.futures
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
SETS = ROOT / "corpus"
ENDINGS = {"HD514", "HD607", "HD608", "HD708", "HD808", "HD809", *(f"HD91{n}" for n in range(1, 6))}
HANG = re.compile("no progress for")  # the notice on the console
LIMIT = 240  # seconds for one script
HANG_LIMIT = 90  # seconds until a hang must be reported


class Script:
    """One script under `headway run`, with its output in files."""

    def __init__(self, case, folder):
        self.case, self.folder = case, folder
        self.path = SETS / case.get("set", "blind_endings") / case["script"]
        self.run_dir = folder / "run"
        self.outputs = [folder / "stdout", folder / "stderr"]
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT / "src"),
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": "1",
        }
        self.reported_after = None
        self.while_hung = None

    def command(self):
        script = ["run", "--out", str(self.run_dir), str(self.path)]
        if ranks := self.case.get("ranks"):
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = str(free.getsockname()[1])
            launcher = ["torch.distributed.run", "--nproc-per-node", str(ranks)]
            return [*launcher, "--master-port", port, "-m", "headway", *script]
        return ["headway", *script, "--format", "json"]

    def text(self):
        return "".join(path.read_text(errors="replace") for path in self.outputs)

    def records(self):
        paths = [path for path in self.run_dir.rglob("*.json*") if path.is_file()]
        return "".join(path.read_text(errors="replace") for path in paths)

    def run(self):
        with open(self.outputs[0], "w") as out, open(self.outputs[1], "w") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *self.command()],
                stdout=out,
                stderr=err,
                cwd=self.folder,
                env=self.environment,
                start_new_session=True,
            )
        status = self.wait()
        self.end()
        return status

    def wait(self):
        started, hung_at, sent = time.monotonic(), None, False
        while self.process.poll() is None and time.monotonic() - started < LIMIT:
            time.sleep(0.25)
            if "signal" in self.case and not sent and "signal me" in self.text():
                sent = True
                self.send()
            if not self.case.get("hangs"):
                continue
            if hung_at is None and "hangs now" in self.text():
                hung_at = time.monotonic()
            if hung_at is not None and self.hang_is_over(hung_at):
                break
        return self.process.poll()

    def hang_is_over(self, hung_at):
        waited = time.monotonic() - hung_at
        if HANG.search(self.text() + self.records()):
            self.reported_after = round(waited, 1)
            time.sleep(4)  # the other ranks add their stacks
            self.while_hung = self.diagnose()
            return True
        return waited > HANG_LIMIT

    def send(self):
        number = getattr(signal, self.case["signal"])
        send = os.killpg if self.case["to"] == "group" else os.kill
        send(self.process.pid, number)
        if pause := self.case.get("resume_after_s"):
            time.sleep(pause)
            send(self.process.pid, signal.SIGCONT)

    def end(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for pid in self.left_over():  # torchrun starts each rank in a session of its own
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def left_over(self):
        """The processes that still write to this run directory."""
        own = str(self.run_dir).encode()
        for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                if own in path.read_bytes().split(b"\0"):
                    yield int(path.parent.name)

    def diagnose(self):
        answer = subprocess.run(
            [sys.executable, "-m", "headway", "diagnose", str(self.run_dir), "--format", "json"],
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=self.environment,
            check=False,
        )
        try:
            return json.loads(answer.stdout)
        except ValueError:
            return {"error": answer.stdout[-500:] + answer.stderr[-2000:]}


def check(script):
    """Verdict, first cause and exit status of `headway check`, where it can be compared."""
    case = script.case
    if not case.get("check") or any(key in case for key in ("ranks", "hangs", "signal")):
        return None
    words = ["check", "--format", "json", "--max-steps", "2000", str(script.path)]
    answer = subprocess.run(
        [sys.executable, "-m", "headway", *words],
        capture_output=True,
        text=True,
        cwd=script.folder,
        env=script.environment,
        timeout=LIMIT,
        check=False,
    )
    try:
        report = json.loads(answer.stdout)
    except ValueError:
        return {"status": answer.returncode, "error": answer.stderr[-500:]}
    first = next((cause["code"] for cause in report["causes"]), None)
    return {"status": answer.returncode, "verdict": report["verdict"], "cause": first}


def own_report(script):
    """What `headway run` itself printed, where it prints JSON."""
    try:
        return json.loads(script.outputs[0].read_text())
    except ValueError:
        return None


def judge(case, status, report):
    findings = report.get("findings", [])
    causes = [cause["code"] for cause in report.get("causes", [])]
    codes = [finding["code"] for finding in findings]
    alarms = [f["code"] for f in findings if f["severity"] != "info" and f["code"] in ENDINGS]
    right = {"verdict": report.get("verdict") in case["verdict"]}
    if case["status"] is not None:
        right["status"] = status == case["status"]
    if not case["codes"]:
        right["quiet"] = not alarms
        return right, {"causes": causes, "alarms": alarms}
    right["code"] = bool(causes) and causes[0] in case["codes"]
    right["found"] = all(code in codes for code in case.get("also", [])) and any(
        code in case["codes"] for code in codes
    )
    named = [f for f in findings if f["code"] in case["codes"]]
    if case.get("lines"):
        right["line"] = any(
            pathlib.Path(f["where"].get("file") or "").name == case["file"]
            and f["where"].get("line") in case["lines"]
            for f in named
        )
    if "step" in case:
        right["step"] = any((f.get("step") or -9) - case["step"] in (0, 1) for f in named)
    for key in ("sample", "rank"):
        if key in case:
            right[key] = any(f["where"].get(key) == case[key] for f in named)
    if "says" in case:
        right["says"] = any(all(word in json.dumps(f) for word in case["says"]) for f in named)
    return right, {"causes": causes, "alarms": alarms}


def examine(case):
    folder = pathlib.Path(tempfile.mkdtemp(prefix=f"blind-{case['script'][:3]}-"))
    script = Script(case, folder)
    status = script.run()
    if status is not None and status < 0:
        status = 128 - status
    report = script.diagnose()
    right, seen = judge(case, status, report)
    own = own_report(script)
    row = {"script": case["script"], "right": right, "status": status, **seen}
    row["verdict"] = report.get("verdict")
    row["own_verdict"] = own and own.get("verdict")
    if (checked := check(script)) is not None:
        row["check"] = checked
    if case.get("hangs"):
        row["reported_after_s"] = script.reported_after
        row["while_hung"] = (script.while_hung or {}).get("verdict")
    row["findings"] = [
        {key: finding[key] for key in ("code", "step", "where", "message")}
        for finding in report.get("findings", [])
    ]
    if "error" in report:
        row["error"] = report["error"]
    print(
        case["script"],
        {k: v for k, v in row.items() if k not in ("script", "findings")},
        flush=True,
    )
    if not os.environ.get("KEEP"):
        shutil.rmtree(folder, ignore_errors=True)
    return row


def figures(cases, rows):
    by_name = {row["script"]: row for row in rows}
    dead = [by_name[c["script"]] for c in cases if c["codes"]]
    living = [by_name[c["script"]] for c in cases if not c["codes"]]

    def count(rows, key):
        judged = [row["right"][key] for row in rows if key in row["right"]]
        return f"{sum(judged)} of {len(judged)}"

    keys = ("verdict", "code", "found", "line", "status", "step", "sample", "rank", "says")
    return {
        "endings": {key: count(dead, key) for key in keys},
        "living": {key: count(living, key) for key in ("verdict", "quiet", "status")},
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--set", help="a folder of corpus/ (default: blind_endings; with --gpu: 4)")
    parser.add_argument("--gpu", action="store_true", help="the scripts that need a CUDA device")
    parser.add_argument("--check", action="store_true", help="compare with headway check, too")
    parser.add_argument("-o", "--out", "--json", type=pathlib.Path)
    parser.add_argument("-j", "--jobs", type=int, default=2)
    arguments = parser.parse_args()
    # A job in the background ignores these, and so would the scripts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    name = arguments.set or ("blind_endings_4" if arguments.gpu else "blind_endings")
    cases = json.loads((SETS / name / "cases.json").read_text())
    cases = [{**case, "set": name, "check": arguments.check} for case in cases]
    cases = [case for case in cases if case.get("gpu", False) == arguments.gpu]
    if arguments.names:
        cases = [c for c in cases if any(c["script"].startswith(n) for n in arguments.names)]
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        rows = list(pool.map(examine, cases))
    result = {"figures": figures(cases, rows), "rows": rows}
    print(json.dumps(result["figures"], indent=2))
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
