"""Live torch objects: what was captured comes back bit for bit, in the memory that was there before."""

import copy
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler, swa_utils

from holdfast.errors import Mismatch, UsageError
from holdfast.pages import address
from holdfast.state.tree import flatten, unflatten
from holdfast.torch import live, program, weights
from holdfast.torch.stored import DTYPES
from kept import Kept, bits, random_bits
from subjects import asked_of
from torch_objects import (
    MODULES,
    OPTIMIZERS,
    SCHEDULERS,
    Fp32Moments,
    Renaming,
    Tied,
    batch,
    chained,
    conv_net,
    counting,
    hooked,
    learn,
    net,
    seeded_net,
    state_bits,
    with_buffer,
)


class Placed(Kept):
    """Remembers where its bytes were read to."""

    def __init__(self, key, block):
        super().__init__(key, block)
        self.places = []

    def read_into(self, target):
        self.places.append(address(target) if target else 0)
        super().read_into(target)


def stored(tree, **options):
    """`tree` as a restore gets it: a handle in the place of each leaf, one handle for leaves that are tied."""
    flat = flatten({"it": tree})
    leaves = {key: Placed(key, block) for key, block in flat.leaves.items()}
    return unflatten(flat.tree, leaves.__getitem__, **options)["it"]


def kept_state(target):
    return stored(live.capture(target))


def taken_over(old, new):
    """Save `old`, restore into `new`."""
    tree = kept_state(old)
    assert live.differences(new, tree) == []
    live.restore(new, tree)
    return tree


def handed_over(old, new):
    """The same, and the bits are the same."""
    tree = taken_over(old, new)
    assert state_bits(old) == state_bits(new)
    return tree


def places(module):
    return [(id(tensor), tensor.data_ptr()) for tensor in [*module.parameters(), *module.buffers()]]


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(17)


def test_every_kind_of_module_comes_back_bit_for_bit_into_the_same_tensors():
    """Law: after a restore the captured bytes are equal, and every parameter is the object that it was."""
    for kind, make in MODULES.items():
        with asked_of(kind):
            old, new = make(), make()
            before = places(new)
            handed_over(old, new)
            assert before == places(new)


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_a_tensor_of_every_dtype_that_is_not_contiguous_comes_back():
    """Law: any bytes of any dtype, where the live tensor cannot take them straight."""
    for name, dtype in DTYPES.items():
        with asked_of(name):
            old, new = (with_buffer(random_bits(dtype, 15).view(5, 3).T) for _ in range(2))
            tree = kept_state(old)
            live.restore(new, tree)
            assert kept_state(new)["extra"].data == tree["extra"].data


def test_the_shard_has_the_names_of_the_state_dict():
    """Law: a plain module is captured under its state_dict names, by reference, and as nothing else."""
    model = net()
    captured = live.capture(model)
    assert list(captured) == list(model.state_dict())
    assert captured["0.weight"].data_ptr() == model[0].weight.data_ptr()


def test_tied_tensors_are_read_once_and_buffers_that_are_not_persistent_never():
    """Law: one leaf for two names is one read; two leaves with one place to go are a difference; others are
    untouched.
    """
    new: Any = Tied()
    new.mask.fill_(9)
    tree = handed_over(Tied(), new)
    assert len(tree["embed.weight"].places) == 1
    assert ("mask" in tree, new.mask.tolist()) == (False, [9, 9, 9, 9])
    apart = Tied()
    apart.head.weight = nn.Parameter(torch.randn(11, 5))
    lines = live.differences(Tied(), kept_state(apart))
    assert lines == ["head.weight: on its own in the checkpoint, tied to embed.weight here"]


def test_a_graph_from_before_the_restore_does_not_go_backward_over_new_bytes():
    """Law: autograd notices the restore."""
    model = nn.Linear(3, 3)
    loss = model(model(torch.randn(2, 3))).sum()
    handed_over(nn.Linear(3, 3), model)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_own_load_state_dict_sees_the_version_that_was_saved():
    """Law: the version numbers of state_dict()._metadata survive for modules that may ask for them."""
    old, new = nn.Sequential(Renaming(6, 3)), nn.Sequential(Renaming(6, 3))
    old[0]._version = 5
    taken_over(old, new)
    assert new[0].loaded_version == 5
    assert torch.equal(old[0].weight, new[0].weight)


