"""Two users of a group share a run: what one of them has left so that the other cannot go on is told, with the cure."""

import os
import shutil
import sys
import tempfile
import traceback
from pathlib import Path

import pytest

from holdfast import Every, Last, Run
from holdfast.errors import DiskError
from stores import invoke

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become two users")
GROUP = 2000


@pytest.fixture
def shared():
    """A directory of the group, whose subdirectories are the group's too."""
    path = Path(tempfile.mkdtemp(dir="/tmp"))
    os.chown(path, 0, GROUP)
    path.chmod(0o2775)
    yield path
    shutil.rmtree(path)


def as_user(user: int, umask: int, work) -> str:
    """Do `work` in a child process of that user; return what it returned, or how it failed."""
    with Run(Path(tempfile.mkdtemp()) / "run", {"it": [1]}, every=Every(steps=1), keep=Last(1)) as run:
        for _ in run.steps(2):  # what a run imports is read before: the user may not read it
            pass
    invoke("doctor", run.path)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setgroups([])
            os.setresgid(GROUP, GROUP, GROUP)
            os.setresuid(user, user, user)
            os.umask(umask)
            os.chdir("/tmp")
            try:
                text = str(work())
            except DiskError as error:
                text = f"DiskError: {error}"
            os.write(writing, text.encode())
        except BaseException:
            os.write(writing, traceback.format_exc().encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading) as said:
        return said.read()


def train(path: Path, total: int):
    def work():
        with Run(path, {"it": [1]}, every=Every(steps=1), keep=Last(1), background=False) as run:
            return [*run.steps(total)]

    return work


def test_what_another_user_left_is_told_with_the_directory_and_the_cure(shared):
    """A umask of 022 once: the message names attempts/2 and the chmod, and no place where this user may write."""
    run = shared / "run"
    assert as_user(1001, 0o002, train(run, 2)) == "[0, 1]"
    assert as_user(1002, 0o022, train(run, 4)) == "[2, 3]"
    told = as_user(1001, 0o002, train(run, 6))
    assert f"chmod g+w {run}/attempts/2" in told
    assert "user 1002" in told
    assert "history" not in told
    said = as_user(1001, 0o002, lambda: invoke("doctor", run).output)
    assert f"chmod g+w {run}/attempts/2" in said, said
    (run / "attempts/2").chmod(0o2775)
    for place in [*run.glob("checkpoints/step-*"), run / "history", run / "checkpoints"]:
        place.chmod(0o2775)
    assert as_user(1001, 0o002, train(run, 6)) == "[4, 5]"
    assert "rights" not in as_user(1001, 0o002, lambda: invoke("doctor", run).output)


def test_a_sticky_directory_is_told_with_the_cure(shared, capfd):
    """There another user's checkpoints cannot be pruned: the message names that directory, and not one's own."""
    run = shared / "run"
    assert as_user(1001, 0o002, train(run, 2)) == "[0, 1]"
    (run / "checkpoints").chmod(0o3775)
    capfd.readouterr()
    as_user(1002, 0o002, train(run, 4))
    told = capfd.readouterr().err
    assert f"chmod -t {run}/checkpoints" in told, told
    assert "deleting-" not in told
    assert f"chmod -t {run}/checkpoints" in as_user(1002, 0o002, lambda: invoke("doctor", run).output)
    assert sys.platform == "linux"
