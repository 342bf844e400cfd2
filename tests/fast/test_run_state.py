"""State as people have it: containers, arrays, tensors and attributes, restored into the live objects by a run."""

import copy
import random
import weakref
from collections import deque
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from holdfast import Every, Fields, Run
from holdfast.errors import Mismatch, NotFound, UsageError
from holdfast.pages import byte_pieces
from holdfast.state import tree
from holdfast.state.captured import capture_objects
from holdfast.stateful.objects import OBJECTS
from holdfast.store import format
from subjects import asked_of
from toy import Cut, events


def run_to(path, state, total, body, *, cut=None, **options):
    """Train to `total`; `cut`: the step whose body never ends."""
    try:
        with Run(path, state, every=Every(steps=1), background=False, **options) as run:
            for step in run.steps(total):
                body(run, step)
                if step == cut:
                    raise Cut
    except Cut:
        assert cut is not None


def idle(run, step):
    pass


class Loose(dict[str, Any]):
    """A dictionary with attributes, as many scripts have one: it has each that is asked for, as None."""

    __getattr__ = dict.get


def test_what_has_every_attribute_as_none_is_no_object_with_a_state(tmp_path):
    """It is refused with the line to write, as anything else that has no state_dict()."""
    for number, (state, words) in enumerate(
        [
            ({"config": Loose(a=1)}, "without state_dict"),
            ({"inside": {"config": Loose(a=1)}}, "save its state_dict"),
        ]
    ):
        with pytest.raises(UsageError, match=words), Run(tmp_path / str(number), state, every=None) as run:
            run.safe_point()


# A module's state_dict() inside other state -----------------------------------------------------------------------


class Average:
    """An average of a model, whose state_dict() nests the module's own."""

    def __init__(self):
        self.module = nn.Linear(2, 2)

    def state_dict(self):
        return {"module": self.module.state_dict()}

    def load_state_dict(self, state):
        self.module.load_state_dict(state["module"])


def test_a_modules_state_dict_is_restored_as_real_tensors_inside_other_state(tmp_path):
    """Best weights in run.vars, and an average that keeps `{"module": module.state_dict()}`: no handles of tensors."""

    def body(run, step):
        average.module.weight.data += 1
        run.vars.best = copy.deepcopy(average.module.state_dict())

    average = Average()
    run_to(tmp_path, {"average": average}, 4, body, cut=2)
    fresh = Average()
    with Run(tmp_path, {"average": fresh}) as run:
        assert torch.equal(fresh.module.weight, run.vars.best["weight"])
        fresh.module.load_state_dict(run.vars.best)


# What cannot be saved ----------------------------------------------------------------------------------------------


def test_what_cannot_be_saved_is_refused_at_the_first_safe_point_after_it_came(tmp_path):
    """Not by the first save, hours later: the state is taken apart after the first step, run.vars when a name is
    new.
    """
    average = Average()
    for number, (state, passes, words) in enumerate(
        [({"it": average}, 1, r'state\["it"\]\["odd"\]'), ({}, 3, r'\["vars"\]\["odd"\]')]
    ):
        steps = []
        with pytest.raises(UsageError, match=words), Run(tmp_path / str(number), state, every=None) as run:
            for step in run.steps(5):
                steps.append(step)
                average.state_dict = lambda: {"odd": lambda: None}
                if step == 2:
                    run.vars.odd = lambda: None
        assert [*range(passes)] == steps


# What is told once ----------------------------------------------------------------------------------------------


def told(path):
    return [(event["kind"], event["name"]) for event in events(path, "told") if "kind" in event]


def walk(path, state, body, total=6, **options):
    """A run of `total` steps; what it told."""
    with Run(path, state, every=Every(steps=1), **options) as run:
        for step in run.steps(total):
            body(run, step)
    return told(path)


def test_a_rebound_tensor_is_told_once(tmp_path, capsys):
    """`hidden = rnn(x, hidden)`: the run holds the old one, and the line to write is said."""
    cell = nn.RNNCell(2, 2)
    hidden = torch.zeros(1, 2)
    with Run(tmp_path, {"cell": cell, "hidden": hidden}, every=Every(steps=1)) as run:
        for _ in run.steps(8):
            hidden = cell(torch.randn(1, 2), hidden.detach())
            hidden.sum().backward()
    assert [("rebound", "hidden")] == told(tmp_path)
    said = capsys.readouterr().err
    assert "Write run.vars.hidden in the place of hidden in the loop (first value: vars=dict(hidden=hidden))" in said
    assert "or change it in place: hidden.copy_(....detach())" in said


