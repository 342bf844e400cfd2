"""The run as a user meets it: what it takes, what its loops mean, when it saves, and what it refuses in which words."""

import contextlib
import dataclasses
import enum
import json
import random
import signal
import threading
from typing import Any, NamedTuple

import numpy as np
import pytest

from holdfast import Best, Every, Run, Stopped, Store, disk
from holdfast.errors import NoSpace, Superseded, UsageError
from holdfast.run import report
from subjects import asked_of
from toy import Cut, Toy, events, names, new_run


def reasons(path):
    return [event["reason"] for event in events(path, "saved")]


# What it takes -------------------------------------------------------------------------------------------------


def test_zero_options_work(tmp_path):
    """A path and a mapping are enough; the end is saved."""
    with Run(tmp_path / "x", {"toy": Toy()}) as run:
        for _ in run.epochs(1):
            for batch in run.batches([1, 2]):
                assert batch in (1, 2)
    assert ["step-000000002-end"] == names(tmp_path / "x")


class Hooked:
    """A plain stateful object."""

    def __init__(self):
        self.items = [1]

    def state_dict(self):
        return {"items": self.items}

    def load_state_dict(self, state):
        self.items = state["items"]


def test_any_stateful_object_and_any_generator_is_tracked(tmp_path):
    """state_dict() and load_state_dict() suffice; random.Random and NumPy's Generator need neither."""

    def once():
        tracked: dict[str, Any] = {"hooked": Hooked(), "dice": random.Random(), "numbers": np.random.default_rng()}
        with Run(tmp_path, tracked) as run:
            for _ in run.steps(1):
                tracked["hooked"].items.append(2)
        return tracked["hooked"].items, tracked["dice"].random(), tracked["numbers"].random()

    first = once()
    assert first == once()
    assert [1, 2] == first[0]


REFUSED = [
    ([Toy()], "one mapping: Run(path, dict(model=model"),
    (Toy(), "one mapping"),
    ({"count": 3}, "state['count'] is a int, which cannot be changed in place: write Run(..., vars=dict(count=...))"),
    ({"pair": (1, 2)}, "and run.vars.pair in the loop"),
    ({"pair": (Toy(), Toy())}, "state['pair'] is a tuple, which cannot be changed in place: give a list"),
    ({"name": np.float32(1)}, "state['name'] is a float32 and cannot be filled in place"),
    ({"env": object()}, 'state=dict(env=Fields(env, "...", "..."))'),
    ({"kind": Toy}, "state['kind'] is a type"),
    ({"holdfast": Toy()}, "'holdfast' is Holdfast's own"),
    ({"": Toy()}, "names are non-empty strings"),
    ({3: Toy()}, "state key 3"),
]
WRONG = [
    ({"keep": 3}, "give a rule, as in Last(3)"),
    ({"every": 10}, "give Every(steps=1000)"),
    ({"accept": "batchsize"}, "what a loader can change is accumulate, batch_size"),
    ({"vars": 5}, "as in Run(..., vars=dict(patience=0))"),
    ({"vars": {"state_dict": 5}}, "cannot hold 'state_dict'"),
    ({"start_from": "a", "branch_from": "b"}, "give one of them"),
    ({"overrides": {"lr": 0.1}}, 'as in overrides={"optimizer": {"lr": 1e-3}}'),
    ({"overrides": 3}, 'as in overrides={"optimizer": {"lr": 1e-3}}'),
    ({"overrides": {"opt": {"lr": 1}}}, "nothing is tracked as 'opt', only toy"),
    ({"overrides": {"toy": {"lr": 1}}}, "'toy' is a Toy, without options to set"),
    ({"types": ["Colour"]}, "give the classes themselves"),
    ({"seed": 1.5}, "seed=1.5: give a whole number"),
    ({"seed": 10**5000}, "give a whole number below 2**64"),
]


