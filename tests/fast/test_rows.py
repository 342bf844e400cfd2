"""Long rows of small arrays are saved as a few columns, and come back as the rows that they were."""

import math
import random
import struct
from collections import deque
from itertools import cycle
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import holdfast
from holdfast import Every, Run, Store
from holdfast.errors import Damaged, Mismatch, UsageError
from holdfast.state import captured, codec, fill, nodes, rows, tree
from holdfast.state.captured import is_unshared
from holdfast.state.fill import read_whole
from stores import invoke
from toy import Cut

COUNT = 2 * rows.LEAST_ROWS


class Step(NamedTuple):
    board: Any
    policy: list[float]
    value: Any


def board(number: int, dtype: Any = "i8") -> Any:
    return (np.arange(36).reshape(6, 6) + number).astype(dtype, copy=True)


NAN = struct.unpack(">d", bytes.fromhex("7ff80000deadbeef"))[0]


class Genes(np.ndarray):
    """An individual as DEAP makes them: an array of a class of its own, with a fitness."""

    fitness: Any = None


def decoded(saved: Any) -> Any:
    made = saved[0].view(Genes)
    made.fitness = saved[1]
    return made


def individual(at: int) -> Any:
    made = np.full(5, 0.5 * at).view(Genes)
    made.fitness = (float(at),) if at % 3 else None
    return made


ROWS: dict[str, Any] = {
    "a history": lambda at: (board(at), [0.1 * at, -0.0, NAN, math.inf], at % 3 - 1),
    "arrays alone": board,
    "lists": lambda at: [board(at), [at, at + 1]],
    "of any length": lambda at: (board(at), [0.5] * (at % 5), tuple(range(at % 4))),
    "two shapes": lambda at: (np.arange(at % 2 + 3), np.float32(at)),
    "named tuples": lambda at: Step(board(at, "f4"), [1.0 * at], None if at % 7 else at),
    "dicts": lambda at: {"obs": board(at, "u1"), "done": at % 5 == 0, "info": None, "name": "x" * (at % 3)},
    "numbers of many kinds": lambda at: (board(at, "?"), at * 2**60, True if at % 2 else 1, np.int8(at % 100), "é"),
    "NumPy's numbers": lambda at: (board(at), np.float64(at), np.bool_(at % 2)),
    "episodes": lambda at: [(board(at + each), each) for each in range(at % 3 + 1)],
    "empty ones": lambda at: (board(at), [], (), {}),
    "dates": lambda at: (np.arange(2).astype("M8[s]"), at),
    "an array of none": lambda at: (np.zeros((0, 3)), board(at)),
    "a number as an array": lambda at: (np.array(at), board(at)),
    "Fortran's order": lambda at: (np.array(board(at), order="F"), at),
    "sets": lambda at: (board(at), {at}),
    "big ones": lambda at: (np.zeros(5000, "f8"), at) if at < 20 else (board(at), at),
}
ROWS |= {
    "tensors": lambda at: Step(torch.full((1, 4), float(at)), [0.5], torch.tensor([at % 2])),
    "a last one is None": lambda at: (torch.arange(3.0) + at, None if at % 5 == 0 else torch.ones(2), at),
    "tensors in bf16": lambda at: [torch.full((3,), at, dtype=torch.bfloat16), np.ones(2)],
    "tensors in dicts": lambda at: {"obs": torch.full((3,), at)},
    "with gradients": lambda at: (torch.full((3,), float(at), requires_grad=True), at),
    "views": lambda at: (torch.arange(9.0)[3:6], at),
}
PACKED = set(ROWS) - {"dates", "an array of none", "a number as an array", "Fortran's order", "sets"} - {
    "tensors in dicts", "with gradients", "views"
}  # fmt: skip


def spelled(value: Any) -> Any:
    """Types, bits, orders and dtypes of everything."""
    if isinstance(value, np.ndarray | np.generic):
        owns = getattr(value, "base", None) is None
        return type(value), value.dtype, value.shape, np.asarray(value).tobytes("A"), owns
    if isinstance(value, torch.Tensor):
        bits = value.detach().contiguous().view(torch.uint8).tolist()
        return type(value), value.dtype, value.shape, value.stride(), value.requires_grad, bits
    if isinstance(value, float):
        return struct.pack(">d", value)
    if isinstance(value, dict):
        return dict, [(key, spelled(each)) for key, each in value.items()]
    if isinstance(value, list | tuple | deque):
        return type(value), getattr(value, "maxlen", None), [spelled(each) for each in value]
    return type(value), value


