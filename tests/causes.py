"""Drills of planted scripts: what one is, and how a zygote runs it."""

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from holdfast import drill
from holdfast.drill.aim import Options
from holdfast.errors import ChildError, UsageError

TESTS = Path(__file__).parent
SCRIPTS = TESTS / "drill_scripts"
TORCH = (  # what a script with torch imports sooner or later
    *("torch", "torch._dynamo", "torch.optim.swa_utils", "torch.utils.data", "holdfast.torch.live"),
    *("holdfast.torch.program", "holdfast.torch.loader", "holdfast.torch.rng", "holdfast.torch.leaves"),
)
OPTIONS = Options(kills=4, signals=("KILL", "TERM"), seed=1, damage=False)


class Planted(NamedTuple):
    """A script with one omission. Its FIX does what the drill has to say."""

    script: str
    cause: str  # the name of the cause
    line: str  # what its text has to say
    verdict: str = "different"
    fresh: bool = False  # it wants an interpreter of its own


class Found(NamedTuple):
    script: str
    verdict: str
    cause: str
    text: str


@contextmanager
def zygote(place, *modules):
    """Run scripts through one process that has imported `modules`; yields what stands for `python`."""
    socket = str(place / f"zygote-{len(modules)}")
    server = subprocess.Popen(
        [sys.executable, str(TESTS / "zygote.py"), socket, *modules], stdout=subprocess.PIPE, text=True, cwd=place
    )
    try:
        assert server.stdout.readline() == "ready\n"
        yield [sys.executable, "-S", str(TESTS / "zygote_client.py"), socket]
    finally:
        server.kill()
        server.wait()
        server.stdout.close()


def drilled(python, script, place, *, fix, options=OPTIONS, words=()):
    """What the drill finds in a script, with its omission or with what mends it."""
    os.environ["FIX"], os.environ["SNAPSHOT"] = "1" if fix else "", str(place / f"snapshot-{fix}")
    try:
        found = drill.drill([*python, str(SCRIPTS / f"{script}.py"), *words], options, lambda _: None)
    except (ChildError, UsageError) as error:
        return Found(script, "refused", "error", str(error))
    finally:
        del os.environ["FIX"], os.environ["SNAPSHOT"]
    divergence = found.divergence
    if divergence is None:
        return Found(script, found.verdict, "", "; ".join(found.notes))
    return Found(script, found.verdict, divergence.cause, divergence.advice)


if __name__ == "__main__":
    import tempfile
    import time

    with (
        tempfile.TemporaryDirectory() as name,
        zygote(Path(name), "numpy") as plain,
        zygote(Path(name), *TORCH) as torch,
    ):
        for script in sys.argv[1:] or sorted(
            path.stem for path in SCRIPTS.glob("*.py") if path.stem not in ("line", "right")
        ):
            for fix in (False, True):
                began = time.monotonic()
                own = script in ("hash_order", "h_hash")
                python = torch if script.startswith("t_") else plain
                words = [script.removeprefix("right:")] if script.startswith("right:") else []
                if words and fix:
                    continue
                found = drilled(
                    [sys.executable] if own else python, "right" if words else script, Path(name), fix=fix, words=words
                )
                print(
                    f"{script} {'fix' if fix else 'omission'} {time.monotonic() - began:.1f}s: {found.verdict} [{found.cause}] {found.text[:700]}",
                    flush=True,
                )
