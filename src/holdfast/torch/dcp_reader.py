"""The reading side of torch.distributed.checkpoint:
reads our checkpoints in their stored pieces, by DCP's names.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint._traverse import set_element, traverse_state_dict
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from .. import scan
from ..errors import Damaged, UsageError
from ..run.run import Run, require_outside
from ..state import nodes, tree
from ..state.fill import read_whole
from ..store import format
from ..store.checkpoint import Checkpoint
from ..store.locate import locate
from ..store.store import Store
from .dcp_writer import completed_future
from .pieces import StoredSlice
from .stored import DTYPES, TensorRestore, is_stored_tensor

_Path = tuple[str | int, ...]

INSTEAD = (
    "The run has restored what it tracks; read one of its checkpoints by its own path, as in "
    "Reader(run.path / 'checkpoints' / 'step-000000100')"
)


class Reader(StorageReader):
    """Reads one checkpoint of ours.

    `place` is a checkpoint or its directory, or a run or its directory: then each load reads the
    checkpoint that is newest by then, or that of `step`, or the one with the load's
    `checkpoint_id`: a step (`checkpoint_id="100"`), a checkpoint's name, or the directory of
    another run or checkpoint.

    `types` are the user's own types that objects in the state have: enums, dataclasses, named
    tuples.

    Raises:
        UsageError: the given `Run` is entered.
    """

    def __init__(
        self,
        place: Run | Store | Checkpoint | str | os.PathLike[str],
        *,
        step: int | str | None = None,
        types: Iterable[type] = (),
    ) -> None:
        if isinstance(place, Run):
            require_outside(place.path, INSTEAD)
        path = (
            place.root
            if isinstance(place, Store)
            else place.path
            if isinstance(place, Run | Checkpoint)
            else place
        )
        self._path, self._step, self._types = Path(path), step, tuple(types)
        self._given = self._known = place if isinstance(place, Checkpoint) else None
        self._id: str | None = None  # that this load asks for
        self._is_reset = False  # since the last load
        self._values: dict[str, Any] = {}
        self._paths: dict[str, _Path] = {}

    @property
    def checkpoint(self) -> Checkpoint:
        """The checkpoint that is read, or was read last.

        Raises:
            NotFound: there is none.
        """
        if self._known is None:
            self._known = self._select_checkpoint()
        return self._known

    def _select_checkpoint(self) -> Checkpoint:
        if self._id is None:
            return self._given or locate(self._path).select(self._step)
        name = format.parse_name(self._id)
        if self._id.isdecimal() or name is not None:
            return locate(self._path).select(int(self._id) if name is None else str(name))
        return locate(self._id).select()

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        self._id = None if checkpoint_id is None else os.fspath(checkpoint_id)
        self._known, self._values, self._is_reset = None, {}, True

    def read_metadata(self, *_: Any, **kwargs: Any) -> Metadata:
        """Return all tensors and objects by DCP's names: the keys of their paths joined by dots."""
        if "rank" not in kwargs:  # with it, a load that has found no metadata asks once more
            self._id, self._is_reset = self._id if self._is_reset else None, False
        self._known, self._values = self._select_checkpoint(), {}
        self._index_values(kwargs.get("rank") or 0)
        return Metadata(
            {name: _dcp_metadata(value) for name, value in self._values.items()},
            planner_data=self._paths,
        )

    def set_up_storage_reader(self, *_: Any, **kwargs: Any) -> None:
        if not self._values:
            self._index_values(kwargs.get("rank") or 0)

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        filling, targets = TensorRestore(), []
        for item in plan.items:
            value = self._values[item.storage_index.fqn]
            if is_stored_tensor(value):
                target = planner.resolve_tensor(item).detach()
                filling.read_part(_stored_slice(item, value, target))
                targets.append((item, target))
            elif _is_view(value):
                with torch.no_grad():
                    planner.resolve_tensor(item).copy_(self._read_object(item)[_slices(item)])
            else:
                _put_object(planner, item, self._read_object(item))
        filling.read_all()
        for item, target in targets:
            planner.commit_tensor(item, target)
        return completed_future(None)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return scan.is_dir(Path(checkpoint_id))

    def _index_values(self, rank: int) -> None:
        """Find the handles and values that the rank saved, by name, and the path to each."""
        self.checkpoint.check_layout()
        self._view = self.checkpoint.as_rank(rank)
        self._paths = {}

        def visit(path: Any, value: Any) -> None:
            name = ".".join(map(str, path))
            self._paths[name], self._values[name] = path, value

        traverse_state_dict(self._view.handles(placeholders=True), visit, _is_tensor)

    def _read_object(self, item: ReadItem) -> Any:
        """Return what is saved under the item's name, in fresh memory, in its own types."""
        name = item.storage_index.fqn
        node = nodes.node_at(
            self._view.tree, *(nodes.quote_key(str(step)) for step in self._paths[name])
        )
        if node is None and self._values[name] is not None:
            raise UsageError(
                f"{name}: it lies under a key that DCP cannot name; load it by Store.load()"
            )
        return read_whole(tree.unflatten(node, self._view.leaf, types=self._types))


