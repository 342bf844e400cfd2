"""State as people have it: containers, arrays, tensors and attributes, restored into the live objects by a run."""

from __future__ import annotations

import copy
import os
import random
import weakref
from collections import deque

import pytest

from holdfast import Every, Fields, Run
from holdfast.errors import Mismatch, NotFound, UsageError
from holdfast.pages import pieces
from holdfast.run.objects import OBJECTS
from holdfast.state import tree
from holdfast.state.captured import captured
from toy import events

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")

from torch import nn  # noqa: E402


@pytest.fixture(autouse=True)
def _unsynced(monkeypatch):
    """No power fails here, and synchronising is most of a small save's time."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


class Cut(BaseException):
    """The process is gone, as far as a run can tell within one process."""


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


# A module's state_dict() inside other state -----------------------------------------------------------------------


class Average:
    """An average of a model, whose state_dict() nests the module's own."""

    def __init__(self, model):
        self.module = copy.deepcopy(model)

    def state_dict(self):
        return {"module": self.module.state_dict()}

    def load_state_dict(self, state):
        self.module.load_state_dict(state["module"])


def test_a_copy_of_a_modules_state_dict_in_run_vars_is_restored(tmp_path):
    """Best weights: `run.vars.best = copy.deepcopy(model.state_dict())` holds real tensors after a restart."""

    def body(run, step):
        model.weight.data += 1
        run.vars.best = copy.deepcopy(model.state_dict())

    model = nn.Linear(2, 2)
    run_to(tmp_path, {"model": model}, 4, body, cut=2)
    model = nn.Linear(2, 2)
    with Run(tmp_path, {"model": model}) as run:
        assert torch.equal(model.weight, run.vars.best["weight"])
        model.load_state_dict(run.vars.best)


def test_a_stateful_object_may_nest_a_modules_state_dict(tmp_path):
    """An average keeps `{"module": module.state_dict()}`; it gets tensors, not handles of them."""
    average = Average(nn.Linear(2, 2))
    run_to(tmp_path, {"average": average}, 2, lambda run, step: average.module.weight.data.add_(1))
    fresh = Average(nn.Linear(2, 2))
    with Run(tmp_path, {"average": fresh}):
        assert torch.equal(average.module.weight, fresh.module.weight)


# What cannot be saved ----------------------------------------------------------------------------------------------


def test_what_cannot_be_saved_is_refused_at_the_first_safe_point(tmp_path):
    """Not by the first save, hours later: the state and run.vars are taken apart after the first step."""

    class Growing:
        def __init__(self):
            self.state = {}

        def state_dict(self):
            return self.state

        def load_state_dict(self, state):
            self.state = state

    growing, steps = Growing(), []

    def body(run, step):
        steps.append(step)
        growing.state["odd"] = lambda: None

    with (
        pytest.raises(UsageError, match=r'state\["growing"\]\["odd"\]'),
        Run(tmp_path, {"growing": growing}, every=None) as run,
    ):
        for step in run.steps(5):
            body(run, step)
    assert [0] == steps


def test_a_variable_that_comes_later_is_looked_at_when_it_is_new(tmp_path):
    """At the next safe point; the message names it."""
    steps = []
    with pytest.raises(UsageError, match=r'\["vars"\]\["odd"\]'), Run(tmp_path, {}, every=None) as run:
        for step in run.steps(5):
            steps.append(step)
            if step == 2:
                run.vars.odd = lambda: None
    assert [0, 1, 2] == steps


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


@pytest.mark.parametrize("kind", ["list", "dict", "array", "deque", "tensor"])
def test_a_rebound_value_is_told_in_state_and_in_vars(tmp_path, kind):
    """Whatever its type. What the loop goes on using stays silent."""
    make = {
        "list": lambda: [1],
        "dict": lambda: {"a": 1},
        "array": lambda: np.zeros(2),
        "deque": lambda: deque([1]),
        "tensor": lambda: torch.zeros(2),
    }[kind]
    value, other, constant = make(), make(), make()
    with Run(tmp_path, {"value": value, "constant": constant}, vars={"other": other}) as run:
        for _ in run.steps(6):
            value, other = make(), make()
    assert {("rebound", "value"), ("rebound", "other")} == set(told(tmp_path))
    assert 2 == len(told(tmp_path))
    assert constant is not None


