"""The safe point behind an epoch's last batch: what waits for the end of the body, and what a start from it does."""

import contextlib
import itertools
import random
import signal
import time
from datetime import timedelta

import pytest

from holdfast import Best, Every, Last, Run, Stopped, Store
from holdfast.run import deferred_saves
from run_ranks import Part, among_threads
from toy import Cut, Toy, events, launch, names, new_run, script

EPOCHS, BATCHES = 3, 4


def step(number, *, end=False):
    return f"step-{number:09}" + ("-end" if end else "")


class Unsized:
    """Batches without a length, and with a position."""

    at = 0

    def __iter__(self):
        while self.at < BATCHES:
            self.at += 1
            yield self.at - 1
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


# What waits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("every", [Every(steps=1), Every(steps=4), Every(minutes=1e-9)])
def test_a_periodic_save_waits_for_the_end_of_the_epochs_body(tmp_path, every):
    """Each rule that is due there; it is not lost."""
    with new_run(tmp_path, Toy(), every=every) as run:
        for _ in run.epochs(EPOCHS):
            for _ in run.batches(range(BATCHES)):
                pass
    found = names(tmp_path)
    assert {step(BATCHES * n, end=True) for n in (1, 2, 3)} <= {*found}
    assert not {step(BATCHES * n) for n in (1, 2, 3)} & {*found}


def with_groups(run):
    for _ in run.epochs(2):
        for _ in run.batches(range(5), accumulate=2):
            pass


def test_the_last_group_may_be_short(tmp_path):
    with new_run(tmp_path, Toy()) as run:
        with_groups(run)
    assert [step(1), step(2), step(3, end=True), step(4), step(5), step(6, end=True)] == names(tmp_path)


def by_steps(run):
    for _ in run.epochs(1):
        for _ in run.steps(2):
            pass


def by_outer_steps(run):
    for _ in run.steps(2):
        pass


def by_outer_batches(run):
    for _ in run.batches([1, 2]):
        pass


def by_epochs_of_one_batch(run):
    for _ in run.epochs(2):
        for _ in run.batches([1]):
            pass


def by_epochs_of_one_group(run):
    for _ in run.epochs(2):
        for _ in run.batches([1, 2], accumulate=2):
            pass


def asked(run):
    for _ in run.epochs(1):
        for _ in run.batches([1, 2]):
            run.save()


def unsized(run):
    for _ in run.epochs(1):
        for _ in run.batches(map(int, (1, 2))):
            pass


@pytest.mark.parametrize(
    "loop",
    [by_steps, by_outer_steps, by_outer_batches, by_epochs_of_one_batch, by_epochs_of_one_group, asked, unsized],
)
def test_these_keep_their_safe_points(tmp_path, loop):
    """A loop without batches, one that is all of the run, an epoch of one step, run.save(), a loader of no length."""
    with new_run(tmp_path, Toy()) as run:
        loop(run)
    assert {step(1), step(2)} <= {*names(tmp_path)}


def test_a_new_best_is_saved_where_it_was_measured(tmp_path):
    """At the end of the body the weights may be others."""
    with new_run(tmp_path, Toy(), every=None, keep=Best("score", max)) as run:
        for _ in run.epochs(1):
            for batch in run.batches([1, 2, 3]):
                run.log(score=batch)
    assert step(3) == Store(tmp_path, keep=Best("score", max)).best().name


# A stop --------------------------------------------------------------------------------------------------------------


def stopped(path, *, epoch=1, evaluation_s=0.0, loader=range(BATCHES), **options):
    """A run that gets SIGTERM in an epoch's last batch."""
    with pytest.raises(Stopped) as found, new_run(path, Toy(), every=None, **options) as run:
        for number in run.epochs(EPOCHS):
            for batch in run.batches(loader):
                if (number, batch) == (epoch, BATCHES - 1):
                    signal.raise_signal(signal.SIGTERM)
            time.sleep(evaluation_s)
    assert found.value.reason.startswith("SIGTERM")
    return names(path)


