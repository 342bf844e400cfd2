"""Live torch objects: what was captured comes back bit for bit, in the memory that was there before."""

from __future__ import annotations

import copy
import ctypes
import subprocess
import sys
import textwrap
import warnings
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.optim import lr_scheduler, swa_utils  # noqa: E402

from holdfast.errors import Mismatch, UsageError  # noqa: E402
from holdfast.state.codec import Block  # noqa: E402
from holdfast.state.tree import flatten, unflatten  # noqa: E402
from holdfast.torch import live  # noqa: E402
from holdfast.torch.leaves import DTYPES, memory  # noqa: E402


class Kept:
    """A StoredLeaf over a block's bytes; remembers where they were read to."""

    def __init__(self, key: str, block: Block) -> None:
        self.key, self.kind, self.dtype, self.shape = key, block.kind, block.dtype, block.shape
        self.attrs = dict(block.attrs)
        self.data = bytes(block.data)
        self.size_bytes = len(self.data)
        self.places: list[int] = []

    def read(self) -> bytearray:
        return bytearray(self.data)

    def read_into(self, target: memoryview) -> None:
        assert len(target) == self.size_bytes
        self.places.append(ctypes.addressof(ctypes.c_char.from_buffer(target)) if target else 0)
        target[:] = self.data


def stored(tree: Any, name: str) -> Any:
    """`tree` as a restore gets it: a handle in the place of each leaf, one handle for leaves that are tied."""
    flat = flatten({name: tree})
    leaves = {key: Kept(key, block) for key, block in flat.leaves.items()}
    return unflatten(flat.tree, leaves.__getitem__)[name]


def kept_state(target: Any, name: str) -> Any:
    return stored(live.capture(target), name)


def handed_over(old: Any, new: Any, name: str = "model") -> Any:
    """Save `old`, restore into `new`."""
    tree = kept_state(old, name)
    assert live.differences(new, tree) == []
    live.restore(new, tree)
    return tree


def bits(tree: Any) -> Any:
    """A value that is equal exactly when every byte, dtype, shape, stride, type and order is."""
    if isinstance(tree, torch.Tensor):
        plain = tree.detach().resolve_conj().contiguous()
        return (str(tree.dtype), tuple(tree.shape), tree.stride(), tree.device.type, bytes(memory(plain)))
    if isinstance(tree, dict):
        return [(key, bits(value)) for key, value in tree.items()]
    if isinstance(tree, list | tuple):
        return [type(tree).__name__, *map(bits, tree)]
    return repr(tree)


def state_bits(*targets: Any) -> Any:
    return [bits(live.capture(target)) for target in targets]


def net(width: int = 8) -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 3))


def conv_net() -> nn.Module:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 4 * 4, 2))
    return model.to(memory_format=torch.channels_last)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 5)
        self.head = nn.Linear(5, 11, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("mask", torch.arange(4), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(x))


class Counting(nn.Linear):
    """Extra state, the way the documentation shows it."""

    seen = 0

    def get_extra_state(self) -> Any:
        return {"seen": self.seen, "history": torch.arange(self.seen)}

    def set_extra_state(self, state: Any) -> None:
        self.seen = state["seen"]
        self.history = state["history"]


class Renaming(nn.Linear):
    """Stores its weight transposed and under another name, and wants to know the version."""

    _version = 7
    loaded_version: int | None = None

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        destination[prefix + "transposed"] = self.weight.detach().T.contiguous()
        destination[prefix + "bias"] = self.bias.detach()

    def _load_from_state_dict(self, state_dict: Any, prefix: str, local_metadata: Any, *rest: Any) -> None:
        self.loaded_version = local_metadata["version"]
        state_dict[prefix + "weight"] = state_dict.pop(prefix + "transposed").T
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)