def test_a_rebound_value_is_told_in_state_and_in_vars(tmp_path):
    """Whatever its type. What the loop goes on using stays silent."""
    makers = [lambda: [1], lambda: {"a": 1}, lambda: np.zeros(2), lambda: deque([1]), lambda: torch.zeros(2)]
    for number, make in enumerate(makers):
        value, other, constant = make(), make(), make()
        path = tmp_path / str(number)
        with asked_of(type(value)):
            with Run(path, {"value": value, "constant": constant}, vars={"other": other}) as run:
                for _ in run.steps(6):
                    value, other = make(), make()
            assert [("rebound", "other"), ("rebound", "value")] == sorted(told(path))
            assert constant is not None


def test_an_attribute_that_is_bound_anew_is_told(tmp_path):
    """`self.hidden = ...` in an object of the loop's."""
    loop = Holder()
    loop.limit = torch.zeros(2)

    def body(run, step):
        loop.limit = loop.limit + 1

    assert [("rebound", "hidden")] == walk(tmp_path, {"hidden": loop.limit}, body)


def test_values_in_use_and_values_given_inline_are_silent(tmp_path):
    """In-place changes, constants, what is read from run.vars; and what a view, a member or a base still reaches.

    The names themselves are gone before the run, or in its loop.
    """
    for gone in ("before", "in the loop"):
        base, weights, queue = np.zeros(4), torch.ones(3), deque()
        array, buffer, rows, items, shown = np.zeros(4), torch.zeros(4), [np.zeros(2), np.zeros(2)], [1], base[:2]
        row, part, view = rows[0], buffer[:2], array[:2]
        state = {"array": array, "weights": weights, "buffer": buffer, "rows": rows, "shown": shown}
        first = {"items": items, "queue": queue, "best": {}}

        def forget():
            nonlocal array, buffer, rows, items, shown
            nothing: Any = None
            array = buffer = rows = items = shown = nothing

        def body(run, step, kept=(row, part, view, base, weights, queue)):
            if step == 0:
                forget()
            row, part, view, base, weights, queue = kept
            for each in (row, view, base):
                each[:] += 1
            part.add_(1)
            run.vars.items.append(step)
            queue.append(float(weights.sum()))

        if gone == "before":
            forget()
        with asked_of(gone):
            assert [] == walk(tmp_path / gone, state, body, vars=first)


def test_a_function_that_made_the_objects_and_returned_rebinds_nothing(tmp_path):
    """Its names are gone; that is no mistake."""

    def entered():
        stats = [1]
        run = Run(tmp_path, {"stats": stats}, vars={"more": stats})
        run.__enter__()
        return run

    run = entered()
    for _ in run.steps(4):
        pass
    run.__exit__(None, None, None)
    assert [] == told(tmp_path)


def test_a_generator_that_the_loop_no_longer_uses_is_told(tmp_path):
    """`env.reset(seed=)` makes a new one; the old one is tracked. Not where somebody draws from its bits alone."""
    of_torch = lambda seed: torch.Generator().manual_seed(seed)
    makers: list[Any] = [np.random.default_rng, np.random.RandomState, random.Random, of_torch]
    env = Holder()
    for number, make in enumerate(makers):
        env.limit = make(0)

        def body(run, step, make=make):
            if step == 1:
                env.limit = make(1)

        with asked_of(make):
            assert [("generator_replaced", "rng")] == walk(tmp_path / str(number), {"rng": env.limit}, body)
    rng = np.random.default_rng(0)
    bits, state = rng.bit_generator, {"rng": rng}
    del rng
    assert [] == walk(tmp_path / "bits", state, lambda run, step: bits.random_raw())


def learn(model, optimizer):
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()


def sgd(model):
    return torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)


def test_an_optimizer_of_another_model_is_told(tmp_path):
    """The model was copied, or made anew, after the run got the first one."""
    tracked = nn.Linear(2, 2)
    model = copy.deepcopy(tracked)
    optimizer = sgd(model)
    state = {"model": tracked, "optimizer": optimizer}
    assert [("untracked_parameters", "optimizer")] == walk(tmp_path, state, lambda run, step: learn(model, optimizer))


