"""Loops as people write them: iterators that are held, loops that are left, means, ranges, and endless steps."""

import random
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from holdfast import Every, Store
from holdfast.errors import Damaged, Mismatch, UsageError
from holdfast.journal import Log
from holdfast.run import report
from holdfast.run.finish import count_repeated_steps
from holdfast.run.position import Position
from subjects import asked_of
from toy import Cut, Toy, events, lines, names, new_run


class Bar:
    """Holds what it wraps, as tqdm does: its own iterator is another one each time."""

    def __init__(self, iterable, initial=0):
        self.iterable, self.n = iterable, initial
        self.total = len(iterable)

    def __iter__(self):
        for item in self.iterable:
            yield item
            self.n += 1


# Iterators that somebody still holds ---------------------------------------------------------------------------------


def passes_without_epochs(run):
    return (run.batches(range(10)) for _ in range(3))


def rounds_of_steps(run):
    return (run.steps(10) for _ in range(3))


def folds(run):
    return (run.epochs(10) for _ in range(3))


def endless_rounds(run):
    return (islice(run.steps(), 10) for _ in range(3))


def another_loader_after_a_break(run):
    yield islice(run.batches(range(20)), 10)
    yield run.batches(range(20), "more")


def test_a_loop_that_would_be_empty_is_refused(tmp_path):
    """10, 0, 0 again: totals count over the run. On a restart of a finished loop, too; with what to write."""
    around = r"rite `?for epoch in run\.epochs\(3\):`? around it|for epoch in run\.epochs\(3\)"
    for rounds, words, expected in [
        (passes_without_epochs, around, (10, 0)),
        (rounds_of_steps, around, (10, 0)),
        (folds, "a Run of its own for each training, or give a larger total", (10, 0)),
        (endless_rounds, around, (10,)),
        (another_loader_after_a_break, r"inside `for epoch in run\.epochs\(1\)", (10,)),
    ]:
        for count in expected:
            counts = []
            path = tmp_path / rounds.__name__
            with pytest.raises(UsageError, match=words), new_run(path, Toy()) as run:
                for loop in rounds(run):
                    passes = [*loop]
                    counts.append(len(passes))
            assert (rounds.__name__, [count]) == (rounds.__name__, counts)


def test_a_second_loop_with_a_larger_total_goes_on(tmp_path):
    """Phases of one run; a restart finds all of them done."""
    for expected in ([3, 4], [0, 0]):
        with new_run(tmp_path, Toy()) as run:
            assert expected == [len([*run.steps(total)]) for total in (3, 7)]


def test_a_progress_bar_that_is_held_leaves_each_epoch_its_batches(tmp_path):
    """The bar of the last epoch lives until the next one takes its name."""
    counts, bars = [], []
    with new_run(tmp_path, Toy()) as run:
        for _ in run.epochs(4):
            bar = Bar(run.batches(range(10)))
            bars.append(bar)
            for count, _ in enumerate(bar, 1):
                if count == 5:
                    break
            counts.append((count, run.step))
    assert [(5, 5), (5, 10), (5, 15), (5, 20)] == counts


def test_an_iterator_that_is_held_is_closed_when_its_epoch_ends(tmp_path):
    """Whenever the script lets go of it, nothing changes any more."""
    for when in ("at once", "in the next epoch", "after the block"):
        path, counts, held = tmp_path / when, [], []
        with new_run(path, Toy()) as run:
            for _ in run.epochs(4):
                iterator = iter(run.batches(range(10)))
                for count, _ in enumerate(iterator, 1):
                    if when == "in the next epoch" and count == 3:
                        held.clear()
                    if count == 5:
                        break
                if when != "at once":
                    held.append(iterator)
                del iterator
                counts.append(count)
            assert 20 == run.step
        held.clear()
        assert (when, [5] * 4, 20, 4) == (when, counts, run.step, run.epoch)
        assert "step-000000020-end" == Store(path).latest().name
        assert events(path, "end")[0]["step"] == 20


# What was left counts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["islice", "break"])
def test_a_pass_that_was_left_is_a_step_with_a_line_of_its_own(tmp_path, shape):
    """islice(run.batches(loader), 5) is five steps, and the fifth has its own metrics."""
    with new_run(tmp_path, Toy()) as run:
        for _ in run.epochs(2):
            batches = run.batches(range(10))
            for number, _ in enumerate(islice(batches, 5) if shape == "islice" else batches):
                run.log(number=number)
                if number == 4 and shape == "break":
                    break
            assert run.step in (5, 10)
            run.log(evaluated=run.step)
    steps = [(n + 1, "step", {"number": n % 5}) for n in range(10)]
    ends = [(5, "end", {"evaluated": 5}), (10, "end", {"evaluated": 10})]
    assert [*steps[:5], ends[0], *steps[5:], ends[1]] == lines(tmp_path)