def test_a_stop_goes_on_to_the_end_of_the_body_if_the_grace_is_known_and_enough(tmp_path, monkeypatch):
    """Nothing is saved between the two."""
    monkeypatch.setattr(deferred_saves, "SHORT_S", 0.0)
    monkeypatch.setattr("holdfast.run.stop.JobClock.certainly_alive_until", lambda _: time.time() + 30)
    assert [step(8, end=True)] == stopped(tmp_path / "enough")
    monkeypatch.setattr("holdfast.run.stop.JobClock.certainly_alive_until", lambda _: time.time() + 1)
    assert [step(8)] == stopped(tmp_path / "short", evaluation_s=0.05)


def test_a_deadline_is_known(tmp_path, monkeypatch):
    """What remains until it is enough for the body, though not for another step."""
    monkeypatch.setattr(deferred_saves, "SHORT_S", 0.0)
    with pytest.raises(Stopped), new_run(tmp_path, Toy(), every=None, deadline=timedelta(seconds=2.5)) as run:
        for number in run.epochs(EPOCHS):
            for batch in run.batches(range(BATCHES)):
                if (number, batch) == (1, BATCHES - 1):
                    time.sleep(1.3)
    assert [step(8, end=True)] == names(tmp_path)


def test_a_stop_saves_first_and_goes_on_if_the_body_is_short(tmp_path):
    """Nobody knows the grace; a process that is killed meanwhile has lost nothing."""
    assert [step(8), step(8, end=True)] == stopped(tmp_path)


def test_a_stop_saves_at_once_if_the_time_is_not_known(tmp_path, monkeypatch):
    """Of the body, in the first epoch; or of the grace, where the body is long; or whether the batch is the last."""
    assert [step(4)] == stopped(tmp_path / "first", epoch=0)
    monkeypatch.setattr(deferred_saves, "SHORT_S", 0.01)
    assert [step(8)] == stopped(tmp_path / "long", evaluation_s=0.02)
    assert [step(8)] == stopped(tmp_path / "unsized", loader=Unsized())


def test_several_ranks_wait_alike(tmp_path, monkeypatch):
    """By rank 0's clock: a stop, and a save that is due; a loader of no length on one rank changes nothing."""
    among = among_threads(monkeypatch)

    def work(rank):
        part = Part(rank)
        with Run(tmp_path, {"part": part}, every=Every(steps=4), keep=Last(9)) as run:
            for number in run.epochs(9):
                for batch in run.batches(Unsized() if rank else range(BATCHES)):
                    part.learn()
                    if (number, batch) == (2, 2) and rank == 0:
                        run._session.stop.receive_from_rank("SIGTERM")

    assert [Stopped, Stopped] == [type(each) for each in among(2, work)]
    assert {step(4, end=True), step(8, end=True)} <= {*names(tmp_path)}
    assert not {step(4), step(8)} & {*names(tmp_path)}


# A start from there --------------------------------------------------------------------------------------------------


class Meter:
    def __init__(self):
        self.values = []


def trained(path, *, die=None, fail=None, epochs=EPOCHS, loader=range(BATCHES), **options):
    """The epoch's body reads behind its loop what only the loop's body fills. `die`: the epoch that SIGTERM ends."""
    toy = Toy()
    with new_run(path, toy, **{"every": Every(steps=3), "background": False, **options}) as run:
        for number in run.epochs(epochs):
            meter = Meter()
            for batch in run.batches(loader):
                toy.learn(batch)
                meter.values.append(1)
                if (number, batch) == (die, BATCHES - 1):
                    signal.raise_signal(signal.SIGTERM)
            if number == fail:
                raise OSError
            toy.learn(int(bool(1 / len(meter.values))))
    return toy.value


@pytest.fixture
def seeded():
    random.seed(1)