class Averaged(nn.Module):
    """A lazy layer behind a plain one."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 4)
        self.last = nn.LazyLinear(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x))


def hooked() -> nn.Module:
    model = net()

    def shout(module: nn.Module, state: Any, prefix: str, metadata: Any) -> None:
        state[prefix + "WEIGHT"] = state.pop(prefix + "weight")

    def whisper(module: nn.Module, state: Any, prefix: str, *rest: Any) -> None:
        state[prefix + "weight"] = state.pop(prefix + "WEIGHT")

    model[0].register_state_dict_post_hook(shout)
    model[0].register_load_state_dict_pre_hook(whisper)
    return model


def parametrized(wrap: Callable[[nn.Module], nn.Module]) -> nn.Module:
    model = net()
    wrap(model[0])
    return model


def counting() -> nn.Module:
    model = nn.Sequential(Counting(6, 3), nn.Linear(3, 3))
    model[0].seen = int(torch.randint(1, 9, ()))
    return model


def half() -> nn.Module:
    return net().to(torch.bfloat16)


MODULES: dict[str, Callable[[], nn.Module]] = {
    "plain": net,
    "channels_last": conv_net,
    "bfloat16": half,
    "float8 buffer": lambda: _with_buffer(torch.randn(7).to(torch.float8_e4m3fn)),
    "complex buffer": lambda: _with_buffer(torch.randn(3, 4, dtype=torch.complex128)),
    "transposed buffer": lambda: _with_buffer(torch.randn(3, 4).T),
    "conjugated buffer": lambda: _with_buffer(torch.randn(3, 4, dtype=torch.complex64).conj()),
    "empty buffer": lambda: _with_buffer(torch.empty(0, 4)),
    "tied": Tied,
    "lstm": lambda: nn.LSTM(4, 5, num_layers=2, bidirectional=True),
    "transformer": lambda: nn.TransformerEncoderLayer(8, 2, 16),
    "extra state": counting,
    "own methods": lambda: nn.Sequential(Renaming(6, 3), nn.Linear(3, 3)),
    "hooks": hooked,
    "weight_norm": lambda: parametrized(nn.utils.parametrizations.weight_norm),
    "spectral_norm": lambda: parametrized(nn.utils.parametrizations.spectral_norm),
    "orthogonal": lambda: parametrized(nn.utils.parametrizations.orthogonal),
    "old weight_norm": lambda: parametrized(_quietly(nn.utils.weight_norm)),
    "old spectral_norm": lambda: parametrized(_quietly(nn.utils.spectral_norm)),
    "averaged": lambda: swa_utils.AveragedModel(net()),
    "inference": lambda: _in_inference(net),
}


def _with_buffer(buffer: torch.Tensor) -> nn.Module:
    model = net()
    model.register_buffer("extra", buffer)
    return model


def transposed(dtype: torch.dtype) -> nn.Module:
    item = torch.empty(0, dtype=dtype).element_size()
    data = torch.randint(0, 2 if dtype is torch.bool else 256, (5, 3 * item), dtype=torch.uint8)
    return _with_buffer(data.view(dtype).T)


def _quietly(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return function(*args)

    return call


def _in_inference(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.inference_mode():
        return make()


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(17)


@pytest.mark.parametrize("kind", MODULES)
def test_every_kind_of_module_comes_back_bit_for_bit_into_the_same_tensors(kind: str) -> None:
    """Law: after a restore the captured bytes are equal, and every parameter is the object that it was."""
    old, new = MODULES[kind](), MODULES[kind]()
    before = [(id(tensor), tensor.data_ptr()) for tensor in [*new.parameters(), *new.buffers()]]
    handed_over(old, new)
    assert state_bits(old) == state_bits(new)
    assert before == [(id(tensor), tensor.data_ptr()) for tensor in [*new.parameters(), *new.buffers()]]


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_tensor_of_every_dtype_that_is_not_contiguous_comes_back(dtype: str) -> None:
    """Law: any bytes of any dtype, where the live tensor cannot take them straight."""
    old, new = transposed(DTYPES[dtype]), transposed(DTYPES[dtype])
    tree = handed_over(old, new)
    assert kept_state(new, "model")["extra"].data == tree["extra"].data


def test_the_shard_has_the_names_of_the_state_dict() -> None:
    """Law: a plain module is captured under its state_dict names, by reference, and as nothing else."""
    model = net()
    captured = live.capture(model)
    assert list(captured) == list(model.state_dict())
    assert captured["0.weight"].data_ptr() == model[0].weight.data_ptr()


def test_a_tied_tensor_is_read_once() -> None:
    """Law: one leaf for two names is one read."""
    tree = kept_state(Tied(), "model")
    live.restore(Tied(), tree)
    assert len(tree["embed.weight"].places) == 1


def test_what_was_stored_apart_is_not_restored_into_tied_tensors() -> None:
    """Law: two stored tensors with one place to go are a difference, not a silent overwrite."""
    apart = Tied()
    apart.head.weight = nn.Parameter(torch.randn(11, 5))
    lines = live.differences(Tied(), kept_state(apart, "model"))
    assert lines == ["head.weight: on its own in the checkpoint, tied to embed.weight here"]


def test_a_buffer_that_is_not_persistent_is_left_alone() -> None:
    """Law: non-persistent buffers are neither captured nor touched."""
    old, new = Tied(), Tied()
    new.mask.fill_(9)
    assert "mask" not in handed_over(old, new)
    assert new.mask.tolist() == [9, 9, 9, 9]


def test_a_graph_from_before_the_restore_does_not_go_backward_over_new_bytes() -> None:
    """Law: autograd notices the restore."""
    model = nn.Linear(3, 3)
    loss = model(model(torch.randn(2, 3))).sum()
    handed_over(nn.Linear(3, 3), model)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_own_load_state_dict_sees_the_version_that_was_saved() -> None:
    """Law: the version numbers of state_dict()._metadata survive for modules that may ask for them."""
    old, new = nn.Sequential(Renaming(6, 3)), nn.Sequential(Renaming(6, 3))
    old[0]._version = 5
    handed_over(old, new)
    assert new[0].loaded_version == 5
    assert torch.equal(old[0].weight, new[0].weight)


def test_extra_state_is_set() -> None:
    """Law: get_extra_state and set_extra_state meet, tensors inside included."""
    old, new = counting(), counting()
    handed_over(old, new)
    assert new[0].seen == old[0].seen
    assert torch.equal(new[0].history, torch.arange(old[0].seen))


def test_a_tensor_that_stands_twice_in_extra_state_comes_back_as_one() -> None:
    """Law: ties survive where a module's own set_extra_state gets fresh tensors."""
    model, twin = counting(), torch.zeros(2)
    live.restore(model, {**live.capture(model), **stored({"0._extra_state": {"seen": twin, "history": twin}}, "model")})
    assert model[0].seen is model[0].history


def test_a_method_set_on_the_instance_is_used() -> None:
    """Law: a load_state_dict that somebody has put on one object is not bypassed."""
    old, new = nn.Sequential(net()), nn.Sequential(net())
    called = []
    plain = new.load_state_dict
    new.load_state_dict = lambda *args, **kwargs: (called.append(1), plain(*args, **kwargs))[1]  # type: ignore[method-assign]
    handed_over(old, new)
    assert called == [1]
    assert bits(old.state_dict()) == bits(new.state_dict())


def test_only_the_customised_part_of_a_model_is_read_twice() -> None:
    """Law: a hook on one layer does not send the others through a copy."""
    model = hooked()
    tree = kept_state(hooked(), "model")
    live.restore(model, tree)
    assert tree["3.weight"].places == [model[3].weight.data_ptr()]
    assert tree["0.WEIGHT"].places != [model[0].weight.data_ptr()]


def test_lazy_parameters_take_the_stored_shapes() -> None:
    """Law: a model that has seen no batch is restored all the same; saving one is refused."""
    old, new = Averaged(), Averaged()
    with pytest.raises(UsageError, match="run one batch"):
        live.capture(old)
    x = torch.randn(2, 6)
    old(x)
    handed_over(old, new)
    assert bits(old(x)) == bits(new(x))
    assert state_bits(old) == state_bits(new)


class Wrapped(nn.Module):
    """What DDP makes of the names: a root whose every key begins with `module.`"""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


def _compiled_inside() -> nn.Module:
    model = net()
    model[0] = torch.compile(model[0])  # type: ignore[assignment]
    return model


