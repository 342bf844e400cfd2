"""Power loss in real saves: what a process asked of its disk is recorded, and done again under a memory of the disk.

strace records every call that changes files. `replayed` does them again, one by one, while `Medium` knows what of them
would last. Between any two it gives pictures of the disk as a loss of power may leave it: any subset of the effects
that no sync had covered is missing, and of a file's unsynced bytes any pages.
"""

import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from faults import Call, Change, Memory, Picture, door

PAGE = 4096
SCRIPT = Path(__file__).with_name("power_script.py")
CHANGES = (
    *("openat", "open", "creat", "close", "write", "pwrite64", "writev", "pwritev", "pwritev2", "fsync", "fdatasync"),
    *("sync_file_range", "ftruncate", "truncate", "fallocate", "rename", "renameat", "renameat2", "link", "linkat"),
    *("symlink", "symlinkat", "mkdir", "mkdirat", "unlink", "unlinkat", "rmdir", "copy_file_range", "sendfile", "mmap"),
)
SYNCS = ("fsync", "fdatasync")
AT_ONCE = (
    *SYNCS,
    "close",
)  # of two threads, the other may make changes, or get the descriptor, before such a call ends
_WHOLE = re.compile(r"(\d+)\s+(\w+)\((.*)\)\s+= (\d+)(<.*>)?$")
_BEGUN = re.compile(r"(\d+)\s+(\w+)\((.*) <unfinished \.\.\.>$")
_RESUMED = re.compile(r"(\d+)\s+<\.\.\. (\w+) resumed>(.*)$")
_TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
_HELD = re.compile(r"(\d+)<")
_BELOW = re.compile(r'(?:AT_FDCWD|\d+)<((?:\\x[0-9a-f]{2})*)>, "((?:\\x[0-9a-f]{2})*)"')  # a folder, a name in it


class Made(NamedTuple):
    """A call that succeeded."""

    name: str
    texts: tuple[bytes, ...]  # paths and data, in their order
    numbers: tuple[int, ...]  # what is given as a decimal number
    flags: str
    descriptor: int  # which it was asked of
    result: int
    said: int = 0  # the step whose save has returned, as the process says; 0: it says nothing

    def __str__(self) -> str:
        return f"{self.name} {os.fsdecode(self.texts[-1])[-60:] if self.descriptor < 0 else ''}"

    @property
    def changes(self) -> bool:
        return self.name not in ("close", "look") and (self.name != "openat" or "O_CREAT" in self.flags)


class Recorded(NamedTuple):
    made: list[Made]
    sites: set[str]  # which sync