def test_extra_state_is_set_with_its_tensors_and_their_ties():
    """Law: a module's own set_extra_state gets fresh tensors, and one tensor that stood twice is one again."""
    model, twin = counting(), torch.arange(2)
    live.restore(model, {**live.capture(model), **stored({"0._extra_state": {"seen": twin, "history": twin}})})
    assert model[0].seen is model[0].history
    assert model[0].history.tolist() == [0, 1]


def test_a_method_set_on_the_instance_is_used():
    """Law: a load_state_dict that somebody has put on one object is not bypassed."""
    old, new, called = nn.Sequential(net()), nn.Sequential(net()), []
    plain = new.load_state_dict
    new.load_state_dict = lambda *args, **kwargs: (called.append(1), plain(*args, **kwargs))[1]
    taken_over(old, new)
    assert (called, bits(old.state_dict())) == ([1], bits(new.state_dict()))


def test_only_the_customised_part_of_a_model_is_read_twice():
    """Law: a hook on one layer does not send the others through a copy."""
    model, tree = hooked(), kept_state(hooked())
    live.restore(model, tree)
    assert tree["3.weight"].places == [model[3].weight.data_ptr()]
    assert tree["0.WEIGHT"].places != [model[0].weight.data_ptr()]


def test_lazy_parameters_take_the_stored_shapes():
    """Law: a model that has seen no batch is restored all the same; saving one is refused."""
    old, new = (nn.Sequential(nn.Linear(6, 4), nn.LazyLinear(3)) for _ in range(2))
    with pytest.raises(UsageError, match="run one batch"):
        live.capture(old)
    x = torch.randn(2, 6)
    old(x)
    taken_over(old, new)
    assert (bits(old(x)), state_bits(old)) == (bits(new(x)), state_bits(new))


class Wrapped(nn.Module):
    """What DDP makes of the names: a root whose every key begins with `module.`"""

    def __init__(self, module):
        super().__init__()
        self.module = module


def compiled_inside(model):
    model[0] = torch.compile(model[0])
    return model


WRAPPINGS: dict[str, Any] = {
    "plain": lambda model: model,
    "compiled": torch.compile,
    "compiled inside": compiled_inside,
    "data parallel": nn.DataParallel,
    "compiled data parallel": lambda model: torch.compile(nn.DataParallel(model)),
    "wrapped": Wrapped,
    "wrapped compiled": lambda model: Wrapped(torch.compile(model)),
}


def test_wrappers_leave_no_trace():
    """Law: any wrapping saves what any other wrapping restores, under the plain names; also around own methods."""
    kinds = [*WRAPPINGS]
    for saved, into in {
        *zip(kinds, kinds[1:] + kinds[:1], strict=True),
        *zip(kinds, kinds[3:] + kinds[:3], strict=True),
    }:
        with asked_of(saved, into):
            assert list(handed_over(WRAPPINGS[saved](net()), WRAPPINGS[into](net()))) == list(net().state_dict())
    for kind, make in product(("compiled", "data parallel", "wrapped"), (hooked, counting)):
        with asked_of(kind, make.__name__):
            handed_over(WRAPPINGS[kind](make()), make())
            handed_over(make(), WRAPPINGS[kind](make()))


