"""What a run does with torch's models and optimizers besides restoring them: starting, overriding, reading, probing."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch

from holdfast import Best, Every, Last, Run, StartFrom, Store, load_into
from holdfast.errors import Damaged, Mismatch, NotFound, UsageError
from stores import flip
from toy import Cut, events


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def objects(width=3):
    model = torch.nn.Sequential(torch.nn.Linear(2, width), torch.nn.BatchNorm1d(width), torch.nn.Dropout(0.5))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    return {"model": model, "optimizer": optimizer, "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 100)}


def learn(state):
    state["optimizer"].zero_grad()
    state["model"](torch.randn(4, 2)).square().sum().backward()
    state["optimizer"].step()
    state["scheduler"].step()


def train(path, state, steps=2, cut=None, **options):
    with Run(path, state, **{"every": Every(steps=1), "keep": Last(99), **options}) as run:
        for step in run.steps(steps):
            if step == cut:
                raise Cut
            learn(state)
    return run


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


def test_a_new_run_starts_from_anothers_weights(tmp_path, capsys):
    """The model's alone: step 0, a fresh optimizer; said and journalled. A restart goes on, and does not start
    again.
    """
    source, state = objects(), objects()
    train(tmp_path / "a", source)
    with pytest.raises(Cut):
        train(tmp_path / "b", state, cut=0, start_from=tmp_path / "a")
    assert same(source["model"], state["model"])
    assert {} == state["optimizer"].state_dict()["state"]
    assert "model starts from" in capsys.readouterr().err
    assert "7 tensors read" in events(tmp_path / "b", "started_from")[0]["report"]

    with pytest.raises(Cut):
        train(tmp_path / "b", objects(), steps=9, cut=1, start_from=tmp_path / "a")
    state = objects()
    run = train(tmp_path / "b", state, steps=1, start_from=tmp_path / "a")
    assert 1 == run.step
    assert not same(source["model"], state["model"])
    assert 2 == len(events(tmp_path / "b", "started_from"))


def test_a_start_takes_a_subset_under_other_names_and_reports_the_rest(tmp_path, capsys):
    """strict=False leaves alone what does not fit, and says what that was."""
    source = objects()
    train(tmp_path / "a", source)
    model: Any = torch.nn.ModuleDict({"body": torch.nn.Linear(2, 3), "head": torch.nn.Linear(3, 1)})
    kept = model["head"].weight.clone()
    start = StartFrom(tmp_path / "a", names="model", rename={"0": "body"}, strict=False)
    with Run(tmp_path / "b", {"model": model}, start_from=start):
        assert torch.equal(source["model"][0].weight, model["body"].weight)
        assert torch.equal(kept, model["head"].weight)
    report = load_into(model, tmp_path / "a", rename={"0": "head"}, strict=False)
    assert ["head.weight", "head.bias"] == report.mismatched
    told = capsys.readouterr().err
    assert "2 tensors read; 2 missing: head.weight, head.bias; 5 unexpected: 1.weight" in told


@pytest.mark.parametrize(
    ("start", "error", "words"),
    [
        (lambda path: path / "nowhere", NotFound, "neither a checkpoint nor a run"),
        (
            lambda path: StartFrom(path / "a", names=("net",)),
            UsageError,
            "no tracked model is called 'net'; there are: m",
        ),
        (lambda path: path / "a", Mismatch, "strict=False reads what fits"),
    ],
)
def test_a_start_that_cannot_be_is_refused(tmp_path, start, error, words):
    """Nothing is overwritten, and the next attempt may try again."""
    train(tmp_path / "a", objects())
    state = objects(width=4)
    before = state["model"][0].weight.clone()
    with pytest.raises(error) as raised:
        train(tmp_path / "b", state, start_from=start(tmp_path))
    assert words in str(raised.value)
    assert torch.equal(before, state["model"][0].weight)
    train(tmp_path / "b", state)


def test_an_override_changes_an_option_once_and_says_so(tmp_path, capsys):
    """The journal has old and new; a restart keeps the value as training left it; another value is another override."""

    def trained(place, steps, cut=None, **options):
        """The learning rate and the weight decay in the end."""
        state = objects()
        try:
            train(tmp_path / place, state, steps, cut, overrides={"optimizer": options})
        except Cut:
            assert cut is not None
        (group,) = state["optimizer"].param_groups
        return group["lr"], group["weight_decay"], len(events(tmp_path / place, "override"))

    train(tmp_path / "later", objects(), steps=2)
    assert (0.5, 0.25, 2) == trained("later", 3, lr=0.5, weight_decay=0.25)
    assert "override: optimizer: group 0: base lr 0.1 -> 0.5" in capsys.readouterr().err
    assert (0.5, 0.25, 2) == trained("later", 4, lr=0.5, weight_decay=0.25)
    assert 3 == trained("later", 5, lr=0.7)[-1]
    for cut in (1, None):  # of a fresh run at its start: not lost, and not made again by a restart
        assert (0.5, 1) == trained("fresh", 3, cut, lr=0.5)[::2]


def test_an_override_reaches_an_optimizer_inside_a_container(tmp_path):
    """By its path, and with the schedule beside it; another path is told with those there are."""

    def objects_inside():
        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return {"all": {"model": model, "parts": [optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 9)]}}

    with Run(tmp_path, objects_inside()) as run:
        for _ in run.steps(1):
            pass
    again = objects_inside()
    with Run(tmp_path, again, overrides={"all/parts/0": {"lr": 0.5}}):
        optimizer, scheduler = again["all"]["parts"]
        assert (0.5, [0.5]) == (optimizer.param_groups[0]["lr"], scheduler.base_lrs)
    with pytest.raises(UsageError, match="all/parts/0"):
        Run(tmp_path, objects_inside(), overrides={"all/parts/7": {"lr": 0.5}})


def test_weights_are_read_without_a_run(tmp_path):
    """The newest, a step's, the best, or a checkpoint's own directory."""
    state, steps = objects(), {}
    with Run(tmp_path, state, every=Every(steps=1), keep=Last(99) | Best("acc", max)) as run:
        for step in run.steps(3):
            learn(state)
            steps[step + 1] = state["model"][0].weight.clone()
            run.log(acc=-abs(step - 1))
    for options, expected in [({}, 3), ({"step": 1}, 1), ({"step": "best"}, 2)]:
        model = objects()["model"]
        report = load_into(model, tmp_path, **options)
        assert report.complete
        assert torch.equal(steps[expected], model[0].weight)
    model = objects()["model"]
    load_into(model, Store(tmp_path)[2].path)
    assert torch.equal(steps[2], model[0].weight)
    with pytest.raises(UsageError, match="the model is a AdamW; give a torch module"):
        load_into(state["optimizer"], tmp_path)
    with pytest.raises(Mismatch, match="strict=False reads what fits"):
        load_into(torch.nn.Linear(1, 1), tmp_path)
    with pytest.raises(NotFound, match="holds no 'net', only model; say name='model'"):
        load_into(model, tmp_path, "net")


@pytest.fixture
def weights(tmp_path):
    """A run of two models with checkpoints of steps 1 and 2; its store, and the models as they were by step."""
    store, by_step = Store(tmp_path / "run"), {}
    for step in (1, 2):
        by_step[step] = pair()
        store.save({name: module.state_dict() for name, module in by_step[step].items()}, step=step)
    return store, by_step


def pair():
    return {"model": torch.nn.Linear(40, 30), "other": torch.nn.Linear(40, 30)}


def test_weights_of_a_damaged_newest_come_wholly_from_an_older_one(weights, capsys):
    """As `Store.load` does; a step that was asked for, or a checkpoint's own directory, is not passed over."""
    store, by_step = weights
    flip(store[2].path / "model.safetensors")
    model = pair()["model"]
    assert load_into(model, store.root).complete
    assert same(by_step[1]["model"], model)
    assert "an older checkpoint is looked at" in capsys.readouterr().err
    for path, step in [(store.root, 2), (store[2].path, None)]:
        with pytest.raises(Damaged, match="model may hold a part of it"):
            load_into(model, path, step=step)


