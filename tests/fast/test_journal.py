"""The journal: what a start reads of it, without parsing all of it."""

import random
import re
import tomllib
from pathlib import Path

import msgspec

from holdfast import journal
from holdfast.journal import JournalLines, Log


def some_lines(dice):
    """Lines of all kinds, whole, torn, empty, repeated and foreign."""
    kinds = [
        lambda: {"event": "metrics", "step": dice.randrange(9), "epoch": 0, "values": {"saved": 0.5}},
        lambda: {"event": "saved", "step": dice.randrange(9), "save_s": dice.random()},
        lambda: {"event": "told", "what": "saved and failed"},
        lambda: {"event": dice.choice(["failed", "requeued", "restored"]), "step": dice.randrange(9)},
        lambda: {"event": "saved"},  # without its step: not written by Holdfast
        lambda: {"other": "saved"},
    ]
    lines = []
    for _ in range(dice.randrange(30)):
        line = msgspec.json.encode(dice.choice(kinds)())
        lines.append(dice.choice([line, line, line, line[: dice.randrange(len(line))], dice.choice([*lines, b""])]))
    return b"\n".join(lines)


def test_what_is_parsed_when_it_is_asked_for_is_what_a_whole_parse_finds(tmp_path):
    """From the front, from the back, one kind alone: the same events, in any order of asking."""
    dice, path, asked = random.Random(3), tmp_path / "attempt-1.jsonl", 0
    for _ in range(300):
        path.write_bytes(some_lines(dice))
        expected = journal.read(path)
        lines = JournalLines(path)
        log, plain = Log(1, path, lines), Log(1, path, expected)
        questions = [
            lambda each: [*each.events],
            lambda each: [*reversed(each.events)],
            lambda each: [*each.newest("saved")],
            lambda each: next(each.newest("failed"), None),
            lambda each: (each.owner, each.last, each.closed, each.restored),
            lambda each: (len(each.events), each.events[:2], each.events[-1:]),
        ]
        for question in dice.sample(questions, len(questions)):
            asked += bool(expected)
            assert question(plain) == question(log)
            if dice.random() < 0.2:
                log.forget()
    assert asked > 1000


def test_a_journal_that_moves_to_the_history_before_it_is_read_is_found_there(tmp_path):
    """The next attempt moves it between the listing and the reading."""
    for name in ("attempts/1", "history"):
        (tmp_path / name).mkdir(parents=True)
    place = tmp_path / "attempts" / "1" / "attempt-1.jsonl"
    place.write_bytes(journal.encode_events([{"event": "begin"}]))
    (log,) = journal.logs(tmp_path)
    place.rename(tmp_path / "history" / place.name)
    assert ["begin"] == [event["event"] for event in log.events]


def test_what_was_saved_and_not_taken_away_is_named():
    """Pruned and quarantined checkpoints are accounted for; one that is saved once more is not."""
    saved = [{"event": "saved", "checkpoint": name} for name in ("a", "b", "c", "d")]
    pruned, aside = {"event": "pruned", "names": ["a", "c"]}, {"event": "quarantined", "name": "b", "why": "damaged"}
    first, second = Log(1, Path("1"), [*saved, pruned]), Log(2, Path("2"), [{"event": "begin"}, aside, saved[0]])
    assert ["d", "a"] == journal.unaccounted_checkpoints([first, second])
    assert [] == journal.unaccounted_checkpoints([Log(1, Path("1"), [{"event": "begin"}, *saved[:1], pruned])])


def test_with_the_oldest_msgspec_that_is_accepted_a_torn_line_is_dropped():
    """Before 0.21 its DecodeError was no ValueError: each reader ended at a line that a kill had cut off."""
    assert issubclass(msgspec.DecodeError, ValueError)
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    floors = [re.fullmatch(r"msgspec>=(\d+)\.(\d+)", each) for each in project["dependencies"]]
    assert [(0, 21)] == [(int(floor[1]), int(floor[2])) for floor in floors if floor]
