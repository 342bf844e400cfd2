"""Shardings: describes the sharding of an array over devices for a checkpoint, and finds it again.

An unchanged script continues with the shardings of the save, which its compiled functions had
chosen. They decide which program runs, and so the last bits. If the script itself now shards a leaf
differently, for example over fewer devices, the script's sharding is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

Described = dict[str, Any] | None  # None: uncommitted, on the default device

_KINDS = {str(each): each for each in jax.sharding.AxisType}


def describe_sharding(leaf: Any) -> Described:
    """Return the sharding of an array as JSON; None for any other leaf.

    Only shardings over named meshes and on single devices can be found again.
    """
    if not isinstance(leaf, jax.Array) or not leaf.committed:
        return None
    sharding: Any = leaf.sharding
    held: Any = sharding.device_set
    ids = sorted(device.id for device in held)
    if type(sharding) is SingleDeviceSharding:
        return {"kind": "device", "devices": ids, "memory": sharding.memory_kind}
    if type(sharding) is not NamedSharding or not _is_plain(sharding.spec):
        return {"kind": type(sharding).__name__, "devices": ids}
    mesh: Any = sharding.mesh
    return {
        "kind": "mesh",
        "devices": [device.id for device in mesh.devices.flat],
        "shape": [[name, extent] for name, extent in mesh.shape.items()],
        "axes": [str(each) for each in mesh.axis_types],
        "spec": [list(each) if isinstance(each, tuple) else each for each in sharding.spec],
        "memory": sharding.memory_kind,
    }


def sharding_of(place: Mapping[str, Any]) -> Any:
    """Return the sharding that was described;
    None if this process has no such devices, or cannot find it again.
    """
    here: dict[int, Any] = {each.id: each for each in list[Any](jax.devices())}
    kind, ids = place["kind"], place.get("devices", [])
    if kind not in ("device", "mesh") or not all(number in here for number in ids):
        return None
    devices = [here[number] for number in ids]
    try:
        if kind == "device":
            return SingleDeviceSharding(devices[0], memory_kind=place["memory"])
        grid = np.array(devices, dtype=object).reshape([extent for _, extent in place["shape"]])
        mesh = Mesh(
            grid,
            [name for name, _ in place["shape"]],
            axis_types=tuple(_KINDS[each] for each in place["axes"]),
        )
        spec: Any = PartitionSpec(
            *(tuple(each) if isinstance(each, list) else each for each in place["spec"])
        )  # type: ignore[no-untyped-call]
        return NamedSharding(mesh, spec, memory_kind=place["memory"])
    except (KeyError, ValueError, TypeError):
        return None


def _is_plain(spec: Any) -> bool:
    """Whether a spec consists of axes' names alone."""
    names = [name for each in spec for name in (each if isinstance(each, tuple) else (each,))]
    return all(name is None or isinstance(name, str) for name in names) and not (
        getattr(spec, "unreduced", None) or getattr(spec, "reduced", None)
    )


def sharding_table(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Return the shardings of a tree's leaves, each described once."""
    distinct: list[dict[str, Any]] = []
    of: dict[str, int] = {}
    for name, leaf in leaves.items():
        place = describe_sharding(leaf)
        if place is not None:
            if place not in distinct:
                distinct.append(place)
            of[name] = distinct.index(place)
    return {"distinct": distinct, "of": of}


def look_up(found: Mapping[str, Any], name: str) -> Described:
    """Return one leaf's sharding in a table."""
    number = found["of"].get(name)
    return None if number is None else found["distinct"][number]


def choose_sharding(
    name: str, live: Any, first: Mapping[str, Any], stored: Mapping[str, Any]
) -> Any:
    """Return the sharding for a leaf that is restored in the place of `live`; None: the default
    device, uncommitted.

    `first`: the shardings that the script chose in this process. `stored`: those that it chose when
    the run was saved ("first"), and those at the save ("now").
    """
    own = live.sharding if isinstance(live, jax.Array) and live.committed else None
    if look_up(first, name) != look_up(stored["first"], name):
        return own
    place = look_up(stored["now"], name)
    return None if place is None else sharding_of(place) or own
