"""DMTCP: any program that runs on CPUs, with its threads and children, as `dmtcp_launch` sees it.

Observed with 4.2.0. The exit code of `--kcheckpoint` is always 0 for the program and 2 for the
requesting command. No signal makes a checkpoint, and DMTCP uses SIGUSR2 itself. We accept only a
set of images that was finished after our request. `--bcheckpoint` is not used: its images of
threaded programs hang on some versions.
"""

from __future__ import annotations

import os
import shutil
import signal as signals
from collections.abc import Sequence
from pathlib import Path

from .. import scan
from ..errors import UsageError
from .program import ProgramCheckpoint, ProgramExit, Verdict, make_empty
from .take import FileState, copy_if_unchanged, file_state, file_states

INTERVAL_S = 900
ASK = (
    'while kill -0 "$1"; do dmtcp_command --coord-port '
    '"$(cat "$0")" --kcheckpoint; sleep 0.5; done 2>/dev/null'
)
NO_IMAGE = 99  # also if the coordinator was killed
FELL = {139, -signals.SIGSEGV}  # a crash on a truncated image


class Dmtcp:
    """One computation. It writes its images to `images` in the supervisor's directory;
    the store keeps them.
    """

    def __init__(self, _work: Path, room: Path) -> None:
        self._images = room / "images"
        self._asked: dict[Path, FileState] | None = None  # the images when it was told to stop

    def begin(
        self, command: Sequence[str], checkpoint: Path | None, time_left_s: float | None
    ) -> Sequence[str]:
        """Return `dmtcp_launch ... COMMAND`, or `dmtcp_restart` of all images.

        The supervisor enforces the time limit.
        """
        del time_left_s
        start = "dmtcp_launch" if checkpoint is None else "dmtcp_restart"
        if shutil.which(start) is None:
            raise UsageError(
                f"--app dmtcp: there is no {start} on PATH; "
                "install DMTCP 4.2 or later (docs/apps.md)"
            )
        make_empty(self._images)
        self._asked = None
        interval = os.environ.get("DMTCP_CHECKPOINT_INTERVAL", str(INTERVAL_S))
        # on restart the coordinator has no --ckptdir
        launch = ["env", f"DMTCP_CHECKPOINT_DIR={self._images}", start]
        coordinator = [
            "--new-coordinator",
            "--coord-port",
            "0",
            "--port-file",
            str(self._images / "port"),
        ]
        places = ["--ckptdir", str(self._images), "--interval", interval]
        if checkpoint is None:
            return [*launch, *coordinator, *places, *command]
        images = [str(path) for path in scan.glob(checkpoint, "*.dmtcp")]
        if not images:
            raise UsageError(
                f"{checkpoint}: holds no image of DMTCP; another program's? Give another --run"
            )
        copy_if_unchanged(
            ProgramCheckpoint(_beside(checkpoint), root=checkpoint), self._images
        )  # DMTCP searches them where it saved them
        return [*launch, *coordinator, *places, *images]

    def checkpoint(self) -> ProgramCheckpoint | None:
        """Return the images if the coordinator has written its script after them and none is
        incomplete.
        """
        images = file_states(scan.glob(self._images, "*.dmtcp"))
        script = file_state(self._images / "dmtcp_restart_script.sh")
        if not images or script is None or any(scan.glob(self._images, "*.temp")):
            return None
        if max(image.mtime_ns for image in images.values()) > script.mtime_ns:
            return None
        return ProgramCheckpoint(
            [*sorted(images), *_beside(self._images)], root=self._images, whole=True
        )

    def stop(self, signal: int, pid: int) -> int | Sequence[str]:
        """Repeat `--kcheckpoint` until the program has ended.

        DMTCP ignores the request without an error during a restore.
        """
        del signal
        if self._asked is None:
            self._asked = file_states(scan.glob(self._images, "*.dmtcp*"))
        return ["sh", "-c", ASK, str(self._images / "port"), str(pid)]

    def verdict(self, ended: ProgramExit) -> Verdict:
        """Stopped if an image was begun after our request;
        else the program's own exit code decides.
        """
        if (
            self._asked is not None
            and file_states(scan.glob(self._images, "*.dmtcp*")) != self._asked
        ):
            return "stopped"  # the exit code is 0 then, even if the images are bad
        if ended.code == 0:
            return "done"
        if (
            ended.resumed
            and not ended.told
            and ended.code in {NO_IMAGE, *FELL}
            and not self.checkpoint()
        ):
            return "damaged"
        return "stopped" if ended.told and (ended.code < 0 or ended.code == NO_IMAGE) else "failed"


def _beside(images: Path) -> list[Path]:
    """Return the deleted files that the program still had open:
    DMTCP saves them beside its images.
    """
    return [path for path in scan.glob(images, "*_files/**/*") if scan.is_file(path)]