def test_the_start_after_a_failed_one_takes_the_checkpoint_before(tmp_path, seeded, monkeypatch, capsys):
    """And reaches the end with the undisturbed bits. The one that lay behind the batches is set aside, not deleted."""
    monkeypatch.setattr(deferred_saves, "SHORT_S", 0.0)
    expected = trained(tmp_path / "whole")
    path = tmp_path / "run"
    for keep in (Last(1), Last(3)):
        path = tmp_path / str(keep)
        random.seed(1)
        with pytest.raises(Stopped):
            trained(path, die=1, keep=keep)
        assert names(path)[-2:] == [step(6), step(8)]
        with pytest.raises(ZeroDivisionError):
            trained(path, keep=keep)
        assert "the next start goes on from step-000000006" in capsys.readouterr().err
        assert expected == trained(path, keep=keep)
        assert "step-000000008 (failed behind its epoch's last batch" in capsys.readouterr().err
        assert [step(8)] == [each.name.partition("-poison")[0] for each in (path / "quarantine").iterdir()]


def test_the_one_before_stays_although_the_rule_keeps_one(tmp_path, seeded):
    """A loader without a length: nobody knows which batch is the last. The next save lets it go."""
    toy = Toy()
    seen = []
    with new_run(tmp_path, toy, keep=Last(1), background=False) as run:
        for _ in run.epochs(1):
            for _ in run.batches(Unsized()):
                seen += [names(tmp_path)]
    assert [[], [step(1)], [step(1), step(2)], [step(2), step(3)]] == seen
    assert [step(4, end=True)] == names(tmp_path)[-1:]


def reads_what_the_body_sets(path, *, first=0, stop=False, error=None, **options):
    random.seed(1)
    toy = Toy()
    with new_run(path, toy, every=None, background=False, **options) as run:
        for _ in run.epochs(range(first, first + EPOCHS)):
            for batch in run.batches(range(BATCHES)):
                toy.learn(batch)
                last = batch
                if stop and run.step == BATCHES - 1:
                    signal.raise_signal(signal.SIGTERM)
            if error is not None:
                raise error
            toy.learn(last)
    return toy.value


@pytest.mark.parametrize("first", [0, 3])
def test_before_the_first_checkpoint_of_the_first_epoch_lies_the_beginning(tmp_path, monkeypatch, capsys, first):
    """The start after the failed one begins there; so does the next one, if that one dies before its first save."""
    monkeypatch.setattr(deferred_saves, "SHORT_S", 0.0)
    expected = reads_what_the_body_sets(tmp_path / "whole", first=first)
    path = tmp_path / "run"
    with pytest.raises(Stopped):
        reads_what_the_body_sets(path, first=first, stop=True)
    with pytest.raises(NameError):
        reads_what_the_body_sets(path, first=first)
    assert "the next start goes on from the beginning" in capsys.readouterr().err
    with pytest.raises(OSError):
        reads_what_the_body_sets(path, first=first, error=OSError())
    assert "step-000000004 (failed behind its epoch's last batch" in capsys.readouterr().err
    assert ["step-000000004-first-epoch"] == [each.name for each in (path / "quarantine").iterdir()]
    assert expected == reads_what_the_body_sets(path, first=first)


@pytest.mark.parametrize("error", [OSError(), NameError("'typo'"), RuntimeError()])
def test_an_error_that_may_have_another_cause_costs_no_epoch(tmp_path, monkeypatch, capsys, error):
    """A full disk, a lost node: the checkpoint stays."""
    monkeypatch.setattr(deferred_saves, "SHORT_S", 0.0)
    with pytest.raises(Stopped):
        reads_what_the_body_sets(tmp_path, stop=True)
    for _ in range(2):
        with pytest.raises(type(error)):
            reads_what_the_body_sets(tmp_path, error=error)
        assert "or start with allow_fresh=True to begin anew" in capsys.readouterr().err
    assert [step(4)] == names(tmp_path)
    reads_what_the_body_sets(tmp_path, allow_fresh=True)