def test_data_parallel_processes_leave_no_trace():
    """Law: the same holds for DistributedDataParallel, compiled or not."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        for wrap in (lambda model: model, torch.compile):
            old, new = wrap(nn.parallel.DistributedDataParallel(net())), net()
            assert list(handed_over(old, new)) == list(new.state_dict())
            handed_over(net(), old)
    finally:
        torch.distributed.destroy_process_group()


def test_averaged_models_keep_their_own_names_and_go_on():
    """Law: `module.` and n_averaged are structure, compiled inside or not; averages go on bitwise, whatever
    averages.
    """
    ema = swa_utils.get_ema_multi_avg_fn(0.9)
    for options in ({"multi_avg_fn": ema}, {"avg_fn": lambda a, b, n: a * 0.9 + b * 0.1, "use_buffers": True}):
        model, other = net(), net()
        old = swa_utils.AveragedModel(torch.compile(model), **options)
        new = swa_utils.AveragedModel(net(), **options)
        old.update_parameters(model)
        assert {"n_averaged", "module.0.weight"} <= handed_over(old, new).keys()
        for averaged in (old, new):
            averaged.update_parameters(other)
        assert state_bits(old) == state_bits(new)
    frozen, target = (copy.deepcopy(each).requires_grad_(False) for each in (model, other))
    handed_over(frozen, target)
    assert not any(parameter.requires_grad for parameter in target.parameters())


def test_names_that_would_collide_are_left_as_they_are():
    """Law: no normalisation that would make two keys one."""
    model = nn.Module()
    model.layer = nn.Linear(2, 2)
    model.layer._orig_mod = nn.Linear(2, 2)
    assert list(live.capture(model)) == ["layer.weight", "layer.bias", "layer._orig_mod.weight", "layer._orig_mod.bias"]


def test_differences_name_keys_shapes_and_dtypes_and_touch_nothing():
    """Law: one line per difference, before anything is overwritten; a model without memory is told apart."""
    here = nn.ModuleDict({"fc": nn.Linear(3, 12), "new": nn.Linear(1, 1, bias=False), "low": nn.Linear(2, 2).half()})
    there = nn.ModuleDict({"fc": nn.Linear(3, 10), "old": nn.Linear(1, 1, bias=False), "low": nn.Linear(2, 2)})
    before = state_bits(here)
    tree = kept_state(there)
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
    lines = live.differences(nn.Linear(2, 2, device="meta"), kept_state(nn.Linear(2, 2)))
    assert lines[0] == "weight: on the meta device here; give it memory first (to_empty)"


def test_a_load_state_dict_that_refuses_is_a_mismatch():
    """Law: what the module's own load_state_dict refuses surfaces as Mismatch."""
    there = {"1.weight": torch.zeros(3, 3), "1.bias": torch.zeros(3), "0.weight": torch.zeros(3, 6)}
    with pytest.raises(Mismatch, match="Missing key"):
        live.restore(counting(), there)


# Optimizers and schedulers


def train(parts, steps):
    """Steps whose data are a function of the step's number; `parts` are a model, its optimizer and perhaps a
    scheduler.
    """
    model, optimizer, *scheduler = parts
    for step in steps:
        learn(model, optimizer, batch(model, torch.Generator().manual_seed(step)))
        for each in scheduler:
            each.step(*[1.0] * isinstance(each, lr_scheduler.ReduceLROnPlateau))


def resumed_as_if_uninterrupted(started):
    """Three steps, a save, a restore into fresh objects, three more: equal to six."""
    whole, first, second = started(1), started(1), started(2)
    train(whole, range(6))
    train(first, range(3))
    for old, new in zip(first, second, strict=True):
        handed_over(old, new)
    train(second, range(3, 6))
    assert state_bits(*whole) == state_bits(*second)


def with_model(make, model=seeded_net):
    """What makes a model, and an optimizer of it."""

    def started(seed):
        torch.manual_seed(seed)
        made = model(seed)
        return made, make(made.parameters())

    return started


class Own(torch.optim.SGD):
    called = 0

    def load_state_dict(self, state_dict):
        Own.called += 1
        super().load_state_dict(state_dict)


def through_hooks(parameters):
    """State goes through torch's load_state_dict, which casts."""
    optimizer = Fp32Moments(parameters)
    optimizer.register_load_state_dict_pre_hook(lambda self, state: None)
    return optimizer


SHARES = torch.__version__ < "2.10"  # its schedulers share a tensor with the optimizer
bfloat16 = partial(seeded_net, dtype=torch.bfloat16)
matrices = lambda seed: nn.Sequential(nn.Linear(6, 8, bias=False), nn.Linear(8, 3, bias=False))
STARTED = {
    **{kind: with_model(make) for kind, make in OPTIMIZERS.items()},
    **({"Muon": with_model(partial(torch.optim.Muon, lr=0.01), matrices)} if hasattr(torch.optim, "Muon") else {}),
    "SparseAdam": with_model(torch.optim.SparseAdam, lambda seed: nn.Embedding(9, 4, sparse=True)),
    "fp32 moments of bf16 parameters": with_model(Fp32Moments, bfloat16),
    "the same through hooks": with_model(through_hooks, bfloat16),
    "channels_last": with_model(torch.optim.AdamW, lambda seed: conv_net()),
    "own load_state_dict": with_model(partial(Own, lr=0.1, momentum=0.9)),
}


@pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate")
def test_every_optimizer_goes_on_as_if_uninterrupted():
    """Law: train 3, save, restore into a fresh one, train 3 more: the bytes of 6 in a row, state and options included.

    State keeps its stored dtype, also where torch's load_state_dict casts it; and an override of that is not bypassed.
    """
    Own.called = 0
    for kind, started in STARTED.items():
        with asked_of(kind):
            resumed_as_if_uninterrupted(started)
    assert Own.called == 1


def test_every_scheduler_goes_on_as_if_uninterrupted():
    """Law: the same of model, optimizer and scheduler; a class that torch adds does not go untested."""
    assert {name for name in lr_scheduler.__all__ if name != "LRScheduler"} <= {name.split()[0] for name in SCHEDULERS}
    for (kind, schedule), rate in product(SCHEDULERS.items(), (lambda: 0.1, lambda: torch.tensor(0.1))):

        def started(seed, schedule=schedule, rate=rate):
            model = seeded_net(seed)
            optimizer = torch.optim.SGD(model.parameters(), lr=rate(), momentum=0.9)
            return [model, optimizer, schedule(optimizer)]

        with asked_of(kind, rate()):
            if isinstance(rate(), torch.Tensor) and kind.split()[0] in ("SequentialLR", "ReduceLROnPlateau") and SHARES:
                with pytest.raises(UsageError, match="is not exact in torch 2"):
                    kept_state(started(1)[-1])
                continue
            resumed_as_if_uninterrupted(started)


def trained(kind=torch.optim.Adam, steps=2, **options):
    model = seeded_net(1)
    optimizer = kind(model.parameters(), **options)
    train((model, optimizer), range(steps))
    return model, optimizer


def test_a_restored_optimizer_shares_memory_with_nothing():
    """Law: no two state tensors share storage, nor any with a parameter or with what was stored."""
    other = seeded_net(2)
    new = torch.optim.Adam(other.parameters())
    handed_over(trained()[1], new)
    tensors = [value for state in new.state.values() for value in state.values()] + list(other.parameters())
    assert len({tensor.data_ptr() for tensor in tensors}) == len(tensors)


def test_state_that_is_already_there_is_written_in_place():
    """Law: going back to an older checkpoint reuses the live tensors, even those that were aliased by hand."""
    model, optimizer = trained(lr=torch.tensor(0.01), foreach=False)
    tree, want = kept_state(optimizer), state_bits(optimizer)
    train((model, optimizer), range(2, 4))
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


def test_state_that_does_not_fit_is_replaced():
    """Law: a live tensor of another dtype, shape or layout is not read into."""
    new = trained()[1]
    first, second, *_ = new.state.values()
    first["exp_avg"] = first["exp_avg"].double()
    first["exp_avg_sq"] = first["exp_avg_sq"].T.contiguous().T
    second["exp_avg"] = second["exp_avg"][:1]
    handed_over(trained(steps=3)[1], new)


def test_torch_brings_an_older_state_up_to_date():
    """Law: __setstate__ is called, as load_state_dict would: a `step` from when it was a number becomes a tensor."""
    optimizer = trained()[1]
    tree, want = kept_state(optimizer), state_bits(optimizer)
    tree["state"][0]["step"] = 2
    tree["param_groups"][0].pop("decoupled_weight_decay", None)  # since torch 2.7
    assert live.differences(optimizer, tree) == []
    live.restore(optimizer, tree)
    assert state_bits(optimizer)[0][0] == want[0][0]


def test_state_goes_to_the_device_where_it_belongs():
    """Law: moments follow their parameter; `step`, and what else was kept on the CPU beside them, stays there unless
    the step is captured.
    """
    for capturable, moved in product((False, True), repeat=2):
        tree = kept_state(trained(torch.optim.NAdam, capturable=False, foreach=False)[1])
        if moved:  # saved where the parameters were on an accelerator
            for state in tree["state"].values():
                state["exp_avg"].attrs["device"] = state["exp_avg_sq"].attrs["device"] = "cuda:0"
        tree["param_groups"][0]["capturable"] = capturable
        elsewhere = torch.optim.NAdam(net().to("meta").parameters())
        live.restore(elsewhere, tree)
        state = next(iter(elsewhere.state.values()))
        expected = {
            "step": "meta" if capturable else "cpu",
            "mu_product": "cpu" if moved and not capturable else "meta",
            "exp_avg": "meta",
            "exp_avg_sq": "meta",
        }
        with asked_of(capturable, moved):
            assert expected == {key: value.device.type for key, value in state.items()}


