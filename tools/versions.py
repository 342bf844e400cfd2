"""Run tests/fast and a drill with other versions of Python, torch and NumPy: `python tools/versions.py [CORNER ...]`.

Each corner of what is supported has an environment, `.venv-CORNER`: its lock under tests/versions, and a wheel of torch
over stubs of NVIDIA's libraries (tools/cuda_stubs.py). It is built when the lock has changed. A corner whose Python is
not found is told, and makes the exit code 3. What passed is written into the corner's row of docs/versions.md.

`--lock` resolves the locks anew, with uv: the lowest one from the floors of pyproject.toml.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
LOCKS = ROOT / "tests/versions"
PAGE = ROOT / "docs/versions.md"


class Corner(NamedTuple):
    python: str
    lock: str
    torch: str


CORNERS = {
    "lowest": Corner("3.11", "tests/versions/lowest.lock", "2.6.0"),  # the floors of pyproject.toml
    "newest": Corner("3.11", "requirements.lock", "2.14.1"),
    "3.12": Corner("3.12", "tests/versions/newest.lock", "2.9.1"),
    "3.13": Corner("3.13", "tests/versions/newest.lock", "2.9.1"),
    "3.14": Corner("3.14", "tests/versions/newest.lock", "2.13.0"),  # 2.9.1 compiles nothing there
}
DRILL = ("drill", "--kills", "2", "--signals", "KILL,TERM", "--seed", "7", "--", "python", "examples/digits/train.py")


def call(*command: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, text=True, check=True, **options)


def interpreter(version: str) -> str | None:
    """The Python of that version: on PATH, or one that pyenv has built."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    candidates = [shutil.which(f"python{version}"), *sorted(map(str, pyenv.glob(f"versions/{version}.*/bin/python")))]
    asked = ("-c", f"import sys, venv; sys.exit('{version}' != '%d.%d' % sys.version_info[:2])")
    works = (
        each
        for each in candidates
        if each and not subprocess.run([each, *asked], check=False, capture_output=True).returncode
    )
    return next(works, None)


