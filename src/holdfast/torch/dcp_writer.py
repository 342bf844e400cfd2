"""The writing side of torch.distributed.checkpoint: what the ranks were told to write becomes the parts of one checkpoint.

What is a tensor each rank writes itself. Objects go to the coordinator, who writes them into the tree: DCP would pickle them.
"""

from __future__ import annotations

import atexit
import dataclasses
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from ..collective.gathered import Gathered, Writing, await_directory
from ..collective.rank_share import Seal
from ..errors import HoldfastError, UsageError
from ..pages import Data, pieces
from ..run.run import Run, require_outside
from ..state import tree
from ..state.codec import Block, encode_leaf
from ..store.checkpoint import Checkpoint
from ..store.store import Facts, Store

CACHING = "Writer: a planner with enable_plan_caching=True sends old places; leave it out"

_Path = tuple[str | int, ...]


class _Place(NamedTuple):
    """Where a rank writes its part of this save."""

    partial: str
    rank: int


class _Told(NamedTuple):
    """What a rank tells the coordinator of what it wrote."""

    seal: Seal | None
    nodes: dict[str, Any]  # of objects that are no tensors, by their names in the plan
    blocks: dict[str, Block]  # what of these is bytes; the coordinator writes it


INSTEAD = (
    "It saves what it tracks by itself: track the object, as in Run(path, dict(model=model, more=more)), and ask by "
    "run.save(); or give Writer a directory of its own"
)


class Writer(StorageWriter):
    """Saves into a directory of checkpoints, each time as the checkpoint of `step`: `place` is where, or a store, whose
    rule then prunes, or a `Run` that is not entered, whose rule does.

    Without `step` the checkpoint's id is taken, `dcp.save(..., checkpoint_id="100")`.

    Raises:
        UsageError: this is inside of the block of a run there.
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
        self._store = place if isinstance(place, Store) else place.store() if isinstance(place, Run) else Store(place)
        self._step, self._facts = step, Facts(metrics=dict(metrics or {}), note=note)
        require_outside(self._store.root, INSTEAD)
        self._save: Gathered | None = None  # on the coordinator
        self._partial: Path | None = None
        self._part: Writing | None = None
        self._id: str | None = None
        self.checkpoint: Checkpoint | None = None  # the last one that was committed, on the coordinator

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        self._save = self._partial = self._part = None
        self._id = None if checkpoint_id is None else os.fspath(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *_: Any, **kwargs: Any) -> None:
        if not kwargs.get("use_collectives", True):
            raise UsageError("Writer: with use_collectives=False nobody knows when all have written; leave it out")
        if not is_coordinator:
            return
        if kwargs.get("rank"):
            raise UsageError("Writer: the coordinator has to be rank 0")
        require_outside(self._store.root, INSTEAD)
        store = self._store if self._given else _opened(self._store)
        self._save = Gathered(store, self._chosen_step(), self._facts)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        if any(not plan.usable for plan in plans):
            raise UsageError(CACHING)
        self._partial = self._begun().begin()
        return [
            dataclasses.replace(plan, storage_data=_Place(str(self._partial), rank)) for rank, plan in enumerate(plans)
        ]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        if getattr(planner, "_enable_plan_caching", False):  # else told of at the second save only
            raise UsageError(CACHING)
        place: _Place = plan.storage_data
        await_directory(Path(place.partial))
        part, blocks, objects = Writing(Path(place.partial), place.rank), dict[str, Block](), tree.Flat({}, {})
        for item in plan.items:
            path = _path(planner, item.index.fqn)
            if item.type == WriteItemType.BYTE_IO:
                node, leaves, _ = _taken_apart(_object(planner, item), path)
                objects.tree[item.index.fqn] = node
                objects.leaves.update(leaves)
            elif (key := _key(path)) in blocks:
                raise UsageError(f"{item.index.fqn}: this rank has two pieces of it; Holdfast writes one of each rank")
            else:
                block = _block(item, planner, whole=place.rank == 0)
                if block is not None:
                    blocks[key] = block
        part.add(blocks)
        self._part = part
        leads = place.rank == 0  # whose part is sealed when the objects of all are there
        told = _Told(None if leads else part.seal(), objects.tree, _sent(objects.leaves))
        return done([WriteResult(item.index, 0, None) for item in plan.items] + [_result(told)])

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        told = [each.storage_data for rank in results for each in rank if isinstance(each.storage_data, _Told)]
        part, partial = self._part, self._partial
        if part is None or partial is None:
            raise UsageError("Writer: finish() before write_data()")
        part.add({key: block for each in told for key, block in _received(each.blocks).items()})
        seals = [part.seal(), *(each.seal for each in told if each.seal is not None)]
        nodes = {name: node for each in told for name, node in each.nodes.items()}
        paths: Mapping[str, _Path] = metadata.planner_data or {}
        for name in metadata.state_dict_metadata:
            nodes.setdefault(name, {"leaf": _key(paths.get(name, (name,)))})
        body = _tree({paths.get(name, (name,)): nodes[name] for name in metadata.state_dict_metadata})
        self.checkpoint = self._begun().commit(partial, seals, body)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return os.fspath(checkpoint_id).isdecimal()

    def _begun(self) -> Gathered:
        if self._save is None:
            raise UsageError("Writer: this process was not told that it is the coordinator")
        return self._save

    def _chosen_step(self) -> int:
        if self._step is not None:
            return self._step
        if self._id is None or not self._id.isdecimal():
            raise UsageError(f"Writer: which step? Writer(path, step=100), or checkpoint_id='100', not {self._id!r}")
        return int(self._id)


_open: dict[Path, Store] = {}  # by which this process writes, until it ends


def _opened(wanted: Store) -> Store:
    """The store by which this process writes there already, if it does: beside that one another would be refused."""
    known = _open.get(wanted.root)
    if known is None or known.attempt is None or known.attempt.inherited or not known.attempt.room.is_dir():
        known = _open[wanted.root] = wanted
    known.keep = wanted.keep
    return known


@atexit.register
def _give_back() -> None:
    """Else a process on another machine would have to take this one for alive."""
    for store in _open.values():
        if store.attempt is not None and not store.attempt.inherited:
            with suppress(HoldfastError, OSError):
                store.close()


def _path(planner: Any, name: str) -> _Path:
    found: _Path = getattr(planner, "mappings", {}).get(name, (name,))
    return found


def _key(path: _Path) -> str:
    """As `tree.flatten` would call it."""
    return "/".join(tree.quoted(str(step)) for step in path)


def _block(item: WriteItem, planner: SavePlanner, *, whole: bool) -> Block | None:
    """The item's bytes and where they lie; None when there are none, and others have all. `whole`: it may stand for itself."""
    tensor: Any = planner.resolve_data(item)
    data = item.tensor_data
    if data is None:
        raise UsageError(f"{item.index.fqn}: the planner says nothing of its shape")
    made = encode_leaf(tensor.detach())
    at, of = list(data.chunk.offsets), list(data.size)
    if item.type == WriteItemType.TENSOR and whole:
        return made
    if not made.data.nbytes and 0 not in of:
        return None
    attrs = {name: value for name, value in made.attrs.items() if name != "stride"}
    return made._replace(attrs={**attrs, "of": of, "at": at})


