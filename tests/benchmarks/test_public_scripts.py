"""The run over public scripts: its manifest, its data makers, and one script in a clone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import public_scripts  # noqa: E402
from public_scripts import MAKERS, MANIFEST, Script  # noqa: E402

from headway import registry  # noqa: E402


def test_the_manifest_names_what_there_is() -> None:
    scripts = public_scripts.read_manifest(MANIFEST)
    known = {check.code for check in registry.all_checks()}
    assert len({(item.repository, item.script) for item in scripts}) == len(scripts) >= 40
    assert len({item.repository for item in scripts}) >= 15
    for item in scripts:
        assert len(item.commit) == 40
        assert {who for who, _ in item.data} <= {*MAKERS}
        for name in item.stand_ins:
            assert (public_scripts.STAND_INS / f"{name}.py").is_file()
        assert {*item.findings} <= known
        assert bool(item.findings) == bool(item.why)


def test_the_stand_in_reads_what_the_maker_writes(tmp_path: Path) -> None:
    MAKERS["mnist"](tmp_path)
    MAKERS["cifar10"](tmp_path)
    program = (
        "from torchvision import datasets, transforms\n"
        "data = datasets.MNIST('.', transform=transforms.ToTensor())\n"
        "picture, label = data[0]\n"
        "print(len(data), tuple(picture.shape), float(picture.max()) > 0.5, max(data.targets))\n"
        "pad = transforms.Compose([transforms.Pad(4), transforms.RandomCrop(32)])\n"
        "data = datasets.CIFAR10('.', transform=pad)\n"
        "print(len(data), transforms.ToTensor()(data[0][0]).shape, max(data.targets))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={"PYTHONPATH": str(public_scripts.STAND_INS)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == [
        "512 (1, 28, 28) True tensor(9)",
        "320 torch.Size([3, 32, 32]) 9",
    ]


def test_what_unharmed_means() -> None:
    seeded = Script("a/b", "", "train.py")
    free = Script("a/b", "", "train.py", seeded=False)
    plain = (0, "loss 0.5\nstep took 12 ms\nloss 0.25\n")
    same = (0, "headway: guarded\nloss 0.5\nstep took 13 ms\nloss 0.25\n")
    other = (0, "loss 0.5\nstep took 12 ms\nloss 0.26\n")
    assert public_scripts.unharmed(seeded, plain, same)
    assert not public_scripts.unharmed(seeded, plain, other)
    assert public_scripts.unharmed(free, plain, other)
    assert not public_scripts.unharmed(free, plain, (1, plain[1]))
    assert not public_scripts.unharmed(free, plain, (0, "loss 0.5\n"))


def test_of_a_script_that_is_stopped_by_the_clock_the_common_lines_count() -> None:
    stopped = Script("a/b", "", "train.py", seconds=20)
    plain = (0, "a 1\nb 2\nc 3\nd 4\n")
    assert public_scripts.unharmed(stopped, plain, (0, "headway: guarded\na 1\nb 2\nc"))
    assert not public_scripts.unharmed(stopped, plain, (0, "headway: guarded\na 1\nb 9\nc 3\n"))
    assert not public_scripts.unharmed(stopped, plain, (0, "headway: guarded\n"))


def test_lines_of_several_ranks_come_in_any_order() -> None:
    item = Script("a/b", "", "train.py", ranks=2)
    assert public_scripts.unharmed(item, (0, "rank 0\nrank 1\n"), (0, "rank 1\nrank 0\n"))
    assert not public_scripts.unharmed(item, (0, "rank 0\nrank 1\n"), (0, "rank 1\nrank 1\n"))


def test_a_package_that_is_not_installed_is_named(tmp_path: Path) -> None:
    item = Script("somebody/scripts", clone(tmp_path), "train.py", needs=("no_such_package",))
    assert public_scripts.judge(item, tmp_path)["state"] == "needs no_such_package"


@pytest.mark.parametrize("maker", ["words", "names", "sine", "sentence-pairs", "masks", "graph"])
def test_a_maker_writes_the_same_each_time(maker: str, tmp_path: Path) -> None:
    found = []
    for turn in "ab":
        MAKERS[maker](tmp_path / turn)
        files = sorted(path for path in (tmp_path / turn).rglob("*") if path.is_file())
        found.append([(path.name, path.read_bytes()) for path in files])
    assert found[0] == found[1] != []


SCRIPT = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
x = torch.randn(64, 4)
y = x.sum(1, keepdim=True)
for step in range(12):
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    print(step, loss.item())
"""


def test_what_a_clone_may_lack(tmp_path: Path) -> None:
    commit = clone(tmp_path)
    found = public_scripts.judge(Script("somebody/scripts", commit, "no.py"), tmp_path)
    assert "not in the clone" in found["state"]
    found = public_scripts.judge(Script("somebody/scripts", 40 * "0", "train.py"), tmp_path)
    assert "not in the clone" in found["state"]
    found = public_scripts.judge(Script("other/one", commit, "train.py"), tmp_path)
    assert found["state"] == "no clone"


@pytest.mark.slow
def test_a_script_of_a_clone(tmp_path: Path) -> None:
    item = Script("somebody/scripts", clone(tmp_path), "train.py")
    found = public_scripts.judge(item, tmp_path)
    assert found["state"] == "ran"
    assert found["unharmed"]
    assert found["to look at"][0].startswith("HD206")


def clone(folder: Path) -> str:
    """A repository with the script; its commit."""
    place = folder / "somebody" / "scripts"
    place.mkdir(parents=True)
    (place / "train.py").write_text(SCRIPT)
    git = ["git", "-C", str(place), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "script"], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    return head.stdout.strip()
