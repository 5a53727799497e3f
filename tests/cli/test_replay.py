"""`headway replay`: a script, a planted origin, the guard's incident; then the mended script."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from support import warm_python

from headway.cli.main import cli
from headway.explain.incident_file import incident_folder
from headway.explain.incident_file.contents import write_index
from headway.torch_adapters.nested_state import compute_seal

SCRIPT = """
import sys
import torch
from headway import Guard, Policy

torch.manual_seed(0)
WIDTH = 4
first, last = torch.nn.Linear(3, WIDTH), torch.nn.Linear(WIDTH, 1)
model = torch.nn.Sequential(first, torch.nn.Dropout(0.5), last)
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
batches = [(torch.rand(8, 3) + 0.5, torch.rand(8, 1)) for _ in range(5)]
batches[3][0][2, 0] = 0.0  # the bad sample
policy = Policy(capture=sys.argv[2] if "--capture" in sys.argv else "batch")
guard = Guard(model, optimizer, run_dir="runs/first", policy=policy)
guard.resume()
print("training", *sys.argv[1:])


def loss_of(x, y):
    return ((model(x.log()) - y) ** 2).mean()


for x, y in guard(batches):
    optimizer.zero_grad()
    loss = loss_of(x, y)
    guard.backward(loss)
    optimizer.step()
print("the end")
"""
PLACE = "train.py:20"
MENDED = SCRIPT.replace("x.log()", "(x + 1e-6).log()")
INCIDENT = Path("runs/first/incidents/1-step3")

Shell = Callable[..., "subprocess.CompletedProcess[str]"]
Replay = Callable[..., Result]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a script that has been run once, and its incident."""
    return train(tmp_path_factory.mktemp("home")).parent


@pytest.fixture
def broken(home: Path) -> Path:
    """The script as it was then."""
    (home / "train.py").write_text(SCRIPT)
    return home / "train.py"


@pytest.fixture
def shell(home: Path) -> Shell:
    """The command as a process of its own, in that folder."""

    def call(
        *args: object, cwd: Path = home, first: Sequence[str] = ()
    ) -> subprocess.CompletedProcess[str]:
        return warm_python.run(
            [sys.executable, "-m", *first, "headway", "replay", *(str(arg) for arg in args)],
            cwd=cwd,
            env={**os.environ, "PYTHONIOENCODING": "utf-8", "NO_COLOR": "1"},
            timeout=120,
        )

    return call


@pytest.fixture
def replay(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Replay]:
    """The same in this process, which is quicker."""
    path = list(sys.path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def call(*args: object, cwd: Path = home) -> Result:
        sys.modules.pop("rebuilt", None)
        monkeypatch.chdir(cwd)
        return CliRunner().invoke(cli, ["replay", *map(str, args)], prog_name="headway")

    with torch.random.fork_rng():
        yield call
    sys.path[:] = path


def train(folder: Path, *args: str, text: str = SCRIPT) -> Path:
    script = folder / "train.py"
    script.write_text(text)
    done = warm_python.run([sys.executable, "train.py", *args], cwd=folder, timeout=120)
    assert done.returncode == 0, done.stderr
    assert (folder / INCIDENT / "incident.json").is_file()
    return script


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_it_reproduces_until_the_script_is_mended(shell: Shell, broken: Path) -> None:
    before = contents(broken.parent / "runs")
    result = shell(INCIDENT)
    assert result.returncode == 1, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].startswith("reproduces: the loss is NaN")
    assert lines[-1] == "Next: headway explain HD101"
    for words in (f"{PLACE} in loss_of", "op log, forward pass", "clamp_min(1e-12)", "1 zero"):
        assert words in result.stdout
    assert "training" in result.stderr, "what the script prints stays out of the result"
    assert "the end" not in result.stderr
    assert max(map(len, lines)) <= 200

    broken.write_text(MENDED)
    result = shell(INCIDENT)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("cured: loss ")
    assert result.stdout.splitlines()[-1] == "Next: headway diagnose runs/first"
    assert contents(broken.parent / "runs") == before, "a replay leaves nothing in the run"


def test_the_loss_is_that_of_the_incident(replay: Replay, broken: Path) -> None:
    """Weights, dropout's random numbers and batch are those of step 3: the mended loss is what the
    mended script would have got at that very step."""
    broken.write_text(MENDED)
    found = json.loads(replay(INCIDENT, "--format", "json").stdout)
    held = incident_folder.read_incident(broken.parent / INCIDENT)
    state, random = held.state(), held.rng()
    assert state is not None
    assert random is not None
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1))
    model.load_state_dict(state["models"][0]["state"])
    [(x, y)] = held.batches()
    torch.set_rng_state(random["torch"])
    loss = ((model((x + 1e-6).log()) - y) ** 2).mean()
    assert found["losses"] == [float(loss.detach())]


