"""Provenance: where a checkpoint comes from, for its manifest, without secrets and without
environment variables.
"""

from __future__ import annotations

import functools
import os
import platform
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any

REDACTED = "[redacted]"
LIBRARIES = (
    "torch",
    "numpy",
    "jax",
    "keras",
    "tensorflow",
    "lightning",
    "transformers",
    "safetensors",
)
GIT_TIMEOUT_S = 5
# longest text of a non-plain value: a tensor among the hyperparameters stays readable
LONGEST_TEXT = 1000
DEEPEST = 32  # deeper values become text: a mapping that contains itself must not fail a save

# Parts of names, written together: "--api-key", "apiKey" and "API_KEY" are all "apikey".
# compiled when first asked, as KNOWN_SECRETS: together a millisecond of every start
TELLING_PARTS = (
    r"password|passwd|passphrase|secret|credential|bearer|cookie|signature"
    r"|(api|access|private|encryption|account|ssh|auth|signing|"
    r"license|wandb|subscription|storage|master|shared|deploy)"
    r"keys?"
)
TELLING_WORDS = {
    "token",
    "pass",
    "pwd",
    "pw",
    "auth",
    "authorization",
    "oauth",
    "jwt",
    "otp",
    "sas",
    "sig",
}
# max_tokens is no secret
COUNTING_WORDS = {"max", "min", "num", "n", "total", "new", "per", "seen", "batch", "special"}

KNOWN_SECRETS = (
    # hf_transformers is no secret
    r"(?<![A-Za-z0-9])(?:hf_|gh[pousr]_|npm_|AIza)(?:(?=[a-z]*[A-Z0-9])[A-Za-z0-9]{10,}|[a-z]{20,})"
    r"|(?<![A-Za-z0-9])(?:sk-|sk_live_|github_pat_|glpat-|"
    r"xox[a-z]-|eyJ)(?:(?=[a-z_-]*[A-Z0-9])[\w.-]{10,}|[\w.-]{20,})"
    r"|(?<![A-Za-z0-9])(?:AKIA|ASIA)[A-Z0-9]{12,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*"
    r"|(?<=[Bb]earer )\S+"
)
# user:password@ in the host part; also with a "/" in the password, which is wrong in a URL and
# common.
USER_INFO = re.compile(r"(?<=://)(?:[^\s/?#]*|[^\s/@:]+:(?!\d{1,5}(?:/|$))[^\s@]*)(?=@)")
NAMED = re.compile(r"""([A-Za-z][\w.\-]*)[\\"']*\s*[:=]\s*""")
QUOTED = re.compile(r""""(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'""")
WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def document(
    hyperparameters: Mapping[str, Any] | None = None, dataset: object = None
) -> dict[str, Any]:
    """Return the origin of this process, JSON-like: the caller's own facts, git, library versions,
    Python, host, command.
    """
    return {
        "hyperparameters": None if hyperparameters is None else redact_mapping(hyperparameters),
        "dataset": _redact_value(dataset),
        "git": git_state(_work_directory()),
        "libraries": libraries(),
        "python": platform.python_version(),
        "host": platform.node(),
        "command": redact(sys.argv),
    }