def test_an_exception_that_leaves_the_block_counts_nothing(tmp_path):
    """No step, no line; and a generator that is closed after the block has ended changes nothing."""
    held = []
    with pytest.raises(KeyError), new_run(tmp_path, Toy()) as run:
        for _ in run.epochs(2):
            held.append(iter(run.batches(range(4))))
            for batch in held[-1]:
                run.log(batch=batch)
                if batch == 2:
                    raise KeyError
    assert (2, 0) == (run.step, run.epoch)
    held.clear()
    assert [(1, "step", {"batch": 0}), (2, "step", {"batch": 1})] == lines(tmp_path)
    assert [2] == [event["step"] for event in events(tmp_path, "failed")]


def test_a_run_that_goes_on_after_it_was_left_saves_no_more_than_another(tmp_path):
    """The total was raised; its epochs end as others do, with a save where one is due."""
    for total, left in (3, 0), (8, None):
        with new_run(tmp_path, Toy(), every=None) as run:
            for epoch in run.epochs(total):
                for _ in run.batches(range(2)):
                    pass
                if epoch == left:
                    break
    assert names(tmp_path) == ["step-000000002-end", "step-000000016-end"]


def test_steps_that_were_left_have_their_line_and_their_checkpoint(tmp_path):
    """The metrics of the last pass are in the checkpoint of the end, which a new best is. When another loop follows,
    their line is written as that one begins.
    """

    def three_steps(run):
        for step in run.steps(9):
            run.log(loss=step)
            if step == 2:
                break

    steps = [(n + 1, "step", {"loss": n}) for n in range(3)]
    with new_run(tmp_path / "one", Toy(), every=None) as run:
        three_steps(run)
        run.log(test=1)
    assert [*steps, (3, "exit", {"test": 1})] == lines(tmp_path / "one")
    (checkpoint,) = Store(tmp_path / "one").checkpoints()
    assert ("step-000000003-end", {"loss": 2}) == (checkpoint.name, checkpoint.metrics)
    with new_run(tmp_path / "two", Toy(), every=None) as run:
        three_steps(run)
        for epoch in run.epochs(2):
            run.log(epoch=epoch)
            if epoch == 0:
                break
    assert [*steps, (4, "end", {"epoch": 0})] == lines(tmp_path / "two")


# What loops take and give ------------------------------------------------------------------------------------------


WRONG_ARGUMENTS = {
    "run.steps(None)": "as in run.steps(1000); run.steps() has no end",
    "run.steps(10.0)": "run.steps(10.0): give a number",
    "run.steps(-1)": "run.steps(-1): give a number",
    "run.steps(True)": "run.steps(True): give a number",
    'run.epochs("3")': "run.epochs('3'): give a number of epochs, as in run.epochs(10), or range(1, 11)",
    "run.epochs(None)": "run.epochs(None): give a number",
    "run.epochs(-3)": "run.epochs(-3): give a number",
    "run.epochs(range(0, 10, 2))": "give a range with step 1",
    "run.epochs(range(-1, 10))": "no negative start",
    "run.epochs([1, 2])": "give a number of epochs",
    "run.batches([1], accumulate=0)": "accumulate=0: at least 1",
    "run.batches([1], accumulate=1.5)": "accumulate=1.5: at least 1",
    "run.batches([1], accumulate=True)": "accumulate=True: at least 1",
    "run.batches([1], 4)": 'as in run.batches(loader, name="train")',
    'run.batches([1], "")': "give each loader a name of its own",
    "run.steps(3, 4)": "give each loader a name of its own",
    'run.enumerate([1], "train")': 'the loader\'s name is name=, as in run.enumerate(loader, name="a")',
    'run.mean("loss", weight=3)': "then run.mean('loss', weight=\"n\")",
    'run.mean("los")': "was not given 'los' in this epoch, but nothing",
}


def test_a_wrong_argument_is_refused_at_once_with_what_to_write(tmp_path):
    """When the loop is asked for, and not when it begins."""
    for ask, words in WRONG_ARGUMENTS.items():
        with asked_of(ask), new_run(tmp_path, Toy()) as run, pytest.raises(UsageError) as raised:
            eval(ask, {"run": run})
        assert words in str(raised.value), ask


