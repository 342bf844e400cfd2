"""Mutants made mechanically: every call of `disk` in the store, and every call in `bulk` that is a statement of its own,
removed, or swapped with its neighbour, one at a time.

`python tests/mutants.py check [file]` runs a quick choice of the laws on whatever `holdfast` it finds, and fails at the first
that does not hold. `python tests/mutants.py` makes the mutants and prints which of them survive that.
"""

import ast
import copy
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).parents[1] / "src" / "holdfast"
FILES = (
    "bulk.py",
    "store/attempt.py",
    "store/claiming.py",
    "store/committing.py",
    "store/files.py",
    "store/pins.py",
    "store/rank_share.py",
    "store/sharing.py",
    "store/store.py",
    "journal.py",
)
SLOWEST_S = 400


_OWN_ROOM = "it only orders or syncs what lies in the attempt's own room, which nobody counts on after a crash"

_ANOTHER_MACHINE = (
    "rank 0 syncs the same directory before it renames it; where ranks are on other machines than it, and only there, their "
    "own names may need a sync of theirs"
)

_ALONE = "both come before anything else looks at either, or after an error that ends the file all the same"

# Mutants that change nothing which anybody could ever notice, and why.
EQUIVALENT = {
    "fence: _discard_fenced(attempt) before disk.sync_dir(attempt.root / 'attempts')": _OWN_ROOM,
    "publish: without disk.sync_dir(attempt.room)": _OWN_ROOM,
    "sealed: without disk.sync_dir(partial)": _ANOTHER_MACHINE,
    "sealed: disk.sync_dir(partial) before disk.write(partial / name, [data])": _ANOTHER_MACHINE,
    "make_durable: files[(Path(place) / name).relative_to(path).as_posix()] = _entry(Path(place) / name) before disk.sync_file(Path(place) / name)": "the digest is of the same bytes before and after they are flushed",
    "publish: disk.sync_dir(attempt.room) before disk.sync_dir(target.parent)": "save has not returned before both",
    "write: writing.go_direct(THREADS) before _preallocate(descriptor, size, path)": _ALONE,
    "take: self.free.append(fresh) before self._all.append(fresh)": _ALONE,
    "go_direct: _set_direct(self._descriptor, wanted=True) before self._direct = True": _ALONE,
    "_hand_out: offset, self._end = (self._end, self._end + data.nbytes) before self._before_each()": _ALONE,
}


class Mutant(NamedTuple):
    name: str  # function: what was done to which call
    file: str
    text: Callable[[], str]


def is_change(node: ast.stmt, file: str) -> bool:
    """Whether the statement is nothing but a call that changes files; in the engine every call has a part in that."""
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Call):
        return False
    if file == "bulk.py":
        return True
    target = node.value.func
    return isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "disk"


def bodies(tree: ast.AST) -> Iterator[tuple[str, list[ast.stmt]]]:
    """Every list of statements, with the function that it belongs to."""

    def visit(node: ast.AST, place: str) -> Iterator[tuple[str, list[ast.stmt]]]:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            place = node.name
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if isinstance(block, list):
                yield place, block
        for child in ast.iter_child_nodes(node):
            yield from visit(child, place)

    yield from visit(tree, "module")


def changing() -> set[str]:
    """The store's modules in which a statement is nothing but a call that changes files."""
    texts = {path.relative_to(SOURCE).as_posix(): path.read_text() for path in (SOURCE / "store").glob("*.py")}
    return {
        file
        for file, text in texts.items()
        if any(is_change(node, file) for _, block in bodies(ast.parse(text)) for node in block)
    }


def mutants() -> list[Mutant]:
    found = []
    for file in FILES:
        tree = ast.parse((SOURCE / file).read_text())
        for number, (place, block) in enumerate(bodies(tree)):
            for index, node in enumerate(block):
                call = ast.unparse(node)
                if is_change(node, file):
                    found.append(
                        Mutant(f"{place}: without {call}", file, partial(_changed, tree, number, index, swap=False))
                    )
                pair = block[index : index + 2]
                if len(pair) == 2 and any(is_change(each, file) for each in pair) and _may_matter(*pair):
                    name = f"{place}: {ast.unparse(pair[1])} before {call}"
                    found.append(Mutant(name, file, partial(_changed, tree, number, index, swap=True)))
        for call, keyword in _syncs(tree):
            found.append(Mutant(f"{call}, never synced", file, partial(_unsynced, tree, keyword)))
    return found


def _may_matter(first: ast.stmt, second: ast.stmt) -> bool:
    """Whether the order of the two can matter: two calls, or a call and a value that speak of the same things."""
    if isinstance(first, ast.Expr) and isinstance(second, ast.Expr):
        return isinstance(first.value, ast.Call) and isinstance(second.value, ast.Call)
    both = all(isinstance(each, ast.Expr | ast.Assign) for each in (first, second))
    return both and bool(_names(first) & _names(second) - {"disk", "attempt", "Path"})


def _names(node: ast.stmt) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def _changed(tree: ast.Module, number: int, index: int, *, swap: bool) -> str:
    tree = copy.deepcopy(tree)
    block = [each for _, each in bodies(tree)][number]
    if swap:
        block[index], block[index + 1] = block[index + 1], block[index]
    else:
        block[index] = ast.Pass()
    return ast.unparse(tree)