WRAPPINGS: dict[str, Callable[[], nn.Module]] = {
    "plain": net,
    "compiled": lambda: torch.compile(net()),
    "compiled inside": _compiled_inside,
    "data parallel": lambda: nn.DataParallel(net()),
    "compiled data parallel": lambda: torch.compile(nn.DataParallel(net())),
    "wrapped": lambda: Wrapped(net()),
    "wrapped compiled": lambda: Wrapped(torch.compile(net())),
}


@pytest.mark.parametrize("into", WRAPPINGS)
@pytest.mark.parametrize("saved", WRAPPINGS)
def test_wrappers_leave_no_trace(saved: str, into: str) -> None:
    """Law: any wrapping saves what any other wrapping restores, under the plain names."""
    old, new = WRAPPINGS[saved](), WRAPPINGS[into]()
    tree = handed_over(old, new)
    assert list(tree) == list(net().state_dict())
    assert state_bits(old) == state_bits(new)


def test_data_parallel_processes_leave_no_trace() -> None:
    """Law: the same holds for DistributedDataParallel, compiled or not."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        for wrap in (lambda model: model, torch.compile):
            old, new = wrap(nn.parallel.DistributedDataParallel(net())), net()
            assert list(handed_over(old, new)) == list(new.state_dict())
            assert state_bits(old) == state_bits(new)
            handed_over(net(), old)
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("wrap", [torch.compile, nn.DataParallel, Wrapped])
def test_wrappers_leave_no_trace_around_an_own_load_state_dict(wrap: Callable[[nn.Module], nn.Module]) -> None:
    """Law: the same holds where the module's own load_state_dict is used."""
    for old, new in [(wrap(hooked()), hooked()), (hooked(), wrap(hooked())), (wrap(counting()), counting())]:
        handed_over(old, new)
        assert state_bits(old) == state_bits(new)


def test_averaged_models_keep_their_own_names() -> None:
    """Law: AveragedModel's `module.` and n_averaged are its structure, compiled inside or not."""
    model = net()
    old = swa_utils.AveragedModel(torch.compile(model), multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9))
    old.update_parameters(model)
    new = swa_utils.AveragedModel(net(), multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9))
    tree = handed_over(old, new)
    assert {"n_averaged", "module.0.weight"} <= tree.keys()
    other = net()
    for averaged in (old, new):
        averaged.update_parameters(other)
    assert state_bits(old) == state_bits(new)


def test_names_that_would_collide_are_left_as_they_are() -> None:
    """Law: no normalisation that would make two keys one."""
    model = nn.Module()
    model.layer = nn.Linear(2, 2)
    model.layer._orig_mod = nn.Linear(2, 2)
    assert list(live.capture(model)) == ["layer.weight", "layer.bias", "layer._orig_mod.weight", "layer._orig_mod.bias"]


def test_differences_name_keys_shapes_and_dtypes_and_touch_nothing() -> None:
    """Law: one line per difference, before anything is overwritten."""
    here = nn.ModuleDict({"fc": nn.Linear(3, 12), "new": nn.Linear(1, 1, bias=False), "low": nn.Linear(2, 2).half()})
    there = nn.ModuleDict({"fc": nn.Linear(3, 10), "old": nn.Linear(1, 1, bias=False), "low": nn.Linear(2, 2)})
    before = state_bits(here)
    tree = kept_state(there, "model")
    assert live.differences(here, tree) == [
        "new.weight: missing in the checkpoint",
        "old.weight: only in the checkpoint",
        "fc.weight: shape (10, 3) in the checkpoint, (12, 3) here",
        "fc.bias: shape (10,) in the checkpoint, (12,) here",
        "low.weight: dtype float32 in the checkpoint, float16 here",
        "low.bias: dtype float32 in the checkpoint, float16 here",
    ]
    assert state_bits(here) == before
    assert not tree["fc.weight"].places


def test_a_model_on_the_meta_device_is_a_difference() -> None:
    """Law: a model without memory is told apart, not skipped."""
    with torch.device("meta"):
        model = nn.Linear(2, 2)
    lines = live.differences(model, kept_state(nn.Linear(2, 2), "model"))
    assert lines[0] == "weight: on the meta device here; give it memory first (to_empty)"


def test_a_load_state_dict_that_refuses_is_a_mismatch() -> None:
    """Law: what the module's own load_state_dict refuses surfaces as Mismatch."""
    with pytest.raises(Mismatch, match="Missing key"):
        live.restore(
            counting(), {"1.weight": torch.zeros(3, 3), "1.bias": torch.zeros(3), "0.weight": torch.zeros(3, 6)}
        )


