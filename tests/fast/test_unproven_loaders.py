"""Loaders whose replay nobody promises: never a checkpoint that no start can use, and always a way to go on."""

import random
from itertools import count, islice
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, Sampler, TensorDataset

from holdfast import Every, Last
from holdfast.data import promise
from holdfast.errors import Mismatch, Stopped
from holdfast.run.deferred_saves import record_proven
from stores import invoke
from subjects import asked_of
from toy import Cut, Toy, events, launch, names, new_run, script


class Prefetch:
    """Works one batch ahead, and draws random numbers in the loop's process."""

    def __init__(self, loader):
        self.loader = loader

    def __len__(self):
        return len(self.loader)

    def __iter__(self):
        before = None
        for x in self.loader:
            drawn = x * 100 + random.randrange(100)
            if before is not None:
                yield before
            before = drawn
        yield before


class Inside(Prefetch):
    """The same with a length that nobody knows."""

    __len__: Any = None


def prefetched(loader):
    """The same as a function."""
    yield from iter(Prefetch(loader))


class Infinite(DataLoader):
    """Keeps one iterator over all epochs."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.endless = self._forever()

    def _forever(self):
        while True:
            yield from super().__iter__()

    def __iter__(self):
        yield from islice(self.endless, len(self))


class Drawn(IterableDataset):
    """A script's own stream."""

    def __iter__(self):
        return (number * 100 + random.randrange(100) for number in range(6))


UNKNOWN = {
    "a class around a loader": lambda: Prefetch(range(6)),
    "one without a length": lambda: Inside(range(6)),
    "a generator": lambda: prefetched(range(6)),
    "enumerate of a generator": lambda: enumerate(prefetched(range(6))),
    "zip of one and a list": lambda: zip(range(6), prefetched(range(6)), strict=True),
    "a subclass of DataLoader": lambda: Infinite(range(6)),
    "a stream of the script's": lambda: DataLoader(Drawn(), batch_size=None),
}
KNOWN = {
    "a list": lambda: [1, 2],
    "enumerate": lambda: enumerate([1, 2]),
    "zip": lambda: zip([1, 2], range(2), strict=True),
    "islice": lambda: islice(count(), 3),
    "map": lambda: map(str, [1, 2]),
    "enumerate of a DataLoader": lambda: enumerate(DataLoader(range(6))),
    "its iterator": lambda: iter(DataLoader(range(6))),
    "zip of DataLoaders": lambda: zip(DataLoader(range(6), shuffle=True), DataLoader(range(6)), strict=True),
    "DataLoader": lambda: DataLoader(range(6), shuffle=True),
}


def trained(path, make, epochs=3, cut=None, told=None, body=lambda run: None, **options):
    """What the passes saw. The process is gone in pass `cut`, after its saves are durable."""
    random.seed(3), torch.manual_seed(3)
    seen, toy, loader = [], Toy(), None
    with new_run(path, toy, **{"background": False, "vars": {"seen": []}, **options}) as run:
        for epoch in run.epochs(epochs):
            made = make()
            loader = made if loader is None or hasattr(made, "__next__") else loader
            for batch in run.batches(loader):
                if cut is not None and len(seen) + 1 == cut:
                    raise Cut
                seen.append((epoch, str(batch)))
                toy.learn(str(batch))
                run.vars.seen += [str(batch)]
                body(run)
        return [*run.vars.seen, toy.value]


def cut_short(path, make, cut, **options):
    with pytest.raises(Cut):
        trained(path, make, cut=cut, **options)


def test_what_a_kind_promises_is_known_without_reading():
    """Python's own iterators over lists and DataLoaders; not the code of a class, a generator or a stream."""
    from holdfast.data.feed import feed_for

    for name, make in (UNKNOWN | KNOWN).items():
        with asked_of(name):
            assert (feed_for(make(), 1).unknown is None) == (name in KNOWN)