def test_the_mended_script_may_be_another_file(replay: Replay, broken: Path) -> None:
    mended = broken.parent / "elsewhere" / "mended.py"
    mended.parent.mkdir(exist_ok=True)
    mended.write_text(MENDED)
    assert replay(INCIDENT, "--script", mended).exit_code == 0
    assert replay(INCIDENT, "--script", broken).exit_code == 1


@pytest.mark.slow
def test_json_stands_alone(shell: Shell, broken: Path) -> None:
    result = shell(INCIDENT, "--format", "json")
    assert result.returncode == 1
    found = json.loads(result.stdout, parse_constant=pytest.fail)
    assert found["verdict"] == "reproduces"
    assert found["command"] == "replay"
    assert found["losses"] == ["NaN"]
    assert "training" in result.stderr


def test_the_verdict_is_that_of_the_incident(replay: Replay, broken: Path) -> None:
    found = json.loads(replay(INCIDENT, "--format", "json").stdout)
    now, then = found["explanation"], found["recorded"]
    assert then["origins"][0]["kind"] == "log-of-zero"
    assert then["origins"][0]["rows"] == [2]
    for name in ("origins", "samples", "guilt", "nature", "headline", "summary", "trials"):
        assert now[name] == then[name], name


@pytest.mark.slow
def test_arguments_are_the_recorded_ones_or_those_given(replay: Replay, tmp_path: Path) -> None:
    train(tmp_path, "--lr", "3")
    assert "training --lr 3" in replay(INCIDENT, cwd=tmp_path).stderr
    given = replay(INCIDENT, "--", "other", "--x", cwd=tmp_path)
    assert "training other --x" in given.stderr


@pytest.mark.slow
def test_guilty_rows_are_enough(replay: Replay, tmp_path: Path) -> None:
    script = train(tmp_path, "--capture", "guilty-rows")
    result = replay(INCIDENT, cwd=tmp_path)
    assert result.exit_code == 1, result.stderr
    assert "the batch consists of its bad rows" in " ".join(result.stdout.split())
    script.write_text(MENDED)
    assert replay(INCIDENT, cwd=tmp_path).exit_code == 0


@pytest.mark.slow
def test_without_data_there_is_nothing_to_replay(replay: Replay, tmp_path: Path) -> None:
    train(tmp_path, "--capture", "off")
    result = replay(INCIDENT, cwd=tmp_path)
    assert result.exit_code == 2
    assert "contains no batch to replay (private: capture is off)" in result.stderr
    assert "README.md" in result.stderr


GROUP = "import os\nimport torch.distributed as dist\ndist.init_process_group('gloo')\n"


def test_a_script_that_wants_a_process_group(replay: Replay, broken: Path) -> None:
    broken.write_text(GROUP + SCRIPT)
    result = replay(INCIDENT)
    assert result.exit_code == 3
    said = " ".join(result.stdout.split())
    assert "needs a process group" in said
    assert "torchrun --nproc-per-node 1 -m headway replay" in said
    broken.write_text("import os\nrank = int(os.environ['LOCAL_RANK'])\n" + SCRIPT)
    assert "needs a process group" in " ".join(replay(INCIDENT).stdout.split())


@pytest.mark.slow
def test_torchrun_with_one_process_gives_it_one(shell: Shell, broken: Path) -> None:
    grouped = GROUP + SCRIPT + "dist.destroy_process_group()\n"
    broken.write_text(grouped.replace("model, optimizer, run_dir", "wrapped, optimizer, run_dir"))
    text = broken.read_text().replace(
        "optimizer = ", "wrapped = torch.nn.parallel.DistributedDataParallel(model)\noptimizer = "
    )
    broken.write_text(text.replace("model(x", "wrapped(x"))
    result = shell(INCIDENT, first=["torch.distributed.run", "--nproc-per-node", "1", "-m"])
    assert "reproduces: the loss is NaN" in result.stdout, result.stderr
    assert "op log, forward pass" in result.stdout


