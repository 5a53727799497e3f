"""Distributed checkpoints of torch: a `.metadata` pickle, and `.distcp` files of saved tensors.

torch loads `.metadata` with a plain `pickle.load`. Here it is interpreted without executing
anything, like any other pickle; each blob of a `.distcp` file is a small `torch.save` file.
"""

from __future__ import annotations

import itertools
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from headway.checkpoints import checkpoint_info, dtypes, inert_pickle, tensor_bytes
from headway.checkpoints.checkpoint_info import Checkpoint, Problem, SavedTensor, Span, TensorPart
from headway.checkpoints.folder_access import is_own_file, is_own_folder
from headway.checkpoints.formats import torch_file
from headway.checkpoints.pickle_rebuild import TensorRef
from headway.checkpoints.pickle_values import Global, Stub, short_text
from headway.checkpoints.pickle_verdict import problems_of
from headway.checkpoints.tensor_naming import WRAPPERS, role_of

METADATA = ".metadata"
MAX_METADATA = 1 << 30
_LISTED = 20
_OUTER = frozenset({*WRAPPERS, "app"})
_OPTIMIZERS = frozenset({"optimizer", "optim", "optimizers", "optimizer_state_dict", "opt"})
_SMALL = 1 << 22


def is_dcp(path: Path) -> bool:
    """Whether the folder is a distributed checkpoint."""
    return is_own_file(path / METADATA) or next(path.glob("__*_*.distcp"), None) is not None


def read(path: Path) -> Checkpoint:
    """Reads the folder."""
    result = Checkpoint(path, "dcp", checkpoint_info.step_from_name(path))
    metadata = path / METADATA
    if not is_own_file(metadata):
        message = f"{path} has no {METADATA}: the save was not completed"
        result.problems.append(Problem("unreadable", message, path, {"missing": [METADATA]}))
        return result
    with open(metadata, "rb") as file:
        loaded = inert_pickle.load(file, limit=min(file.seek(0, 2), MAX_METADATA))
    opened = torch_file.OpenedPickle(metadata, "dcp", loaded, tensor_bytes.StoragePlaces(metadata))
    problems, unknown = problems_of(opened)
    result.problems += problems
    if unknown:
        result.facts["stubbed"] = unknown[:100]
    if isinstance(loaded.value, Stub):
        _Folder(path, loaded.value, result).read()
    elif not result.problems:
        message = f"{metadata} is not the metadata of a distributed checkpoint"
        result.problems.append(Problem("unreadable", message, metadata, {}))
    return result