def test_a_run_over_an_unknown_loader_is_saved_at_its_epochs_ends_and_resumes_there(tmp_path, capsys):
    """Whatever the interval. One line says so at the first save, and nothing else is told."""
    for number, (name, make) in enumerate(UNKNOWN.items()):
        if "DataLoader" in name:
            continue
        with asked_of(name):
            one, two = tmp_path / f"{number}-a", tmp_path / f"{number}-b"
            expected = trained(one, make)
            assert names(one) == ["step-000000006-end", "step-000000012-end", "step-000000018-end"]
            told = [event["what"] for event in events(one, "told")]
            assert ["is saved at the ends of its epochs. Prove it once: holdfast drill" in each for each in told] == [
                True
            ]
            cut_short(two, make, 10)
            assert trained(two, make) == expected


def test_right_loaders_are_saved_everywhere_and_nothing_is_told(tmp_path, capsys):
    """Every known kind has a checkpoint after each step."""
    for name, make in KNOWN.items():
        with asked_of(name):
            trained(tmp_path / name, make, epochs=2)
            assert events(tmp_path / name, "told") == []
            assert sum(not each.endswith("end") for each in names(tmp_path / name)) >= 2


def test_a_save_that_a_known_loader_defers_waits_for_the_epochs_end(tmp_path):
    """Behind the last batch of the first loader a save moves on; the next safe point lies inside an unknown one."""
    with new_run(tmp_path, Toy(), every=Every(steps=4)) as run:
        for _ in run.epochs(2):
            for _ in run.batches([1, 2, 3, 4], name="known"):
                pass
            for _ in run.batches(Prefetch([1, 2, 3, 4]), name="unknown"):
                pass
    assert ["step-000000008-end", "step-000000016-end"] == names(tmp_path)


def test_a_stop_inside_such_an_epoch_saves_nothing_and_the_next_start_is_exact(tmp_path, capsys):
    """The second stop in a row without an epoch's end saves: a run gets on whose attempts are short."""
    stop = lambda run: run._session.stop.receive_from_rank("SIGTERM") if run.step % 6 == 3 else None
    make = UNKNOWN["a class around a loader"]
    expected = trained(tmp_path / "whole", make)
    with pytest.raises(Stopped):
        trained(tmp_path / "run", make, body=stop)
    assert names(tmp_path / "run") == []
    assert "not saved: the next start goes on from the beginning" in capsys.readouterr().err
    assert trained(tmp_path / "run", make) == expected
    for _ in range(2):
        with pytest.raises(Stopped):
            trained(tmp_path / "short", make, body=stop)
    assert names(tmp_path / "short") == ["step-000000004"]
    assert "a resume from there may be refused. To skip as many" in capsys.readouterr().err


def test_a_run_gets_on_that_is_killed_in_each_of_its_epochs(tmp_path):
    """The attempt after one that was killed before it saved anything saves at the second save that is due."""
    body = """
        class Loader:
            def __iter__(self):
                yield from range(20)

        with new_run(RUN, toy, every=Every(steps=2), background=False) as run:
            for _ in run.epochs(2):
                for number in run.batches(Loader()):
                    if number == int(sys.argv[1]):
                        os.kill(os.getpid(), signal.SIGKILL)
    """
    started = script(tmp_path, body)
    for killed_at, steps in (
        (6, []),
        (19, [4, 8, 12, 16]),
    ):  # after its first save it still knows of the attempt before
        launch(started, killed_at)
        assert [f"step-{step:09d}" for step in steps] == names(tmp_path / "run")