KINDS: dict[str, Any] = {"list": list, "tuple": tuple, "deque": lambda made: deque(made, maxlen=COUNT + 9)}


@pytest.mark.parametrize(("name", "kind"), [*zip(ROWS, cycle(KINDS), strict=False)])
def test_rows_come_back_as_they_were(tmp_path, name, kind):
    """By load() and from handles; whatever has no columns is saved as before. tests/prove has each row in each kind."""
    come_back(tmp_path, name, kind)


def come_back(path, name, kind):
    state = {"it": KINDS[kind](map(ROWS[name], range(COUNT)))}
    flat = tree.flatten(state)
    assert ("packed" in str(flat.tree)[:60]) == (name in PACKED - {"big ones"}) or name == "big ones"
    if name in PACKED - {"big ones"}:
        assert len(flat.leaves) < 20
    assert flat.leaves.keys() == nodes.leaf_keys(flat.tree)
    store = Store(path)
    store.save(state, step=1)
    assert spelled(state) == spelled(store.load(types=[Step]))
    assert spelled(state) == spelled(read_whole(store[1].handles(types=[Step])))
    assert tree.types_in(state) == ({Step} if name in ("named tuples", "tensors") else set())


KEPT = "a history", "dicts", "of any length", "tensors"
LIVE = 0, 3, COUNT + 50


@pytest.mark.parametrize(("name", "first"), [*zip(KEPT, cycle(LIVE), strict=False)])
def test_a_run_goes_on_with_its_rows(tmp_path, name, first):
    """Whatever the live sequence holds at the start; it comes back as it was saved. tests/prove has each with each."""
    goes_on(tmp_path, name, first)


def goes_on(tmp_path, name, first):

    def train(path, cut):
        history = deque(map(ROWS[name], range(first)), maxlen=COUNT + 100)
        luck = random.Random(0)
        with Run(
            path, {"luck": luck, "history": [history]}, types=[Step], every=Every(steps=1), background=False
        ) as run:
            for step in run.steps(8):
                if step == cut:
                    raise Cut
                history.extend(map(ROWS[name], range(luck.randrange(100))))
        return spelled(history)

    reference = train(tmp_path / "whole", None)
    for cut in (3, 6):
        with pytest.raises(Cut):
            train(tmp_path / "cut", cut)
    assert reference == train(tmp_path / "cut", None)


def test_a_population_of_a_registered_class_is_packed(tmp_path, monkeypatch):
    """What the registered function returns is in the columns; an error of the other function is told as one."""
    monkeypatch.setattr(codec, "REGISTERED", {})
    holdfast.register(Genes, lambda genes: (np.array(genes), genes.fitness), decoded)
    population = [individual(at) for at in range(COUNT)]
    assert len(tree.flatten(population).leaves) < 5
    with Run(tmp_path, {"it": population}) as run:
        run.save()
    again = [individual(0)]
    with Run(tmp_path, {"it": again}):
        assert [(type(each), each.tolist(), each.fitness) for each in again] == [
            (Genes, each.tolist(), each.fitness) for each in population
        ]
    assert f"it/0-{COUNT}.0" in invoke("show", tmp_path).stdout
    holdfast.register(Genes, lambda genes: (np.array(genes), genes.fitness), lambda saved: saved[9])
    with pytest.raises(UsageError, match="decode function registered for"):
        Store(tmp_path).load()
    codec.REGISTERED.clear()
    with pytest.raises(UsageError, match="register"):
        Run(tmp_path, {"it": []}).__enter__()
    assert not list(tmp_path.glob("quarantine/*"))


def test_an_array_that_others_hold_is_filled_and_no_other(tmp_path):
    """A name for a member's array sees the restored numbers, as with any other list."""
    with Run(tmp_path, {"it": [(board(at + 100), at) for at in range(COUNT)]}) as run:
        run.save()
    live = [(board(at), at) for at in range(COUNT)]
    assert is_unshared(live)
    mine, view = live[3][0], live[4][0][1:]
    assert not is_unshared(live)
    with Run(tmp_path, {"it": live}):
        assert live[3][0] is mine
        assert mine.tolist() == board(103).tolist()
        assert view.tolist() == board(104)[1:].tolist()
        assert live[9][0].tolist() == board(109).tolist()


