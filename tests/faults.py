"""A disk that dies by script: each change that the code makes to files can be stopped, refused, cut short or
forgotten.

`door` sends every such system call through a function of the test's. `Memory` is such a function: it knows what would
be left after a power loss. Its law of file systems: data survives after fsync of the file, a name after fsync of its
directory, in any order before that; O_DIRECT changes none of it. A rename between two directories happens or not, as
one, until either of them is synced: the target's sync makes the new name last, and only the source's sync makes sure
that the old one is gone. A hard link is one more name for the same file.
"""

import ctypes
import errno
import itertools
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from holdfast import bulk, disk
from holdfast.store import lineage, shards

CHANGES = ("create", "allocate", "write", "fsync", "rename", "link", "symlink", "mkdir", "unlink", "rmdir")


class Crash(BaseException):
    """The process is gone. Not an Exception: no handler may survive it."""


class Call(NamedTuple):
    """One change, about to be made."""

    name: str  # one of CHANGES, or "look", or "read"
    path: str = ""  # what it makes, removes, renames or links
    target: str = ""  # of a rename or a link
    descriptor: int = -1  # of a write, an fsync or an allocation
    data: Any = b""
    offset: int | None = None  # of a write that says where


Act = Callable[[Call, Callable[[], Any]], Any]
_here: ContextVar[Act | None] = ContextVar("here", default=None)  # threads that work for others run in their context
_lock = threading.Lock()
_doors = 0
_real: dict[str, Any] = {}


def _sent(call: Call, perform: Callable[[], Any]) -> Any:
    act = _here.get()
    if act is None:
        return perform()
    token = _here.set(None)  # what the script itself does to files is not told to it
    try:
        return act(call, perform)
    finally:
        _here.reset(token)


def _two(name: str, call: Callable[..., Call]) -> Any:
    return lambda *args, **named: _sent(call(*args), lambda: _real[name](*args, **named))


def _open(path, flags, *args, **named):
    def perform():
        return _real["open"](path, flags, *args, **named)

    if flags & os.O_CREAT:
        return _sent(Call("create", os.fspath(path)), perform)
    return _looked(path, perform)


def _looked(path, perform, asked="looks", call=None):
    """Reads are told only to a script that asks for them."""
    told = getattr(_here.get(), asked, False)
    return _sent(call or Call("look", str(path)), perform) if told else perform()


def _more(name):
    """A look that a script hears of only if it asks for all reads."""
    return lambda path=".", *args, **named: _looked(path, lambda: _real[name](path, *args, **named), "reads")


def _preadv(descriptor, *args):
    return _looked("", lambda: _real["preadv"](descriptor, *args), "reads", Call("read", descriptor=descriptor))


def _renameat2(_, source, __, target, flag):
    def perform():
        if _real["renameat2"](_, source, __, target, flag) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), os.fsdecode(source))
        return 0

    return _sent(Call("rename", os.fsdecode(source), os.fsdecode(target)), perform)


def _fallocate(descriptor, mode, offset, size):
    def perform():
        if _real["fallocate"](descriptor, mode, offset, size) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return 0

    try:
        return _sent(Call("allocate", descriptor=descriptor), perform)
    except OSError as error:
        ctypes.set_errno(error.errno)
        return -1


_STANDINS = {
    "listdir": lambda path=".": _looked(path, lambda: _real["listdir"](path)),
    "stat": lambda path, **named: _looked(path, lambda: _real["stat"](path, **named)),
    "lstat": _more("lstat"),
    "scandir": _more("scandir"),
    "statvfs": _more("statvfs"),
    "preadv": _preadv,
    "open": _open,
    "write": _two("write", lambda fd, data: Call("write", descriptor=fd, data=data)),
    "pwrite": _two("pwrite", lambda fd, data, offset: Call("write", descriptor=fd, data=data, offset=offset)),
    "fsync": _two("fsync", lambda fd: Call("fsync", descriptor=fd)),
    "mkdir": _two("mkdir", lambda path, *_: Call("mkdir", os.fspath(path))),
    "rmdir": _two("rmdir", lambda path: Call("rmdir", os.fspath(path))),
    "unlink": _two("unlink", lambda path: Call("unlink", os.fspath(path))),
    "rename": _two("rename", lambda old, new: Call("rename", os.fspath(old), os.fspath(new))),
    "replace": _two("replace", lambda old, new: Call("rename", os.fspath(old), os.fspath(new))),
    "link": _two("link", lambda old, new: Call("link", os.fspath(old), os.fspath(new))),
    "symlink": _two("symlink", lambda text, path, *_: Call("symlink", os.fspath(path))),
}


