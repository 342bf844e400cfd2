"""Alive: tells the supervisor of this process how far the run is. Without one, it does nothing."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import xxhash

from .. import disk, legible, modes, owner, scan
from ..children import processes, steps
from ..children.steps import StepSlot
from ..cluster import job_leader

if TYPE_CHECKING:
    from .position import Position

ANNOUNCED = "steps.json"  # in the supervisor's directory: where its memory is
SUPERVISOR = "supervisor.jsonl"  # its journal, whose mode the files get that it writes
SUPERVISORS = (
    SUPERVISOR,
    ANNOUNCED,
    "alive-*",
    "leave-*",
    "hang-*.txt",
    job_leader.RUN_HERE,
    job_leader.REFUSED,
)
IMPORTS_VARIABLE = "HOLDFAST_IMPORTS"  # the file that the supervisor reads
DEBUGGERS = {"pdb", "bdb", "IPython.core.debugger"}
_listening: list[int] = []  # the signal at which this process writes its stacks


class _MemoryFile(msgspec.Struct, frozen=True):
    steps: str
    stacks: str
    owner: dict[str, Any]  # the supervisor: /proc shows its memory only to processes beside it


_ANNOUNCED = msgspec.json.Decoder(_MemoryFile)  # made here for the reason that `format` has


def announce_memory(directory: Path, memory: Path, stacks: Path) -> None:
    """Write the file in which runs find the supervisor's memory.

    Without that file the supervisor can only watch the command's output.
    """
    facts = _MemoryFile(str(memory), str(stacks), owner.describe_process(os.getpid()))
    with suppress(OSError):
        disk.replace_with(directory / ANNOUNCED, [legible.json_bytes(facts) + b"\n"])


def claim_slot(directory: Path, rank: int, world: int) -> StepSlot | None:
    """Claim a slot of the supervisor in `directory`;
    None if it has none, or runs on another machine.
    """
    try:
        found = _ANNOUNCED.decode((directory / ANNOUNCED).read_bytes())
        if not _is_on_this_machine(found.owner):
            return None
        slot = StepSlot(Path(found.steps), rank, world)
        with suppress(OSError):
            slot.set_stack_signal(_register_stack_signal(Path(found.stacks)))
    except (OSError, *legible.UNREADABLE):
        return None
    if _is_debugged():
        slot.note_debugger()
    return slot


def _restrict_access(supervisor: Path) -> None:
    """Make the supervisor's files unreadable for other users, and its later files, too.

    Its journal's mode decides about later files. The directory keeps its mode: it may hold files of
    the user.
    """
    for pattern in SUPERVISORS:
        for path in scan.glob(supervisor, pattern):
            with suppress(OSError):  # gone meanwhile
                disk.restrict_to_owner(path)


def _is_on_this_machine(supervisor: Mapping[str, Any]) -> bool:
    pid = supervisor.get("pid")
    return isinstance(pid, int) and owner.describe_process(pid) == supervisor


def _register_stack_signal(stacks: Path) -> int:
    """Choose an unused signal at which this process writes the stacks of all threads into `stacks`;
    return the signal.

    Raises:
        OSError: there is no such signal, or no such memory.
    """
    if not _listening:
        taken = {
            number
            for number in signal.valid_signals()
            if processes.has_disposition_for(os.getpid(), number)
        }
        if not hasattr(signal, "SIGRTMIN"):
            raise OSError("this system has no signals that nobody uses")
        free = [
            number
            for number in range(signal.SIGRTMAX - 4, signal.SIGRTMIN, -1)
            if number not in taken
        ]
        if not free:
            raise OSError("every signal is taken or blocked")
        faulthandler.register(free[0], disk.open_shared(stacks, append=True))
        _listening.append(free[0])
    return _listening[0]


def _is_debugged() -> bool:
    """Whether a debugger may hold this process without the kernel's knowledge."""
    tracer = getattr(sys.gettrace(), "__self__", None)
    return "pydevd" in sys.modules or type(tracer).__module__ in DEBUGGERS


class Heartbeat(msgspec.Struct):
    """Reports the steps of one attempt to the supervisor of this process."""

    _position: Position
    _slot: StepSlot | None = None

    def connect(self, rank: int, world: int, *, private: bool = False) -> None:
        """Claim a slot in the supervisor's memory, and report that the run begins.

        With `private`, make the supervisor's files unreadable for other users.
        """
        directory = job_leader.supervisor_directory()
        if directory is not None:
            modes.inherit_mode(directory, of=directory / SUPERVISOR)
        if directory is not None and private:
            _restrict_access(directory)
        self._slot = None if directory is None else claim_slot(directory, rank, world)
        self.mark_phase(steps.OPENING)

    def mark_phase(self, phase: int) -> None:
        """Report that this phase begins, with the number of completed steps."""
        if self._slot is not None:
            self._slot.mark_phase(phase, self._position.step)

    def report_end(self) -> None:
        """Report that the run is over. From now on the supervisor does not watch the process
        for hangs.
        """
        self.mark_phase(steps.OVER)
        self._slot = None


def write_import_list() -> None:
    """Write which modules the script has imported, if a supervisor with `--standby` wants it.

    A file that cannot be written is no error: there is then no standby.
    """
    place = os.environ.get(IMPORTS_VARIABLE)
    if place:
        with suppress(OSError):
            disk.replace_with(Path(place), [legible.json_bytes(_list_imports()) + b"\n"])


def _list_imports() -> dict[str, object]:
    """Return the modules in the order of their import,
    each with its file; the folder; a digest of the environment.
    """
    modules = []
    for name, module in [*sys.modules.items()]:
        spec = getattr(module, "__spec__", None)
        origin = getattr(spec, "origin", None)
        if (
            spec is not None
            and spec.name == name
            and getattr(spec, "has_location", False)
            and isinstance(origin, str)
        ):
            modules.append([name, origin])
    pairs = sorted(f"{name}={value}" for name, value in os.environ.items())
    digest = xxhash.xxh3_128_hexdigest(os.fsencode("\0".join(pairs)))
    return {
        "pid": os.getpid(),
        "cwd": os.getcwd(),
        "modules": modules,
        "names": sorted(os.environ),
        "environment": digest,
    }
