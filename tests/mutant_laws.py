"""The laws that each mutant is asked, the quick ones first; each is found by its name, in whatever test module it lies.

`ask` tells `say` as it happens that a law begins, that it failed and how, or that all of them held.
"""

import ast
import functools
import importlib
import itertools
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

TESTS = Path(__file__).parent
PLACES = [TESTS, *(TESTS / folder for folder in ("fast", "slow", "prove"))]

# Longer than the parent waits for any law: a wait that ends without an answer is no failure of a law.
FOR_EVER_S = 10_000


class Law(NamedTuple):
    name: str
    ask: Callable[[Path], object]  # with a directory of its own
    of: tuple[str, ...] = ()  # the modules, by their file's name, of whose mutants it is asked; empty: of all
    waits: bool = False  # a thread of it waits for others: asked last, since what is gone may make it hang


class NotFound(Exception):
    """No test module, or more than one, defines that name."""


@functools.cache
def _defined() -> dict[str, set[str]]:
    """Each name that a test module or helper defines, and the modules that do."""
    found: dict[str, set[str]] = {}
    for path in itertools.chain.from_iterable(place.glob("*.py") for place in PLACES):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            targets = node.targets if isinstance(node, ast.Assign) else [node]
            for target in targets:
                name = getattr(target, "name", getattr(target, "id", None))
                if isinstance(name, str):
                    found.setdefault(name, set()).add(path.stem)
    return found


def _module_of(name: str) -> ModuleType:
    modules = sorted(_defined().get(name, ()))
    if len(modules) != 1:
        raise NotFound(f"{name} is defined in {modules or 'no module'} of the tests; the mutants' laws need it in one")
    return importlib.import_module(modules[0])


def named(name: str) -> Any:
    """What the one test module that defines `name` calls by it."""
    return getattr(_module_of(name), name)


def _plain(name: str, *given: Any, of: tuple[str, ...] = ()) -> Law:
    """A test that takes a directory, and these values."""
    return Law(f"{name}{list(given) or ''}", lambda place: named(name)(place, *given), of)


def _alone(name: str, of: tuple[str, ...] = ()) -> Law:
    """A test that takes nothing."""
    return Law(name, lambda _: named(name)(), of)


def _patching(name: str, *more: Any, of: tuple[str, ...] = ()) -> Law:
    """A test that takes a directory, pytest's `monkeypatch` and further values."""

    def ask(place: Path) -> None:
        import pytest

        with pytest.MonkeyPatch.context() as patch:
            named(name)(place, patch, *more)

    return Law(name, ask, of)


# -- the engine: `bulk` ---------------------------------------------------------------------------------------------


def _every_way(place: Path) -> None:
    """Images and scattered pieces, small and large, past the page cache and through it, inline and on threads."""
    import fcntl
    import os

    from faults import door, requests
    from holdfast import bulk
    from holdfast.pages import PAGE

    its = _module_of("nothing_left")
    ways = list(itertools.product(("at a page", "inside a page", "read-only"), (0, 3), (0, 1 << 30)))
    flags = []

    def noted(call, perform):
        if call.name == "write":
            flags.append(fcntl.fcntl(call.descriptor, fcntl.F_GETFL) & os.O_DIRECT)
        return perform()

    for number, (kind, threads, direct) in enumerate(ways):
        with requests(its.CHUNK, threads), door(noted):
            bulk.DIRECT_BYTES = direct
            sizes = (100, 3 * its.CHUNK, its.CHUNK - 100, 5, PAGE)
            pieces = [bulk.MemoryRun(its.laid(kind, its.bytes_of(size)), [size]) for size in sizes]
            alone = [
                its.laid(kind, its.bytes_of(size)) for size in (*sizes, PAGE)
            ]  # at the end a page and a bit are left
            its.written(place / str(number), [*its.one_image(kind=kind), *pieces, *alone])
        assert any(flags) == (direct == 0)
        flags.clear()


def _engine(law: Law) -> Law:
    """The law, and that it leaves no descriptor, thread or buffer behind."""

    def ask(place: Path) -> None:
        with named("nothing_left")():
            law.ask(place)

    return law._replace(ask=ask, of=("bulk.py",))


def _engine_laws() -> list[Law]:
    from faults import BROKEN, FULL

    return [
        _engine(law)
        for law in (
            Law("every way to write a file", _every_way),
            *(
                _plain("test_memory_that_is_still_being_filled_is_waited_for", *case)
                for case in _module_of("nothing_left").LATE
            ),
            _plain("test_a_request_is_asked_for_before_it_is_made"),
            _plain("test_whole_pages_go_past_the_cache_side_by_side_into_a_file_of_full_length")._replace(waits=True),
            _patching("test_the_cache_is_used_again_only_when_no_request_is_under_way")._replace(waits=True),
            _patching("test_the_descriptor_is_closed_when_no_thread_uses_it_any_more")._replace(waits=True),
            _plain("test_a_file_system_that_refuses_the_first_direct_request_gets_plain_ones", 3),
            _plain("test_a_request_that_was_done_in_part_goes_on_from_there", 3),
            _plain("test_an_error_at_any_request_is_raised", FULL, 0),
            _plain("test_an_error_at_any_request_is_raised", BROKEN, 3),
            _patching("test_a_system_that_gives_no_thread_gets_the_file_all_the_same"),
            _patching("test_a_file_of_any_length_takes_a_few_chunks_of_memory", 3),
        )
    ]


# -- the store ------------------------------------------------------------------------------------------------------


def _links() -> AbstractContextManager[None]:
    from faults import links

    return links()


