"""The wheel and the sdist of `make dist`: what is in them, and what they do in an empty place."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import headway

pytestmark = pytest.mark.dist

ROOT = Path(__file__).parents[2]
LOG = ROOT / "tests/data/hf-trainer"
TRAINING = """
import torch

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batches = [(torch.randn(8, 4), torch.randn(8, 1)) for _ in range(6)]
batches[4][0][3, 2] = float("nan")
for x, y in batches:
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
"""


class Place:
    """An environment of its own, with nothing of this one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        venv.create(folder / "env", with_pip=False, symlinks=True)
        self.bin = folder / "env" / ("Scripts" if os.name == "nt" else "bin")
        self.site = Path(self.python("import sysconfig; print(sysconfig.get_path('purelib'))"))

    def python(self, program: str) -> str:
        done = self.run(str(self.bin / "python"), "-c", program)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def headway(self, *args: object) -> subprocess.CompletedProcess[str]:
        """The console script."""
        return self.run(str(self.bin / "headway"), *map(str, args))

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
        environment = {key: value for key, value in os.environ.items() if key not in hidden}
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            cwd=self.folder,
            env={**environment, "NO_COLOR": "1", "OMP_NUM_THREADS": "1"},
            timeout=240,
        )

    def install(self, *what: str) -> None:
        """By this environment's pip, so that the place holds what was asked for and no pip."""
        subprocess.run(
            [
                *(sys.executable, "-m", "pip", "--python", str(self.bin / "python"), "install"),
                *("--quiet", "--disable-pip-version-check", *what),
            ],
            check=True,
            timeout=240,
        )


@pytest.fixture(scope="session")
def wheel() -> Path:
    return _built("*.whl")


@pytest.fixture(scope="session")
def sdist() -> Path:
    return _built("*.tar.gz")


def _built(pattern: str) -> Path:
    found = sorted((ROOT / "dist").glob(pattern))
    if len(found) != 1 or headway.__version__ not in found[0].name:
        pytest.fail(f"run `make dist` first: dist/ holds {[path.name for path in found]}")
    return found[0]


