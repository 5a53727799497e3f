"""A third set of folders, and of paths that are given as they are, with what must be said of each.

`refused`: exit 2, nothing is opened; `fetched`: a URL, which is opened because it is named, exit 2.
Folders as in `blind_folders`; `ordinary`: no error.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import torch

from support.blind_archives import CLEAN, SPOKEN, good, zip_of
from support.blind_folders import Make, beside, bind, hf, link, ours, outside, put
from support.pickle_traps import EVIL

ORDINARY, ANY, REFUSED = "ordinary", "any", "refused"
SETTINGS = b'allow = ["*"]\nignore = ["HD7"]\n[tool.headway]\nallow = ["*"]\nignore = ["HD7"]\n'
TRAP = zip_of([("a/data.pkl", EVIL)])


def hub(folder: Path, **files: bytes) -> Path:
    """The cache of the hub with one model, as `huggingface_hub` writes it."""
    cache = folder / "hub" / "models--org--name"
    snapshot = cache / "snapshots" / "0123456789abcdef"
    for number, (name, data) in enumerate(files.items()):
        blob = f"{number:064x}"
        put(cache / "blobs" / blob, data)
        link(snapshot / name.replace("__", "."), f"../../blobs/{blob}")
    put(cache / "refs" / "main", b"0123456789abcdef")
    put(cache / ".no_exist" / "0123456789abcdef" / "adapter_config.json", b"")
    put(folder / "hub" / ".locks" / "models--org--name" / "x.lock", b"")
    put(folder / "hub" / "CACHEDIR.TAG", b"Signature: 8a477f597d28d172789f06886806bc55\n")
    return snapshot


def hub_of_two(folder: Path) -> None:
    hub(folder, config__json=b"{}", pytorch_model__bin=good())
    other = folder / "hub" / "models--org--other"
    put(other / "blobs" / "f00", TRAP)
    link(other / "snapshots" / "1" / "pytorch_model.bin", "../../blobs/f00")


def hub_across(folder: Path) -> None:
    """A link from one model of the cache to the blob of another."""
    hub_of_two(folder)
    target = "../../../models--org--other/blobs/f00"
    link(folder / "hub/models--org--name/snapshots/0123456789abcdef/extra.bin", target)


def dcp(folder: Path, **changes: object) -> None:
    import torch.distributed.checkpoint as api

    api.save({"w": torch.ones(4)}, checkpoint_id=folder, no_dist=True)
    if changes.get("metadata"):
        put(folder / ".metadata", changes["metadata"])  # type: ignore[arg-type]
    if "shard" in changes:
        for path in folder.glob("*.distcp"):
            put(path, changes["shard"]) if changes["shard"] is not None else path.unlink()  # type: ignore[arg-type]
    if "path" in changes:
        meta = pickle.loads((folder / ".metadata").read_bytes())  # our own
        for info in meta.storage_data.values():
            info.relative_path = changes["path"]
        put(folder / ".metadata", pickle.dumps(meta))


def unpacked(folder: Path, data: bytes) -> None:
    """An archive of torch that was unpacked into a folder with its name."""
    put(folder / "x.pt" / "data.pkl", data)
    put(folder / "x.pt" / "data" / "0", bytes(8))
    put(folder / "x.pt" / "version", b"3\n")


def trainer(folder: Path, **more: bytes) -> None:
    hf(folder, model_type="bert")
    for step in (10, 20):
        for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth", "pytorch_model.bin"):
            put(folder / f"checkpoint-{step}" / name)
        put(folder / f"checkpoint-{step}" / "trainer_state.json", b'{"log_history": []}')
    for name, data in more.items():
        put(folder / "checkpoint-20" / name.replace("__", "."), data)


def wandb(folder: Path, target: str | Path) -> None:
    put(folder / "wandb/run-2026-abc/files/model.pt")
    put(folder / "wandb/run-2026-abc/run-abc.wandb", b":W&B" + bytes(3))
    link(folder / "wandb/latest-run", target)


def lightning(folder: Path) -> None:
    put(folder / "lightning_logs/version_0/checkpoints/epoch=0-step=1.ckpt")
    put(folder / "lightning_logs/version_0/hparams.yaml", b"lr: 0.1\n")
    put(folder / "lightning_logs/version_0/metrics.csv", b"epoch,step,loss\n0,0,1.0\n")


def local_dir(folder: Path, data: bytes) -> None:
    put(folder / "pytorch_model.bin")
    put(folder / "config.json", b"{}")
    put(folder / ".cache/huggingface/download/pytorch_model.bin.metadata", b"abc\ndef\n1.0\n")
    put(folder / ".cache/huggingface/.gitignore", b"*")
    if data:
        put(folder / ".cache/huggingface/download/x.incomplete", data)


def mlflow(folder: Path) -> None:
    put(folder / "MLmodel", b"flavors:\n  pytorch:\n    model_data: data\n")
    put(folder / "data/pickle_module_info.txt", b"mlflow.pytorch.pickle_module")
    put(folder / "data/model.pth")
    put(folder / "requirements.txt", b"torch\n")


def shadows(folder: Path) -> None:
    """Modules that a program started in the folder would import."""
    put(folder / "good.pt")
    for name in ("torch", "numpy", "json", "sitecustomize", "headway", "safetensors", "zstandard"):
        put(folder / f"{name}.py", b"open('mark', 'w')\n")


def entries(folder: Path, count: int) -> None:
    put(folder / "good.pt")
    for number in range(count):
        link(folder / f"l{number}.pt", "good.pt")


def pyramid(folder: Path) -> None:
    """Links whose number of paths doubles with each level."""
    here = folder
    for _ in range(25):
        (here / "a").mkdir(parents=True)
        link(here / "b", "a")
        here = here / "a"
    put(here / "good.pt")


FOLDERS: dict[str, tuple[str, Make]] = {
    # The cache of the hub.
    "the hub's cache from above": (
        ORDINARY,
        lambda f: hub(f, config__json=b"{}", pytorch_model__bin=good()),
    ),
    "a trap in the hub's cache": (
        SPOKEN,
        lambda f: hub(f, config__json=b"{}", pytorch_model__bin=TRAP),
    ),
    "a trap in another model": (SPOKEN, hub_of_two),
    "a link across models": (SPOKEN, hub_across),
    "a trap among the blobs": (
        SPOKEN,
        lambda f: (
            hub(f, pytorch_model__bin=good()),
            put(f / "hub/models--org--name/blobs/ffff", TRAP),
        ),
    ),
    "a snapshot to the password file": (
        SPOKEN,
        lambda f: (
            hub(f, pytorch_model__bin=good()),
            link(f / "hub/models--org--name/snapshots/0123456789abcdef/x.bin", "/etc/passwd"),
        ),
    ),
    "a download": (CLEAN, lambda f: local_dir(f, b"")),
    "a download with a trap": (SPOKEN, lambda f: local_dir(f, TRAP)),
    # Distributed checkpoints.
    "DCP": (CLEAN, dcp),
    "DCP whose metadata is a trap": (SPOKEN, lambda f: dcp(f, metadata=EVIL)),
    "DCP whose shard is a trap": (SPOKEN, lambda f: dcp(f, shard=TRAP)),
    "DCP without a shard": (SPOKEN, lambda f: dcp(f, shard=None)),
    "DCP with half a shard": (SPOKEN, lambda f: dcp(f, shard=b"PK\x03\x04")),
    "DCP that points outside": (
        SPOKEN,
        lambda f: (outside(f), dcp(f, path=f"../outside-secret-{f.name}/evil.pt")),
    ),
    "DCP that points to the root": (SPOKEN, lambda f: dcp(f, path="/etc/passwd")),
    "DCP with metadata of ranks": (SPOKEN, lambda f: (dcp(f), put(f / ".rank0_metadata", EVIL))),
    # Names.
    "a name of bytes": (
        SPOKEN,
        lambda f: (
            put(f / "good.pt"),
            put(Path(os.fsdecode(os.fsencode(f) + b"/\xff\xfe.pt")), TRAP),
        ),
    ),
    "a good name of bytes": (
        CLEAN,
        lambda f: put(Path(os.fsdecode(os.fsencode(f) + b"/\xff\xfe.pt"))),
    ),
    "a folder of bytes": (
        SPOKEN,
        lambda f: (
            put(f / "good.pt"),
            put(Path(os.fsdecode(os.fsencode(f) + b"/\xe9/x.pt")), TRAP),
        ),
    ),
    "a name of 255 letters": (
        SPOKEN,
        lambda f: (put(f / "good.pt"), put(f / ("n" * 252 + ".pt"), TRAP)),
    ),
    "a name of lines": (SPOKEN, lambda f: (put(f / "good.pt"), put(f / "\n\n\r✓ clean\n", TRAP))),
    "a name with a tab and a bell": (
        SPOKEN,
        lambda f: (put(f / "good.pt"), put(f / "\t\a.pt", TRAP)),
    ),
    "two forms of a letter": (
        SPOKEN,
        lambda f: (put(f / "mod\u00e9l.pt"), put(f / "mode\u0301l.pt", TRAP)),
    ),
    "a device of Windows": (SPOKEN, lambda f: (put(f / "good.pt"), put(f / "CON.pt", TRAP))),
    "a name of quotes": (
        SPOKEN,
        lambda f: (put(f / "good.pt"), put(f / "';\"`touch mark`$(touch mark).pt", TRAP)),
    ),
    "a name of an option": (SPOKEN, lambda f: (put(f / "good.pt"), put(f / "--allow=*", TRAP))),
    "a trap called LICENSE": (SPOKEN, beside("LICENSE")),
    "a trap called .gitignore": (SPOKEN, beside(".gitignore")),
    "a trap called optimizer.pt.tmp": (SPOKEN, beside("optimizer.pt.tmp")),
    "a trap called core": (SPOKEN, beside("core.1234")),
    "a trap in a hidden folder": (SPOKEN, beside(".ipynb_checkpoints/x")),
    "a trap in a tokenizer": (SPOKEN, beside("tokenizer.json")),
    "a trap called trainer_state.json": (
        SPOKEN,
        lambda f: (trainer(f), put(f / "checkpoint-10/trainer_state.json", EVIL)),
    ),
    "a trap called config.json": (SPOKEN, lambda f: (trainer(f), put(f / "config.json", EVIL))),
    # Markers.
    "markers that are folders": (
        SPOKEN,
        lambda f: (
            [
                put(f / n / "x.pt", EVIL)
                for n in ("run.json", "incident.json", "config.json", ".metadata", "latest")
            ]
            + [put(f / "good.pt")]
        ),
    ),
    "markers in capitals": (SPOKEN, lambda f: (ours(f), put(f / "RUN.JSON", EVIL))),
    "a marker of DeepSpeed above": (
        SPOKEN,
        lambda f: (
            put(f / "latest", b"global_step1"),
            put(f / "good.pt"),
            put(f / "global_step2/x.pt", EVIL),
        ),
    ),
    "a list for an index": (
        SPOKEN,
        lambda f: (
            put(f / "pytorch_model.bin.index.json", b"[]"),
            put(f / "pytorch_model-00001-of-00001.bin", TRAP),
        ),
    ),
    "an index that names no shard": (
        SPOKEN,
        lambda f: (
            put(f / "pytorch_model.bin.index.json", b'{"weight_map": {"w": "a.bin"}}'),
            put(f / "a.bin"),
            put(f / "b.bin", TRAP),
        ),
    ),
    "settings of headway": (
        SPOKEN,
        lambda f: (
            [put(f / "x.pt", EVIL)]
            + [
                put(
                    f / n,
                    SETTINGS,
                )
                for n in ("headway.toml", ".headway.toml", "pyproject.toml", "setup.cfg", "tox.ini")
            ]
        ),
    ),
    "settings of headway above it": (
        SPOKEN,
        lambda f: (
            put(f / "ckpt/x.pt", EVIL),
            put(f / "pyproject.toml", b'[tool.headway]\nallow = ["*"]\n'),
        ),
    ),
    # Runs of people.
    "a Trainer's folder": (ORDINARY, trainer),
    "a Trainer's folder with a trap": (SPOKEN, lambda f: trainer(f, scaler__pt=TRAP)),
    "a folder of Lightning": (ORDINARY, lightning),
    "a folder of MLflow": (ORDINARY, mlflow),
    "a folder of W&B": (ORDINARY, lambda f: wandb(f, "run-2026-abc")),
    "a folder of W&B that points outside": (SPOKEN, lambda f: wandb(f, outside(f).parent)),
    "an unpacked archive": (SPOKEN, lambda f: unpacked(f, EVIL)),
    "an ordinary unpacked archive": (ANY, lambda f: unpacked(f, b"\x80\x02}.")),
    "a folder called x.pt": (CLEAN, lambda f: put(f / "x.pt" / "good.pt")),
    "modules of Python": (CLEAN, shadows),
    "checkpoints and other formats": (
        ORDINARY,
        lambda f: (
            put(f / "good.pt"),
            put(f / "x.onnx", b"\x08\x08\x12\x07pytorch"),
            put(f / "x.gguf", b"GGUF" + bytes(60)),
            put(f / "x.h5", b"\x89HDF\r\n\x1a\n" + bytes(90)),
            put(f / "x.zip", zip_of([("readme.txt", b"hello")])),
            put(f / "data.csv", b"a,b\n1,2\n"),
            put(f / "p.png", b"\x89PNG\r\n\x1a\n" + bytes(50)),
        ),
    ),
    "an empty checkpoint beside a good one": (
        SPOKEN,
        lambda f: (put(f / "good.pt"), put(f / "step2.pt", b"")),
    ),
    "half a checkpoint beside a good one": (
        SPOKEN,
        lambda f: (put(f / "good.pt"), put(f / "step2.pt", good()[:300])),
    ),
    # Links and special files.
    "a link to itself": (CLEAN, lambda f: (put(f / "good.pt"), link(f / "x.pt", "x.pt"))),
    "a link out and in again": (
        CLEAN,
        lambda f: (put(f / "good.pt"), link(f / "x.pt", f"../{f.name}/good.pt")),
    ),
    "an absolute link within": (
        CLEAN,
        lambda f: (put(f / "a/good.pt"), link(f / "x.pt", f / "a/good.pt")),
    ),
    "a folder whose links double": (CLEAN, pyramid),
    "a thousand links": (CLEAN, lambda f: entries(f, 1000)),
    "a link to a folder beside it": (
        SPOKEN,
        lambda f: (
            put(f / "good.pt"),
            put(f.parent / f"{f.name}-more" / "x.pt", TRAP),
            link(f / "more", f"../{f.name}-more"),
        ),
    ),
    "sockets and FIFOs everywhere": (
        CLEAN,
        lambda f: (
            [put(f / "good.pt")]
            + [
                os.mkfifo(f / n)
                for n in (
                    ".metadata",
                    "config.json",
                    "latest",
                    "incident.json",
                    "x.pt.gz",
                    "model.safetensors.index.json",
                    "events.out.tfevents.1",
                )
            ]
            + [bind(f, "s.pt")]
        ),
    ),
    "a FIFO in a folder of DCP": (ANY, lambda f: (dcp(f), os.mkfifo(f / "__1_0.distcp"))),
    "a shard that is a FIFO": (
        SPOKEN,
        lambda f: (dcp(f, shard=None), os.mkfifo(f / "__0_0.distcp")),
    ),
    "seven hundred folders with long names": (SPOKEN, lambda f: deep_by_steps(f, 700)),
    "five thousand folders": (
        CLEAN,
        lambda f: [put(f / "good.pt")] + [(f / f"d{n}").mkdir() for n in range(5000)],
    ),
}


def deep_by_steps(folder: Path, depth: int) -> None:
    """Deeper than the longest path that the system allows."""
    put(folder / "good.pt")
    before = os.getcwd()
    os.chdir(folder)
    try:
        for _ in range(depth):
            os.mkdir("deeper")
            os.chdir("deeper")
        Path("evil.pt").write_bytes(TRAP)
    finally:
        os.chdir(before)


def _fifo(folder: Path) -> Path:
    os.mkfifo(folder / "x.pt")
    return folder / "x.pt"


def _socket(folder: Path) -> Path:
    bind(folder, "x.pt")
    return folder / "x.pt"


def _link(target: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        link(folder / "x.pt", target)
        return folder / "x.pt"

    return make


def _text(value: str) -> Callable[[Path], str]:
    return lambda folder: value


PATHS: dict[str, tuple[str, Callable[[Path], Path | str]]] = {
    name: ("fetched" if "://" in name else REFUSED, _text(name))
    for name in (
        "/dev/zero",
        "/dev/urandom",
        "/dev/null",
        "/dev/tty",
        "/dev/stdin",
        "/dev/full",
        "/dev/fd/0",
        "/dev/mem",
        "/proc/self/mem",
        "/proc/kcore",
        "/proc/self/fd/0",
        "/proc/self/pagemap",
        "https://example.org/x.pt",
        "s3://bucket/x.pt",
        "hf://org/name",
        "file:///etc/passwd",
        "\\\\server\\share\\x.pt",
        "x.pt\0y",
        "/nowhere/x.pt",
        "x" * 5000,
        "/" + "a/" * 3000 + "x.pt",
        "\udcff.pt",
        "~nobody-of-this-name/x.pt",
        "*.pt",
        "$(touch mark).pt",
    )
}
PATHS |= {
    "no path": (REFUSED, _text("")),
    "a FIFO": (REFUSED, _fifo),
    "a socket": (REFUSED, _socket),
    "a link to a device": (REFUSED, _link("/dev/zero")),
    "a link to nothing": (REFUSED, _link("nothing.pt")),
    "a link that is its own target": (REFUSED, _link("x.pt")),
    "a link to memory": (REFUSED, _link("/proc/self/mem")),
    "a file as a folder": (REFUSED, lambda f: put(f / "good.pt") / "inner.pt"),
    "a file with a slash": (ANY, lambda f: f"{put(f / 'good.pt')}/"),
    "a path through a folder and back": (
        CLEAN,
        lambda f: (put(f / "good.pt"), (f / "d").mkdir(), f"{f}/d/../good.pt")[-1],
    ),
    "a path with two slashes": (CLEAN, lambda f: (put(f / "good.pt"), f"{f}//good.pt")[-1]),
    "a link to a checkpoint": (CLEAN, lambda f: (put(f / "a.pt"), _link("a.pt")(f))[-1]),
    "an empty folder": (REFUSED, lambda f: f),
    "a folder of text": (REFUSED, lambda f: (put(f / "a.txt", b"hello"), f)[-1]),
    "a checkpoint called -x.pt": (CLEAN, lambda f: put(f / "-x.pt")),
    "an unreadable file alone": (
        ANY,
        lambda f: (put(f / "x.pt"), (f / "x.pt").chmod(0), f / "x.pt")[-1],
    ),
}
