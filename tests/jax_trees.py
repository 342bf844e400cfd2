"""Any pytree in a `Tree`: what is restored has the same bits, dtypes and structure. In a process of its own."""

import dataclasses
import subprocess
import sys
from collections import OrderedDict
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast import Every, Run, Store, journal
from holdfast.errors import Mismatch, UsageError
from holdfast.jax import Tree

DTYPES = ["float32", "bfloat16", "float16", "int32", "uint8", "bool", "complex64", "float8_e4m3fn", "int4", "uint4"]


class Pair(NamedTuple):
    one: object
    other: object


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Registered:
    leaf: object
    name: str = dataclasses.field(metadata={"static": True})


@jax.tree_util.register_pytree_node_class
class Own:
    """Registered without names for its children."""

    def __init__(self, *children):
        self.children = children

    def tree_flatten(self):
        return self.children, None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)


def array(dtype, shape, seed):
    drawn = np.random.default_rng(seed).integers(0, 255, size=(*shape, 8), dtype="uint8")
    item = jnp.dtype(dtype).itemsize
    if dtype in ("bool", "int4", "uint4"):
        return jnp.asarray((drawn[..., 0] % 2).astype(dtype))
    return jnp.asarray(np.ascontiguousarray(drawn[..., :item]).view(dtype)[..., 0])


ARRAYS = st.builds(
    array,
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 4), max_size=3).map(tuple),
    st.integers(0, 1000),
)
LEAVES = st.one_of(
    ARRAYS,
    st.builds(jnp.asarray, st.floats(width=32)),  # weakly typed
    st.builds(lambda n: jnp.full(n, 2.5), st.integers(1, 4)),  # an array of weak type
    st.builds(jax.random.key, st.integers(0, 99)),
    st.builds(lambda n: jax.random.split(jax.random.key(n), 3), st.integers(0, 99)),
    st.builds(jax.random.PRNGKey, st.integers(0, 99)),
    st.builds(lambda n: np.arange(n, dtype="int16"), st.integers(0, 4)),
    st.builds(np.float64, st.floats()),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.booleans(),
    st.text(max_size=3),
    st.just(jnp.tanh),
)
NAMES = st.one_of(st.text("ab./#'", min_size=1, max_size=3), st.integers(0, 3).map(str))


def nodes(children):
    return st.one_of(
        st.lists(children, max_size=3),
        st.lists(children, max_size=3).map(tuple),
        st.dictionaries(NAMES, children, max_size=3),
        st.dictionaries(st.integers(0, 3), children, max_size=3),
        st.dictionaries(NAMES, children, max_size=3).map(OrderedDict),
        st.builds(Pair, children, children),
        st.builds(Registered, children, st.text(max_size=2)),
        st.builds(Own, children, children),
        st.none(),
    )


def facts(leaf):
    """All that must be equal in two leaves."""
    if isinstance(leaf, jax.Array):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return str(leaf.dtype), leaf.shape, np.asarray(jax.random.key_data(leaf)).tobytes()
        return str(leaf.dtype), leaf.shape, leaf.weak_type, leaf.sharding, np.asarray(leaf).tobytes()
    if isinstance(leaf, np.ndarray | np.generic):
        return type(leaf), leaf.dtype, leaf.shape, leaf.tobytes()
    return type(leaf), repr(leaf)


def blank(leaf):
    """A leaf of the same kind with another content."""
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.split(jax.random.key(123), leaf.shape) if leaf.shape else jax.random.key(123)
    if isinstance(leaf, jax.Array | np.ndarray):
        return (jnp if isinstance(leaf, jax.Array) else np).zeros_like(leaf)
    return leaf if callable(leaf) else type(leaf)()


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(value=st.recursive(LEAVES, nodes, max_leaves=8))
def test_any_pytree_comes_back(tmp_path_factory, value):
    """Bits, dtypes, weak types, key kinds, and the structure with the caller's own types."""
    store = Store(tmp_path_factory.mktemp("store"))
    store.save({"tree": Tree(value).capture()}, step=1)
    tree = Tree(jax.tree.map(blank, value))
    stored = store.load()["tree"]
    assert tree.differences(stored) == []
    tree.restore(stored)
    structures: list[Any] = [jax.tree.structure(each) for each in (value, tree.value)]
    assert structures[0] == structures[1]
    pairs = zip(jax.tree.leaves(value), jax.tree.leaves(tree.value), strict=True)
    assert all(facts(one) == facts(other) for one, other in pairs)


def doubled(state):
    return jax.tree.map(lambda leaf: leaf * 2 + 1, state)


def told(path):
    return [event["what"] for log in journal.logs(path) for event in log.events if event["event"] == "told"]


def run_of(path, tree, **options):
    return Run(path, {"state": tree}, every=Every(steps=1), **options)


def interrupted(path, tree, steps):
    """Train until an exception after so many steps."""
    with pytest.raises(KeyboardInterrupt), run_of(path, tree) as run:
        for step in run.steps(9):
            tree.value = doubled(tree.value)
            if step == steps:
                raise KeyboardInterrupt


def test_a_value_that_the_loop_never_assigns_is_told_once(tmp_path):
    """Read or not read, at step 64. It may be a teacher if another tree has changed by then."""
    for number, (reads, changes) in enumerate([(True, False), (False, False), (True, True), (False, True)]):
        tree, other = Tree({"w": jnp.zeros(3)}), Tree(jnp.zeros(3))
        state, tracked = {"w": jnp.zeros(3)}, {"state": tree, **({"other": other} if changes else {})}
        with Run(tmp_path / str(number), tracked) as run:
            for step in run.steps(130):
                state = doubled(tree.value if reads else state)
                other.value = other.value + (step > 60)
                assert step > 63 or told(tmp_path / str(number)) == []
        if changes:
            assert told(tmp_path / str(number)) == []
            continue
        (line,) = told(tmp_path / str(number))
        assert "state['state']: tree.value is still what it was when the run was entered" in line
        assert ("was not read" in line) is not reads


