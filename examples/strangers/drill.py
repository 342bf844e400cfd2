"""Add Holdfast to scripts that somebody else wrote, and drill them: `python examples/strangers/drill.py NAME COPY`.

COPY is a directory with the script's repository, at the commit that NAME.toml names, or one with several repositories.
It is left as it is: what the command needs of it is copied to a temporary directory, patched there, given data, and
drilled. `all` does this with every script; `--table` prints how many lines each patch adds and changes.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import prepare
from patches import Stranger, patched, row, strangers, unified

_GIT = shutil.ignore_patterns(".git")


def found(stranger: Stranger, copy: Path) -> Path:
    """The script's repository: `copy`, or in `copy`."""
    for place in (copy, copy / stranger.repository):
        if (place / stranger.script).is_file():
            return place
    raise SystemExit(f"{copy} has no {stranger.script}: git clone {stranger.upstream}, and check out {stranger.commit}")


def laid_out(stranger: Stranger, copy: Path, place: Path) -> Path:
    """What the command needs of `copy`, patched and with its data, in `place`; returns where to start the command."""
    shutil.copytree(copy / stranger.folder, place / stranger.folder, dirs_exist_ok=True, ignore=_GIT)
    script = place / stranger.script
    script.write_text(patched(stranger, script.read_text()))
    for name in stranger.prepare:
        getattr(prepare, name)(place)
    for command in stranger.before:
        subprocess.run([sys.executable, *command], cwd=place, check=True, stdout=subprocess.DEVNULL)
    return place / stranger.folder


def drill(stranger: Stranger, copy: Path, kills: int) -> subprocess.CompletedProcess[str]:
    """What `holdfast drill` says of the patched script."""
    with tempfile.TemporaryDirectory(prefix="strangers-") as temporary:
        folder = laid_out(stranger, copy, Path(temporary))
        here = {name: value.replace("COPY", temporary) for name, value in stranger.environment.items()}
        words = [sys.executable, "-m", "holdfast", "drill", "--kills", str(kills), *stranger.options]
        return subprocess.run(
            [*words, "--", sys.executable, *stranger.command],
            cwd=folder,
            env=os.environ | here,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )


def main() -> int:
    known = strangers()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=[*known, "all"], help="the script")
    parser.add_argument("copy", type=Path, nargs="?", help="a directory with the repository, or with several")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--patch", action="store_true", help="print the patch as `git apply --unidiff-zero` takes it")
    parser.add_argument("--table", action="store_true", help="print the counts as docs/exactness.md has them")
    parser.add_argument("--verbose", action="store_true", help="print all that the drill says")
    arguments = parser.parse_args()
    chosen = list(known.values()) if arguments.name == "all" else [known[arguments.name]]
    if arguments.table:
        print(*map(row, chosen), sep="\n")
        return 0
    if arguments.copy is None:
        parser.error("COPY is missing: the directory with the script's repository")
    return 1 if sum(drilled(stranger, arguments) for stranger in chosen) else 0


def drilled(stranger: Stranger, arguments: argparse.Namespace) -> bool:
    """Print the patch, or drill the script and print what came of it; whether the drill failed."""
    copy = found(stranger, arguments.copy)
    if arguments.patch:
        print(unified(stranger, (copy / stranger.script).read_text()), end="")
        return False
    done = drill(stranger, copy, arguments.kills)
    if arguments.verbose:
        print(done.stdout)
    counts = f"{stranger.added} added, {stranger.changed} changed, {stranger.indented} re-indented"
    print(f"{stranger.name}: {counts}: {verdict(done)}", flush=True)
    return done.returncode != 0


def verdict(done: subprocess.CompletedProcess[str]) -> str:
    """The drill's last line, and its exit code when that is not 0."""
    lines = [line for line in done.stdout.splitlines() if line.strip()] or ["the drill said nothing"]
    return lines[-1] + (f" (exit code {done.returncode})" if done.returncode else "")


if __name__ == "__main__":
    sys.exit(main())