def test_an_attribute_that_is_bound_anew_is_told(tmp_path):
    """`self.hidden = ...` in a class of the loop's."""

    class Loop:
        hidden = torch.zeros(2)

        def __init__(self):
            self.hidden = torch.zeros(2)

    loop = Loop()

    def body(run, step):
        loop.hidden = loop.hidden + 1

    assert [("rebound", "hidden")] == walk(tmp_path, {"hidden": loop.hidden}, body)


def test_values_in_use_and_values_given_inline_are_silent(tmp_path):
    """In-place changes, constants, views, members, what is read from run.vars, and what nobody but the run ever held."""
    array, weights, buffer = np.zeros(4), torch.ones(3), torch.zeros(4)
    rows, items, queue = [np.zeros(2), np.zeros(2)], [1], deque()
    row, part, view = rows[0], buffer[:2], array[:2]
    state = {"array": array, "weights": weights, "buffer": buffer, "rows": rows}
    first = {"items": items, "queue": queue, "best": {}}
    del array, buffer, rows, items

    def body(run, step):
        row[:] += 1
        part.add_(1)
        view[:] += 1
        run.vars.items.append(step)
        queue.append(float(weights.sum()))

    assert [] == walk(tmp_path, state, body, vars=first)


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
    """`env.reset(seed=)` makes a new one; the old one is tracked."""

    class Env:
        def reset(self, seed):
            self.np_random = np.random.default_rng(seed)

    for number, (make, draws) in enumerate(
        [
            (np.random.default_rng, True),
            (np.random.RandomState, True),
            (random.Random, True),
            (lambda seed: torch.Generator().manual_seed(seed), True),
            (np.random.default_rng, False),
        ]
    ):
        env = Env()
        env.np_random = make(0)

        def body(run, step, env=env, make=make, draws=draws):
            if step == 1 and draws:
                env.np_random = make(1)

        expected = [("generator_replaced", "rng")] if draws else []
        assert expected == walk(tmp_path / str(number), {"rng": env.np_random}, body)


def test_a_generator_whose_bits_are_still_drawn_from_is_silent(tmp_path):
    """Somebody may hold the bit generator alone."""
    rng = np.random.default_rng(0)
    bits = rng.bit_generator

    def body(run, step):
        bits.random_raw()

    state = {"rng": rng}
    del rng
    assert [] == walk(tmp_path, state, body)


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


def test_parameters_in_the_runs_variables_are_tracked(tmp_path):
    """They are saved and restored with the run, in whichever container they stand."""
    for number, hold in enumerate((lambda weight: weight, lambda weight: deque([weight]))):
        weight = torch.zeros(2, 2, requires_grad=True)
        optimizer = torch.optim.SGD([weight], 0.1)
        other = nn.Linear(2, 2, bias=False)

        def body(run, step, weight=weight, optimizer=optimizer):
            weight.sum().backward()
            optimizer.step()

        state = {"other": other, "optimizer": optimizer}
        assert [] == walk(tmp_path / str(number), state, body, vars={"weights": hold(weight)})


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


@pytest.mark.parametrize("kind", [Answering, Raising])
def test_no_wrapper_is_taken_for_a_random_generator(tmp_path, kind):
    for cut in (1, None):
        wrapper = kind()

        def body(run, step, wrapper=wrapper):
            wrapper.value += 1 + step

        run_to(tmp_path, {"wrapper": wrapper, "all": [wrapper]}, 3, body, cut=cut)
    assert 6 == wrapper.value


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


