"""Runs that are cut, and what TensorBoard's own reader makes of their board."""

from holdfast import Every, journal
from toy import Cut, Toy, new_run


def shown(directory):
    """What TensorBoard's reader makes of it: {tag: [(step, value)]}."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(directory), size_guidance={"scalars": 0})
    found.Reload()
    return {tag: [(e.step, e.value) for e in found.Scalars(tag)] for tag in sorted(found.Tags()["scalars"])}


def logged(run):
    """The same from the metrics log."""
    found = {}
    for line in journal.metrics(run):
        for tag, value in line["values"].items():
            found.setdefault(tag, []).append((line["step"], float(value)))
    return dict(sorted(found.items()))


def train(path, board=None, cut=None, every=3):
    """Two epochs of eight steps, saved now and then, until the process is gone in the step `cut`."""
    taken = 0
    with new_run(path, Toy(), every=Every(steps=every), background=False, take_over=True) as run:
        for epoch in run.epochs(2):
            for batch in run.batches(range(8)):
                run.log(loss=epoch * 8 + batch, half=batch / 2)
                taken += 1
                if board is not None:
                    run.metrics()  # what was logged is in the journal at once
                    board.update()
                if taken == cut:
                    raise Cut
            run.log(acc=epoch)


def cut_off(path, board, cut=None, every=3):
    """Train until the cut, or to the end with a last update of the board."""
    try:
        train(path, board, cut, every)
    except Cut:
        return
    board.update()
