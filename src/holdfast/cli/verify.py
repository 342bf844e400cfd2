"""`holdfast verify`:
read every byte of every checkpoint and compare it with its committed digest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import click

from .. import scan
from ..errors import Damaged, NotFound, StoreError, Unreadable, Untrusted
from ..foreign.checkpoint import ForeignFolder
from ..legible import size
from ..store.checkpoint import Checkpoint, Problem
from ..store.format import MANIFEST
from ..store.locate import Location
from ..store.problems import whole_file_problem
from ..store.signing import Key, public_key
from . import options, system_error_text
from .formatting import print_report, showing_progress
from .mirrored import facts_of, lines_of, read_places
from .sources import LocalSource, Tell, open_source

_WORST_FIRST = (Damaged.exit_code, Unreadable.exit_code, StoreError.exit_code)


@click.command()
@options.run_at
@options.step
@click.option(
    "--cold",
    is_flag=True,
    help="Read from the medium where the system allows, not from the page cache.",
)
@click.option(
    "--key", metavar="PUB", help="Each must be signed by the key whose public half is in this file."
)
@options.as_json
def command(run: str, step: int | str | None, cold: bool, key: str | None, as_json: bool) -> int:
    """Read every byte of RUN's checkpoints, or of one (--step). Exit 4 if any is damaged, with file
    and byte range. Exit 12 if none is, and a file could not be read. With --key, exit 4 too if
    another key or none has signed one.

    Of a run with mirrors it also says which checkpoints each place holds. Of a place it reads the
    copies.
    """
    wanted = None if key is None else public_key(key)
    with showing_progress() as tell, open_source(run, tell, foreign=True) as here:
        results = _verify_all(here, step, tell, wanted, cold=cold)
        if not results:
            raise NotFound(f"{here.shown}: no committed checkpoint")
        places = read_places(here, tell)
        tell("")
        told = [each.facts for each in results]
        facts = {"run": here.shown, "checkpoints": told, "places": [*map(facts_of, places)]}
        print_report(facts, [*_lines(told), *lines_of(places)], as_json=as_json)
    codes = {each.exit_code for each in results}
    return next((code for code in _WORST_FIRST if code in codes), 0)


def _verify_all(
    here: LocalSource, step: int | str | None, tell: Tell, key: Key | None, *, cold: bool
) -> list[VerifyResult]:
    place, results = here.locate(), []
    for _ in range(5):  # a run that saves and prunes meanwhile may remove all that was listed
        chosen = (
            [*place.checkpoints(), *here.unused_copies()]
            if step is None
            else [_one_checkpoint(place, step)]
        )
        for number, checkpoint in enumerate(chosen, 1):
            tell(f"verifying {number} of {len(chosen)}: {checkpoint.path.name}")
            result = verify_checkpoint(checkpoint.signed_by(key), here.problems, cold=cold)
            if result is not None:
                results.append(result)
        if results or not chosen:
            break
    return results


def _one_checkpoint(place: Location, step: int | str) -> Checkpoint:
    """Return one checkpoint, even if its manifest is damaged: the user asks for exactly that."""
    found = (
        {}
        if place.single or isinstance(place, ForeignFolder)
        else {checkpoint.path.name: checkpoint for checkpoint in place.checkpoints()}
    )
    named = [
        checkpoint for name, checkpoint in found.items() if step in (name, int(name.split("-")[1]))
    ]
    return named[-1] if named else place.select(step)


class VerifyResult(NamedTuple):
    """The result for one checkpoint."""

    facts: dict[str, Any]
    exit_code: int


def verify_checkpoint(
    checkpoint: Checkpoint,
    find: Callable[..., Iterable[Problem]] = Checkpoint.problems,
    *,
    cold: bool,
) -> VerifyResult | None:
    """Return the problems that `find` finds; None if the checkpoint was removed meanwhile, as a
    running run may do.
    """
    problems: list[Problem] = []
    unreadable, exit_code = None, 0
    try:
        problems = [*find(checkpoint, cold=cold)]
        if not problems:
            _ = checkpoint.head  # of copies at a place `find` reads all but the signature
    except (NotFound, FileNotFoundError):
        if not scan.exists(checkpoint.path / MANIFEST):
            return None
        raise
    except Untrusted as error:
        problems.append(whole_file_problem(checkpoint.path / MANIFEST, error))
    except Damaged as error:
        problems.append(Problem(checkpoint.path, 0, 0, str(error)))
    except StoreError as error:
        unreadable, exit_code = str(error), error.exit_code
    except OSError as error:
        unreadable, exit_code = system_error_text(error), Unreadable.exit_code
    size_bytes = (
        None
        if unreadable or any(each.path.name == MANIFEST for each in problems)
        else checkpoint.size_bytes
    )
    told = [
        {"file": str(each.path), "start": each.start, "end": each.end, "what": each.what}
        for each in problems
    ]
    result = {
        "name": checkpoint.path.name,
        "size_bytes": size_bytes,
        "problems": told,
        "unreadable": unreadable,
    }
    signed = None if checkpoint.key is None or told or unreadable else checkpoint.key.fingerprint
    names = None if told or unreadable or signed else checkpoint.head.signer
    known = {"assurance": None if told or unreadable else checkpoint.assurance, "signed": signed}
    facts = (
        result
        | known
        | {"untrusted": bool(told) and _is_untrusted(checkpoint), "unchecked_key": names}
    )
    return VerifyResult(facts, Damaged.exit_code if told else exit_code)


def _is_untrusted(checkpoint: Checkpoint) -> bool:
    """Whether the required key has not signed it."""
    try:
        _ = checkpoint.head
    except Untrusted:
        return True
    except (StoreError, OSError):
        return False
    return False


def _lines(results: list[dict[str, Any]]) -> Iterator[str]:
    for each in results:
        if each["unreadable"]:
            yield f"{each['name']}  unreadable: {each['unreadable']}"
        elif each["problems"]:
            yield f"{each['name']}  {'NOT TRUSTED' if each['untrusted'] else 'DAMAGED'}"
            for problem in each["problems"]:
                yield "  {file}: bytes {start}..{end}: {what}".format(**problem)
        else:
            signed = f"  signed by {each['signed']}" if each["signed"] else ""
            yield f"{each['name']}  {each['assurance']}  {size(each['size_bytes'])}{signed}"
    for key in sorted({each["unchecked_key"] for each in results} - {None}):
        yield f"key {key} is said to have signed; that was not checked: --key PUB checks it"