@contextmanager
def door(act: Act) -> Iterator[None]:
    """Send every change that this thread, and those that work for it, make to files through `act(call, perform)`."""
    global _doors  # noqa: PLW0603 -- os is one for all threads
    with _lock:
        _doors += 1
        if _doors == 1:
            _real.update({name: getattr(os, name) for name in _STANDINS})
            for name, standin in _STANDINS.items():
                setattr(os, name, standin)
            _real["renameat2"] = disk._renameat2
            if disk._renameat2 is not None:
                disk._renameat2 = _renameat2
            _real["fallocate"] = bulk._fallocate
            if bulk._fallocate is not None:
                bulk._fallocate = _fallocate
    token = _here.set(act)
    try:
        yield
    finally:
        _here.reset(token)
        with _lock:
            _doors -= 1
            if _doors == 0:
                disk._renameat2, bulk._fallocate = _real["renameat2"], _real["fallocate"]
                for name in _STANDINS:
                    setattr(os, name, _real[name])


def counting(calls: list[Call]) -> Act:
    def act(call: Call, perform: Callable[[], Any]) -> Any:
        calls.append(call)
        return perform()

    return act


def half_of(write: Call, *, second: bool = False) -> int:
    """Do one half of a write, also of one that takes whole pages only; how many bytes."""
    half = len(write.data) // 2
    start, end = (half, len(write.data)) if second else (0, half)
    if write.offset is None:
        return os.write(write.descriptor, memoryview(write.data)[start:end])
    plain = os.open(f"/proc/self/fd/{write.descriptor}", os.O_WRONLY)
    try:
        return os.pwrite(plain, memoryview(write.data)[start:end], write.offset + start)
    finally:
        os.close(plain)


def failing(nth: int, code: int) -> Act:
    """Refuse the nth change with `code`; of a write, half was done already."""
    seen = itertools.count()

    def act(call: Call, perform: Callable[[], Any]) -> Any:
        if next(seen) != nth:
            return perform()
        if call.name == "write":
            half_of(call)
        raise OSError(code, os.strerror(code), call.path or None)

    return act


# -- what would be left ---------------------------------------------------------------------------------------------


class Picture(NamedTuple):
    """A tree of files by their identity: what a directory names, what a file holds, what a link says."""

    root: int
    dirs: dict[int, dict[str, int]]
    files: dict[int, bytes]
    links: dict[int, str]

    def mark(self, at: int | None = None, met: dict[int, int] | None = None) -> Any:
        """Equal for pictures that look alike from the root, also in which names are one file's."""
        at, met = self.root if at is None else at, {} if met is None else met
        if at in self.dirs:
            return tuple((name, self.mark(child, met)) for name, child in sorted(self.dirs[at].items()))
        return self.links.get(at) or (met.setdefault(at, len(met)), hash(self.files.get(at, b"")))

    def build(
        self, path: Path, at: int | None = None, made: dict[int, Path] | None = None
    ) -> Iterator[tuple[Path, int]]:
        """Make it real at `path`; what each path is."""
        at, made = self.root if at is None else at, {} if made is None else made
        if at in self.dirs:
            path.mkdir()
        elif at in self.links:
            path.symlink_to(self.links[at])
        elif at in made:
            path.hardlink_to(made[at])
        else:
            path.write_bytes(self.files.get(at, b""))
            made[at] = path
        yield path, at
        for name, child in self.dirs.get(at, {}).items():
            yield from self.build(path / name, child, made)

    def put(self, place: int, name: str, what: int | None) -> "Picture":
        dirs = {**self.dirs, place: {key: child for key, child in self.dirs.get(place, {}).items() if key != name}}
        if what is not None:
            dirs[place][name] = what
        return self._replace(dirs=dirs)


