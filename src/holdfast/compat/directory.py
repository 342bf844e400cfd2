"""AtomicDirectory: successive checkpoint directories, the latest whole one named by a link.

Names, signatures and strategies are those of cycling_utils (github.com/StrongResearch/cycling_utils, README.md and
cycling_utils/saving.py of November 2025; `atomic_symlink` is what `symlink_latest` was called until March 2025).
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from .. import disk, terminal
from ..errors import NotFound, StoreError, UsageError
from ..ranks import ALONE, Ranks
from ..torch.world import is_grouped
from .group import group, my_rank, numbers, told
from .numbered import Numbered, NumberedDirectories, checked_name, settle

Strategy = Literal["sync_any", "sync_all", "async", "mono"]
STRATEGIES = ("sync_any", "sync_all", "async", "mono")
PREPARE = "prepare_checkpoint_directory(), which every rank calls"
FINISH = "symlink_latest(), which every rank calls"
SEEN_S = 90.0  # how long another machine may take to see a new name; NFS caches names for 60 s: nfs(5), acdirmax


class AtomicDirectory:
    """Saves checkpoints to `<name>_checkpoint_<n>` in `output_directory`, with a link that names the latest whole one.

        saver = AtomicDirectory(output_directory, is_master=rank == 0)
        latest = os.path.join(output_directory, saver.symlink_name)
        if os.path.exists(latest):
            path = os.readlink(latest)                      # load your files from there
        ...
        path = saver.prepare_checkpoint_directory()         # on every rank: a new, empty directory
        atomic_torch_save(state, os.path.join(path, "checkpoint.pt"))
        saver.symlink_latest(path)                          # on every rank: durable, and the latest from now on

    A process killed at any instant, or a power loss, leaves the link on a whole checkpoint. `keep_last` counts the
    latest; older ones go when it is durable, so that for a moment there is one more; those that were saved with
    `force_save` stay. 0 or less keeps all.

    The ranks of "sync_any" and "sync_all" save into one directory, and force it when any, or when all of them say so;
    each rank of "async" saves on its own, under a name of its own; "mono" belongs to no group. Without a process group
    there is one rank. Every wait for another rank ends after HOLDFAST_RANKS_TIMEOUT_S (600), in an error that names it.

    The link is relative, so that the directory can be moved and copied. Only from the constructor to the first
    `prepare_checkpoint_directory` is it absolute, for scripts that open what `os.readlink` says; elsewhere say
    `os.path.realpath`. `device` is not needed: ranks speak through the process group's store.

    Raises:
        UsageError: the arguments make no sense, or the ranks disagree on them.
        StoreError: the link names nothing, or is lost; a rank does not see the directory.
        RanksError: a rank did not come in time.
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
        self._ranks, self._master = self._meet(checked_name(name), is_master=is_master)
        self.is_master = self._ranks.rank == self._master
        self.name = f"{name}_rank_{my_rank()}" if strategy == "async" else name
        self._shelf = NumberedDirectories(Path(os.path.abspath(output_directory)), self.name)
        self.symlink_name = self._shelf.link.name
        latest = self._master_says("open the directory", self._open)
        self._all_see(f"that {self.symlink_name} names {latest or 'nothing'}", lambda: self._latest() == latest)

    def prepare_checkpoint_directory(self, force_save: bool = False) -> str:
        """The path of a new, empty directory. Nothing that is whole is removed; what was never finished is."""
        wishes = [wish == b"force" for wish in self._ranks.agree(PREPARE, _wish(force_save))]
        forced = all(wishes) if self.strategy == "sync_all" else any(wishes)
        name = self._master_says("begin a checkpoint", lambda: self._begin(forced=forced))
        self._all_see(f"the empty directory {name}", lambda: os.listdir(self._shelf.root / name) == [])
        return os.path.join(self.output_directory, name)

    def symlink_latest(self, checkpoint_directory: str | Path) -> None:
        """Make all that lies in the directory durable, and then the directory the latest; older ones may go now."""
        with self._ranks.together(FINISH):
            mine = self._mine(checkpoint_directory)
            settle(self._shelf.root / mine.name)
        names = [name.decode() for name in self._ranks.agree("the directory to finish", mine.name.encode())]
        if len(set(names)) > 1:
            raise UsageError(f"one directory is to become the latest, and {told('it', names)}")
        self._master_says("finish a checkpoint", lambda: self._publish(mine))

    def atomic_symlink(self, checkpoint_directory: str | Path) -> None:
        """`symlink_latest`, by its older name."""
        self.symlink_latest(checkpoint_directory)

    def _meet(self, name: str, *, is_master: bool) -> tuple[Ranks, int]:
        """The ranks that save together, and which of them is the master, when all have said how.

        Raises:
            UsageError: they do not say the same.
        """
        together = self.strategy.startswith("sync")
        if self.strategy == "mono" or not (together or is_grouped()):
            return ALONE, 0
        met = group()
        mine: dict[str, Any] = {"strategy": self.strategy, "is_master": bool(is_master)}
        mine |= {"name": name, "keep_last": self.keep_last} if together else {}
        said = met.agree("AtomicDirectory(...)", msgspec.json.encode(mine))
        words: list[dict[str, Any]] = [msgspec.json.decode(word) for word in said]
        _of_one_mind(words)
        return (met, _master(words)) if together else (ALONE, 0)

    def _master_says(self, topic: str, act: Callable[[], str]) -> str:
        """What `act` returns on the master, on every rank; what it raises there is raised on every rank."""
        said = ""
        with self._ranks.together(topic):
            if self.is_master:
                said = act()
        return self._ranks.agree(topic, said.encode())[self._master].decode()

    def _open(self) -> str:
        """The latest checkpoint's name; the link is one that `os.readlink` shows as a path that can be opened."""
        disk.make_dirs(self._shelf.root)
        latest = self._shelf.latest()
        if latest is None:
            return ""
        if os.readlink(self._shelf.link) != str(self._shelf.root / latest.name):
            try:
                self._shelf.point(latest, absolute=True)
            except OSError as error:
                if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                    raise
                terminal.warn(f"{self._shelf.link} cannot be renewed ({error}); open it with os.path.realpath")
        return latest.name

    def _begin(self, *, forced: bool) -> str:
        self._shelf.sweep()
        self._shelf.relative()
        made, gone = self._shelf.begin(forced=forced)
        for name in gone:
            terminal.say(f"{name} was begun and never finished; removed it")
        return made.name

    def _publish(self, at: Numbered) -> str:
        self._shelf.point(at)
        self._shelf.keep(self.keep_last)
        return at.name

    def _latest(self) -> str:
        try:
            return os.path.basename(os.readlink(self._shelf.link))
        except FileNotFoundError:
            return ""

    def _mine(self, checkpoint_directory: str | Path) -> Numbered:
        path = Path(os.path.abspath(checkpoint_directory))
        found = self._shelf.read(path.name)
        if found is None or path.parent.resolve() != self._shelf.root.resolve():
            raise UsageError(f"{checkpoint_directory} is not from this saver's prepare_checkpoint_directory()")
        if not path.is_dir():
            raise NotFound(
                f"{checkpoint_directory} is gone; each prepare_checkpoint_directory() removes what was begun before "
                "and not finished"
            )
        return found

    def _all_see(self, what: str, look: Callable[[], bool]) -> None:
        """Wait until every rank sees it.

        Raises:
            StoreError: one does not, in time: a directory on one machine's own disk serves no other.
        """
        with self._ranks.together(f"look for {what}"):
            if not (self._ranks.alone or _soon(look, min(SEEN_S, self._ranks.timeout_s / 2))):
                raise StoreError(
                    f"cannot see {what} in {self._shelf.root} on {os.uname().nodename}; all ranks need one shared directory"
                )


def _soon(look: Callable[[], bool], seconds: float) -> bool:
    until = time.monotonic() + seconds
    while not _is_seen(look):
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def _is_seen(look: Callable[[], bool]) -> bool:
    try:
        return look()
    except FileNotFoundError:
        return False


def _wish(force_save: bool) -> bytes:
    return b"force" if force_save else b""


def _of_one_mind(words: Sequence[dict[str, Any]]) -> None:
    for option in ("strategy", "name", "keep_last"):
        said = [word.get(option) for word in words]
        if len(set(said)) > 1:
            raise UsageError(f"AtomicDirectory needs the same arguments on every rank, and {told(option, said)}")


def _master(words: Sequence[dict[str, Any]]) -> int:
    """The rank that calls itself so; rank 0 when none does."""
    masters = [rank for rank, word in enumerate(words) if word["is_master"]]
    if len(masters) > 1:
        raise UsageError(f"AtomicDirectory needs one master, and {numbers(masters)} say is_master=True")
    return masters[0] if masters else 0