def test_only_an_error_behind_the_batches_counts(tmp_path, seeded, monkeypatch):
    """Not one in a later step, nor one after a start from elsewhere, nor one of a script that was changed since."""
    monkeypatch.setattr(deferred_saves, "SHORT_S", 0.0)
    path = tmp_path / "run"
    with pytest.raises(OSError):
        trained(path, fail=1)  # it began afresh
    with pytest.raises(OSError):
        trained(path, fail=1)  # and here in mid-epoch
    assert not [each for each in events(path, "failed") if each.get("behind")]
    with pytest.raises(Stopped):
        trained(path, die=1)
    with pytest.raises(ZeroDivisionError):
        trained(path)
    assert 1 == len([each for each in events(path, "failed") if each.get("behind")])
    monkeypatch.setattr("holdfast.run.failures.program_version", lambda: "changed")
    with pytest.raises(ZeroDivisionError):
        trained(path)
    assert step(8) in names(path)


def test_the_start_names_what_only_the_body_sets(tmp_path, capsys):
    """Read behind the loop; not what a restore brings back, and nothing in mid-epoch."""

    def go(*, cut):
        total = 0
        toy = Toy()
        with (
            contextlib.suppress(KeyboardInterrupt, UnboundLocalError),
            new_run(tmp_path / str(cut), toy, every=None) as run,
        ):
            for _ in run.epochs(1):
                for loss in run.batches([1, 2, 3]):
                    total += loss
                    unused = loss  # noqa: F841
                    toy = toy  # noqa: PLW0127
                    if run.step + 1 == cut:
                        run.save()
                if run.step == 3 and not resumed:
                    raise KeyboardInterrupt
                print(loss, total, toy)

    for cut, told in ((3, ["loss", "total"]), (2, [])):
        resumed = False
        go(cut=cut)
        resumed = True
        capsys.readouterr()
        go(cut=cut)
        said = capsys.readouterr().err
        assert bool(told) == ("resumes behind the last batch of epoch 1" in said)
        assert not told or f"which sets {', '.join(told)}: keep that in run.vars" in said


def test_a_failure_in_a_run_without_a_block_counts_as_well(tmp_path):
    """By an exception that ends the script."""
    path = script(
        tmp_path,
        """
        run = new_run(RUN, toy, every=Every(steps=3), background=False).start()
        for epoch in run.epochs(3):
            total = count = 0
            for x in run.batches(range(4)):
                toy.learn(x)
                count += 1
                if (epoch, x) == (0, 3) and "die" in sys.argv:
                    send("TERM")
            toy.learn(1 // count)
        print(toy.value)
        """,
    )
    codes = [launch(path, *words).code for words in (["die"], [], [])]
    assert [75, 1, 0] == codes
    assert ["step-000000004-poison"] == [each.name for each in (tmp_path / "run/quarantine").iterdir()]


def test_itertools_does_not_hide_the_loop(tmp_path, capsys):
    """The `for` of the script is found behind an iterator that wraps the run's."""

    def go(*, again):
        with contextlib.suppress(KeyboardInterrupt), new_run(tmp_path, Toy(), every=None) as run:
            for _ in run.epochs(1):
                for loss in itertools.chain(run.batches([1, 2])):  # noqa: B007
                    run.save()
                if not again:
                    raise KeyboardInterrupt
                print(loss)

    go(again=False)
    with pytest.raises(UnboundLocalError):
        go(again=True)
    assert "which sets loss" in capsys.readouterr().err


def test_code_between_two_loops_of_an_epoch_is_code_behind_the_first(tmp_path, capsys):
    """Resumed inside the second: the error is no dead end, and what the first one's body sets is named."""

    def trained(cut, fail=False):
        with new_run(tmp_path, Toy(), background=False) as run:
            for _ in run.epochs(2):
                for batch in run.batches([1, 2], name="first"):
                    last = batch
                assert fail or last  # before a loop in the epoch's body
                for _ in run.batches([1, 2, 3], name="second"):
                    if fail:
                        raise OSError
                    if run.step == cut:
                        raise Cut

    with pytest.raises(Cut):
        trained(3)
    assert [step(1), step(3)] == names(tmp_path)
    with pytest.raises(OSError):
        trained(None, fail=True)
    with pytest.raises(UnboundLocalError):
        trained(None)
    said = capsys.readouterr().err
    assert "resumes behind the last batch of epoch 1" in said
    assert "which sets last: keep that in run.vars" in said
    assert f"the next start goes on from {step(1)}" in said
    trained(None)
