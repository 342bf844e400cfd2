"""No path, key, name or note breaks a line of output or commands the terminal: in messages, in errors, in commands."""

import os
import signal

import pytest

from holdfast import Stopped, terminal
from holdfast.errors import Damaged, NotFound, StoreError, UsageError
from holdfast.legible import printable
from holdfast.store.store import Store
from odd_checkpoints import EVIL
from stores import asked, flip, invoke
from toy import Toy, new_run


def lines_of(text):
    """Its lines, none of which a terminal obeys."""
    assert all(letter.isprintable() or letter == "\n" for letter in text), text
    return text.splitlines()


def train(root, *, stop=False):
    toy = Toy()
    with new_run(root, toy) as run:
        for _ in run.epochs(2):
            for batch in run.batches(range(2)):
                toy.learn(batch)
                run.log(**{EVIL: batch})
                if stop:
                    os.kill(os.getpid(), signal.SIGTERM)


def test_a_run_in_a_directory_with_an_evil_name_says_one_line_for_each_message(tmp_path, capsys):
    """It starts, stops, and sets a damaged checkpoint aside; each line on stderr is one of ours."""
    root = tmp_path / EVIL
    with pytest.raises(Stopped):
        train(root, stop=True)
    flip(Store(root).latest().path / "manifest.json")
    with pytest.raises(StoreError) as refused:
        train(root)
    said = lines_of(capsys.readouterr().err)
    assert len(said) >= 2
    assert all(line.startswith("holdfast: ") for line in said), said
    assert "\\n\\x1b[2J\\u202eb" in said[0]
    assert "\x1b" not in str(refused.value)


def test_commands_print_evil_names_on_one_line(tmp_path):
    """A run's directory, a checkpoint's copy, a file and a metric: with --json they are exact."""
    root = tmp_path / EVIL
    train(root)
    with Store(root).directory(step=99) as folder:
        (folder / EVIL).write_bytes(b"x")
    (root / "quarantine" / f"step-000000001-{EVIL}").mkdir()
    (root / "pins" / f"step-{EVIL}").mkdir(parents=True)
    for words in (["ls"], ["show"], ["show", "--metrics"], ["verify"], ["diff", root], ["status"]):
        told = invoke(words[0], root, *words[1:])
        assert told.exit_code == 0, (words, told.stdout, told.stderr)
        lines_of(told.stdout)
        assert "\\n\\x1b[2J\\u202eb" in told.stdout or words[0] in ("show", "verify", "status"), words
    assert EVIL in "".join(json_of("show", root)["files"])
    assert EVIL in json_of("ls", root)["run"]


def json_of(*words):
    return asked(*words)


def test_errors_and_messages_keep_to_their_lines(capsys):
    """An error may have lines of its own; a message has one."""
    for kind in (Damaged, NotFound, UsageError):
        assert f"a\n{printable('b' + EVIL[1:], kept=chr(10))}" == str(kind(f"a\nb{EVIL[1:]}"))
    terminal.say(EVIL)
    terminal.warn(EVIL)
    assert 2 == len(lines_of(capsys.readouterr().err))


def test_what_is_printable_stays_as_it_is():
    """Accents, other scripts and emoji are no danger."""
    for text in ("größe/モデル", "loss 📉", "a b_c-d.e"):
        assert text == printable(text)
    assert "a\\tb" == printable("a\tb")


def test_a_key_that_python_does_not_spell_is_saved_and_shown(tmp_path):
    """An integer of 20,001 bits, before a leaf and in a refusal."""
    key = 2**20000
    store = Store(tmp_path / "run")
    store.save({"x": {key: b"x" * 2000}}, step=1)
    assert {"x": {key: b"x" * 2000}} == store.load()
    with pytest.raises(UsageError, match=r"cannot save state.*0x1000"):
        store.save({"x": {key: object()}}, step=2)
    store.close()
    for words in (["show", "--all"], ["show"], ["ls"], ["verify"], ["diff", tmp_path / "run"]):
        assert 0 == invoke(words[0], tmp_path / "run", *words[1:]).exit_code, words