def _syncs(tree: ast.Module) -> list[tuple[str, int]]:
    """Calls that pass `sync=` on, by their number among all keywords."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    keywords = [(call, keyword) for call in calls for keyword in call.keywords]
    sync = [(at, call) for at, (call, keyword) in enumerate(keywords) if keyword.arg == "sync" and _true(keyword.value)]
    return [(ast.unparse(call), at) for at, call in sync]


def _true(node: ast.expr) -> bool:
    return not isinstance(node, ast.Constant) or bool(node.value)


def _unsynced(tree: ast.Module, number: int) -> str:
    tree = copy.deepcopy(tree)
    keywords = [keyword for node in ast.walk(tree) if isinstance(node, ast.Call) for keyword in node.keywords]
    keywords[number].value = ast.Constant(value=False)
    return ast.unparse(tree)


def planted(mutant: Mutant | None, place: Path) -> Path:
    """A package like ours with one file changed; its front door is empty, so that it imports quickly."""
    package = place / "holdfast"
    package.mkdir(parents=True)
    alone = {file for file in FILES if "/" not in file}
    for path in SOURCE.iterdir():
        if path.name not in ("__init__.py", "__pycache__", "store", *alone):
            (package / path.name).symlink_to(path)
    (package / "__init__.py").write_text("")
    (package / "store").mkdir()
    for path in [*(SOURCE / file for file in alone), *(SOURCE / "store").glob("*.py")]:
        name = str(path.relative_to(SOURCE))
        (package / name).write_text(mutant.text() if mutant and mutant.file == name else path.read_text())
    return place


def caught(mutant: Mutant | None, place: Path) -> bool:
    """Whether a law failed on the mutant; one that never ends is caught by the test that waits for it."""
    planted(mutant, place)
    environment = {**os.environ, "PYTHONPATH": str(place), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, __file__, "check", *([mutant.file] if mutant else [])]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=SLOWEST_S, check=False, cwd=place
        )
    except subprocess.TimeoutExpired:
        return mutant is not None
    return "every law held" not in done.stdout


def survivors(place: Path) -> tuple[list[Mutant], list[Mutant]]:
    """All mutants, and those that the check did not catch."""
    made = [mutant for mutant in mutants() if mutant.name not in EQUIVALENT]
    with ThreadPoolExecutor(2) as pool:
        results = pool.map(lambda each: caught(each[1], place / str(each[0])), enumerate(made))
        return made, [mutant for mutant, result in zip(made, results, strict=True) if not result]


# -- the quick choice of laws ---------------------------------------------------------------------------------------


def check(file: str = "") -> None:
    """Ask the laws, those of the engine only if it may be that file which was changed."""
    sys.path.append(str(Path(__file__).with_name("fast")))
    import test_bulk
    import test_collective
    import test_collective_links
    import test_crash
    import test_every_byte
    import test_fence
    import test_store

    from faults import BROKEN, FULL, links, scratched

    test_fence.WAIT_S = 1
    with scratched("quick") as base, test_bulk.nothing_left():  # what is quick comes first: most mutants need no more
        signal.alarm(60)  # some mutants never end
        for number, law in enumerate(test_bulk.QUICK if file in ("", "bulk.py") else ()):
            (base / str(number)).mkdir()
            law(base / str(number))
        signal.alarm(0)
        test_store.test_what_an_own_failure_left_blocks_nothing(base / "own")
        test_store.test_a_directory_is_committed_whole_or_not_at_all(base / "directory")
        test_store.test_what_a_killed_pin_left_goes_with_the_next(base / "killed-pin")
        test_store.test_a_pin_at_the_moment_of_the_link_wins(base / "pin")
        test_store.test_a_file_that_is_not_the_one_that_was_read_back_is_read_again(base / "another")
        assert test_every_byte.flips(base, 110)[1] == []
    if file in ("", "store/rank_share.py", "store/sharing.py"):
        with links(), scratched("linked") as base:
            test_collective_links.test_a_file_that_was_linked_before_another_turns_out_damaged_is_written_too(base)
        test_collective.test_a_power_loss_anywhere_in_a_save_leaves_the_old_or_the_new()
    test_every_byte.test_what_is_left_of_a_checkpoint_does_not_block_its_step()
    test_fence.test_drafts_of_dead_claimers_are_swept_away()
    test_fence.test_two_who_begin_a_run_agree_on_its_id()
    with links():
        for tell in test_crash.STORIES:
            test_crash.enumerate_ends(tell)
    for nth in range(0, 120, 4):
        test_fence.wake_after(nth, nth // 4 % 4)
    for nth in range(0, 80, 2):
        test_fence.held_successor(nth)
    test_fence.test_of_two_successors_one_is_superseded()
    test_fence.test_who_gives_way_to_a_newer_attempt_leaves_no_room()
    for number, tell in enumerate(test_crash.STORIES):
        nth = 0
        with links():
            while test_crash.refused(tell, nth, (FULL, BROKEN)[number % 2]):
                nth += 1
    print("every law held")


if __name__ == "__main__":
    if sys.argv[1:2] == ["check"]:
        check(*sys.argv[2:])
    else:
        import tempfile

        with tempfile.TemporaryDirectory() as scratch:
            made, left = survivors(Path(scratch))
            print(f"{len(made)} mutants, {len(left)} survive")
            for mutant in left:
                print(f"{mutant.file}: {mutant.name}")
