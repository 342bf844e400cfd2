"""To W&B: sends rows by W&B's library, which has a process of its own."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import scan
from .cursor import NOTHING, Cursor
from .ledger import Row
from .options import WandB

ANSWER_S = 60.0  # a batch that W&B does not have by then was not sent
FLUSH_S = 0.5  # how often W&B's process writes its file
SETTLED_S = 3.0  # by then W&B's process of an earlier worker has ended with that worker
BLOCK, HEAD, MAGIC = 32768, 7, 7  # of its file: LevelDB's log format behind a few bytes of its own


class WandBRun:
    """The run of one cursor at W&B.

    Args:
        folder: where W&B keeps its files, also those of the offline mode.
    """

    def __init__(self, options: WandB, folder: Path, params: Mapping[str, Any]) -> None:
        self._options, self._folder, self._params = options, folder, params

    def begin(self, cursor: Cursor) -> int | None:
        import wandb

        self._key = cursor.key
        self._read: dict[Path, tuple[int, int]] = {}  # of each file: bytes, and the last step
        if self._files():
            time.sleep(SETTLED_S)
        self._run = wandb.init(
            project=self._options.project,
            entity=self._options.entity,
            name=cursor.title,
            notes=cursor.note or None,
            id=cursor.key,
            resume="allow",
            mode=self._options.mode,
            dir=self._folder,
            settings=wandb.Settings(
                console="off",
                silent=True,
                disable_git=True,
                disable_code=True,
                x_disable_stats=True,
                x_transaction_log_flush_interval=FLUSH_S,
            ),
        )
        if self._run.disabled:  # WANDB_MODE says so
            return None
        self._run.config.update(self._params, allow_val_change=True)
        self._held = self._last_step()
        known = not self._run.offline or len(self._files()) > 1
        return self._held if known else None

    def send(self, rows: Sequence[Row]) -> None:
        if self._run.disabled:
            return
        until_s = time.monotonic() + ANSWER_S
        for row in rows:
            if row.step > self._held:
                self._run.log({**row.values, "_timestamp": row.time_s}, step=row.step, commit=True)
        while self._last_step() < rows[-1].step:
            if time.monotonic() > until_s:
                raise TimeoutError(f"no answer within {ANSWER_S:.0f} s")
            time.sleep(0.2)

    def end(self, *, finished: bool) -> None:  # noqa: ARG002  W&B's run always goes on
        self._run.finish()

    def _last_step(self) -> int:
        if not self._run.offline:
            import wandb

            shown = int(wandb.Api().run(self._run.path).lastHistoryStep)  # may lag
            return max(shown, int(self._run.starting_step) - 1)
        for file in self._files():
            at, last = self._read.get(file, (MAGIC, NOTHING))
            for end, data in _records(file, at):
                self._read[file] = end, max(last, _step(data))
                last = self._read[file][1]
        return max((last for _, last in self._read.values()), default=NOTHING)

    def _files(self) -> list[Path]:
        return scan.glob(self._folder, f"wandb/offline-run-*-{self._key}/run-{self._key}.wandb")


def _step(data: bytes) -> int:
    """The step of a record of W&B."""
    from wandb.proto.wandb_internal_pb2 import Record

    record = Record.FromString(data)
    return int(record.history.step.num) if record.HasField("history") else NOTHING


def _records(file: Path, at: int) -> Iterator[tuple[int, bytes]]:
    """Each whole record behind the place `at`, and the place of its end.

    A record has pieces, each with checksum, length and kind.
    Source: https://github.com/google/leveldb/blob/main/doc/log_format.md
    """
    with file.open("rb") as source:
        source.seek(at)
        data, start, whole = source.read(), at, b""
    while at - start + HEAD <= len(data):
        if BLOCK - at % BLOCK < HEAD:  # the rest of the block is empty
            at += BLOCK - at % BLOCK
            continue
        head = data[at - start : at - start + HEAD]
        length, kind = int.from_bytes(head[4:6], "little"), head[6]
        piece = data[at - start + HEAD : at - start + HEAD + length]
        if len(piece) < length or kind == 0:
            return
        at += HEAD + length
        whole = piece if kind in (1, 2) else whole + piece  # 1: whole, 2: first, 3: middle, 4: last
        if kind in (1, 4):
            yield at, whole