def _flips(place: Path) -> None:
    tried, missed = named("flips")(place, 110)
    assert tried.total() == 110
    assert missed == []


def _ends(tell: Callable[..., Any]) -> Law:
    def ask(_: Path) -> None:
        with _links():
            counts = named("enumerate_ends")(tell)
        assert counts["killed"] == counts["the cord"] == counts["changes"] + 1 > 1

    return Law(f"a crash anywhere in {tell.__name__}", ask)


def _refusals(tell: Callable[..., Any], code: int) -> Law:
    def ask(_: Path) -> None:
        with _links():
            refused = next(nth for nth in itertools.count() if not named("refused")(tell, nth, code))
        assert refused > 1

    return Law(f"a refusal anywhere in {tell.__name__}", ask)


def _ghosts(phase: int) -> Law:
    def ask(_: Path) -> None:
        held = [named("wake_after")(nth, phase) for nth in range(4 * phase, 4 * phase + 112, 16)]
        assert sum(ghost is not None for ghost in held) >= 4

    return Law(f"a ghost that wakes when its successor {named('PHASES')[phase]}", ask)


def _successors(_: Path) -> None:
    held = [named("held_successor")(nth) for nth in range(0, 80, 2)]
    assert sum(call is not None for call in held) > 8


def _store_laws() -> list[Law]:
    from faults import BROKEN, FULL

    tales = list(enumerate(named("STORIES")))
    ranks = ("rank_share.py", "sharing.py")
    return [
        _plain("test_what_an_own_failure_left_blocks_nothing"),
        _plain("test_a_directory_is_committed_whole_or_not_at_all"),
        _plain("test_what_a_killed_pin_left_goes_with_the_next"),
        _patching("test_a_private_run_stays_private_in_every_process"),
        _plain("test_a_pin_at_the_moment_of_the_link_wins"),
        _plain("test_a_file_that_is_not_the_one_that_was_read_back_is_read_again"),
        _alone("test_what_is_left_of_a_checkpoint_does_not_block_its_step"),
        _alone("test_drafts_of_dead_claimers_are_swept_away"),
        Law("no flipped bit goes unnoticed", _flips),
        _linked("test_a_file_that_was_linked_before_another_turns_out_damaged_is_written_too", of=ranks),
        _alone("test_a_power_loss_anywhere_in_a_save_leaves_the_old_or_the_new", of=ranks),
        _alone("test_two_who_begin_a_run_agree_on_its_id"),
        *(_ends(tell) for _, tell in tales),
        *(_ghosts(phase) for phase in range(len(named("PHASES")))),
        Law("a successor held anywhere in its claim", _successors),
        _alone("test_of_two_successors_one_is_superseded"),
        _alone("test_who_gives_way_to_a_newer_attempt_leaves_no_room"),
        *(_refusals(tell, (FULL, BROKEN)[number % 2]) for number, tell in tales),
    ]


def _linked(name: str, of: tuple[str, ...]) -> Law:
    def ask(place: Path) -> None:
        with _links():
            named(name)(place)

    return Law(name, ask, of)


# -- asking ---------------------------------------------------------------------------------------------------------


def laws(file: str = "") -> list[Law]:
    """The laws for mutants of that file, or all."""
    every = [*_engine_laws(), *_store_laws()]
    assert len({law.name for law in every}) == len(every)
    for name in {name for law in every for name in law.of}:
        assert list((TESTS.parent / "src").rglob(name)), (
            f"there is no {name} any more: say of which module these laws are"
        )
    return [law for law in every if not file or not law.of or Path(file).name in law.of]


def prepared(file: str, place: Path, seconds: Mapping[str, float], longest_s: float) -> list[Law]:
    """The laws to ask, the quickest first by their known `seconds`, and none that takes longer."""
    _prepare(place)
    found = [law for law in laws(file) if seconds.get(law.name, 0.0) <= longest_s]
    return sorted(found, key=lambda law: (law.waits, seconds.get(law.name, 0.0)))


def ask(asked: list[Law], place: Path, say: Callable[..., None]) -> None:
    """Ask one law after another, and stop at the first that fails.

    An error that is no failure of a law leaves this function: what cannot be imported, a skip, an end of the process.
    """
    say("laws", names=[law.name for law in asked])
    for number, law in enumerate(asked):
        (place / str(number)).mkdir()
        say("begins", law=law.name)
        began = time.process_time()
        if (failure := _failure(law, place / str(number))) is not None:
            say("failed", law=law.name, how=failure)
            return
        say("held", law=law.name, cpu_s=round(time.process_time() - began, 3))
    say("every law held", number=len(asked))


def _failure(law: Law, place: Path) -> str | None:
    """How the law failed, in one line; None when it held."""
    import pytest

    try:
        law.ask(place)
    except (ImportError, SyntaxError, NotFound):
        raise
    except (Exception, pytest.fail.Exception) as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        text = " ".join(f"{type(error).__name__} {error}".split())[:160]
        return f"{Path(frame.filename).name}:{frame.lineno} {frame.line}: {text}"
    return None


def _prepare(place: Path) -> None:
    """Let the laws work in `place`, and wait for ever: only the parent ends a law that gives no answer."""
    sys.path[:0] = [str(each) for each in PLACES]
    import faults

    faults.scratch = lambda name: Path(tempfile.mkdtemp(prefix=f"{name}-", dir=place))
    for module in (importlib.import_module("rank_threads"), *map(_module_of, ("HeldWriter", "Turns", "nothing_left"))):
        assert hasattr(module, "WAIT_S"), f"{module.__name__} has no WAIT_S to lengthen"
        vars(module)["WAIT_S"] = FOR_EVER_S
