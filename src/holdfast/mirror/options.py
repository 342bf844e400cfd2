"""Mirror options: which places a run is mirrored to, with their rules, and how long a run waits
for them at its end.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import msgspec

from ..errors import UsageError
from ..rules import Rule

Place = str | os.PathLike[str]
Mirror = Place | Iterable[Place] | Mapping[Place, Rule] | None

DRAIN_S = 60.0  # by default, how long the end of a run waits for its last copies
WITHOUT = "HOLDFAST_WITHOUT"  # as `without`, names separated by commas


class MirrorOption(msgspec.Struct, frozen=True):
    """One place, as the caller named it."""

    url: str  # with its secrets
    shown: str  # without
    rule: Rule | None  # which copies stay; None: the run's rule
    without: bool  # the run begins even if the place does not answer


class MirrorOptions(msgspec.Struct, frozen=True):
    """The mirrors of a run, in the order in which checkpoints are fetched from them."""

    places: tuple[MirrorOption, ...]
    drain_s: float

    def __str__(self) -> str:
        """Text that must be equal on every rank, without secrets."""
        each = (f"{place.shown} {place.rule}{' without' * place.without}" for place in self.places)
        return f"{'; '.join(each)}; drain {self.drain_s:g} s"


def parse_mirror_options(
    mirror: Mirror, without: Place | Collection[Place], drain: float, path: Path
) -> MirrorOptions | None:
    """Parse the arguments `Run(mirror=, without=, drain=)`; None: no mirrors.

    Raises:
        UsageError: a rule is invalid; a place is named twice or is the run's own directory;
            `without` names an unknown place.
    """
    _require_seconds(drain)
    left_out = [without] if isinstance(without, str | os.PathLike) else [*without]
    rules = _rules_by_place(mirror)
    if not rules:
        if left_out:
            raise UsageError(f"without={_place_text(left_out[0])}: this run has no mirror=")
        return None
    from .place import redact_url

    names = {_place_text(url): redact_url(_place_text(url)) for url in rules}
    absent = _optional_places(left_out, names)
    found = tuple(
        MirrorOption(
            _place_text(url), names[_place_text(url)], rule, names[_place_text(url)] in absent
        )
        for url, rule in rules.items()
    )
    _require_distinct_places(found, path)
    return MirrorOptions(found, float(drain))


def prefix_with_place(place: str, what: str) -> str:
    """Return `what` with the place's name before it, unless it begins with that."""
    return what if what.startswith(place) else f"{place}: {what}"


def _require_seconds(drain: float) -> None:
    is_number = type(drain) in (int, float)
    if not is_number or not 0 <= drain < float("inf"):
        raise UsageError(f"drain={drain!r}: give a number of seconds from 0")


def _rules_by_place(mirror: Mirror) -> dict[Place, Rule | None]:
    if mirror is None:
        return {}
    if isinstance(mirror, str | os.PathLike):
        return {mirror: None}
    if not isinstance(mirror, Mapping):
        if not isinstance(mirror, Iterable):
            raise UsageError(f"mirror: {mirror!r} is no URL and no folder, nor several of them")
        listed = [*mirror]
        if len({*map(_place_text, listed)}) < len(listed):
            raise UsageError("mirror: a place is named twice")
        return dict.fromkeys(listed)
    for url, rule in mirror.items():
        if not isinstance(rule, Rule):
            raise UsageError(
                f"mirror: {_display_name(url)} wants a rule, as in Last(2), not {rule!r}"
            )
    return dict(mirror)


def _optional_places(left_out: Iterable[Place], names: Mapping[str, str]) -> set[str]:
    """The shown names of the places that need not answer.
    The environment may speak of other runs' places, too.
    """
    of_environment = [
        each.strip() for each in os.environ.get(WITHOUT, "").split(",") if each.strip()
    ]
    known = {*names.values()}
    for place in left_out:
        if _display_name(place) not in known:
            raise UsageError(
                f"without={_display_name(place)}: the run's mirrors are {', '.join(sorted(known))}"
            )
    return {_display_name(place) for place in [*left_out, *of_environment]} & known


def _require_distinct_places(found: Collection[MirrorOption], path: Path) -> None:
    if len({place.shown for place in found}) < len(found):
        raise UsageError(
            f"mirror: a place is named twice: {', '.join(place.shown for place in found)}"
        )
    own = path.resolve()
    for place in found:
        if not place.shown.startswith("/"):
            continue
        there = Path(place.shown).resolve()
        if there == own or own in there.parents or there in own.parents:
            raise UsageError(
                f"mirror: {place.shown} and the run's directory "
                f"{path} lie in each other; take another"
            )


def _display_name(place: Place) -> str:
    from .place import redact_url

    return redact_url(_place_text(place))


def _place_text(place: Place) -> str:
    text = os.fspath(place)
    if not isinstance(text, str) or not text:
        raise UsageError(f"mirror: {place!r} is no URL and no folder")
    return text
