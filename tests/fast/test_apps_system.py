"""DMTCP and CRIU: any program, from signal to image to restart. Fakes always; the programs themselves where they are."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from holdfast import Store
from holdfast.apps.criu import SIZES, Criu
from holdfast.apps.dmtcp import Dmtcp
from holdfast.apps.program import Ended
from holdfast.errors import UsageError
from programs import Watched, needs, steps
from supervised import until
from system_fakes import install

NAMES = {"dmtcp": ("dmtcp_launch", "dmtcp_restart", "dmtcp_command"), "criu": ("criu",)}
APPS = {"dmtcp": Dmtcp, "criu": Criu}
COUNTED = [sys.executable, str(Path(__file__).parents[1] / "counted.py")]
UNINTERRUPTED = "".join(f"{line} {line * line}\n" for line in range(1, 31))
apps = pytest.mark.parametrize("app", NAMES)


@pytest.fixture
def path(app, tmp_path, monkeypatch):
    found = install(tmp_path / "bin", *NAMES[app])
    monkeypatch.setenv("PATH", f"{found}:{os.environ['PATH']}")
    return found


def grown(out, lines):
    """Waits until the program has come so far."""
    until(lambda: out.exists() and len(out.read_text().splitlines()) >= lines, f"line {lines}")


def last_words(place, app):
    return (place / "run" / "app" / "output.txt" if app == "criu" else place / "out").read_text()


@pytest.mark.slow
class TestFakes:
    """Executables that behave as the real ones did."""

    pytestmark = apps

    def test_from_signal_to_image_to_restart(self, tmp_path, app, path):
        """Told twice, once while it was being restored: the output is exact, and each image lies in the store."""
        out = tmp_path / "lines"
        for lines, signal in ((5, "TERM"), (0, "USR1"), (12, "TERM")):
            with Watched(tmp_path, app, [path / "counter", out]) as it:
                until(it.program, "a start")
                grown(out, lines)
                it.send(signal)
                assert 75 == it.end(), it.said
        assert 3 == len(steps(tmp_path))
        with Watched(tmp_path, app, [path / "counter", out]) as it:
            assert 0 == it.end(), it.said
        assert UNINTERRUPTED == out.read_text()
        assert "counted\n" in last_words(tmp_path, app)
        assert [] == [problem for each in Store(tmp_path / "run").checkpoints() for problem in each.problems()]

    def test_its_own_exit_code_comes_through(self, tmp_path, app, path):
        """Also after a restart."""
        out = tmp_path / "lines"
        with Watched(tmp_path, app, [path / "counter", out, "3"]) as it:
            grown(out, 5)
            it.send("TERM")
            assert 75 == it.end(), it.said
        with Watched(tmp_path, app, [path / "counter", out, "3"]) as it:
            assert 8 == it.end()
            assert "exit 3" in it.said

    def test_a_bad_image_is_quarantined_and_the_older_used(self, tmp_path, app, path):
        """One that was cut before we got it, so that our digests hold."""
        out = tmp_path / "lines"
        with Watched(tmp_path, app, [path / "counter", out]) as it:
            grown(out, 5)
            it.send("TERM")
            assert 75 == it.end(), it.said
        store = Store(tmp_path / "run")
        with store.directory(step=7) as bad:
            for file in store.latest().path.iterdir():
                if file.name != "manifest.json":
                    shutil.copy(file, bad)
            cut = bad / ("inventory.img" if app == "criu" else "ckpt_fake_1-2-3.dmtcp")
            cut.write_bytes(cut.read_bytes()[: 0 if app == "criu" else 20])
        store.close()
        with Watched(tmp_path, app, [path / "counter", out]) as it:
            assert 0 == it.end(), it.said
        assert ["step-000000007-refused"] == [each.name for each in (tmp_path / "run" / "quarantine").iterdir()]
        assert UNINTERRUPTED == out.read_text()


@needs(*NAMES["dmtcp"])
class TestDmtcp:
    """With DMTCP itself."""

    @pytest.mark.parametrize("threads", [1, 3])
    def test_numpy_and_threads_go_on_exactly(self, tmp_path, threads):
        """Killed and told, again and again: every thread's file is the uninterrupted one."""
        exactly(tmp_path, "dmtcp", threads)


