"""The board: TensorBoard's own reader shows what the metrics log says, however often run and board were killed."""

import math
import shutil

import pytest

from boards import cut_off, logged, shown, train
from holdfast import Every, journal
from holdfast.board import Board, events
from toy import Cut, Toy, new_run


def test_a_whole_run_is_shown_as_it_was_logged(tmp_path):
    """Steps, ends of epochs, two numbers in a line; beside the run's directory."""
    board = Board(tmp_path / "run")
    board.update()
    assert not (tmp_path / "run-board").exists()
    cut_off(tmp_path / "run", board)
    expected = logged(tmp_path / "run")
    assert {tag: len(points) for tag, points in expected.items()} == {"acc": 2, "half": 16, "loss": 16}
    assert shown(tmp_path / "run-board") == expected
    (file,) = (tmp_path / "run-board").iterdir()
    before = file.read_bytes()
    board.update()
    assert file.read_bytes() == before


def test_an_attempt_that_has_not_chosen_yet_takes_nothing_back(tmp_path):
    """Only when it is known where it goes on; then what was done beyond is undone on the board, too."""
    path = tmp_path / "run"
    board = Board(path)
    cut_off(path, board, 8)
    whole = logged(path)["loss"]
    place = path / "attempts" / "2"
    place.mkdir()
    restored = b'\n{"event":"restored","step":3,"phase":"step","time":2}\n\n{"event":"metrics","step":4,'
    rest = b'"epoch":0,"phase":"step","values":{"loss":7},"time":3}\n'
    for piece, expected in [
        (b'{"event":"begin","time":1}\n', whole),
        (restored, whole[:3]),
        (rest, [*whole[:3], (4, 7.0)]),
    ]:
        with (place / "attempt-2.jsonl").open("ab") as file:
            file.write(piece)
        board.update()
        assert shown(tmp_path / "run-board")["loss"] == expected


def test_lines_that_were_appended_twice_are_shown_once(tmp_path):
    """A full disk: the journal has them again, whole."""
    room = tmp_path / "run" / "attempts" / "1"
    room.mkdir(parents=True)
    path, board = room / "attempt-1.jsonl", Board(tmp_path / "run")
    path.write_bytes(b'{"event":"restored","step":0,"phase":"step"}\n')
    board.update()
    found = [{"event": "metrics", "time": 1.0, "step": n, "epoch": 0, "values": {"a": n}} for n in range(1, 4)]
    data = journal.encode_events(found)
    for piece in (data[:-20], data[:-20] + data):
        with path.open("ab") as file:
            file.write(piece)
        board.update()
    assert shown(tmp_path / "run-board") == {"a": [(1, 1.0), (2, 2.0), (3, 3.0)]}


def test_numbers_of_all_sizes(tmp_path):
    """Not finite ones, ones that 32 bits do not hold, names in any script."""
    with new_run(tmp_path / "run", Toy()) as run:
        run.log(nan=math.nan, inf=-math.inf, big=-1e300, Größe=1e30, **{"a/b": 2**40})
        run.safe_point()
    Board(tmp_path / "run").update()
    found = {tag: points[0][1] for tag, points in shown(tmp_path / "run-board").items()}
    assert math.isnan(found.pop("nan"))
    assert found == {"inf": -math.inf, "big": -math.inf, "Größe": pytest.approx(1e30), "a/b": 2.0**40}


def test_a_board_that_was_removed_comes_back(tmp_path):
    """Its files are nobody's only copy."""
    board = Board(tmp_path / "run", tmp_path / "deep" / "board")
    with new_run(tmp_path / "run", Toy()) as run:
        for step in run.steps(6):
            run.log(step=step)
            run.metrics()
            board.update()
            if step == 3:
                shutil.rmtree(tmp_path / "deep")
    board.update()
    assert shown(tmp_path / "deep" / "board") == {"step": [(step + 1, float(step)) for step in range(6)]}


def test_files_are_read_in_the_order_of_their_attempts(tmp_path, monkeypatch):
    """Also when a clock was set back, or two attempts began in the same second."""
    path = tmp_path / "run"
    monkeypatch.setattr("time.time", lambda: 1_700_000_000.0)
    for cut in (5, 2, 2):
        cut_off(path, Board(path), cut, every=2)
    names = [file.name for file in sorted((tmp_path / "run-board").iterdir())]
    assert [int(name.split(".")[-1]) for name in names] == [1, 2, 3]
    monkeypatch.setattr("time.time", lambda: 1_600_000_000.0)
    cut_off(path, Board(path))
    assert shown(tmp_path / "run-board") == logged(path)