@pytest.mark.parametrize("make", [ema, target, frozen, gan, wrapped, moved])
def test_models_that_no_optimizer_steps_are_silent(tmp_path, make):
    """An average, a target network, a frozen backbone, two of each, a model inside another object, a wrapper."""
    state, model = make()
    assert [] == walk(tmp_path, state, lambda run, step: learn(model, state["optimizer"]))


def test_a_value_that_can_still_be_reached_is_silent_when_its_name_is_gone(tmp_path):
    """By a view of its memory, by a member, or by the array that it shows."""
    base = np.zeros(4)
    array, buffer, rows, shown = np.zeros(4), torch.zeros(4), [np.zeros(2), np.zeros(2)], base[:2]
    view, part, row = array[:2], buffer[:2], rows[0]
    state = {"array": array, "buffer": buffer, "rows": rows, "shown": shown}
    with Run(tmp_path, state, every=Every(steps=1)) as run:
        for step in run.steps(6):
            if step == 0:
                array = buffer = rows = shown = None
            view[:] += 1
            part.add_(1)
            row[:] += 1
            base[:] += 1
    assert [] == told(tmp_path)
    assert array is buffer is rows is shown is None


# In place: interrupted runs equal those that were not ----------------------------------------------------------------


class Case:
    """Objects, one step of a loop that uses them by its own names, and what is compared at the end."""

    def __init__(self, state, body, variables=None):
        self.state, self.body, self.variables = state, body, variables or {}


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

    return Case({"cell": cell, "hidden": hidden, "optimizer": optimizer}, body)


def hidden_in_a_dict():
    """An LSTM whose two tensors, graph and all, are put into a tracked mapping."""
    cell = nn.LSTMCell(2, 3)
    memory = {}

    def body(run, step):
        before = tuple(each.detach() for each in memory["hc"]) if memory else None
        memory["hc"] = cell(torch.randn(1, 2), before)

    return Case({"cell": cell, "memory": memory}, body)


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

    return Case({"buffer": fields}, body)


def queue_in_vars():
    """A deque that the loop uses by its own name, and one that only run.vars has."""
    queue, counts = deque(maxlen=3), {"steps": 0}

    def body(run, step):
        queue.append(random.random())
        counts["steps"] += 1
        run.vars.best.append(max(queue))
        run.log(mean=sum(queue) / len(queue), steps=counts["steps"])

    return Case({}, body, {"queue": queue, "counts": counts, "best": []})


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

    return Case({"nets": nets, "optimizers": optimizers, "schedule": schedule}, body)


def generators():
    """NumPy's old and new generators, Python's and torch's: named, and in a list."""
    old, new, mine, own = np.random.RandomState(1), np.random.default_rng(2), random.Random(3), torch.Generator()

    def body(run, step):
        drawn = old.rand() + new.random() + mine.random() + torch.rand(1, generator=own).item()
        run.log(drawn=drawn)

    return Case({"old": old, "others": [new, mine, own]}, body)


def shared():
    """One list under two names, and in a third place."""
    seen = []

    def body(run, step):
        seen.append(step)
        run.log(length=len(seen))

    case = Case({"seen": seen, "again": seen, "inside": {"seen": seen}}, body)
    case.same = lambda: case.state["seen"] is case.state["again"] is case.state["inside"]["seen"] is seen
    return case


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

    return Case({"part": part, "big": big, "columns": columns, "records": records, "seen": seen, "text": text}, body)


CASES = [
    hidden_state, hidden_in_a_dict, replay_buffer, queue_in_vars, optimizers_in_a_list, generators, shared, scattered,
]  # fmt: skip
TOTAL = 7