class Answering:
    """A wrapper that has an answer to every name, as some around environments."""

    value = 0

    def __getattr__(self, name):
        return lambda *words: None

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


class Raising(Answering):
    """A wrapper whose inner object fails in its own way when it lacks an attribute."""

    def __getattr__(self, name):
        raise RuntimeError(name)


def test_no_wrapper_is_taken_for_a_random_generator(tmp_path):
    for kind in (Answering, Raising):
        for cut in (1, None):
            wrapper = kind()

            def body(run, step, wrapper=wrapper):
                wrapper.value += 1 + step

            run_to(tmp_path / kind.__name__, {"wrapper": wrapper, "all": [wrapper]}, 3, body, cut=cut)
        assert (kind, 6) == (kind, wrapper.value)


class Silent:
    """An object that has None under every name that it does not know, as some configurations."""

    def __getattr__(self, name):
        return None


def test_an_object_without_the_two_methods_is_refused_by_name(tmp_path):
    with pytest.raises(UsageError, match=r"Silent, without state_dict\(\) and load_state_dict\(\)"):
        Run(tmp_path, {"settings": Silent()})


def ema():
    model = nn.Linear(2, 2)
    return {"model": model, "ema": copy.deepcopy(model), "optimizer": sgd(model)}, model


def target():
    model = nn.Linear(2, 2)
    nets = {"q": model, "target": copy.deepcopy(model).requires_grad_(False)}
    return {"nets": nets, "optimizer": sgd(model)}, model


def frozen():
    backbone, head = nn.Linear(2, 2).requires_grad_(False), nn.Linear(2, 2)
    model = nn.Sequential(backbone, head)
    return {"backbone": backbone, "head": head, "optimizer": sgd(head)}, model


def gan():
    one, other = nn.Linear(2, 2), nn.Linear(2, 2)
    return {"g": one, "d": other, "optimizer": sgd(one), "other": sgd(other)}, one


def wrapped():
    model = nn.Linear(2, 2)

    class Trainer:
        def state_dict(self):
            return {"model": model.state_dict()}

        def load_state_dict(self, state):
            model.load_state_dict(state["model"])

    return {"trainer": Trainer(), "teacher": copy.deepcopy(model), "optimizer": sgd(model)}, model


def moved():
    model = nn.Linear(2, 2)
    optimizer = sgd(model)
    return {"model": nn.DataParallel(model.to("cpu")), "optimizer": optimizer}, model


def in_vars():
    weight = nn.Linear(2, 2)
    return {"other": nn.Linear(2, 2), "optimizer": sgd(weight), "vars": {"weights": deque(weight.parameters())}}, weight


def test_models_that_no_optimizer_steps_are_silent(tmp_path):
    """An average, a target network, a frozen backbone, two of each, a model inside another object or in run.vars, a
    wrapper.
    """
    for make in (ema, target, frozen, gan, wrapped, moved, in_vars):
        state, model = make()
        options = {"vars": state.pop("vars")} if "vars" in state else {}
        with asked_of(make.__name__):
            path = tmp_path / make.__name__
            step = lambda *_, model=model, state=state: learn(model, state["optimizer"])
            assert [] == walk(path, state, step, **options)


@pytest.mark.parametrize("which", [0, 1])
def test_no_graph_made_before_a_restore_goes_backward_over_new_bytes(tmp_path, which):
    """Of two parameters in one memory, which count their versions apart, each."""

    def tied():
        first = nn.Parameter(torch.ones(2))
        return {"a": first, "b": nn.Parameter(first.data)}

    run_to(tmp_path / "run", state := tied(), 1, lambda run, step: state["a"].data.mul_(3))
    state = tied()
    loss = state["ab"[which]].square().sum()
    with Run(tmp_path / "run", state, every=Every(steps=1)), pytest.raises(RuntimeError, match="inplace operation"):
        loss.backward()
    assert [3, 3] == state["b"].tolist()


# In place: interrupted runs equal those that were not ----------------------------------------------------------------


def case(state, body, variables=None):
    """Objects, one step of a loop that uses them by its own names, and variables."""
    return state, body, variables or {}


