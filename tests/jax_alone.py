"""JAX's arrays: copied when a state is captured, restored to the bit."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from holdfast import Every, Run, Store, journal
from holdfast.errors import UsageError
from holdfast.jax import Tree
from holdfast.jax.shards import ShardedItems
from holdfast.pages import DistantBytes, address
from holdfast.state.codec import ML_DTYPES
from holdfast.state.snapshot import Arena

DTYPES = ["float32", "bfloat16", "float16", "int32", "uint8", "bool", "complex64", "float8_e4m3fn"]


def test_arrays_come_back_bit_for_bit(tmp_path):
    """Of every dtype and shape, as jax.Arrays; what shares an object shares it again."""
    drawn = [np.random.default_rng(1).integers(0, 100, shape) for shape in [(), (3,), (2, 0), (4, 5, 6)]]
    arrays = {f"{dtype}{each.shape}": jnp.asarray(each).astype(dtype) for dtype in DTYPES for each in drawn}
    assert 4 * len(DTYPES) == len(arrays)
    Store(tmp_path).save({"a": arrays, "b": arrays}, step=1)
    found = Store(tmp_path).load()
    for name, array in arrays.items():
        back = found["a"][name]
        assert isinstance(back, jax.Array), name
        assert back is found["b"][name], name
        assert (array.dtype, array.shape) == (back.dtype, back.shape), name
        assert np.asarray(array).tobytes() == np.asarray(back).tobytes(), name


def test_arrays_of_every_small_dtype_come_back_with_their_bits(tmp_path):
    """All of ml_dtypes that JAX makes from memory, in a Tree and in a plain container."""
    names = [
        name for name in ML_DTYPES if not name.startswith(("int1", "uint1", "float6")) and hasattr(ml_dtypes, name)
    ]
    names += ["bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"]
    held = {name: jnp.asarray(np.arange(16).astype(name)) for name in names if name != "bcomplex32"}
    assert len(held) > 12
    Store(tmp_path).save({"plain": held, "tree": Tree(held).capture()}, step=1)
    found = Store(tmp_path).load()
    tree = Tree({name: jnp.zeros_like(each) for name, each in held.items()})
    tree.restore(found["tree"])
    for name, array in held.items():
        for back in found["plain"][name], tree.value[name]:
            assert (array.dtype, np.asarray(array).tobytes()) == (back.dtype, np.asarray(back).tobytes()), name


def test_arrays_of_ml_dtypes_come_back_or_are_refused_before_they_are_saved(tmp_path):
    """JAX makes no array of single bits from memory, so that such a checkpoint could not be loaded."""
    for name in "int2", "uint2", "int4", "uint4", "float4_e2m1fn", "float8_e3m4", "float8_e4m3":
        array = jnp.zeros(5, name).at[1].set(1)
        Store(tmp_path / name).save({"a": array}, step=1)
        back = Store(tmp_path / name).load()["a"]
        assert (array.dtype, np.asarray(array).tobytes()) == (back.dtype, np.asarray(back).tobytes()), name
    for name in "int1", "uint1":
        with pytest.raises(UsageError, match="int1"):
            Store(tmp_path / name).save({"a": jnp.zeros(5, name)}, step=1)


def test_scalars_keep_their_weak_type_and_keys_their_kind(tmp_path):
    """Promotion goes on as it would have; random numbers go on where they were."""
    state = {
        "weak": jnp.asarray(2.0),
        "strong": jnp.float32(2.0),
        "key": jax.random.key(7),
        "old": jax.random.PRNGKey(7),
    }
    Store(tmp_path).save(state, step=1)
    found = Store(tmp_path).load()
    assert [True, False] == [found["weak"].weak_type, found["strong"].weak_type]
    for name in ("key", "old"):
        assert np.array_equal(jax.random.normal(state[name], 5), jax.random.normal(found[name], 5))
    assert state["key"].dtype == found["key"].dtype


def test_a_snapshot_is_a_copy_whatever_becomes_of_the_arrays(tmp_path):
    """What is committed is the state as it was when it was captured: arrays may be donated, and NumPy's may change."""
    store, arena = Store(tmp_path), Arena()
    params, moments, small = jnp.arange(1_000_000.0), np.arange(1_000_000.0), jnp.arange(9.0)
    staged = store.stage({"model": {"params": params, "moments": moments, "small": small}}, arena)
    assert params.nbytes + moments.nbytes <= arena.size_bytes < 1.1 * (params.nbytes + moments.nbytes)
    place = params.unsafe_buffer_pointer()
    changed = jax.jit(lambda x: x + 1, donate_argnums=0)(params)
    assert (params.is_deleted(), place) == (True, changed.unsafe_buffer_pointer())
    jax.jit(lambda x: x + 1, donate_argnums=0)(small).block_until_ready()
    moments += 1
    store.commit(staged, step=1)
    found = store.load()["model"]
    assert np.array_equal(found["params"], np.arange(1_000_000.0, dtype="float32"))
    assert np.array_equal(found["moments"], np.arange(1_000_000.0))
    assert np.array_equal(found["small"], np.arange(9.0))
    assert address(store.stage({"a": moments}, arena).snapshot.images[0]) % 4096 == 0


