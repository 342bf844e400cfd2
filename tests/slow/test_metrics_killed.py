"""The metrics log of runs that are killed."""

import random

import pytest

from toy import events, launch, lines, script

KILLED = """
    when = [int(word) for word in sys.argv[1:]]
    with new_run(RUN, toy, every=Every(steps=int(os.environ["EVERY"]))) as run:
        for epoch in run.epochs(4):
            for batch in run.batches(range(5)):
                toy.learn(batch)
                if run.step in when:
                    send("KILL")
                run.log(value=toy.value % 9973)
            run.log(epoch=epoch)
        run.log(final=toy.value % 9973)
"""


@pytest.mark.parametrize("every", [1, 3, 7])
def test_no_number_of_kills_adds_or_loses_a_line(tmp_path, every):
    """kill -9 at seeded steps, again and again: line for line the log of an uninterrupted run."""
    (tmp_path / "whole").mkdir()
    assert 0 == launch(script(tmp_path / "whole", KILLED), EVERY=str(every)).code
    (tmp_path / "cut").mkdir()
    train = script(tmp_path / "cut", KILLED)
    dice = random.Random(every)
    for _ in range(5):
        assert -9 == launch(train, *dice.sample(range(20), 8), 19, EVERY=str(every)).code
    assert 0 == launch(train, EVERY=str(every)).code
    expected = lines(tmp_path / "whole" / "run")
    assert 25 == len(expected)
    assert expected == lines(tmp_path / "cut" / "run")


INSIDE = """
    from holdfast import Store
    commit = Store.commit

    def commit_and_die(*words, step, **facts):
        checkpoint = commit(*words, step=step, **facts)
        if step == int(sys.argv[1]):
            send("KILL")
        return checkpoint

    Store.commit = commit_and_die
    with new_run(RUN, toy, background=sys.argv[2] == "in the background") as run:
        for step in run.steps(4):
            run.log(step=step)
"""


@pytest.mark.parametrize("how", ["in the background", "before the loop goes on"])
def test_a_checkpoint_never_comes_before_its_line(tmp_path, how):
    """Killed right after the commit: the next attempt goes on from there, and the line is on the disk."""
    train = script(tmp_path, INSIDE)
    assert [-9, 0] == [launch(train, step, how).code for step in (2, -1)]
    assert [1, 2, 3, 4] == [step for step, _, _ in lines(tmp_path / "run")]
    assert [0, 2] == [event["step"] for event in events(tmp_path / "run", "restored")]
