"""Running a page: Python in one namespace, commands in one folder, data by parsing."""

from __future__ import annotations

import contextlib
import io
import json
import linecache
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fences import Block, blocks

from headway.config import Settings

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
SHOWN = ("text", "records", "findings", "not-run", "markdown")
"""Languages of blocks that are there to be looked at; `text output` is compared all the same."""
ENDLESS = ("headway serve",)
"""Commands that run until they are stopped: started, heard, stopped."""
COMMAND_SECONDS = 240


@dataclass
class PageRun:
    """One page, run from top to bottom."""

    path: Path
    folder: Path
    names: dict[str, Any]
    printed: str = ""
    """What the last Python block printed."""
    exempt: list[str] = field(default_factory=list)

    def run(self) -> None:
        """Every block, in order; raises AssertionError with the line of the one that fails."""
        found = list(blocks(self.path.read_text(encoding="utf-8")))
        for block in found:  # a page may show what a script gives before the script
            self._file(block)
        for block in found:
            try:
                self.one(block)
            except Exception as error:
                where = f"{self.path.name}:{block.line} ({block.language})"
                raise AssertionError(f"{where}: {type(error).__name__}: {error}") from error

    def one(self, block: Block) -> None:
        """One block, by its language and options."""
        if "no-run" in block.options:
            return
        if block.language == "python" and "file" not in block.options:
            self._python(block)
        elif block.language == "console":
            self._console(block)
        elif block.language == "bash":
            assert shell(block.text, self.folder).returncode == 0
        elif block.language == "json":
            json.loads(block.text)
        elif block.language == "toml":
            load_toml(block.text, self.folder)
        elif block.language == "yaml":
            import yaml

            assert yaml.safe_load(block.text)
        elif block.language == "text" and "output" in block.options:
            demand(block.text, self.printed)
        else:
            assert block.language in ("", *SHOWN, "python"), (
                f"no way to try a {block.language!r} block"
            )

    def _file(self, block: Block) -> None:
        if "file" in block.options:
            target = self.folder / block.options["file"]
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(block.text, encoding="utf-8")
            if block.language == "python":
                compile(block.text, str(target), "exec")
                sys.path.insert(0, str(target.parent))  # put back by the test

    def _python(self, block: Block) -> None:
        # In a file of its own, since the guard reads a loop's source, on the page's line numbers.
        name = str(self.folder / f"{self.path.stem}_{block.line}.py")
        Path(name).write_text(block.text, encoding="utf-8")
        linecache.checkcache(name)
        heard = io.StringIO()
        with contextlib.redirect_stdout(heard):
            exec(compile(block.text, name, "exec"), self.names)
        self.printed = heard.getvalue()

    def _console(self, block: Block) -> None:
        told = commands(block.text)
        for number, (command, shown) in enumerate(told, 1):
            wanted = block.options.get("exit") if number == len(told) else None
            if of_the_repository(command):
                continue
            if command.startswith(ENDLESS):
                hear(command, self.folder)
                continue
            done = shell(command, self.folder)
            said = f"{command}\nended with {done.returncode}\n{done.stdout}"
            # 1 says that something was found, which is what most examples are about.
            fine = (int(wanted),) if wanted else (0, 1) if "headway" in command else (0,)
            assert done.returncode in fine, said
            assert "Traceback" not in done.stdout or wanted == "3", said
            demand(shown, done.stdout)


def of_the_repository(command: str) -> bool:
    """Commands that set something up or run for long: here it is only seen that they exist."""
    words = command.split("#")[0].split()
    if words[:2] == ["pip", "install"]:
        extras = re.search(r"headway\[([\w,-]+)\]", command)
        declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        for extra in extras[1].split(",") if extras else ():
            assert extra in declared["optional-dependencies"], f"there is no extra {extra!r}"
        return True
    if words[0] == "make":
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        for target in (word for word in words[1:] if "=" not in word):
            assert re.search(rf"^{target}:", makefile, flags=re.M), f"no target {target}"
        return True
    if words[0].endswith("python") and words[1].startswith(("benchmarks/", "examples/")):
        script = ROOT / words[1]
        compile(script.read_text(encoding="utf-8"), str(script), "exec")
        return True
    return False


def commands(text: str) -> list[tuple[str, str]]:
    """(command, what the page shows of its output) for each `$ ` line of a console block."""
    found: list[tuple[str, str]] = []
    for part in re.split(r"^\$ ", text, flags=re.M)[1:]:
        lines = part.splitlines()
        command = lines.pop(0)
        while command.endswith("\\") and lines:
            command = f"{command[:-1]} {lines.pop(0).strip()}"
        found.append((command.strip(), "\n".join(lines)))
    assert found, "a console block has lines that begin with `$ `"
    return found


def demand(shown: str, said: str) -> None:
    """What a page shows must be in what was said; … stands for anything, spaces do not matter."""
    words = [re.escape(word) for word in shown.split()]
    pattern = r"\s+".join(words).replace(r"\.\.\.", "…")
    # A lone … may stand for nothing, and the spaces around it with it.
    pattern = re.sub(r"(\\s\+)?…(\\s\+)?", r"[\\s\\S]*?", pattern)
    assert re.search(pattern, said), f"the page shows\n{shown}\nand what came is\n{said}"


def load_toml(text: str, folder: Path) -> None:
    """TOML must parse; settings of ours must be ones that headway takes."""
    from headway import registry
    from headway.policy import Policy

    data = tomllib.loads(text)
    tool = data.get("tool", {})
    if "headway" in tool:
        place = folder / "settings-of-a-page"
        place.mkdir(exist_ok=True)
        (place / "pyproject.toml").write_text(text, encoding="utf-8")
        settings = Settings.load(place / "pyproject.toml")
        assert settings != Settings()
        registry.chosen(settings)
        Policy.from_mapping(settings.policy)


def hear(command: str, folder: Path) -> None:
    """Start a command that does not end by itself, wait for its first words, stop it."""
    started = subprocess.Popen(
        ["bash", "-c", f"exec {command}"],
        cwd=folder,
        env=_environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
    )
    try:
        assert started.stdout is not None
        assert started.stdout.readline().strip(), f"{command} said nothing"
        assert started.poll() in (None, 0)
    finally:
        started.terminate()
        started.communicate(timeout=30)


def shell(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a line of a page as a reader would."""
    return subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", command],
        cwd=folder,
        env=_environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,  # in the order a terminal shows them
        encoding="utf-8",
        timeout=COMMAND_SECONDS,
    )


def _environment(folder: Path) -> dict[str, str]:
    """`headway`, `python` and `torchrun` are those of this Python, whatever is installed."""
    bin_folder = folder / ".bin"
    if not bin_folder.exists():
        bin_folder.mkdir()
        for name, module in (
            ("headway", "-m headway"),
            ("python", ""),
            ("torchrun", "-m torch.distributed.run"),
        ):
            shim = bin_folder / name
            shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" {module} "$@"\n')
            shim.chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}",
        "NO_COLOR": "1",
        "COLUMNS": "80",
        "OMP_NUM_THREADS": "1",
        "PYTHONIOENCODING": "utf-8",
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1",
    }