def test_what_cannot_be_tracked_or_asked_is_refused_when_the_run_is_made(tmp_path):
    """Before anything is written, and not ten minutes later, at the first save."""
    cases: list[tuple[Any, Any, str]] = [(state, {}, words) for state, words in REFUSED]
    cases += [({"toy": Toy()}, options, words) for options, words in WRONG]
    for state, options, words in cases:
        with asked_of(words), pytest.raises(UsageError) as raised:
            Run(tmp_path / "x", state, **options)
        assert words in str(raised.value)
    assert not (tmp_path / "x").exists()


def test_a_seed_of_numpys_is_kept_as_a_plain_number(tmp_path):
    """Else the checkpoint could be written and not read again."""
    for total in (1, 2):
        with Run(tmp_path, {"toy": Toy()}, seed=np.int64(3)) as run:
            assert [total - 1] == list(run.steps(total))


def test_a_refused_start_owns_nothing(tmp_path):
    """The corrected one begins in the same process; what cannot be stored is refused before the first save."""
    for options, words in [
        ({"deadline": 600}, "give a datetime, a timedelta from now, or Unix seconds"),
        ({"vars": {"later": lambda: 1}}, "later"),
    ]:
        with pytest.raises(UsageError, match=words):
            new_run(tmp_path, Toy(), **options).__enter__()
    with new_run(tmp_path, Toy()) as run:
        assert [0] == list(run.steps(1))


def test_outside_of_its_block_a_run_says_where_it_belongs(tmp_path):
    """Before it: enter it. After it: position and metrics can still be read."""
    run = new_run(tmp_path, Toy())
    for call in (run.save, run.safe_point, lambda: run.log(a=1), lambda: run.epochs(1), lambda: run.steps(1)):
        with pytest.raises(UsageError, match="inside `with Run"):
            call()
    with pytest.raises(AttributeError, match=r"run\.vars\.best has no value yet.*vars=dict\(best=\.\.\.\)"):
        _ = run.vars.best
    with pytest.raises(UsageError, match="enter it first"):
        _ = run.step
    with run:
        list(run.steps(2))
    assert (2, 0) == (run.step, run.epoch)
    assert [] == run.metrics()


def test_a_run_is_entered_once_at_a_time_and_again_afterwards(tmp_path):
    """A second entry goes on where the first one ended."""
    run = new_run(tmp_path, Toy())
    with run, pytest.raises(UsageError, match="entered already"):
        run.__enter__()
    with run:
        assert [0, 1] == list(run.steps(2))
    with run:
        assert [2] == list(run.steps(3))


def test_a_fresh_start_with_used_objects_is_told(tmp_path, capsys):
    """The same Run again, with nothing saved: the objects are no longer what they were."""
    run = new_run(tmp_path, Toy(), every=None)
    with pytest.raises(Cut), run:
        for step in run.steps(3):
            if step == 1:
                raise Cut
    with run:
        pass
    assert "as the last attempt in this process left them" in capsys.readouterr().err


# run.vars ------------------------------------------------------------------------------------------------------


class Colour(enum.Enum):
    RED = 1


@dataclasses.dataclass
class Point:
    x: int


class Pair(NamedTuple):
    a: int
    b: int


def test_variables_begin_with_their_first_values_and_are_restored(tmp_path):
    """A name that is new in the script keeps its first value; one that was changed comes back."""
    with new_run(tmp_path, Toy(), vars={"patience": 0, "history": []}) as run:
        for _ in run.steps(2):
            run.vars.patience += 1
            run.vars.history.append(run.step)
    with new_run(tmp_path, Toy(), vars={"patience": 0, "history": [], "new": 7}) as run:
        assert (2, [0, 1], 7) == (run.vars.patience, run.vars.history, run.vars.new)


def test_types_of_ones_own_in_variables_come_back(tmp_path):
    """Those that the first values hold are known; others are named in types=, and missing ones are asked for by
    name.
    """
    with new_run(tmp_path, Toy(), vars={"colour": Colour.RED}) as run:
        for _ in run.steps(1):
            run.vars.where, run.vars.pair = Point(3), Pair(1, 2)
    with pytest.raises(UsageError, match="Point"):
        new_run(tmp_path, Toy(), vars={"colour": Colour.RED}).__enter__()
    with new_run(tmp_path, Toy(), types=[Colour, Point, Pair]) as run:
        assert (Colour.RED, Point(3), Pair(1, 2)) == (run.vars.colour, run.vars.where, run.vars.pair)
    with new_run(tmp_path, Toy(), vars={"colour": Colour.RED, "pair": Pair(0, 0)}, types=Point) as run:
        assert Point(3) == run.vars.where