def hidden_state():
    """A recurrent net whose hidden state is a tensor that the loop writes in place."""
    cell = nn.RNNCell(2, 3)
    hidden, optimizer = torch.zeros(1, 3), torch.optim.Adam(cell.parameters(), 0.01)

    def body(run, step):
        new = cell(torch.randn(1, 2), hidden.detach())
        optimizer.zero_grad()
        new.sum().backward()
        optimizer.step()
        hidden.copy_(new.detach())

    return case({"cell": cell, "hidden": hidden, "optimizer": optimizer}, body)


def hidden_in_a_dict():
    """An LSTM whose two tensors, graph and all, are put into a tracked mapping."""
    cell = nn.LSTMCell(2, 3)
    memory = {}

    def body(run, step):
        before = tuple(each.detach() for each in memory["hc"]) if memory else None
        memory["hc"] = cell(torch.randn(1, 2), before)

    return case({"cell": cell, "memory": memory}, body)


def replay_buffer():
    """Arrays filled in a ring, by an object without state_dict()."""

    class Buffer:
        def __init__(self):
            self.observations = np.zeros((5, 2), "f4")
            self.rewards = torch.zeros(5)
            self.pos, self.full, self.name = 0, False, "x"

        def add(self, number):
            self.observations[self.pos] = np.random.normal(size=2)
            self.rewards[self.pos] = number
            self.pos = (self.pos + 1) % 5
            self.full = self.full or self.pos == 0

    buffer = Buffer()
    rows = buffer.observations  # the loop may hold an alias
    fields = Fields(buffer, "observations", "rewards", "pos", "full")

    def body(run, step):
        buffer.add(step)
        run.log(total=float(rows.sum()) + float(buffer.rewards.sum()) + buffer.pos + buffer.full)

    return case({"buffer": fields}, body)


def queue_in_vars():
    """A deque that the loop uses by its own name, and one that only run.vars has."""
    queue, counts = deque(maxlen=3), {"steps": 0}

    def body(run, step):
        queue.append(random.random())
        counts["steps"] += 1
        run.vars.best.append(max(queue))
        run.log(mean=sum(queue) / len(queue), steps=counts["steps"])

    return case({}, body, {"queue": queue, "counts": counts, "best": []})


def optimizers_in_a_list():
    """Two models in a mapping, two optimizers in a list, and a schedule of one of them."""
    nets = {"g": nn.Linear(2, 2), "d": nn.Linear(2, 1)}
    optimizers = [torch.optim.Adam(each.parameters(), 0.01) for each in nets.values()]
    schedule = torch.optim.lr_scheduler.StepLR(optimizers[0], 2, 0.5)

    def body(run, step):
        for optimizer in optimizers:
            optimizer.zero_grad()
            nets["d"](nets["g"](torch.randn(3, 2))).square().mean().backward()
            optimizer.step()
        schedule.step()

    return case({"nets": nets, "optimizers": optimizers, "schedule": schedule}, body)


def generators():
    """NumPy's old and new generators, Python's and torch's: named, and in a list."""
    old, new, mine, own = np.random.RandomState(1), np.random.default_rng(2), random.Random(3), torch.Generator()

    def body(run, step):
        drawn = old.rand() + new.random() + mine.random() + torch.rand(1, generator=own).item()
        run.log(drawn=drawn)

    return case({"old": old, "others": [new, mine, own]}, body)


def shared():
    """One list under two names, and in a third place."""
    seen = []

    def body(run, step):
        seen.append(step)
        run.log(length=len(seen))

    return case({"seen": seen, "again": seen, "inside": {"seen": seen}}, body)


def scattered():
    """Arrays that are views, of another byte order, in Fortran's order, of records; a set and bytes."""
    base = np.zeros((4, 4))
    part, big, columns = base[1:3, ::2], np.zeros(3, ">i4"), np.zeros((2, 3), order="F")
    records = np.zeros(2, [("a", "i2"), ("b", "f8")])
    seen, text = set(), bytearray(b"0000")

    def body(run, step):
        part[step % 2] += random.random()
        big[step % 3] += step
        columns[:, step % 3] = step
        records["b"][step % 2] = random.random()
        seen.add(step)
        text[step % 4] = step
        run.log(total=float(base.sum()) + float(big.sum()) + float(records["b"].sum()) + len(seen))

    return case({"part": part, "big": big, "columns": columns, "records": records, "seen": seen, "text": text}, body)


CASES = [
    hidden_state, hidden_in_a_dict, replay_buffer, queue_in_vars, optimizers_in_a_list, generators, shared, scattered,
]  # fmt: skip
TOTAL = 7


