"""A drill that ends well proves a loader and a framework; the next start finds the proof, and is silent."""

import shutil
import subprocess
import sys

import pytest

from holdfast.run.deferred_saves import read_proven
from toy import names

ENGINE = """
import random

__version__ = "2.7.0"

class Engine:
    def fit(self, callback, seen):
        for number in callback.batches(range(4)):
            seen.append(number + random.random())
            callback.step()
"""
TRAINER = """
import random
import engine
from holdfast import Every
from holdfast.trainers.names import ForeignName, require
from holdfast.trainers.training import RunOptions, Training

random.seed(1)
seen, names = [], [ForeignName("engine:Engine.fit", ("self", "callback", "seen"), frozenset({"0123456789abcdef"}))]
training = Training("run", {"seen": seen}, {"every": Every(steps=1)}, epochs=2, untried=require("engine", names))

class Callback:
    batches, step = training.loop.batches, training.loop.step_done

while training.loop.goes_on:
    training.loop.begin_epoch()
    engine.Engine().fit(Callback, seen)
    training.loop.end_epoch()
training.end_run()
print(seen)
"""
LOADER = """
import random
from holdfast import Every, Run

random.seed(0)
class Adds:
    def __iter__(self):
        for number in range(6):
            yield number + random.random()

seen = []
with Run("run", dict(seen=seen), every=Every(steps=1)) as run:
    for epoch in run.epochs(2):
        for batch in run.batches(Adds()):
            seen.append(batch + random.random())
"""


@pytest.mark.parametrize(
    ("text", "kind", "line"),
    [
        (LOADER, "Adds", "nobody promises that a Adds"),
        (TRAINER, "engine 2.7.0", "engine 2.7.0 was not tried with this Holdfast (Engine.fit has changed)"),
    ],
    ids=["loader", "framework"],
)
def test_a_drill_proves_it_and_the_next_start_is_silent(tmp_path, text, kind, line):
    """The undisturbed run is told and saved at its epochs' ends, and after the drill everywhere."""
    path, place = tmp_path / "train.py", tmp_path / "run"
    path.write_text(text)
    (tmp_path / "engine.py").write_text(ENGINE)
    run = lambda *words: subprocess.run([*words, str(path)], cwd=tmp_path, capture_output=True, text=True, check=True)
    told = run(sys.executable).stderr
    assert line in told
    assert "Prove it once: holdfast drill -- python train.py" in told
    assert all(name.endswith("-end") for name in names(place))
    shutil.rmtree(place)
    ended = run(sys.executable, "-m", "holdfast", "drill", "--kills", "2", "--no-flip", "--", sys.executable)
    assert f"{kind} resumed exactly" in ended.stdout + ended.stderr
    assert [*read_proven(place).values()] == [kind]
    assert line not in run(sys.executable).stderr
    assert any(not name.endswith("-end") for name in names(place))
    (tmp_path / "engine.py").write_text(ENGINE.replace("random.random()", "random.random() * 2"))
    assert (line in run(sys.executable).stderr) == (text == TRAINER)  # another body takes the proof back
