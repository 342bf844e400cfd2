"""Models that are cut over ranks: saved by the names of the whole model, restored on any other cut, bit for bit."""

from itertools import chain
from typing import Any

import pytest
import torch
from torch import nn

from holdfast import Every, Run, StartFrom, Store
from holdfast.errors import Damaged, Mismatch, UsageError
from holdfast.inspect.tensors import select_tensors
from holdfast.state.captured import capture_objects
from holdfast.stateful.objects import OBJECTS
from holdfast.store import format
from holdfast.store.parts import CheckpointParts
from holdfast.torch import ModelParts
from holdfast.torch.model_parts import members
from holdfast.torch.stepping import StepObserver
from run_ranks import among_threads as _among_threads

LAYERS, STEPS = 4, 4


@pytest.fixture(name="among_threads")
def threads(monkeypatch):
    # torch walks its one list of hooks while another thread's run puts its own in
    monkeypatch.setattr(StepObserver, "begin", lambda _: None)
    return _among_threads(monkeypatch)


def layer(number):
    """The same first values on every cut."""
    held = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    with torch.no_grad():
        for place, each in enumerate(held.parameters()):
            each.copy_(torch.arange(each.numel()).view(each.shape) * 0.1 + number + place)
    return held


def parts_of(numbers, kind=torch.optim.AdamW, split=False):
    """Layers of these numbers, with one optimizer or one for each."""
    layers = {f"layers.{number}": layer(number) for number in numbers}
    groups = [list(each.parameters()) for each in layers.values()]
    steps = [kind(each, lr=0.1) for each in groups] if split else [kind([*chain(*groups)], lr=0.1)]
    return ModelParts(layers, steps)


def train(parts):
    """A step whose gradients depend on each layer alone, so that all cuts do the same."""
    for optimizer in parts.optimizers:
        optimizer.zero_grad()
    for _, each in parts.parts:
        each(torch.linspace(0, 1, 12).view(4, 3)).square().sum().backward()
    for optimizer in parts.optimizers:
        optimizer.step()


def held(parts):
    """Tensors and moments, by the names of the whole model."""
    found = {
        f"{place}.{name}": value.clone() for place, each in parts.parts for name, value in each.state_dict().items()
    }
    for optimizer, names in zip(parts.optimizers, parts.parameter_names(), strict=True):
        for number, entry in optimizer.state_dict()["state"].items():
            found |= {f"{names[number]} {key}": torch.as_tensor(value).clone() for key, value in entry.items()}
    return found


def runs(path, cut, *, steps=STEPS, **options):
    """What a rank does: it resumes, notes what it holds then, and trains up to `steps`."""

    def work(rank):
        parts = parts_of(cut[rank], **options)
        with Run(path, {"net": parts}, every=Every(steps=2)) as run:
            began = held(parts)
            for _ in run.steps(steps):
                train(parts)
        return began, held(parts)

    return work


def merged(outcomes, which):
    found = {}
    for each in outcomes:
        if isinstance(each, BaseException):
            raise each
        for name, value in each[which].items():
            assert name not in found or torch.equal(found[name], value)
            found[name] = value
    return found


def differing(one, two):
    assert one.keys() == two.keys()
    return [name for name in one if not torch.equal(one[name], two[name])]


CUTS = {
    "4 stages": [[0], [1], [2], [3]],
    "2 stages": [[0, 1], [2, 3]],
    "interleaved": [[0, 2], [1, 3]],
    "2 stages, 2 replicas": [[0, 1], [0, 1], [2, 3], [2, 3]],
    "replicas elsewhere": [[2, 3], [0, 1], [2, 3]],
    "experts": [[0, 1], [0, 2], [0, 3]],  # the first one is on every rank
    "fewer experts": [[0, 1, 3], [0, 2]],
    "one": [[0, 1, 2, 3]],
}