def two_groups(model, **options):
    rest = [parameter for part in list(model)[1:] for parameter in part.parameters()]
    return torch.optim.AdamW([{"params": list(model[0].parameters())}, {"params": rest, "lr": 0.5}], lr=0.1, **options)


def test_optimizer_differences_name_groups_sizes_moments_and_kinds():
    """Law: what load_state_dict would only notice half-way, or never, is told before anything is touched."""
    model, optimizer = trained(torch.optim.AdamW, steps=1)
    wider = net(9)
    missing = "missing in the checkpoint; was it saved by another kind of optimizer?"
    for here, lines in [
        (two_groups(model), ["param_groups: 1 in the checkpoint, 2 here"]),
        (torch.optim.AdamW(wider[0].parameters()), ["param_groups/0: 6 parameters in the checkpoint, 2 here"]),
        (
            torch.optim.SGD(model.parameters(), momentum=0.9),
            [f"param_groups/0/momentum: {missing}", f"param_groups/0/dampening: {missing}"],
        ),
    ]:
        assert live.differences(here, kept_state(optimizer)) == lines
    lines = live.differences(torch.optim.AdamW(wider.parameters()), kept_state(optimizer))
    assert lines[0] == "state/0/exp_avg: shape (8, 6) in the checkpoint, parameter (9, 6) here"


def test_named_parameters_in_another_order_are_a_difference():
    """Law: parameters are matched by order, so names that disagree are told; wrappers in names do not count."""
    model = seeded_net(1)
    named = list(model.named_parameters())
    optimizer = torch.optim.SGD(named, momentum=0.9)
    train((model, optimizer), range(1))
    tree = kept_state(optimizer)
    turned = [named[2], named[1], named[0], *named[3:]]
    lines = live.differences(torch.optim.SGD(turned, momentum=0.9), tree)
    assert lines[0] == "param_groups/0: parameter 0 is 0.weight in the checkpoint, 1.weight here"
    around: Any = torch.compile(model)
    compiled = torch.optim.SGD(around.named_parameters(), momentum=0.9)
    assert live.differences(compiled, tree) == []


def test_the_checkpoints_options_win_in_the_objects_that_are_there():
    """Law: what only the live group has is kept; a rate that is a tensor here stays it, whatever is in the
    checkpoint.
    """
    tree = kept_state(torch.optim.SGD(net().parameters(), lr=0.3))
    optimizer: torch.optim.Optimizer = torch.optim.SGD(net().parameters(), lr=0.1)
    lr_scheduler.StepLR(optimizer, 2)
    live.restore(optimizer, tree)
    assert (optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["initial_lr"]) == (0.3, 0.1)
    for stored_as in (float, torch.tensor):
        tree = kept_state(torch.optim.Adam(net().parameters(), lr=stored_as(0.25), foreach=False))
        optimizer = torch.optim.Adam(net().parameters(), lr=torch.tensor(0.5), foreach=False)
        rate = optimizer.param_groups[0]["lr"]
        live.restore(optimizer, tree)
        assert (optimizer.param_groups[0]["lr"] is rate, rate.item()) == (True, 0.25)


def test_state_in_containers_comes_back_in_them():
    """Law: lists, deques, dicts and ties inside a parameter's state keep their kind, bits and sharing."""

    @dataclass
    class Record:
        seen: object

    def started():
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
    tree = stored(live.capture(old), types=[Record])
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


def test_an_override_changes_every_group_and_says_so():
    """Law: the option is set in each group, a list gives each its own, and the lines say old -> new."""
    optimizer = two_groups(net(), weight_decay=0.25)
    lines = live.override(optimizer, {"weight_decay": 0.125, "lr": [1.0, 2.0]}, [])
    assert lines == [
        "group 0: weight_decay 0.25 -> 0.125",
        "group 1: weight_decay 0.25 -> 0.125",
        "group 0: lr 0.1 -> 1.0",
        "group 1: lr 0.5 -> 2.0",
    ]
    assert [group["lr"] for group in optimizer.param_groups] == [1.0, 2.0]


