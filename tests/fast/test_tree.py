"""Any state comes back as it was, to the bit; and no file can make the reader do anything but refuse."""

import datetime as dt
import enum
import gc
import itertools
import random
import struct
import sys
import zoneinfo
from collections import Counter, OrderedDict, defaultdict, deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.errors import Damaged, HoldfastError, Mismatch, UsageError
from holdfast.state import codec, nodes, tree, unflatten, values
from holdfast.state.numpy_leaves import BIT_GENERATORS
from holdfast.state.tree import Placeholder
from kept import Kept, bits, round_trip


class Color(enum.Enum):
    RED = 1
    BLUE = "b"


class Word(enum.StrEnum):
    YES = "yes"


class Mode(enum.Flag):
    READ = 1
    WRITE = 2


class Pair(NamedTuple):
    left: Any
    right: Any = None


@dataclass
class Settings:
    rate: Any
    names: list = field(default_factory=list)


class Bare:
    """Python shows its address."""

    def __init__(self, value):
        self.value = value


@dataclass(frozen=True, slots=True)
class Point:
    x: Any
    y: Any = 0

    def __post_init__(self):
        CALLS.append(self)


CALLS = []
TYPES = (Color, Word, Mode, Pair, Settings, Point)


TEXT = st.text(st.characters(exclude_categories=()), max_size=8)
FLOATS = st.binary(min_size=8, max_size=8).map(lambda data: struct.unpack(">d", data)[0]) | st.floats()
ZONES = (
    st.none() | st.timezones() | st.builds(dt.timezone, st.timedeltas(dt.timedelta(hours=-23), dt.timedelta(hours=23)))
)
KEYS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**200), 2**200),
    FLOATS,
    st.builds(complex, FLOATS, FLOATS),
    TEXT,
    st.binary(max_size=8),
    st.sampled_from([*Color, *Word, Mode.READ, Mode.READ | Mode.WRITE, Mode(0)]),
    st.builds(dt.timedelta, st.integers(-9, 9), st.integers(0, 9), st.integers(0, 9)),
    st.dates(),
    st.datetimes(timezones=ZONES),
    st.times(timezones=st.none() | st.just(dt.UTC)),
    TEXT.filter(lambda text: "\0" not in text).map(Path),
    st.builds(PureWindowsPath, st.just("C:/x")) | st.builds(PurePosixPath, st.just("/x")),
    st.builds(range, st.integers(), st.integers(), st.integers(1, 9)),
)
HASHABLE = st.recursive(
    KEYS,
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3) | st.builds(Point, inner),
    max_leaves=4,
)


def containers(inner):
    mappings = st.dictionaries(HASHABLE, inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4)
    lists = st.lists(inner, max_size=4)
    return st.one_of(
        lists,
        mappings,
        lists.map(tuple),
        mappings.map(OrderedDict),
        mappings.map(Counter),
        st.builds(defaultdict, st.sampled_from([None, *tree.FACTORIES.values()]), mappings),
        st.builds(deque, lists, st.none() | st.integers(4, 9)),
        st.builds(Pair, inner, inner),
        st.builds(Settings, inner, lists),
        st.builds(Point, inner),
    )