def test_whole_numbers_of_other_kinds_are_numbers(tmp_path):
    """NumPy's, for one. And a loop object that was made once, before the epochs, is walked anew by each `for`."""
    with new_run(tmp_path, Toy()) as run:
        batches, epochs = run.batches([1, 2]), run.epochs(np.int64(3))
        assert ([[1, 2]] * 3, 3) == ([[*batches] for _ in epochs], len(epochs))


def test_epochs_can_count_from_one(tmp_path):
    """run.epoch and the log say what the loop says; intervals count epochs that are done."""
    seen = []
    with new_run(tmp_path, Toy(), every=Every(epochs=2)) as run:
        for epoch in run.epochs(range(1, 4)):
            seen.append((epoch, run.epoch))
            run.log(epoch=epoch)
    assert [(1, 1), (2, 2), (3, 3)] == seen
    assert [(1, 1), (2, 2), (3, 3)] == [(line["epoch"], line["values"]["epoch"]) for line in run.metrics()]
    assert ["step-000000002-end", "step-000000003-end"] == [c.name for c in Store(tmp_path).checkpoints()]
    with new_run(tmp_path, Toy()) as run:
        assert [] == [*run.epochs(range(1, 4))]
    with new_run(tmp_path, Toy()) as run:
        epochs = run.epochs(range(1, 6))
        assert ([4, 5], 5, 5) == ([*epochs], len(epochs), epochs.done)
    for other in (range(6), range(2, 9), 9):
        words = r"begins with epoch \d, and this run began with epoch 1: write run.epochs\(range\(1, total\)\)"
        with new_run(tmp_path, Toy()) as run, pytest.raises(Mismatch, match=words):
            [*run.epochs(other)]
    assert "step-000000005-end" == Store(tmp_path).latest().name


def test_a_run_that_counts_from_zero_does_not_change_its_mind(tmp_path):
    """And a position with other fields than its own is damaged."""
    with new_run(tmp_path, Toy()) as run:
        [*run.epochs(2)]
    stored = Store(tmp_path).latest().load(part="holdfast")["position"]
    assert stored == Position.from_stored(stored).state_dict()
    assert (
        0 == Position.from_stored({name: value for name, value in stored.items() if name != "first_epoch"}).first_epoch
    )
    with new_run(tmp_path, Toy()) as run, pytest.raises(Mismatch, match=r"write run\.epochs\(total\)"):
        [*run.epochs(range(1, 3))]
    with pytest.raises(Damaged):
        Position.from_stored({**stored, "last_epoch": 3})
    with pytest.raises(Damaged):
        Position.from_stored({name: value for name, value in stored.items() if name != "left"})


def test_steps_without_a_total_go_on_until_break(tmp_path):
    """Which ends the run: a restart has nothing to do. A number of steps takes its place, and the other way round."""

    def go(steps, until):
        with new_run(tmp_path, Toy(), every=None) as run:
            done = []
            for step in steps(run):
                done.append(step)
                if step == until:
                    break
        return done

    assert [0, 1, 2] == go(lambda run: run.steps(), 2)
    assert [] == go(lambda run: run.steps(), 5)
    with new_run(tmp_path / "other", Toy(), every=None) as run:
        assert [0, 1] == [*run.steps(2)]
        with pytest.raises(TypeError, match=r"run\.steps\(\) without a total has no len\(\)"):
            len(run.steps())
        assert [2, 3] == [*islice(run.steps(), 2)]


def test_what_break_leaves_counts_in_each_epoch(tmp_path):
    """A step of an endless loop; a group that was begun, left in its middle or at its last batch."""

    def endless(run, epoch):
        for step in run.steps():
            if step == epoch:
                break

    def groups(run, epoch):
        for batch in run.batches(range(10), accumulate=3):
            if batch == epoch + 2:
                break

    for leave, expected in ((endless, [1, 2, 3, 4]), (groups, [1, 2, 2, 2])):
        counts = []
        with new_run(tmp_path / leave.__name__, Toy(), every=None) as run:
            for epoch in run.epochs(4):
                before = run.step
                leave(run, epoch)
                counts.append(run.step - before)
        assert (leave, expected) == (leave, counts)