def test_several_processes_are_refused(
    replay: Replay, broken: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    result = replay(INCIDENT)
    assert result.exit_code == 2
    assert "a replay needs one process" in result.stderr


def test_a_script_that_crashes(replay: Replay, broken: Path) -> None:
    broken.write_text(SCRIPT.replace("guard.resume()", "1 / 0"))
    result = replay(INCIDENT)
    assert result.exit_code == 3
    assert result.stdout.startswith("crashed: ZeroDivisionError: division by zero")
    assert "Traceback" in result.stderr
    assert 'train.py", line' in result.stderr
    assert "runpy" not in result.stderr
    broken.write_text("import sys\nsys.exit('no data here')")
    assert replay(INCIDENT).exit_code == 3
    broken.write_text("def (")
    result = replay(INCIDENT, "--format", "json")
    assert result.exit_code == 3
    assert json.loads(result.stdout)["verdict"] == "crashed"


@pytest.mark.parametrize(
    ("instead", "code"),
    [
        ("raise ValueError('NaN')", 1),
        ("sys.exit(1)", 1),
        ("break", 1),
        ("1 / 0", 1),
    ],
)
def test_a_loop_that_ends_itself_over_a_nan(
    replay: Replay, broken: Path, instead: str, code: int
) -> None:
    broken.write_text(SCRIPT.replace("    optimizer.step()\n", f"    {instead}\n"))
    result = replay(INCIDENT)
    assert result.exit_code == code, result.stderr
    assert result.stdout.startswith("reproduces: the loss is NaN")
    assert PLACE in result.stdout


def test_a_crash_in_the_mended_body_is_no_cure(replay: Replay, broken: Path) -> None:
    broken.write_text(MENDED.replace("    optimizer.step()\n", "    1 / 0\n"))
    assert replay(INCIDENT).exit_code == 3


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("WIDTH = 4", "WIDTH = 5"), "0.weight is (4, 3) there and (5, 3) here"),
        (("torch.nn.Dropout(0.5)", "torch.nn.BatchNorm1d(4)"), "exists in only one of the two"),
        (("guard(batches)", "batches"), "without a loop over guard(loader)"),
        (("guard.backward(loss)", "continue"), "without a backward pass"),
    ],
)
def test_what_does_not_fit(
    replay: Replay, broken: Path, change: tuple[str, str], words: str
) -> None:
    broken.write_text(SCRIPT.replace(*change))
    result = replay(INCIDENT)
    assert result.exit_code == 2, result.stdout
    assert result.stdout == ""
    assert words in result.stderr
    assert "Traceback" not in result.stderr
    assert "the end" not in result.stderr, "no script is let train"


UNGUARDED = """
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.rand(40, 3) + 0.5
x[26, 0] = 0.0  # the bad sample
loader = DataLoader(TensorDataset(x, torch.rand(40, 1)), batch_size=8)
model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    loss = ((model(x.log()) - y) ** 2).mean()
    loss.backward()
    optimizer.step()
    with torch.no_grad():  # an evaluation after each step
        [model(x) for x, y in DataLoader(loader.dataset, batch_size=20)]
print("the end")
"""


@pytest.mark.slow
def test_a_script_without_a_guard_of_its_own(shell: Shell, tmp_path: Path) -> None:
    """Its loop reads a plain DataLoader, as under `headway run`, which captured the step."""
    script = tmp_path / "train.py"
    script.write_text(UNGUARDED)
    command = [sys.executable, "-m", "headway", "run", "--out", "runs/first", "train.py"]
    done = warm_python.run(command, cwd=tmp_path, timeout=120)
    assert "the end" in done.stdout, done.stderr
    again = shell(INCIDENT, cwd=tmp_path)
    assert again.returncode == 1, again.stderr
    assert again.stdout.startswith("reproduces: the loss is NaN")
    assert "train.py:13" in again.stdout
    assert "the end" not in again.stderr, "the script does not train"
    script.write_text(UNGUARDED.replace("x.log()", "x.clamp_min(1e-6).log()"))
    fixed = shell(INCIDENT, cwd=tmp_path)
    assert fixed.returncode == 0, fixed.stderr
    assert fixed.stdout.startswith("cured: loss ")
    script.write_text(UNGUARDED.replace("in loader", "in list(loader)"))
    unread = shell(INCIDENT, cwd=tmp_path)
    assert unread.returncode == 2
    assert "without a loop over guard(loader) or a DataLoader" in unread.stderr


def test_a_script_that_is_gone(replay: Replay, broken: Path) -> None:
    broken.unlink()
    result = replay(INCIDENT)
    assert result.exit_code == 2
    assert "give it with --script" in result.stderr
    assert result.stderr.count("\n") == 1
    assert replay(INCIDENT, "--script", "nowhere.py").exit_code == 2