def test_a_stream_of_one_epoch_is_saved_all_the_same_and_says_what_a_resume_needs(tmp_path, capsys):
    """Where no epoch's end comes within the interval."""
    make = UNKNOWN["a generator"]
    cut_short(tmp_path, make, 5, epochs=1, every=Every(steps=2))
    assert names(tmp_path) == ["step-000000004"]
    lines = [event["what"] for event in events(tmp_path, "told")]
    assert ['say Run(..., accept={"data"})' in line for line in lines] == [False, True]
    with pytest.raises(Mismatch, match=r'accept=\{"data"\}'):
        trained(tmp_path, make, epochs=1)
    seen = trained(tmp_path, make, epochs=1, accept={"data"})
    assert [int(each) // 100 for each in seen[:-1]] == [*range(6)]


def test_the_newest_end_of_an_epoch_stays_whatever_the_rule(tmp_path):
    """While a newer checkpoint lies inside an epoch of such a loader."""
    make = UNKNOWN["a class around a loader"]
    cut_short(tmp_path, make, 11, body=lambda run: run.save() if run.step > 6 else None, keep=Last(1))
    assert names(tmp_path) == ["step-000000006-end", "step-000000010"]
    trained(tmp_path, make, accept={"data"}, keep=Last(1))
    assert names(tmp_path) == ["step-000000018-end"]


def test_other_samples_are_told_journalled_and_shown_from_then_on(tmp_path, capsys):
    """By every later checkpoint, by `ls`, and by every later start. Where the position restores, nothing is."""

    make = UNKNOWN["a class around a loader"]
    cut_short(tmp_path / "run", make, 5, body=lambda run: run.save())
    cut_short(tmp_path / "run", make, 9, accept={"data"}, body=lambda run: run.save())
    [event] = events(tmp_path / "run", "inexact")
    assert (event["step"], event["skipped"], event["loader"]) == (4, 4, "train")
    assert "not exact from step 4" in capsys.readouterr().err
    trained(tmp_path / "run", make, accept={"data"})
    shown = invoke("ls", str(tmp_path / "run")).output
    rows = [line for line in shown.splitlines() if line.startswith("step-")]
    marked = {row.split()[0]: "not exact from step 4" in row for row in rows}
    assert {name: int(name[5:14]) > 4 for name in marked} == marked
    known = lambda: DataLoader(range(6), shuffle=True)
    whole = trained(tmp_path / "whole", known)
    cut_short(tmp_path / "known", known, 9)
    assert whole == trained(tmp_path / "known", known, accept={"data"})
    assert events(tmp_path / "known", "inexact") == []


def test_a_loader_of_another_kind_is_no_damage_and_other_samples_are_accepted(tmp_path, capsys):
    """A position of another kind is a mismatch; typed, the advice resumes: from each kind to two others."""

    class WithState(Prefetch):
        __name__ = "Prefetch"

        def state_dict(self):
            return {"own": 1}

        def load_state_dict(self, state):
            assert state["own"] == 1

    kinds = {
        "class": lambda: Prefetch(range(6)),
        "state": lambda: WithState(range(6)),
        "plain": lambda: DataLoader(TensorDataset(torch.arange(6)), shuffle=True),
        "sampler": lambda: DataLoader(range(6), sampler=torch.utils.data.WeightedRandomSampler([1.0] * 6, 6)),
        "list": lambda: [0, 1, 2, 3, 4, 5],
        "generator": lambda: prefetched(range(6)),
        "subclass": lambda: Infinite(range(6)),
    }
    for number, (old, before) in enumerate(kinds.items()):
        cut_short(tmp_path / old, before, 10, body=lambda run: run.save())
        for new, after in ([*kinds.items()] * 2)[number + 1 : number + 6 : 3]:
            with asked_of(old, new):
                start = {"branch_from": tmp_path / old, "every": None}
                with pytest.raises(Mismatch, match=r'say Run\(\.\.\., accept=\{"data"\}\)'):
                    trained(tmp_path / f"{old}-{new}", after, **start)
                path = tmp_path / f"{old}-{new}"
                assert len(trained(path, after, accept={"data"}, **start)) == 19
                assert len(events(path, "inexact")) == 1


def test_what_a_drill_has_proven_is_saved_inside_its_epochs(tmp_path):
    """For the code that was drilled: a change of the class's code takes the proof back."""
    make = UNKNOWN["one without a length"]
    record_proven(tmp_path / "run", {promise.code_digest(Inside): "Inside"})
    trained(tmp_path / "run", make, epochs=2)
    assert len(names(tmp_path / "run")) > 10
    assert events(tmp_path / "run", "told") == []
    same = type("Inside", (Inside,), {"__iter__": lambda self: iter(range(6))})
    assert promise.code_digest(same) != promise.code_digest(Inside)


class _RepeatSampler:
    """As in yolov5 and timm: the batches of a batch sampler, without end."""

    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        while True:
            yield from iter(self.sampler)


class InfiniteDataLoader(DataLoader):
    """As in yolov5 and timm: its iterator is made once."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        object.__setattr__(self, "batch_sampler", _RepeatSampler(self.batch_sampler))
        self.iterator = super().__iter__()

    def __len__(self):
        return len(self.batch_sampler.sampler)

    def __iter__(self):
        for _ in range(len(self)):
            yield next(self.iterator)


def test_a_loader_that_repeats_its_batch_sampler_is_entered_anywhere(tmp_path):
    """Nothing of it is unknown: each epoch has each sample once, and a cut changes nothing."""
    make = lambda: InfiniteDataLoader(range(12), batch_size=2, shuffle=True)
    expected = trained(tmp_path / "whole", make)
    assert events(tmp_path / "whole", "told") == []
    assert sorted(int(number) for batch in expected[:6] for number in batch[8:-2].split(",")) == [*range(12)]
    for cut in (3, 7, 10, 13):
        cut_short(tmp_path / str(cut), make, cut)
        assert names(tmp_path / str(cut))[-1].startswith(f"step-{cut - 1:09}")
        assert trained(tmp_path / str(cut), make) == expected


def test_an_iterator_that_lives_on_in_a_loader_is_told_and_never_silently_lost(tmp_path, capsys):
    """At an epoch's end nothing of it can be compared: a resume is refused there, too, unless others are accepted."""
    make = UNKNOWN["a subclass of DataLoader"]
    cut_short(tmp_path, make, 9)
    told = [event["what"] for event in events(tmp_path, "told")]
    assert ["keeps an iterator from epoch to epoch (0.endless)" in line for line in told] == [True]
    for path in (tmp_path / "checkpoints").glob("step-00000000[78]"):
        with pytest.raises(Mismatch, match=r'0\.endless lives on.*accept=\{"data"\}'):
            trained(tmp_path / path.name, make, branch_from=path)
    cut_short(tmp_path / "ends", make, 9, every=Every(epochs=1))
    with pytest.raises(Mismatch, match=r'0\.endless lives on.*accept=\{"data"\}'):
        trained(tmp_path / "ends", make)
    assert len(trained(tmp_path / "ends", make, accept={"data"})) == 19


class Counts:
    """An iterable of the script's own that counts its passes when they are over, and reorders its list."""

    def __init__(self):
        self.passes, self.order, self.luck = 0, [*range(6)], random.Random(5)

    def __iter__(self):
        self.luck.shuffle(self.order)
        for number in self.order:
            yield self.passes * 100 + number
        self.passes += 1


class Stream(Counts, IterableDataset):
    """The same as a dataset."""


def test_what_the_attributes_of_a_loader_carry_from_pass_to_pass_is_brought_back(tmp_path):
    """Inside an epoch and at its end; nothing is read again for the end of one."""
    for name, make in {"class": Counts, "dataset": lambda: DataLoader(Stream(), batch_size=None)}.items():
        with asked_of(name):
            expected = trained(tmp_path / name, make)
            saved = tmp_path / f"{name}-saved"
            trained(saved, make, body=lambda run: run.save())
            for checkpoint in sorted((saved / "checkpoints").glob("step-*"))[::3]:
                seen = trained(tmp_path / f"{name}-{checkpoint.name}", make, branch_from=checkpoint)
                assert seen == expected, checkpoint.name


class OwnOrder(Sampler):
    """A sampler with a memory: of a kind that `shuffled` makes."""

    def __init__(self, lazy, how):
        self.lazy, self.how, self.epoch, self.order, self.luck = lazy, how, 0, [*range(12)], random.Random(9)

    def __len__(self):
        return 12

    def __iter__(self):
        return self.drawn() if self.lazy else iter([*self.drawn()])

    def drawn(self):
        order = self.order if self.how == "in place" else [*range(12)]
        if self.how == "counts as it begins":
            self.epoch += 1
        luck: Any = {"own generator": self.luck, "in place": random}.get(self.how, random.Random(self.epoch))
        luck.shuffle(order)
        yield from [*order]
        if self.how == "counts at its end":
            self.epoch += 1


class Grouped(OwnOrder):
    """The same as a batch sampler."""

    def __iter__(self):
        indices = [*self.drawn()]
        return iter([indices[:5], indices[5:7], indices[7:]])


def test_a_sampler_with_a_memory_resumes_exactly(tmp_path):
    """Eager or lazy; it counts its epochs, shuffles further, or draws from a generator of its own. Cut anywhere."""
    for first, how in enumerate(("in place", "own generator", "counts as it begins", "counts at its end")):
        for name, make in {
            "eager": lambda how=how: DataLoader(range(12), batch_size=3, sampler=OwnOrder(False, how)),
            "lazy": lambda how=how: DataLoader(range(12), batch_size=3, sampler=OwnOrder(True, how)),
            "batches": lambda how=how: DataLoader(range(12), batch_sampler=Grouped(False, how)),
        }.items():
            with asked_of(how, name):
                path = tmp_path / how / name
                expected = trained(path, make, body=lambda run: run.save())
                assert len({*expected}) > 8
                for checkpoint in sorted((path / "checkpoints").glob("step-*"))[1 + first :: 7]:
                    seen = trained(tmp_path / how / f"{name}-{checkpoint.name}", make, branch_from=checkpoint)
                    assert seen == expected, checkpoint.name


def test_a_sampler_without_a_memory_writes_nothing_more(tmp_path):
    """Its positions are those of before."""
    from holdfast.data.feed import feed_for

    feed = feed_for(DataLoader(range(12), batch_size=3, sampler=OwnOrder(True, "of nothing")), 1)
    [*feed.open(0, None)]
    assert {*feed.position(4)} == {"epoch", "batches", "samples", "digest"}


class MadeLate(Prefetch):
    """Keeps one iterator over all epochs, and makes it when it is first iterated."""

    def __init__(self, loader):
        super().__init__(loader)
        self.iterator = None

    def forever(self):
        while True:
            yield from self.loader

    def __iter__(self):
        self.iterator = self.iterator or self.forever()
        for _ in range(len(self)):
            yield next(self.iterator)


class MadeAnew(MadeLate):
    """Makes it in each pass."""

    def __iter__(self):
        self.iterator = iter(self.loader)
        yield from self.iterator


def test_an_iterator_that_was_made_in_the_first_epoch_is_seen_at_its_end(tmp_path, capsys):
    """One that each pass makes anew is none that lives on."""
    late, anew = (lambda: MadeLate([*range(6)])), (lambda: MadeAnew([*range(6)]))
    cut_short(tmp_path / "late", late, 8)
    with pytest.raises(Mismatch, match="iterator lives on from epoch to epoch"):
        trained(tmp_path / "late", late)
    cut_short(tmp_path / "anew", anew, 8)
    assert len(trained(tmp_path / "anew", anew)) == 19


class Stage:
    """One of a pipeline, as webdataset's detshuffle: it counts its passes, and is no iterable itself."""

    def __init__(self):
        self.epoch = -1

    def run(self, numbers):
        self.epoch += 1
        order = [*numbers]
        random.Random(self.epoch // 2).shuffle(order)
        return [number + 10 * self.epoch for number in order]


class Pipeline:
    def __init__(self):
        self.stages = [Stage(), Stage()]

    def __iter__(self):
        numbers = range(6)
        for stage in self.stages:
            numbers = stage.run(numbers)
        return iter(numbers)


def test_the_stages_of_a_pipeline_are_brought_back(tmp_path):
    """What counts is an object in a list of the loader's."""
    expected = trained(tmp_path / "whole", Pipeline)
    for cut in (8, 14):
        cut_short(tmp_path / str(cut), Pipeline, cut)
        assert trained(tmp_path / str(cut), Pipeline) == expected
