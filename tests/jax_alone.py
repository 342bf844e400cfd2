"""JAX's arrays: saved by reference, restored to the bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from holdfast import Every, Run, Store, journal
from holdfast.errors import UsageError
from holdfast.pages import address
from holdfast.state import snapshot, tree
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


def test_a_snapshot_refers_to_arrays_and_copies_the_rest(tmp_path):
    """They cannot change; only what can takes room in the arena, and what is committed is the state as it was."""
    store, arena = Store(tmp_path), Arena()
    params, moments = jnp.arange(1_000_000.0), np.arange(1_000_000.0)
    staged = store.stage({"model": {"params": params, "moments": moments}}, arena)
    assert arena.size_bytes < 1.1 * moments.nbytes
    there = tree.flatten({"p": params}).leaves["p"].data
    assert np.shares_memory(np.asarray(staged.leaves["model/params"].data), np.asarray(there))
    moments += 1
    store.commit(staged, step=1)
    found = store.load()["model"]
    assert np.array_equal(found["params"], params)
    assert np.array_equal(found["moments"], np.arange(1_000_000.0))
    assert snapshot.BORROWED_BYTES <= params.nbytes
    assert address(store.stage({"a": moments}, arena).snapshot.images[0]) % 4096 == 0


def test_a_donated_array_is_refused_and_one_that_is_saved_is_not_overwritten(tmp_path):
    """What a compiled function has taken is gone; what a snapshot refers to stays as it was."""
    step = jax.jit(lambda x: x + 1, donate_argnums=0)
    store = Store(tmp_path)
    params = jnp.arange(1_000_000.0)
    staged = store.stage({"p": params}, Arena())
    step(params).block_until_ready()
    store.commit(staged, step=1)
    assert np.array_equal(store.load()["p"], np.arange(1_000_000.0, dtype="float32"))
    gone = jnp.arange(1_000_000.0)
    step(gone).block_until_ready()
    with pytest.raises(UsageError, match="donated"):
        store.save({"p": gone}, step=2)


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