LENGTHS = st.integers(0, 9) | st.integers(tree.INLINE_BYTES - 1, tree.INLINE_BYTES + 2)  # the longer ones are leaves
BYTES = st.builds(lambda byte, length: bytes([byte]) * length, st.integers(0, 255), LENGTHS)
STATES = st.recursive(
    HASHABLE | BYTES | BYTES.map(bytearray) | st.sets(HASHABLE, max_size=4),
    containers,
    max_leaves=12,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(STATES)
def test_any_state_comes_back_with_its_types_order_and_bits(state):
    """NaN payloads, -0.0, big integers, lone surrogates, key order, folds and zones included.

    Saved once more, it has the same JSON and the same blocks, so that digests compare states.
    """
    back = round_trip(state, types=TYPES)
    assert bits(state) == bits(back)
    first, second = tree.flatten(state), tree.flatten(back)
    assert msgspec.json.encode(first.tree) == msgspec.json.encode(second.tree)
    assert list(first.leaves) == list(second.leaves)
    assert all(block.data == second.leaves[key].data for key, block in first.leaves.items())


def test_a_leaf_has_the_same_name_however_its_place_in_a_mapping_is_spelled(monkeypatch):
    """A set may be in any order, and an object show its address: their nodes in the tree are always the same."""
    monkeypatch.setattr(codec, "REGISTERED", {})
    codec.register(Bare, lambda bare: bare.value, Bare)
    one, other = (
        tree.flatten({frozenset(order): b"x" * 2000, (1, Bare("a")): b"y" * 2000}).leaves for order in ([0, 8], [8, 0])
    )
    assert str(frozenset([0, 8])) != str(frozenset([8, 0]))
    assert list(one) == list(other)


GOLDEN = {
    "null": None,
    '[true,-9007199254740992,0.5,"é"]': [True, -(2**53), 0.5, "é"],
    '{"dict":{"b":1,"a":{"tuple":[]}}}': {"b": 1, "a": ()},
    '{"items":[[1,"a"],["1","b"]]}': {1: "a", "1": "b"},
    '[{"float":"8000000000000000"},{"float":"fff0000000000000"}]': [-0.0, -float("inf")],
    '{"int":"-0x20000000000001"}': -(2**53) - 1,
    '[{"bytes":"AAE="},{"bytearray":{"bytes":""}}]': [b"\0\1", bytearray()],
    '{"str":"61eda080"}': "a\ud800",
    '{"set":["a",1,2]}': {"a", 2, 1},
    '{"defaultdict":["list",[["a",[]]]]}': defaultdict(list, a=[]),
    '{"deque":[3,[1]]}': deque([1], 3),
    '{"datetime":[2020,1,2,3,4,5,6,1,["offset",{"timedelta":[0,3600,0]}]]}': dt.datetime(
        2020, 1, 2, 3, 4, 5, 6, dt.timezone(dt.timedelta(hours=1)), fold=1
    ),
    '{"enum":["test_tree.Color","RED"]}': Color.RED,
    '{"flag":["test_tree.Mode",3]}': Mode.READ | Mode.WRITE,
    '{"dataclass":["test_tree.Point",{"x":1,"y":0}]}': Point(1),
    '{"namedtuple":["test_tree.Pair",[1,null]]}': Pair(1),
    '{"numpy_scalar":["<f4","0000803f"]}': np.float32(1),
}


def test_the_format_is_what_it_was():
    """Checkpoints outlive versions: these spellings are for ever."""
    for text, state in GOLDEN.items():
        assert text == msgspec.json.encode(tree.flatten(state).tree).decode()
        assert bits(state) == bits(tree.unflatten(msgspec.json.decode(text), {}.get, types=TYPES)), text


def test_a_users_key_is_never_taken_for_a_tag():
    """Mappings are always wrapped."""
    state = [
        {"dict": 1, "leaf": "x", "tuple": [1]},
        {"enum": ["builtins.eval", "x"]},
        {"types": {"custom": ["a.b", 1]}},
    ]
    assert state == round_trip(state)


def test_random_generators_go_on_where_they_were():
    """random.Random, every NumPy bit generator, RandomState with a normal number in reserve; `spawn` goes on too."""
    generators = [np.random.Generator(kind(5)) for kind in BIT_GENERATORS.values()]
    assert 5 == len(generators)
    legacy, plain = np.random.RandomState(3), random.Random(4)
    everyone: list[Any] = [*generators, legacy]
    for generator in everyone:
        generator.standard_normal(3)
    generators[0].spawn(2)
    plain.gauss(0, 1)
    back, legacy_back, plain_back = round_trip([generators, legacy, plain])
    assert [g.random() for g in generators] == [g.random() for g in back]
    assert generators[0].spawn(1)[0].random() == back[0].spawn(1)[0].random()
    assert [legacy.standard_normal() for _ in range(3)] == [legacy_back.standard_normal() for _ in range(3)]
    assert [plain.gauss(0, 1) for _ in range(3)] == [plain_back.gauss(0, 1) for _ in range(3)]


def test_numpy_scalars_are_scalars_again():
    """Type, dtype and bits."""
    scalars = [
        *(np.float32("nan"), np.float64(-0.0), np.int8(-3), np.bool_(1), np.complex64(1j), np.uint64(2**63)),
        *(np.str_("é"), np.str_(""), np.bytes_(b"x"), np.datetime64("2020-01-01", "ns"), np.timedelta64(3, "s")),
        np.array([(1, 2.0)], "i4,f8")[0],
    ]
    assert bits(scalars) == bits(round_trip(scalars))


def test_the_same_array_twice_is_stored_once_and_is_one_again():
    """Containers that stand in two places come back as two."""
    array, inner = np.arange(3), [1]
    state = {"a": array, "b": [array], "c": inner, "d": inner}
    back = round_trip(state)
    assert ["a"] == list(tree.flatten(state).leaves)
    assert back["a"] is back["b"][0]
    assert back["c"] is not back["d"]


def test_leaf_keys_are_quoted_paths_and_never_collide():
    """Each part keeps letters, digits and "_.-"; keys that are spelled alike get a number."""
    array = lambda: np.zeros(1)
    state = {"a b": array(), "a": {"/": array(), 1: array(), "1": array(), "": array()}, "é~": array(), "l": [array()]}
    keys = list(tree.flatten(state).leaves)
    assert keys == ["a%20b", "a/%2F", "a/1", "a/1~2", "a/%", "%C3%A9%7E", "l/0"]
    assert list(tree.flatten(array()).leaves) == ["value"]


def test_restoring_a_dataclass_calls_nothing():
    """No __init__, no __post_init__, frozen and slots or not; attributes beside the fields are kept."""
    state: Any = Settings(Point(1, 2))
    state.cached = 5
    CALLS.clear()
    back = round_trip(state, types=TYPES)
    assert not CALLS
    assert (Point(1, 2), [], 5) == (back.rate, back.names, back.cached)


def test_a_field_that_is_newer_than_the_checkpoint_gets_its_default():
    """A class may gain a field between two attempts."""
    node = {"dataclass": [f"{__name__}.Settings", {"rate": 1}]}
    assert Settings(1, []) == tree.unflatten(node, {}.get, types=TYPES)


def test_attributes_of_an_ordered_dict_are_kept():
    """A module's state_dict() carries its versions in `_metadata`."""
    state: Any = OrderedDict(a=1)
    state._metadata = OrderedDict({"": {"version": 2}})
    back = round_trip(state)
    assert state._metadata == back._metadata
    assert type(back._metadata) is OrderedDict


UNSAVEABLE = {
    'state["fn"] (a function): it is code, and no state: leave it out, or hold a pytree of JAX in holdfast.jax.Tree': (
        lambda: {"fn": lambda: 0}
    ),
    "state[1] (an object): register a pair": lambda: [0, object()],
    "state[(1, 2)].right (a type)": lambda: {(1, 2): Pair(0, int)},
    'state["a"][1]["b c"] (a torch.Tensor): its layout is': (
        lambda: {"a": [torch.zeros(1), {"b c": torch.zeros(2).to_sparse()}]}
    ),
    'state["d"] (a collections.defaultdict): its factory': lambda: {"d": defaultdict(lambda: 0)},
    "state.rate (a generator)": lambda: Settings(x for x in ()),
    'state["s"][0].array (a numpy.ndarray): it stands in a set': lambda: {"s": {Hashed(np.zeros(1))}},
    "state[0] (a test_tree.Sub): register a pair": lambda: [Sub(a=1)],
    "state[0] (a datetime.datetime): its time zone": lambda: [dt.datetime(2020, 1, 1, tzinfo=Odd())],  # type: ignore[abstract]
    "state (a numpy.random.mtrand.RandomState): a RandomState can be saved with MT19937 only": lambda: (
        np.random.RandomState(np.random.PCG64())
    ),
}


class Sub(dict):
    pass


class Odd(dt.tzinfo):
    pass


class Hashed(NamedTuple):
    array: Any

    def __hash__(self):
        return 0


def test_what_cannot_be_saved_is_named_by_its_place():
    """The message spells the path as Python does and says what to do; also of a cycle, which is no RecursionError."""
    for message, make in UNSAVEABLE.items():
        with pytest.raises(UsageError) as caught:
            tree.flatten(make())
        assert str(caught.value).startswith(f"cannot save {message}")
    state = {"a": [1]}
    state["a"].append(state)
    with pytest.raises(UsageError, match=r'state\["a"\]\[1\]: it contains itself'):
        tree.flatten(state)


def nested(depth, wrap):
    state = 1.5
    for _ in range(depth):
        state = wrap(state)
    return state


WRAPS = {
    "list": lambda x: [x],
    "tuple": lambda x: (x,),
    "dict": lambda x: {"a": x},
    "items": lambda x: {1: x},
    "dataclass": Point,
    "named tuple": Pair,
    "deque": lambda x: deque([x]),
    "defaultdict": lambda x: defaultdict(list, {1: x}),
}


def test_what_can_be_saved_that_deep_can_be_restored():
    """At the limit both ways work; one beyond it, saving says so."""
    for wrap in WRAPS.values():
        state = nested(tree.MAX_DEPTH, wrap)
        assert tree.flatten(state).tree == tree.flatten(round_trip(state, types=TYPES)).tree
        with pytest.raises(UsageError, match="containers deep"):
            tree.flatten(nested(tree.MAX_DEPTH + 1, wrap))


def test_a_hostile_depth_is_damage():
    """Not a RecursionError, however deep."""
    for wrap in (lambda x: [x], lambda x: {"tuple": [x]}, lambda x: {"dict": {"a": x}}, lambda x: {"complex": x}):
        with pytest.raises(Damaged):
            tree.unflatten(nested(5_000, wrap), {}.get)


def test_a_short_stack_is_not_called_damage():
    """Whoever calls from far down is told of Python's limit; the checkpoint is not to blame."""

    def from_far_down(act):
        try:
            return from_far_down(act)
        except RecursionError:
            return act()

    state = nested(50, WRAPS["tuple"])
    flat = tree.flatten(state)
    for act in (lambda: tree.flatten(state), lambda: tree.unflatten(flat.tree, {}.get), lambda: tree.types_in(state)):
        with pytest.raises(UsageError, match="setrecursionlimit"):
            from_far_down(act)


def test_missing_types_are_all_asked_for_at_once():
    """Before anything is read, with the words to pass them."""
    flat = tree.flatten([Color.RED, Point(1), {"b": Pair(1)}, b"x" * 2000])
    with pytest.raises(UsageError, match=r"types=\[Color, Pair, Point\]"):
        tree.unflatten(flat.tree, pytest.fail, types=[Word])


def test_placeholders_stand_in_for_types_and_frameworks():
    """For `show` and `diff`: handles stay handles, and nothing is decoded or imported."""
    colors = {Color.RED, Color.BLUE}
    state = [Color.RED, {Point(1): 2}, np.float32(1), bytearray(5000), random.Random(1), colors, Mode.READ]
    flat = tree.flatten(state)
    handles = {key: Kept(key, block) for key, block in flat.leaves.items()}
    color, points, scalar, data, generator, colors, _ = tree.unflatten(flat.tree, handles.get, placeholders=True)
    assert Placeholder("enum", f"{__name__}.Color", "RED") == color
    assert {Placeholder("dataclass", f"{__name__}.Point", {"x": 1, "y": 0}): 2} == points
    assert Placeholder("numpy_scalar", "", ["<f4", "0000803f"]) == scalar
    assert handles["3"] is data.content
    assert ("random.Random", 2) == (generator.kind, len(colors))
    assert Color.RED is tree.unflatten(flat.tree, handles.get, placeholders=True, types=[Color])[0]


def test_handles_stand_in_the_places_of_leaves_and_small_values_are_whole():
    """What a live restore gets: each leaf a handle, asked for once; generators and scalars made already."""
    array = np.arange(3)
    flat = tree.flatten(
        {"a": array, "b": array, "g": np.random.default_rng(3), "r": random.Random(3), "y": bytearray(3000)}
    )
    asked = []

    def handle(key):
        asked.append(key)
        return Kept(key, flat.leaves[key])

    back = tree.unflatten(flat.tree, handle)
    assert codec.is_stored_leaf(back["a"])
    assert back["a"] is back["b"]
    assert len(asked) == len(set(asked))
    assert random.Random(3).random() == back["r"].random()
    assert bytearray(3000) == back["y"]


def test_a_scripts_types_are_found_under_either_name(monkeypatch):
    """Saved by `python train.py`, restored by `import train`, and the other way round. An ambiguous name is refused."""
    for here in ("__main__", "elsewhere"):
        flat = tree.flatten(Color.RED)
        monkeypatch.setattr(Color, "__module__", here)
        assert Color.RED is tree.unflatten(flat.tree, {}.get, types=TYPES)
    namesakes: list[Any] = [Color, enum.Enum("Color", "RED")]
    with pytest.raises(UsageError):
        tree.unflatten(flat.tree, {}.get, types=namesakes)


def test_types_in_names_the_users_own_types():
    """Enums, dataclasses and named tuples, in keys and values."""
    state = {Color.RED: [Point(Mode.READ)], "a": {"b": (Pair(1, Word.YES),)}, "n": np.zeros(2)}
    assert {Color, Point, Mode, Pair, Word} == tree.types_in(state)


# nodes, as a file has them, a line each
HOSTILE = """\
{}
{"a": 1, "b": 2}
{"nosuch": 1}
{"tuple": 3}
{"tuple": "abc"}
{"set": "abc"}
{"set": [1, 1]}
{"set": [[1]]}
{"set": [1, true]}
{"set_table": [[1]]}
{"set_table": [[1], 0, 3]}
{"set_table": [[1, true], 0, {"bytes": "AQAAAAAAAAA="}]}
{"set_table": [[1], -1, {"bytes": "AQAAAAAAAAA="}]}
{"set_table": [[1], "x", {"bytes": "AQAAAAAAAAA="}]}
{"set_table": [[[1]], 0, {"bytes": "AQAAAAAAAAA="}]}
{"items": [[1]]}
{"items": [[1, 2], [1, 3]]}
{"items": [[[1], 2]]}
{"items": 5}
{"dict": [1]}
{"ordered": {"a": 1}}
{"ordered_with": [[], {"items": 1}]}
{"ordered_with": [[], {"__class__": 1}]}
{"ordered_with": [[]]}
{"defaultdict": ["eval", []]}
{"defaultdict": [["list"], []]}
{"counter": [1]}
{"deque": [-1, []]}
{"deque": ["x", []]}
{"deque": [null]}
{"int": "1_000"}
{"int": 5}
{"int": "0xzz"}
{"float": "00"}
{"float": 1}
{"str": "zz"}
{"str": "ff"}
{"complex": [1.0]}
{"complex": ["1", 2.0]}
{"bytes": "!"}
{"bytes": 3}
{"bytearray": "x"}
{"path": 3}
{"path": {"path": "x"}}
{"purepath": ["amiga", "x"]}
{"datetime": [1]}
{"datetime": [2020, 13, 1, 0, 0, 0, 0, 0, null]}
{"date": "2020"}
{"datetime": [2020, 1, 1, 0, 0, 0, 0, 0, ["zone", "../../etc/passwd"]]}
{"time": [1, 1, 1, 1, 0, ["zone"]]}
{"time": [1, 1, 1, 1, 0, ["odd", 1]]}
{"timedelta": [1000000000000, 0, 0]}
{"range": [1, 2, 0]}
{"range": []}
{"slice": []}
{"leaf": "no such"}
{"leaf": 3}
{"leaf": ["a"]}
{"leaf": null}
{"view": {"leaf": "a"}}
{"view": 3}
{"view": {"leaf": "no such"}}
{"enum": ["test_tree.Color", "GREEN"]}
{"enum": ["test_tree.Color", ["RED"]]}
{"enum": ["test_tree.Point", "x"]}
{"enum": 3}
{"enum": [3, "RED"]}
{"enum": ["builtins.eval", "x"]}
{"flag": ["test_tree.Mode", "x"]}
{"flag": ["test_tree.Mode", 64]}
{"flag": ["test_tree.Color", 1]}
{"namedtuple": ["test_tree.Pair", [1]]}
{"namedtuple": ["test_tree.Pair", "ab"]}
{"namedtuple": ["test_tree.Color", [1, 2]]}
{"dataclass": ["test_tree.Point", {"z": 1}]}
{"dataclass": ["test_tree.Point", []]}
{"dataclass": ["test_tree.Settings", {"__class__": 1}]}
{"dataclass": ["test_tree.Settings", {"rate": 1, "__dict__": {"dict": {"names": 1}}}]}
{"dataclass": ["test_tree.Pair", {}]}
{"custom": ["os.system", "true"]}
{"random.Random": [3, {"bytes": ""}, null]}
{"random.Random": 3}
{"numpy_scalar": ["O", "00"]}
{"numpy_scalar": ["<f4", "00"]}
{"numpy.Generator": ["os", [1, 2]]}
{"numpy.Generator": ["PCG64", [{"dict": {}}, null]]}
{"numpy.Generator": [["PCG64"], 1]}
{"numpy.RandomState": {"dict": {}}}
{"numpy.SeedSequence": [1]}
{"numpy.dtype": "O"}
{"numpy.dtype": "a"}
{"numpy.dtype": "f4,f4"}
{"numpy.dtype": null}
{"size": ["x"]}
{"size": 3.5}
{"torch.dtype": "nn"}
{"torch.dtype": "__name__"}
{"torch.dtype": "float32.x"}
{"torch.device": "toaster"}
{"torch.device": [1]}
{"torch.Generator": ["cpu", 3]}
{"torch.Generator": ["cpu", {"leaf": "a"}]}
{"torch.Generator": 3}
"""


def small_leaf(key):
    return {"a": np.zeros(3)}[key]


def test_a_hostile_node_is_refused():
    """Damage, or a Mismatch where the caller's own type does not fit: never another exception."""
    assert HOSTILE
    for node in map(msgspec.json.decode, HOSTILE.splitlines()):
        with pytest.raises((Damaged, UsageError, Mismatch)) as caught:
            pytest.fail(f"{node} is taken for {tree.unflatten([node], small_leaf, types=TYPES)}")
        assert len(str(caught.value)) < 400, node


TAGS = [*unflatten._READERS, *values.MAKERS, *codec.TAGS]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats()
    | st.sampled_from(["", "a", "0x1f", "cpu", "PCG64", "float32", "<f4"])
    | st.sampled_from([codec.type_name(kind) for kind in TYPES]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(TAGS), inner, min_size=1, max_size=1),
    max_leaves=15,
)  # fmt: skip


