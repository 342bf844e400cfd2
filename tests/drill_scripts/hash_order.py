"""A vocabulary is numbered in the order of a set of strings."""

from line import FIX, Line

from holdfast import Run

words = ["the", "cat", "sat", "on", "the", "mat", "and", "the", "dog", "sat", "on", "the", "cat"]
vocabulary = {word: number for number, word in enumerate(sorted(set(words)) if FIX else set(words))}
model = Line()
with Run("runs/x", {"model": model}) as run:
    for _ in run.epochs(2):
        for word in run.batches(words):
            run.log(loss=model.step(vocabulary[word] / 8))