def test_a_start_packs_rows_once_and_looks_once_who_holds_them(tmp_path, monkeypatch):
    """For the digests of the restored state. Which types and objects are in plain rows is known without columns."""

    def state() -> dict[str, Any]:
        return {"it": [(board(at), at) for at in range(COUNT)]}

    with Run(tmp_path, state()) as run:
        run.save()
    seen: list[str] = []
    packed, loose = rows.pack_rows, is_unshared
    monkeypatch.setattr(rows, "pack_rows", lambda *args: seen.append("packed") or packed(*args))
    monkeypatch.setattr(fill, "is_unshared", lambda values: seen.append("loose") or loose(values))
    run = Run(tmp_path, state()).start()
    assert seen == ["loose", "packed"]
    run.__exit__(None, None, None)


def test_long_rows_are_searched_once_at_a_safe_point_and_three_times_at_a_start(tmp_path, monkeypatch):
    """A start does so before its restore, for who holds them, and after it; a change between two points is seen."""
    searched: list[int] = []
    blocks = captured._batches_of
    monkeypatch.setattr(captured, "_batches_of", lambda values: searched.append(len(values)) or blocks(values))

    def searches() -> int:
        found = sum(count >= COUNT for count in searched)
        searched.clear()
        return found

    state: dict[str, Any] = {"it": [(board(at), at) for at in range(COUNT)], "own": torch.nn.Linear(1, 1)}
    with Run(tmp_path, state, every=Every(steps=1)) as run:
        searches()
        for step in run.steps(6):
            if step:
                assert searches() == 1
            state["it"].append((board(step), torch.nn.Linear(1, 1) if step == 5 else step))
        searches()
    fresh: dict[str, Any] = {"it": [(board(at), at) for at in range(COUNT)], "own": torch.nn.Linear(1, 1)}
    fresh["it"] += [(board(step), step) for step in range(5)] + [(board(5), torch.nn.Linear(1, 1))]
    run = Run(tmp_path, fresh).start()
    assert torch.equal(fresh["it"][-1][1].weight, state["it"][-1][1].weight)
    run.__exit__(None, None, None)
    plain = {"it": [(board(at), at) for at in range(COUNT)]}
    with Run(tmp_path / "plain", plain) as run:
        run.save()
    searches()
    run = Run(tmp_path / "plain", {"it": [(board(0), 0) for at in range(COUNT)]}).start()
    assert searches() == 3
    run.__exit__(None, None, None)


@pytest.mark.parametrize("where", ["row", "before", "after", "nested"])
def test_an_array_in_two_places_stays_one(tmp_path, where):
    """Then nothing is packed that would lose it."""
    made = [(board(at), at) for at in range(COUNT)]
    state = {"row": {"it": [*made, made[0]]}, "before": {"a": made[5][0], "it": made},
             "after": {"it": made, "z": made[5][0]}, "nested": {"it": [(made, made[3][0])] * 2}}[where]  # fmt: skip
    Store(tmp_path).save(state, step=1)
    back = Store(tmp_path).load()
    assert spelled(back) == spelled(state)
    if where == "row":
        assert back["it"][-1][0] is back["it"][0][0]
    elif where == "nested":
        assert back["it"][0][1] is back["it"][1][1] is back["it"][0][0][3][0]
    else:
        assert back["a" if where == "before" else "z"] is back["it"][5][0]


def test_tensors_that_share_memory_go_on_sharing_it(tmp_path):
    """A tensor of a row, and another one over the same memory elsewhere."""
    made = [(torch.full((3,), float(at)), at) for at in range(COUNT)]
    Store(tmp_path).save({"it": made, "other": made[5][0].view(3, 1), "same": made[6][0]}, step=1)
    back = Store(tmp_path).load()
    back["other"] += 1
    assert back["it"][5][0].tolist() == [6.0] * 3
    assert back["same"] is back["it"][6][0]