PAIRS = [
    ("4 stages", "2 stages"),
    ("2 stages", "interleaved"),
    ("interleaved", "4 stages"),
    ("2 stages, 2 replicas", "replicas elsewhere"),
    ("replicas elsewhere", "2 stages, 2 replicas"),
    ("experts", "fewer experts"),
    ("one", "experts"),
    ("4 stages", "one"),
]


@pytest.mark.parametrize(("first", "later"), PAIRS)
def test_what_one_cut_has_saved_another_restores(tmp_path, among_threads, first, later):
    """Parameters, buffers and moments, also with an optimizer for each layer; and it goes on as if it never stopped."""
    split = "stages" in later
    saved = merged(among_threads(len(CUTS[first]), runs(tmp_path / "run", CUTS[first])), 1)
    resumed = among_threads(len(CUTS[later]), runs(tmp_path / "run", CUTS[later], steps=2 * STEPS, split=split))
    assert differing(saved, merged(resumed, 0)) == []
    whole = among_threads(1, runs(tmp_path / "whole", CUTS["one"], steps=2 * STEPS))
    assert differing(merged(whole, 1), merged(resumed, 1)) == []


def test_replicas_are_written_once(tmp_path, among_threads):
    """Of a stage that rank 0 lacks as well. Each rank reads them."""
    sizes = {}
    for name, cut in (("alone", [[0, 1], [2, 3]]), ("replicas", [[0, 1], [2, 3], [2, 3], [0, 1], [2, 3]])):
        merged(among_threads(len(cut), runs(tmp_path / name, cut)), 1)
        newest = Store(tmp_path / name).latest()
        assert list(newest.problems()) == []
        shards = [each for each in newest.path.glob("*.safetensors") if "net" in each.name]
        sizes[name] = len(shards), sum(each.stat().st_size for each in shards)
    assert sizes["alone"][1] <= sizes["replicas"][1] < sizes["alone"][1] * 1.3
    newest = Store(tmp_path / "replicas").latest()
    for rank, numbers in enumerate([[0, 1], [2, 3], [2, 3], [0, 1], [2, 3]]):
        held_there = newest.as_rank(rank).load(part="net")["model"]
        assert {name.split(".")[1] for name in held_there} == {*map(str, numbers)}
    root: Any = newest._root_manifest()
    part = CheckpointParts(newest.path, root)[4]
    assert {1} == {*part.spare.values()}


def test_replicas_that_differ_are_told_before_anything_is_saved(tmp_path, among_threads):
    """On every rank, with the ranks and the name."""

    def work(rank):
        parts = parts_of([1] if rank else [0])
        if rank == 2:
            with torch.no_grad():
                parts.parts[0][1][0].bias[0] = 7
        with Run(tmp_path, {"net": parts}) as run:
            for _ in run.steps(2):
                pass

    for outcome in among_threads(3, work):
        assert isinstance(outcome, UsageError)
        assert "ranks 1 and 2 hold 'layers.1.0.bias'" in str(outcome)
    assert Store(tmp_path).checkpoints() == []


def test_buffers_may_differ_among_replicas(tmp_path, among_threads):
    """Running means are each rank's own, and come back to it."""

    def work(rank):
        parts = parts_of([0])
        with Run(tmp_path, {"net": parts}) as run:
            for _ in run.steps(2):
                parts.parts[0][1][1].running_mean[0] += rank
        return float(parts.parts[0][1][1].running_mean[0])

    first = [*among_threads(3, work)]
    assert first == [0.0, 2.0, 4.0]
    assert [*among_threads(3, work)] == first


@pytest.mark.parametrize(
    ("cut", "line"),
    [
        ([[0, 1], [2]], "net/layers.3.0.bias: in the checkpoint, on no rank here"),
        ([[0, 1], [2, 3, 4]], "layers.4.0.weight: "),
    ],
)
def test_a_cut_that_loses_or_adds_a_layer_is_refused(tmp_path, among_threads, cut, line):
    """On every rank: a weight that no rank restores would be gone with the next checkpoint."""
    merged(among_threads(2, runs(tmp_path, CUTS["2 stages"])), 1)
    for outcome in among_threads(2, runs(tmp_path, cut)):
        assert isinstance(outcome, Mismatch)
    assert line in str(among_threads(2, runs(tmp_path, cut))[1])
    assert [each.name for each in Store(tmp_path).checkpoints()][-1].startswith("step-000000004")


