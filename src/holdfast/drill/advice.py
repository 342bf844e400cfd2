"""Advice: the line to write so that a resume restores a variable. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from ..run.visible import TRAINED
from .suspects import Suspect

AVERAGES = ("ema", "avg", "averag", "swa", "shadow", "teacher", "polyak")
_SHOWN = 8  # variables that are described one by one


_OF_DATA = ("generator", "attributes")  # these decide which batch comes next


def kind_of(suspect: Suspect, variables: Collection[str]) -> str:
    """Return the kind of a variable that was not restored, one of _LINES. `variables`: names in run.vars."""
    about = suspect.about
    if suspect.held:
        return "rebound"
    if about.kind == "generator":
        return "generator"
    if about.kind == "stateful":
        return _stateful(suspect)
    if about.owner:
        return "frozen parameters" if suspect.name.endswith(f".{TRAINED}") else "attributes"
    if suspect.name in variables:
        return "run.vars unused"
    return "container" if about.kind in ("container", "array") and not about.stored else "variable"


def _stateful(suspect: Suspect) -> str:
    if suspect.about.role in ("scheduler", "scaler", "optimizer"):
        return suspect.about.role
    words = f"{suspect.name} {suspect.about.type}".lower()
    averages = suspect.about.role == "module" or any(part in words for part in AVERAGES)
    return "EMA" if averages else "object"


def ranked(found: Iterable[Suspect], variables: Collection[str], *, data: bool, options: bool) -> list[Suspect]:
    """Return the suspects, the most likely first.

    If the data differs, that is what decides on it; if an optimizer's options differ, what sets them. A variable that
    had not changed yet at the resume comes last, unless other attributes of its object had.
    """
    kept = list(found)
    changed = {each.owner for each in kept if not each.unchanged_at_start} - {""}

    def rank(suspect: Suspect) -> tuple[bool, bool, bool, int]:
        name = kind_of(suspect, variables)
        sets_options = name == "scheduler" or "lr" in suspect.name.lower()
        later = suspect.unchanged_at_start and suspect.owner not in changed
        return later, data and name not in _OF_DATA, options and not sets_options, [*_LINES].index(name)

    owners = {each.owner for each in kept}
    whole = tuple(f"{each.name}." for each in kept if each.about.kind == "stateful")
    named = (each for each in kept if each.about.kind != "object" or each.name not in owners)
    return sorted((each for each in named if not each.name.startswith(whole)), key=rank)


def text(found: Sequence[Suspect], variables: Collection[str], state: Collection[str] = ()) -> str:
    """Return which variables were not restored, and the lines that restore them."""
    shown = ", ".join(_changed(each) for each in found[:_SHOWN])
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return f"the resume did not bring back {shown}{more}. {'; '.join(lines(found, variables, state))}"


def lines(found: Sequence[Suspect], variables: Collection[str], state: Collection[str] = ()) -> list[str]:
    """Return the lines to write, one for each way of keeping a variable, in the order of `found`.

    `variables`: names in run.vars; `state`: names of tracked objects, which are not passed twice.
    """
    groups: dict[Callable[[Sequence[Suspect], Collection[str]], str], list[Suspect]] = {}
    for suspect in found:
        groups.setdefault(_LINES[kind_of(suspect, variables)], []).append(suspect)
    return [line(each, state) for line, each in groups.items()]


def _changed(suspect: Suspect) -> str:
    if suspect.unchanged_at_start or not suspect.was.startswith("=") or (suspect.now or "=")[0] != "=":
        return suspect.name
    now = "nothing" if suspect.now is None else suspect.now.removeprefix("=")
    return f"{suspect.name} (it was {suspect.was.removeprefix('=')}, and began as {now})"


def _track(found: Sequence[Suspect], state: Collection[str]) -> str:
    words: dict[str, str] = {}
    fields: dict[str, list[str]] = {}
    for suspect in found:
        owner = _expression(suspect.owner)
        if suspect.about.kind not in ("generator", "stateful") and owner:
            fields.setdefault(owner, []).append(suspect.name.rpartition(".")[2])
        else:
            name = _expression(suspect.root if "[" in suspect.name else suspect.name)
            words[_free(_word(name), state)] = name
    taken = {*words, *state, *(each.about.owner_tracked for each in found)}
    for owner, names in fields.items():
        quoted = '", "'.join(names)
        words[_free(_word(owner), taken)] = f'Fields({owner}, "{quoted}")'
    kept = ", ".join(f"{word}={value}" for word, value in words.items())
    lacking = sorted({each.about.owner_tracked for each in found if each.about.owner_tracked})
    why = f" (what {', '.join(lacking)} saves of itself leaves them out)" if lacking else ""
    return f"Track it: Run(path, dict(..., {kept})){why}"


def _free(word: str, taken: Collection[str]) -> str:
    return f"{word}_more" if word in taken else word


def _expression(name: str) -> str:
    """Return the name as code. For a loader without a name in the script, this is the part after it."""
    if not name.startswith("loader '"):
        return name
    return name.rpartition("'")[2].lstrip(".").partition(".")[0] or "dataset"


def _word(expression: str) -> str:
    """Return a name under which to track it."""
    return "".join(letter if letter.isalnum() else "_" for letter in expression).strip("_")


def _rebound(found: Sequence[Suspect], _: Collection[str]) -> str:
    names = ", ".join(each.name for each in found)
    first = found[0].name
    return (
        f"{names} is tracked, and the loop gives the name to a new object, which the run does not hold. Keep it in "
        f"run.vars instead: Run(..., vars=dict({first}={first})), and run.vars.{first} wherever the loop says {first}; "
        "or write the new values into the tracked object"
    )


def _trained(found: Sequence[Suspect], _: Collection[str]) -> str:
    owner = found[0].owner
    return (
        f"Which parameters are trained is not saved. Set it from where the run is, in every epoch: for p in "
        f"{owner}.parameters(): p.requires_grad_(epoch >= N)"
    )


def _own_vars(found: Sequence[Suspect], _: Collection[str]) -> str:
    names = _in_vars(found)
    return f"{names} is kept, but the loop uses a variable of its own: write {names} wherever it says {found[0].name}"


def _vars(found: Sequence[Suspect], _: Collection[str]) -> str:
    first = ", ".join(f"{each.name}=..." for each in found)
    names = _in_vars(found)
    return (
        f"Keep what the loop changes in run.vars: Run(..., vars=dict({first})), and {names} wherever the loop says "
        f"{found[0].name}"
    )


def _in_vars(found: Sequence[Suspect]) -> str:
    return ", ".join(f"run.vars.{each.name}" for each in found)


_LINES = {  # the line for each kind of variable, the most likely kind first
    "scheduler": _track,
    "scaler": _track,
    "optimizer": _track,
    "EMA": _track,
    "generator": _track,
    "rebound": _rebound,
    "object": _track,
    "frozen parameters": _trained,
    "attributes": _track,
    "container": _track,
    "run.vars unused": _own_vars,
    "variable": _vars,
}
