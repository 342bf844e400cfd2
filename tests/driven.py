"""A supervisor of writer.py, a program that is not ours, as a process."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

from holdfast.store.store import Store
from supervised import PATIENCE_S

WRITER = Path(__file__).parent / "writer.py"


WHOLE = 2001


DRIVER = """
import sys
from pathlib import Path
from holdfast.apps.program import ProgramCheckpoint
from holdfast.errors import HoldfastError
from holdfast.supervise import keep
from holdfast.supervise.supervise import SupervisorOptions, supervise

keep.LOOK_S = 0.2

class Writer:
    # the adapter of writer.py

    def begin(self, command, checkpoint, time_left_s):
        self.began = Path("state.ck").stat().st_mtime_ns if Path("state.ck").exists() else None
        return [*command, *(["--from", str(checkpoint / "state.ck")] if checkpoint else [])]

    def checkpoint(self):
        file = Path("state.ck").absolute()
        if not file.exists() or file.stat().st_mtime_ns == self.began:
            return None
        words = file.read_text().split()
        return ProgramCheckpoint([file], int(words[0]) if words and words[0].isdecimal() else None)

    def stop(self, number, pid):
        return 15

    def verdict(self, ended):
        if "is not whole" in ended.tail:
            return "damaged"
        if "stopped early" in ended.tail:
            return "stopped"
        return "done" if ended.code == 0 else "failed"

try:
    options = SupervisorOptions(Path(sys.argv[1]), keeps=True, retries=RETRIES, lead_s=LEAD_S)
    outcome = supervise(sys.argv[2:], lambda place: Writer(), options)
except HoldfastError as error:
    sys.stderr.write(f"{error}\\n")
    sys.exit(error.exit_code)
sys.exit(outcome.exit_code)
"""


class Driven:
    """A supervisor of writer.py in `place`, with its store in `place`/run."""

    code: int  # how it ended, once it has

    def __init__(self, place, steps, *options, retries=0, lead_s=None):
        self.place = Path(place)
        driver = textwrap.dedent(DRIVER).replace("RETRIES", str(retries)).replace("LEAD_S", str(lead_s))
        (self.place / "driver.py").write_text(driver)
        words = [sys.executable, "driver.py", "run", sys.executable, WRITER, steps, *options]
        with (self.place / "out").open("ab") as out, (self.place / "err").open("ab") as err:
            self.process = subprocess.Popen([*map(str, words)], cwd=place, stdout=out, stderr=err)

    def end(self):
        return self.process.wait(PATIENCE_S)

    @property
    def printed(self):
        return (self.place / "out").read_text()

    @property
    def said(self):
        return (self.place / "err").read_text()

    @property
    def child(self):
        lines = [json.loads(line) for line in (self.place / "run" / "supervisor.jsonl").read_text().split("\n") if line]
        return [line["pid"] for line in lines if line["event"] == "start"][-1]


def driven(place, steps, *options, **more):
    it = Driven(place, steps, *options, **more)
    it.code = it.end()
    return it


def kept(place):
    return [checkpoint.step for checkpoint in Store(place / "run").checkpoints()]


def whole(checkpoint):
    """Whether it is one whole checkpoint of the program's, and not halves of two."""
    text = (checkpoint.path / "state.ck").read_text()
    return len(text) == WHOLE and set(text[WHOLE // 2 : -1]) == {str(int(text.split()[0]) % 10)}


def uninterrupted(steps):
    value = 1
    for step in range(1, steps + 1):
        value = value * 31 % 1_000_003 + step
    return f"value {value}"