def test_parameters_of_other_options_do_not_share_a_group(tmp_path, among_threads):
    """A rate for each layer cannot go into one group."""

    def parts(rank, numbers):
        found = parts_of(numbers, split=True)
        for optimizer, number in zip(found.optimizers, numbers, strict=True):
            optimizer.param_groups[0]["lr"] = 0.1 * (number + 1)
        return (
            found
            if rank is not None
            else ModelParts(
                dict(found.parts), torch.optim.AdamW([p for _, each in found.parts for p in each.parameters()], lr=0.1)
            )
        )

    def work(rank):
        mine = parts(rank, [rank])
        with Run(tmp_path, {"net": mine}) as run:
            for _ in run.steps(2):
                train(mine)

    assert [*among_threads(2, work)] == [None, None]

    def alone(mine):
        def work(_):
            with Run(tmp_path, {"net": mine}):
                return [each.param_groups[0]["lr"] for each in mine.optimizers]

        return among_threads(1, work)[0]

    refused = alone(parts(None, [0, 1]))
    assert isinstance(refused, Mismatch)
    assert "its parameters had groups of other options" in str(refused)
    assert alone(parts(0, [0, 1])) == [0.1, 0.2]


def test_older_readers_refuse_it_and_other_states_stay_as_they_were(tmp_path, among_threads):
    """Version 7 only where a model is cut: a state without one is of version 1 or 6, to the byte."""
    merged(among_threads(2, runs(tmp_path / "cut", CUTS["2 stages"])), 1)
    manifest = (Store(tmp_path / "cut").latest().path / format.MANIFEST).read_bytes()
    assert manifest.startswith(b'{"holdfast": 7, ')

    def plain(_):
        with Run(tmp_path / "plain", {"net": layer(0)}) as run:
            for _ in run.steps(1):
                pass

    assert among_threads(1, plain)[0] is None
    assert (Store(tmp_path / "plain").latest().path / format.MANIFEST).read_bytes().startswith(b'{"holdfast": 1, ')


def test_an_export_holds_the_whole_model(tmp_path, among_threads):
    """By its names; the whole state of all ranks is no one file."""
    saved = merged(among_threads(4, runs(tmp_path, CUTS["4 stages"])), 1)
    newest = Store(tmp_path).latest()
    names = {each.name for each in select_tensors(newest, "net").tensors}
    assert names == {name for name in saved if " " not in name}
    with pytest.raises(UsageError, match="say --part net"):
        select_tensors(newest, None)


def test_what_has_no_name_in_the_whole_model_is_refused():
    """Two parts of one name, and an optimizer of something else."""
    with pytest.raises(UsageError, match=r"two parts hold 'bias'.*their places"):
        ModelParts([nn.Linear(1, 1), nn.Linear(1, 1)])
    wrong: Any = "model"
    with pytest.raises(UsageError, match="modules and optimizers, and no str"):
        ModelParts(wrong)
    with pytest.raises(UsageError, match="none of the ModelParts has"):
        ModelParts(nn.Linear(1, 1), torch.optim.SGD(nn.Linear(1, 1).parameters()))