def outcome(path, make, *, cut=None, spoil=lambda case: None):
    """Bits of the state after `TOTAL` steps, and the metrics."""
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    case = make()
    try:
        with Run(path, case.state, vars=case.variables, every=Every(steps=1), background=False) as run:
            spoil(case)
            for step in run.steps(TOTAL):
                case.body(run, step)
                if step == cut:
                    raise Cut
            flat = tree.flatten(captured({"state": case.state, "vars": run.vars.state_dict()}, OBJECTS))
            assert getattr(case, "same", lambda: True)()
    except Cut:
        return None, None
    assert all(run.vars.state_dict()[name] is value for name, value in case.variables.items() if name != "best")
    leaves = {key: b"".join(map(bytes, pieces(block.data))) for key, block in flat.leaves.items()}
    return (flat.tree, leaves), [line["values"] for line in run.metrics()]


@pytest.mark.parametrize("make", CASES)
def test_an_interrupted_run_ends_as_one_that_was_not(tmp_path, make):
    """Whatever the loop's own names hold: the same bits and metrics, cut in the first step, later, and twice."""
    expected = outcome(tmp_path / "whole", make)
    assert expected[0] is not None
    for number, cuts in enumerate([(0,), (3,), (2, 5)]):
        for cut in cuts:
            assert (None, None) == outcome(tmp_path / str(number), make, cut=cut)
        assert expected == outcome(tmp_path / str(number), make)


def test_what_code_before_the_loop_changes_is_put_back_in_place(tmp_path):
    """As for models: the restored state counts, in the objects that the loop uses."""

    def spoil(case):
        case.variables["queue"].clear()
        case.variables["counts"]["steps"] = 99

    expected = outcome(tmp_path / "whole", queue_in_vars)
    outcome(tmp_path / "cut", queue_in_vars, cut=3)
    assert expected == outcome(tmp_path / "cut", queue_in_vars, spoil=spoil)
    assert events(tmp_path / "cut", "put_back")


# What does not fit ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "line"),
    [
        ({"a": np.zeros(2)}, {"a": np.zeros(3)}, "a: shape (2,) in the checkpoint, (3,) here"),
        ({"a": np.zeros(2)}, {"a": np.zeros(2, "f4")}, "a: dtype float64 in the checkpoint, float32 here"),
        ({"a": torch.zeros(2)}, {"a": torch.zeros(2, 1)}, "a: shape (2,) in the checkpoint, (2, 1) here"),
        ({"a": torch.zeros(2)}, {"a": np.zeros(2, "f4")}, "a: dtype torch leaf in the checkpoint, float32 here"),
        ({"a": [1]}, {"a": {}}, "a: a list in the checkpoint, a dict here"),
        ({"a": [1]}, {"a": np.zeros(1)}, "a: a list in the checkpoint, a ndarray here"),
        ({"a": deque([1, 2, 3])}, {"a": deque(maxlen=2)}, "a: 3 items in the checkpoint, a deque with maxlen=2 here"),
        ({"a": [nn.Linear(2, 2)]}, {"a": [nn.Linear(2, 3)]}, "a/0/weight: shape (2, 2) in the checkpoint, (3, 2) here"),
        ({"a": [nn.Linear(1, 1)] * 1}, {"a": [nn.Linear(1, 1), nn.Linear(1, 1)]}, "a/1: not in the checkpoint"),
        ({"a": [nn.Linear(1, 1), [1]]}, {"a": [nn.Linear(1, 1)]}, "a/1: in the checkpoint, but not tracked here"),
        ({"a": None}, {"a": [1]}, "a: not in the checkpoint (it was None or not tracked when that was saved)"),
        (
            {"a": [1]},
            {"a": None},
            "a: in the checkpoint, but None here: give the object, or begin a new run with start_from=",
        ),
        (
            {"a": [1], "b": [2]},
            {"a": (same := []), "b": same},
            "b: one object with another here, two in the checkpoint",
        ),
    ],
)
def test_what_does_not_fit_is_a_mismatch_before_anything_is_overwritten(tmp_path, before, after, line):
    """It names the place, what the checkpoint has and what is here."""
    canary = [0]
    run_to(tmp_path, {"canary": [1], **before}, 1, lambda run, step: None)
    with pytest.raises(Mismatch) as raised:
        Run(tmp_path, {"canary": canary, **after}).__enter__()
    assert line in str(raised.value)
    assert [0] == canary


