"""Advice: the line to write so that a resume restores a variable. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from keyword import iskeyword
from typing import NamedTuple

from ..script.visible import TRAINED
from .report import Fix
from .suspects import Suspect, function_of

AVERAGES = ("ema", "avg", "averag", "swa", "shadow", "teacher", "polyak")
_MEMBER = re.compile(r"(?P<row>[^\[\]]+)(?P<index>\[\d+\])(?P<rest>[^\[\]]*)")
METERS = ("meter", "metric", "logger", "smoothed", "_time", "progress", "pbar")
_SHOWN = 6  # variables that are described one by one


class AdviceLine(NamedTuple):
    """What to write in the script: as text for people, and as fixes that a program can apply."""

    text: str
    fixes: tuple[Fix, ...] = ()


_OF_DATA = ("generator", "attributes")  # these decide which batch comes next


def kind_of(suspect: Suspect, variables: Collection[str]) -> str:
    """Return the kind of a variable that was not restored,
    one of _LINES. `variables`: names in run.vars.
    """
    about = suspect.about
    if suspect.held:
        return "rebound"
    if about.kind == "generator":
        return "generator"
    if about.kind == "stateful":
        return _stateful(suspect)
    if about.frozen:
        return "immutable"
    if about.owner and about.installed and "._" in suspect.owner:
        return "inside"
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


def is_meter(suspect: Suspect) -> bool:
    """Whether its names say that it averages or shows what others compute."""
    words = f"{suspect.name} {suspect.about.owner}".lower()
    return any(part in words for part in METERS)


def rank_suspects(
    found: Iterable[Suspect], variables: Collection[str], *, data: bool, options: bool
) -> list[Suspect]:
    """Return the suspects, the most likely cause first.

    If the data differs, variables that decide on the data come first; if an optimizer's options
    differ, those that set them. A variable that had not changed yet at the resume comes last,
    unless other attributes of its object had.
    """
    kept = list(found)
    changed = {each.owner for each in kept if not each.unchanged_at_start} - {""}

    def rank(suspect: Suspect) -> tuple[bool, bool, bool, bool, int]:
        name = kind_of(suspect, variables)
        sets_options = name == "scheduler" or "lr" in suspect.name.lower()
        later = suspect.unchanged_at_start and suspect.owner not in changed
        of_data, of_options = not data or name in _OF_DATA, not options or sets_options
        return later, not of_data, not of_options, is_meter(suspect), [*_LINES].index(name)

    owners = {each.owner for each in kept}
    whole = tuple(f"{each.name}." for each in kept if each.about.kind == "stateful")
    named = (each for each in kept if each.about.kind != "object" or each.name not in owners)
    return sorted((each for each in named if not each.name.startswith(whole)), key=rank)


def describe_suspects(found: Sequence[Suspect]) -> str:
    """Return which variables were not restored."""
    shown = ", ".join(_changed(each) for each in found[:_SHOWN])
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return f"the resume did not bring back {shown}{more}"


def advice_lines(
    found: Sequence[Suspect],
    variables: Collection[str],
    state: Collection[str] = (),
    entered: str | None = None,
) -> list[AdviceLine]:
    """Return the lines to write, one for each way of keeping a variable, in the order of `found`.

    `variables`: names in run.vars; `state`: names of tracked objects, which are not passed twice;
    `entered`: the function that enters the run, "" for the module, None if unknown.
    """
    groups: dict[Callable[[Sequence[Suspect], Collection[str]], AdviceLine], list[Suspect]] = {}
    for suspect in found:
        groups.setdefault(_LINES[kind_of(suspect, variables)], []).append(suspect)
    if len(groups) > 1:  # what a library caches is of the least use, and has no line that is typed
        groups.pop(_inside_line, None)
    return [_add_scope_hint(line(each, state), each, entered) for line, each in groups.items()]


def _add_scope_hint(line: AdviceLine, found: Sequence[Suspect], entered: str | None) -> AdviceLine:
    """Return the line, with advice about names that do not exist where the script makes its Run."""
    tracks = any(fix.kind in ("track", "fields") for fix in line.fixes)
    places = dict.fromkeys((function_of(each.path), each.root) for each in found)
    away = [(function, name) for function, name in places if function not in ("", entered)]
    if entered is None or not tracks or not away:
        return line
    where = f"{entered}()" if entered else "the module"
    said = "; ".join(
        f"self is the object of {function}(): write the name that it has there"
        if name == "self"
        else f"{name} is made in {function}(): make it before Run, and hand it to {function}()"
        for function, name in away
    )
    return line._replace(text=f"{line.text}. The run is entered in {where}, and {said}")


def _changed(suspect: Suspect) -> str:
    if (
        suspect.unchanged_at_start
        or not suspect.was.startswith("=")
        or (suspect.now or "=")[0] != "="
    ):
        return suspect.name
    now = "nothing" if suspect.now is None else suspect.now.removeprefix("=")
    return f"{suspect.name} (it was {suspect.was.removeprefix('=')}, and began as {now})"


def _track_line(found: Sequence[Suspect], state: Collection[str]) -> AdviceLine:
    whole: dict[str, Fix] = {}
    fields: dict[str, list[str]] = {}
    late = [each.name for each in found if each.now is None and each.about.owner]
    if len(late) == len(found):
        late = []  # there is no other line
    for suspect in found:
        if suspect.name in late:
            continue
        owner = _name_as_code(suspect.owner)
        row = _name_as_code(suspect.owner).rpartition("[")[0] if suspect.about.renewed else ""
        if "." in row:  # the list is kept, since its members are other objects by now
            holder, _, name = row.rpartition(".")
            fields.setdefault(holder, []).append(name)
        elif suspect.about.kind not in ("generator", "stateful") and owner and not row:
            fields.setdefault(owner, []).append(suspect.name.rpartition(".")[2])
        else:
            name = row or _name_as_code(suspect.name)
            while name.endswith("]"):  # the list has all members
                name = name.rpartition("[")[0]
            word = _free_word(_tracking_name(name), state)
            whole[word] = Fix("track", (name,), word=word)
    taken = {*whole, *state, *(each.about.owner_tracked for each in found)}
    fixes = [*whole.values()]
    for owner, names in fields.items():
        fixes.append(
            Fix(
                "fields",
                tuple(dict.fromkeys(names)),
                owner,
                _free_word(_tracking_name(owner), taken),
            )
        )
    lacking = sorted({each.about.owner_tracked for each in found if each.about.owner_tracked})
    why = f" (what {', '.join(lacking)} saves of itself leaves them out)" if lacking else ""
    if late:
        why += f". A start has no {', '.join(late)}: what needs it wants a first value before Run"
    return AdviceLine(
        f"Track it: Run(path, dict(..., {', '.join(_arguments(fixes))})){why}", tuple(fixes)
    )


def _arguments(fixes: Sequence[Fix]) -> list[str]:
    """Return the arguments of dict() that track them.
    What members of one list have alike shares one.
    """
    alike: dict[tuple[str, ...], list[Fix]] = {}
    for fix in fixes:
        row, index, rest = _split_member(fix)
        names = fix.names if fix.owner else ()
        alike.setdefault((row, rest, *names) if index else (fix.word,), []).append(fix)
    return [
        _members_argument(each) if len(each) > 1 else tracking_argument(each[0])
        for each in alike.values()
    ]


def _split_member(fix: Fix) -> tuple[str, str, str]:
    """Return the list, the index and the rest of the object's name:
    `envs`, `[0]`, `.env`; without a list no index.
    """
    name = fix.owner or fix.names[0]
    found = _MEMBER.fullmatch(name)
    return (name, "", "") if found is None else (found["row"], found["index"], found["rest"])


def _members_argument(fixes: Sequence[Fix]) -> str:
    row, _, rest = _split_member(fixes[0])
    quoted = '", "'.join(fixes[0].names)
    value = f'Fields(each{rest}, "{quoted}")' if fixes[0].owner else f"each{rest}"
    return f"{_tracking_name(row + rest)}_each=[{value} for each in {row}]"


def tracking_argument(fix: Fix) -> str:
    """Return the argument of dict() that tracks it: `ema=ema`, `env=Fields(env, "state")`."""
    if fix.kind == "track":
        return f"{fix.word}={fix.names[0]}"
    quoted = '", "'.join(fix.names)
    return f'{fix.word}=Fields({fix.owner}, "{quoted}")'


def _free_word(word: str, taken: Collection[str]) -> str:
    return f"{word}_more" if word in taken else word


def _name_as_code(name: str) -> str:
    """Return the name as code. For a loader without a name in the script,
    this is the part after it.
    """
    if not name.startswith("loader '"):
        return name
    return name.rpartition("'")[2].lstrip(".").partition(".")[0] or "dataset"


def _tracking_name(expression: str) -> str:
    """Return a name under which to track it."""
    word = "".join(letter if letter.isalnum() else "_" for letter in expression).strip("_")
    return word if word.isidentifier() and not iskeyword(word) else f"_{word}"


def _rebound_line(found: Sequence[Suspect], _: Collection[str]) -> AdviceLine:
    names = ", ".join(each.name for each in found)
    first = found[0].name
    return AdviceLine(
        f"{names} is tracked, and the loop gives the name to a new object, "
        "which the run does not hold. Keep it in "
        f"run.vars instead: Run(..., vars=dict({first}={first})), "
        f"and run.vars.{first} wherever the loop says {first}; "
        "or write the new values into the tracked object",
        _kept(found),
    )


def _trained_line(found: Sequence[Suspect], _: Collection[str]) -> AdviceLine:
    owner = found[0].owner
    return AdviceLine(
        "Which parameters are trained is not saved. "
        "Set it from where the run is, in every epoch: for p in "
        f"{owner}.parameters(): p.requires_grad_(epoch >= N)"
    )


def _inside_line(found: Sequence[Suspect], _: Collection[str]) -> AdviceLine:
    holders = ", ".join(dict.fromkeys(each.owner.partition("._")[0] for each in found))
    return AdviceLine(
        f"{holders} keeps that inside, where no line of yours can put it back. "
        "Keep in run.vars what it is made from, "
        "and make it anew from that in each pass, "
        "as docs/questions.md does for a study and a booster"
    )


def _immutable_line(found: Sequence[Suspect], _: Collection[str]) -> AdviceLine:
    root = found[0].root
    return AdviceLine(
        f"{root} cannot be changed in place, and the loop's name "
        "for it begins anew. Read it from what is tracked in "
        f"each pass: {root} = tree.value, of a holdfast.jax.Tree; or keep it as run.vars.{root}",
        tuple(
            Fix("vars", (each,))
            for each in dict.fromkeys(each.root for each in found)
            if each.isidentifier()
        ),
    )


def _own_vars_line(found: Sequence[Suspect], _: Collection[str]) -> AdviceLine:
    names = _vars_code(found)
    return AdviceLine(
        f"{names} is kept, but the loop uses a variable of its own: "
        f"write {names} wherever it says {found[0].name}",
        _kept(found),
    )


def _vars_line(found: Sequence[Suspect], _: Collection[str]) -> AdviceLine:
    first = ", ".join(f"{each.name}=..." for each in found)
    names = _vars_code(found)
    return AdviceLine(
        "Keep what the loop changes in run.vars: Run(..., "
        f"vars=dict({first})), and {names} wherever the loop says "
        f"{found[0].name}",
        _kept(found),
    )


def _kept(found: Sequence[Suspect]) -> tuple[Fix, ...]:
    """`word`: an array's name,
    which can be tracked as it is if the loop changes it in place only.
    """
    return tuple(
        Fix(
            "vars",
            (each.name,),
            function_of(each.path),
            each.name if each.about.kind == "array" else "",
        )
        for each in found
        if each.name.isidentifier()
    )


def _vars_code(found: Sequence[Suspect]) -> str:
    return ", ".join(f"run.vars.{each.name}" for each in found)


_LINES = {  # the line for each kind of variable, the most likely kind first
    "scheduler": _track_line,
    "scaler": _track_line,
    "optimizer": _track_line,
    "EMA": _track_line,
    "generator": _track_line,
    "rebound": _rebound_line,
    "object": _track_line,
    "frozen parameters": _trained_line,
    "attributes": _track_line,
    "immutable": _immutable_line,
    "container": _track_line,
    "run.vars unused": _own_vars_line,
    "variable": _vars_line,
    "inside": _inside_line,
}