class Change(NamedTuple):
    """A name given or taken, not on the medium yet."""

    place: int
    name: str
    before: int | None
    after: int | None
    pair: int  # the two of a rename carry the same number


class Memory:
    """A disk's memory: an act that lets everything happen and knows what a power loss would undo."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self._ids: dict[tuple[int, int], int] = {}
        self._held: list[int] = []
        self._fresh = itertools.count()
        self.settle()

    def settle(self) -> None:
        """Take all that is there for durable."""
        live = self.live()
        self.names = {place: dict(entries) for place, entries in live.dirs.items()}
        self.data = dict(live.files)
        self.links = dict(live.links)
        self.pending: list[Change] = []

    def close(self) -> None:
        for descriptor in self._held:
            os.close(descriptor)
        self._held.clear()

    def fork(self, picture: Picture, base: Path) -> "Memory":
        """The same memory over a copy of the live tree, made at `base`."""
        other = Memory.__new__(Memory)
        other.base, other._held, other._fresh = base, [], itertools.count(10**6)
        other._ids = {}
        for path, identity in picture.build(base):
            other._ids[other._key(path)] = identity
        other.names = {place: dict(entries) for place, entries in self.names.items()}
        other.data, other.links, other.pending = dict(self.data), dict(self.links), list(self.pending)
        return other

    def freeze(self) -> "Memory":
        """What is known now, for a later `fork`."""
        other = Memory.__new__(Memory)
        other.names = {place: dict(entries) for place, entries in self.names.items()}
        other.data, other.links, other.pending = dict(self.data), dict(self.links), list(self.pending)
        return other

    def _key(self, path: Path) -> tuple[int, int]:
        descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW)  # held, so that its number is not given to another
        self._held.append(descriptor)
        facts = os.fstat(descriptor)
        return facts.st_dev, facts.st_ino

    def _id(self, path: Path) -> Any:
        """The number of what lies there; None where nothing does."""
        try:
            facts = os.lstat(path)
        except FileNotFoundError:
            return None
        key = (facts.st_dev, facts.st_ino)
        if key not in self._ids:
            self._ids[self._key(path)] = next(self._fresh)
        return self._ids[key]

    def live(self) -> Picture:
        """The tree as any process sees it now."""
        picture = Picture(self._id(self.base), {}, {}, {})
        self._look(self.base, picture)
        return picture

    def _look(self, path: Path, picture: Picture) -> None:
        identity = self._id(path)
        if path.is_symlink():
            picture.links[identity] = os.readlink(path)
        elif path.is_dir():
            picture.dirs[identity] = {name: self._id(path / name) for name in sorted(os.listdir(path))}
            for name in picture.dirs[identity]:
                self._look(path / name, picture)
        else:
            picture.files[identity] = path.read_bytes()

    def __call__(self, call: Call, perform: Callable[[], Any]) -> Any:
        path, target = Path(call.path), Path(call.target)
        was, over = (self._id(path), self._id(target) if call.target else None) if call.path else (None, None)
        result = perform()
        pair = next(self._fresh)
        if call.name in ("create", "mkdir", "symlink"):
            self._changed(path, was, self._id(path), pair)
            if call.name == "symlink":
                self.links[self._id(path)] = os.readlink(path)
        elif call.name in ("unlink", "rmdir"):
            self._changed(path, was, None, pair)
        elif call.name == "link":
            self._changed(target, over, was, pair)
        elif call.name == "rename":
            self._changed(target, over, was, pair)
            self._changed(path, was, None, pair)
        elif call.name == "fsync":
            self._synced(Path(os.readlink(f"/proc/self/fd/{call.descriptor}")))
        return result

    def _changed(self, path: Path, before: int | None, after: int | None, pair: int) -> None:
        self.pending.append(Change(self._id(path.parent), path.name, before, after, pair))

    def _synced(self, path: Path) -> None:
        if not path.exists():
            return  # removed while it was open
        identity = self._id(path)
        if path.is_dir():
            self.names[identity] = {name: self._id(path / name) for name in os.listdir(path)}
            self.pending = [change for change in self.pending if change.place != identity]
        else:
            self.data[identity] = path.read_bytes()

    # -- the ways in which it may come back --

    def cord(self) -> Picture:
        """Nothing reached the medium that was not synced."""
        root = self._id(self.base)
        reached, dirs = [root], {}
        while reached:
            place = reached.pop()
            if place in self.names or place == root:
                dirs[place] = self.names.get(place, {})
                reached += [child for child in dirs[place].values() if child not in dirs]
        return Picture(root, {**self._known_dirs(), **dirs}, self.data, self.links)

    def _known_dirs(self) -> dict[int, dict[str, int]]:
        """Directories, also those whose names were never synced: they come back empty."""
        return {place: self.names.get(place, {}) for place in self.live().dirs}

    def states(self) -> Iterator[tuple[str, Picture]]:
        """What may be found after the end, by how it came: killed, or a power loss in its several forms."""
        live = self.live()
        yield "killed", live
        yield "the cord", self.cord()
        for index, change in enumerate(self.pending):
            if any((later.place, later.name) == (change.place, change.name) for later in self.pending[index + 1 :]):
                continue
            yield from self._about(change, live)
        for identity, data in live.files.items():
            kept = self.data.get(identity, b"")
            if data != kept:
                yield "data lost", live._replace(files={**live.files, identity: kept})
                zeroed = kept + bytes(max(0, len(data) - len(kept)))
                yield "data zeroed", live._replace(files={**live.files, identity: zeroed})

    def _about(self, change: Change, live: Picture) -> Iterator[tuple[str, Picture]]:
        twins = [other for other in self.pending if other.pair == change.pair and other is not change]
        back = self._revived(live)
        undone = back.put(change.place, change.name, change.before)
        alone = self.cord().put(change.place, change.name, change.after)
        for twin in twins:
            if change.after is None:  # of a rename, only the removal is lost
                yield "removal lost", undone
            undone = undone.put(twin.place, twin.name, twin.before)
            alone = alone.put(twin.place, twin.name, twin.after)
        if change.place in live.dirs:
            yield "name lost", undone
        if change.place in self.names:
            yield "name alone", alone

    def _revived(self, live: Picture) -> Picture:
        """`live`, and what its lost names may bring back."""
        gone = {change.before for change in self.pending if change.before is not None}
        dirs = {identity: {} for identity in gone if identity in self.names and identity not in live.dirs}
        files = {identity: data for identity, data in self.data.items() if identity not in live.files}
        return live._replace(
            dirs={**dirs, **live.dirs}, files={**files, **live.files}, links={**self.links, **live.links}
        )


@contextmanager
def requests(size: int = 4096, threads: int = 0, *, linked: int = lineage.LINK_BYTES) -> Iterator[None]:
    """Send every file of a save through the engine for big ones, in requests of `size` bytes, one after the other.

    `linked`: from how many bytes on leaves that did not change are linked.
    """
    engine = {"CHUNK_BYTES": size, "DIRECT_BYTES": 0, "THREADS": threads, "BUFFERS": threads + 2}
    places = [(bulk, name, value) for name, value in engine.items()]
    places += [(module, "LINK_BYTES", linked) for module in (lineage, shards)]
    before = [(module, name, getattr(module, name)) for module, name, _ in places]
    try:
        _set(places)
        yield
    finally:
        _set(before)
        bulk.release_chunks()  # chunks of that size


def links() -> AbstractContextManager[None]:
    """Leaves of a few thousand bytes are linked when they did not change."""
    return requests(linked=4000)


def _set(constants: list[tuple[ModuleType, str, int]]) -> None:
    for module, name, value in constants:
        setattr(module, name, value)


def scratch(name: str) -> Path:
    """A new directory in memory: these tests ask a model, not the device, what would survive."""
    import tempfile

    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    return Path(tempfile.mkdtemp(prefix=f"holdfast-{name}-", dir=place))


@contextmanager
def scratched(name: str) -> Iterator[Path]:
    path = scratch(name)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


FULL, BROKEN = errno.ENOSPC, errno.EIO