def test_a_deque_in_vars_that_is_too_short_is_a_mismatch(tmp_path):
    """Nothing is dropped silently, and the loop's deque is not replaced by another one."""
    run_to(tmp_path, {}, 1, lambda run, step: None, vars={"queue": deque([1, 2, 3], maxlen=3)})
    with pytest.raises(Mismatch, match=r"run\.vars\.queue: 3 items in the checkpoint, a deque with maxlen=2 here"):
        Run(tmp_path, {}, vars={"queue": deque(maxlen=2)}).__enter__()


def test_none_is_left_out(tmp_path):
    """An optional scheduler: nothing is saved of it, and nothing is missed."""
    run_to(tmp_path, {"a": [1], "scheduler": None}, 1, lambda run, step: None)
    with Run(tmp_path, {"a": [1], "scheduler": None}) as run:
        assert 1 == run.step


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: np.broadcast_to(np.zeros(1), 3), "read-only: numpy.array(it)"),
        (lambda: torch.zeros(1).expand(3), "several of its items are one in memory: clone()"),
        (
            lambda: torch.zeros(1, requires_grad=True) * 2,
            "it has a graph: detach() it; or write Run(..., vars=dict(a=...))",
        ),
        (lambda: torch.empty(2, device="meta"), "meta device"),
        (lambda: np.array([object()]), "not plain bytes"),
    ],
)
def test_arrays_that_cannot_be_filled_are_refused_with_what_to_write(tmp_path, make, words):
    """When the run is made, or when it begins."""
    with pytest.raises(UsageError) as raised:
        Run(tmp_path, {"a": make()}).__enter__()
    assert words in str(raised.value)


# Fields ----------------------------------------------------------------------------------------------------------


class Holder:
    __slots__ = ("count", "limit", "numbers")

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


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ((), "name the attributes that change"),
        (("limit",), "no such attribute"),
        (("double",), "a property that cannot be set"),
        (("method",), "it is a method"),
        ((3,), "named by strings"),
    ],
)
def test_fields_that_cannot_be_tracked_are_refused_when_they_are_named(names, words):
    """Not at the first restore."""
    with pytest.raises(UsageError, match=words):
        Fields(Holder(), *names)


def test_fields_are_filled_or_set(tmp_path):
    """Slots and properties with a setter too; a list stays the same object. It is a stateful object by itself as well."""
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


@pytest.mark.parametrize(("name", "words"), [("y", "no such name"), (3, "named by strings")])
def test_names_that_a_dict_does_not_have_are_refused(name, words):
    with pytest.raises(UsageError, match=words):
        Fields({"x": 1}, name)


def test_fields_that_have_changed_are_a_mismatch(tmp_path):
    """A name that is new or gone is told before anything is overwritten."""
    run_to(tmp_path, {"holder": Fields(Holder(), "count")}, 1, lambda run, step: None)
    with pytest.raises(Mismatch, match=r"holder/numbers: not in the checkpoint\n.*holder/count: in the checkpoint"):
        Run(tmp_path, {"holder": Fields(Holder(), "numbers")}).__enter__()


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
    """A generator that the script has not made yet is not replaced by the numbers that stand for it in the checkpoint."""
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
    nets = {"g": nn.Linear(2, 2), "d": [nn.Linear(2, 1)]}
    run_to(tmp_path / "old", {"nets": nets}, 1, lambda run, step: None)
    fresh = {"g": nn.Linear(2, 2), "d": [nn.Linear(2, 1)]}
    with Run(tmp_path / "new", {"nets": fresh}, start_from=tmp_path / "old"):
        assert torch.equal(nets["g"].weight, fresh["g"].weight)
        assert torch.equal(nets["d"][0].weight, fresh["d"][0].weight)
    with pytest.raises(NotFound, match="holds no 'nets/e'"):
        Run(tmp_path / "odd", {"nets": {"e": nn.Linear(2, 2)}}, start_from=tmp_path / "old").__enter__()