def _object(planner: Any, item: WriteItem) -> Any:
    """The object itself: DCP would have us write a pickle of it."""
    if not hasattr(planner, "lookup_object"):
        raise UsageError(f"{item.index.fqn} is no tensor, and {type(planner).__name__} hands out pickles only")
    return planner.lookup_object(item.index)


def _taken_apart(value: Any, path: _Path) -> tree.Flat:
    """The object's node, and its leaves under the keys that they would have in the whole state."""
    for step in reversed(path):
        value = {str(step): value}
    flat = tree.flatten(value)
    node = flat.tree
    for step in path:
        node = node["dict"][str(step)]
    return tree.Flat(node, flat.leaves)


def _sent(blocks: Mapping[str, Block]) -> dict[str, Block]:
    """As they can be sent to another process."""
    return {key: block._replace(data=_bytes(block.data), attrs=dict(block.attrs)) for key, block in blocks.items()}


def _received(blocks: Mapping[str, Any]) -> dict[str, Block]:
    return {key: block._replace(data=memoryview(block.data)) for key, block in blocks.items()}


def _bytes(data: Data) -> Any:
    return bytes(data) if isinstance(data, memoryview) else b"".join(map(bytes, pieces(data)))


def _result(told: _Told) -> WriteResult:
    return WriteResult(MetadataIndex(""), 0, told)


def _tree(nodes: Mapping[_Path, Any]) -> Any:
    """One tree out of nodes and the ways to them: a number on the way is a place in a list."""
    if () in nodes:
        return nodes[()]
    inner: dict[str | int, dict[_Path, Any]] = {}
    for path, node in nodes.items():
        inner.setdefault(path[0], {})[path[1:]] = node
    made = {step: _tree(rest) for step, rest in inner.items()}
    if made and all(isinstance(step, int) for step in made):
        return [made[step] for step in sorted(made)]
    return {"dict": {str(step): node for step, node in made.items()}}


def done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future