def test_two_models_that_start_from_a_run_take_one_checkpoints_weights(weights, tmp_path):
    """The second one's file is damaged: the first, which was read, is read again from where the second is whole."""
    store, by_step = weights
    flip(store[2].path / "other.safetensors")
    state = pair()
    with Run(tmp_path / "new", state, every=None, start_from=store.root):
        assert same(by_step[1]["model"], state["model"])
        assert same(by_step[1]["other"], state["other"])


def test_where_no_checkpoint_is_whole_weights_are_refused(weights):
    """Untouched where the layout tells; else the error says which model is not to be used. An older one is read
    through first.
    """
    store, by_step = weights
    model, before = pair()["model"], pair()["model"]
    model.load_state_dict(before.state_dict())
    cut = store[1].path / "model.safetensors"
    whole = cut.read_bytes()
    for step in (1, 2):
        (store[step].path / "model.safetensors").write_bytes(b"")
    with pytest.raises(Damaged, match="step-000000002") as raised:
        load_into(model, store.root)
    assert "may hold" not in str(raised.value)
    assert same(before, model)
    cut.write_bytes(whole)
    store.save({"model": model.state_dict()}, step=3)
    flip(cut)
    flip(store[3].path / "model.safetensors")
    with pytest.raises(Damaged, match=r"step-000000003.*model may hold a part of it"):
        load_into(model, store.root)
    assert not any(torch.equal(x, y) for x, y in zip(by_step[1]["model"].parameters(), model.parameters(), strict=True))