# Loops and safe points -----------------------------------------------------------------------------------------


COUNTED = {
    "batches": (
        lambda run: [(epoch, run.epoch, run.step) for epoch in run.epochs(2) for _ in run.batches([0, 0])],
        [(0, 0, 0), (0, 0, 1), (1, 1, 2), (1, 1, 3)],
        4,
    ),
    "groups, the last one short": (
        lambda run: [run.step for _ in run.epochs(2) for _ in run.batches(range(10), accumulate=4)],
        [*[0] * 4, *[1] * 4, *[2] * 2, *[3] * 4, *[4] * 4, *[5] * 2],
        6,
    ),
    "steps inside epochs": (
        lambda run: [(epoch, step, run.step) for epoch in run.epochs(2) for step in run.steps(2)],
        [(0, 0, 0), (0, 1, 1), (1, 0, 2), (1, 1, 3)],
        4,
    ),
    "epochs without steps, which count as one": (lambda run: [*run.epochs(2)], [0, 1], 2),
    "a loader made anew in each epoch": (
        lambda run: [pair for epoch in run.epochs(2) for pair in run.batches(zip([epoch], [epoch], strict=True))],
        [(0, 0), (1, 1)],
        2,
    ),
    "a list made anew in each epoch": (
        lambda run: [batch for epoch in run.epochs(2) for batch in run.batches([epoch] * (epoch + 1), "list")],
        [0, 1, 1],
        3,
    ),
}


def test_step_and_epoch_count_what_is_complete(tmp_path):
    """In the body of step n, n steps are done; epochs count from 0; each safe point has a name of its own."""
    for subject, (loop, expected, steps) in COUNTED.items():
        with asked_of(subject), new_run(tmp_path / subject, Toy()) as run:
            assert expected == loop(run)
            assert (2, steps) == (run.epoch, run.step)
        assert (subject, f"step-{steps:09d}-end") == (subject, names(tmp_path / subject)[-1])
    assert ["step-000000001-end", "step-000000002-end"] == names(tmp_path / "epochs without steps, which count as one")


def test_two_loaders_one_after_the_other_have_a_position_each(tmp_path):
    """Under names of their own; the same name twice in one epoch is refused. Without epochs, a pass over nothing more
    saves nothing twice.
    """
    with new_run(tmp_path, Toy()) as run:
        for _ in run.epochs(1):
            assert [1, 2] == list(run.batches([1, 2]))
            assert [3] == list(run.batches([3], "more"))
            with pytest.raises(UsageError, match="give each loop its own name"):
                list(run.batches([3], "more"))
    assert 3 == run.step
    with new_run(tmp_path / "no epochs", Toy()) as run:
        assert [1] == list(run.batches([1]))
        assert [] == list(run.batches([], "nothing"))
    assert ["step-000000001", "step-000000001-end"] == names(tmp_path / "no epochs")


def test_nesting_that_would_put_a_safe_point_into_a_body_is_refused(tmp_path):
    """Both loops are named, and what to do."""
    pairs = "epochs epochs", "batches batches", "batches epochs", "steps steps", "steps batches", "batches steps"
    for outer, inner in map(str.split, pairs):
        run = new_run(tmp_path / f"{outer} {inner}", Toy())
        loop: dict[str, Any] = {
            "epochs": lambda run=run: run.epochs(2),
            "steps": lambda run=run: run.steps(2),
            "batches": lambda run=run, name=outer + inner: run.batches([1, 2], name=name),
        }
        with run:
            for _ in loop[outer]():
                with pytest.raises(UsageError, match=rf"run\.{inner}\(\) inside run\.{outer}\(\)"):
                    next(iter(loop[inner]()))
                break