@pytest.mark.slow
def test_restoring_a_large_model_needs_no_second_copy() -> None:
    """Law: 64 MiB come back while the peak of resident memory rises by less than 8."""
    script = """
        import re, torch, tempfile
        from torch import nn
        from holdfast.torch import live

        class OnDisk:
            kind, key, attrs, dtype = "torch", "weight", {"device": "cpu", "stride": [4096, 1]}, "float32"
            shape, size_bytes = (4096, 4096), 64 << 20

            def read_into(self, target):
                with open(path, "rb", buffering=0) as file:
                    done = 0
                    while done < len(target):
                        done += file.readinto(target[done : done + (1 << 20)])

        def status(name):
            return int(re.search(name + r":\\s+(\\d+)", open("/proc/self/status").read())[1]) >> 10

        with tempfile.NamedTemporaryFile() as file:
            path = file.name
            for block in range(64):
                file.write(bytes([block]) * (1 << 20))
            file.flush()
            model = nn.Linear(4096, 4096, bias=False)
            small = nn.Linear(2, 2)
            live.restore(small, live.capture(small))
            open("/proc/self/clear_refs", "w").write("5")
            before = status("VmHWM")
            live.restore(model, {"weight": OnDisk()})
            print(status("VmHWM") - before)
            assert model.weight.view(torch.uint8).view(64, -1)[:, -1].tolist() == list(range(64))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 8


# Optimizers


def adam(**options: Any) -> Callable[..., torch.optim.Optimizer]:
    return partial(torch.optim.AdamW, lr=0.01, **options)


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": partial(torch.optim.SGD, lr=0.01),
    "SGD momentum": partial(torch.optim.SGD, lr=0.01, momentum=0.9, nesterov=True),
    "SGD fused": partial(torch.optim.SGD, lr=0.01, momentum=0.9, fused=True),
    "Adam": partial(torch.optim.Adam, amsgrad=True),
    "Adam tensor lr": lambda parameters: torch.optim.Adam(parameters, lr=torch.tensor(0.01), foreach=False),
    "AdamW": adam(),
    "AdamW foreach": adam(foreach=True),
    "AdamW fused": adam(fused=True),
    "Adamax": torch.optim.Adamax,
    "Adadelta": torch.optim.Adadelta,
    "Adafactor": torch.optim.Adafactor,
    "Adagrad": partial(torch.optim.Adagrad, initial_accumulator_value=0.1),
    "Adagrad fused": partial(torch.optim.Adagrad, fused=True),
    "ASGD": partial(torch.optim.ASGD, t0=1),
    "LBFGS": partial(torch.optim.LBFGS, max_iter=3, history_size=2),
    "LBFGS wolfe": partial(torch.optim.LBFGS, max_iter=3, line_search_fn="strong_wolfe"),
    "NAdam": partial(torch.optim.NAdam, foreach=True),
    "RAdam": torch.optim.RAdam,
    "RMSprop": partial(torch.optim.RMSprop, centered=True, momentum=0.9),
    "Rprop": torch.optim.Rprop,
}


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, steps: range, after: Callable[[], None] = lambda: None
) -> None:
    """Steps whose data are a function of the step's number."""
    for step in steps:
        x = torch.randn(16, 6, generator=torch.Generator().manual_seed(step)).to(next(model.parameters()).dtype)

        def closure(x: torch.Tensor = x) -> float:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            return loss.item()

        optimizer.step(closure)
        after()