def test_parts_without_places_have_the_names_of_their_modules(tmp_path, among_threads):
    """As stages that torch's tracer has cut."""

    def stage(number):
        return nn.ModuleDict({f"layer{number}": nn.Linear(2, 2)})

    def work(rank):
        parts = ModelParts([stage(rank), stage(rank + 2)])
        with Run(tmp_path, {"net": parts}) as run:
            for _ in run.steps(2):
                pass
        return {name: value for _, each in parts.parts for name, value in each.state_dict().items()}

    saved = {name: value for each in among_threads(2, work) for name, value in each.items()}

    def alone(_):
        whole = ModelParts(nn.ModuleDict({f"layer{number}": nn.Linear(2, 2) for number in range(4)}))
        with Run(tmp_path, {"net": whole}):
            return whole.parts[0][1].state_dict()

    assert differing(saved, among_threads(1, alone)[0]) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda net: net | {"groups": [{"params": 3}]},
        lambda net: net | {"groups": {}},
        lambda net: net | {"state": 3},
        lambda net: net | {"besides": {"module": 3}},
        lambda net: net | {"late": [3]},
        lambda net: {key: value for key, value in net.items() if key != "model"},
        lambda net: net | {"more": 1},
        lambda net: 5,
    ],
)
def test_a_forged_state_is_an_error_of_ours(change):
    """Before anything is changed."""
    parts = parts_of([0, 1])
    train(parts)
    saved = tree_of(members(parts))
    names = members(parts).live_names()
    assert saved["model"].keys() == {*names[: len(saved["model"])]}
    assert members(parts_of([0])).recut(saved, tuple, frozenset(names))[1] == []
    with pytest.raises(Damaged):
        members(parts_of([0])).recut(change(saved), tuple, frozenset())


def outcomes(path, among, makes, loop=train, steps=2, **options):
    """The parts of each rank after its run, or its error. `makes`: by rank, what makes its parts."""

    def work(rank):
        parts = makes[rank]()
        with Run(path, {"net": parts}, every=Every(steps=2), **options) as run:
            for _ in run.steps(steps):
                loop(parts)
        return parts

    return [*among(len(makes), work)]


def with_optimizer(numbers, make):
    """Layers of these numbers, and what `make` returns for their named parameters."""
    layers = dict(parts_of(numbers).parts)
    pairs = [(f"{place}.{name}", each) for place, one in layers.items() for name, each in one.named_parameters()]
    return ModelParts(layers, make(pairs))


@pytest.mark.parametrize("fewer", [lambda pairs: (), lambda pairs: torch.optim.AdamW([pairs[0][1]], lr=0.1)])
def test_moments_that_no_optimizer_takes_are_not_dropped(tmp_path, among_threads, fewer):
    """A forgotten optimizer, or one with fewer parameters, is refused with the name."""
    outcomes(tmp_path, among_threads, [lambda: parts_of([0]), lambda: parts_of([1])])
    makes = [lambda number=number: with_optimizer([number], fewer) for number in (0, 1)]
    for found in outcomes(tmp_path, among_threads, makes, steps=4):
        assert isinstance(found, Mismatch)
        assert "layers.0.0.bias in an optimizer: in the checkpoint, on no rank here" in str(found)


@pytest.mark.parametrize("what", ["optimizer", "module", "list"])
def test_what_shares_parameters_is_not_tracked_beside(tmp_path, what):
    """An optimizer's numbers mean another parameter on another cut: its moments would go to a wrong one."""
    parts = parts_of([0, 1])
    beside = {"optimizer": parts.optimizers[0], "module": parts.parts[1][1], "list": [parts.optimizers[0]]}[what]
    with pytest.raises(UsageError, match=r"with 'layers\.[01]\.0\.weight', which state\['net'\] has"):
        Run(tmp_path, {"beside": beside, "net": ModelParts(dict(parts.parts))})


def test_a_copy_of_a_stage_is_not_tracked_beside(tmp_path, among_threads):
    """Such as a moving average: on another cut it would come back to another stage. Shared models are welcome."""

    def work(rank):
        with Run(tmp_path / "shared", {"net": parts_of([rank]), "mean": layer(2)}) as run:
            for _ in run.steps(1):
                pass
        with Run(tmp_path / "apart", {"net": parts_of([rank]), "mean": layer(rank)}) as run:
            for _ in run.steps(1):
                pass

    for found in among_threads(2, work):
        assert isinstance(found, UsageError)
        assert "state['mean']: ranks 0 and 1 hold 'parameter-0' with other numbers" in str(found)
    assert Store(tmp_path / "shared").latest().step == 1


