"""Advice: each line that a message about a loader asks its reader to write. Typed, the run resumes."""

import ast
import random
from pathlib import Path

import pytest
from torch.utils.data import DataLoader

import holdfast
from holdfast import Run
from holdfast.data import Sampler, Stream, Window, promise
from holdfast.data.advice import Advice
from holdfast.data.streams.source import Indexed
from holdfast.errors import Mismatch, UsageError
from holdfast.run.deferred_saves import record_proven
from toy import Cut, Toy

SOURCE = Path(holdfast.__file__).parent


class Works:
    """A class around batches that works one ahead and draws random numbers."""

    def __iter__(self):
        before = None
        for number in range(6):
            drawn = number * 100 + random.randrange(100)
            if before is not None:
                yield before
            before = drawn
        yield before


class Careful(Works):
    """The same with a state."""

    def __init__(self):
        self.at = 0

    def __iter__(self):
        while self.at < 6:
            self.at += 1
            yield self.at - 1
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


def run_of(path, batches, cut=None, saves=True, state=None, **options):
    """The number of passes of this process; it is gone in pass `cut` of it."""
    random.seed(1)
    passes = 0
    with Run(path, {"toy": Toy(), **(state or {})}, every=None, background=False, **options) as run:
        for _ in run.epochs(3):
            for _ in run.batches(batches() if callable(batches) else batches):
                passes += 1
                random.random()
                if passes == cut:
                    raise Cut
                if saves:
                    run.save()
            run.save()
    return passes


def cut_of(path, batches, cut, **options):
    with pytest.raises(Cut):
        run_of(path, batches, cut, **options)


def refusal(path, batches, kind=Mismatch, **options):
    with pytest.raises(kind) as found:
        run_of(path, batches, **options)
    return str(found.value)


def other_samples(path):
    cut_of(path, Works(), 10)
    assert 'accept={"data"}' in refusal(path, Works())
    assert run_of(path, Works(), accept={"data"}) == 9


def an_epochs_end(path):
    cut_of(path, Works(), 10)
    assert "say Run(..., go_back=6)" in refusal(path, Works())
    assert run_of(path, Works(), go_back=6) == 12


def made_in_each_epoch(path):
    once = (number for number in range(6))
    assert "Make it in the body of run.epochs" in refusal(path, once, UsageError)
    assert run_of(path, lambda: (number for number in range(6))) == 12


class Prepared(Careful):
    """What a library has made of a loader; its state is out of reach."""

    def __init__(self):
        super().__init__()
        self.base_dataloader = [0, 1, 2, 3, 4, 5]

    def state_dict(self):
        raise AttributeError("no state here")


def loader_inside(path):
    assert "Pass loader.base_dataloader" in refusal(path, Prepared(), UsageError)
    assert run_of(path, Prepared().base_dataloader) == 18


def a_changed_fact(path):
    """Each of the facts that leave a place in the order a place, and the group."""
    made = lambda size=2, length=12, **more: DataLoader(range(length), batch_size=size, shuffle=True, **more)
    cut_of(path / "a", made(), 9)
    for fact, loader in {"batch_size": made(3), "length": made(2, 14), "drop_last": made(drop_last=True)}.items():
        start = {"branch_from": path / "a", "saves": False}
        assert f"say accept={{'{fact}'}}" in refusal(path / fact, loader, **start)
        assert run_of(path / fact, loader, accept={fact}, **start) > 3
    assert "say accept={'shuffle'}" not in refusal(path / "b", DataLoader(range(12), batch_size=2), **start)
    assert run_of(path / "b", DataLoader(range(12), batch_size=2), accept={"data"}, **start) == 10


def a_proof(path):
    """A drill, or a state: from an epoch's end, where alone such a run is saved."""
    cut_of(path, Works(), 9, saves=False)
    record_proven(path, {promise.code_digest(Works): "Works"})
    cut_of(path, Works(), 3, saves=False)
    assert run_of(path, Careful()) == 12


def a_bare_loop(path):
    loader = DataLoader(range(8), batch_size=2)
    with Run(path, {"toy": Toy()}) as run:
        for _ in run.epochs(2):
            for train_batch in loader:
                run.log(train=train_batch.sum().item())
    with pytest.raises(Cut), Run(path / "b", {"toy": Toy()}) as run:
        for epoch in run.epochs(2):
            run.save()
            if epoch:
                raise Cut
    assert run_of(path / "b", loader) == 8


def a_sampler_as_before(path):
    made = lambda seed: {"state": {"sampler": Sampler(12, seed=seed)}}
    cut_of(path, [1, 2, 3], 5, **made(1))
    assert "make it the same again" in refusal(path, [1, 2, 3], **made(2))
    assert run_of(path, [1, 2, 3], **made(1)) == 5


def the_same_shards(path):
    """Files that were added: in front they are refused, behind they are accepted."""

    def made(*lengths):
        return Stream([Indexed(range(each), f"file{each}") for each in lengths], 2, shuffle=Window(1, 5))

    cut_of(path, made(8, 6), 5)
    assert "say accept={'length', 'sources'}" in refusal(path, made(8, 6, 4))
    assert "Put new shards behind the old ones" in refusal(path, made(4, 8, 6), accept={"length", "sources"})
    assert run_of(path, made(8, 6, 4), accept={"length", "sources"}) == 3 + 9 + 9


SCENARIOS = {
    "the same shards": the_same_shards,
    "other samples": other_samples,
    "an epoch's end": an_epochs_end,
    "made in each epoch": made_in_each_epoch,
    "loader inside": loader_inside,
    "a changed fact": a_changed_fact,
    "a proof": a_proof,
    "a bare loop": a_bare_loop,
    "a sampler as before": a_sampler_as_before,
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_who_follows_an_advice_resumes(name, tmp_path):
    """The message gives it, it is typed, and the run ends."""
    SCENARIOS[name](tmp_path)


def test_each_advice_has_a_scenario():
    """Those of the source are those of this file; printed, an advice is its line."""
    calls = [
        node
        for path in SOURCE.rglob("*.py")
        if "Advice(" in (text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Advice"
    ]
    assert {ast.literal_eval(node.args[0]) for node in calls} == {*SCENARIOS}
    assert f"{Advice('a name', 'Write this')}" == "Write this"
