"""Loops of every shape, and a run of one of them that is cut wherever it is told to be."""

import contextlib
import itertools
import random

import pytest

from toy import BATCHES, EPOCHS, Cut, Passes, Toy, lines, names, new_run


class Keeper:
    """A loader that keeps its own state and draws its own order, another one in each epoch."""

    def __init__(self):
        self.epoch, self.done, self.ended = -1, 0, True
        self.loaded = False

    def __iter__(self):
        if self.ended or not self.loaded:
            self.epoch, self.done, self.ended = self.epoch + 1, 0, False
        self.loaded = False
        order = random.Random(self.epoch).sample(range(BATCHES), BATCHES)
        while self.done < BATCHES:
            self.done += 1
            yield order[self.done - 1]
        self.ended = True

    def __len__(self):
        return BATCHES

    def state_dict(self):
        return {"epoch": self.epoch, "done": self.done, "ended": self.ended}

    def load_state_dict(self, state):
        self.epoch, self.done, self.ended = state["epoch"], state["done"], state["ended"]
        self.loaded = True


class Drawn:
    """An iterable that draws its batches from the global generator as it begins."""

    def __iter__(self):
        return iter([random.getrandbits(30) for _ in range(BATCHES)])


def by_batches(loader, run, toy, passes, **options):
    for epoch in run.epochs(EPOCHS):
        random.random()
        for batch in run.batches(loader(epoch), **options):
            toy.learn(batch)
            passes.one()
            run.vars.seen += 1
            run.log(value=toy.value % 1000)
        toy.learn("evaluation".__len__())
        passes.one()
        run.log(at_end=toy.value % 1000, seen=run.vars.seen)


def by_steps(run, toy, passes):
    for step in run.steps(EPOCHS * BATCHES):
        toy.learn(step)
        passes.one()
        run.vars.seen += 1
        run.log(value=toy.value % 1000)


def by_steps_in_epochs(run, toy, passes):
    for epoch in run.epochs(EPOCHS):
        for step in run.steps(BATCHES):
            toy.learn(10 * epoch + step)
            passes.one()


def by_two_loaders(run, toy, passes):
    for _ in run.epochs(EPOCHS):
        for name in ("a", "b"):
            for batch in run.batches(range(3), name):
                toy.learn(batch)
                passes.one()


def by_safe_points(run, toy, passes):
    while run.step < EPOCHS * BATCHES:
        toy.learn(run.step)
        passes.one()
        run.log(value=toy.value % 1000)
        run.safe_point()


def by_one_pass(run, toy, passes):
    for batch in run.batches(range(EPOCHS * BATCHES)):
        toy.learn(batch)
        passes.one()


def by_breaks(run, toy, passes):
    loader = Keeper()
    for epoch in run.epochs(9):
        for batch in run.batches(loader, accumulate=2):
            toy.learn(batch)
            passes.one()
            if batch == epoch % 2:
                break
        if epoch == 3:
            break
        passes.one()


def by_two_phases(run, toy, passes):
    for step in run.steps(4):
        toy.learn(step)
        passes.one()
        if step == 2:
            break
    for epoch in run.epochs(2):
        for batch in run.batches([epoch, epoch + 1]):
            toy.learn(batch)
            passes.one()


def by_islice(run, toy, passes):
    for _ in run.epochs(3):
        batches = run.batches([*range(9)])
        for batch in itertools.islice(batches, 4 - batches.done):
            toy.learn(batch)
            run.log(batch=batch)
            passes.one()
        run.log(evaluated=toy.value % 1000)


def by_held_iterators(run, toy, passes):
    held = []
    for epoch in run.epochs(3):
        held.append(iter(run.batches([*range(9)])))
        for batch in held[-1]:
            toy.learn(batch)
            run.log(batch=batch)
            passes.one()
            if batch == epoch + 1:
                break
        del held[:epoch]


def by_enumerate_from_one(run, toy, passes):
    for epoch in run.epochs(range(1, 4)):
        for index, batch in run.enumerate([3, 1, 4]):
            toy.learn((epoch, index, batch))
            run.log(loss=toy.value / 7, n=batch)
            passes.one()
        toy.learn(run.mean("loss", weight="n"))


def by_endless_steps(run, toy, passes):
    for epoch in run.epochs(2):
        for step in run.steps():
            toy.learn(step)
            passes.one()
            if step == 2 + epoch:
                break


def once(loader):
    made = loader()
    return lambda epoch: made


LOOPS = {
    "a list": lambda *a: by_batches(once(lambda: [3, 1, 4, 1]), *a),
    "a list, made anew": lambda *a: by_batches(lambda epoch: [epoch, 1, 2, 3], *a),
    "one with a state": lambda *a: by_batches(once(Keeper), *a),
    "one with a state, made anew": lambda *a: by_batches(lambda epoch: Keeper(), *a),
    "an iterable": lambda *a: by_batches(once(Drawn), *a),
    "zip, made anew": lambda *a: by_batches(lambda epoch: zip(range(epoch, epoch + 3), range(3), strict=True), *a),
    "groups": lambda *a: by_batches(once(lambda: range(7)), *a, accumulate=3),
    "growing": lambda *a: by_batches(lambda epoch: range(epoch + 1), *a),
    "steps": by_steps,
    "steps in epochs": by_steps_in_epochs,
    "two loaders": by_two_loaders,
    "safe points": by_safe_points,
    "one pass": by_one_pass,
    "breaks": by_breaks,
    "two phases": by_two_phases,
    "islice": by_islice,
    "held iterators": by_held_iterators,
    "enumerate from one": by_enumerate_from_one,
    "endless steps": by_endless_steps,
}
WANT_A_BLOCK = {"safe points", "two phases"}


def train(path, loops, cut=None, *, started=False, **options):
    """One attempt. Its fresh generators are those of nobody: a fresh run seeds them, a resumed one restores them."""
    random.seed(1 if not names(path) else 99)
    toy, passes = Toy(), Passes(cut)
    run = new_run(path, toy, vars={"seen": 0}, **options)
    if started:
        loops(run.start(), toy, passes)
    else:
        with run:
            loops(run, toy, passes)
    return (toy.value, random.random(), run.step, run.epoch, run.vars.seen), passes.count


def cut_everywhere(place, name, first, stride, **options):
    """Value, generator, position, variables, metrics log and newest checkpoint are those of the uninterrupted run.

    It is cut in every `stride`th pass and, then, in the second pass of the next attempt.
    """
    every = {"every": options.pop("every")}
    expected, count = train(place / "whole", LOOPS[name], **every)
    assert count >= first, f"{name}: no pass to cut"
    for nth in range(first, count + 1, stride):
        path = place / str(nth)
        with pytest.raises(Cut):
            train(path, LOOPS[name], nth, **every, **options)
        if nth < count:  # else the second attempt may have less than two passes to do
            with contextlib.suppress(Cut):
                train(path, LOOPS[name], 2, **every, **options)
        assert (nth, expected) == (nth, train(path, LOOPS[name], **every, **options)[0])
        assert lines(place / "whole") == lines(path)
        assert names(place / "whole")[-1] == names(path)[-1]


def cut_at_each_interval(place, name, first, stride, *, every):
    """With a block, and without where it can be."""
    cut_everywhere(place / "in a block", name, first, stride, every=every)
    if name not in WANT_A_BLOCK:
        cut_everywhere(place / "without", name, first, stride, every=every, started=True)