def test_replicas_may_share_the_moments_out(tmp_path, among_threads):
    """Each rank steps some parameters of the same layers, and other ones the next time."""

    def makes(*shares):
        return [
            lambda share=share: with_optimizer(
                [0, 1], lambda pairs: torch.optim.AdamW([each for _, each in pairs][share], lr=0.1, weight_decay=0)
            )
            for share in shares
        ]

    def loop(parts):
        for group in parts.optimizers[0].param_groups:
            for each in group["params"]:
                each.grad = torch.zeros_like(each)
        parts.optimizers[0].step()

    even, odd = slice(0, None, 2), slice(1, None, 2)
    outcomes(tmp_path, among_threads, makes(even, odd), loop, steps=2)
    outcomes(tmp_path, among_threads, makes(odd, even), loop, steps=4)
    (found,) = outcomes(tmp_path, among_threads, makes(slice(None)), loop, steps=4)
    steps = [float(each["step"]) for each in found.optimizers[0].state.values()]
    assert steps == [4.0] * 8


def test_one_state_of_all_parameters_is_not_cut(tmp_path, among_threads):
    """LBFGS keeps all its moments with its first parameter."""

    def loop(parts):
        def closure():
            parts.optimizers[0].zero_grad()
            loss = sum(each(torch.linspace(0, 1, 12).view(4, 3)).square().sum() for _, each in parts.parts)
            loss.backward()
            return loss

        parts.optimizers[0].step(closure)

    def cut(*numbers):
        return [lambda own=own: parts_of(own, kind=torch.optim.LBFGS) for own in numbers]

    first = outcomes(tmp_path, among_threads, cut([0, 1], [2, 3]), loop)
    again = outcomes(tmp_path, among_threads, cut([0, 1], [2, 3]), loop)
    assert [len(each.optimizers[0].state) for each in first + again] == [1] * 4
    for found in outcomes(tmp_path, among_threads, cut([0, 2], [1, 3]), loop):
        assert isinstance(found, Mismatch)
        assert "LBFGS has one state of all its parameters" in str(found)


def test_two_optimizers_of_one_parameter_are_refused():
    """The moments of one of them would be lost."""
    layer_0 = nn.Linear(1, 1)
    with pytest.raises(UsageError, match="two optimizers have 'bias'"):
        ModelParts(layer_0, [torch.optim.AdamW(layer_0.parameters()), torch.optim.AdamW(layer_0.parameters())])


class Remembers(nn.Module):
    """Its buffer comes with the first step."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.register_buffer("seen", None)

    def look(self):
        before = [*self.buffers()]
        self.seen = torch.cat([*before, torch.ones(1)])


def test_buffers_that_come_in_training_come_back(tmp_path, among_threads):
    """On the same cut and on another."""

    def makes(*names):
        return [lambda own=own: ModelParts({name: Remembers() for name in own}) for own in names]

    def loop(parts):
        for _, each in parts.parts:
            each.look()

    for cut in (["a"], ["b"]), (["a"], ["b"]), (["a", "b"],), (["b"], ["a"], []):
        for found in outcomes(tmp_path, among_threads, makes(*cut), loop):
            assert [each.seen.tolist() for _, each in found.parts] == [[1, 1]] * len(found.parts)


def test_the_scripts_names_in_a_group_stay_its_own(tmp_path, among_threads):
    """They are those of this rank's parameters, whatever the cut was."""

    def makes(*numbers):
        return [lambda own=own: with_optimizer(own, lambda pairs: torch.optim.AdamW(pairs, lr=0.1)) for own in numbers]

    outcomes(tmp_path, among_threads, makes([0, 1], [2, 3]))
    for found in outcomes(tmp_path, among_threads, makes([0, 2], [1, 3])):
        assert found.optimizers[0].param_groups[0]["param_names"] == found.parameter_names()[0]