@pytest.fixture(scope="module")
def without_torch(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """The wheel and what it asks for, from the package index."""
    place = Place(tmp_path_factory.mktemp("without"))
    place.install(str(wheel))
    (place.folder / "train.py").write_text(TRAINING)
    return place


@pytest.fixture(scope="module")
def with_torch(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """The wheel before this environment's packages: its torch need not be installed again."""
    pytest.importorskip("torch")
    place = Place(tmp_path_factory.mktemp("with"))
    place.install("--no-deps", str(wheel))
    below = sysconfig.get_path("purelib")
    (place.site / "_below.pth").write_text(f"import site; site.addsitedir({below!r})\n")
    (place.folder / "train.py").write_text(TRAINING)
    return place


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    info = f"headway-{headway.__version__}.dist-info"
    strange = [name for name in names if not name.startswith(("headway/", f"{info}/"))]
    assert not strange, strange
    refuse = re.compile(r"__pycache__|\.py[co]$|(^|/)tests?/|\.(orig|rej|swp|tmp)$|~$|\.DS_Store")
    assert not [name for name in names if refuse.search(name)]
    source = ROOT / "src"
    ours = {
        path.relative_to(source).as_posix()
        for path in source.rglob("*")
        if path.is_file() and not refuse.search(path.as_posix())
    }
    assert {name for name in names if name.startswith("headway/")} == ours
    for name in (
        "headway/py.typed",
        "headway/schemas/output-1.json",
        "headway/output/html/assets/report.js",
        "headway/output/html/assets/uPlot.iife.min.js",
        "headway/output/html/assets/uPlot.LICENSE",
        f"{info}/licenses/LICENSE",
        f"{info}/entry_points.txt",
    ):
        assert name in names, name


def test_what_is_vendored_comes_with_its_licence(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    foreign = [name for name in names if re.search(r"\.min\.(js|css)$|\.woff2?$", name)]
    assert foreign
    for name in foreign:
        folder, _, file = name.rpartition("/")
        assert f"{folder}/{file.partition('.')[0]}.LICENSE" in names, f"{name} needs its licence"


def test_the_metadata_says_what_a_stranger_looks_for(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    text = archive.read(f"headway-{headway.__version__}.dist-info/METADATA").decode()
    for line in (
        f"Version: {headway.__version__}",
        "License-Expression: Apache-2.0",
        "License-File: LICENSE",
        "Requires-Python: >=3.10",
        "Classifier: Typing :: Typed",
    ):
        assert re.search(rf"^{re.escape(line)}$", text, flags=re.M), line
    needed = re.findall(r"^Requires-Dist: ([\w-]+)(?!.*extra ==)", text, flags=re.M)
    assert "torch" not in needed
    assert sorted(needed) == ["click", "numpy", "psutil", "rich", "tomli"]


def test_the_sdist_gives_the_same_wheel(sdist: Path, wheel: Path, tmp_path: Path) -> None:
    """`make dist` makes the wheel out of the sdist; one made here, straight, is to be equal."""
    subprocess.run(
        [
            *(sys.executable, "-m", "build", "--wheel", "--no-isolation"),
            *("--outdir", str(tmp_path), str(ROOT)),
        ],
        check=True,
        capture_output=True,
        timeout=240,
    )
    [straight] = tmp_path.glob("*.whl")
    assert _content(straight) == _content(wheel)
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for name in ("LICENSE", "README.md", "SECURITY.md", "CHANGELOG.md", "tests/conftest.py"):
        assert name in names, name
    assert not [name for name in names if re.search(r"__pycache__|\.venv|headway-runs", name)]


def _content(wheel: Path) -> dict[str, str]:
    archive = zipfile.ZipFile(wheel)
    return {
        name: hashlib.sha256(archive.read(name)).hexdigest()
        for name in archive.namelist()
        if not name.endswith("RECORD")
    }


def test_without_torch_everything_that_reads_works(without_torch: Place) -> None:
    place = without_torch
    assert place.python("import headway; print(headway.__file__)").startswith(str(place.site))
    said = place.headway("--version")
    assert said.stdout.startswith(f"headway {headway.__version__} (Python ")
    assert said.stdout.endswith(", no torch)\n")
    module = place.run(str(place.bin / "python"), "-m", "headway", "--version")
    assert module.stdout == said.stdout
    assert "HD101" in place.headway("checks").stdout
    assert "## " not in place.headway("explain", "HD101").stdout
    assert "not installed" in place.headway("env").stdout
    log = next(path for path in sorted(LOG.rglob("*.json")))
    done = place.headway("diagnose", log)
    assert done.returncode in (0, 1), done.stderr
    done = place.headway("report", log, "-o", "page.html")
    assert done.returncode == 0, done.stderr
    assert "uPlot" in (place.folder / "page.html").read_text(encoding="utf-8")
    place.python("import numpy as np; np.savez('step9.npz', w=np.array([1.0, np.nan]))")
    done = place.headway("scan", "step9.npz")
    assert done.returncode == 1, done.stderr
    assert "HD701" in done.stdout
    assert place.python(f"import headway; print(headway.diagnose({str(log)!r}).verdict)")


@pytest.mark.parametrize(
    "command", [("check", "train.py"), ("run", "train.py"), ("demo",), ("replay", "train.py")]
)
def test_without_torch_what_needs_it_says_so(
    without_torch: Place, command: tuple[str, ...]
) -> None:
    done = without_torch.headway(*command)
    assert done.returncode == 2
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert re.search(r"needs torch, which is not installed: pip install 'headway\[torch\]'", line)


def test_without_torch_a_name_that_needs_it_says_so(without_torch: Place) -> None:
    done = without_torch.run(
        str(without_torch.bin / "python"), "-c", "import headway; headway.Guard"
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith(
        "headway.Guard needs torch, which is not installed: pip install 'headway[torch]'"
    )


def test_with_torch_a_run_is_guarded(with_torch: Place) -> None:
    place = with_torch
    assert place.python("import headway; print(headway.__file__)").startswith(str(place.site))
    assert ", torch " in place.headway("--version").stdout
    done = place.headway("run", "train.py", "--out", "kept")
    assert done.returncode == 0, done.stderr  # that of the script
    assert "1 update skipped" in done.stdout
    done = place.headway("run", "train.py", "--out", "failed", "--fail-on", "error")
    assert done.returncode == 1, done.stderr
    done = place.headway("diagnose", "kept")
    assert "HD101" in done.stdout