def a_net(seed: int = 1, dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(seed)
    return net().to(dtype)


def resumed_as_if_uninterrupted(make: Callable[..., Any], model: Callable[[int], nn.Module] = a_net) -> None:
    """Three steps, a save, a restore into fresh objects, three more: equal to six."""
    whole, first, second = model(1), model(1), model(2)
    optimizers = [make(part.parameters()) for part in (whole, first, second)]
    train(whole, optimizers[0], range(6))
    train(first, optimizers[1], range(3))
    handed_over(first, second)
    handed_over(optimizers[1], optimizers[2], "optimizer")
    assert state_bits(first, optimizers[1]) == state_bits(second, optimizers[2])
    train(second, optimizers[2], range(3, 6))
    assert state_bits(whole, optimizers[0]) == state_bits(second, optimizers[2])


@pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate")
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_every_optimizer_goes_on_as_if_uninterrupted(kind: str) -> None:
    """Law: train 3, save, restore into a fresh one, train 3 more: the bytes of 6 in a row, state and options included."""
    resumed_as_if_uninterrupted(OPTIMIZERS[kind])


def test_muon_goes_on_as_if_uninterrupted() -> None:
    """Law: the same for Muon, which takes matrices only."""
    resumed_as_if_uninterrupted(
        lambda parameters: torch.optim.Muon([p for p in parameters if p.dim() == 2], lr=0.01),
        lambda seed: (torch.manual_seed(seed), nn.Sequential(nn.Linear(6, 8, bias=False), nn.Linear(8, 3, bias=False)))[
            1
        ],
    )


def test_sparse_adam_goes_on_as_if_uninterrupted() -> None:
    """Law: the same for SparseAdam's dense moments."""

    def started(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(seed)
        model = nn.Embedding(9, 4, sparse=True)
        return model, torch.optim.SparseAdam(model.parameters(), lr=0.1)

    def go_on(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
        for step in steps:
            optimizer.zero_grad()
            model(torch.tensor([step, step + 1])).square().sum().backward()
            optimizer.step()

    whole, first, second = started(1), started(1), started(2)
    go_on(*whole, range(6))
    go_on(*first, range(3))
    for old, new, name in zip(first, second, ("model", "optimizer"), strict=True):
        handed_over(old, new, name)
    go_on(*second, range(3, 6))
    assert state_bits(*whole) == state_bits(*second)


class Fp32Moments(torch.optim.AdamW):
    """Keeps fp32 moments of bf16 parameters, as mixed-precision recipes do; overrides nothing about its state."""

    def step(self, closure: Any = None) -> None:
        with torch.enable_grad():
            closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                moment = state.setdefault("exp_avg", torch.zeros_like(parameter, dtype=torch.float32))
                state["step"] = state.get("step", torch.tensor(0.0)) + 1
                moment.lerp_(parameter.grad.float(), 0.1)
                with torch.no_grad():
                    parameter.sub_((group["lr"] * moment).to(parameter.dtype))


@pytest.mark.parametrize("hooks", [False, True])
def test_fp32_moments_of_bf16_parameters_stay_fp32(hooks: bool) -> None:
    """Law: state keeps its stored dtype, also when hooks send it through torch's load_state_dict, which casts."""

    def make(parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
        optimizer = Fp32Moments(parameters)
        if hooks:
            optimizer.register_load_state_dict_pre_hook(lambda self, state: None)
        return optimizer

    resumed_as_if_uninterrupted(make, partial(a_net, dtype=torch.bfloat16))


def test_an_optimizer_with_its_own_load_state_dict_uses_it() -> None:
    """Law: what overrides load_state_dict is not bypassed."""
    called = []

    class Own(torch.optim.SGD):
        def load_state_dict(self, state_dict: Any) -> None:
            called.append(1)
            super().load_state_dict(state_dict)

    resumed_as_if_uninterrupted(lambda parameters: Own(parameters, lr=0.1, momentum=0.9))
    assert called == [1]


def test_a_restored_optimizer_shares_memory_with_nothing() -> None:
    """Law: no two state tensors share storage, nor any with a parameter or with what was stored."""
    model, other = a_net(1), a_net(2)
    old, new = (torch.optim.Adam(part.parameters()) for part in (model, other))
    train(model, old, range(2))
    handed_over(old, new, "optimizer")
    tensors = [value for state in new.state.values() for value in state.values()] + list(other.parameters())
    assert len({tensor.data_ptr() for tensor in tensors}) == len(tensors)


def test_state_that_is_already_there_is_written_in_place() -> None:
    """Law: going back to an older checkpoint reuses the live tensors, even those that were aliased by hand."""
    model = a_net()
    optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.01), foreach=False)
    train(model, optimizer, range(2))
    tree, want = kept_state(optimizer, "optimizer"), state_bits(optimizer)
    train(model, optimizer, range(2, 4))
    first, *others = optimizer.state.values()
    group, pointer, rate = optimizer.param_groups[0], first["exp_avg"].data_ptr(), optimizer.param_groups[0]["lr"]
    others[0]["step"] = first["step"]
    live.restore(optimizer, tree)
    assert state_bits(optimizer) == want
    assert first["exp_avg"].data_ptr() == pointer
    assert optimizer.param_groups[0] is group
    assert group["lr"] is rate
    steps = [state["step"].data_ptr() for state in optimizer.state.values()]
    assert len(set(steps)) == len(steps)


def test_state_that_does_not_fit_is_replaced() -> None:
    """Law: a live tensor of another dtype, shape or layout is not read into."""
    old, new = a_net(1), a_net(2)
    optimizers = [torch.optim.Adam(part.parameters()) for part in (old, new)]
    for part, optimizer in zip((old, new), optimizers, strict=True):
        train(part, optimizer, range(2))
    first, second, *_ = optimizers[1].state.values()
    first["exp_avg"] = first["exp_avg"].double()
    first["exp_avg_sq"] = first["exp_avg_sq"].T.contiguous().T
    second["exp_avg"] = second["exp_avg"][:1]
    handed_over(optimizers[0], optimizers[1], "optimizer")
    assert state_bits(optimizers[0]) == state_bits(optimizers[1])


def test_torch_brings_an_older_state_up_to_date() -> None:
    """Law: __setstate__ is called, as load_state_dict would: a `step` from when it was a number becomes a tensor."""
    model = a_net()
    optimizer = torch.optim.Adam(model.parameters())
    train(model, optimizer, range(2))
    tree = kept_state(optimizer, "optimizer")
    tree["state"][0]["step"] = 2
    del tree["param_groups"][0]["decoupled_weight_decay"]
    assert live.differences(optimizer, tree) == []
    want = state_bits(optimizer)
    live.restore(optimizer, tree)
    assert state_bits(optimizer)[0][0] == want[0][0]


def test_moments_of_channels_last_parameters_keep_their_layout() -> None:
    """Law: strides come back too (state_bits compares them)."""
    old, new = conv_net(), conv_net()
    optimizers = [torch.optim.AdamW(part.parameters()) for part in (old, new)]
    for part, optimizer in zip((old, new), optimizers, strict=True):
        part(torch.randn(2, 3, 6, 6)).sum().backward()
        optimizer.step()
    optimizers[1] = torch.optim.AdamW(new.parameters())
    handed_over(optimizers[0], optimizers[1], "optimizer")
    assert state_bits(optimizers[0]) == state_bits(optimizers[1])


@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize("moved", [False, True])
def test_state_goes_to_the_device_where_it_belongs(capturable: bool, moved: bool) -> None:
    """Law: moments follow their parameter; `step`, and what else was kept on the CPU beside them, stays there unless
    the step is captured."""
    model = a_net()
    optimizer = torch.optim.NAdam(model.parameters(), capturable=False, foreach=False)
    train(model, optimizer, range(1))
    tree = kept_state(optimizer, "optimizer")
    if moved:  # saved where the parameters were on an accelerator
        for state in tree["state"].values():
            state["exp_avg"].attrs["device"] = state["exp_avg_sq"].attrs["device"] = "cuda:0"
    tree["param_groups"][0]["capturable"] = capturable
    elsewhere = torch.optim.NAdam(a_net().to("meta").parameters())
    live.restore(elsewhere, tree)
    state = next(iter(elsewhere.state.values()))
    assert {key: value.device.type for key, value in state.items()} == {
        "step": "meta" if capturable else "cpu",
        "mu_product": "cpu" if moved and not capturable else "meta",
        "exp_avg": "meta",
        "exp_avg_sq": "meta",
    }


def two_groups(model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    rest = [parameter for part in list(model)[1:] for parameter in part.parameters()]
    return torch.optim.AdamW([{"params": list(model[0].parameters())}, {"params": rest, "lr": 0.5}], lr=0.1, **options)


def test_optimizer_differences_name_groups_sizes_moments_and_kinds() -> None:
    """Law: what load_state_dict would only notice half-way, or never, is told before anything is touched."""
    model = a_net()
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer, range(1))
    tree = kept_state(optimizer, "optimizer")
    wider = net(9)
    assert live.differences(two_groups(model), tree) == ["param_groups: 1 in the checkpoint, 2 here"]
    assert live.differences(torch.optim.AdamW(wider[0].parameters()), tree) == [
        "param_groups/0: 6 parameters in the checkpoint, 2 here"
    ]
    assert live.differences(torch.optim.AdamW(wider.parameters()), tree)[0] == (
        "state/0/exp_avg: shape (8, 6) in the checkpoint, parameter (9, 6) here"
    )
    assert live.differences(torch.optim.SGD(model.parameters(), momentum=0.9), tree) == [
        "param_groups/0/momentum: missing in the checkpoint; was it saved by another kind of optimizer?",
        "param_groups/0/dampening: missing in the checkpoint; was it saved by another kind of optimizer?",
    ]


def test_named_parameters_in_another_order_are_a_difference() -> None:
    """Law: parameters are matched by order, so names that disagree are told; wrappers in names do not count."""
    model = a_net()
    named = list(model.named_parameters())
    optimizer = torch.optim.SGD(named, momentum=0.9)
    train(model, optimizer, range(1))
    tree = kept_state(optimizer, "optimizer")
    turned = [named[2], named[1], named[0], *named[3:]]
    lines = live.differences(torch.optim.SGD(turned, momentum=0.9), tree)
    assert lines[0] == "param_groups/0: parameter 0 is 0.weight in the checkpoint, 1.weight here"
    compiled = torch.optim.SGD(torch.compile(model).named_parameters(), momentum=0.9)
    assert live.differences(compiled, tree) == []


def test_options_that_a_scheduler_has_added_here_stay() -> None:
    """Law: the checkpoint's options win; what only the live group has is kept."""
    model = a_net()
    tree = kept_state(torch.optim.SGD(model.parameters(), lr=0.3), "optimizer")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lr_scheduler.StepLR(optimizer, 2)
    live.restore(optimizer, tree)
    assert optimizer.param_groups[0]["lr"] == 0.3
    assert optimizer.param_groups[0]["initial_lr"] == 0.1


@pytest.mark.parametrize("stored_as", [float, torch.tensor])
def test_a_rate_that_is_a_tensor_stays_the_tensor_that_it_is(stored_as: Callable[[float], Any]) -> None:
    """Law: options that are tensors here are filled in place, whether the checkpoint has a number or a tensor."""
    tree = kept_state(torch.optim.Adam(a_net().parameters(), lr=stored_as(0.25), foreach=False), "optimizer")
    optimizer = torch.optim.Adam(a_net().parameters(), lr=torch.tensor(0.5), foreach=False)
    rate = optimizer.param_groups[0]["lr"]
    live.restore(optimizer, tree)
    assert optimizer.param_groups[0]["lr"] is rate
    assert rate.item() == 0.25


def test_state_in_containers_comes_back_in_them() -> None:
    """Law: lists, deques, dicts and ties inside a parameter's state keep their kind, bits and sharing."""

    @dataclass
    class Record:
        seen: Any

    def started() -> Any:
        parameter = nn.Parameter(torch.ones(3))
        return torch.optim.SGD([parameter], lr=0.1), parameter

    old, parameter = started()
    shared = torch.randn(3)
    old.state[parameter] = {
        "history": deque([torch.randn(3), shared], maxlen=2),
        "by name": {"a": [shared, None, 4], "b": (torch.randn(2, 2).T,)},
        "counts": Counter([3, 3]),
        "record": Record(torch.arange(3)),
    }
    flat = flatten({"optimizer": live.capture(old)})
    leaves = {key: Kept(key, block) for key, block in flat.leaves.items()}
    tree = unflatten(flat.tree, leaves.__getitem__, types=[Record])["optimizer"]
    new, target = started()
    live.restore(new, tree)
    state = new.state[target]
    assert flatten(live.capture(new)).tree == flatten(live.capture(old)).tree
    assert state["history"].maxlen == 2
    assert state["history"][1] is state["by name"]["a"][0]
    assert torch.equal(state["record"].seen, torch.arange(3))
    live.restore(new, tree)
    assert bits(list(new.state[target]["history"])) == bits(list(old.state[parameter]["history"]))


# Overrides


def test_an_override_changes_every_group_and_says_so() -> None:
    """Law: the option is set in each group, a list gives each its own, and the lines say old -> new."""
    optimizer = two_groups(a_net(), weight_decay=0.25)
    lines = live.override(optimizer, {"weight_decay": 0.125, "lr": [1.0, 2.0]}, [])
    assert lines == [
        "group 0: weight_decay 0.25 -> 0.125",
        "group 1: weight_decay 0.25 -> 0.125",
        "group 0: lr 0.1 -> 1.0",
        "group 1: lr 0.5 -> 2.0",
    ]
    assert [group["lr"] for group in optimizer.param_groups] == [1.0, 2.0]


@pytest.mark.parametrize("tensor", [False, True])
def test_an_overridden_rate_scales_the_schedule(tensor: bool) -> None:
    """Law: with a scheduler, "lr" is the base rate: the schedule goes on at the same phase, scaled."""

    def schedule(rate: float, override_at: int | None) -> list[float]:
        model = a_net()
        optimizer = torch.optim.SGD(model.parameters(), lr=torch.tensor(rate) if tensor else rate)
        parts = [lr_scheduler.LinearLR(optimizer, 0.25, total_iters=3), lr_scheduler.StepLR(optimizer, 2)]
        scheduler = lr_scheduler.SequentialLR(optimizer, parts, [3])
        rates, rate_here = [], optimizer.param_groups[0]["lr"]
        for step in range(8):
            if step == override_at:
                lines = live.override(optimizer, {"lr": 0.25}, iter([model, scheduler, object()]))
                assert lines[0].startswith("group 0: base lr 0.5 -> 0.25 (now ")
            optimizer.step()
            scheduler.step()
            rates.append(float(optimizer.param_groups[0]["lr"]))
        assert not tensor or optimizer.param_groups[0]["lr"] is rate_here
        return rates

    assert schedule(0.5, 2)[2:] == pytest.approx(schedule(0.25, None)[2:], rel=1e-6)


def test_an_overridden_rate_scales_a_cycle() -> None:
    """Law: schedules that keep their bounds in the group follow as well."""
    rates = []
    for base in (0.5, 0.25):
        optimizer = torch.optim.SGD(a_net().parameters(), lr=base, momentum=0.9)
        scheduler = lr_scheduler.OneCycleLR(optimizer, max_lr=base, total_steps=9)
        if base == 0.5:
            live.override(optimizer, {"lr": optimizer.param_groups[0]["initial_lr"] / 2}, [scheduler])
        for _ in range(8):
            optimizer.step()
            scheduler.step()
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates[0] == pytest.approx(rates[1])


def test_an_unknown_option_is_refused_with_the_list_of_options() -> None:
    """Law: a misspelt option changes nothing and names what there is."""
    optimizer = torch.optim.SGD(a_net().parameters(), lr=0.1)
    with pytest.raises(UsageError, match="lr is a number, not 'fast'"):
        live.override(optimizer, {"momentum": 0.5, "lr": "fast"}, [])
    with pytest.raises(UsageError, match="lr: 3 values for 1 parameter groups"):
        live.override(optimizer, {"momentum": 0.5, "lr": [1.0, 2.0, 3.0]}, [])
    assert optimizer.param_groups[0]["momentum"] == 0
    with pytest.raises(UsageError, match=r"SGD has no option 'learning_rate'; it has dampening, .*lr, .*momentum"):
        live.override(optimizer, {"learning_rate": 1.0}, [])


# Schedulers


class Warmup:
    """A callable object: torch stores its __dict__."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, epoch: int) -> float:
        self.calls += 1
        return 1 / (1 + self.calls)


def _chained(optimizer: torch.optim.Optimizer) -> Any:
    return lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(optimizer), lr_scheduler.ExponentialLR(optimizer, 0.9)]
    )


def _sequential(optimizer: torch.optim.Optimizer) -> Any:
    parts = [lr_scheduler.LambdaLR(optimizer, lambda n: 0.1 * (n + 1)), lr_scheduler.CosineAnnealingLR(optimizer, 5)]
    return lr_scheduler.SequentialLR(optimizer, parts, [2])


class Remembering(lr_scheduler.LRScheduler):
    """Somebody's scheduler: holds a function, a list of functions and attributes that appear as it runs."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.shape = lambda n: 1 / (n + 1)
        self.shapes = [self.shape, max]
        self.settings = {"shape": self.shape, "seen": 0}
        super().__init__(optimizer)

    def get_lr(self) -> list[float]:
        self.highest = max(getattr(self, "highest", 0), self.last_epoch)
        self.settings["seen"] += self.highest
        if self.last_epoch == 2:
            self.late = "first seen here"
        return [rate * self.settings["shape"](self.settings["seen"]) for rate in self.base_lrs]


SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "LambdaLR": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda n: 1 / (n + 1)),
    "LambdaLR object": lambda optimizer: lr_scheduler.LambdaLR(optimizer, Warmup()),
    "LambdaLR partial": lambda optimizer: lr_scheduler.LambdaLR(optimizer, partial(pow, 0.5)),
    "MultiplicativeLR": lambda optimizer: lr_scheduler.MultiplicativeLR(optimizer, lambda n: 0.9),
    "StepLR": lambda optimizer: lr_scheduler.StepLR(optimizer, 2, 0.5),
    "MultiStepLR": lambda optimizer: lr_scheduler.MultiStepLR(optimizer, [1, 4, 4], 0.5),
    "ConstantLR": lambda optimizer: lr_scheduler.ConstantLR(optimizer, 0.5, 4),
    "LinearLR": lambda optimizer: lr_scheduler.LinearLR(optimizer, 0.2, total_iters=4),
    "ExponentialLR": lambda optimizer: lr_scheduler.ExponentialLR(optimizer, 0.7),
    "SequentialLR": _sequential,
    "PolynomialLR": lambda optimizer: lr_scheduler.PolynomialLR(optimizer, 5, 2.0),
    "CosineAnnealingLR": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 5),
    "ChainedScheduler": _chained,
    "ReduceLROnPlateau": lambda optimizer: lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, cooldown=1),
    "CyclicLR": lambda optimizer: lr_scheduler.CyclicLR(optimizer, 0.01, 0.1, 2, mode="exp_range", gamma=0.9),
    "CyclicLR own scale": lambda optimizer: lr_scheduler.CyclicLR(optimizer, 0.01, 0.1, 2, scale_fn=lambda x: 0.5),
    "CosineAnnealingWarmRestarts": lambda optimizer: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 2, 2),
    "OneCycleLR": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=9),
    "SWALR": lambda optimizer: swa_utils.SWALR(optimizer, 0.01, anneal_epochs=4),
    "Remembering": Remembering,
}


