"""Drills of planted scripts: each leaves one thing out, and the drill has to name it; with FIX set it does what it is
told.

The scripts stand in drill_scripts/; `right.py` has those that leave out nothing. A zygote runs them.
"""

import fcntl
import os
import subprocess
import sys
import zlib
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from holdfast import drill
from holdfast.drill import DrillOptions, report
from holdfast.errors import ChildError, UsageError

TESTS = Path(__file__).parent
SCRIPTS = TESTS / "drill_scripts"
TORCH = (  # what a script with torch imports sooner or later
    *("torch", "torch._dynamo", "torch.optim.swa_utils", "torch.utils.data", "holdfast.torch.live"),
    *("holdfast.torch.program", "holdfast.torch.loader", "holdfast.torch.rng", "holdfast.torch.leaves"),
)
ALONE = "FRAMEWORKS" in os.environ
_ZYGOTES: list[subprocess.Popen[bytes]] = []  # else they outlive this process on purpose
OPTIONS = DrillOptions(kills=4, signals=("KILL", "TERM"), seed=1, damage=False)


class Planted(NamedTuple):
    """A script with one omission. Its FIX does what the drill has to say."""

    script: str  # and its argument, if it takes one
    cause: str  # the name of the cause
    line: str  # what its text has to say
    verdict: str = report.DIFFERENT
    fresh: bool = False  # it wants an interpreter of its own


PLANTED = [
    Planted("t_scheduler", "scheduler", "scheduler=scheduler"),
    Planted("t_scaler", "scaler", "scaler=scaler"),
    Planted("t_second_optimizer", "optimizer", "optimizer_d=optimizer_d"),
    Planted("t_ema", "EMA", "shadow=shadow"),
    Planted("t_position", "position", "run.batches(loader)"),
    Planted("replay_buffer", "attributes", 'buffer=Fields(buffer, "observations", "pos", "full")'),
    Planted("quasi_random", "attributes", 'engine=Fields(engine, "num_generated", "_quasi")'),
    Planted("environment", "generator", 'env_np_random=env.np_random, env=Fields(env, "state", "elapsed")'),
    Planted("own_generator", "generator", "rng=rng"),
    Planted("t_own_sampler", "error", "the sampler's order cannot be replayed", verdict="refused"),
    Planted("own_order", "order", "holdfast.data.Shuffle"),
    Planted("t_crops fresh", "augmentation", "holdfast.data.Seeded(dataset, seed=0)"),
    Planted("t_crops persistent", "augmentation", "holdfast.data.Seeded(dataset, seed=0)"),
    Planted("hidden_state", "variable", "run.vars.hidden"),
    Planted("prefetched", "variable", "run.vars.ahead"),
    Planted("one_ahead", "prefetched batch", "for batch in run.batches(loader)"),
    Planted("accumulator", "accumulator", "run.vars.total"),
    Planted("learning_rate", "variable", "run.vars.lr"),
    Planted("early_stopping", "variable", "run.vars.bad"),
    Planted("evaluations", "accumulator", "run.vars.evaluations"),
    Planted("index", "enumerate", "in run.enumerate(loader)"),
    Planted("own_vars", "run.vars unused", "write run.vars.best"),
    Planted("t_rebound", "rebound", "run.vars.hidden"),
    Planted("t_module_attribute", "attributes", 'model_more=Fields(model, "hidden")'),
    Planted("dataset_changes", "attributes", 'dataset=Fields(dataset, "reads")'),
    Planted("function_attribute", "attributes", 'noise=Fields(noise, "calls")'),
    Planted("lazy_cache", "attributes", 'dataset=Fields(dataset, "cache")'),
    Planted("t_frozen", "frozen parameters", "for p in model[0].parameters(): p.requires_grad_"),
    Planted("no_epochs", "error", "for epoch in run.epochs(3):", verdict="refused"),
    Planted("t_unseeded", "unseeded", "torch.manual_seed(0)", report.NOT_DETERMINISTIC),
    Planted("leftover", "leftover file", "leftover.py", report.NOT_DETERMINISTIC),
    Planted("hash_order", "hash order", "sorted(set(...))", report.NOT_DETERMINISTIC, fresh=True),
    Planted("clock", "clock", "no time of day", report.NOT_DETERMINISTIC),
]
# Shapes of loops that no planted script has; those of the planted ones are tried with FIX.
RIGHT = ["epochs", "buffer", "trainer", "accumulated", "best_weights", "monte_carlo", "counted_from_one", "between"]
TABLE = "table: causes that the drill has named"