def environment(name: str, corner: Corner, python: str) -> Path:
    """Build the corner's environment if its lock is newer; return its Python."""
    folder, lines = ROOT / f".venv-{name}", (ROOT / corner.lock).read_text().splitlines()
    pins = [line for line in lines if not line.startswith(("#", "torch==", "torchdata=="))]
    built, wanted = folder / ".ready", "\n".join([str(corner), *pins])
    inside = folder / "bin/python"
    if not built.exists() or built.read_text() != wanted:
        print(
            f"{name}: building {folder.name} (Python {corner.python}, torch {corner.torch}), some minutes", flush=True
        )
        call(python, "-m", "venv", "--clear", folder)
        pip = (inside, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps")
        call(*pip, *pins)
        call(*pip, f"torch=={corner.torch}", "torchdata")
        call(*pip, "--no-build-isolation", "--editable", ".")
        call(sys.executable, "tools/cuda_stubs.py", folder / f"lib/python{corner.python}/site-packages")
        built.write_text(wanted)
    return inside


def passed(name: str, python: Path, sample: str) -> dict[str, str]:
    """Run the tests, or a sample of them, and the drill; return the cells of the corner's row.

    Raises:
        subprocess.CalledProcessError: one of them failed.
    """
    print(f"{name}: tests/fast", flush=True)
    quick = ("--quiet", "--hypothesis-profile=quick", "-n", "2", "--dist", "worksteal", "-p", "no:cacheprovider")
    drawn = [f"--sample={sample}"] if sample else []
    command, last = [str(python), "-m", "pytest", "tests/fast", *quick, *drawn], ""
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as ran:
        for line in ran.stdout or ():
            print(line, end="", flush=True)
            last = line.strip() or last
    if ran.returncode:
        raise subprocess.CalledProcessError(ran.returncode, "pytest")
    print(f"{name}: drill", flush=True)
    path = f"{python.parent}:{os.environ['PATH']}"
    drilled = call(python.parent / "holdfast", *DRILL, env={**os.environ, "PATH": path}, stdout=subprocess.PIPE)
    verdict = drilled.stdout.strip().splitlines()[-1]
    print(verdict, flush=True)
    found = "import torch, numpy, sys; print(sys.version.split()[0], torch.__version__, numpy.__version__)"
    versions = call(python, "-c", found, stdout=subprocess.PIPE).stdout.split()
    counts = re.sub(r" in .*", "", last.strip("= "))
    return dict(zip(("Python", "torch", "NumPy"), versions, strict=True)) | {"tests/fast": counts, "drill": verdict}


def write(name: str, cells: dict[str, str]) -> None:
    """Write the corner's row into the page."""
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    debian = f" DEBIAN={os.environ['DEBIAN']}" if os.environ.get("DEBIAN") else ""
    row = " | ".join([f"| {name}", *cells.values(), today, f"`make test-versions CORNERS={name}{debian}` |"])
    PAGE.write_text(re.sub(rf"^\| {re.escape(name)} \|.*$", lambda _: row, PAGE.read_text(), flags=re.MULTILINE))


def floors() -> list[str]:
    """The lowest version of each package that the core and the extras of users need, as pins."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = (needs for extra, needs in project["optional-dependencies"].items() if extra != "dev")
    needs = [*project["dependencies"], *(each for one in extras for each in one)]
    elsewhere = ("torch", "wandb", "mlflow")  # torch is installed alone, trackers by tests/frameworks
    return [each.replace(">=", "==") for each in needs if not each.startswith(elsewhere)]


def lock() -> None:
    """Resolve both locks anew. torch and torchdata, which needs it, are left out: their wheels are installed alone."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    dev = [re.split(">=", each)[0] for each in project["optional-dependencies"]["dev"]]
    of_torch = ["filelock", "fsspec", "jinja2", "networkx", "setuptools", "sympy", "typing-extensions", "cloudpickle"]
    names = [*dev, *(re.split(">=", each)[0] for each in project["dependencies"]), *of_torch]
    alone = ("torch", "torchdata", "mypy", "ruff")
    wanted = "\n".join(sorted({each for each in names if each not in alone}))
    bare = ("--quiet", "--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links")
    for name, python, pins in (("lowest", ("3.11",), floors()), ("newest", ("3.12", "--universal"), [])):
        into = ("--output-file", LOCKS / f"{name}.lock", "--python-version", *python)
        call("uv", "pip", "compile", *bare, *into, "-", input="\n".join([wanted, *pins]))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split(":")[0])
    parser.add_argument("corners", nargs="*", metavar="CORNER", help=f"of {', '.join(CORNERS)}; all if none is named")
    parser.add_argument(
        "--sample", metavar="WORD", default="", help="one case of each law, drawn by the word; writes no row"
    )
    parser.add_argument("--lock", action="store_true", help="resolve the locks anew, and run nothing")
    asked = parser.parse_args()
    if asked.lock:
        lock()
        return 0
    unknown = sorted({*asked.corners} - {*CORNERS})
    if unknown:
        parser.error(f"no such corner: {', '.join(unknown)}; there are {', '.join(CORNERS)}")
    code, told = 0, []
    for name in asked.corners or CORNERS:
        python, begun = interpreter(CORNERS[name].python), time.monotonic()
        if python is None:
            told.append(f"{name}: not run, no Python {CORNERS[name].python} on PATH or in pyenv's versions")
            code = code or 3
            continue
        try:
            cells = passed(name, environment(name, CORNERS[name], python), asked.sample)
        except subprocess.CalledProcessError as error:
            told.append(f"{name}: failed, {error}")
            code = 1
            continue
        if not asked.sample:
            write(name, cells)
        told.append(
            f"{name}: {', '.join(f'{key} {cell}' for key, cell in cells.items())}, {time.monotonic() - begun:.0f} s"
        )
    print("\n".join(told))
    return code


if __name__ == "__main__":
    sys.exit(main())