def test_a_length_and_what_is_done_begin_nothing(tmp_path):
    """The whole epoch's count of batches, as a progress bar wants it; the same after a resume."""

    def go(path, cut=None):
        seen = []
        with new_run(path, Toy()) as run:
            for _ in run.epochs(2):
                batches = run.batches([0] * 7, accumulate=2)
                bar = Bar(batches, initial=batches.done)
                seen.append((len(batches), batches.done))
                for _ in bar:
                    if run.step == cut:
                        raise Cut
                assert (7, 7, 7) == (bar.total, bar.n, batches.done)
        return seen

    with pytest.raises(Cut):
        go(tmp_path, cut=6)
    assert [(7, 4)] == go(tmp_path)
    assert [(7, 0)] * 2 == go(tmp_path / "whole")
    with new_run(tmp_path / "other", Toy()) as run, pytest.raises(TypeError, match="no len"):
        len(run.batches(iter([1])))
    assert 0 == run.step


def test_the_index_of_a_batch_survives_a_resume(tmp_path):
    """run.enumerate counts within the epoch, whatever was done by earlier attempts."""

    def go(cut=None):
        seen = []
        with new_run(tmp_path, Toy()) as run:
            for _ in run.epochs(2):
                for index, batch in run.enumerate([*"abcd"], 1):
                    if run.step == cut:
                        raise Cut
                    seen.append((index, batch))
        return seen

    with pytest.raises(Cut):
        go(cut=6)
    assert [(3, "c"), (4, "d")] == go()


# Means -------------------------------------------------------------------------------------------------------------


