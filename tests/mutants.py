"""Mutants made mechanically: every call of `disk` in the store, and every call in `bulk` that is a statement of its
own, removed, or swapped with its neighbour, one at a time. Each must make a law fail.

`python tests/mutants.py` asks a quick choice of the laws of all of them (`--json`: prints what came of each as JSON).
A mutant is caught when a law has failed on it and said so. An end without such a word (a limit of time, an import
that fails, a crash) is no verdict, and fails the proof; so does code as it is on which not every law holds.
"""

import argparse
import ast
import copy
import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from mutant_trials import SOURCE, Limits, Trial, Verdict, verdicts

# Rooms whose calls of `disk` are not mutated: the laws of the store say nothing of them, and tests of their own do.
ELSEWHERE = (
    "apps",
    "board",
    "catboost",
    "cli",
    "cluster",
    "compat",
    "data",
    "doctor",
    "drill",
    "keras",
    "lightning",
    "mirror",
    "pytest_plugin.py",
    "run",
    "script",
    "supervise",
    "track",
    "trainers",
    "ultralytics",
)
ASKS_FOR_COLD_BYTES = "store/source.py"  # its one call drops pages from the cache, and changes no file

_OWN_ROOM = "it only orders or syncs what lies in the attempt's own room, which nobody counts on after a crash"

_ANOTHER_MACHINE = (
    "rank 0 syncs the same directory before it renames it; only where ranks are on other machines, their own names may "
    "need a sync of theirs"
)

_ALONE = "both come before anything else looks at either, or after an error that ends the file all the same"

# Mutants that change nothing that anybody could ever notice, and why.
EQUIVALENT = {
    "fence_attempt: _discard_fenced(attempt) before disk.sync_dir(attempt.root / 'attempts')": _OWN_ROOM,
    "publish: without disk.sync_dir(attempt.room)": _OWN_ROOM,
    "seal_part: without disk.sync_dir(partial)": _ANOTHER_MACHINE,
    "seal_part: disk.sync_dir(partial) before disk.write(partial / name, [data])": _ANOTHER_MACHINE,
    "make_durable: files[(Path(place) / name).relative_to(path).as_posix()] = _file_entry(Path(place) / name, kind)"
    " before disk.sync_file(Path(place) / name)": "the digest is of the same bytes before and after they are flushed",
    "publish: disk.sync_dir(attempt.room) before disk.sync_dir(target.parent)": "save has not returned before both",
    "write: writing.start_direct_writes(THREADS) before _preallocate(descriptor, size, path)": _ALONE,
    "start_direct_writes: _set_direct(self._descriptor, wanted=True) before self._direct = True": _ALONE,
    "_submit_write: offset, self._end = (self._end, self._end + data.nbytes) before self._before_each()": _ALONE,
}


# Mutants of which a law that does not end may tell, and why; at most eight. One that fails first tells as well.
_NO_CHUNK = "a chunk never comes back, and the thread that fills files waits for one in a loop: the file is never wrong"

MAY_HANG = {
    "_next_chunk: without self._unused.append(chunk[:CHUNK_BYTES])": _NO_CHUNK,
    "_next_chunk: without self._await_writes()": _NO_CHUNK,
    "_await_writes: without self._free(chunk)": _NO_CHUNK,
    "_free: without self._unused.extend([chunk] if chunk else [])": _NO_CHUNK,
    "_submit_write: without self._free(self._write_and_return(data, offset, ours=ours))": _NO_CHUNK,
    "_next_chunk: without self._submit_write(self._chunk, ours=True)": "the chunk is lost: the next never comes back",
    "_submit_write: without self._await_writes()": "no request is taken off the list of those under way: the loop that"
    " waits for a place in it never ends",
}
MOST_HANGS = 8
QUICK_S = 1.0  # an equivalent mutant is asked only the laws that take no longer: every other one would hold as well


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