def test_a_group_without_parameters_has_its_options_again(tmp_path, among_threads):
    """And any name of an option is free."""

    def make(pairs):
        return torch.optim.SGD([{"params": [], "moved": 5}, {"params": [each for _, each in pairs]}], lr=0.1)

    def loop(parts):
        for group in parts.optimizers[0].param_groups:
            group["lr"] = 0.025
            group["moved"] = 7

    makes = [lambda number=number: with_optimizer([number], make) for number in (0, 1)]
    outcomes(tmp_path, among_threads, makes, loop)
    for found in outcomes(tmp_path, among_threads, makes):
        assert [(each["lr"], each["moved"]) for each in found.optimizers[0].param_groups] == [(0.025, 7)] * 2


def test_replicas_without_an_optimizer_are_compared_too(tmp_path, among_threads):
    """Two frozen stages of one name: an export would hold one of them."""

    def make(rank):
        stage = nn.Linear(1, 1).requires_grad_(requires_grad=False)
        with torch.no_grad():
            stage.weight.fill_(rank)
        return ModelParts(stage)

    for found in outcomes(tmp_path, among_threads, [lambda: make(0), lambda: make(1)], lambda _: None):
        assert isinstance(found, UsageError)
        assert "ranks 0 and 1 hold" in str(found)


def test_what_was_saved_apart_is_not_tied(tmp_path, among_threads):
    """The second part would overwrite the first."""

    def part(name, rank):
        held = nn.Linear(1, 1, bias=False)
        with torch.no_grad():
            held.weight.fill_(rank)
        return ModelParts({name: held})

    def tied():
        one = nn.Linear(1, 1, bias=False)
        other = nn.Linear(1, 1, bias=False)
        other.weight = one.weight
        return ModelParts({"embed": one, "head": other})

    outcomes(tmp_path, among_threads, [lambda: part("embed", 0), lambda: part("head", 1)], lambda _: None)
    (found,) = outcomes(tmp_path, among_threads, [tied], lambda _: None)
    assert isinstance(found, Mismatch)
    assert "head.weight: on its own in the checkpoint, tied to embed.weight here" in str(found)


def test_gradients_of_a_failed_step_do_not_stay(tmp_path, among_threads):
    """A run that is entered again in one process begins with the gradients of its checkpoint: here none."""

    def work(_):
        net = nn.Linear(1, 1)
        parts = ModelParts(net, torch.optim.SGD(net.parameters(), lr=0.1))
        with pytest.raises(ZeroDivisionError), Run(tmp_path, {"net": parts}, every=Every(steps=2)) as run:
            for step in run.steps(8):
                net(torch.ones(1, 1)).sum().backward()
                if step == 6:
                    raise ZeroDivisionError
                if step % 2:
                    parts.optimizers[0].step()
                    parts.optimizers[0].zero_grad()
        assert net.weight.grad is not None
        with Run(tmp_path, {"net": parts}) as run:
            return run.step, net.weight.grad

    assert [*among_threads(1, work)] == [(6, None)]


def tree_of(held):
    return capture_objects(held, OBJECTS)


@pytest.mark.parametrize("names", [(), ("net/modules/layers.0",)])
def test_weights_are_not_read_into_parts_and_the_error_says_what_to_do(tmp_path, among_threads, names):
    """On every rank, by name, and before anything is saved."""
    merged(among_threads(2, runs(tmp_path / "first", CUTS["2 stages"])), 1)

    def work(rank):
        parts = parts_of(CUTS["2 stages"][rank])
        with Run(tmp_path / "second", {"net": parts}, start_from=StartFrom(tmp_path / "first", names)):
            pass

    for outcome in among_threads(2, work):
        assert isinstance(outcome, UsageError)
        assert "start_from: 'net' is cut over ranks (ModelParts)" in str(outcome)
        assert "--part net -o model.safetensors` writes the whole model" in str(outcome)
    assert Store(tmp_path / "second").checkpoints() == []
