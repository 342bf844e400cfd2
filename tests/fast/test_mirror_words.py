"""What a place's errors, and the run's end, look like to whoever reads them first."""

import errno

import pytest

from holdfast.mirror.place import Silent, redact_error
from stores import invoke
from toy import Toy, new_run


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), "Connection refused"),
        (Silent(errno.EIO, "sftp://host/x: Connection refused"), "sftp://host/x: Connection refused"),
        (Silent("sftp://host/x: no answer for 30 s"), "sftp://host/x: no answer for 30 s"),
        (FileNotFoundError(errno.ENOENT, "No such file", "a/b"), "No such file: a/b"),
        (EOFError(), "the connection was closed"),
        (EOFError("short of 3 bytes"), "short of 3 bytes"),
        (EOFError("Server connection dropped: "), "Server connection dropped"),
        (TimeoutError(), "TimeoutError"),
    ],
)
def test_an_error_is_told_without_its_number(error, text):
    assert text == redact_error(error)


@pytest.mark.parametrize(
    "words", [["prune", "--keep", "Last(1)"], ["doctor"], ["status"], ["hold"], ["unpin", "--step", "1"]]
)
def test_a_command_that_takes_no_address_says_which_do(words):
    result = invoke(words[0], "s3://bucket/run", *words[1:])
    assert 2 == result.exit_code, result.output
    assert "s3://bucket/run: is an address, which only ls, show, verify, diff, export and copy take" in result.output


def test_the_end_on_a_new_machine_names_the_attempt_and_counts_none(tmp_path, capsys):
    """The journals of the earlier attempts are not at the place, so nobody knows how many did something."""
    for number, folder in enumerate(("first", "second"), 1):
        with new_run(tmp_path / folder, Toy(), mirror=[tmp_path / "place"]) as run:
            for _ in run.steps(3 * number):
                pass
    said = [line for line in capsys.readouterr().err.splitlines() if "finished" in line]
    assert [line.partition(": finished: ")[2] for line in said] == [
        "3 steps in 1 attempt",
        "6 steps; this was attempt 2",
    ]