def test_a_safe_point_of_ones_own_is_for_loops_of_another_shape(tmp_path):
    """Each counts one step, also in the body of an epoch; save() elsewhere saves at once. Other loops have theirs."""
    with new_run(tmp_path, Toy(), every=None) as run:
        while run.step < 3:
            run.log(step=run.step)
            run.safe_point()
        run.save()
        run.save()  # is there already
        run.safe_point()
    assert ["step-000000003", "step-000000004"] == names(tmp_path)
    assert [1, 2, 3] == [line["step"] for line in run.metrics()]
    with new_run(tmp_path / "epochs", Toy()) as run:
        for _ in run.epochs(1):
            for _ in run.batches([1]):
                with pytest.raises(UsageError, match="remove the call"):
                    run.safe_point()
            run.safe_point()
    assert 2 == run.step


def test_saving_twice_without_a_step_in_between_is_refused(tmp_path):
    """A loop that calls save() alone would save its first state only. After a loop has saved its end, it is allowed."""
    with new_run(tmp_path, Toy(), every=None) as run:
        run.save()
        with pytest.raises(UsageError, match=r"call run\.safe_point\(\) after each"):
            run.save()
    with new_run(tmp_path / "after", Toy(), every=None) as run:
        list(run.steps(2))
        run.save()
        run.save()
    assert ["step-000000002"] == names(tmp_path / "after")


def test_saving_inside_a_body_waits_for_the_safe_point(tmp_path):
    """A save lies between steps, never within one."""
    toy = Toy()
    with new_run(tmp_path, toy, every=None) as run:
        for step in run.steps(4):
            if step == 1:
                run.save()
                assert [] == names(tmp_path)
            toy.value = step
    assert ["step-000000002", "step-000000004"] == names(tmp_path)
    assert 1 == Store(tmp_path)[2].load("toy")["value"]
    assert ["asked", "the end"] == reasons(tmp_path)


# When it saves -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("every", "expected"),
    [
        (Every(steps=3), [(3, "step"), (6, "step"), (8, "end")]),
        (Every(epochs=1), [(4, "end"), (8, "end")]),
        (Every(minutes=1e-9), [(n, "step") for n in range(1, 4)] + [(4, "end")]
         + [(n, "step") for n in range(5, 8)] + [(8, "end")]),
        (Every(minutes=10), [(8, "end")]),
        (None, [(8, "end")]),
    ],
)  # fmt: skip
def test_every_says_when(tmp_path, every, expected):
    """Besides, the end is always saved."""
    with new_run(tmp_path, Toy(), every=every) as run:
        for _ in run.epochs(2):
            list(run.batches(range(4)))
    assert expected == [(c.step, c.phase) for c in Store(tmp_path).checkpoints()]


def test_a_new_best_is_saved_at_its_safe_point(tmp_path):
    """With the metrics of that safe point and no other's; a tie, a worse one and NaN are none."""
    values = [0.1, 0.3, 0.3, 0.2, float("nan"), 0.4]
    with new_run(tmp_path, Toy(), every=None, keep=Best("acc", max, n=1)) as run:
        for value in values:
            run.log(acc=value)
            run.safe_point()
            run.safe_point()
    assert [1, 3, 11, 12] == [event["step"] for event in events(tmp_path, "saved")]
    best = Store(tmp_path, keep=Best("acc", max)).best()
    assert (11, {"acc": 0.4}) == (best.step, best.metrics)


def test_what_was_measured_before_the_step_is_not_ranked_after_it(tmp_path):
    """An evaluation at the head of the epoch's body belongs to other weights: logged, and no new best."""
    with new_run(tmp_path, Toy(), every=None, keep=Best("acc", max)) as run:
        for epoch in run.epochs(2):
            run.log(acc=epoch)
            for _ in run.batches([1, 2]):
                run.log(loss=0)
    assert {"the end"} == set(reasons(tmp_path))
    assert [{"acc": 0, "loss": 0}, {"loss": 0}] * 2 == [
        line["values"] | ({"acc": 0} if "acc" in line["values"] else {}) for line in run.metrics()
    ]