def outcome(path, *, cut=None, spoil=lambda variables: None):
    """Bits of the state of all cases after `TOTAL` steps, and the metrics."""
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    state, bodies, variables = {}, [], {}
    for make in CASES:
        objects, body, first = make()
        state |= {f"{make.__name__}-{name}": value for name, value in objects.items()}
        bodies.append(body)
        variables |= first
    try:
        with Run(path, state, vars=variables, every=Every(steps=1), background=False) as run:
            spoil(variables)
            for step in run.steps(TOTAL):
                for body in bodies:
                    body(run, step)
                if step == cut:
                    raise Cut
            flat = tree.flatten(capture_objects({"state": state, "vars": run.vars.state_dict()}, OBJECTS))
            assert state["shared-seen"] is state["shared-again"] is state["shared-inside"]["seen"]
    except Cut:
        return None
    assert all(run.vars.state_dict()[name] is value for name, value in variables.items() if name != "best")
    leaves = {key: b"".join(map(bytes, byte_pieces(block.data))) for key, block in flat.leaves.items()}
    return flat.tree, leaves, [line["values"] for line in run.metrics()]


def test_an_interrupted_run_ends_as_one_that_was_not(tmp_path):
    """Whatever the loop's own names hold: the same bits and metrics, cut in the first step, and twice later on."""
    expected = outcome(tmp_path / "whole")
    for number, cuts in enumerate([(0,), (2, 5)]):
        for cut in cuts:
            assert outcome(tmp_path / str(number), cut=cut) is None
        assert expected == outcome(tmp_path / str(number))


def test_what_code_before_the_loop_changes_is_put_back_in_place(tmp_path):
    """As for models: the restored state counts, in the objects that the loop uses."""

    def spoil(variables):
        variables["queue"].clear()
        variables["counts"]["steps"] = 99

    expected = outcome(tmp_path / "whole")
    assert outcome(tmp_path / "cut", cut=3) is None
    assert expected == outcome(tmp_path / "cut", spoil=spoil)
    assert events(tmp_path / "cut", "put_back")


def test_what_a_resume_has_checked_is_digested_again_only_when_the_loop_begins(tmp_path, monkeypatch):
    """A restore compares all bytes with the digests of the checkpoint: it need not read big leaves to know theirs."""
    state = {"big": torch.ones(1 << 18), "array": np.ones(1 << 17), "small": torch.ones(10)}
    run_to(tmp_path, copy.deepcopy(state), 1, idle)
    sizes, real = [], format.digest

    def digest(data, *kind):
        sizes.append(len(data) if isinstance(data, bytes | bytearray) else data.nbytes)
        return real(data, *kind)

    monkeypatch.setattr(format, "digest", digest)
    with Run(tmp_path, state) as run:
        assert [2, 2] == [sizes.count(1 << 20), sizes.count(40)]  # a small leaf, once by the restore and once after it
        counts = [sizes.count(1 << 20) for _ in run.steps(2)]
        assert [4] == counts
    assert [] == events(tmp_path, "put_back")


class Rounded:
    """An object whose load_state_dict stores other bytes than it is given."""

    def __init__(self):
        self.numbers = torch.zeros(1 << 16)

    def state_dict(self):
        return {"numbers": self.numbers}

    def load_state_dict(self, state):
        self.numbers = state["numbers"].round()


def test_what_a_load_state_dict_makes_of_its_state_is_no_change_by_the_script(tmp_path, capsys):
    """It counts as restored; only what the script changes after that is put back, and told."""
    for spoil in (False, True):
        path, rounded = tmp_path / str(spoil), Rounded()
        run_to(path, {"it": rounded}, 1, lambda run, step, rounded=rounded: rounded.numbers.add_(1.25))
        capsys.readouterr()
        again = Rounded()
        with Run(path, {"it": again}) as run:
            assert again.numbers.unique().tolist() == [1.0]
            again.numbers += spoil
            for _ in run.steps(2):
                assert again.numbers.unique().tolist() == [1.0]
        told = "they are put back as saved: it/numbers" in capsys.readouterr().err
        assert told == spoil == bool(events(path, "put_back"))