@settings(max_examples=2 * settings.default.max_examples, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(JSON, st.booleans())
def test_no_json_makes_the_reader_do_anything_but_read_or_refuse(node, placeholders):
    """A value, or one of our own errors."""
    with suppress(HoldfastError):
        found = tree.unflatten(node, small_leaf, types=TYPES, placeholders=placeholders)
        assert isinstance(node, dict) or type(found) is type(node)


def test_reading_a_tree_imports_nothing_that_it_names():
    """A name in a file is only ever compared."""
    assert "this" not in sys.modules
    for node in ({"enum": ["this.that", "x"]}, {"custom": ["this", 1]}, {"dataclass": ["this.s", {}]}, {"this": 1}):
        with pytest.raises(HoldfastError):
            tree.unflatten(node, small_leaf)
        with pytest.raises(HoldfastError):
            tree.unflatten([node, {"nosuch": 1}], small_leaf, placeholders=True)
    assert "this" not in sys.modules


def test_a_store_that_cannot_be_read_is_not_called_damaged():
    """What the reader of a leaf raises goes through: an I/O error or no memory is not damage."""

    def broken(key):
        raise OSError(5, key)

    with pytest.raises(OSError, match="a"):
        tree.unflatten({"leaf": "a"}, broken)


def test_a_zone_that_this_machine_lacks_is_told():
    """tzdata is the caller's to install."""
    moment = {"time": [1, 1, 1, 1, 0, ["zone", "Mars/Olympus_Mons"]]}
    with pytest.raises(UsageError, match="pip install tzdata"):
        tree.unflatten(moment, {}.get)
    berlin = zoneinfo.ZoneInfo("Europe/Berlin")
    assert berlin is round_trip(dt.time(1, tzinfo=berlin)).tzinfo


def test_the_collector_rests_while_the_main_thread_takes_a_state_apart(monkeypatch):
    """Another thread leaves it alone, and afterwards it is as it was: also after a refusal, and where it was off."""
    on = []

    monkeypatch.setattr(codec, "REGISTERED", {})
    codec.register(Bare, lambda _: on.append(gc.isenabled()), Bare)
    tree.flatten([Bare(1)])
    with ThreadPoolExecutor() as other:
        other.submit(tree.flatten, [Bare(1)]).result()
    assert [False, True] == on
    for was in (False, True):
        (gc.enable if was else gc.disable)()
        try:
            tree.flatten({"x": 1})
            with pytest.raises(UsageError):
                tree.flatten({"x": object()})
            assert was == gc.isenabled()
        finally:
            gc.enable()


# References: leaves and types that a tree names -----------------------------------------------------------------


def with_attributes(value):
    made: Any = OrderedDict(a=value)
    made._metadata = {"version": value}
    return made


AROUND = {
    "list": lambda value: [value],
    "tuple": lambda value: (value,),
    "dict": lambda value: {"leaf": value},
    "items": lambda value: {3: value},
    "ordered": lambda value: OrderedDict(leaf=value),
    "ordered_with": with_attributes,
    "defaultdict": lambda value: defaultdict(list, view=value),
    "defaultdict_of": lambda value: defaultdict(Bare, {"a": value}),
    "counter": lambda value: Counter(a=value),
    "deque": lambda value: deque([value], 3),
    "dataclass": Settings,
    "namedtuple": lambda value: Pair(1, value),
    "custom": Bare,
}


def test_leaves_and_types_are_found_inside_every_kind_of_container(monkeypatch):
    """A restore reads exactly the leaves that are found, and asks for exactly the types. Sets and keys hold types."""
    others = {"leaf", "view", "set", "set_table", "packed", "frozenset", "enum", "flag"}
    assert unflatten._READERS.keys() - others == AROUND.keys() - {"list"}
    monkeypatch.setattr(codec, "REGISTERED", {})
    codec.register(Bare, lambda bare: bare.value, Bare)
    for around, inner in itertools.product(AROUND, [*AROUND, "nothing"]):
        wrap = AROUND.get(inner, lambda value: value)
        flat = tree.flatten(AROUND[around](wrap([np.arange(3), bytes(5000), Color.RED])))
        assert len(flat.leaves) == 2, (around, inner)
        assert flat.leaves.keys() == nodes.leaf_keys(flat.tree), (around, inner)
        assert ("enum", codec.type_name(Color)) in set(nodes.user_types(flat.tree)), (around, inner)
    for state in ({Color.RED}, frozenset([Color.RED]), {Color.RED: 1}, Counter([Color.RED]), {(1, Color.RED): 1}):
        assert {("enum", codec.type_name(Color))} == set(nodes.user_types(tree.flatten(state).tree))