def test_every_scheduler_of_torch_is_among_the_subjects() -> None:
    """Law: a class that torch adds does not go untested."""
    theirs = {name for name in lr_scheduler.__all__ if name != "LRScheduler"}
    assert theirs <= {name.split()[0] for name in SCHEDULERS}


@pytest.mark.parametrize("tensor", [False, True])
@pytest.mark.parametrize("kind", SCHEDULERS)
def test_every_scheduler_goes_on_as_if_uninterrupted(kind: str, tensor: bool) -> None:
    """Law: train 3, save, restore model, optimizer and scheduler into fresh ones, train 3 more: the bytes of 6 in a row."""

    def started(seed: int) -> list[Any]:
        model = a_net(seed)
        rate = torch.tensor(0.1) if tensor else 0.1
        optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
        return [model, optimizer, SCHEDULERS[kind](optimizer)]

    def go_on(parts: list[Any], steps: range) -> None:
        model, optimizer, scheduler = parts
        plateau = isinstance(scheduler, lr_scheduler.ReduceLROnPlateau)
        train(model, optimizer, steps, partial(scheduler.step, 1.0) if plateau else scheduler.step)

    whole, first, second = started(1), started(1), started(2)
    go_on(whole, range(6))
    go_on(first, range(3))
    for old, new, name in zip(first, second, ("model", "optimizer", "scheduler"), strict=True):
        handed_over(old, new, name)
    assert state_bits(*first) == state_bits(*second)
    go_on(second, range(3, 6))
    assert state_bits(*whole) == state_bits(*second)


