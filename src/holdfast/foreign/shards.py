"""Reads folders of Hugging Face: weights in one file or in shards with an index, and the other
files of its Trainer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from ..errors import Damaged
from ..state import nodes
from ..state.nodes import quote_key, unused_key
from ..store.problems import Problem
from . import pt, safetensors
from .content import CRC, ForeignContent
from .leaf import ForeignLeaf
from .region import Region, read_small, whole_file
from .trees import Step, TreeBuilder

_WEIGHTS = ("model", "pytorch_model", "diffusion_pytorch_model", "adapter_model")
_INDEX = re.compile(rf"({'|'.join(_WEIGHTS)})(\.fp16)?\.(safetensors|bin)\.index\.json")
_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.(safetensors|bin)")
_SINGLE = re.compile(rf"({'|'.join(_WEIGHTS)})\.(safetensors|bin)")
_BESIDE = re.compile(
    r"(optimizer|scheduler|scaler|training_args|rng_state(?:_\d{1,6})?)\.(?:pt|pth|bin)"
)
_CONFIGS = ("config.json", "adapter_config.json", "trainer_state.json")
_OTHERS = (".pt", ".pth", ".ckpt", ".safetensors")
_MOST_FILES = 10_000
_NAMED = 4  # models in a line


class _Index(msgspec.Struct, frozen=True):
    weight_map: dict[str, str]
    metadata: Any = None


_INDICES = msgspec.json.Decoder(_Index)
_JSON = msgspec.json.Decoder()


def is_folder(names: frozenset[str]) -> bool:
    """Return whether a folder with files of these names holds one model's weights.

    A file with such a name may also lie among other checkpoints; a model's folder has a
    configuration, or no other weights.
    """
    if any(_INDEX.fullmatch(name) or _SHARD.fullmatch(name) for name in names):
        return True
    single = any(_SINGLE.fullmatch(name) for name in names)
    return single and (not names.isdisjoint(_CONFIGS) or not any(map(_is_other_weights, names)))


def _is_other_weights(name: str) -> bool:
    return name.endswith(_OTHERS) and not _SINGLE.fullmatch(name) and not _BESIDE.fullmatch(name)


def read(folder: Path, names: frozenset[str]) -> ForeignContent:
    """Return what the files of one checkpoint hold together.

    Raises:
        Damaged: an index is damaged.
    """
    found = _FolderContent(folder)
    wanted = _weights(folder, names, found.flaws)
    for name in [*wanted][:_MOST_FILES]:
        found.add_weights(name, read_file, wanted[name])
    for name in sorted(names):
        if match := _BESIDE.fullmatch(name):
            found.add_other_file(match[1], name)
    if "trainer_state.json" in names:
        found.add_trainer_state()
    proofs = {each.proof for each in found.contents if each.leaves}
    return ForeignContent(
        "Hugging Face",
        {"dict": {"model": {"dict": found.model}, **found.parts}},
        found.leaves,
        [folder / name for name in (*wanted, *found.read)],
        facts=found.facts,
        proof=CRC if proofs == {CRC} else None,
        flaws=found.flaws,
        check=lambda: (problem for each in found.contents for problem in each.check()),
    )


def _weights(
    folder: Path, names: frozenset[str], flaws: list[Problem]
) -> Mapping[str, list[str] | None]:
    """Return the files with weights, and the tensors that an index promises in each."""
    for name in sorted(names, reverse=True):
        if _INDEX.fullmatch(name):
            wanted: dict[str, list[str] | None] = {}
            for tensor, file in _index(folder / name).items():
                if "/" in file or file in ("", ".", "..") or "\0" in file:
                    raise Damaged(
                        f"{folder / name}: {file!r}, "
                        f"where {tensor!r} should be, is outside the folder"
                    )
                (wanted.setdefault(file, []) or wanted[file]).append(tensor)  # type: ignore[union-attr]
            return wanted
    shards = sorted(
        {(match[1], match[3], match[4]) for match in map(_SHARD.fullmatch, names) if match}
    )
    if len(shards) > 1:  # no file tells which of them is this folder's model
        found = [f"{stem}-*-of-{count}.{ending}" for stem, count, ending in shards[:_NAMED]]
        more = ", and others" if len(shards) > _NAMED else ""
        what = (
            "shards without an index, of more than one model: "
            f"{', '.join(found)}{more}; the weights of none are read"
        )
        flaws.append(Problem(folder, 0, 0, what))
        return {}
    for stem, count, ending in shards:
        flaws.append(Problem(folder, 0, 0, f"the index {stem}.{ending}.index.json is missing"))
        every = [
            f"{stem}-{number:05d}-of-{count}.{ending}"
            for number in range(1, min(int(count), _MOST_FILES) + 1)
        ]
        return dict.fromkeys(every)
    return dict.fromkeys(
        sorted((name for name in names if _SINGLE.fullmatch(name)), reverse=True)[:1]
    )


def _index(path: Path) -> dict[str, str]:
    try:
        return _INDICES.decode(read_small(whole_file(path))).weight_map
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Damaged(f"{path}: no index of weights: {error}") from error


def read_file(region: Region, path: Step = ()) -> ForeignContent:
    """Read one file; `path` goes before the keys of leaves in a pickle."""
    if region.path.suffix == ".safetensors":
        return safetensors.read(region)
    return (
        pt.read(region, path)
        if read_small(region.slice(0, 4)) == b"PK\3\4"
        else pt.read_pickle(region, path)
    )


class _FolderContent:
    """Collects what was found in the folder so far."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.model: dict[str, Any] = {}
        self.parts: dict[str, Any] = {}
        self.leaves: dict[str, ForeignLeaf] = {}
        self.facts: dict[str, Any] = {}
        self.flaws: list[Problem] = []
        self.contents: list[ForeignContent] = []
        self.read: list[str] = []  # files beside the weights

    def add_weights(
        self, name: str, reader: Callable[[Region], ForeignContent], promised: list[str] | None
    ) -> None:
        content = self._read_content(name, reader)
        if content is None:
            return
        held = dict(_named_tensors(content))
        self.model |= {
            tensor: {"leaf": self._add_leaf(f"model/{quote_key(tensor)}", leaf)}
            for tensor, leaf in held.items()
        }
        for tensor in promised or ():
            if tensor not in held:
                self._add_flaw(name, f"tensor {tensor!r} is not in it, where the index says it is")

    def add_other_file(self, part: str, name: str) -> None:
        content = self._read_content(name, lambda region: read_file(region, (part,)))
        if content is not None:
            self.leaves |= content.leaves
            self.parts[part] = content.tree
            self.read.append(name)

    def add_trainer_state(self) -> None:
        path = self._folder / "trainer_state.json"
        try:
            value = _JSON.decode(read_small(whole_file(path)))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._add_flaw(path.name, f"no JSON: {error}")
            return
        self.parts["trainer_state"] = TreeBuilder(path, {}, pt.refuse_storage).build_node(
            value, ("trainer_state",)
        )
        self.read.append(path.name)

    def _read_content(
        self, name: str, reader: Callable[[Region], ForeignContent]
    ) -> ForeignContent | None:
        try:
            content = reader(whole_file(self._folder / name))
        except Damaged as error:
            self._add_flaw(name, str(error).partition(": ")[2])
            return None
        self.contents.append(content)
        self.flaws += content.flaws
        names = {*self.facts.get("would import", ()), *content.facts.get("would import", ())}
        self.facts |= {key: each for key, each in content.facts.items() if key != "would import"}
        self.facts |= {"would import": sorted(names)} if names else {}
        return content

    def _add_leaf(self, key: str, leaf: ForeignLeaf) -> str:
        chosen = unused_key(key, self.leaves)
        self.leaves[chosen] = leaf.with_key(chosen)
        return chosen

    def _add_flaw(self, name: str, what: str) -> None:
        self.flaws.append(Problem(self._folder / name, 0, 0, what))


def _named_tensors(content: ForeignContent) -> Iterator[tuple[str, ForeignLeaf]]:
    """Yield the tensors of a state dict by their names; a file of weights holds nothing else."""
    tag, held = nodes.split_tag(content.tree)
    pairs = (
        held.items()
        if tag == "dict"
        else held[0]
        if tag == "ordered_with"
        else held
        if tag == "ordered"
        else ()
    )
    for name, node in pairs:
        if isinstance(node, dict) and isinstance(node.get("leaf"), str):
            yield name, content.leaves[node["leaf"]]
