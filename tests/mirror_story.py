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
from holdfast import Every, Last, retention
from holdfast.store.format import MANIFEST
from holdfast.store.store import Store
from mirror_sites import FolderSite, S3Site, SftpSite, Site
from s3_faults import wrong
from servers import s3_server, sftp_server

KEPT = 20  # the places keep every so many steps, beside the newest three
BOUND_S = 5.0  # no wait of the loop is longer; a request to a place may take this test's worker some seconds
LIMIT_S = 200.0
SILENT_S = 1.0  # in place of 20 s

SHORTER = [
    ["s3_calls", "_READ_S", SILENT_S],
    ["s3_calls", "_CONNECT_S", SILENT_S],
    ["s3_calls", "_CALL_S", 2 * SILENT_S],
    ["sftp_connection", "ANSWER_S", SILENT_S],
    ["sftp_connection", "CONNECT_S", SILENT_S],
    ["lane", "FIRST_WAIT_S", 0.02],
    ["lane", "LONGEST_WAIT_S", 0.2],
]
IN_PARTS = [["s3", "S3.whole_bytes", 8000], ["s3", "S3.part_bytes", 8192]]

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


class Batch(NamedTuple):
    """The faults of one training, by place."""

    seed: int
    counts: Mapping[str, int]  # of "s3", "s3 in parts", "sftp", "folder", "worker"


class Told(NamedTuple):
    """What the training said, and what its places hold at the end."""

    code: int
    output: str
    figures: Mapping[str, Any]
    committed: Mapping[str, str]  # name -> digest of its manifest
    due: set[str]  # names that every place must hold
    held: Mapping[str, dict[str, tuple[str, str]]]  # place -> name -> digest of its manifest, and what is wrong


@contextmanager
def sites(batch: Batch, folder: Path) -> Iterator[list[Site]]:
    """The places of a batch, each with its plan."""
    with ExitStack() as around:
        found: list[Site] = []
        for number, (kind, count) in enumerate(batch.counts.items()):
            kinds = KINDS.get(kind)
            if kinds is None:
                continue
            plan = Plan.make(folder / "plans" / kind, draw(batch.seed * 100 + number, wanted(count, kinds)))
            found.append(around.enter_context(_site(kind, plan, folder, around)))
        yield found


KINDS = {"s3": S3_FAULTS, "s3 in parts": PARTS_FAULTS, "sftp": SFTP_FAULTS, "folder": FOLDER_FAULTS}


def _site(kind: str, plan: Plan, folder: Path, around: ExitStack) -> Any:
    if kind == "sftp":
        (folder / "server").mkdir()
        return SftpSite(around.enter_context(sftp_server(folder / "server")), plan)
    if kind == "folder":
        return FolderSite(folder / "folder", plan)
    return S3Site(around.enter_context(s3_server()), plan)


def train(batch: Batch, places: Sequence[Site], folder: Path) -> Told:
    """Train until every fault was struck, or the time is over, and then to the end."""
    sets = SHORTER + (IN_PARTS if "s3 in parts" in batch.counts else [])
    limits = {"set": sets, "disk": [each for site in places for each in site.disk]}
    environment = {**os.environ, "MIRROR_WORKER": json.dumps(limits)}
    for site in places:
        environment |= site.environment
    run, enough, committed = folder / "run", folder / "enough", folder / "committed"
    asked = {"path": str(run), "mirror": [site.url for site in places], "kept": KEPT, "enough": str(enough)}
    asked |= {"committed": str(committed), "worker": [mirror_worker.__file__]}
    words = [sys.executable, mirrored_training.__file__, json.dumps(asked)]
    with (folder / "output").open("w+") as output:
        with subprocess.Popen(words, env=environment, stdout=output, stderr=subprocess.STDOUT) as training:
            _strike(batch, places, training, committed)
            enough.touch()
            try:
                code = training.wait(120)
            except subprocess.TimeoutExpired:
                training.kill()
                code = -1
        output.seek(0)
        said = output.read()
    lines = said.splitlines()
    figures = json.loads(lines[-1]) if code == 0 else {}
    rows = [json.loads(line) for line in committed.read_text().splitlines()] if committed.exists() else []
    held = {site.name: _held(site.contents(folder / "there")) for site in places}
    return Told(code, said, figures, dict(rows), _due(run), held)


def _strike(batch: Batch, places: Sequence[Site], training: "subprocess.Popen[Any]", committed: Path) -> None:
    ends, workers_left = time.monotonic() + LIMIT_S, batch.counts.get("worker", 0)
    while not (committed.exists() and committed.read_text().count("\n") > 2) and time.monotonic() < ends:
        if training.poll() is not None:
            return
        time.sleep(0.05)
    for site in places:
        site.plan.arm()
    while time.monotonic() < ends and training.poll() is None and any(site.plan.left() for site in places):
        time.sleep(0.2)
    del workers_left


def _held(place: Path) -> dict[str, tuple[str, str]]:
    return {
        path.parent.name: (hashlib.sha256(path.read_bytes()).hexdigest(), wrong(path.parent))
        for path in place.glob(f"checkpoints/*/*/{MANIFEST}")
    }


def _due(run: Path) -> set[str]:
    """What the rule keeps of all that was committed; the run itself keeps that and more."""
    with Store(run, mode="r") as store:
        return set(retention.keep(store.facts(), Last(3) | Every(steps=KEPT)))


__all__ = ["BOUND_S", "Batch", "Told", "signal", "sites", "train"]