def test_what_a_script_sets_to_the_checkpoints_bytes_is_put_back_too(tmp_path):
    """What the object's load_state_dict made of them is what counts; it is called again only for this."""
    rounded = Rounded()
    run_to(tmp_path, {"it": rounded}, 1, lambda run, step: rounded.numbers.add_(1.25))
    again, loads = Rounded(), []
    again.load_state_dict = lambda state: loads.append(1) or Rounded.load_state_dict(again, state)
    with Run(tmp_path, {"it": again}) as run:
        assert [1] == loads
        again.numbers = rounded.numbers.clone()
        for _ in run.steps(2):
            assert again.numbers.unique().tolist() == [1.0]
            assert [1, 1] == loads
    loads.clear()
    anew = Rounded()
    anew.load_state_dict = lambda state: loads.append(1) or Rounded.load_state_dict(anew, state)
    with Run(tmp_path, {"it": anew}) as run:
        for _ in run.steps(3):
            assert [1] == loads


# What does not fit ---------------------------------------------------------------------------------------------------


def misfits():
    """What was saved, what is tracked here, and what is said of it."""
    made = lambda width=2: nn.Linear(2, width)
    queue, there = deque([1, 2, 3]), "in the checkpoint"
    yield np.zeros(2), np.zeros(3), f"a: shape (2,) {there}, (3,) here"
    yield np.zeros(2), np.zeros(2, "f4"), f"a: dtype float64 {there}, float32 here"
    yield torch.zeros(2), torch.zeros(2, 1), f"a: shape (2,) {there}, (2, 1) here"
    yield torch.zeros(2), np.zeros(2, "f4"), f"a: dtype torch leaf {there}, float32 here"
    yield [1], {}, f"a: a list {there}, a dict here"
    yield [1], np.zeros(1), f"a: a list {there}, a ndarray here"
    yield queue, deque(maxlen=2), f"a: 3 items {there}, a deque with maxlen=2 here"
    yield [made()], [made(3)], f"a/0/weight: shape (2, 2) {there}, (3, 2) here"
    yield [made()], [made(), made()], "a/1: not in the checkpoint"
    yield [made(), [1]], [made()], f"a/1: {there}, but not tracked here"
    yield None, [1], "a: not in the checkpoint (it was None or not tracked when that was saved)"
    yield [1], None, f"a: {there}, but None here: give the object, or begin a new run with start_from="
    count, numbers = Fields(Holder(), "count"), Fields(Holder(), "numbers")
    yield count, numbers, "a/numbers: not in the checkpoint"
    yield count, numbers, f"a/count: {there}, but not named here"


def test_what_does_not_fit_is_a_mismatch_before_anything_is_overwritten(tmp_path):
    """It names the place, what the checkpoint has and what is here. None fits None: nothing is saved of it."""
    canary, same = [0], []
    cases = [({"a": before}, {"a": after}, line) for before, after, line in misfits()]
    cases += [({"a": [1], "b": [2]}, {"a": same, "b": same}, "b: one object with another here, two in the checkpoint")]
    for number, (before, after, line) in enumerate(cases):
        with asked_of(line):
            path = tmp_path / str(number)
            run_to(path, {"canary": [1], "none": None, **before}, 1, lambda run, step: None)
            with pytest.raises(Mismatch) as raised:
                Run(path, {"canary": canary, "none": None, **after}).__enter__()
            assert line in str(raised.value)
            assert [0] == canary
    run_to(tmp_path / "vars", {"none": None}, 1, lambda run, step: None, vars={"queue": deque([1, 2, 3], maxlen=3)})
    with pytest.raises(Mismatch, match=r"run\.vars\.queue: 3 items in the checkpoint, a deque with maxlen=2 here"):
        Run(tmp_path / "vars", {"none": None}, vars={"queue": deque(maxlen=2)}).__enter__()
    with Run(tmp_path / "vars", {"none": None}) as run:
        assert 1 == run.step


def refusals():
    """The state, and what is said of it."""
    optimizer, around, deep = sgd(nn.Linear(1, 1)), [], []
    around += [around, around]
    for _ in range(5000):
        deep = [deep]
    yield np.broadcast_to(np.zeros(1), 3), r"read-only: numpy.array\(it\)"
    yield torch.zeros(1).expand(3), r"several of its items are one in memory: clone\(\)"
    with_graph = r"it has a graph: detach\(\) it; or write Run\(..., vars=dict\(a=...\)\)"
    yield torch.zeros(1, requires_grad=True) * 2, with_graph
    yield torch.empty(2, device="meta"), "meta device"
    yield np.array([object()]), "not plain bytes"
    yield around, r'state\["a"\].*contains itself'
    yield deep, "sys.setrecursionlimit|containers deep"
    copied = r"is a dict that a state_dict\(\) has returned, a copy: give the optimizer"
    for each in (optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2), torch.amp.GradScaler("cpu")):
        yield each.state_dict(), copied