class Found(NamedTuple):
    verdict: str
    cause: str
    text: str
    whole: Any = None  # the report


def quiet(line):
    del line


@pytest.fixture(scope=lambda **_: "module" if ALONE else "session")
def zygotes(tmp_path_factory):
    """What stands for a `python` that has imported these modules: one for all workers, until the session ends. Those of
    frameworks, which take much memory, end with the file that asked for them.
    """
    session, base = os.getpid(), tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        session, base = os.getppid(), base.parent
    base = tmp_path_factory.mktemp("zygotes") if ALONE else base

    @cache
    def python(*modules):
        place = base / f"zygote-{zlib.crc32(repr(modules).encode())}"
        place.mkdir(exist_ok=True)
        socket = place / "zygote"
        with (place / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not socket.exists():
                words = [sys.executable, TESTS / "zygote.py", socket, str(session), *modules]
                # Threads of operators sleep when they wait: the cores are shared.
                patient = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}
                _ZYGOTES.append(subprocess.Popen(words, stdout=subprocess.PIPE, cwd=place, env=patient))
                assert _ZYGOTES[-1].stdout.readline() == b"ready\n"
        return [sys.executable, "-S", str(TESTS / "zygote_client.py"), str(socket)]

    yield python
    while ALONE and _ZYGOTES:
        with _ZYGOTES.pop() as zygote:
            zygote.kill()


def planted(python, script, place, *, fix=False, options=OPTIONS):
    """The report of a script's drill, with its omission or with what mends it."""
    name, *words = script.split()
    os.environ["FIX"], os.environ["SNAPSHOT"] = "1" if fix else "", str(place / f"snapshot-{fix}")
    try:
        return drill.drill([*python, str(SCRIPTS / f"{name}.py"), *words], options, quiet)
    finally:
        del os.environ["FIX"], os.environ["SNAPSHOT"]


def drilled(python, script, place, *, fix=False):
    """What that drill tells a user."""
    try:
        found = planted(python, script, place, fix=fix)
    except (ChildError, UsageError) as error:
        return Found("refused", "error", str(error))
    if found.divergence is None:
        return Found(found.verdict, "", "; ".join(found.notes), found)
    return Found(found.verdict, found.divergence.cause, found.divergence.advice, found)


def is_named_and_mended(each, zygotes, place, record_property):
    """The verdict, the cause, the line to write; and with that line written the drill says `identical`."""
    modules = TORCH if each.script.startswith("t_") else ("numpy",)
    python = [sys.executable] if each.fresh else zygotes(*modules)
    found, mended = (drilled(python, each.script, place, fix=fix) for fix in (False, True))
    record_property(TABLE, f"{each.script} | {found.verdict} | {found.cause} | {each.line} | {mended.verdict}")
    assert each.verdict == found.verdict, found
    assert each.cause in (found.cause, *found.text.split("; ")) or f"{each.cause}: " in found.text, found
    assert each.line in found.text
    if found.verdict == report.DIFFERENT:
        assert found.whole.exit_code == 1
        assert found.whole.kills_proven > 0  # a run that has left its path may not come to all places
        assert found.whole.divergence.step >= found.whole.divergence.resumed_from  # the same one at an epoch's end
    if found.verdict == report.NOT_DETERMINISTIC:  # no kill is needed to see that
        assert (found.whole.exit_code, found.whole.attempts) == (1, [])
    assert mended.verdict == report.IDENTICAL, mended
    assert (mended.whole.exit_code, mended.whole.kills_proven) == (0, OPTIONS.kills)


def is_not_accused(name, zygotes, place, record_property):
    """A right script is identical, whatever shape its loop has."""
    found = drilled(zygotes("numpy"), f"right {name}", place)
    record_property(TABLE, f"right: {name} | {found.verdict} | {found.cause}")
    assert found.verdict == report.IDENTICAL, found
    assert found.whole.kills_proven == OPTIONS.kills
