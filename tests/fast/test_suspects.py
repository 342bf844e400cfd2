"""What the drill takes for a cause: variables that a loop carries on, and that a resume did not bring back."""

import math
import random
import sys
import types
from collections import OrderedDict
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from holdfast import Fields
from holdfast.drill import advice, cause
from holdfast.drill.advice import rank_suspects
from holdfast.drill.by_itself import cause_of
from holdfast.drill.cause import CauseFacts
from holdfast.drill.evidence import RunTrace
from holdfast.drill.safepoint import SafePoint
from holdfast.drill.sights import VariableHistory, VariableRecord
from holdfast.drill.suspects import Suspect, consumed_other_batch, find_suspects, restarted_counters, script_name
from holdfast.errors import UsageError
from holdfast.run import drilled
from holdfast.script.carried import variables_carried_past
from holdfast.script.visible import is_user_code
from holdfast.script.witness import UNREAD, VariableFacts, VariableRecorder, describe_dataset

# Which variables a loop carries -------------------------------------------------------------------------------------


def walk(count, found):
    """A generator that notes, as a run does, what its loop carries."""
    for number in range(count):
        frame = sys._getframe(1)
        found.append(variables_carried_past(frame.f_code, frame.f_lasti))
        yield number


def test_a_variable_is_carried_when_a_pass_reads_it_before_it_assigns_it():
    """`total` and `best` are; `loss`, which each pass assigns first, is not, and `last` is only read after the loop."""
    found = []

    def loop():
        total, best, rate, loss, unused = 0.0, None, 0.1, 0.0, 1
        for number in walk(2, found):
            loss = number * rate
            total += loss
            if best is None or loss < best:
                best = loss
            unused = loss
        return total, best, unused

    loop()
    assert {"total", "best", "rate", "unused"} <= found[0].live
    assert not {"loss", "number"} & found[0].live
    assert {"total", "best", "loss"} <= found[0].stored
    assert "rate" not in found[0].stored


def test_variables_that_an_inner_function_shares_count_as_carried():
    """Whoever calls it may read them."""
    found = []

    def loop():
        count = 0

        def add():
            nonlocal count
            count += 1

        for _ in walk(1, found):
            add()

    loop()
    assert "count" in found[0].live


# What is seen of a script -------------------------------------------------------------------------------------------


class Environment:
    def __init__(self):
        self.state, self.rng = 0.5, random.Random(1)


class Weights:
    def __init__(self, value=1):
        self.value, self.cache = value, [1]

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


class Hostile:
    """Whatever is asked of it, it raises; it has attributes, too."""

    def __init__(self):
        self.inner = 1

    def __getattr__(self, name):
        raise RuntimeError(name)

    def __eq__(self, other):
        raise RuntimeError

    def __hash__(self):
        raise RuntimeError

    def state_dict(self):
        raise RuntimeError

    def load_state_dict(self, state):
        raise RuntimeError


@pytest.fixture(autouse=True)
def without_frames(monkeypatch):
    """The variables of the test itself are none of a script's."""
    monkeypatch.setattr("holdfast.script.visible.script_frames", list)


def noted(witness=None, **roots):
    return (witness or VariableRecorder({})).record_changes(roots, {})


def test_objects_are_entered_and_each_attribute_has_a_name():
    """With what kind of thing it is. Of a tracked object the others are seen: what its state_dict() leaves out is not
    restored.
    """
    found = noted(env=Environment(), weights=Weights())
    assert found["values"]["env.state"] == "=0.5"
    assert found["about"]["env.rng"]["kind"] == "generator"
    assert found["about"]["env.state"]["owner"] == "Environment"
    assert found["about"]["weights"]["kind"] == "stateful"
    weights = Weights()
    found = noted(VariableRecorder({"weights": weights}), weights=weights)
    assert "weights" not in found["values"]
    assert found["about"]["weights.cache"]["owner_tracked"] == "weights"


class Bar:
    """Of a library that shows progress."""

    __module__ = "tqdm.std"

    def __init__(self):
        self.desc, self.n = "loss", 3


def test_what_shows_progress_is_no_variable():
    """Nor is what it holds; a class of the script's that inherits from it neither."""
    own = type("Own", (Bar,), {"__module__": "__main__"})
    assert not noted(bar=Bar(), own=own(), x=1)["values"].keys() - {"x"}