def test_what_cannot_be_filled_is_refused_with_what_to_write(tmp_path):
    """When the run is made, or when it begins: a copy would never change, and run.vars takes values, not objects."""
    cases = [({"state": {"a": value}}, words) for value, words in refusals()]
    cases += [({"vars": {"a": nn.Linear(1, 1)}}, r"a.*save its state_dict\(\)")]
    cases += [({"vars": {"a": torch.eye(2).to_sparse()}}, "sparse")]
    for options, words in cases:
        with asked_of(words), pytest.raises(UsageError, match=words):
            Run(tmp_path, **{"state": {}, **options}).__enter__()


# Fields ----------------------------------------------------------------------------------------------------------


class Holder:
    __slots__ = ("count", "limit", "numbers")
    limit: Any

    def __init__(self):
        self.count, self.numbers = 0, [1]

    @property
    def double(self):
        return 2 * self.count

    @property
    def half(self):
        return self.count / 2

    @half.setter
    def half(self, value):
        self.count = value * 2

    def method(self):
        pass


def test_fields_that_cannot_be_tracked_are_refused_when_they_are_named():
    """Not at the first restore."""
    for holder, names, words in [
        (Holder(), (), "name the attributes that change"),
        (Holder(), ("limit",), "no such attribute"),
        (Holder(), ("double",), "a property that cannot be set"),
        (Holder(), ("method",), "it is a method"),
        (Holder(), (3,), "named by strings"),
        ({"x": 1}, ("y",), "no such name"),
        ({"x": 1}, (3,), "named by strings"),
    ]:
        with asked_of(names), pytest.raises(UsageError, match=words):
            Fields(holder, *names)


def test_fields_are_filled_or_set(tmp_path):
    """Slots and properties with a setter too; a list stays the same object. It is a stateful object by itself as
    well.
    """
    holder = Holder()

    def body(run, step):
        holder.count += 1
        holder.numbers.append(step)

    run_to(tmp_path, {"holder": Fields(holder, "half", "numbers")}, 3, body)
    fresh = Holder()
    numbers = fresh.numbers
    with Run(tmp_path, {"holder": Fields(fresh, "half", "numbers")}):
        assert (3, [1, 0, 1, 2]) == (fresh.count, fresh.numbers)
        assert fresh.numbers is numbers
    other = Fields(Holder(), "count", "numbers")
    other.load_state_dict(Fields(fresh, "count", "numbers").state_dict())
    assert (3, [1, 0, 1, 2]) == (other.target.count, other.target.numbers)
    with pytest.raises(UsageError, match="count: not in the checkpoint"):
        other.load_state_dict({"numbers": []})


def test_fields_of_a_dict_are_its_values(tmp_path):
    """`Fields(globals(), ...)` restores variables of a script that its loop binds anew; other names are left alone."""

    def script(steps):
        names = {"x": torch.zeros(2), "best": None, "other": steps}
        with Run(tmp_path, {"loop": Fields(names, "x", "best")}) as run:
            begun = dict(names)
            for step in run.steps(steps):
                names["x"], names["best"] = names["x"] + 1, (step, "best")
        return begun

    script(3)
    begun = script(5)
    assert ([3, 3], (2, "best"), 5) == (begun["x"].tolist(), begun["best"], begun["other"])


def test_a_tracked_optimizer_in_a_container_takes_part_in_everything(tmp_path):
    """Its model is known to the probe and the checkpoint's document."""
    nets, optimizers = {"a": nn.Linear(2, 2)}, []
    optimizers.append(sgd(nets["a"]))
    with Run(tmp_path, {"nets": nets, "optimizers": optimizers}, probe=lambda: nets["a"].training) as run:
        for _ in run.steps(2):
            learn(nets["a"], optimizers[0])
    assert "nets/a" in run.store()[2].document["model"]
    assert nets["a"].training