def test_a_name_of_a_module_may_be_bound_anew_by_another_cell(tmp_path, capsys):
    """A notebook's cells run one after the other in one module; so do the parts of a script."""
    names = {"__name__": "__main__", "torch": torch, "Run": Run, "path": tmp_path}
    exec(
        "hidden = torch.zeros(2); kept = torch.ones(2)\nrun = Run(path, dict(hidden=hidden, kept=kept)); run.__enter__()",
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


@pytest.mark.parametrize("kind", ["optimizer", "schedule", "scaler"])
def test_a_copy_that_state_dict_returned_is_refused(tmp_path, kind):
    """It would never change: `dict(optimizer=optimizer.state_dict())` is torch.save's way."""
    optimizer = sgd(nn.Linear(1, 1))
    objects = {
        "optimizer": optimizer,
        "schedule": torch.optim.lr_scheduler.StepLR(optimizer, 2),
        "scaler": torch.amp.GradScaler("cpu"),
    }
    with pytest.raises(UsageError, match=r"is a dict that a state_dict\(\) has returned, a copy: give the optimizer"):
        Run(tmp_path, {kind: objects[kind].state_dict()})


def test_a_value_that_only_the_run_ever_held_is_told(tmp_path):
    """The loop cannot change it. One in a mapping that the script keeps, a model's own tensors, members in use: silent."""
    toy, model, net, kept = Average(nn.Linear(1, 1)), nn.Linear(1, 1), nn.Linear(1, 1), {"count": [0]}
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


def test_a_container_that_contains_itself_is_refused_at_once(tmp_path):
    """With its place, however often it does, and not by a stack that overflows."""
    around, deep = [], []
    around += [around, around]
    for _ in range(5000):
        deep = [deep]
    for value, words in (
        (around, r'state\["around"\].*contains itself'),
        (deep, "sys.setrecursionlimit|containers deep"),
    ):
        with pytest.raises(UsageError, match=words):
            Run(tmp_path, {"around": value}).__enter__()


def test_a_model_in_run_vars_is_refused_with_what_to_save(tmp_path):
    """At the start, as ever: run.vars takes values, and the state mapping objects."""
    with pytest.raises(UsageError, match=r"model.*save its state_dict\(\)"):
        Run(tmp_path, {}, vars={"model": nn.Linear(1, 1)}).__enter__()
    with pytest.raises(UsageError, match="sparse"):
        Run(tmp_path, {}, vars={"a": torch.eye(2).to_sparse()}).__enter__()


@pytest.mark.parametrize("way", ["rebound", "in run.vars", "in place"])
def test_each_line_that_is_told_makes_the_resume_exact(tmp_path, way):
    """Written as it says, the interrupted run ends as the other; without it, it does not."""

    def end(path, cut=None):
        torch.manual_seed(1)
        cell, hidden = nn.RNNCell(2, 2), torch.zeros(1, 2)
        inside = way == "in run.vars"
        state = {"cell": cell} if inside else {"cell": cell, "hidden": hidden}
        with Run(path, state, vars={"hidden": hidden} if inside else {}, every=Every(steps=1)) as run:
            for step in run.steps(5):
                x = torch.randn(1, 2)
                if way == "rebound":
                    hidden = cell(x, hidden.detach())
                elif way == "in run.vars":
                    run.vars.hidden = cell(x, run.vars.hidden.detach())
                else:
                    hidden.copy_(cell(x, hidden.detach()).detach())
                if step == cut:
                    raise Cut
            return (run.vars.hidden if inside else hidden).tolist()

    expected = end(tmp_path / "whole")
    with pytest.raises(Cut):
        end(tmp_path / "cut", cut=2)
    assert (end(tmp_path / "cut") == expected) is (way != "rebound")