class Counting(torch.optim.SGD):
    """Keeps a number outside of its state_dict()."""

    def __init__(self, parameters):
        super().__init__(parameters, 0.1)
        self.count = 3


class Bank(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("bank", torch.ones(2), persistent=False)
        self.register_buffer("kept", torch.ones(2))
        self._seen = 5


def test_what_a_tracked_object_keeps_beside_its_state_is_seen():
    """An optimizer's own counter; a buffer that is not saved, and a private attribute of a module."""
    bank = Bank()
    optimizer = Counting([torch.nn.Parameter(torch.ones(1))])
    found = noted(VariableRecorder({"bank": bank, "optimizer": optimizer}), bank=bank, optimizer=optimizer)["values"]
    assert {"optimizer.count", "bank._seen", "bank.bank"} == {
        name for name in found if name.startswith(("optimizer", "bank")) and not name.endswith("training")
    }


def test_locals_of_the_loop_come_before_all_others_and_a_limit_is_said(monkeypatch):
    """A script with more objects than are read: its counter is found all the same."""
    monkeypatch.setattr("holdfast.script.visible.MOST", 100)

    def loop():
        objects = [Environment() for _ in range(40)]
        updates = 7
        return VariableRecorder({}).record_changes({}, {}), objects, updates

    monkeypatch.setattr("holdfast.script.visible.script_frames", lambda: [find("loop")])
    found, _, _ = loop()
    assert found["values"]["loop:updates"] == "=7"
    assert found["cut"]


def find(name):
    frame: Any = sys._getframe()
    while frame.f_code.co_name != name:
        frame = frame.f_back
    return frame


def test_a_part_of_a_module_is_spelled_as_code():
    """A path goes into an advice, and that into a script: names of layers need not be Python's."""
    model = torch.nn.Sequential(OrderedDict({"0": torch.nn.ReLU(), "4_norm": torch.nn.BatchNorm1d(2)}))
    paths = noted(VariableRecorder({"model": model}), model=model)["values"]
    assert 'model.get_submodule("4_norm").momentum' in paths
    assert all(compile(path, "", "eval") for path in paths)


def test_what_two_objects_share_is_compared_by_its_numbers():
    """An optimizer may keep a parameter's own memory (SAM), and a resume gives it a copy of it."""
    weight = torch.ones(2)
    shared, parted = ({"model": {"w": weight}, "opt": {"old": each}} for each in (weight, weight.clone()))
    assert drilled.digests_of_each(shared) == drilled.digests_of_each(parted)
    assert "opt/old" in drilled.digests_of_each(shared)


def test_what_a_closure_keeps_is_seen():
    """A counter that a function of the script's changes by nonlocal."""

    def make():
        count = 3

        def rate():
            nonlocal count
            count += 1

        return rate

    assert noted(rate=make())["values"]["rate:count"] == "=3"


def test_only_what_changed_is_noted_again():
    """And what has gone."""
    witness, env = VariableRecorder({}), Environment()
    noted(witness, env=env, number=1)
    env.state = 0.75
    found = noted(witness, env=env)
    assert found["values"] == {"env.state": "=0.75"}
    assert found["gone"] == ["number"]


def test_noting_draws_nothing_iterates_nothing_and_survives_what_raises():
    """A witness changes nothing, and what it cannot read is noted as such."""
    generator, numpy_generator, iterator, hostile = random.Random(3), np.random.default_rng(3), iter([1, 2]), Hostile()
    before = generator.getstate(), numpy_generator.bit_generator.state, random.getstate()
    found = noted(generator=generator, numpy=numpy_generator, iterator=iterator, hostile=hostile, own=object())
    assert (generator.getstate(), numpy_generator.bit_generator.state, random.getstate()) == before
    assert list(iterator) == [1, 2]
    assert found["values"]["iterator"] == found["values"]["hostile"] == found["values"]["own"] == UNREAD
    assert found["values"]["generator"] != UNREAD


class Genes(list):
    """An individual as DEAP makes them."""

    def __init__(self, genes):
        super().__init__(genes)
        self.fitness = None


@pytest.mark.parametrize("count", [3, 300])
def test_an_object_that_nobody_can_save_is_noted_with_the_call_that_it_lacks(count):
    """Among few that are visited one by one, and among many."""
    about = noted(pop=[Genes([1, 2]) for _ in range(count)], mutate=partial(max, 1))["about"]
    calls = {path.partition("[")[0]: each["unread"] for path, each in about.items() if each.get("unread")}
    assert calls == {"pop": "holdfast.register(Genes, encode, decode)"}


def test_what_is_too_large_is_not_read(monkeypatch):
    """A drill must not take hours to look."""
    monkeypatch.setattr("holdfast.script.witness.LARGEST_BYTES", 1000)
    found = noted(large=np.zeros(1000), small=np.zeros(10), many=list(range(30_000)))
    assert found["values"]["large"] == found["values"]["many"] == UNREAD
    assert found["values"]["small"] != UNREAD


def test_the_same_members_in_another_order_are_known_as_the_same():
    """For what a set of strings does to a list."""
    first, second = (noted(words=words)["about"]["words"]["bag"] for words in (["a", "b", "c"], ["c", "a", "b"]))
    assert first == second != noted(words=["a", "b", "d"])["about"]["words"]["bag"]


def test_code_of_packages_is_not_the_scripts():
    """Nor Python's own, nor ours."""
    assert is_user_code("/home/u/train.py", "__main__")
    assert not is_user_code(random.__file__, "random")
    assert not is_user_code("/usr/lib/python3/site-packages/tqdm/std.py", "tqdm.std")
    assert not is_user_code("/anywhere/holdfast/run/run.py", "holdfast.run.run")


class Crops:
    def __init__(self):
        self.reads, self.cache = 0, {}

    def __getitem__(self, index):
        self.reads += 1
        self.cache[index] = lambda: math.tau.real  # code without arguments
        return random.randint(0, index)


def test_a_datasets_code_says_what_it_draws_and_changes():
    """Its constructor's does not count."""
    assert describe_dataset(Crops()) == {"draws": ["randint", "random"], "changes": ["cache", "reads"]}


# Suspects -----------------------------------------------------------------------------------------------------------

NUMBER = VariableFacts("number", "float", stored=True)


def sight(step, begin=False, attempt=1, batch="", about=None, **values):
    kinds = dict.fromkeys(values, NUMBER) | (about or {})
    return VariableRecord(
        SafePoint(step), attempt, begin, batch, {name: f"={value}" for name, value in values.items()}, kinds, {}
    )


def run(*totals, **more):
    return [sight(0, begin=True, total=0), *(sight(step, total=total, **more) for step, total in enumerate(totals, 1))]


def resumed(step, *after, **values):
    return [sight(step, begin=True, attempt=2, **values), *after]


def found_in(reference, second, other, parted):
    return [
        each.path
        for each in find_suspects(
            VariableHistory(reference), VariableHistory(second), VariableHistory(other), 2, SafePoint(parted)
        )
    ]


DEAD = {"total": VariableFacts("number", "float", live=False, stored=True)}


def test_what_began_otherwise_is_suspect_and_nobody_is_accused_without_evidence():
    """The reference run held 3 there, and the resumed one began with 0; each other case lacks a part of that."""
    once = run(1, 3, 6)
    for why, reference, second, other, at in (
        ("", once, once, resumed(2, total=0), 3),
        ("it was brought back", once, once, resumed(2, total=3), 3),
        ("it differs by itself", once, run(1, 4, 6), resumed(2, total=0), 3),
        ("a later pass has set it right", once, once, resumed(1, sight(2, attempt=2, total=3), total=0), 3),
        ("the reference run was never there", once, once, resumed(9, total=0), 10),
        ("the attempt noted nothing", once, once, [], 3),
        ("no pass reads it", run(1, 3, 6, about=DEAD), once, resumed(2, total=0), 3),
    ):
        assert found_in(reference, second, other, at) == ([] if why else ["total"]), why


def test_what_changes_later_is_named_with_the_others_of_its_kind():
    """`best` had not changed yet at the resume, and would begin anew as well. A module's mode is no such variable:
    `model.eval()` at the epoch's end changes it, and `model.train()` sets it before each epoch's loop.
    """
    mode = VariableFacts("number", "bool", owner="LSTM", owner_saves=True)
    for name, about, found in (("best", NUMBER, ["total", "best"]), ("model.training", mode, ["total"])):
        more = {"about": {name: about}}
        seen = [
            sight(step, begin=step == 0, total=total, **{name: value}, **more)
            for step, total, value in ((0, 0, 9), (1, 1, 9), (2, 3, 9), (3, 6, 5))
        ]
        assert found_in(seen, seen, resumed(2, total=0, **{name: 9}, **more), 3) == found, name


def order_of(found):
    return [each.path for each in rank_suspects(found, (), data=False, options=False)]


def test_what_changes_later_is_named_after_what_had_changed():
    """An attribute would come first, but this one was as in the reference run when the state left its path. Attributes
    of one object stay together: a position that is 0 again by chance is named in its place among those of its buffer.
    """
    later = suspect("self.best", owner="Trainer")._replace(was="=0", now="=0")
    assert order_of([later, suspect("hidden")]) == ["hidden", "self.best"]
    names = ["buffer.items", "buffer.pos", "buffer.full"]
    found = [suspect(name, owner="Buffer") for name in names]
    found[1] = found[1]._replace(was="=0", now="=0")
    assert order_of([*found, suspect("hidden")]) == [*names, "hidden"]


def test_an_index_that_began_again_is_told_from_one_that_went_on():
    """After a resume at step 2 the third pass had index 0, where the reference run had 2."""
    dead = {"i": VariableFacts("number", "int", live=False, stored=True)}
    reference = [sight(0, begin=True), *(sight(step, i=step - 1, about=dead) for step in (1, 2, 3))]
    for index, expected in ((0, ["i"]), (2, [])):
        other = resumed(2, sight(3, attempt=2, i=index, about=dead))
        assert restarted_counters(VariableHistory(reference), VariableHistory(other), 2, SafePoint(3)) == expected


def test_another_batch_is_known_by_its_digest():
    """And nothing is known when one of them was not read."""
    reference = [sight(1, batch="a"), sight(2, batch="b")]
    for batch, expected in (("b", False), ("c", True), ("", None), (UNREAD, None)):
        other = [sight(2, attempt=2, batch=batch)]
        assert consumed_other_batch(VariableHistory(reference), VariableHistory(other), 2, SafePoint(2)) is expected


def test_a_path_is_spelled_as_in_the_script():
    """Without the function whose local it is."""
    for path, name in (
        ("best", "best"),
        ("train:best", "best"),
        ("main:self.best", "self.best"),
        ("loader 'a:b'.x",) * 2,
    ):
        assert script_name(path) == name


# Causes, and the lines that mend them -------------------------------------------------------------------------------


def suspect(path, kind="number", now="=0", **about):
    return Suspect(path, VariableFacts(kind, about.pop("type", "X"), **about), "=1", now, about.pop("held", ""))


def tracked(*changed, loaders=None, **more):
    """The facts where these leaves differed first, of a model and its optimizer."""
    leaves = ("model/w", "opt/state/0/exp_avg", "holdfast/rng/torch/cpu", "tree:model", "tree:opt", "tree:holdfast")
    return CauseFacts(changed, leaves, loaders=LOADERS if loaders is None else loaders, **more)


def left(*args, **about):
    """The facts where a resume did not bring back one variable."""
    return CauseFacts(suspects=[suspect(*args, **about)])


LOADERS = {"train": {"workers": 0, "dataset": "Digits"}}
WORKERS = {"train": {"workers": 2, "dataset": "Digits"}}
CHANGES = {"train": {"changes": ["reads"]}}
CALLBACK = "trainer/callbacks/ModelCheckpoint/state/best_model_score"  # no optimizer has it
SEEDED = {"train": {"workers": 2, "dataset": "Seeded(Digits)"}}
LATE = CauseFacts(
    suspects=[suspect("model.slope", owner="Line"), suspect("model.grads", "container", None, owner="Line")]
)
BY_VARIABLES = [
    (left("lr", stored=True), "variable", "run.vars.lr wherever the loop says lr"),
    (left("main:lr", stored=True), "variable", "run.vars.lr"),
    (left("total")._replace(metrics=("m",), metrics_first=True), "accumulator", "run.vars.total"),
    (left("best")._replace(variables=frozenset({"best"})), "run.vars unused", "write run.vars.best"),
    (left("queue", "container"), "container", "dict(..., queue=queue)"),
    (left("queue", "container", stored=True), "variable", "run.vars.queue"),
    (left("rng", "generator"), "generator", "dict(..., rng=rng)"),
    (left("env.rng", "generator", owner="E"), "generator", "env_rng=env.rng"),
    (left("main:self.best", owner="T"), "attributes", 'self=Fields(self, "best")'),
    (left("opts[1]", "stateful", role="optimizer"), "optimizer", "dict(..., opts=opts)"),
    (left("s", "stateful", role="scheduler"), "scheduler", "s=s"),
    (left("teacher", "stateful"), "EMA", "teacher=teacher"),
    (
        CauseFacts(loaders=LOADERS, counting=("main:i",), other_batch=False),
        "enumerate",
        "for i, batch in run.enumerate",
    ),
    (CauseFacts(loaders=LOADERS, idle_step=True), "prefetched batch", "run.batches(loader)"),
    (CauseFacts(loaders=WORKERS, other_batch=True), "augmentation", "Seeded(dataset, seed=0)"),
    (CauseFacts(loaders=LOADERS, other_batch=True, datasets=CHANGES), "dataset", 'Fields(dataset, "reads")'),
    (CauseFacts(loaders=LOADERS, other_batch=True), "order", "Track the generator"),
    (CauseFacts(told=(("rebound", "hidden", "write it so"),)), "rebound", "write it so"),
    (tracked("model/w", told=(("forgotten", "ema", "Write so"),)), "forgotten", "Write so"),
    (tracked("model/w", same_metrics_there=True, told=(("left_out", "opt", ""),)), "left out", "state_dict()"),
    (CauseFacts(loaders=LOADERS, iterators=("extra",)), "iterator", "takes values from extra"),
    (CauseFacts(iterators=("batches",)), "position", "batches, an iterator whose place is not restored"),
    (left("bar.loss", owner="Bar")._replace(iterators=("trainer.dl",)), "position", "Also (attributes): the resume"),
    (left("model.weight", owner="Linear", frozen=True), "immutable", "model = tree.value"),
    (LATE, "attributes", 'Fields(model, "slope"))). A start has no model.grads'),
]
UNREAD_POP = {"pop": "holdfast.register(Individual, encode, decode)"}
BY_LEAVES = [
    (tracked("tree:opt"), "scheduler", "Track the scheduler"),
    (tracked("model/w", "tree:opt"), "scheduler", "Track the scheduler"),
    (CauseFacts(("tree:trainer",), (CALLBACK, "tree:trainer"), loaders=LOADERS), "generator", "Track it"),
    (tracked("model/w", loaders=WORKERS), "augmentation", "Seeded(dataset, seed)"),
    (tracked("model/w", loaders=SEEDED), "generator", "Track it"),
    (tracked("model/w"), "generator", "np.random.Generator"),
    (tracked("model/w", loaders={}), "position", "run.batches(loader)"),
    (tracked("holdfast/rng/torch/cpu"), "draws", "draw inside the loop only"),
    (tracked("tree:holdfast"), "vars", "run.vars"),
    (tracked("tree:holdfast", loaders={}), "position", "run.batches(loader)"),
    (tracked("tree:holdfast", loaders={}, seen=True), "unseen", "a solver"),
    (tracked("model/w", loaders={}, seen=True), "unseen", "a solver"),
    (tracked("tree:holdfast", loaders={}, seen=True, unread=UNREAD_POP), "unread", "register(Individual, "),
    (tracked("model/w", loaders={}, seen=True, unread=UNREAD_POP), "unread", "dict(..., pop=pop)"),
    (tracked("tree:opt", "tree:sched")._replace(all_leaves=("tree:opt", "tree:sched")), "scheduler", "is tracked"),
    (tracked(metrics=("mean_loss",), metrics_first=True), "accumulator", "run.vars"),
    (tracked(metrics=("ema_acc",), metrics_first=True), "EMA", "add it to the tracked ones"),
    (CauseFacts(("w",), ("w",), same_metrics_there=True, loaders=LOADERS), "optimizer", "track the optimizer"),
    (tracked("model/w", same_metrics_there=True), "update", "what opt keeps outside of its state_dict()"),
    (tracked(same_steps=False), "steps", "run.epochs"),
    (tracked(metrics_first=True), "lines", "run.log"),
    (tracked(), "late", "after its last one"),
]


def test_each_cause_has_its_evidence_and_its_line():
    """Facts in, a name and a line to write out: by variables that a resume did not bring back, else by the leaves that
    differ.
    """
    for facts, name, line in BY_VARIABLES + BY_LEAVES:
        found = cause.find_cause(facts)
        assert (found.name, line in found.advice) == (name, True), found


def test_each_fix_is_a_line_of_python():
    """What a program would add to the script: under a word of its own, and of an object that has a name."""
    paths = ["ema", "envs.envs[0].pos", "main:self.rng", "d['a b'].x", "lambda_.step", "class_"]
    found = [suspect(path, kind, owner=owner) for path in paths for kind, owner in (("stateful", ""), ("number", "T"))]
    fixes = [fix for line in advice.advice_lines(found, (), {"ema"}) for fix in line.fixes]
    assert {"track", "fields"} == {fix.kind for fix in fixes}
    for fix in fixes:
        compile(f"dict({advice.tracking_argument(fix)})", "", "eval")
    assert "ema_more" in {fix.word for fix in fixes}


def test_members_of_one_list_share_one_line():
    """Eight environments need one argument, not eight of them."""
    fields = [(f"envs.envs[{at}].{name}", "E") for at in range(8) for name in ("pos", "count")]
    found = [suspect(path, owner=owner) for path, owner in [*fields, ("team[0].score", "T")]]
    (line,) = advice.advice_lines(found, ())
    expected = 'envs_envs_each=[Fields(each, "pos", "count") for each in envs.envs], team_0=Fields(team[0], "score")'
    assert line.text == f"Track it: Run(path, dict(..., {expected}))"


def test_a_generator_of_a_member_is_tracked_and_not_the_object_that_holds_the_list():
    """A vector environment has no state of its own to save; each of its environments has a generator."""
    found = [suspect(f"envs.envs[{at}].env._np_random", "generator", owner="E") for at in range(2)]
    found += [suspect("team.opts[1]", "stateful", role="optimizer"), suspect("loaders[0].rng", "generator", owner="L")]
    (line,) = advice.advice_lines(found, ())
    members = "envs_envs_env__np_random_each=[each.env._np_random for each in envs.envs]"
    expected = f"{members}, team_opts=team.opts, loaders_0__rng=loaders[0].rng"
    assert line.text == f"Track it: Run(path, dict(..., {expected}))"
    assert [fix.names for fix in line.fixes][:2] == [
        ("envs.envs[0].env._np_random",),
        ("envs.envs[1].env._np_random",),
    ]


def test_members_that_the_loop_replaces_are_kept_by_their_list():
    """The fields of an object that is gone restore nothing: a hall of fame keeps `keys`, not `keys[0].wvalues`."""
    found = [suspect(f"hof.keys[{at}].wvalues", owner="Fitness", renewed=True) for at in range(2)]
    (line,) = advice.advice_lines([*found, suspect("team[0].score", owner="Player", renewed=True)], ())
    assert line.text == 'Track it: Run(path, dict(..., team=team, hof=Fields(hof, "keys")))'


class FrozenInstanceError(AttributeError):
    pass


class Immutable:
    """As a module of Equinox: it sets its attributes while it is made, and is no frozen dataclass."""

    def __init__(self, weight):
        object.__setattr__(self, "weight", weight)

    def __setattr__(self, name, value):
        raise FrozenInstanceError(name)


def test_an_object_whose_class_refuses_to_set_attributes_is_kept_by_its_name():
    """No line of Fields is printed for it, and Fields refuses it when it is made, not at the restore."""
    model = Immutable(1.0)
    about = noted(model=model)["about"]
    assert about["model.weight"]["frozen"]
    with pytest.raises(UsageError, match="its class is frozen"):
        Fields(model, "weight")
    assert "frozen" not in noted(env=Environment())["about"]["env.state"]


def test_an_object_in_a_container_is_known_to_be_another_one():
    """The witness compares the objects at one place; those that only change are not replaced."""
    witness, old, new = VariableRecorder({}), Environment(), Environment()
    hall = types.SimpleNamespace(rows=[old], kept=[old])
    noted(witness, hall=hall)
    hall.rows = [new]
    about = noted(witness, hall=hall)["about"]
    assert (
        [path for path, each in about.items() if each.get("renewed")]
        == [path for path in about if path.startswith("hall.rows[0].")]
        != []
    )


def test_what_a_library_keeps_inside_is_no_attribute_to_track():
    """Nobody can put back the parts of a study: it is made anew from what is kept."""
    inside = suspect("study._storage._max", owner="Storage", installed=True)
    own = suspect("self._pool.pos", owner="Pool")
    assert cause.find_cause(CauseFacts(suspects=[inside])).name == "inside"
    assert "study keeps that inside" in cause.find_cause(CauseFacts(suspects=[inside])).advice
    both = cause.find_cause(CauseFacts(suspects=[inside, suspect("main:total", stored=True)]))
    assert (both.name, len(both.lines)) == ("variable", 1)
    assert 'Fields(self._pool, "pos")' in cause.find_cause(CauseFacts(suspects=[own])).advice


def test_no_weight_depends_on_a_meter():
    """Where weights differ and a batch's index began anew, the index is named before the averages that are shown."""
    meters = [suspect("logger.meters['loss'].count", owner="SmoothedValue"), suspect("iter_time.count", owner="X")]
    facts = tracked("model/w", suspects=meters, counting=("train:i",), other_batch=False)
    assert cause.find_cause(facts).name == "enumerate"
    assert "Also (attributes)" in cause.find_cause(facts).advice
    assert cause.find_cause(facts._replace(suspects=[*meters, suspect("pool.pos", owner="Pool")])).name == "attributes"


def test_an_advice_says_what_to_do_about_names_that_the_place_of_the_run_does_not_have():
    """A local of another function is made before Run and handed on; `self` has another name there."""
    found = [suspect("fit:rng", "generator"), suspect("run:self.best", owner="Trainer"), suspect("queue", "container")]
    (there,) = advice.advice_lines(found[2:], (), entered="main")
    (away,) = advice.advice_lines(found, (), entered="main")
    (same,) = advice.advice_lines(found[:1], (), entered="fit")
    assert "The run is entered" not in there.text + same.text
    assert "The run is entered in main(), and rng is made in fit(): make it before Run, and hand it to fit(); self" in (
        away.text
    )


def test_of_several_all_are_named_and_the_most_likely_first():
    """A scheduler where an optimizer's options differ, a generator where the batch does."""
    both = [suspect("rng", "generator"), suspect("scheduler", "stateful", role="scheduler")]
    options = cause.find_cause(CauseFacts(("tree:opt",), ("opt/state/0/x", "tree:opt"), suspects=both))
    data = cause.find_cause(CauseFacts(suspects=both, other_batch=True))
    assert (options.name, data.name) == ("scheduler", "generator")
    assert all("rng=rng" in each.advice and "scheduler=scheduler" in each.advice for each in (options, data))
    index = CauseFacts(suspects=[suspect("lr", stored=True)], counting=("main:i",), other_batch=False)
    assert all(line in cause.find_cause(index).advice for line in ("run.vars.lr", "for i, batch in run.enumerate"))


# Two undisturbed runs -----------------------------------------------------------------------------------------------


def alone(rng="a", *, drawn=True, state="", **values):
    """A run of one step: `words` are in a container, and `began` is a time."""
    about = {name: VariableFacts("x", "x", bag="b" * (name == "words"), clock=name == "began") for name in values}
    sights = [
        VariableRecord(
            SafePoint(step), 1, not step, "", values, about, {"torch": rng + "1" * (drawn and step)}, state=state
        )
        for step in (0, 1)
    ]
    return RunTrace([], [], {1: SafePoint(0)}, {}, VariableHistory(sights))


def test_why_two_undisturbed_runs_differ():
    """A generator that began otherwise; the same words in another order; nothing that was noted. A generator that rests
    is blamed only for what began otherwise, since each process has its own of those that nobody seeds; a clock decides
    later.
    """
    resting = {"drawn": False, "began": "2", "state": "s"}
    for first, second, name in (
        (alone("a"), alone("b"), "unseeded"),
        (alone(words="1"), alone(words="2"), "hash order"),
        (alone(), alone(), "unknown"),
        (alone("a", drawn=False, began="1", state="s"), alone("b", **resting), "clock"),
        (alone("a", drawn=False, began="1", state="s"), alone("b", **resting | {"state": "t"}), "unseeded"),
    ):
        assert cause_of(first, second, CauseFacts()).name == name