def test_a_checkpoint_says_where_it_came_from_without_secrets(tmp_path):
    """Hyperparameters, dataset, note and metrics are in the manifest; what looks like a secret is not."""
    options = {"hyperparameters": {"lr": 0.1, "api_key": "hunter2"}, "dataset": "digits v1", "note": "first try"}
    with new_run(tmp_path, Toy(), every=None, **options) as run:
        for _ in run.steps(1):
            run.log(loss=0.5)
    (checkpoint,) = Store(tmp_path).checkpoints()
    told = checkpoint.document
    assert ({"lr": 0.1, "api_key": "[redacted]"}, "digits v1") == (told["hyperparameters"], told["dataset"])
    assert ("first try", {"loss": 0.5}) == (checkpoint.manifest.note, checkpoint.metrics)
    assert {"git", "libraries", "python", "host", "command", "model"} <= told.keys()
    assert "hunter2" not in (checkpoint.path / "manifest.json").read_text()


# Trouble -------------------------------------------------------------------------------------------------------


def full(monkeypatch, when):
    """The disk is full whenever `when()` says so."""
    real = disk.free_bytes
    monkeypatch.setattr(disk, "free_bytes", lambda path: 10 if when() else real(path))


@pytest.mark.parametrize("background", [True, False])
def test_a_full_disk_lets_training_go_on_until_the_end(tmp_path, monkeypatch, capsys, background):
    """A periodic save is skipped, loudly, and made up for at the next one; the last one must succeed."""
    run = new_run(tmp_path, Toy(), every=Every(steps=2), background=background)
    answers = iter([True])  # to the first save
    full(monkeypatch, lambda: next(answers, False))
    with run:
        list(run.steps(6))
    assert ["step-000000004", "step-000000006"] == names(tmp_path)
    assert "step 2 is not saved, and training goes on" in capsys.readouterr().err
    assert [2] == [event["step"] for event in events(tmp_path, "save_failed")]

    run = new_run(tmp_path, Toy(), every=None)
    full(monkeypatch, lambda: True)
    with pytest.raises(NoSpace), run:
        list(run.steps(8))
    assert ["step-000000004", "step-000000006"] == names(tmp_path)


def test_a_disk_too_full_for_the_journal_is_a_full_disk_too(tmp_path, monkeypatch):
    """Metrics wait in memory and are written once, when there is room."""
    run = new_run(tmp_path, Toy(), every=Every(steps=2))
    real = disk.append
    answers = iter([True])  # to the first save
    monkeypatch.setattr(report, "FLUSH_S", 1e9)  # no line is shown before its save

    def append(path, data, *, sync):
        if next(answers, False):
            raise OSError(28, "No space left on device")
        real(path, data, sync=sync)

    with run:
        for step in run.steps(6):
            if step == 2:  # the first step's own line is shown at once
                monkeypatch.setattr(disk, "append", append)
            run.log(step=step)
    assert list(range(1, 7)) == [line["step"] for line in run.metrics()]
    assert ["step-000000004", "step-000000006"] == names(tmp_path)


def test_a_run_that_was_taken_over_writes_nothing_more(tmp_path):
    """Superseded at the next save, and the successor's checkpoints stay as they are. The successor runs in a thread
    that is not the main one: it gets no signals, and needs none.
    """
    steps = []

    def succeed():
        with new_run(tmp_path, Toy(), take_over=True) as other:
            steps.extend(other.steps(3))

    with pytest.raises(Superseded, match="was superseded by a later one"), new_run(tmp_path, Toy()) as run:
        for step in run.steps(5):
            if step == 2:
                run.wait()  # the save of step 2
                successor = threading.Thread(target=succeed)
                successor.start()
                successor.join()
    assert [2] == steps
    assert ["step-000000001", "step-000000002", "step-000000003"] == names(tmp_path)


def test_a_second_run_in_the_same_directory_is_refused_by_name(tmp_path):
    """In the same process too."""
    with (
        new_run(tmp_path, Toy()),
        pytest.raises(UsageError, match=r"may still be running: pid \d+ .*this very process"),
    ):
        new_run(tmp_path, Toy()).__enter__()