def test_an_overridden_rate_scales_the_schedule():
    """Law: with a scheduler, "lr" is the base rate: the schedule goes on at the same phase, scaled; its bounds as
    well.
    """

    def schedule(make, rate, override_at=None, to=None):
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
        scheduler = make(optimizer)
        rates, here = [], optimizer.param_groups[0]["lr"]
        for step in range(8):
            if step == override_at:
                lines = live.override(optimizer, {"lr": to}, iter([model, scheduler, object()]))
                assert lines[0].startswith(f"group 0: base lr {2 * to:g} -> {to:g} (now ")
            optimizer.step()
            scheduler.step()
            rates.append(float(optimizer.param_groups[0]["lr"]))
        assert not isinstance(rate, torch.Tensor) or optimizer.param_groups[0]["lr"] is here
        return rates

    def phases(optimizer):
        parts = [lr_scheduler.LinearLR(optimizer, 0.25, total_iters=3), lr_scheduler.StepLR(optimizer, 2)]
        return lr_scheduler.SequentialLR(optimizer, parts, [3])

    for kind in (float,) if SHARES else (float, torch.tensor):
        expected = schedule(phases, kind(0.25))[2:]
        assert schedule(phases, kind(0.5), 2, 0.25)[2:] == pytest.approx(expected, rel=1e-6)
    cycle = lambda top: lambda optimizer: lr_scheduler.OneCycleLR(optimizer, max_lr=top, total_steps=9)
    assert schedule(cycle(0.5), 0.5, 0, 0.01)[-1] == pytest.approx(schedule(cycle(0.25), 0.25)[-1])


def test_an_unknown_option_is_refused_with_the_list_of_options():
    """Law: a misspelt option changes nothing and names what there is."""
    optimizer = torch.optim.SGD(net().parameters(), lr=0.1)
    for asked, words in [
        ({"momentum": 0.5, "lr": "fast"}, "lr is a number, not 'fast'"),
        ({"momentum": 0.5, "lr": [1.0, 2.0, 3.0]}, "lr: 3 values for 1 parameter groups"),
        ({"learning_rate": 1.0}, r"SGD has no option 'learning_rate'; it has dampening, .*lr, .*momentum"),
    ]:
        with pytest.raises(UsageError, match=words):
            live.override(optimizer, asked, [])
    assert optimizer.param_groups[0]["momentum"] == 0


def test_a_scheduler_of_another_kind_is_a_difference():
    """Law: settings that do not fit are named; private ones, which torch renames, are not."""
    optimizer = torch.optim.SGD(net().parameters(), lr=0.1)
    tree = kept_state(lr_scheduler.StepLR(optimizer, 2))
    tree["_gone"] = 1
    assert live.differences(lr_scheduler.ExponentialLR(optimizer, 0.9), tree) == ["step_size: only in the checkpoint"]
    constant = lambda: lr_scheduler.ConstantLR(optimizer)
    two = lr_scheduler.SequentialLR(optimizer, [constant(), constant()], [2])
    assert live.differences(two, kept_state(two)) == []
    three = chained(optimizer)
    three._schedulers.append(constant())
    lines = live.differences(chained(optimizer), kept_state(three))
    assert lines == ["_schedulers: 3 in the checkpoint, 2 here"]


class Odd(lr_scheduler.LRScheduler):
    """Somebody's scheduler, whose attributes have torch's names and kinds of its own; only the live one loads."""

    def __init__(self, optimizer, rates=None, parts=None, state=None):
        super().__init__(optimizer)
        self.base_lrs, self._schedulers, self.kept, self.word, self.loaded = rates, parts, state, "none", "no"

    def get_lr(self):
        return [0.1]

    def state_dict(self):
        return super().state_dict() if self.kept is None else self.kept

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.loaded = "yes"


