"""Check what a release needs before it is published; `.github/workflows/release.yml` asks.

    python tools/release.py tag TAG      the tag is `v` and the version, and the version is a release
    python tools/release.py name INDEX   the name in pyproject.toml is ours, or free, at the package index INDEX

Both end with 1 and one line if not.
"""

import json
import re
import sys
import tomllib
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SOURCE = "src/holdfast/__init__.py"
TIMEOUT_S = 30


def check_tag(tag: str) -> str:
    """Return what to print.

    Raises:
        ValueError: the tag is not the version, or the version is no release.
    """
    found = re.search(r'^__version__ = "(.*)"$', (ROOT / SOURCE).read_text(), re.MULTILINE)
    version = found[1] if found else "not there"
    if tag != f"v{version}":
        raise ValueError(f"the tag is {tag!r}, and the version of {SOURCE} is {version}: tag v{version}")
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise ValueError(f"{version} is no release: write three numbers into {SOURCE}")
    return version


def check_name(index: str) -> str:
    """Return what to print.

    Raises:
        ValueError: the name belongs to somebody else, or nobody tells whose it is.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    name, ours = project["name"], {plain(each) for each in project.get("urls", {}).values()}
    if not index.startswith(("https://", "http://127.0.0.1:")):
        raise ValueError(f"the index's address is {index!r}: set the variable INDEX of the repository to its https://")
    if not ours:
        raise ValueError("pyproject.toml has no [project.urls]: write the project's address there, to tell ours by it")
    theirs = addresses(f"{index.rstrip('/')}/pypi/{name}/json")
    if theirs is None:
        return f"{name} is free"
    if ours & theirs:
        return f"{name} is ours"
    whose = ", ".join(sorted(theirs)) or "which tells no address"
    raise ValueError(f"{name} belongs to another project ({whose}): choose another name in pyproject.toml")


def addresses(question: str) -> set[str] | None:
    """Return the addresses that the index has of a project; None: it has no such project.

    Raises:
        ValueError: there is no answer, or none of this kind.
    """
    try:
        with urllib.request.urlopen(question, timeout=TIMEOUT_S) as answer:  # noqa: S310  # the caller looked
            info: dict[str, Any] = json.load(answer)["info"]
            return {plain(each) for each in [*(info.get("project_urls") or {}).values(), info.get("home_page")] if each}
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        raise ValueError(f"{question} does not tell whose the name is: {error}") from error
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"{question} does not tell whose the name is: {error}") from error


def plain(address: str) -> str:
    """Return the address as it is compared."""
    return address.strip().rstrip("/").removesuffix(".git").lower()


def main() -> int:
    checks = {"tag": check_tag, "name": check_name}
    what, *given = sys.argv[1:] or [""]
    if what not in checks or len(given) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        print(checks[what](given[0]))
    except ValueError as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