def test_a_scheduler_of_another_kind_is_a_difference() -> None:
    """Law: settings that do not fit are named; private ones, which torch renames, are not."""
    optimizer = torch.optim.SGD(a_net().parameters(), lr=0.1)
    tree = kept_state(lr_scheduler.StepLR(optimizer, 2), "scheduler")
    tree["_gone"] = 1
    assert live.differences(lr_scheduler.ExponentialLR(optimizer, 0.9), tree) == ["step_size: only in the checkpoint"]
    two = lr_scheduler.SequentialLR(
        optimizer, [lr_scheduler.ConstantLR(optimizer), lr_scheduler.ConstantLR(optimizer)], [2]
    )
    three = _chained(optimizer)
    three._schedulers.append(lr_scheduler.ConstantLR(optimizer))
    lines = live.differences(_chained(optimizer), kept_state(three, "scheduler"))
    assert lines == ["_schedulers: 3 in the checkpoint, 2 here"]
    assert live.differences(two, kept_state(two, "scheduler")) == []


# Weights of another run


def test_what_fits_is_read_and_the_rest_is_named() -> None:
    """Law: of another model's weights, those that fit after renaming are read; the others stay as they were."""
    old = nn.ModuleDict({"encoder": hooked(), "head": nn.Linear(3, 10), "gone": nn.Linear(1, 1, bias=False)})
    new = nn.ModuleDict({"backbone": hooked(), "head": nn.Linear(3, 12), "own": nn.Linear(1, 1, bias=False)})
    tree, rename = kept_state(old, "model"), {"encoder": "backbone"}
    names = [name.replace("encoder", "backbone") for name in old.state_dict() if name.startswith("encoder")]
    matched = live.match(new, tree, rename)
    assert matched == (names, ["own.weight"], ["gone.weight"], ["head.weight", "head.bias"])
    rest = state_bits(new["head"], new["own"])
    live.read_matching(new, tree, rename)
    assert bits(list(old["encoder"].state_dict().values())) == bits(list(new["backbone"].state_dict().values()))
    assert state_bits(new["head"], new["own"]) == rest