def test_an_exception_saves_nothing(tmp_path, monkeypatch):
    """The state of an unfinished step never becomes a checkpoint. The journal tells the error; a journal that cannot be
    written does not hide it.
    """
    for path in (tmp_path / "told", tmp_path / "full"):
        with pytest.raises(ValueError, match="boom"), new_run(path, Toy(), every=Every(steps=2)) as run:
            for step in run.steps(9):
                if step == 3:
                    if path.name == "full":
                        monkeypatch.setattr(disk, "append", lambda *_, **__: (_ for _ in ()).throw(OSError(28, "full")))
                    raise ValueError("boom")
        assert ["step-000000002"] == names(path)
    (failed,) = events(tmp_path / "told", "failed")
    assert (3, "ValueError: boom") == (failed["step"], failed["error"])


def test_a_stop_that_is_swallowed_is_raised_again(tmp_path):
    """A bare `except:` cannot make a run go on, or save half an epoch as a whole one; nor in a loop of another
    shape.
    """
    stop = lambda: signal.raise_signal(signal.SIGTERM)
    run = new_run(tmp_path, Toy())
    with pytest.raises(Stopped) as stopped, run:
        for _ in run.epochs(3):
            with contextlib.suppress(BaseException):
                for batch in run.batches(range(4)):
                    if batch == 1:
                        run.wait()
                        stop()
    assert 75 == stopped.value.code
    assert ["step-000000001", "step-000000002"] == names(tmp_path)

    with pytest.raises(Stopped), run, contextlib.suppress(BaseException):
        for _ in run.epochs(3):
            for _ in run.batches(range(4)):
                stop()
    assert "step-000000003" == names(tmp_path)[-1]
    assert "stop" == events(tmp_path, "stop")[-1]["event"]

    for kind in (Exception, BaseException):  # the first one does not swallow it
        run = new_run(tmp_path / kind.__name__, Toy())
        with pytest.raises(Stopped), run:
            for _ in range(4):
                stop()
                with contextlib.suppress(kind):
                    run.safe_point()
                assert kind is BaseException
        assert (1, ["step-000000001"]) == (run.step, names(tmp_path / kind.__name__))


# The environment -----------------------------------------------------------------------------------------------


def drilled(monkeypatch, **wishes):
    monkeypatch.setenv("HOLDFAST_DRILL", json.dumps(wishes))


def test_a_drill_ends_a_run_early_and_keeps_its_own_interval(tmp_path, monkeypatch):
    """At the step it was told, with the journal saying so; a run that is there already makes no further step."""
    drilled(monkeypatch, steps=5, save_every_steps=2)
    for _ in range(2):
        with pytest.raises(Stopped), new_run(tmp_path, Toy(), every=None) as run:
            list(run.steps(100))
    assert ["step-000000002", "step-000000004", "step-000000005"] == names(tmp_path)
    assert [("drill limit", 5)] * 2 == [(event["reason"], event["step"]) for event in events(tmp_path, "stop")]


def test_a_drill_sees_the_digests_of_every_safe_point(tmp_path, monkeypatch):
    """A changed object changes its own digest; equal states have equal ones."""
    drilled(monkeypatch, digests=True)
    toy = Toy()
    with new_run(tmp_path, toy) as run:
        for _ in run.epochs(1):
            for batch in run.batches([1, 2]):
                toy.value = batch
    found = events(tmp_path, "digests")
    assert [(1, "step"), (2, "step"), (2, "end")] == [(event["step"], event["phase"]) for event in found]
    toys = [event["leaves"]["tree:toy"] for event in found]
    assert toys[0] != toys[1] == toys[2]
    assert all("tree:holdfast" in event["leaves"] for event in found)


@pytest.mark.parametrize("text", ["{", '{"stps": 3}', '{"steps": "many"}', "[]"])
def test_a_drill_that_nobody_asked_for_is_refused(tmp_path, monkeypatch, text):
    """Before anything is written."""
    monkeypatch.setenv("HOLDFAST_DRILL", text)
    with pytest.raises(UsageError, match="HOLDFAST_DRILL is set, but not by"):
        new_run(tmp_path / "x", Toy()).__enter__()
    assert not (tmp_path / "x").exists()