def test_modules_in_a_long_list_are_restored_by_themselves(tmp_path):
    """The state of each is its adapter's, and not a row."""
    live = [torch.nn.Linear(2, 1) for _ in range(rows.LEAST_ROWS)]
    saved = [each.weight.tolist() for each in live]
    with Run(tmp_path, {"it": live}) as run:
        run.save()
    again = [torch.nn.Linear(2, 1) for _ in live]
    with Run(tmp_path, {"it": again}):
        assert saved == [each.weight.tolist() for each in again]


def test_what_is_appended_alone_is_written_anew(tmp_path):
    """Rows that did not change keep their file from the third save on."""
    made = [(np.full((64, 8), at), at) for at in range(4000)]
    store = Store(tmp_path)
    for step in range(1, 6):
        made.extend((np.full((64, 8), step), at) for at in range(10))
        store.save({"it": made}, step=step)
    written = [
        sum(file.size_bytes for file in store[step].manifest.files.values() if not file.links) for step in range(1, 6)
    ]
    assert written[4] < written[0] / 3
    assert spelled(store.load()["it"]) == spelled(made)


def test_the_commands_name_the_columns(tmp_path):
    """`show` lists them by rows and fields, and `diff` the one that differs."""
    store = Store(tmp_path)
    for step in (1, 2):
        store.save({"it": [(board(at), [0.5 * step, 1.0], at) for at in range(COUNT)]}, step=step)
    assert f"it/0-{COUNT}.0" in invoke("show", tmp_path / "checkpoints/step-000000001").stdout
    found = invoke("diff", *(tmp_path / f"checkpoints/step-00000000{step}" for step in (1, 2)))
    assert f"it/0-{COUNT}.1._" in found.stdout
    assert f"it/0-{COUNT}.0" not in found.stdout
    assert invoke("verify", tmp_path).exit_code == 0


def test_short_rows_and_rows_without_arrays_are_saved_as_before(tmp_path):
    """Version 1, to the byte."""
    short, plain = [(board(at), at) for at in range(rows.LEAST_ROWS - 1)], [(at, [0.5 * at]) for at in range(5000)]
    Store(tmp_path).save({"short": short, "plain": plain}, step=1)
    assert (tmp_path / "checkpoints/step-000000001/manifest.json").read_bytes().startswith(b'{"holdfast": 1,')


def test_too_many_for_the_live_deque_is_a_mismatch(tmp_path):
    """Before anything is changed."""
    with Run(tmp_path, {"it": deque(map(board, range(COUNT)))}) as run:
        run.save()
    live: Any = deque([1], maxlen=COUNT - 1)
    with pytest.raises(Mismatch, match="maxlen"):
        Run(tmp_path, {"it": live}).__enter__()
    assert list(live) == [1]
    with pytest.raises(Mismatch, match="a deque in the checkpoint, a list here"):
        Run(tmp_path, {"it": []}).__enter__()


HOSTILE: list[Any] = [
    3, [3], [[1]], [[-1, {"leaf": "a"}]], [[2, {"leaf": "a"}]], [[3, {"nosuch": 1}]], [[3, {}]], [["3", {"leaf": "a"}]],
    [[3, {"floats": {"leaf": "b"}}]], [[3, {"same": {"leaf": "a"}}]], [[10**15, {"same": 1}]], [[3, {"leaf": 3}]],
    [[3, {"list": [10**12, {"same": 1}]}]], [[3, {"list": [-1, {"same": 1}]}]], [[3, {"list": 1}]],
    [[3, {"tuple": 3}]], [[3, {"dict": []}]], [[3, {"namedtuple": ["os.system", []]}]], [[3, {"nodes": [1]}]],
    [[3, {"kinds": [{"leaf": "a"}, []]}]], [[3, {"kinds": [{"leaf": "b"}, [{"same": 1}]]}]], [[None, 3]],
    [[3, {"ints": 1}]],
]  # fmt: skip


@pytest.mark.parametrize("around", ["list", "tuple", "deque"])
@pytest.mark.parametrize("content", HOSTILE, ids=str)
def test_hostile_rows_are_damage(content, around):
    """With one line and little memory."""
    node = {"packed": content}
    node = {"list": node, "tuple": {"tuple": node}, "deque": {"deque": [None, node]}}[around]
    leaves = {"a": np.zeros((3, 2)), "b": np.array([0, 1, 9])}
    with pytest.raises((Damaged, UsageError)):  # the latter names a class that is not at hand
        tree.unflatten(node, leaves.__getitem__)
