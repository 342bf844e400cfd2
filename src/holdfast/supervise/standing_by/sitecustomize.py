"""Makes an interpreter that was started in advance import what the script will, and wait until it
may run the script.

The interpreter is the command itself: `python train.py`, started like every other start. This file
stands in for `sitecustomize`, which Python imports before it opens the script. It first undoes what
made Python find it, and imports the user's own `sitecustomize`. It then does the imports that the
last start had done, with its output kept back, and waits. When it returns, Python runs the script
as in any start: there is no fork, and no frame of ours.

It uses modules of the standard library, and one that the script's Run has imported. What it is
sent: a byte. What it answers, a line each: `ready BYTES`, `go`, or `no REASON`.
"""

import ast
import contextlib
import importlib
import importlib.machinery
import importlib.util
import json
import os
import resource
import sys
from collections.abc import Callable
from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))
Seen = tuple[int, int, int, str]  # modification time, size, inode, digest
Place = tuple[str | None, list[str]]  # a module's file, and the folders of its submodules


def _remove_traces() -> bool:
    """Undo all traces of the standby in this process;
    return whether the user has a `sitecustomize`.
    """
    first, _, rest = os.environ.get("PYTHONPATH", "").partition(os.pathsep)
    if first == _HERE:
        if rest:
            os.environ["PYTHONPATH"] = rest
        else:
            del os.environ["PYTHONPATH"]
    if _HERE in sys.path:
        sys.path.remove(_HERE)
    sys.path_importer_cache.pop(_HERE, None)
    ours = sys.modules.pop("sitecustomize")
    try:
        importlib.import_module("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = ours
        return False
    return True


class _HeldOutput:
    """Holds back output until the script runs, and prints it then."""

    def __init__(self) -> None:
        self._ours = [os.dup(1), os.dup(2)]
        self._one = os.path.sameopenfile(1, 2)
        self._kept = [os.memfd_create("kept")]
        self._kept.append(self._kept[0] if self._one else os.memfd_create("kept"))
        for number, kept in enumerate(self._kept, 1):
            os.dup2(kept, number)

    def end(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        for number, (ours, kept) in enumerate(zip(self._ours, self._kept, strict=True), 1):
            os.dup2(ours, number)
            os.close(ours)
            if number == 2 and self._one:
                break
            data = os.pread(kept, os.fstat(kept).st_size, 0)
            # its reader is gone: the script's next output fails as usual
            with contextlib.suppress(OSError):
                while data:
                    data = data[os.write(number, data) :]
            os.close(kept)


class _LowPriority:
    """Runs the imports with the lowest priority, where that can be undone."""

    def __init__(self) -> None:
        self._before = os.getpriority(os.PRIO_PROCESS, 0)
        most = resource.getrlimit(resource.RLIMIT_NICE)[0]
        if os.geteuid() == 0 or most == resource.RLIM_INFINITY or most >= 20 - self._before:
            os.setpriority(os.PRIO_PROCESS, 0, 19)

    def end(self) -> None:
        for thread in os.listdir("/proc/self/task"):  # a thread pool of an import has our priority
            with contextlib.suppress(ProcessLookupError):
                os.setpriority(os.PRIO_PROCESS, int(thread), self._before)


def _import_all(asked: dict[str, object]) -> str:
    """Import the modules; return why they are not as in the last start, or ""."""
    modules: dict[str, str] = dict(asked["modules"])  # type: ignore[call-overload]
    if importlib.machinery.PathFinder.find_spec("usercustomize") is not None:
        return "there is a usercustomize, which Python imports later"
    # and Holdfast itself
    folders = [*filter(_is_installed, sys.path), os.path.dirname(os.path.dirname(_HERE))]
    installed = tuple({os.path.join(os.path.realpath(path), "") for path in folders})
    installed += ("built-in", "frozen")
    drawn, name = _GeneratorUse(), ""
    try:
        # nothing of the script has run before them, so it has seeded no generator
        for name in _first_imports():
            spec = importlib.util.find_spec(name.partition(".")[0])
            if spec is None or not _real_path(spec.origin or "").startswith(installed):
                break
            importlib.import_module(name)
        drawn.note_states()
        for name, origin in modules.items():
            if (
                name != "sitecustomize"
                and os.path.realpath(origin).startswith(installed)
                and name not in sys.modules
            ):
                importlib.import_module(name)
                drawn.note_states()
    except BaseException as error:
        return f"{name} cannot be imported alone: {type(error).__name__}"
    if drawn.was_used():
        return "an import draws random numbers, which the script may have seeded before"
    for name, file in _loaded().items():
        if name in modules and modules[name] != file:
            return f"{name} would come from {file}, not from {modules[name]}"
        if name not in modules and name not in _OURS:
            return f"the last start had not imported {name}"
    names = {*os.environ} ^ {*asked["names"]}  # type: ignore[misc]
    if names:
        return f"the script changes the environment: {', '.join(sorted(names))}"
    return (
        ""
        if asked["environment"] == _environment()
        else "the script changes a variable of the environment"
    )


def _real_path(origin: str) -> str:
    return origin if origin in {"built-in", "frozen"} else os.path.realpath(origin)


def _first_imports() -> list[str]:
    """Return the modules that the script names in the imports with which it begins."""
    with open(sys.argv[0], "rb") as text:
        body = ast.parse(text.read()).body
    found: list[str] = []
    for statement in body:
        if isinstance(statement, ast.Import):
            found += [each.name for each in statement.names]
        elif isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
            found.append(statement.module)
        elif not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
            break
    return found


class _GeneratorUse:
    """Detects whether a global random generator was used since its module was imported."""

    def __init__(self) -> None:
        self._before: dict[str, bytes] = {}

    def note_states(self) -> None:
        for name, state in _STATES.items():
            if name not in self._before and name in sys.modules:
                self._before[name] = state(sys.modules[name])

    def was_used(self) -> bool:
        return any(
            _STATES[name](sys.modules[name]) != before for name, before in self._before.items()
        )


def _numpy_state(module: Any) -> bytes:
    state = module.get_state()
    return bytes(state[1].tobytes()) + repr(state[2:]).encode()


_STATES: dict[str, Callable[[Any], bytes]] = {
    "random": lambda module: repr(module.getstate()).encode(),
    "numpy.random": _numpy_state,
    "torch.random": lambda module: bytes(module.default_generator.get_state().tolist()),
}


def _is_installed(path: str) -> bool:
    """Whether a folder of sys.path holds installed modules:
    other modules may run a script's code on import.
    """
    roots = {
        sys.prefix,
        sys.base_prefix,
        os.path.realpath(sys.prefix),
        os.path.realpath(sys.base_prefix),
    }
    named = os.path.basename(path) in {"site-packages", "dist-packages"}
    return named or path.startswith(tuple(os.path.join(root, "lib", "") for root in roots))


def _environment() -> str:
    import xxhash  # the script's Run has imported it: it is among the modules

    pairs = sorted(f"{name}={value}" for name, value in os.environ.items())
    return xxhash.xxh3_128_hexdigest(os.fsencode("\0".join(pairs)))


def _loaded() -> dict[str, str]:
    found = {}
    for name, module in [*sys.modules.items()]:
        spec = getattr(module, "__spec__", None)
        if spec is not None and spec.name == name and getattr(spec, "has_location", False):
            found[name] = spec.origin
    return found


def _file_states(files: dict[str, str]) -> dict[str, Seen]:
    """Return the state of each file now, and the targets of the modules' folders."""
    return {
        file: (*_file_facts(file), _digest(file))
        for file in {*files.values(), *_site_files(), sys.argv[0]}
    }


def _site_files() -> list[str]:
    """Return the files that say at a start where modules are."""
    folders = [path for path in sys.path if os.path.isdir(path)]
    return [
        os.path.join(folder, name)
        for folder in folders
        for name in os.listdir(folder)
        if name.endswith(".pth")
    ]


def _file_facts(file: str) -> tuple[int, int, int]:
    facts = os.stat(file)
    return facts.st_mtime_ns, facts.st_size, facts.st_ino


def _digest(file: str) -> str:
    import xxhash

    with open(file, "rb") as data:
        return xxhash.xxh3_128_hexdigest(data.read())


def _changed_file(seen: dict[str, Seen], loaded: dict[str, str], found: dict[str, Place]) -> str:
    """Return which file has another content than when it was imported,
    or leads elsewhere now; "" if none.
    """
    new = {*_site_files()} - {*seen}
    if new:
        return f"{min(new)} is new"
    for file, (*before, digest) in seen.items():
        try:
            if [*_file_facts(file)] != before and _digest(file) != digest:
                return f"{file} has changed"
        except OSError:
            return f"{file} is gone"
    importlib.invalidate_caches()
    for name, file in loaded.items():
        if "." not in name:
            origin, _ = _find_module(name, _import_places())
            if origin not in {None, file} and name not in sys.builtin_module_names:
                return f"{name} would come from {origin}"
    for name, place in found.items():
        if _find_module(name, _import_places()) != place:
            return f"{name} is found elsewhere"
    return _replaced_library()


def _import_places() -> list[str]:
    """Return where the script's imports are looked for: Python will put its folder first."""
    return (
        sys.path
        if sys.flags.safe_path
        else [os.path.dirname(os.path.realpath(sys.argv[0])), *sys.path]
    )


def _find_module(name: str, places: list[str]) -> Place:
    spec = importlib.machinery.PathFinder.find_spec(name, places)
    return (
        (spec.origin, [*(spec.submodule_search_locations or ())])
        if spec is not None
        else (None, [])
    )


def _module_in_script_folder(names: list[str]) -> str:
    """Return which module that an import looked for is found in the script's folder,
    too; "" if none.
    """
    differ = (
        name
        for name in names
        if _find_module(name, _import_places()) != _find_module(name, sys.path)
    )
    name = next(differ, "")
    return f"an import looks for {name}, which is beside the script" if name else ""


class _ImportRecorder:
    """Notes the names of all modules that are looked for, and finds none."""

    def __init__(self) -> None:
        self.names: dict[str, None] = {}

    def find_spec(self, name: str, path: object = None, _: object = None) -> None:
        if path is None and name not in sys.builtin_module_names:
            self.names[name] = None


def _replaced_library() -> str:
    """Return which library in memory has been replaced on the disk; "" if none."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as lines:
        files = {
            line.split(maxsplit=5)[5].rstrip("\n")
            for line in lines
            if line.count("/") and ".so" in line
        }
    gone = [
        file
        for file in files
        if file.endswith(" (deleted)") and not file.startswith(("/memfd:", "/dev/"))
    ]
    return f"{min(gone)[:-10]} has changed" if gone else ""


def _memory_size() -> int:
    with open("/proc/self/statm", encoding="ascii") as text:
        return int(text.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _forbid_exec(*_: object) -> None:
    """Replace functions that start another program in this process:
    Python would then run the script at once.
    """
    raise PermissionError("it starts another program")


def _import_and_wait(link: int, file: str) -> str:
    """Import, and wait; return why the script must not run here, or ""."""
    with open(file, "rb") as text:
        asked = json.load(text)
    if asked["cwd"] != os.getcwd():
        return f"the script goes to {asked['cwd']}, where an import may look"
    gently, kept, finder = _LowPriority(), (os.execv, os.execve), _ImportRecorder()
    os.execv = os.execve = _forbid_exec  # type: ignore[assignment]
    sys.meta_path.insert(0, finder)
    why = _import_all(asked) or _module_in_script_folder([*finder.names])
    if why:
        return why
    loaded = _loaded()
    seen, found = (
        _file_states(loaded),
        {name: _find_module(name, _import_places()) for name in finder.names},
    )
    sys.meta_path.remove(finder)
    os.execv, os.execve = kept
    gently.end()
    os.write(link, f"ready {_memory_size()}\n".encode())
    if not os.read(link, 1):
        return "nobody waits for it"
    return _changed_file(seen, loaded, found)


def _become_script() -> bool:
    """Return whether the user has a `sitecustomize`, once the script may run.

    Whatever goes wrong, the process ends: Python would print the error and run the script beside
    the one at work.
    """
    channel = os.environ.pop("HOLDFAST_STANDBY", "")
    if not channel:
        return _remove_traces()
    number, file = channel.split(",", 1)
    link, found = int(number), False
    try:
        os.set_inheritable(link, False)  # a program that replaces this one closes it
        quiet = _HeldOutput()
        found = _remove_traces()
        why = _import_and_wait(link, file)
        os.write(link, f"no {why}\n".encode(errors="replace") if why else b"go\n")
    except BaseException as error:
        why = f"{type(error).__name__}: {error}"
        with contextlib.suppress(OSError):
            os.write(link, f"no {why}\n".encode(errors="replace"))
    if why:
        os._exit(0)
    os.close(link)
    quiet.end()
    return found


_OURS = {*sys.modules, "json", "json.decoder", "json.encoder", "json.scanner", "resource", "_json"}
if not _become_script():
    raise ImportError("there is no other", name="sitecustomize")  # as Python would have found