def test_a_mean_is_the_loops_own_sum_over_count_bit_for_bit(tmp_path):
    """Weighted and not, of the epoch so far, wherever it was cut; what is logged before the batches counts once."""
    rng = random.Random(3)
    data = [[(rng.random() * 10 ** rng.randrange(-8, 8), rng.randrange(1, 65)) for _ in range(9)] for _ in range(3)]
    expected = []
    for epoch in data:
        total, count, plain = 0.0, 0, 0.0
        for loss, n in epoch:
            total += loss * n
            count += n
            plain += loss
        expected.append((total / count, plain / len(epoch), 7.0))

    def go(path, cut=None):
        found = []
        with new_run(path, Toy()) as run:
            for number in run.epochs(3):
                run.log(once=7)
                for loss, n in run.batches(data[number]):
                    if run.step == cut:
                        raise Cut
                    run.log(loss=loss, n=n)
                found.append((run.mean("loss", weight="n"), run.mean("loss"), run.mean("once")))
        return found

    assert expected == go(tmp_path / "whole")
    for cut in (4, 9, 17):
        path = tmp_path / str(cut)
        with pytest.raises(Cut):
            go(path, cut)
        assert expected[cut // 9 :] == go(path)


def test_a_metric_without_a_name_has_a_mean_and_spoils_no_other(tmp_path):
    with new_run(tmp_path, Toy()) as run:
        for step in run.steps(2):
            run.log(**{"": 3.0 - step, "loss": 4.0 * step})
        assert (2.5, 2.0) == (run.mean(""), run.mean("loss"))


def test_a_mean_says_what_it_lacks(tmp_path):
    """Metrics of other calls are no weights; weights that add up to nothing are none; what is not finite stays so."""
    with new_run(tmp_path, Toy()) as run:
        for _ in run.steps(2):
            run.log(loss=float("nan"), top=float("inf"), zero=0)
            run.log(n=3)
        with pytest.raises(UsageError, match=r"run.log\(loss=..., n=...\). Logged with 'loss' so far: top, zero"):
            run.mean("loss", weight="n")
        with pytest.raises(UsageError, match="was not given 'acc' in this epoch, but loss, top, zero, n"):
            run.mean("acc")
        with pytest.raises(UsageError, match="the weights add up to 0"):
            run.mean("loss", weight="zero")
    assert (3.0, float("inf")) == (run.mean("n"), run.mean("top"))
    assert run.mean("loss") != run.mean("loss")
    with new_run(tmp_path, Toy()) as run:
        assert (3.0, float("inf")) == (run.mean("n"), run.mean("top"))


# What a run says at its beginning and its end ----------------------------------------------------------------------


def said(capsys):
    """The lines that a run has told; it ended 0 s ago, or 1 s on a busy machine."""
    told = capsys.readouterr().err.replace(" 1 s ago", " 0 s ago").splitlines()
    return [line.split(": ", 2)[2] for line in told]


def test_a_run_that_ends_says_what_it_did_and_a_finished_one_that_it_has(tmp_path, capsys):
    """One line each; raising the total is told as ever, and that the epochs of an attempt were done again."""
    with new_run(tmp_path, Toy(), every=None) as run:
        [*run.steps(3)]
    assert ["starts fresh (attempt 1)", "finished: 3 steps in 1 attempt"] == said(capsys)
    for attempt in (2, 3):
        with new_run(tmp_path, Toy(), every=None) as run:
            assert [] == [*run.steps(3)]
        over = f"already finished at step 3, 0 s ago (attempt {attempt}); "
        over += "its loop's body runs again only up to a larger total"
        assert [over] == said(capsys)
    with pytest.raises(Cut), new_run(tmp_path, Toy(), every=Every(steps=2)) as run:
        for step in run.steps(9):
            if step == 7:
                raise Cut
    assert [over.replace("3)", "4)"), "steps were to end at 3, now at 9"] == said(capsys)
    with new_run(tmp_path, Toy(), every=None) as run:
        [*run.steps(9)]
    resumes, finished = said(capsys)
    assert resumes.startswith("resumes at step 6 (attempt 5), from step-000000006, saved ")
    assert "finished: 9 steps in 5 attempts, 1 step done again" == finished


def test_a_killed_attempt_of_which_nothing_was_done_again_is_not_counted(tmp_path, capsys):
    """Its journal does not end, so that it may have done more than is known: "at least 0 steps" would tell nothing."""
    for last in (3, 6):
        with new_run(tmp_path, Toy(), every=None, take_over=True) as run:
            [*run.steps(last)]
        for path in tmp_path.glob("attempts/1/*.jsonl"):
            path.write_text("".join(line for line in path.read_text().splitlines(True) if '"end"' not in line))
    assert "finished: 6 steps in 2 attempts" == said(capsys)[-1]


def test_a_run_whose_loop_is_not_at_its_end_does_not_say_that_it_has_finished(tmp_path, capsys):
    """A block that only looked, and a loop of a shape that nobody knows the end of."""
    with pytest.raises(Cut), new_run(tmp_path, Toy()) as run:
        for _ in run.steps(3):
            if run.step == 2:
                raise Cut
    with new_run(tmp_path, Toy()):
        pass
    assert "ended before its loop did: 2 steps in 2 attempts" == said(capsys)[-1]
    with new_run(tmp_path, Toy()):
        pass
    assert said(capsys)[0].startswith("resumes at step 2")


def test_what_an_attempt_that_was_killed_did_is_a_lower_bound():
    """Its journal says how far it came at least."""

    def log(number, *events):
        return Log(number, Path(), [{"event": "begin"}, *events])

    first = log(1, {"event": "restored", "step": 0}, {"event": "metrics", "step": 9}, {"event": "at", "step": 12})
    second = log(2, {"event": "restored", "step": 5}, {"event": "stop", "step": 8})
    refused = log(3, {"event": "end", "step": 0, "reason": "refused"})
    third = log(4, {"event": "restored", "step": 8}, {"event": "end", "step": 20})
    assert (7, False) == count_repeated_steps([first, second, refused, third])
    assert (0, True) == count_repeated_steps([second, refused, third])
    assert (0, True) == count_repeated_steps([])


def test_how_far_an_attempt_has_come_is_noted_now_and_then(tmp_path, monkeypatch):
    """Without metrics a kill would leave no trace of the steps that it cost."""
    monkeypatch.setattr(report, "FLUSH_S", 0.0)
    with new_run(tmp_path, Toy(), every=None) as run:
        for step in run.steps(200):
            if step == 100:
                run._session.reporter.began_s -= 1000
    noted = [event["step"] for event in events(tmp_path, "at")]
    assert noted == sorted(noted)
    assert 1 in noted
    assert max(noted) <= 101


def test_fewer_epochs_than_have_begun_make_no_step_and_say_so(tmp_path, capfd):
    """With how many to ask for; asked for them, the run goes on."""

    def train(total, cut_at=None):
        steps = 0
        with new_run(tmp_path, Toy(), every=Every(steps=1)) as run:
            for _ in run.epochs(total):
                for _ in run.batches([1, 2, 3]):
                    steps += 1
                    if run.step == cut_at:
                        raise Cut
        return steps

    with pytest.raises(Cut):
        train(6, cut_at=13)
    capfd.readouterr()
    assert 0 == train(3)
    assert "run.epochs(3) makes no step: 5 of 6 have begun. Ask for 6 to go on\n" in capfd.readouterr().err
    assert 5 == train(6)
    assert "makes no step" not in capfd.readouterr().err