@pytest.mark.parametrize("strict", [True, False])
def test_an_older_checkpoint_that_lacks_something_makes_up_for_nothing(weights, strict):
    """What a damaged one has overwritten would stay beside it."""
    store, by_step = weights
    wide = torch.nn.ModuleDict(pair())
    store.save({"model": wide.state_dict()}, step=3)
    store.save({"model": by_step[2]["model"].state_dict()}, step=0)
    flip(store[3].path / "model.safetensors")
    with pytest.raises(Damaged, match=r"step-000000003.*model may hold a part of it"):
        load_into(torch.nn.ModuleDict(pair()), store.root, strict=strict)


def test_weights_that_the_newest_does_not_have_are_not_looked_for_in_an_older_one(weights):
    """Nor those that do not fit it: only damage is passed over."""
    store, _ = weights
    store.save({"critic": pair()["model"].state_dict()}, step=3)
    with pytest.raises(NotFound, match="holds no 'model'"):
        load_into(pair()["model"], store.root)


def test_a_probe_leaves_no_trace(tmp_path):
    """Training flags, gradients, batch norm's averages and random numbers are as without it."""

    def go(path, **options):
        torch.manual_seed(3)
        state = objects()
        probe = lambda: state["model"](torch.randn(5, 2))
        if options:
            options = {"probe": probe}
        state["model"][1].eval()
        train(path, state, steps=3, **options)
        return state["model"]

    probed = go(tmp_path / "probed", probe=True)
    assert same(go(tmp_path / "plain"), probed)
    assert [True, True, False, True] == [module.training for module in probed.modules()]


def test_the_manifest_names_the_model(tmp_path):
    """Its class and how many parameters it has."""
    train(tmp_path, objects())
    model = Store(tmp_path).latest().document["model"]
    assert {"model": {"class": "torch.nn.modules.container.Sequential", "parameters": 15}} == model


class Own(torch.optim.SGD):
    """An author's optimizer, which keeps for each parameter what it likes."""

    def __init__(self, parameters, keeps):
        super().__init__(parameters, lr=0.1)
        self.keeps = keeps

    def step(self, closure=None):
        super().step(closure)
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter] = self.keeps(self.state.get(parameter), parameter)


KEEPS = {
    "keys that are numbers": lambda old, _: {0: (old or {0: torch.zeros(2)})[0] + 1},
    "steps of several": lambda old, _: {"step": (old or {"step": torch.zeros(2)})["step"] + 1},
    "no step yet": lambda old, _: {"step": None, "n": (old or {"n": 0})["n"] + 1},
    "a tensor": lambda old, like: torch.zeros_like(like) + 1 if old is None else old + 1,
    "a list": lambda old, like: [torch.ones_like(like), 1 if not old else old[1] + 1],
}


@pytest.mark.parametrize("keeps", KEEPS.values(), ids=KEEPS)
def test_what_an_authors_optimizer_keeps_is_no_damage(tmp_path, keeps):
    """It goes on as if uninterrupted, and no checkpoint is set aside."""

    def made():
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2)
        optimizer = Own(model.parameters(), keeps)
        return {
            "model": model,
            "optimizer": optimizer,
            "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 100),
        }

    def learned(path, *ends):
        for end in ends:
            with Run(path, state := made(), every=Every(steps=1), keep=Last(9)) as run:
                for _ in run.steps(end):
                    state["optimizer"].zero_grad()
                    state["model"](torch.randn(4, 3)).square().sum().backward()
                    state["optimizer"].step()
        return repr(state["optimizer"].state_dict()["state"])

    assert learned(tmp_path / "a", 2, 5) == learned(tmp_path / "b", 5)
    assert not [*(tmp_path / "a" / "quarantine").iterdir()]


def test_a_scaler_of_another_kind_is_no_damage(tmp_path):
    """It is refused as what does not fit, and no checkpoint is set aside."""

    class Noted(torch.amp.GradScaler):
        def state_dict(self):
            return {**super().state_dict(), "note": 1.0}

        def load_state_dict(self, state):
            super().load_state_dict({key: each for key, each in state.items() if key != "note"} | {"_": state["note"]})

    for error in (None, Mismatch):
        with pytest.raises(error) if error else nullcontext(), Run(tmp_path, {"scaler": Noted("cpu")}) as run:
            assert [*run.steps(2)] == [0, 1]
    assert not [*(tmp_path / "quarantine").iterdir()]