def test_a_donated_array_and_a_reference_are_refused(tmp_path):
    """What a compiled function has taken is gone."""
    gone = jnp.arange(1_000_000.0)
    jax.jit(lambda x: x + 1, donate_argnums=0)(gone).block_until_ready()
    with pytest.raises(UsageError, match="donated"):
        Store(tmp_path).save({"p": gone}, step=2)
    with pytest.raises(UsageError, match="a reference, which changes in place"):
        Store(tmp_path).save({"p": jax.new_ref(jnp.zeros(3))}, step=2)


def test_any_part_of_an_array_is_copied_from_its_pieces():
    """Pieces on one device, of odd bytes of the whole: each part is what the whole has there."""
    whole = np.random.default_rng(0).integers(0, 255, (3, 1, 5, 4), "uint8").view("int16")
    for array in jnp.asarray(whole), jnp.asarray(whole[:, 0, 0, 0]), jnp.asarray(whole[0, 0, 0, 0]):
        data = DistantBytes(ShardedItems(array), array.nbytes)
        expected = np.asarray(array).tobytes()
        for start in range(array.nbytes):
            for stop in range(start, array.nbytes + 1, 3):
                assert bytes(data[start:stop]) == expected[start:stop]


def test_what_this_jax_would_narrow_is_refused(tmp_path):
    """A float64 is never silently a float32."""
    with jax.enable_x64(True):
        Store(tmp_path).save({"a": jnp.arange(3.0)}, step=1)
    with pytest.raises(UsageError, match="jax_enable_x64"):
        Store(tmp_path).load()


def test_a_traced_array_is_refused_with_its_place(tmp_path):
    """Inside a compiled function there are no numbers."""

    def traced(x):
        Store(tmp_path).save({"deep": [x]}, step=1)
        return x

    with pytest.raises(UsageError, match=r'state\["deep"\]\[0\].*traced'):
        jax.jit(traced)(jnp.ones(3))


def test_arrays_alone_are_refused_as_state_with_the_line_to_write(tmp_path):
    """Nobody can change one in place."""
    with pytest.raises(UsageError, match=r"cannot be changed in place; or write Run\(..., vars=dict\(params=...\)\)"):
        Run(tmp_path, {"params": jnp.zeros(2)})


def test_parameters_in_run_vars_and_in_containers_go_on_where_they_were(tmp_path):
    """In run.vars they are replaced; in a dict that the loop uses they are replaced inside of it."""

    def train(path, cut=None):
        model = {"w": jnp.zeros(3), "b": jnp.zeros(())}
        with Run(path, {"model": model}, vars={"params": jnp.zeros(3)}, every=Every(steps=1)) as run:
            for step in run.steps(5):
                run.vars.params = run.vars.params * 2 + step
                model["w"] = model["w"] + run.vars.params
                if step == cut:
                    raise KeyboardInterrupt
            return run.vars.params.tolist(), model["w"].tolist()

    expected = train(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "cut", cut=2)
    assert expected == train(tmp_path / "cut")


def test_a_rebound_tree_of_parameters_is_told(tmp_path):
    """`params = update(params)`: the run would save the first one for ever."""
    params = {"w": jnp.zeros(3)}
    with Run(tmp_path, {"params": params}) as run:
        for _ in run.steps(4):
            params = {"w": params["w"] + 1}
    told = [event for log in journal.logs(tmp_path) for event in log.events if event["event"] == "told"]
    assert [("rebound", "params")] == [(event["kind"], event["name"]) for event in told]