def _is_view(value: Any) -> bool:
    """Return whether the value is an unread tensor that shares its memory with others."""
    return isinstance(value, tree.Placeholder) and value.kind == "view"


def _is_tensor(value: Any) -> bool:
    return is_stored_tensor(value) or _is_view(value)


def _dcp_metadata(value: Any) -> TensorStorageMetadata | BytesStorageMetadata:
    if _is_view(value):
        shape = torch.Size(value.content["shape"])
        chunk = ChunkStorageMetadata(torch.Size([0] * len(shape)), shape)
        return TensorStorageMetadata(
            TensorProperties(DTYPES[value.content["dtype"]]), shape, [chunk]
        )
    if not is_stored_tensor(value):
        return BytesStorageMetadata()
    if value.dtype not in DTYPES:
        raise Damaged(f"leaf {value.key!r}: torch has no dtype {value.dtype!r}")
    chunks = [
        ChunkStorageMetadata(torch.Size(at), torch.Size(shape)) for at, shape, _ in _chunks(value)
    ]
    return TensorStorageMetadata(
        TensorProperties(DTYPES[value.dtype]), torch.Size(value.shape), chunks
    )


def _chunks(value: Any) -> Sequence[tuple[tuple[int, ...], tuple[int, ...], Any]]:
    """Return the position, the shape and the handle of each piece."""
    pieces = getattr(value, "pieces", None)
    if pieces is None:
        return [((0,) * len(value.shape), tuple(value.shape), value)]
    return [(piece.at, tuple(piece.leaf.shape), piece.leaf) for piece in pieces]


def _stored_slice(item: ReadItem, value: Any, target: torch.Tensor) -> StoredSlice:
    wanted = tuple(item.storage_index.offset or (0,) * len(value.shape))
    for at, _, leaf in _chunks(value):
        if at == wanted:
            return StoredSlice(target, leaf, _slices(item))
    raise Damaged(f"leaf {value.key!r}: no piece of it begins at {wanted}")


def _slices(item: ReadItem) -> tuple[slice, ...]:
    ends = zip(item.storage_offsets, item.lengths, strict=True)
    return tuple(slice(start, start + extent) for start, extent in ends)


def _put_object(planner: Any, item: ReadItem, value: Any) -> None:
    """Give the planner the object itself: `load_bytes` would unpickle its argument."""
    if type(planner).load_bytes is not DefaultLoadPlanner.load_bytes:
        raise UsageError(
            f"{item.dest_index.fqn} is no tensor, "
            f"and {type(planner).__name__}.load_bytes wants a pickle"
        )
    name = item.dest_index.fqn
    if planner.flatten_state_dict:
        set_element(planner.original_state_dict, planner.mappings[name], value)
    else:
        planner.state_dict[name] = value
