"""More folders and paths, written without reading the search, with what must be said of each.

`spoken`: a finding, a note or a refusal. `clean`: every checkpoint found is clean. Nothing outside
the folder is read.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

from support.blind_archives import CLEAN, SPOKEN, TEXT_TRAP, good, zip_of
from support.blind_traps import WAYS
from support.pickle_traps import EVIL, _npy

Make = Callable[[Path], object]
SECRET = "outside-secret"


def put(path: Path, data: bytes | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(good() if data is None else data)
    return path


def link(path: Path, target: str | Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


def outside(folder: Path, data: bytes = EVIL) -> Path:
    """A file that does not lie in the folder."""
    return put(folder.parent / f"{SECRET}-{folder.name}" / "evil.pt", data)


def hub(folder: Path, data: bytes) -> None:
    cache = folder / "models--a--b"
    put(cache / "blobs" / "abc", data)
    link(cache / "snapshots" / "1f" / "pytorch_model.bin", "../../blobs/abc")
    put(cache / "refs" / "main", b"1f")


def hub_elsewhere(folder: Path) -> None:
    """The snapshot is named; its links go to the blobs of another model, above it."""
    put(folder.parent / f"{SECRET}-{folder.name}" / "blobs" / "abc", EVIL)
    put(folder / "snapshots" / "1f" / "good.pt")
    target = f"../../../{SECRET}-{folder.name}/blobs/abc"
    link(folder / "snapshots" / "1f" / "pytorch_model.bin", target)


def hf(folder: Path, **settings: object) -> None:
    put(folder / "config.json", json.dumps(settings).encode())
    put(folder / "pytorch_model.bin")


def ours(folder: Path) -> None:
    """Everything that marks a folder as our own."""
    for name in ("run.json", "incident.json", "events.jsonl", "steps.rank0.jsonl", "rank0.json"):
        put(folder / name, b"{}\n")
    put(folder / "snapshots" / "1-step1" / "manifest.json", b'{"parts": {}}')


def bind(folder: Path, name: str) -> None:
    here = os.getcwd()
    os.chdir(folder)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(name)
    finally:
        os.chdir(here)


def loops(folder: Path) -> None:
    put(folder / "a" / "good.pt")
    for name in "xyz":
        link(folder / "a" / name, "..")
        link(folder / name, "a")


def many(folder: Path, count: int, last: bytes | None = None) -> None:
    put(folder / "good.pt")
    for number in range(count):
        (folder / f"{number:05}.txt").write_bytes(b"step 1 loss 2.0\n")
    if last is not None:
        put(folder / "zzzz.pt", last)


def deep(folder: Path, depth: int) -> None:
    put(folder / "good.pt")
    put(folder.joinpath(*["d"] * depth, "evil.pt"), EVIL)


def unreadable(folder: Path) -> None:
    put(folder / "good.pt")
    put(folder / "secret.pt", EVIL).chmod(0)


def index(folder: Path, **weights: str) -> None:
    put(folder / "good.pt")
    put(folder / "model.safetensors.index.json", json.dumps({"weight_map": weights}).encode())


def beside(name: str, data: bytes = EVIL) -> Make:
    return lambda f: (put(f / "good.pt"), put(f / name, data))


FOLDERS: dict[str, tuple[str, Make]] = {
    "beside all markers of ours": (
        SPOKEN,
        lambda f: (ours(f), put(f / "good.pt"), put(f / "x.pt", EVIL)),
    ),
    "in a snapshot of ours": (
        SPOKEN,
        lambda f: (ours(f), put(f / "snapshots/1-step1/state.pt", EVIL)),
    ),
    "beside a snapshot's parts": (
        SPOKEN,
        lambda f: (ours(f), put(f / "snapshots/1-step1/extra.bin", EVIL)),
    ),
    "in an incident of ours": (
        SPOKEN,
        lambda f: (ours(f), put(f / "incidents/1-step1/batch.pt", EVIL)),
    ),
    "in a folder of samples": (
        SPOKEN,
        lambda f: (ours(f), put(f / "incidents/1-step1/more/x", EVIL)),
    ),
    "a state of a Trainer": (
        SPOKEN,
        lambda f: (hf(f), put(f / "checkpoint-10/optimizer.pt", EVIL)),
    ),
    "a tokenizer": (SPOKEN, lambda f: (hf(f), put(f / "tokenizer.pkl", EVIL))),
    "a random state of a rank": (SPOKEN, lambda f: (hf(f), put(f / "rng_state_3.pth", EVIL))),
    "a state of accelerate": (
        SPOKEN,
        lambda f: (put(f / "pytorch_model.bin"), put(f / "custom_checkpoint_0.pkl", EVIL)),
    ),
    "a zero shard of DeepSpeed": (
        SPOKEN,
        lambda f: (
            put(f / "latest", b"global_step1"),
            put(f / "global_step1/mp_rank_00_model_states.pt"),
            put(f / "global_step1/zero_pp_rank_0_mp_rank_00_optim_states.pt", EVIL),
        ),
    ),
    "a capital ending": (SPOKEN, beside("MODEL.PT")),
    "two endings": (SPOKEN, beside("model.pt.bak")),
    "a picture": (SPOKEN, beside("picture.png")),
    "a Python file": (SPOKEN, beside("code.py")),
    "a compiled Python file": (SPOKEN, beside("code.pyc")),
    "a table": (SPOKEN, beside("data.parquet", zip_of([("a/data.pkl", EVIL)]))),
    "an event file": (SPOKEN, beside("events.out.tfevents.1.host")),
    "a name of dots": (SPOKEN, beside("...")),
    "a hidden file": (SPOKEN, beside(".model.pt")),
    "a backup of an editor": (SPOKEN, beside("model.pt~")),
    "a name of blanks": (SPOKEN, beside("   ")),
    "a name with a newline": (SPOKEN, beside("a\nb.pt")),
    "a name with escapes": (SPOKEN, beside("\x1b]0;x\x07\x1b[2J.pt")),
    "a name from right to left": (SPOKEN, beside("\u202etp.ledom")),
    "a name with a minus": (SPOKEN, beside("--last-good")),
    "a name of markup": (SPOKEN, beside("[red]<script>.pt")),
    "names that differ in case": (
        SPOKEN,
        lambda f: (put(f / "model.pt"), put(f / "Model.pt", EVIL)),
    ),
    "a packed array": (SPOKEN, beside("x.npy.gz", gzip.compress(_npy("'|O'", EVIL)))),
    "a text with a trap": (SPOKEN, beside("README", TEXT_TRAP)),
    "a registry in a folder": (SPOKEN, beside("state", WAYS["one byte of registry"])),
    "a folder of pickles of a data set": (
        SPOKEN,
        lambda f: [
            put(f / "good.pt"),
            *(put(f / "data" / f"{n}.pkl", b"\x80\x04}.") for n in range(300)),
            put(f / "data" / "300.pkl", EVIL),
        ],
    ),
    "10,000 files and a trap": (SPOKEN, lambda f: many(f, 10_000, EVIL)),
    "sixty folders deep": (SPOKEN, lambda f: deep(f, 60)),
    "six hundred folders deep": (SPOKEN, lambda f: deep(f, 600)),
    "an unreadable file": (SPOKEN, unreadable),
    "a link to a trap outside": (
        SPOKEN,
        lambda f: (put(f / "good.pt"), link(f / "x.pt", outside(f))),
    ),
    "a link to a folder outside": (
        SPOKEN,
        lambda f: (put(f / "good.pt"), link(f / "more", outside(f).parent)),
    ),
    "a chain of links outside": (
        SPOKEN,
        lambda f: (put(f / "good.pt"), link(f / "b", outside(f)), link(f / "x.pt", "b")),
    ),
    "a link to an ordinary file outside": (
        SPOKEN,
        lambda f: (put(f / "good.pt"), link(f / "x.pt", outside(f, good()))),
    ),
    "an index to a file outside": (SPOKEN, lambda f: index(f, w=str(outside(f)))),
    "an index to a file above": (
        SPOKEN,
        lambda f: (outside(f), index(f, w=f"../{SECRET}-{f.name}/evil.pt")),
    ),
    "an index to a password file": (SPOKEN, lambda f: index(f, w="../../../../../etc/passwd")),
    "a missing shard": (SPOKEN, lambda f: index(f, w="model-00001-of-00002.safetensors")),
    "a tag of DeepSpeed to the outside": (
        SPOKEN,
        lambda f: (outside(f), put(f / "latest", f"../{SECRET}-{f.name}".encode())),
    ),
    "a hub's cache with a trap": (SPOKEN, lambda f: hub(f, EVIL)),
    "a hub's snapshot with links above": (SPOKEN, hub_elsewhere),
    "a hub's cache": (CLEAN, lambda f: hub(f, good())),
    "a link within the folder": (
        CLEAN,
        lambda f: (put(f / "a" / "good.pt"), link(f / "best.pt", "a/good.pt")),
    ),
    "a hard link": (CLEAN, lambda f: (put(f / "good.pt"), os.link(f / "good.pt", f / "best.pt"))),
    "loops of links": (CLEAN, loops),
    "a chain of links that ends nowhere": (
        CLEAN,
        lambda f: (put(f / "good.pt"), [link(f / f"l{n}", f"l{n + 1}") for n in range(60)]),
    ),
    "10,000 files": (CLEAN, lambda f: many(f, 10_000)),
    "empty folders": (
        CLEAN,
        lambda f: (
            put(f / "good.pt"),
            [(f / f"e{n}" / "x").mkdir(parents=True) for n in range(50)],
        ),
    ),
    "remote code of a model": (
        CLEAN,
        lambda f: (
            hf(f, auto_map={"AutoModel": "evil.Net"}),
            put(f / "evil.py", b"import os\nos.system('touch mark')\n"),
        ),
    ),
    "a chat template": (
        CLEAN,
        lambda f: (
            hf(f),
            put(
                f / "tokenizer_config.json",
                b'{"chat_template": "{{ cycler.__init__.__globals__.os.popen(1) }}"}',
            ),
        ),
    ),
    "settings in YAML with code": (
        CLEAN,
        lambda f: (
            put(f / "good.pt"),
            put(f / "hparams.yaml", b"lr: !!python/object/apply:os.system ['touch mark']\n"),
        ),
    ),
    "settings of YAML that laugh": (
        CLEAN,
        lambda f: (
            put(f / "good.pt"),
            put(
                f / "config.yaml",
                b"a0: &a0 [x, x]\n"
                + b"".join(
                    b"a%d: &a%d [*a%d, *a%d]\n" % (n, n, n - 1, n - 1) for n in range(1, 40)
                ),
            ),
        ),
    ),
    "deep settings": (
        CLEAN,
        lambda f: (put(f / "good.pt"), put(f / "config.json", b"[" * 100_000)),
    ),
    "a settings file of headway": (
        SPOKEN,
        lambda f: (
            put(f / "x.pt", EVIL),
            put(
                f / "pyproject.toml",
                b'[tool.headway]\nignore = ["HD7"]\nallow = ["*"]\nfail-on = "never"\n',
            ),
        ),
    ),
    "a baseline of headway": (
        SPOKEN,
        lambda f: (put(f / "x.pt", EVIL), put(f / "headway-baseline.json", b'{"findings": []}')),
    ),
}

SPECIAL: dict[str, tuple[str, Make]] = {
    f"a FIFO called {name}": (CLEAN, lambda f, name=name: (put(f / "good.pt"), os.mkfifo(f / name)))  # type: ignore[misc]
    for name in (
        "model.safetensors",
        "manifest.json",
        "run.json",
        "optimizer.bin",
        "pyproject.toml",
        "x.npz",
        "trainer_state.json",
        "adapter_config.json",
        "steps.rank0.jsonl",
        "hparams.yaml",
    )
}
SPECIAL |= {
    "a FIFO behind a link": (
        CLEAN,
        lambda f: (put(f / "good.pt"), os.mkfifo(f / "pipe"), link(f / "x.pt", "pipe")),
    ),
    "a socket called run.json": (CLEAN, lambda f: (put(f / "good.pt"), bind(f, "run.json"))),
    "a link to a terminal": (
        CLEAN,
        lambda f: (put(f / "good.pt"), link(f / "config.json", "/dev/tty")),
    ),
    "a link to standard input": (
        CLEAN,
        lambda f: (put(f / "good.pt"), link(f / "x.pt", "/dev/stdin")),
    ),
    "a link to random bytes": (
        CLEAN,
        lambda f: (put(f / "good.pt"), link(f / "x.safetensors", "/dev/urandom")),
    ),
    "a link to a process": (CLEAN, lambda f: (put(f / "good.pt"), link(f / "p", "/proc/self"))),
    "a link to the root": (CLEAN, lambda f: (put(f / "good.pt"), link(f / "root", "/"))),
    "a link to its own descriptor": (
        CLEAN,
        lambda f: (put(f / "good.pt"), link(f / "x.pt", "/proc/self/fd/0")),
    ),
    "a sparse file of a terabyte": (
        SPOKEN,
        lambda f: (
            put(f / "good.pt"),
            put(f / "x.pt", b"\x80\x02"),
            os.truncate(f / "x.pt", 1 << 40),
        ),
    ),
    "a sparse text of a terabyte": (
        CLEAN,
        lambda f: (
            put(f / "good.pt"),
            put(f / "train.log", b"step 1 loss 2\n"),
            os.truncate(f / "train.log", 1 << 40),
        ),
    ),
}


def remove(folder: Path) -> None:
    """With whatever is hard to remove: no path is longer than the system allows."""
    shutil.rmtree(folder, ignore_errors=True)