def test_no_incident(replay: Replay, broken: Path, tmp_path: Path) -> None:
    for folder, words in (("nowhere", "does not exist"), ("runs/first", "1-step3")):
        result = replay(folder)
        assert result.exit_code == 2
        assert words in result.stderr
    shutil.copytree(broken.parent / INCIDENT, tmp_path / "copy")
    (tmp_path / "copy" / "state.pt").write_bytes(b"x")
    result = replay(tmp_path / "copy")
    assert result.exit_code == 2
    assert "is damaged" in result.stderr
    assert result.stderr.count("\n") == 1


BUILD = """
import torch

def build():
    model = torch.nn.Sequential(
        torch.nn.Linear(3, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1))
    return model, step

def step(model, batch):
    x, y = batch
    return ((model(x.log()) - y) ** 2).mean()
"""


@pytest.mark.slow
def test_a_function_instead_of_the_script(replay: Replay, broken: Path) -> None:
    built = broken.parent / "rebuilt.py"
    built.write_text(BUILD)
    assert replay(INCIDENT, "--call", "rebuilt:build").exit_code == 1
    result = replay(INCIDENT, "--call", "rebuilt.py:build")
    assert result.exit_code == 1, result.stderr
    built.write_text(BUILD.replace("x.log()", "(x + 1e-6).log()"))
    result = replay(INCIDENT, "--call", "rebuilt:build", "--format", "json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["verdict"] == "cured"


@pytest.mark.parametrize(
    ("call", "text", "code", "words"),
    [
        ("rebuilt", BUILD, 2, "names no function"),
        ("nowhere:build", BUILD, 2, "no module 'nowhere'"),
        ("nowhere.py:build", BUILD, 2, "no file"),
        ("rebuilt:other", BUILD, 2, "no function 'other'"),
        ("rebuilt:build", "def build(): return 1", 2, "must return (model, step)"),
        ("rebuilt:build", BUILD.replace("Linear(3, 4)", "Linear(3, 5)"), 2, "(5, 3) here"),
        ("rebuilt:build", BUILD.replace(".mean()", ""), 2, "a loss of one number"),
        ("rebuilt:build", BUILD.replace("x, y = batch", "1 / 0"), 3, "ZeroDivisionError"),
        ("rebuilt:build", "import nothing_of_the_kind", 3, "ModuleNotFoundError"),
    ],
)
def test_functions_that_will_not_do(
    replay: Replay, broken: Path, call: str, text: str, code: int, words: str
) -> None:
    (broken.parent / "rebuilt.py").write_text(text)
    result = replay(INCIDENT, "--call", call)
    assert result.exit_code == code, result.stderr
    assert words in result.stderr


def test_either_or(replay: Replay, broken: Path) -> None:
    result = replay(INCIDENT, "--script", "train.py", "--call", "a:b")
    assert result.exit_code == 2
    assert "not both" in result.stderr


@pytest.mark.slow
def test_started_as_a_module(shell: Shell, tmp_path: Path) -> None:
    package = tmp_path / "work"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "settings.py").write_text("EPS = 0.0")
    text = SCRIPT.replace("x.log()", "(x + EPS).log()")
    (package / "train.py").write_text(f"from .settings import EPS\n{text}")
    warm_python.run([sys.executable, "-m", "work.train"], cwd=tmp_path, check=True)
    result = shell(INCIDENT, cwd=tmp_path)
    assert result.returncode == 1, result.stderr
    (package / "settings.py").write_text("EPS = 1e-6  # mended")
    assert shell(INCIDENT, cwd=tmp_path).returncode == 0


def test_from_another_folder(replay: Replay, broken: Path, tmp_path: Path) -> None:
    incident = os.path.relpath(broken.parent / INCIDENT, tmp_path)
    result = replay(incident, cwd=tmp_path)
    assert result.exit_code == 1, result.stderr
    assert os.listdir(tmp_path) == []


def test_a_random_state_that_is_none(replay: Replay, broken: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(broken.parent / INCIDENT, copy)
    torch.save({"python": "nonsense", "torch": torch.zeros(3)}, copy / "rng.pt")
    index = json.loads((copy / "incident.json").read_text())
    del index["seal"]
    index["files"]["rng.pt"] = compute_seal(copy / "rng.pt")
    write_index(copy / "incident.json", index)
    result = replay(copy)
    assert result.exit_code == 2
    assert "is not the state of random number generators" in result.stderr
    assert result.stderr.count("\n") == 1
