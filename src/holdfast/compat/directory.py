"""AtomicDirectory: successive checkpoint directories, and a link to the latest complete one.

Names, signatures and strategies are those of cycling_utils
(github.com/StrongResearch/cycling_utils, README.md and cycling_utils/saving.py of November 2025;
`atomic_symlink` is what `symlink_latest` was called until March 2025).
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import msgspec

from .. import disk, scan, terminal
from ..channel import sleep_between_polls
from ..errors import NotFound, StoreError, UsageError
from ..ranks import ALONE, Ranks
from ..settings import ranks_timeout_s
from ..torch.ranks import ranks
from ..torch.world import is_grouped, rank_of_process, world
from .numbered import NumberedDirectories, NumberedDirectory, checked_name, sync_tree

Strategy = Literal["sync_any", "sync_all", "async", "mono"]
STRATEGIES = ("sync_any", "sync_all", "async", "mono")
PREPARE = "prepare_checkpoint_directory(), which every rank calls"
FINISH = "symlink_latest(), which every rank calls"
# so long another machine may not see a new name: NFS caches names for 60 s (nfs(5), acdirmax)
SEEN_S = 90.0


class AtomicDirectory:
    """Saves checkpoints to `<name>_checkpoint_<n>` in `output_directory`, with a link to the latest
    complete one.

        saver = AtomicDirectory(output_directory, is_master=rank == 0)
        latest = os.path.join(output_directory, saver.symlink_name)
        if os.path.exists(latest):
            path = os.readlink(latest)                      # load your files from there
        ...
        path = saver.prepare_checkpoint_directory()         # on every rank: a new, empty directory
        atomic_torch_save(state, os.path.join(path, "checkpoint.pt"))
        saver.symlink_latest(path)                          # on every rank: durable, the latest now

    After a kill at any instant, or a power loss, the link names a complete checkpoint. `keep_last`
    counts the latest. Older ones are removed when it is durable, so that there may be one more for
    a short time. Those that were saved with `force_save` stay. 0 or less keeps all.

    The ranks of "sync_any" and "sync_all" save into one directory. They force it when any, or when
    all of them ask for it. Each rank of "async" saves alone, under a name of its own; "mono"
    belongs to no group. Without a process group there is one rank. Every wait for another rank ends
    after HOLDFAST_RANKS_TIMEOUT_S (600), in an error that names it.

    The link is relative, so that the directory can be moved and copied. It is absolute only from
    the constructor to the first `prepare_checkpoint_directory`, for scripts that open what
    `os.readlink` returns; elsewhere use `os.path.realpath`. `device` is not needed: ranks
    communicate through the process group's store.

    Raises:
        UsageError: the arguments make no sense, or the ranks disagree on them.
        StoreError: the link names nothing, or is lost; a rank does not see the directory.
        RanksError: a rank did not reach the call in time.
    """

    def __init__(
        self,
        output_directory: str | Path,
        is_master: bool = False,
        name: str = "AtomicDirectory",
        keep_last: int = -1,
        strategy: Strategy = "sync_any",
        device: str = "cuda",
    ) -> None:
        if strategy not in STRATEGIES:
            raise UsageError(f"strategy={strategy!r} is none of {', '.join(STRATEGIES)}")
        self.output_directory, self.keep_last = output_directory, keep_last
        self.strategy, self.device = strategy, device
        self._ranks, self._master = self._form_group(checked_name(name), is_master=is_master)
        self.is_master = self._ranks.rank == self._master
        self.name = f"{name}_rank_{rank_of_process()}" if strategy == "async" else name
        self._index = NumberedDirectories(Path(os.path.abspath(output_directory)), self.name)
        self.symlink_name = self._index.link.name
        latest = self._run_on_master("open the directory", self._open_link)
        self._wait_until_all_see(
            f"that {self.symlink_name} names {latest or 'nothing'}",
            lambda: self._latest() == latest,
        )

    def is_checkpoint_directory(self, path_str: str | Path) -> str | None:
        """Return the number of a checkpoint directory of this name, as "3" or "3_force" if it
        was forced; else None.
        """
        path = Path(path_str)
        found = self._index.parse_name(path.name) if scan.is_dir(path) else None
        return found and f"{found.number}{'_force' if found.forced else ''}"

    def prepare_checkpoint_directory(self, force_save: bool = False) -> str:
        """Make a new, empty directory; return its path.
        Incomplete ones are removed, complete ones are not.
        """
        wishes = self._ranks.agree(PREPARE, b"force" if force_save else b"")
        forced = all(wishes) if self.strategy == "sync_all" else any(wishes)
        name = self._run_on_master("begin a checkpoint", lambda: self._make_next(forced=forced))
        self._wait_until_all_see(
            f"the empty directory {name}", lambda: os.listdir(self._index.root / name) == []
        )
        return os.path.join(self.output_directory, name)

    def symlink_latest(self, checkpoint_directory: str | Path) -> None:
        """Sync all files in the directory,
        then make it the latest; then older ones may be removed.
        """
        with self._ranks.together(FINISH):
            mine = self._parse_own(checkpoint_directory)
            sync_tree(self._index.root / mine.name)
        names = [
            name.decode()
            for name in self._ranks.agree("the directory to finish", mine.name.encode())
        ]
        if len(set(names)) > 1:
            raise UsageError(
                "every rank must give symlink_latest one directory, "
                f"and {_format_disagreement('it', names)}"
            )
        self._run_on_master("finish a checkpoint", lambda: self._publish(mine))

    atomic_symlink = symlink_latest  # the constant's old name

    def _form_group(self, name: str, *, is_master: bool) -> tuple[Ranks, int]:
        """Return the ranks that save together, and the master's number.

        Raises:
            UsageError: their arguments differ; or there are several processes without a process
                group.
        """
        together = self.strategy.startswith("sync")
        if self.strategy == "mono" or not (together or is_grouped()):
            return ALONE, 0
        world()
        met = ranks(ranks_timeout_s()) or ALONE
        mine: dict[str, Any] = {"strategy": self.strategy, "is_master": bool(is_master)}
        mine |= {"name": name, "keep_last": self.keep_last} if together else {}
        said = met.agree("AtomicDirectory(...)", msgspec.json.encode(mine))
        words: list[dict[str, Any]] = [msgspec.json.decode(word) for word in said]
        _require_alike(words)
        return (met, _find_master(words)) if together else (ALONE, 0)

    def _run_on_master(self, topic: str, act: Callable[[], str]) -> str:
        """Call `act` on the master; return its result, or raise its error, on every rank."""
        said = ""
        with self._ranks.together(topic):
            if self.is_master:
                said = act()
        return self._ranks.agree(topic, said.encode())[self._master].decode()

    def _open_link(self) -> str:
        """Return the latest checkpoint's name. Make the link absolute: scripts open what
        `os.readlink` returns.
        """
        disk.make_dirs(self._index.root)
        latest = self._index.latest()
        if latest is None:
            return ""
        if os.readlink(self._index.link) != str(self._index.root / latest.name):
            try:
                self._index.point_link(latest, absolute=True)
            except OSError as error:
                if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                    raise
                terminal.warn(
                    f"cannot renew {self._index.link} ({error}); open it with os.path.realpath"
                )
        return latest.name

    def _make_next(self, *, forced: bool) -> str:
        self._index.finish_removals()
        self._index.make_link_relative()
        made, gone = self._index.make_next(forced=forced)
        for name in gone:
            terminal.say(f"{name} was begun and never finished; removed it")
        return made.name

    def _publish(self, at: NumberedDirectory) -> str:
        self._index.point_link(at)
        self._index.keep_newest(self.keep_last)
        return at.name

    def _latest(self) -> str:
        try:
            return os.path.basename(os.readlink(self._index.link))
        except FileNotFoundError:
            return ""

    def _parse_own(self, checkpoint_directory: str | Path) -> NumberedDirectory:
        path = Path(os.path.abspath(checkpoint_directory))
        found = self._index.parse_name(path.name)
        if found is None or path.parent.resolve() != self._index.root.resolve():
            raise UsageError(
                f"{checkpoint_directory} is not from this saver's prepare_checkpoint_directory()"
            )
        if not scan.is_dir(path):
            raise NotFound(
                f"{checkpoint_directory} is gone; "
                "each prepare_checkpoint_directory() removes unfinished ones"
            )
        return found

    def _wait_until_all_see(self, what: str, look: Callable[[], bool]) -> None:
        """Wait until `look` returns true on every rank.

        Raises:
            StoreError: a rank does not see it in time, for example in a directory on another
                machine's own disk.
        """
        if self._ranks.alone:  # another process may save meanwhile
            return
        with self._ranks.together(f"look for {what}"):
            for _ in sleep_between_polls(time.monotonic() + min(SEEN_S, self._ranks.timeout_s / 2)):
                with suppress(FileNotFoundError):
                    if look():
                        return
            raise StoreError(
                f"cannot see {what} in {self._index.root} on {os.uname().nodename}; "
                "all ranks need one shared directory"
            )


def _require_alike(words: Sequence[dict[str, Any]]) -> None:
    for option in ("strategy", "name", "keep_last"):
        said = [word.get(option) for word in words]
        if len(set(said)) > 1:
            raise UsageError(
                "AtomicDirectory needs the same arguments on every rank, "
                f"and {_format_disagreement(option, said)}"
            )


def _find_master(words: Sequence[dict[str, Any]]) -> int:
    """Return the rank with is_master=True; rank 0 if there is none."""
    masters = [rank for rank, word in enumerate(words) if word["is_master"]]
    if len(masters) > 1:
        raise UsageError(
            f"AtomicDirectory needs one master, and {_format_ranks(masters)} say is_master=True"
        )
    return masters[0] if masters else 0


def _format_ranks(these: Sequence[int]) -> str:
    """Return `rank 3` or `ranks 1, 2`."""
    return f"rank{'s' if len(these) > 1 else ''} {', '.join(map(str, these))}"


def _format_disagreement(what: str, said: Sequence[Any]) -> str:
    """Return `<what> is 'a' on ranks 0, 2 and 'b' on rank 1`."""
    who = {
        repr(value): [rank for rank, other in enumerate(said) if other == value] for value in said
    }
    return f"{what} is " + " and ".join(
        f"{value} on {_format_ranks(these)}" for value, these in who.items()
    )
