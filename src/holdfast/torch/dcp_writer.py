"""The writing side of torch.distributed.checkpoint: each rank's plan becomes its part of one of our
checkpoints.

Each rank writes its tensors itself. Objects are sent to the coordinator, which writes them into the
tree: DCP would pickle them. The coordinator writes part 0, whichever rank it is. A part has one
piece of a tensor: a rank that has several writes several parts.
"""

from __future__ import annotations

import atexit
import dataclasses
import itertools
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from .. import scan
from ..collective.rank_share import PartSeal, PartWriter, commit_parts
from ..errors import HoldfastError, UsageError
from ..pages import byte_pieces
from ..run.run import Run, require_outside
from ..state import tree
from ..state.codec import Block, encode_leaf
from ..store.attempt import wait_until_visible
from ..store.checkpoint import Checkpoint
from ..store.format import CheckpointName
from ..store.store import ManifestFields, Store

CACHING = (
    "Writer: a planner with enable_plan_caching=True sends places of an earlier save; leave it out"
)

_Path = tuple[str | int, ...]


class _SaveDirectory(NamedTuple):
    """The directory of this save, and the numbers of the parts that a rank writes."""

    partial: str
    parts: tuple[int, ...]


class _RankReport(NamedTuple):
    """What a rank sends to the coordinator after its writes."""

    # by part; without part 0, which is sealed after the objects of all ranks have arrived
    seals: dict[int, PartSeal]
    nodes: dict[str, Any]  # of objects that are not tensors, by their names in the plan
    blocks: dict[str, Any]  # their leaves, with bytes as data; the coordinator writes them


INSTEAD = (
    "The run saves what it tracks: track the object, "
    "as in Run(path, dict(model=model, more=more)), and call "
    "run.save(); or give Writer a directory of its own"
)