@functools.cache
def git_state(directory: str) -> dict[str, Any] | None:
    """Return the commit of the repository around `directory`, and whether tracked files differ;
    None without a repository.

    Also None without git. Git is asked once per process: the code that runs is the code that was
    read at its start.
    """
    import subprocess

    # A repository may request a file-watching daemon, which would outlive us.
    command = [
        "git",
        "-c",
        "core.fsmonitor=false",
        "status",
        "--porcelain=v2",
        "--branch",
        "--untracked-files=no",
    ]
    # Set inside a hook, where they name another repository than the script's.
    misleading = {"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"}
    inherited = {name: value for name, value in os.environ.items() if name not in misleading}
    try:
        done = subprocess.run(
            command,
            cwd=directory,
            env={**inherited, "GIT_OPTIONAL_LOCKS": "0"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=True,
            timeout=GIT_TIMEOUT_S,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    lines = done.stdout.decode(errors="replace").splitlines()
    commit = next(
        (line.split()[-1] for line in lines if line.startswith("# branch.oid ")), "(initial)"
    )
    return {
        "commit": None if commit == "(initial)" else commit,
        "dirty": any(not line.startswith("#") for line in lines),
    }


def libraries() -> dict[str, str]:
    """Return versions of Holdfast and of the libraries that this process has imported."""
    found = {name: _version(name) for name in ("holdfast", *LIBRARIES) if name in sys.modules}
    return {name: version for name, version in found.items() if version is not None}


def redact(argv: Sequence[str]) -> list[str]:
    """Return `argv` without secrets: values with a telling name, URL user info, and well-known
    tokens.

    It removes doubtful words, too. It cannot recognise a secret without a telling name and in no
    known form.
    """
    hidden = _values_of_telling_options(argv)
    return [REDACTED if index in hidden else _redact_word(word) for index, word in enumerate(argv)]


def redact_mapping(mapping: Mapping[Any, Any]) -> dict[str, Any]:
    """Return `mapping` as JSON-like values,
    without secrets at any depth that its keys or the values reveal.
    """
    return _redact_items(mapping.items(), DEEPEST)


@functools.cache
def _version(name: str) -> str | None:
    """Return the module's own version attribute:
    importlib.metadata takes as long to import as all of Holdfast.
    """
    version = getattr(sys.modules[name], "__version__", None)
    return None if version is None else str(version)


def _work_directory() -> str:
    """Return the script's directory. For Holdfast's own command, which runs another program, return
    the working directory.
    """
    script = getattr(sys.modules.get("__main__"), "__file__", None) or ""
    folder = os.path.dirname(script)
    ours = os.path.basename(script) == "holdfast" or os.path.abspath(folder) == os.path.dirname(
        __file__
    )
    return "." if ours or not folder else folder


def _values_of_telling_options(argv: Sequence[str]) -> set[int]:
    hidden: set[int] = set()
    for index, word in enumerate(argv):
        if not re.fullmatch(r"-+[^=\s]+", word) or not _is_telling_name(word):
            continue
        hidden.add(index + 1)
        if word.endswith("s"):  # --tokens A B C
            hidden.update(
                takewhile(
                    lambda later: not argv[later].startswith("-"), range(index + 2, len(argv))
                )
            )
    return hidden


def _redact_word(word: str) -> str:
    name, equals, _ = word.partition("=")
    # not the beginning of JSON that contains an equals sign
    option = re.fullmatch(r"[\w.\-]+", name)
    return (
        f"{name}={REDACTED}" if equals and option and _is_telling_name(name) else _redact_text(word)
    )


def _redact_text(text: str) -> str:
    """Return `text` without known kinds of secrets. After a telling name the quoted string, or
    the rest, is removed.
    """
    pieces, at = [], 0
    for named in NAMED.finditer(text):
        if named.start() >= at and _is_telling_name(named[1]):
            quoted = QUOTED.match(text, named.end())
            pieces += [text[at : named.end()], REDACTED]
            at = quoted.end() if quoted else len(text)
    shown = "".join([*pieces, text[at:]])
    return re.sub(KNOWN_SECRETS, REDACTED, USER_INFO.sub(REDACTED, shown))


def _is_telling_name(name: str) -> bool:
    """Return whether a value of this name is likely a secret."""
    words = [word.lower() for word in WORDS.findall(name)]
    if re.search(TELLING_PARTS, "".join(words)):
        return True
    if any(word.endswith("tokens") for word in words) and not COUNTING_WORDS.intersection(words):
        return True
    return words == ["key"] or any(
        word in TELLING_WORDS or word.endswith("token") for word in words
    )


def _redact_items(items: Iterable[tuple[Any, Any]], depth: int) -> dict[str, Any]:
    redacted = {}
    for name, value in items:
        hide = _is_telling_name(_text(name)) and not isinstance(value, bool | None)
        redacted[_redact_text(_text(name))] = REDACTED if hide else _redact_value(value, depth)
    return redacted


def _redact_value(value: Any, depth: int = DEEPEST) -> Any:
    if isinstance(value, bool | None):
        return value
    if isinstance(value, int | float):
        # an IntEnum, a NumPy float: the plain number
        return int(value) if isinstance(value, int) else float(value)
    if depth > 0 and isinstance(value, Mapping):
        return _redact_items(value.items(), depth - 1)
    if depth > 0 and isinstance(value, list | tuple | set | frozenset):
        if all(isinstance(each, str) for each in value):
            return redact([*value])  # a command line, perhaps
        return [_redact_value(each, depth - 1) for each in value]
    if depth > 0 and hasattr(type(value), "__dataclass_fields__"):
        # takes a millisecond to import; this value's class has done so
        from dataclasses import fields

        return _redact_items(
            ((field.name, getattr(value, field.name)) for field in fields(value)), depth - 1
        )
    return _redact_text(value if isinstance(value, str) else _text(value))


def _text(value: object) -> str:
    """Return the text of a non-plain value;
    a mark when it has none, or when it is nested too deeply.
    """
    try:
        return str(value)[:LONGEST_TEXT]
    except Exception as error:  # of the object's own __str__, too
        return f"[a {type(value).__qualname__} without text: {type(error).__name__}]"
