"""Every kind of error, at each of the first calls on each file of the checkpoint that a run goes on from."""

from itertools import product

import pytest

from needed import needs
from unread import content, ended, failing, training, value

pytestmark = needs("strace")

CODES = ("EIO", "ESTALE", "EACCES", "ETIMEDOUT", "ENOMEM", "EREMOTEIO", "ENOTCONN")
FILES = ("manifest.json", "holdfast.safetensors")
CALLS = (*product(("openat",), (1, 2, 3)), *product(("read", "preadv"), (1, 2)))


def three_steps(place):
    """A run of three steps, each with a checkpoint: its directory and the script."""
    place.mkdir()
    path = training(place)
    assert ended([], path, 3, 2).code == 0
    return place / "run", path


@pytest.mark.parametrize("code", CODES)
def test_no_read_that_fails_once_costs_more_than_a_wait(tmp_path, tally, code):
    """Whichever call fails: the run ends with the bits of one that was not disturbed, and nothing is set aside."""
    expected = value(ended([], three_steps(tmp_path / "undisturbed")[1], 5, 2).out)
    struck = 0
    for number, (file, (call, nth)) in enumerate(product(FILES, CALLS)):
        run, path = three_steps(tmp_path / str(number))
        newest = run / "checkpoints" / "step-000000003" / file
        found = ended(failing(newest, code, f"{nth}..{nth}", call), path, 5, 20)
        assert found.code == 0, (file, call, nth, found)
        assert expected == value(found.out), (file, call, nth)
        assert not [*(run / "quarantine").iterdir()], (file, call, nth)
        struck += "tries again for up to 20 s" in found.err  # the other calls do not come, or may fail
    tally("A file cannot be read at a restore, for a moment", tried=len(FILES) * len(CALLS), observed=struck)
    assert struck >= len(FILES)


@pytest.mark.parametrize("file", FILES)
def test_no_read_that_fails_for_good_changes_what_is_saved(tmp_path, tally, file):
    """Every start ends with one line, and the first start without the error goes on from the newest checkpoint."""
    run, path = three_steps(tmp_path / "run of three")
    before = content(run)
    for code in CODES:
        found = ended(failing(run / "checkpoints" / "step-000000003" / file, code), path, 5, 2)
        assert found.code == 1, (code, found)
        assert "cannot be read on" in found.err.splitlines()[-1], (code, found)
        assert before == content(run), code
    assert "resumed 3" in ended([], path, 5, 2).out
    tally("A file cannot be read at a restore, for good", tried=len(CODES))