def test_an_object_in_a_container_that_is_none_on_resume_is_a_mismatch(tmp_path):
    """A generator that the script has not made yet is not replaced by the numbers that stand for it in the
    checkpoint.
    """
    env = Holder()
    env.limit = np.random.default_rng(0)
    run_to(tmp_path, {"env": Fields(env, "limit")}, 1, lambda run, step: None)
    fresh = Holder()
    fresh.limit = None
    with pytest.raises(Mismatch, match="env/limit: an object with a state of its own in the checkpoint, none here"):
        Run(tmp_path, {"env": Fields(fresh, "limit")}).__enter__()
    assert fresh.limit is None


def test_a_new_run_starts_from_the_weights_of_models_in_containers(tmp_path):
    """As from those at the top; one that the checkpoint lacks is an error."""
    nets: dict[str, Any] = {"g": nn.Linear(2, 2), "d": [nn.Linear(2, 1)]}
    run_to(tmp_path / "old", {"nets": nets}, 1, lambda run, step: None)
    fresh: dict[str, Any] = {"g": nn.Linear(2, 2), "d": [nn.Linear(2, 1)]}
    with Run(tmp_path / "new", {"nets": fresh}, start_from=tmp_path / "old"):
        assert torch.equal(nets["g"].weight, fresh["g"].weight)
        assert torch.equal(nets["d"][0].weight, fresh["d"][0].weight)
    with pytest.raises(NotFound, match="holds no 'nets/e'"):
        Run(tmp_path / "odd", {"nets": {"e": nn.Linear(2, 2)}}, start_from=tmp_path / "old").__enter__()


def test_a_name_of_a_module_may_be_bound_anew_by_another_cell(tmp_path, capsys):
    """A notebook's cells run one after the other in one module; so do the parts of a script."""
    names = {"__name__": "__main__", "torch": torch, "Run": Run, "path": tmp_path}
    exec(
        "hidden = torch.zeros(2); kept = torch.ones(2)\n"
        "run = Run(path, dict(hidden=hidden, kept=kept)); run.__enter__()",
        names,
    )
    exec("for _ in run.steps(4): hidden = hidden + kept", names)
    exec("run.__exit__(None, None, None)", names)
    assert [("rebound", "hidden")] == told(tmp_path)


def test_the_first_value_of_a_variable_is_not_kept_alive(tmp_path):
    """When run.vars has another value, memory is given back."""
    first = np.zeros(3)
    alive = weakref.ref(first)
    with Run(tmp_path, {}, vars={"first": first}) as run:
        del first
        for _ in run.steps(4):
            run.vars.first = np.ones(3)
        assert alive() is None


def test_a_value_that_only_the_run_ever_held_is_told(tmp_path):
    """The loop cannot change it. One in a mapping that the script keeps, a model's own tensors, members in use:
    silent.
    """
    toy, model, net, kept = Average(), nn.Linear(1, 1), nn.Linear(1, 1), {"count": [0]}
    with Run(
        tmp_path / "a", {"toy": toy.state_dict(), "model": model.state_dict(), "nets": [net], "n": {"n": 1}}
    ) as run:
        for _ in run.steps(2):
            pass
    assert [("rebound", "n")] == told(tmp_path / "a")
    with Run(tmp_path / "b", kept) as run:
        for _ in run.steps(2):
            kept["count"][0] += 1
    assert [] == told(tmp_path / "b")


def test_each_line_that_is_told_makes_the_resume_exact(tmp_path):
    """Kept in run.vars, as the line says, and not when rebound. `hidden_state` above is the same, changed in place."""

    def end(path, kept, cut=None):
        torch.manual_seed(1)
        cell, hidden = nn.RNNCell(2, 2), torch.zeros(1, 2)

        def body(run, step):
            nonlocal hidden
            hidden = cell(torch.randn(1, 2), (run.vars.hidden if kept else hidden).detach())
            run.vars.hidden = hidden

        state = {"cell": cell, "hidden": None if kept else hidden}
        run_to(path, state, 5, body, cut=cut, vars={"hidden": torch.zeros(1, 2)})
        return hidden.tolist()

    for kept in (True, False):
        expected = end(tmp_path / f"whole {kept}", kept)
        end(tmp_path / f"cut {kept}", kept, cut=2)
        assert (kept, kept) == (kept, end(tmp_path / f"cut {kept}", kept) == expected)