ODD = [
    {},
    {"rates": 0.5},
    {"rates": torch.ones(2)},
    {"parts": {"a": 1}},
    {"parts": [1, None]},
    {"state": {"base_lrs": 1}},
]


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("place", ["alone", "second of a chain"])
def test_somebodys_scheduler_may_hold_what_torchs_own_never_does(place, odd):
    """Law: it is restored, and not taken for damaged; nothing but the live one is asked to load."""
    optimizer = torch.optim.SGD(net().parameters(), lr=0.1)
    made = []
    for _ in range(2):
        own = Odd(optimizer, **odd)
        parts = [lr_scheduler.ConstantLR(optimizer), own]
        made.append((own, own if place == "alone" else lr_scheduler.ChainedScheduler(parts)))
    (saved, old), (restored, new) = made
    saved.word = "one"
    tree = kept_state(old)
    assert live.differences(new, tree) == []
    assert restored.loaded == "no"
    live.restore(new, tree)
    assert (restored.loaded, restored.word) == ("yes", "none" if "state" in odd else "one")


# Weights of another run


def test_what_fits_is_read_and_the_rest_is_named():
    """Law: of another model's weights, those that fit after renaming are read; the others stay as they were."""
    old = nn.ModuleDict({"encoder": hooked(), "head": nn.Linear(3, 10), "gone": nn.Linear(1, 1, bias=False)})
    new = nn.ModuleDict({"backbone": hooked(), "head": nn.Linear(3, 12), "own": nn.Linear(1, 1, bias=False)})
    tree, rename = kept_state(old), {"encoder": "backbone"}
    names = [name.replace("encoder", "backbone") for name in old.state_dict() if name.startswith("encoder")]
    matched = weights.match_weights(new, tree, rename)
    assert matched == (names, ["own.weight"], ["gone.weight"], ["head.weight", "head.bias"])
    rest = state_bits(new["head"], new["own"])
    weights.read_matching(new, tree, rename)
    assert state_bits(old["encoder"]) == state_bits(new["backbone"])
    assert state_bits(new["head"], new["own"]) == rest
    assert (weights.is_model(new), weights.is_model(torch.optim.SGD(new.parameters()))) == (True, False)


def test_renaming_moves_whole_parts_of_a_name():
    """Law: the longest prefix of whole parts counts, with or without its dot; an empty one is every name's."""
    for rename, name in [
        ({"encoder": "body"}, "body.0.weight"),
        ({"encoder.": "body."}, "body.0.weight"),
        ({"encoder.0": "first", "encoder": "body"}, "first.weight"),
        ({"enc": "body"}, "encoder.0.weight"),
        ({"encoder": ""}, "0.weight"),
        ({"": "model"}, "model.encoder.0.weight"),
    ]:
        assert weights.match_weights(nn.Module(), {"encoder.0.weight": None}, rename).unexpected == [name]


# Scalers, generators, probes


def test_a_gradient_scaler_goes_on():
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
        handed_over(old, new)
        assert new.state_dict() == old.state_dict()
    off = torch.amp.GradScaler("cpu", enabled=False)
    assert live.differences(off, kept_state(old)) == ["GradScaler: enabled in the checkpoint, disabled here"]
    assert live.differences(old, kept_state(off)) == ["GradScaler: disabled in the checkpoint, enabled here"]


def test_a_generator_goes_on():
    """Law: the next numbers are the next numbers."""
    old, new = torch.Generator().manual_seed(3), torch.Generator()
    torch.randn(5, generator=old)
    handed_over(old, new)
    assert bits(torch.randn(9, generator=old)) == bits(torch.randn(9, generator=new))


def test_a_probe_leaves_every_training_flag_as_it_was():
    """Law: inside, evaluation without gradients; outside, each submodule's own flag, also after an exception."""

    class Frozen(nn.BatchNorm1d):
        def train(self, mode=True):
            return super().train(mode=False)

    model: Any = nn.Sequential(net(), Frozen(3))
    model[0][1].eval()
    model[1].training = True  # set by hand, against its own train()
    flags = [module.training for module in model.modules()]
    with pytest.raises(KeyError), program.evaluation_mode([model, torch.optim.SGD(model.parameters()), object()]):
        assert not any(module.training for module in model.modules())
        assert not model(torch.randn(1, 6)).requires_grad
        raise KeyError
    assert [module.training for module in model.modules()] == flags
    assert torch.is_grad_enabled()


def test_what_is_handled_and_how_it_is_named():
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