class _Folder:
    """One pass over the entries of the metadata."""

    def __init__(self, path: Path, metadata: Stub, result: Checkpoint) -> None:
        self.path = path
        self.result = result
        self.tensors: dict[Any, Any] = _dict(metadata.get("state_dict_metadata"))
        self.stored: dict[Any, Any] = _dict(metadata.get("storage_data"))
        self.paths: dict[Any, Any] = _dict(metadata.get("planner_data"))
        self.files: dict[str, BinaryIO | None] = {}
        self.missing: dict[str, int] = {}
        self.lost: dict[str, str] = {}
        self.epoch: int | None = None

    def read(self) -> None:
        """Locates every tensor and reads the small objects."""
        parts: dict[str, list[TensorPart]] = {}
        own_step: int | None = None
        try:
            for index, info in self.stored.items():
                if not isinstance(index, Stub) or not isinstance(info, Stub):
                    continue
                name = index.get("fqn")
                if not isinstance(name, str):
                    continue
                if name in self.tensors and _is_tensor(self.tensors[name]):
                    self._tensor(name, index, info, parts)
                else:
                    step = self._object(name, info)
                    own_step = step if own_step is None else own_step
        finally:
            for file in self.files.values():
                if file is not None:
                    file.close()
        for name, pieces in parts.items():
            self._join(name, sorted(pieces, key=lambda part: part.at))
        self._say()
        if own_step is not None:
            self.result.step = own_step
        elif self.result.step is None:
            self.result.step = self.epoch
        if self.epoch is not None:
            self.result.facts["epoch"] = self.epoch

    def _open(self, info: Stub) -> tuple[Path, BinaryIO, int, int] | None:
        """The open file of an entry, and the range of the entry."""
        relative, offset, length = (info.get(k) for k in ("relative_path", "offset", "length"))
        if not isinstance(relative, str) or type(offset) is not int or type(length) is not int:
            return None
        path = self.path / relative
        if not self._is_inside(relative):
            self.missing[relative] = self.missing.get(relative, 0) + 1
            return None
        if relative not in self.files:
            if len(self.files) > 64:
                _, oldest = self.files.popitem()
                if oldest is not None:
                    oldest.close()
            try:
                own = is_own_file(path)
                self.files[relative] = open(path, "rb") if own else None  # noqa: SIM115
            except (OSError, ValueError):
                self.files[relative] = None
        file = self.files[relative]
        if file is None:
            self.missing[relative] = self.missing.get(relative, 0) + 1
            return None
        size = file.seek(0, 2)
        if offset < 0 or length < 0 or offset + length > size:
            over = max(offset + length - size, 0)
            self.lost[relative] = f"ends at byte {size}, {over} bytes before the end of an entry"
            return None
        return path, file, offset, length

    def _is_inside(self, relative: str) -> bool:
        """Whether a file is in the folder, and not behind a link."""
        parts = PurePosixPath(relative).parts
        if "\0" in relative or PurePosixPath(relative).is_absolute() or ".." in parts:
            return False
        folders = itertools.accumulate(parts[:-1], lambda at, name: at / name, initial=self.path)
        return all(folder == self.path or is_own_folder(folder) for folder in folders)

    def _tensor(
        self, name: str, index: Stub, info: Stub, parts: dict[str, list[TensorPart]]
    ) -> None:
        place = self._open(info)
        at = index.get("offset")
        shape = _shape(self.tensors[name].get("size"))
        if place is None or shape is None:
            self.lost.setdefault(name, "its bytes are missing")
            return
        first = at if isinstance(at, tuple) and len(at) == len(shape) else (0,) * len(shape)
        try:
            tensor = self._saved(name, place, first)
        except tensor_bytes.Unsupported as kind:
            skipped = self.result.facts.setdefault("skipped", {})
            skipped[str(kind)] = skipped.get(str(kind), 0) + 1
            return
        except tensor_bytes.Lost as why:
            self.lost[name] = str(why)
            return
        inside = all(
            type(a) is int and a >= 0 and a + n <= size
            for a, n, size in zip(first, tensor.shape, shape, strict=False)
        )
        if len(tensor.shape) != len(shape) or not inside:
            self.lost[name] = f"a piece of shape {tensor.shape} does not fit into {shape}"
            return
        parts.setdefault(name, []).append(TensorPart(tuple(first), tensor))

    def _saved(
        self, name: str, place: tuple[Path, BinaryIO, int, int], first: tuple[int, ...]
    ) -> SavedTensor:
        path, file, offset, length = place
        role, shown = self._role(name)
        file.seek(offset)
        head = file.read(4)
        if head == b"PK\x03\x04" or head[:2] == b"\x80\x02":
            opened = torch_file.read(path, file, start=offset, size=length)
            self.result.problems += _unsafe(opened, path)
            if not isinstance(opened.value, TensorRef):
                raise tensor_bytes.Lost(f"no tensor at byte {offset} of {path.name}")
            return tensor_bytes.locate_tensor(opened.value, opened.places, shown, role)
        properties = self.tensors[name].get("properties")
        dtype = properties.state[0] if isinstance(properties, Stub) and properties.state else None
        kind = dtypes.of_torch(dtype.name) if isinstance(dtype, Global) else "unknown"
        shape = self._chunk(name, first)
        if kind not in dtypes.SIZES or shape is None:
            raise tensor_bytes.Unsupported(kind)
        if tensor_bytes.size_of(shape) * dtypes.SIZES[kind] != length:
            raise tensor_bytes.Lost(f"{length} bytes for a shape of {shape}")
        return SavedTensor(shown, role, kind, shape, Span(path, offset, length))

    def _chunk(self, name: str, first: tuple[int, ...]) -> tuple[int, ...] | None:
        chunks = self.tensors[name].get("chunks")
        for chunk in chunks if isinstance(chunks, (list, tuple)) else ():
            if isinstance(chunk, Stub) and chunk.get("offsets") == first:
                return _shape(chunk.get("sizes"))
        return _shape(self.tensors[name].get("size"))

    def _role(self, name: str) -> tuple[str, str]:
        """(role, name without the outer wrapper)."""
        path = self.paths.get(name)
        if not isinstance(path, tuple) or not path:
            path = tuple(name.split(".")) if name.split(".")[0] in _OPTIMIZERS else (name,)
        parts = [short_text(part) for part in path]
        if len(parts) > 1 and parts[0] == "app":
            parts = parts[1:]
        if (
            len(parts) > 1
            and (parts[0] in _OPTIMIZERS or "state" in parts[:2])
            and "state" in parts
        ):
            inner = parts[parts.index("state") + 1 :]
            role = "other" if inner[-1:] == ["step"] else "moment"
            shown = ".".join(inner)
            return role, f"state.{shown}" if inner[0].isdigit() else shown
        if len(parts) > 1 and parts[0] in _OPTIMIZERS:
            return "other", ".".join(parts)
        if len(parts) > 1 and parts[0] in _OUTER:
            parts = parts[1:]
        shown = ".".join(parts)
        properties = self.tensors[name].get("properties")
        dtype = properties.state[0] if isinstance(properties, Stub) and properties.state else None
        kind = dtypes.of_torch(dtype.name) if isinstance(dtype, Global) else ""
        return role_of(shown, kind), shown

    def _object(self, name: str, info: Stub) -> int | None:
        """Reads a pickled object next to the tensors; it may have the step."""
        place = self._open(info)
        if place is None:
            self.lost.setdefault(name, "its bytes are missing")
            return None
        path, file, offset, length = place
        try:
            opened = torch_file.read(path, file, start=offset, size=length)
        except tensor_bytes.Lost as why:
            self.lost[name] = str(why)
            return None
        self.result.problems += problems_of(opened)[0]
        if length > _SMALL:
            return None
        last = name.rpartition(".")[2]
        if last in checkpoint_info.EPOCH_KEYS and type(opened.value) is int:
            self.epoch = opened.value
        if "." in name and name.split(".")[0] in _OPTIMIZERS:
            return None
        return checkpoint_info.step_from_content({last: opened.value})

    def _join(self, name: str, pieces: list[TensorPart]) -> None:
        shape = _shape(self.tensors[name].get("size")) or ()
        held = sum(part.tensor.numel for part in pieces)
        whole = tensor_bytes.size_of(shape)
        if held < whole:
            self.lost[name] = f"only {held} of its {whole} elements are present"
        first = pieces[0].tensor
        if len(pieces) == 1 and first.shape == shape:
            self.result.tensors.append(first)
            return
        self.result.tensors.append(
            SavedTensor(first.name, first.role, first.dtype, shape, first.span, parts=tuple(pieces))
        )

    def _say(self) -> None:
        if self.missing:
            names = sorted(self.missing)
            count = "1 file is" if len(names) == 1 else f"{len(names)} files are"
            message = f"{self.path}: {count} missing, {names[0][:200]} first"
            facts: dict[str, Any] = {"missing": names[:_LISTED], "lost": list(self.lost)[:_LISTED]}
            self.result.problems.append(Problem("unreadable", message, self.path, facts))
        elif self.lost:
            name, why = next(iter(self.lost.items()))
            message = f"{self.path}: {name[:200]}: {why} ({len(self.lost)} problems in total)"
            facts = {"lost": list(self.lost)[:_LISTED], "lost_count": len(self.lost)}
            self.result.problems.append(Problem("unreadable", message, self.path, facts))


def _unsafe(opened: torch_file.OpenedPickle, path: Path) -> list[Problem]:
    return [p for p in problems_of(opened)[0] if p.kind != "unreadable"]


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Stub) and isinstance(value.get("size"), tuple)


def _shape(value: Any) -> tuple[int, ...] | None:
    if isinstance(value, tuple) and all(type(n) is int and n >= 0 for n in value):
        return value
    return None


def _dict(value: Any) -> dict[Any, Any]:
    return value if isinstance(value, dict) else {}
