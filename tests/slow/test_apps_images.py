"""DMTCP and CRIU: any program, from signal to image to restart. Fakes always; the programs themselves where
they are.
"""

import os
import sys
from pathlib import Path

import pytest

from holdfast import Store
from needed import missing
from programs import Watched, planted, steps
from supervised import until
from system_fakes import NAMES, install

COUNTED = [sys.executable, str(Path(__file__).parents[1] / "counted.py")]
apps = pytest.mark.parametrize("app", NAMES)


def grown(out, lines):
    """Waits until the program has come so far."""
    until(lambda: out.exists() and len(out.read_text().splitlines()) >= lines, f"line {lines}")


def last_words(place, app):
    return (place / "run" / "app" / "output.txt" if app == "criu" else place / "out").read_text()


@apps
def test_from_signal_to_image_to_restart_with_fakes(tmp_path, app, monkeypatch):
    """Told three times, once while it was being restored: the output is exact, and each image lies in the store. A bad
    image (cut before we got it, so that our digests hold) is set aside for an older one. The program's exit code comes
    through.
    """
    monkeypatch.setenv("PATH", f"{install(tmp_path / 'bin', app)}:{os.environ['PATH']}")
    out = tmp_path / "lines"
    command = [tmp_path / "bin" / "counter", out, "3"]
    for lines, signal in ((5, "TERM"), (0, "USR1"), (12, "TERM")):
        with Watched(tmp_path, app, command) as it:
            until(it.program, "a start")
            grown(out, lines)
            it.send(signal)
            assert 75 == it.end(), it.said
    assert 2 <= len(steps(tmp_path)) <= 3  # a signal that comes before the program is restored leaves the image before
    newest = Store(tmp_path / "run").latest()
    image = {path.name: path.read_bytes() for path in newest.path.iterdir() if path.name != "manifest.json"}
    cut, size = ("inventory.img", 0) if app == "criu" else ("ckpt_fake_1-2-3.dmtcp", 20)
    planted(tmp_path, newest.step + 1, image | {cut: image[cut][:size]})
    with Watched(tmp_path, app, command) as it:
        assert 8 == it.end(), it.said
        assert "exit 3" in it.said
    (refused,) = (tmp_path / "run" / "quarantine").iterdir()
    assert f"step-{newest.step + 1:09d}-refused" == refused.name
    assert "".join(f"{line} {line * line}\n" for line in range(1, 31)) == out.read_text()
    assert "counted\n" in last_words(tmp_path, app)
    kept = Store(tmp_path / "run").checkpoints()
    assert kept
    assert [] == [problem for each in kept for problem in each.problems()]


@apps
@pytest.mark.parametrize("threads", [1, 3])
def test_numpy_and_threads_go_on_exactly_with_the_program_itself(tmp_path, app, threads):
    """Killed and told, again and again: every thread's file is the uninterrupted one."""
    if reason := missing(*NAMES[app], root=app == "criu"):
        pytest.skip(reason)
    want = tmp_path / "want"
    want.mkdir()
    command = [*COUNTED, "out", threads]
    with Watched(want, app, command) as it:
        assert 0 == it.end(), it.said
    for lines, signal in ((5, "TERM"), (12, "USR1"), (14, "SUPERVISOR"), (20, "TERM")):
        with Watched(tmp_path, app, command) as it:
            grown(tmp_path / "out.0", lines)
            if signal == "SUPERVISOR":
                it.kill()
            else:
                it.send(signal)
                assert 75 == it.end(), it.said
    with Watched(tmp_path, app, command) as it:
        assert 0 == it.end(), it.said
    assert 3 == len(steps(tmp_path))
    for number in range(threads):
        assert (want / f"out.{number}").read_bytes() == (tmp_path / f"out.{number}").read_bytes()
    (said,) = (line for line in last_words(want, app).splitlines() if line.startswith("sum"))
    assert said in last_words(tmp_path, app)
