"""A defaultdict keeps its factory; only one that a resume has to make needs a factory that the checkpoint can name."""

from collections import defaultdict
from itertools import cycle
from types import SimpleNamespace

import pytest

import holdfast
from holdfast import Every, Fields, Run, Store
from holdfast.errors import HoldfastError, Mismatch, UsageError
from holdfast.state import codec
from toy import Cut


class Meter:
    def __init__(self, total=0.0):
        self.total = total


pytestmark = pytest.mark.usefixtures("registered")


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setattr(codec, "REGISTERED", {})
    holdfast.register(Meter, lambda meter: meter.total, Meter)


FACTORIES = {"a registered class": Meter, "a function": lambda: Meter(1.0), "a method": SimpleNamespace(of=Meter).of}
PLACES = ("state", "dict", "list", "Fields", "vars", "inside vars")


def attempt(path, factory, how, cut, *, anew=False):
    """Count in a defaultdict. `how`: where it stands when the run begins. Return it and the counts."""
    counts = defaultdict(factory)
    holder, keep = SimpleNamespace(it=counts), [counts]
    state = {
        "state": {"it": counts}, "dict": {"a": {"b": {"it": counts}}}, "list": {"a": [[counts]]},
        "Fields": {"a": Fields(holder, "it")}, "vars": {}, "inside vars": {},
    }[how]  # fmt: skip
    variables = {"vars": {"it": counts}, "inside vars": {"it": {"deep": counts}}}.get(how, {})
    with Run(path, state, vars=variables, every=Every(steps=1), background=False) as run:
        for step in run.steps(6):
            if step == cut:
                raise Cut
            live = {"vars": lambda: run.vars.it, "Fields": lambda: holder.it}.get(how, lambda: counts)()
            if anew and how == "vars":
                run.vars.it = live = defaultdict(factory, live)
            if anew and how == "Fields":
                holder.it = live = defaultdict(factory, live)
            live[f"loss {step // 2}"].total += 1
    assert len(keep[0]) == (0 if anew else 3)
    return live.default_factory is factory, {name: meter.total for name, meter in live.items()}


@pytest.mark.parametrize(("how", "name"), [*zip(PLACES, cycle(FACTORIES), strict=False)])
def test_a_live_defaultdict_keeps_its_factory_whatever_it_is(tmp_path, how, name):
    """A resume goes on with the same factory and counts; tests/prove has each factory in each place."""
    keeps_its_factory(tmp_path, how, name)


def keeps_its_factory(tmp_path, how, name):
    whole = attempt(tmp_path / "whole", FACTORIES[name], how, None)
    for cut in (3, 5):
        with pytest.raises(Cut):
            attempt(tmp_path / "cut", FACTORIES[name], how, cut)
    assert whole == attempt(tmp_path / "cut", FACTORIES[name], how, None)
    assert whole[0]
    assert len(whole[1]) == 3


@pytest.mark.parametrize("how", ["Fields", "vars"])
def test_one_that_takes_its_place_has_its_factory(tmp_path, how):
    """The loop binds the name to another defaultdict: the resume makes one, with the live factory."""
    whole = attempt(tmp_path / "whole", Meter, how, None, anew=True)
    with pytest.raises(Cut):
        attempt(tmp_path / "cut", Meter, how, 3, anew=True)
    assert whole == attempt(tmp_path / "cut", Meter, how, None, anew=True)


def test_one_that_comes_later_needs_a_factory_that_can_be_named(tmp_path):
    """A registered class is found again; a function is refused at the save, with the lines to write."""

    def train(path, factory, total):
        tables = []
        with Run(path, {"tables": tables}, every=Every(steps=1)) as run:
            for step in run.steps(total):
                tables.append(defaultdict(factory))
                tables[-1][step].total += step
        return [(each.default_factory, {key: meter.total for key, meter in each.items()}) for each in tables]

    train(tmp_path / "a", Meter, 2)
    assert [(Meter, {step: step}) for step in range(4)] == train(tmp_path / "a", Meter, 4)
    manifest = (tmp_path / "a/checkpoints/latest/manifest.json").read_bytes()
    assert manifest.startswith(b'{"holdfast": 6,')
    with pytest.raises(UsageError, match=r"holdfast\.register\(Factory, encode, decode\); or let the run begin with"):
        train(tmp_path / "b", lambda: Meter(), 2)  # noqa: PLW0108
    with pytest.raises(UsageError, match="would have to make it anew"):
        Store(tmp_path / "c").save({"it": defaultdict(lambda: 0)}, step=1)
    codec.REGISTERED.clear()
    with pytest.raises(UsageError, match="holds"):
        train(tmp_path / "a", Meter, 5)
    assert not list((tmp_path / "a").glob("quarantine/*"))


def test_a_checkpoint_without_its_factory_is_read_and_fits_no_other_place(tmp_path):
    """Store.load() gives its content; a run that has no defaultdict there is told, and nothing is moved."""
    attempt(tmp_path, FACTORIES["a function"], "dict", None)
    found = Store(tmp_path).checkpoints()[-1].load(part="a")["b"]["it"]
    assert {f"loss {number}": 2.0 + 1 for number in range(3)} == {key: meter.total for key, meter in found.items()}
    with pytest.raises(TypeError, match="the script's own"):
        found["new"]
    with pytest.raises(Mismatch, match="without its factory"):
        Run(tmp_path, {"a": {"b": {}}}).__enter__()
    assert not list(tmp_path.glob("quarantine/*"))
    assert issubclass(Mismatch, HoldfastError)


def test_a_builtin_factory_is_saved_as_before(tmp_path):
    """Version 1, to the byte."""
    with Run(tmp_path, {"it": defaultdict(list), "d": {"x": defaultdict(None)}}, vars={"y": defaultdict(int)}) as run:
        run.save()
    text = (tmp_path / "checkpoints/latest/manifest.json").read_bytes()
    assert text.startswith(b'{"holdfast": 1,')
    assert text.count(b'"defaultdict"') == 3
