"""The board after kills and power losses: TensorBoard's own reader shows what the metrics log says."""

import random
import shutil

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from boards import cut_off, logged, shown
from holdfast import Run
from holdfast.board import Board
from toy import launch, script


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.integers(1, 16), st.booleans(), st.booleans()), max_size=5),
    st.integers(1, 9),
    st.randoms(use_true_random=False),
)
def test_however_often_it_was_killed_each_step_is_shown_once(tmp_path, kills, every, draw):
    """In any step; the board new or the same, and kept up or left behind: at the end it shows what the log says."""
    place = tmp_path / str(draw.getrandbits(60))
    board = Board(place / "run")
    for cut, new, follows in kills:
        board = Board(place / "run") if new else board
        cut_off(place / "run", board if follows else Board(place / "run", place / "elsewhere"), cut, every)
    cut_off(place / "run", board)
    assert shown(place / "run-board") == logged(place / "run")
    shutil.rmtree(place)


def test_what_a_power_loss_took_is_said_again(tmp_path):
    """The last file cut off anywhere, or ending in zeros: the next attempt's file makes it whole."""
    path = tmp_path / "run"
    cut_off(path, Board(path), 11)
    (file,) = (tmp_path / "run-board").iterdir()
    whole = file.read_bytes()
    draw = random.Random(1)
    for size in [0, 5, 30, 60, *(draw.randrange(len(whole)) for _ in range(12)), len(whole)]:
        for tail in (b"", bytes(100)):
            place = tmp_path / f"{size}-{len(tail)}"
            shutil.copytree(path, place / "run", symlinks=True)
            (place / "run-board").mkdir()
            (place / "run-board" / file.name).write_bytes(whole[:size] + tail)
            board = Board(place / "run")
            cut_off(place / "run", board)
            assert shown(place / "run-board") == logged(place / "run")
            shutil.rmtree(place)


KILLED = """
    from holdfast.board import Board
    when = [int(word) for word in sys.argv[1:]]
    board = Board(RUN)
    with new_run(RUN, toy, every=Every(steps=3)) as run:
        for step in run.steps(12):
            toy.learn(step)
            run.log(value=toy.value % 9973)
            if step % 2:
                run.metrics()
                board.update()
            if step in when:
                send("KILL")
    board.update()
"""


def test_a_process_that_is_killed_leaves_a_board_that_goes_on(tmp_path):
    """Real kills, with a save in the background: the board of the cut run is that of the whole one."""
    for place, kills in (("whole", [[]]), ("cut", [[1], [5], [7], [10], []])):
        (tmp_path / place).mkdir()
        train_script = script(tmp_path / place, KILLED)
        assert [-9] * (len(kills) - 1) + [0] == [launch(train_script, *words).code for words in kills]
    assert shown(tmp_path / "cut" / "run-board") == shown(tmp_path / "whole" / "run-board")
    assert Run(tmp_path / "cut" / "run", {}).metrics()[-1]["step"] == 12
