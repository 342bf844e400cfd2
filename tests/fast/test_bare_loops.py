"""A loop over a loader inside run.epochs that no run.batches walks: the run counts an epoch as one step and says so."""

from torch.utils.data import DataLoader

from holdfast import Run
from toy import Toy, events


def train_step(batch):
    return batch


def right_ones(run, loader, valid):
    """Scripts of which nothing is told: of run.batches, of a validation, of a list, of one batch an epoch."""
    for _ in run.epochs(2):
        for batch in run.batches(loader):
            train_step(batch)
        for batch in valid:
            train_step(batch)


def evaluates(run, loader, valid):
    for _ in run.epochs(2):
        train_step([])
        total = 0
        for batch in valid:
            total += len(batch)


def measures(run, loader, valid):
    class Metric:
        update = validation_step = test_step = staticmethod(len)

    metric = Metric()
    for _ in run.epochs(2):
        train_step([])
        for batch in valid:
            metric.update(batch)
        for batch in valid:
            metric.validation_step(batch)
            metric.test_step(batch)


def of_lists(run, loader, valid):
    for _ in run.epochs(2):
        for batch in [1, 2, 3]:
            train_step(batch)


def of_one(run, loader, valid):
    one = DataLoader(range(4), batch_size=4)
    for _ in run.epochs(2):
        for batch in one:
            train_step(batch)


def bare(run, loader, valid):
    for _ in run.epochs(2):
        for batch in loader:
            train_step(batch)


def counted(run, loader, valid):
    for _ in run.epochs(3):
        for _, batch in enumerate(loader):
            train_step(batch)


def told(path, script):
    loader, valid = DataLoader(range(16), batch_size=2), DataLoader(range(8), batch_size=2)
    with Run(path, {"toy": Toy()}) as run:
        script(run, loader, valid)
        return run.step, [event["what"] for event in events(path, "told")]


def test_a_loader_that_no_run_walks_is_told_once(tmp_path, capsys):
    """With the line to write; 2 steps for 16 batches."""
    for script, epochs in ((bare, 2), (counted, 3)):
        steps, lines = told(tmp_path / script.__name__, script)
        assert steps == epochs
        words = ("epoch 1 counts as one step", "8 batches of loader", "`in run.batches(loader):`")
        assert [all(word in line for word in words) for line in lines] == [True]


def test_right_scripts_stay_silent(tmp_path):
    """Also those that evaluate over a loader, or have one batch an epoch."""
    for script in (right_ones, evaluates, measures, of_lists, of_one):
        assert told(tmp_path / script.__name__, script)[1] == []


def test_written_so_the_run_goes_on(tmp_path):
    """The advice, typed at the next start of a run that has begun without it."""
    told(tmp_path / "run", bare)

    def mended(run, loader, valid):
        for _ in run.epochs(4):
            for batch in run.batches(loader):
                train_step(batch)

    assert told(tmp_path / "run", mended)[0] == 18