def recorded(place: Path, story: str, without: str = "") -> Recorded:
    """What the process of that part of a story changes below `place`, in order. `without`: a site that does not
    sync.
    """
    log = place.with_name(f"{place.name}.strace")
    command = ["strace", "-f", "-qq", "-y", "-xx", "-s", str(1 << 24), "-o", str(log), "-e", "trace=" + _among(CHANGES)]
    tests = os.pathsep.join(sys.path)
    done = subprocess.run(
        [*command, sys.executable, "-B", str(SCRIPT), str(place / "run"), story, without],
        env={**os.environ, "PYTHONPATH": tests},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.stdout.startswith("saved"), done.stderr
    made = list(parsed(log, place))
    assert [each.said for each in made if each.said] == [int(line.split()[1]) for line in done.stdout.splitlines()]
    log.unlink()
    sites = {line.removeprefix("site ") for line in done.stderr.splitlines() if line.startswith("site ")}
    return Recorded(made, sites)


def _among(names: tuple[str, ...]) -> str:
    return ",".join(f"?{name}" for name in names)


def _hex(data: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in data)


def parsed(log: Path, changed: Path) -> Iterator[Made]:
    """What strace wrote of changes below a folder, in the order in which the calls end; but a sync covers only what had
    ended when it began.
    """
    lines, place = log.read_text().splitlines(), _hex(os.fsencode(changed))
    begun: dict[tuple[str, str], tuple[int, str]] = {}
    found: list[tuple[int, Made]] = []
    for number, line in enumerate(lines):
        whole, at = line, number
        if match := _BEGUN.match(line):
            begun[match[1], match[2]] = number, match[3]
            continue
        if match := _RESUMED.match(line):
            at, arguments = begun.pop((match[1], match[2]))
            whole = f"{match[1]} {match[2]}({arguments}{match[3]}"
        match = _WHOLE.match(whole)
        if match is None:
            continue  # it failed, or is a signal
        made = _made(match[2], match[3], int(match[4]))
        where = match[3] if made.descriptor < 0 else match[3].partition(">")[0]  # not in data
        if made.said or place in where:
            found.append((at if made.name in AT_ONCE else number, made))
    return (made for _, made in sorted(found, key=lambda each: each[0]))


def _made(name: str, arguments: str, result: int) -> Made:
    texts = tuple(bytes.fromhex(each.replace("\\x", "")) for each in _TEXT.findall(arguments))
    plain = [each.strip() for each in _TEXT.sub("", re.sub(r"<[^>]*>", "", arguments)).split(",")]
    numbers = tuple(int(each) for each in plain if each.isdecimal())
    flags = next((each for each in plain if each.startswith(("O_", "AT_REMOVEDIR"))), "")
    if name.removesuffix("2").endswith("at") and name != "symlinkat":
        below = [tuple(bytes.fromhex(part.replace("\\x", "")) for part in pair) for pair in _BELOW.findall(arguments)]
        texts = tuple(os.path.join(*pair) for pair in below) or texts
    held = _HELD.match(arguments)
    said = 0
    if name == "write" and held is not None and held[1] == "1" and texts[0].startswith(b"saved "):
        said = int(texts[0].split()[1])
    if name == "mmap" and ("MAP_SHARED" not in arguments or "PROT_WRITE" not in arguments):
        name = "look"
    return Made(name, texts, numbers, flags, int(held[1]) if held else -1, result, said)


# -- done again -----------------------------------------------------------------------------------------------------


class Again:
    """Does recorded calls once more, with `base` in the place of the directory in which they were made."""

    def __init__(self, was: Path, base: Path) -> None:
        self._was, self._base = os.fsencode(was), os.fsencode(base)
        self._open: dict[int, int] = {}  # descriptor of the process -> ours

    def path(self, text: bytes) -> str:
        assert text.startswith(self._was + b"/") or text == self._was, text
        return os.fsdecode(self._base + text[len(self._was) :])

    def do(self, made: Made) -> None:
        getattr(self, f"_{made.name}")(made)

    def close(self) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()

    def _openat(self, made: Made) -> None:
        flags = 0
        for word in made.flags.split("|"):
            flags |= 0 if word == "O_DIRECT" else getattr(os, word, 0)
        if made.result in self._open:
            os.close(self._open.pop(made.result))
        with suppress(FileNotFoundError):  # a look at what another thread removes
            self._open[made.result] = os.open(self.path(made.texts[0]), flags, 0o644)

    def _close(self, made: Made) -> None:
        if made.descriptor in self._open:
            os.close(self._open.pop(made.descriptor))

    def _write(self, made: Made) -> None:
        assert os.write(self._open[made.descriptor], made.texts[0][: made.result]) == made.result

    def _writev(self, made: Made) -> None:
        data = b"".join(made.texts)[: made.result]
        assert os.write(self._open[made.descriptor], data) == made.result

    def _pwrite64(self, made: Made) -> None:
        descriptor, data = self._open[made.descriptor], made.texts[0][: made.result]
        assert os.pwrite(descriptor, data, made.numbers[-1]) == made.result

    def _sendfile(self, made: Made) -> None:
        left = made.result  # the program read the other file from its beginning to its end, as this does
        while left:
            left -= os.sendfile(self._open[made.descriptor], self._open[made.numbers[1]], None, left)

    def _fsync(self, made: Made) -> None:
        os.fsync(self._open[made.descriptor])

    def _fallocate(self, made: Made) -> None:
        os.posix_fallocate(self._open[made.descriptor], *made.numbers[-2:])

    def _ftruncate(self, made: Made) -> None:
        os.ftruncate(self._open[made.descriptor], made.numbers[-1])

    def _look(self, made: Made) -> None:
        """It changes nothing."""

    def _rename(self, made: Made) -> None:
        os.rename(*map(self.path, made.texts))

    def _linkat(self, made: Made) -> None:
        os.link(*map(self.path, made.texts))

    def _symlink(self, made: Made) -> None:
        os.symlink(os.fsdecode(made.texts[0]), self.path(made.texts[1]))

    def _mkdir(self, made: Made) -> None:
        os.mkdir(self.path(made.texts[0]))

    def _unlink(self, made: Made) -> None:
        os.unlink(self.path(made.texts[0]))

    def _rmdir(self, made: Made) -> None:
        os.rmdir(self.path(made.texts[0]))

    _fdatasync = _fsync
    _renameat2 = _renameat = _rename
    _link, _symlinkat = _linkat, _symlink
    _mkdirat = _mkdir

    def _unlinkat(self, made: Made) -> None:
        (os.rmdir if "AT_REMOVEDIR" in made.flags else os.unlink)(self.path(made.texts[0]))


class Moment(NamedTuple):
    """What a disk's memory knows at a moment."""

    live: Picture
    names: dict[int, dict[str, int]]
    data: dict[int, bytes]
    links: dict[int, str]
    pending: list[Change]

    def forbids(self, found: Picture) -> str:
        """Why a loss of power at this moment cannot leave what was found; empty if it can."""
        could: dict[tuple[int, str], set[int | None]] = {}
        for change in self.pending:
            durable = self.names.get(change.place, {}).get(change.name)
            could.setdefault((change.place, change.name), {durable}).add(change.after)
        for place, entries in found.dirs.items():
            durable_names = self.names.get(place, {})
            for name in {*entries, *durable_names}:
                if entries.get(name) not in could.get((place, name), {durable_names.get(name)}):
                    return f"{name}: {entries.get(name)} in the place of {durable_names.get(name)}"
        for identity, data in found.files.items():
            kept, now = self.data.get(identity), self.live.files.get(identity)
            if kept is not None and now is not None and data[: len(kept)] != kept and now[: len(kept)] == kept:
                return f"file {identity}: bytes that were synced are not there"
        if any(self.links[identity] != text for identity, text in found.links.items()):
            return "a link leads elsewhere"
        return self._both_names_lost(found)

    def _both_names_lost(self, found: Picture) -> str:
        """A rename of which neither directory was synced happens or not, as one."""
        for number, new in enumerate(self.pending):
            olds = [each for each in self.pending if each.pair == new.pair and each.after is None]
            later = [(each.place, each.name) for each in self.pending[number + 1 :]]
            for old in olds if new.after is not None and (new.place, new.name) not in later else []:
                had = self.names.get(old.place, {}).get(old.name) == new.after
                here, there = found.dirs.get(old.place), found.dirs.get(new.place)
                if had and here is not None and there is not None and old.name not in here and new.name not in there:
                    return f"{old.name}, renamed to {new.name}, has neither name"
        return ""


class Medium(Memory):
    """A disk's memory that gives any state that a loss of power may leave."""

    def settle(self) -> None:
        self.made: set[int] = set()  # directories, also those that are gone
        super().settle()

    def __call__(self, call: Call, perform: Any) -> Any:
        result = super().__call__(call, perform)
        if call.name == "mkdir":
            self.made.add(self._id(Path(call.path)))
        return result

    def moment(self) -> Moment:
        names = {place: dict(entries) for place, entries in self.names.items()}
        return Moment(self.live(), names, dict(self.data), dict(self.links), list(self.pending))

    def known_as(self, path: Path) -> Picture:
        """What lies at `path`: the same file system, mounted again, in which each file has its number still."""
        numbers = {number: identity for (_, number), identity in self._ids.items()}

        def look(at: Path, picture: Picture) -> int:
            identity = numbers[os.lstat(at).st_ino]
            if at.is_symlink():
                picture.links[identity] = os.readlink(at)
            elif at.is_dir():
                picture.dirs[identity] = {name: look(at / name, picture) for name in sorted(os.listdir(at))}
            else:
                picture.files[identity] = at.read_bytes()
            return identity

        picture = Picture(0, {}, {}, {})
        return picture._replace(root=look(path, picture))

    def sampled(self, chosen: random.Random) -> Picture:
        """Any subset of what no sync has covered is lost."""
        live, reaches = self.live(), chosen.choice((0.0, 0.1, 0.5, 0.9, 1.0))
        names = {place: dict(self.names.get(place, {})) for place in {*self.names, *self.made, *live.dirs}}
        came: dict[int, bool] = {}
        for change in self.pending:
            twice = change.pair in came
            happens = came.setdefault(change.pair, chosen.random() < reaches)
            if twice and change.after is None and chosen.random() < 0.1:
                continue  # a rename of which the old name is still there
            if happens and change.after is None:
                names[change.place].pop(change.name, None)
            elif happens and change.after is not None:
                names[change.place][change.name] = change.after
        files = dict(self.data)
        for identity, data in live.files.items():
            files[identity] = torn(self.data.get(identity, b""), data, reaches, chosen)
        return Picture(live.root, names, files, {**self.links, **live.links})


def torn(kept: bytes, data: bytes, reaches: float, chosen: random.Random) -> bytes:
    """A file of which some pages of what was written since its sync are lost, and perhaps its new length."""
    if kept == data:
        return data
    size = chosen.choice((len(kept), len(data), min(len(data), PAGE * chosen.randint(0, 1 + len(data) // PAGE))))
    size = max(size, min(len(kept), len(data)))  # what was there, and is, does not get lost
    found = bytearray(kept[:size].ljust(size, b"\0"))
    for at in range(0, min(size, len(data)), PAGE):
        if chosen.random() < reaches:
            page = data[at : min(at + PAGE, size)]
            found[at : at + len(page)] = page
    return bytes(found)


class Loss(NamedTuple):
    """A disk after a loss of power."""

    picture: Picture
    said: int  # the newest step whose save had returned
    before: str  # the call before which the power went


def replayed(made: list[Made], was: Path, base: Path, medium: Medium) -> Iterator[tuple[int, str]]:
    """Do them again; before each of them, and at the end, the newest step whose save had returned, and the call."""
    again, said = Again(was, base), 0
    try:
        for each in made:
            if each.said:
                said = each.said
                continue
            if each.changes:
                yield said, str(each)
            with door(medium):
                again.do(each)
        yield said, "the end"
    finally:
        again.close()


def losses(made: list[Made], was: Path, base: Path, chosen: random.Random, each: int = 1) -> Iterator[Loss]:
    """So many different disks for each call before which the power may go."""
    base.mkdir()
    medium = Medium(base)
    seen: set[Any] = set()
    for said, before in replayed(made, was, base, medium):
        for _ in range(each):
            picture = medium.sampled(chosen)
            mark = (picture.mark(), said)
            if mark not in seen:
                seen.add(mark)
                yield Loss(picture, said, before)
    assert medium.live().mark() == Medium(was).live().mark(), "what was recorded is not all that happened"
    medium.close()