def test_the_bytes_are_tensorboards():
    """Its own classes write the same records."""
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

    values = [Summary.Value(tag=tag, simple_value=value) for tag, value in (("loss", 0.25), ("ü", -1e9))]
    theirs = [
        Event(wall_time=1.5, step=0, file_version="brain.Event:2"),
        Event(wall_time=2.5, step=300, session_log=SessionLog(status=SessionLog.START)),
        Event(wall_time=3.5, step=2**40, summary=Summary(value=values)),
    ]
    ours = [
        events.header(1.5),
        events.start(2.5, 300),
        events.scalars(3.5, 2**40, {"loss": 0.25, "ü": -1e9}),
    ]
    for event, record in zip(theirs, ours, strict=True):
        size = int.from_bytes(record[:8], "little")
        assert Event.FromString(record[12:-4]) == event
        assert (size, len(record)) == (len(record) - 16, size + 16)
        assert int.from_bytes(record[8:12], "little") == masked_crc32c(record[:8])
        assert int.from_bytes(record[-4:], "little") == masked_crc32c(record[12:-4])
    data = b"".join(ours)
    steps = [events.last_step(data[:size]) for size in (0, len(ours[0]), len(data) - 1, len(data))]
    assert steps == [None, 0, 300, 2**40]


# Kept by a run --------------------------------------------------------------------------------------------------


def kept(path, cut=None, **options):
    """A run that keeps its board by itself."""
    options = {"every": Every(steps=3), "background": False, "take_over": True, "board": True, **options}
    with new_run(path, Toy(), **options) as run:
        for epoch in run.epochs(2):
            for batch in run.batches(range(8)):
                run.log(loss=epoch * 8 + batch)
                if epoch * 8 + batch + 1 == cut:
                    raise Cut
            run.log(acc=epoch)


def test_a_run_keeps_its_board(tmp_path):
    """Asked for in one word; whole when the run has ended, was stopped or failed, and on every start."""
    path = tmp_path / "run"
    for cut in (5, 8, 14):
        with pytest.raises(Cut):
            kept(path, cut)
        assert shown(tmp_path / "run-board") == logged(path)
    kept(path)
    assert shown(tmp_path / "run-board") == logged(path)
    assert len(shown(tmp_path / "run-board")["loss"]) == 16
    kept(tmp_path / "other", board=tmp_path / "there")
    assert shown(tmp_path / "there") == logged(tmp_path / "other")
    assert not (tmp_path / "other-board").exists()


def test_a_drilled_run_has_a_board_of_its_own(tmp_path, monkeypatch):
    """A drill moves the run, and never writes into the board of the real one."""
    monkeypatch.setenv("HOLDFAST_DRILL", "{}")
    kept(tmp_path / "moved", board=tmp_path / "real")
    assert not (tmp_path / "real").exists()
    assert shown(tmp_path / "moved-board") == logged(tmp_path / "moved")


def test_a_board_that_cannot_be_written_ends_no_training(tmp_path, capsys):
    """It is said once, and what makes it whole later."""
    (tmp_path / "file").write_text("")
    kept(tmp_path / "run", board=tmp_path / "file" / "board")
    assert len(logged(tmp_path / "run")["loss"]) == 16
    said = [line for line in capsys.readouterr().err.splitlines() if "the board" in line]
    assert len(said) == 1
    assert "makes it whole" in said[0]


def test_an_attempt_leaves_the_board_to_its_successor(tmp_path):
    """A ghost that wakes up writes nothing where the living attempt writes."""
    train(tmp_path / "run")
    first, second = Board(tmp_path / "run", only=1), Board(tmp_path / "run")
    first.update()
    train(tmp_path / "run")
    second.update()
    before = sorted((tmp_path / "run-board").iterdir())
    Board(tmp_path / "run", only=1).update()
    first.update()
    assert sorted((tmp_path / "run-board").iterdir()) == before
    assert len(before) == 2
