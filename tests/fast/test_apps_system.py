"""The adapters of DMTCP and CRIU, without a program."""

import os

import pytest

from holdfast.apps.criu import SIZES, Criu
from holdfast.apps.dmtcp import Dmtcp
from holdfast.apps.program import ProgramExit
from holdfast.errors import UsageError
from system_fakes import NAMES, install

APPS = {"dmtcp": Dmtcp, "criu": Criu}
apps = pytest.mark.parametrize("app", NAMES)


@pytest.fixture
def path(app, tmp_path, monkeypatch):
    found = install(tmp_path / "bin", app)
    monkeypatch.setenv("PATH", f"{found}:{os.environ['PATH']}")
    return found


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
        program = Dmtcp(tmp_path, tmp_path)
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
        assert "stopped" == program.verdict(ProgramExit(0, "", told=True))

    def test_0_without_an_image_is_the_programs_own(self, program):
        """It ended just before it was asked."""
        program.stop(15, 1)
        assert "done" == program.verdict(ProgramExit(0, "", told=True))


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
