"""One training beside places that fail by their plans: what happened to it, to its checkpoints and to their copies."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import mirror_worker
import mirrored_training
from fault_plans import Plan, Wanted, draw
from holdfast import Every, retention
from holdfast.store.format import MANIFEST
from holdfast.store.store import Store
from mirror_sites import FolderSite, Looks, S3Site, SftpSite, Site
from s3_faults import wrong
from servers import s3_server, sftp_server

KEPT, LAST = 60, 3  # the places keep every so many steps, beside the newest three
BOUND_S = 5.0  # no wait of the loop is longer; a request to a place may take this test's worker some seconds
LIMIT_S = 200.0
SILENT_S = 1.0  # in place of 20 s

SHORTER = [
    ["s3_calls", "_READ_S", SILENT_S],
    ["s3_calls", "_CONNECT_S", SILENT_S],
    ["s3_calls", "_CALL_S", 2 * SILENT_S],
    ["sftp_connection", "ANSWER_S", SILENT_S],
    ["sftp_connection", "CONNECT_S", SILENT_S],
    ["retrying", "FIRST_WAIT_S", 0.02],
    ["retrying", "LONGEST_WAIT_S", 0.2],
    ["replicator", "RETRY_S", 0.1],
]
IN_PARTS = [["s3", "S3Place.whole_bytes", 8000], ["s3", "S3Place.part_bytes", 8192]]

Strikes = Sequence[str]
EVERYWHERE: Strikes = (
    "503 SlowDown", "429 SlowDown", "500 InternalError", "500 after it was done", "403 ExpiredToken", "no answer",
    "slow link", "reset before it is done", "reset after it was done", "server killed",
)  # fmt: skip
S3_FAULTS: Mapping[str, Strikes] = {
    "PutObject": (*EVERYWHERE, "truncated upload", "400 BadDigest", "400 RequestTimeout", "other bytes kept"),
    "Create": (*EVERYWHERE, "truncated upload", "409 conflict", "412 of its own object"),
    "HeadObject": (*EVERYWHERE, "wrong checksum"),
    "GetObject": (*EVERYWHERE, "truncated answer", "other bytes returned"),
    "List": (*EVERYWHERE, "truncated answer"),
    "CopyObject": (*EVERYWHERE, "200 with an error inside"),
    "DeleteObject": EVERYWHERE,
}
PARTS_FAULTS: Mapping[str, Strikes] = {
    "CreateMultipart": EVERYWHERE,
    "UploadPart": (*EVERYWHERE, "truncated upload", "400 BadDigest", "400 RequestTimeout"),
    "CompleteMultipart": (*EVERYWHERE, "200 with an error inside"),
    "HeadObject": (*EVERYWHERE, "wrong checksum"),
    "DeleteObject": EVERYWHERE,
}
SFTP_FAULTS: Mapping[str, Strikes] = {
    "connect": ("refused",),
    "bytes": (
        "reset, going up", "reset, coming down", "no answer", "slow link", "a bit turned over", "server killed",
    ),
}  # fmt: skip
WRITES = ("EIO", "ENOSPC", "EDQUOT", "EROFS", "EACCES", "ESTALE", "slow disk")
FOLDER_FAULTS: Mapping[str, Strikes] = {
    "create": WRITES,
    "mkdir": WRITES,
    "write": (*WRITES, "ENOSPC, half written", "EIO, half written", "a bit turned over"),
    "fsync": ("EIO", "ENOSPC", "EDQUOT", "slow disk"),
    "rename": WRITES,
    "link": WRITES,
    "unlink": ("EIO", "EROFS", "EACCES", "slow disk"),
    "rmdir": ("EIO", "EROFS", "EACCES", "slow disk"),
}


def wanted(count: int, kinds: Mapping[str, Strikes]) -> Wanted:
    """`count` faults, of every kind as many; the first kinds may have one more."""
    flat = [(request, what) for request, row in kinds.items() for what in row]
    each, more = divmod(count, len(flat))
    found: dict[str, dict[str, int]] = {}
    for number, (request, what) in enumerate(flat):
        found.setdefault(request, {})[what] = each + (number < more)
    return found


WORKER = "worker"
KINDS: Mapping[str, Mapping[str, Strikes]] = {
    "s3": S3_FAULTS,
    "s3 in parts": PARTS_FAULTS,
    "sftp": SFTP_FAULTS,
    "folder": FOLDER_FAULTS,
    WORKER: {"process": ("worker killed",)},
}


class Batch(NamedTuple):
    """The faults of one training: how many of each of KINDS."""

    seed: int
    counts: Mapping[str, int]

    def plans(self, folder: Path) -> dict[str, Plan]:
        return {
            kind: Plan.make(folder / "plans" / kind, draw(self.seed * 100 + number, wanted(count, KINDS[kind])))
            for number, (kind, count) in enumerate(self.counts.items())
        }


class Held(NamedTuple):
    """What a place holds at the end."""

    digests: Mapping[str, str]  # of the manifest of each copy, by the copy's name
    problems: list[str]
    litter: list[str]  # folders without a manifest


class Told(NamedTuple):
    """What the training said, and what its places hold."""

    code: int
    output: str
    figures: Mapping[str, float]
    committed: Mapping[str, str]  # as `Held.digests`
    due: set[str]  # names that every place must hold
    held: Mapping[str, Held]
    looks: Mapping[str, Looks]

    def require(self) -> None:
        """Training never stopped or waited; nothing was lost; every copy is the checkpoint, bit for bit."""
        assert self.code == 0, self.output
        assert len(self.committed) >= self.figures["steps"], "a save was missed"
        assert self.figures["longest_s"] < BOUND_S, self.figures
        assert " is not at " not in self.output, self.output
        for name, held in self.held.items():
            assert self.due <= held.digests.keys(), f"{name}: lost {sorted(self.due - held.digests.keys())}"
            others = [each for each, digest in held.digests.items() if self.committed.get(each) != digest]
            assert ([], [], []) == (others, held.problems, held.litter), name
            outdated = sorted(held.digests.keys() - self.due)
            assert len(outdated) <= LAST, f"{name}: never removed: {outdated}"
            assert self.looks[name].made >= len(held.digests), "nobody looked"
            assert [] == self.looks[name].problems, name


@contextmanager
def sites(plans: Mapping[str, Plan], folder: Path) -> Iterator[list[Site]]:
    """The places that these plans are for."""
    with ExitStack() as around:
        found: list[Site] = []
        if "sftp" in plans:
            (folder / "server").mkdir()
            server = around.enter_context(sftp_server(folder / "server"))
            found.append(around.enter_context(SftpSite(server, plans["sftp"])))
        if "folder" in plans:
            found.append(around.enter_context(FolderSite(folder / "folder", plans["folder"])))
        for kind in plans.keys() & {"s3", "s3 in parts"}:
            server = around.enter_context(s3_server())
            found += [around.enter_context(S3Site(server, plans[kind]))]
        yield found


def train(plans: Mapping[str, Plan], places: Sequence[Site], folder: Path) -> Told:
    """Train until every fault was struck, or the time is over, and then to the end. A checkpoint after each step."""
    sets = SHORTER + (IN_PARTS if "s3 in parts" in plans else [])
    limits = {"set": sets, "disk": [each for site in places for each in site.disk]}
    environment = {**os.environ, "MIRROR_WORKER": json.dumps(limits)}
    for site in places:
        environment |= site.environment
    run, enough, committed = folder / "run", folder / "enough", folder / "committed"
    asked = {"path": str(run), "mirror": [site.url for site in places], "kept": KEPT, "every": 1, "enough": str(enough)}
    asked |= {"committed": str(committed), "worker": [mirror_worker.__file__]}
    words = [sys.executable, mirrored_training.__file__, json.dumps(asked)]
    with (folder / "output").open("w+") as output:
        with subprocess.Popen(words, env=environment, stdout=output, stderr=subprocess.STDOUT) as training:
            try:
                _strike(plans, training, committed)
                enough.touch()
                code = training.wait(120)
            finally:
                training.kill()  # nothing, if it has ended
        output.seek(0)
        said = output.read()
    lines = said.splitlines()
    figures = json.loads(lines[-1]) if code == 0 else {}
    rows = [json.loads(line) for line in committed.read_text().splitlines()] if committed.exists() else []
    held = {site.name: _held(site.contents(folder / "there")) for site in places}
    return Told(code, said, figures, dict(rows), _due(run), held, {site.name: site.looks() for site in places})


def _strike(plans: Mapping[str, Plan], training: "subprocess.Popen[Any]", committed: Path) -> None:
    """Begin when the first checkpoints are there; return when every fault was struck, or the time is over."""
    ends = time.monotonic() + LIMIT_S
    while not (committed.exists() and committed.read_text().count("\n") > 2) and training.poll() is None:
        if time.monotonic() > ends:
            return
        time.sleep(0.05)
    for plan in plans.values():
        plan.arm()
    while time.monotonic() < ends and training.poll() is None and any(plan.left() for plan in plans.values()):
        if WORKER in plans:
            _kill_worker(plans[WORKER], training.pid)
        time.sleep(0.2)


def _kill_worker(plan: Plan, training: int) -> None:
    """What is copied to all places ends with it, in the middle of whatever it does."""
    fault = plan.due("process")
    if fault is None:
        return
    for child in _children(training):
        if mirror_worker.__file__.encode() in Path(f"/proc/{child}/cmdline").read_bytes():
            os.kill(child, signal.SIGKILL)
            plan.struck(fault)
            return
    plan.back(fault)


def _children(process: int) -> list[int]:
    """Of all its threads: one of them has started the worker."""
    tasks = Path(f"/proc/{process}/task").glob("*/children")
    return [int(word) for task in tasks for word in task.read_text().split()]


def _held(place: Path) -> Held:
    copies = [path for path in place.glob("checkpoints/*/*") if path.is_dir()]
    whole = [path for path in copies if (path / MANIFEST).exists()]
    digests = {path.name: hashlib.sha256((path / MANIFEST).read_bytes()).hexdigest() for path in whole}
    litter = [path for path in copies if path not in whole]
    return Held(digests, [problem for path in whole if (problem := wrong(path))], sorted(map(str, litter)))


def _due(run: Path) -> set[str]:
    """What every place must hold of all that was committed: the newest, and what its rule names for what it is."""
    return retention.keep(Store(run).facts(), Every(steps=KEPT))