def changing() -> list[str]:
    """The modules of every room but those elsewhere in which a statement is nothing but a call that changes files."""
    texts = {path.relative_to(SOURCE).as_posix(): path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py")}
    return sorted(
        file
        for file, text in texts.items()
        if file.split("/")[0] not in ELSEWHERE
        and file != ASKS_FOR_COLD_BYTES
        and any(is_change(node, file) for _, block in bodies(ast.parse(text)) for node in block)
    )


def mutants() -> list[Trial]:
    """All of them; no two have the same name."""
    found = []
    for file in changing():
        tree = ast.parse((SOURCE / file).read_text(encoding="utf-8"))
        for number, (place, block) in enumerate(bodies(tree)):
            for index, node in enumerate(block):
                call = ast.unparse(node)
                if is_change(node, file):
                    text = partial(_changed, tree, number, index, swap=False)
                    found.append(Trial(f"{place}: without {call}", file, text))
                pair = block[index : index + 2]
                if len(pair) == 2 and any(is_change(each, file) for each in pair) and _may_matter(*pair):
                    name = f"{place}: {ast.unparse(pair[1])} before {call}"
                    found.append(Trial(name, file, partial(_changed, tree, number, index, swap=True)))
        for call, keyword in _syncs(tree):
            found.append(Trial(f"{call}, never synced", file, partial(_unsynced, tree, keyword)))
    return _told_apart(found)


def _told_apart(found: list[Trial]) -> list[Trial]:
    """Of several calls that read alike, the second and later ones are numbered."""
    seen: Counter[str] = Counter()
    named = []
    for each in found:
        seen[each.name] += 1
        named.append(each._replace(name=f"{each.name} ({seen[each.name]})") if seen[each.name] > 1 else each)
    return named


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


# -- the proof ------------------------------------------------------------------------------------------------------

AS_IT_IS = Trial("the code as it is")


class Proof(NamedTuple):
    """What came of the code as it is, and of each mutant; `wrong` says what the proof fails of."""

    control: Verdict
    mutants: list[Verdict]
    wrong: list[str]


def prove(made: list[Trial], fixed: Limits | None, jobs: int, tell: Callable[[Verdict], None]) -> Proof:
    """Ask the laws of the code as it is and, if they all hold, of each mutant.

    `fixed` limits each law; by default a law gets ten times what it took on the code as it is, and five seconds.
    """
    (control,) = verdicts([AS_IT_IS], lambda _: fixed or Limits(600, 60))
    tell(control)
    if control.kind != "survives":
        return Proof(
            control, [], [f"the laws do not hold on the code as it is: {control.kind}, {control.law} {control.how}"]
        )

    def limits(law: str) -> Limits:
        cpu_s = 5 + 10 * control.held.get(law, 1.0)
        return fixed or Limits(cpu_s)

    found, same = [], [each._replace(longest_s=QUICK_S) if each.name in EQUIVALENT else each for each in made]
    for verdict in verdicts(same, limits, jobs, control.held):
        tell(verdict)
        found.append(verdict)
    return Proof(control, found, [*_lists_that_lie(made), *filter(None, map(_wrong, found))])


def _wrong(verdict: Verdict) -> str:
    """What a mutant should have come to and did not; empty when all is well."""
    name = verdict.trial.name
    wanted = ["survives"] if name in EQUIVALENT else ["caught", "hangs"] if name in MAY_HANG else ["caught"]
    told = f"{verdict.kind}, {verdict.law} {verdict.how}".rstrip()
    return "" if verdict.kind in wanted else f"{verdict.trial.file} {name}: is to be {wanted[0]}, and was: {told}"


def _lists_that_lie(made: list[Trial]) -> list[str]:
    """A reason goes with its mutant, and few mutants are only seen by what does not end."""
    gone = (set(EQUIVALENT) | set(MAY_HANG)) - {each.name for each in mutants()}
    wrong = [f"listed, and not made any more: {name}" for name in sorted(gone)]
    if len(MAY_HANG) > MOST_HANGS:
        wrong.append(f"{len(MAY_HANG)} mutants are listed as hanging, and {MOST_HANGS} are allowed")
    return wrong if made else [*wrong, "no mutant was made"]


def _row(verdict: Verdict) -> str:
    return f"{verdict.cpu_s:7.1f} s  {verdict.kind:10}  {verdict.trial.file} {verdict.trial.name}  <-  {verdict.law}"


def report(proof: Proof) -> dict[str, object]:
    rows = [
        {"file": each.trial.file, "mutant": each.trial.name, "verdict": each.kind, "law": each.law, "how": each.how}
        for each in proof.mutants
    ]
    kinds = Counter(each.kind for each in proof.mutants)
    return {
        "laws": len(proof.control.held),
        "control": proof.control.kind,
        "counts": dict(kinds),
        "by law": dict(Counter(each.law for each in proof.mutants if each.kind == "caught").most_common()),
        "cpu_s": round(proof.control.cpu_s + sum(each.cpu_s for each in proof.mutants), 1),
        "wrong": proof.wrong,
        "mutants": rows,
        "seconds by law": dict(proof.control.held),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print what came of each mutant as JSON")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--limit", type=float, help="seconds for each law, on the code as it is too")
    parser.add_argument("--only", default="", help="only mutants whose file and name hold this text")
    parser.add_argument("--sample", default="", help="only a quarter of the mutants, drawn by this word")
    given = parser.parse_args()
    made = [each for each in mutants() if given.only in f"{each.file} {each.name}"]
    if given.sample:
        made = random.Random(given.sample).sample(made, len(made) // 4)
    fixed = None if given.limit is None else Limits(given.limit, given.limit)
    proof = prove(made, fixed, given.jobs, lambda verdict: print(_row(verdict), file=sys.stderr, flush=True))
    found = report(proof)
    if given.json:
        print(json.dumps(found, indent=1))
    else:
        print(*(f"WRONG: {line}" for line in proof.wrong), sep="\n", end="\n" if proof.wrong else "")
        print(
            f"{len(proof.mutants)} mutants, {found['laws']} laws, {found['counts']}, {found['cpu_s']} CPU s,", end=" "
        )
        print("every one as it should be" if not proof.wrong else f"{len(proof.wrong)} wrong")
    return 1 if proof.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