class Writer(StorageWriter):
    """Saves into the run at `place`, as the checkpoint of `step`.

    `place` is a path, a store, or a `Run` that is not entered. The rule of the store or of the run
    then prunes. Without `step` the checkpoint's id is the step: `dcp.save(...,
    checkpoint_id="100")`.

    Raises:
        UsageError: a run at `place` is entered.
    """

    def __init__(
        self,
        place: Run | Store | str | os.PathLike[str],
        *,
        step: int | None = None,
        metrics: Mapping[str, Any] | None = None,
        note: str | None = None,
    ) -> None:
        self._given = isinstance(place, Store)
        self._store = (
            place
            if isinstance(place, Store)
            else place.store()
            if isinstance(place, Run)
            else Store(place)
        )
        self._step, self._facts = step, ManifestFields(metrics=dict(metrics or {}), note=note)
        require_outside(self._store.root, INSTEAD)
        self._owner = self._store
        self._name: CheckpointName | None = None  # set on the coordinator only
        self._coordinator = 0
        self._part: PartWriter | None = None  # part 0
        self._id: str | None = None
        # the last one that was committed; set on the coordinator only
        self.checkpoint: Checkpoint | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the store, for torch's process that saves (`AsyncCheckpointerType.PROCESS`):
        it opens its own.
        """
        if self._given:
            raise UsageError("Writer: a Store stays in its process; give Writer its directory")
        left = ("_owner", "_name", "_part", "checkpoint")
        return {**vars(self), **dict.fromkeys(left), "_store": (self._store.root, self._store.keep)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        root, keep = state["_store"]
        vars(self).update(state, _store=Store(root, keep=keep))

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        self._name = self._part = None
        self._id = None if checkpoint_id is None else os.fspath(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *_: Any, **kwargs: Any) -> None:
        if not kwargs.get("use_collectives", True):
            raise UsageError(
                "Writer: with use_collectives=False no rank "
                "knows when all have written; leave it out"
            )
        if not is_coordinator:
            return
        self._coordinator = kwargs.get("rank") or 0
        require_outside(self._store.root, INSTEAD)
        self._owner = self._store if self._given else _open_store(self._store)
        self._name = CheckpointName(self._step_of_save(), self._facts.phase)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        if any(not plan.usable for plan in plans):
            raise UsageError(CACHING)
        if self._name is None:
            raise UsageError("Writer: this process was not told that it is the coordinator")
        partial = str(self._owner.create_partial(self._name))
        numbered = zip(plans, _part_numbers(plans, self._coordinator), strict=True)
        return [
            dataclasses.replace(plan, storage_data=_SaveDirectory(partial, parts))
            for plan, parts in numbered
        ]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        # refused here; otherwise only the second save would fail
        if getattr(planner, "_enable_plan_caching", False):
            raise UsageError(CACHING)
        place: _SaveDirectory = plan.storage_data
        wait_until_visible(Path(place.partial))
        pieces_of: list[dict[str, Block]] = [{} for _ in place.parts]
        objects, taken = tree.FlatState({}, {}), Counter[str]()
        for item in plan.items:
            path = _path(planner, item.index.fqn)
            if item.type == WriteItemType.BYTE_IO:
                node, leaves, _ = _flatten_object(_object(planner, item), path)
                objects.tree[item.index.fqn] = node
                objects.leaves.update(leaves)
            else:
                number = taken[item.index.fqn]
                taken[item.index.fqn] += 1
                block = _block(item, planner, whole=place.parts[number] == 0)
                if block is not None:
                    pieces_of[number][_key(path)] = block
        written = {number: PartWriter(Path(place.partial), number) for number in place.parts}
        for part, blocks in zip(written.values(), pieces_of, strict=True):
            part.add(blocks)
        self._part = written.pop(0, None)
        raw: Mapping[str, Any] = objects.leaves
        sent = {
            key: replace(
                block, data=b"".join(map(bytes, byte_pieces(block.data))), attrs=dict(block.attrs)
            )
            for key, block in raw.items()
        }
        report = _RankReport(
            {number: part.seal() for number, part in written.items()}, objects.tree, sent
        )
        results = [WriteResult(item.index, 0, None) for item in plan.items]
        return completed_future([*results, WriteResult(MetadataIndex(""), 0, report)])

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        found = [
            each.storage_data
            for rank in results
            for each in rank
            if isinstance(each.storage_data, _RankReport)
        ]
        if self._part is None or self._name is None:
            raise UsageError("Writer: finish() before write_data()")
        blocks = {key: block for each in found for key, block in each.blocks.items()}
        self._part.add(
            {key: replace(block, data=memoryview(block.data)) for key, block in blocks.items()}
        )
        seals = {0: self._part.seal()}
        seals |= {number: seal for each in found for number, seal in each.seals.items()}
        nodes = {name: node for each in found for name, node in each.nodes.items()}
        paths: Mapping[str, _Path] = metadata.planner_data or {}
        for name in metadata.state_dict_metadata:
            nodes.setdefault(name, {"leaf": _key(paths.get(name, (name,)))})
        body = _build_tree(
            {paths.get(name, (name,)): nodes[name] for name in metadata.state_dict_metadata}
        )
        commit_parts(
            self._owner,
            self._name,
            self._facts,
            self._part.partial,
            [seals[number] for number in sorted(seals)],
            body,
        )
        self._owner.apply_rule(self._name)
        self.checkpoint = self._owner.index.checkpoint(self._name)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return os.fspath(checkpoint_id).isdecimal()

    def _step_of_save(self) -> int:
        if self._step is not None:
            return self._step
        if self._id is None or not self._id.isdecimal():
            raise UsageError(
                "Writer: which step? Writer(path, step=100), "
                f"or checkpoint_id='100', not {self._id!r}"
            )
        return int(self._id)


_open: dict[Path, Store] = {}  # stores through which this process writes, until it ends


def _open_store(wanted: Store) -> Store:
    """Return the store with which this process already writes there, if any: a second one would be
    refused.
    """
    known = _open.get(wanted.root)
    if (
        known is None
        or known.attempt is None
        or known.attempt.is_in_forked_child
        or not scan.is_dir(known.attempt.room)
    ):
        known = _open[wanted.root] = wanted
    known.keep = wanted.keep
    return known


@atexit.register
def _release_runs() -> None:
    """Release the runs that this process has claimed. Otherwise a process on another machine would
    have to assume that this one is alive.
    """
    for store in _open.values():
        if store.attempt is not None and not store.attempt.is_in_forked_child:
            with suppress(HoldfastError, OSError):
                store.close()


def _part_numbers(plans: Sequence[SavePlan], coordinator: int) -> Iterator[tuple[int, ...]]:
    """Yield the numbers of each rank's parts: one,
    and another for each further piece that it has of one tensor.
    """
    more = itertools.count(len(plans))
    for rank, plan in enumerate(plans):
        first = 0 if rank == coordinator else coordinator if rank == 0 else rank
        pieces_of = Counter(
            item.index.fqn for item in plan.items if item.type != WriteItemType.BYTE_IO
        )
        yield (first, *itertools.islice(more, max(pieces_of.values(), default=1) - 1))


def _path(planner: Any, name: str) -> _Path:
    found: _Path = getattr(planner, "mappings", {}).get(name, (name,))
    return found


def _key(path: _Path) -> str:
    """Return the key that `tree.flatten` would give."""
    return "/".join(tree.quote_key(str(step)) for step in path)


def _block(item: WriteItem, planner: SavePlanner, *, whole: bool) -> Block | None:
    """The item's bytes and position. None if it is empty and others have all.
    `whole`: it must not be a piece.
    """
    tensor: Any = planner.resolve_data(item)
    data = item.tensor_data
    if data is None:
        raise UsageError(f"{item.index.fqn}: the planner says nothing of its shape")
    try:
        made = encode_leaf(tensor.detach())
    except UsageError as error:
        raise UsageError(f"{item.index.fqn}: {error}") from error
    at, of = list(data.chunk.offsets), list(data.size)
    if item.type == WriteItemType.TENSOR and whole:
        return made
    if not made.data.nbytes and 0 not in of:
        return None
    attrs = {name: value for name, value in made.attrs.items() if name != "stride"}
    return replace(made, attrs={**attrs, "of": of, "at": at})


def _object(planner: Any, item: WriteItem) -> Any:
    """Return the object itself, not DCP's pickle of it."""
    name = item.index.fqn
    if not hasattr(planner, "lookup_object"):
        raise UsageError(
            f"{name} is no tensor, and {type(planner).__name__} hands out pickles only"
        )
    value = planner.lookup_object(item.index)
    if not getattr(planner, "flatten_state_dict", True) and isinstance(value, Mapping):
        raise UsageError(
            f"{name}: with flatten_state_dict=False it would "
            "be one object with its tensors; leave it out"
        )
    return value


def _flatten_object(value: Any, path: _Path) -> tree.FlatState:
    """Return the object's node,
    and its leaves under the keys that they would have in the whole state.
    """
    for step in reversed(path):
        value = {str(step): value}
    flat = tree.flatten(value)
    node = flat.tree
    for step in path:
        node = node["dict"][str(step)]
    return tree.FlatState(node, flat.leaves)


def _build_tree(nodes: Mapping[_Path, Any]) -> Any:
    """Build one tree from nodes and their paths; a number in a path is an index in a list."""
    if () in nodes:
        return nodes[()]
    inner: dict[str | int, dict[_Path, Any]] = {}
    for path, node in nodes.items():
        inner.setdefault(path[0], {})[path[1:]] = node
    made = {step: _build_tree(rest) for step, rest in inner.items()}
    if made and all(isinstance(step, int) for step in made):
        return [made[step] for step in sorted(made)]
    return {"dict": {str(step): node for step, node in made.items()}}


def completed_future(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future