@pytest.mark.parametrize(
    ("rename", "name"),
    [
        ({"encoder": "body"}, "body.0.weight"),
        ({"encoder.": "body."}, "body.0.weight"),
        ({"encoder.0": "first", "encoder": "body"}, "first.weight"),
        ({"enc": "body"}, "encoder.0.weight"),
        ({"encoder": ""}, "0.weight"),
        ({"": "model"}, "model.encoder.0.weight"),
    ],
)
def test_renaming_moves_whole_parts_of_a_name(rename: dict[str, str], name: str) -> None:
    """Law: the longest prefix of whole parts counts, with or without its dot; an empty one is every name's."""
    assert live.match(nn.Module(), {"encoder.0.weight": None}, rename).unexpected == [name]


def test_only_models_take_weights() -> None:
    """Law: an optimizer is no model."""
    assert live.is_model(net())
    assert not live.is_model(torch.optim.SGD(net().parameters()))


# Scalers, generators, probes


def test_a_gradient_scaler_goes_on() -> None:
    """Law: scale and growth tracker come back, whether or not the live scaler has been used; enabled must agree."""
    old, fresh, used = (torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=3) for _ in range(3))
    for scaler, steps in ((old, 5), (used, 1)):
        parameter = nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([parameter], lr=0.1)
        for _ in range(steps):
            scaler.scale(parameter.sum()).backward()
            scaler.step(optimizer)
            scaler.update()
    assert old.get_scale() == 128.0
    for new in (fresh, used):
        handed_over(old, new, "scaler")
        assert new.state_dict() == old.state_dict()
    off = torch.amp.GradScaler("cpu", enabled=False)
    assert live.differences(off, kept_state(old, "scaler")) == ["GradScaler: enabled in the checkpoint, disabled here"]
    assert live.differences(old, kept_state(off, "scaler")) == ["GradScaler: disabled in the checkpoint, enabled here"]


def test_a_generator_goes_on() -> None:
    """Law: the next numbers are the next numbers."""
    old, new = torch.Generator().manual_seed(3), torch.Generator()
    torch.randn(5, generator=old)
    handed_over(old, new, "generator")
    assert bits(torch.randn(9, generator=old)) == bits(torch.randn(9, generator=new))


def test_an_averaged_model_with_its_own_function_goes_on() -> None:
    """Law: averages continue bitwise, buffers included, for avg_fn, multi_avg_fn and plain EMA copies."""
    for options in (
        {"avg_fn": lambda a, b, n: a * 0.9 + b * 0.1},
        {"multi_avg_fn": swa_utils.get_ema_multi_avg_fn(0.8)},
    ):
        model = net()
        old, new = (swa_utils.AveragedModel(net(), use_buffers=False, **options) for _ in range(2))
        for _ in range(3):
            old.update_parameters(model)
        handed_over(old, new, "ema")
        later = net()
        for averaged in (old, new):
            averaged.update_parameters(later)
        assert state_bits(old) == state_bits(new)
    ema = copy.deepcopy(model).requires_grad_(False)
    target = net().requires_grad_(False)
    handed_over(ema, target, "ema")
    assert state_bits(ema) == state_bits(target)
    assert not any(parameter.requires_grad for parameter in target.parameters())


def test_a_probe_leaves_every_training_flag_as_it_was() -> None:
    """Law: inside, evaluation without gradients; outside, each submodule's own flag, also after an exception."""

    class Frozen(nn.BatchNorm1d):
        def train(self, mode: bool = True) -> Any:
            return super().train(mode=False)

    model = nn.Sequential(net(), Frozen(3))
    model[0][1].eval()
    model[1].training = True  # set by hand, against its own train()
    frozen = [module.training for module in model.modules()]

    def probe() -> None:
        with live.still([model, torch.optim.SGD(model.parameters()), object()]):
            assert not any(module.training for module in model.modules())
            assert not model(torch.randn(1, 6)).requires_grad
            raise KeyError

    with pytest.raises(KeyError):
        probe()
    assert [module.training for module in model.modules()] == frozen
    assert torch.is_grad_enabled()


def test_what_is_handled_and_how_it_is_named() -> None:
    """Law: the table of kinds, the parameter count (tied once) and the class under its wrappers."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters())
    subjects = [model, optimizer, lr_scheduler.StepLR(optimizer, 1), torch.amp.GradScaler("cpu"), torch.Generator()]
    assert all(map(live.handles, subjects))
    assert not any(map(live.handles, [OrderedDict(), torch.zeros(1), object()]))
    assert live.parameter_count(Tied()) == 55
    assert live.parameter_count(optimizer) is None
    assert live.class_name(torch.compile(model)) == "torch.nn.modules.container.Sequential"
    with pytest.raises(UsageError, match="object"):
        live.capture(object())