def test_a_value_assigned_over_what_was_restored_is_refused(tmp_path):
    """Its first reading was before the run, so that the loop would go on from the first value."""
    state = {"w": jnp.zeros(3)}
    tree = Tree(state)
    with pytest.raises(UsageError, match="begin with what it holds"), run_of(tmp_path, tree) as run:
        for _ in run.steps(3):
            state = doubled(state)
            tree.value = state


def test_a_donated_value_that_was_not_assigned_is_refused_with_the_line_to_write(tmp_path):
    step = jax.jit(doubled, donate_argnums=0)
    tree = Tree({"w": jnp.zeros(3)})
    with (
        pytest.raises(UsageError, match=r"w of tree.value was donated.*tree.value = train_step"),
        run_of(tmp_path, tree) as run,
    ):
        for _ in run.steps(3):
            step(tree.value)["w"].block_until_ready()


def test_a_structure_that_changes_is_refused_when_it_is_saved(tmp_path):
    """A leaf that comes, a static field that changes; not a mapping of another kind."""
    for first, later, line in [
        ({"w": jnp.zeros(3)}, {"w": jnp.zeros(3), "v": jnp.zeros(3)}, "v has come"),
        (Registered(jnp.zeros(3), "a"), Registered(jnp.zeros(3), "b"), "static fields of a Registered"),
        (Registered([jnp.zeros(3)], "a"), Registered((jnp.zeros(3),), "a"), "a list before, a tuple now"),
    ]:
        tree = Tree(first)
        with pytest.raises(UsageError, match=line), run_of(tmp_path / line[:3], tree) as run:
            for _ in run.steps(3):
                _ = tree.value
                tree.value = later
    tree = Tree({"w": jnp.zeros(3)})
    with run_of(tmp_path / "mapping", tree) as run:
        for _ in run.steps(3):
            tree.value = OrderedDict(doubled(tree.value))


def test_another_tree_is_refused_before_anything_is_changed(tmp_path):
    """The lines name each leaf that differs."""
    interrupted(tmp_path, Tree({"w": jnp.zeros(3), "b": jnp.zeros(2)}), 2)
    for other, line in [
        ({"w": jnp.zeros(3)}, "state/b: in the checkpoint, not here"),
        ({"w": jnp.zeros(3), "b": jnp.zeros(2), "c": 0}, "state/c: not in the checkpoint"),
        ({"w": jnp.zeros(4), "b": jnp.zeros(2)}, r"state/w: shape \(3,\) in the checkpoint, \(4,\) here"),
        ({"w": jnp.zeros(3, "bfloat16"), "b": jnp.zeros(2)}, "state/w: dtype float32 in the checkpoint, bfloat16"),
    ]:
        tree = Tree(other)
        with pytest.raises(Mismatch, match=line), run_of(tmp_path, tree):
            pass
        assert jax.tree.leaves(other)[0] is jax.tree.leaves(tree.value)[0]


def test_a_step_may_donate_what_a_save_has_copied(tmp_path):
    """The save in the background neither reads it late nor keeps it from being donated."""
    step = jax.jit(lambda state: {"w": state["w"] + 1}, donate_argnums=0)
    tree = Tree({"w": step({"w": jnp.zeros(4_000_000)})["w"]})
    places = []
    with run_of(tmp_path, tree) as run:
        for _ in run.steps(6):
            places.append(tree.value["w"].unsafe_buffer_pointer())
            before = tree.value["w"]
            tree.value = step(tree.value)
            assert before.is_deleted()
            assert tree.value["w"].unsafe_buffer_pointer() == places[-1]
    back = Tree({"w": jnp.zeros(4_000_000)})
    with run_of(tmp_path, back):
        assert np.array_equal(np.asarray(back.value["w"]), np.full(4_000_000, 7, "float32"))
        restored = back.value
        step(restored)  # what is restored can be donated, too
        assert restored["w"].is_deleted()


def test_a_save_leaves_no_copy_with_a_large_array_of_the_loop(tmp_path):
    """JAX keeps what it has copied to host memory with the array that was asked: on a CPU items of four bits."""
    value: Any = jnp.full(4_000_000, -3, "int4")
    Store(tmp_path).save({"tree": Tree({"w": value}).capture()}, step=1)
    assert value._npy_value is None
    assert (np.asarray(value) == -3).all()
    assert value._npy_value is not None  # so the line before would have seen it


def test_the_weights_of_another_run_start_one(tmp_path):
    """By their names in the tree."""
    interrupted(tmp_path / "first", Tree({"w": jnp.zeros(3), "b": jnp.zeros(2)}), 2)
    tree = Tree({"w": jnp.zeros(3), "b": jnp.zeros(2)})
    with run_of(tmp_path / "second", tree, start_from=tmp_path / "first"):
        assert tree.value["w"].tolist() == [3.0] * 3


def test_without_jax_one_line_says_what_to_install():
    script = "import sys; sys.modules['jax'] = None; from holdfast.jax import Tree"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert "holdfast.errors.UsageError: holdfast.jax needs JAX: pip install jax" in done.stderr
