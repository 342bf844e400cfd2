"""A start that waits for a file: what a signal leaves behind, and what a disk that fails does to that."""

import errno
import os

import pytest

from holdfast import Stopped, Store, disk
from holdfast.run import patience
from mirrored import look
from toy import Toy, events, new_run

pytestmark = pytest.mark.usefixtures("no_syncs")


@pytest.mark.parametrize("appends", [True, False])
def test_a_signal_during_the_wait_ends_the_attempt_at_the_places_too(tmp_path, monkeypatch, appends):
    """Another machine may begin at once. The exit code is 75, also if the disk takes no last line."""
    path, place, real = tmp_path / "run", tmp_path / "place", disk.open_plain
    with new_run(path, Toy(), mirror=place) as run:
        for _ in run.steps(2):
            pass

    def unreadable(at, **options):
        if at.suffix == ".safetensors" and at.is_relative_to(path):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(at))
        return real(at, **options)

    def broken(at, data, *, sync):
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(at))

    def signalled(self, error):
        if not appends:
            monkeypatch.setattr(disk, "append", broken)
        self._began_s, self._session.stop.reason = 0.0, "SIGTERM"

    monkeypatch.setattr(disk, "open_plain", unreadable)
    monkeypatch.setattr(patience.Patience, "_begin", signalled)
    with pytest.raises(Stopped), new_run(path, Toy(), mirror=place):
        pass
    monkeypatch.undo()
    assert [True, True] == [each.ended for each in look(place).claims]
    assert appends == bool(events(path, "stop"))
    assert 2 == Store(path).latest().step