@needs("criu")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
class TestCriu:
    """With CRIU itself."""

    @pytest.mark.parametrize("threads", [1, 3])
    def test_numpy_and_threads_go_on_exactly(self, tmp_path, threads):
        """The same."""
        exactly(tmp_path, "criu", threads)


def exactly(place, app, threads):
    want = place / "want"
    want.mkdir()
    with Watched(want, app, [*COUNTED, "out", threads]) as it:
        assert 0 == it.end(), it.said
    for lines, signal in ((5, "TERM"), (12, "USR1"), (14, "SUPERVISOR"), (20, "TERM")):
        with Watched(place, app, [*COUNTED, "out", threads]) as it:
            grown(place / "out.0", lines)
            if signal == "SUPERVISOR":
                it.process.kill()
                it.process.wait()
                until(lambda it=it: not it.left(), "the end of what it started")
            else:
                it.send(signal)
                assert 75 == it.end(), it.said
    with Watched(place, app, [*COUNTED, "out", threads]) as it:
        assert 0 == it.end(), it.said
    assert 3 == len(steps(place))
    for number in range(threads):
        assert (want / f"out.{number}").read_bytes() == (place / f"out.{number}").read_bytes()
    (said,) = (line for line in last_words(want, app).splitlines() if line.startswith("sum"))
    assert said in last_words(place, app)


@apps
def test_without_the_program_it_says_what_to_do(tmp_path, app, monkeypatch):
    """In one line, before anything is started."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match=f"there is no {NAMES[app][0]} on PATH"):
        APPS[app](tmp_path, tmp_path).begin(["true"], None, None)


@apps
def test_another_programs_checkpoint_is_not_gone_on_from(tmp_path, app, path):
    """It says so."""
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "run.cpt").touch()
    with pytest.raises(UsageError, match="another program's"):
        APPS[app](tmp_path, tmp_path).begin(["true"], tmp_path / "kept", None)


@pytest.mark.parametrize("app", ["dmtcp"])
class TestImages:
    """When a set of DMTCP's images is whole."""

    @pytest.fixture
    def program(self, tmp_path, path):
        program = Dmtcp(tmp_path, tmp_path, {})
        program.begin(["true"], None, None)
        return program

    @pytest.fixture
    def images(self, tmp_path):
        return tmp_path / "images"

    def test_the_coordinators_script_ends_it(self, program, images):
        """It is written after the last image; one that is being renamed, or older than an image, is not the end."""
        (images / "ckpt_a.dmtcp").write_text("a")
        assert program.checkpoint() is None
        (images / "dmtcp_restart_script.sh").write_text("#")
        os.utime(images / "ckpt_a.dmtcp", ns=(0, 0))
        assert [images / "ckpt_a.dmtcp"] == [*program.checkpoint().files]
        (images / "ckpt_b.dmtcp.temp").write_text("b")
        assert program.checkpoint() is None
        (images / "ckpt_b.dmtcp.temp").rename(images / "ckpt_b.dmtcp")
        os.utime(images / "dmtcp_restart_script.sh", ns=(0, 0))
        assert program.checkpoint() is None

    def test_0_after_an_unfinished_image_is_no_success(self, program, images):
        """DMTCP says 0 of what it kills, whatever became of the image: nothing must be taken for done."""
        program.stop(15, 1)
        (images / "ckpt_a.dmtcp.temp").write_text("a")
        assert "stopped" == program.verdict(Ended(0, "", told=True))

    def test_0_without_an_image_is_the_programs_own(self, program):
        """It ended just before it was asked."""
        program.stop(15, 1)
        assert "done" == program.verdict(Ended(0, "", told=True))


@pytest.mark.parametrize("app", ["criu"])
def test_a_file_that_is_gone_is_told(tmp_path, app, path):
    """CRIU restores no file; it would only say "bad size"."""
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / SIZES).write_text('{"%s": 7}' % (tmp_path / "lines"))
    program = Criu(tmp_path, tmp_path)
    with pytest.raises(UsageError, match="lines is gone, and had 7 when kept was made: put it back, whole"):
        program.begin(["true"], kept, None)
    (tmp_path / "lines").write_text("123456789")
    program.begin(["true"], kept, None)
    assert "1234567" == (tmp_path / "lines").read_text()
