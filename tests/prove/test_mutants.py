"""The tests of the store are tested: a law fails when one disk call of it or of its engine is removed or swapped.

Each proof runs `tests/mutants.py` or its parts in a new process, which has not imported Holdfast.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


def asked(*words: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False, cwd=TESTS, **options)


@pytest.mark.timeout(3600)  # ten minutes of CPU time on two cores
def test_a_law_fails_on_every_mutant(pytestconfig, tally):
    """Except on those that change nothing that anybody could notice; each is listed with the reason."""
    word = pytestconfig.getoption("sample") or ""  # a quarter of them is asked then
    done = asked("mutants.py", "--json", "--sample", word, timeout=3500)
    found = json.loads(done.stdout or "{}")
    print(done.stderr, found.get("counts"), found.get("by law"))
    assert found["wrong"] == []
    assert done.returncode == 0
    assert found["control"] == "survives"
    assert found["laws"] > 50
    counts = found["counts"]
    assert counts["caught"] > (25 if word else 120)
    changed = sum(counts.values()) - counts.get("survives", 0)  # those are listed: they change nothing
    tally("A disk call, a look or a fence is removed from the code or swapped", tried=changed)


def test_a_limit_of_time_proves_nothing():
    """When no law has the time to end, the code as it is gives no verdict, no mutant is asked, and the proof fails."""
    done = asked("mutants.py", "--json", "--limit", "0.01", "--only", "rename_new")
    found = json.loads(done.stdout)
    assert (done.returncode, found["mutants"]) == (1, [])
    assert "the laws do not hold on the code as it is" in found["wrong"][0]


PLANTED = """
import json, sys
from mutant_trials import SOURCE, Limits, Trial, verdicts

text = (SOURCE / "bulk.py").read_text()
unsynced = text.replace("        os.fsync(descriptor)\\n", "")
hangs = text.replace("    descriptor = os.open(path", "    while True: pass\\n    descriptor = os.open(path")
assert len({text, unsynced, hangs}) == 3
waits = hangs.replace("while True: pass", "__import__('threading').Event().wait()")
texts = {
    "unsynced": unsynced,
    "never ends": hangs,
    "waits for ever": waits,
    "cannot be imported": "import no_such_module",
    "does not parse": "def",
    "imports what is not there, late": hangs.replace("while True: pass", "import no_such_module"),
    "leaves": text + "\\nimport os; os._exit(0)",
    "leaves as if in order": text + "\\nraise SystemExit(0)",
    "crashes": hangs.replace("while True: pass", "os.kill(os.getpid(), 11)"),
    "its alarm rings": hangs.replace("while True: pass", "os.kill(os.getpid(), 14)"),
    "skips": hangs.replace("while True: pass", "__import__('pytest').skip()"),
    "starts a process": hangs.replace(
        "while True: pass", "__import__('subprocess').run([__import__('sys').executable])"
    ),
}
trials = [Trial(name, "bulk.py", lambda text=text: text) for name, text in texts.items()]
late = [Trial("no time", "bulk.py", lambda: unsynced)]
found = [*verdicts(trials, lambda law: Limits(3, 3 if law else 60)), *verdicts(late, lambda _: Limits(0, 0))]
json.dump({each.trial.name: [each.kind, each.law] for each in found}, sys.stdout)
"""


def test_an_end_without_a_word_is_no_verdict():
    """Only a law that failed has caught a mutant. A limit of time, an import, an exit, a signal and a skip have not."""
    done = asked("-c", PLANTED)
    assert done.returncode == 0, done.stderr
    found = {name: kind for name, (kind, _) in json.loads(done.stdout).items()}
    assert found.pop("unsynced") == "caught"
    assert (found.pop("never ends"), found.pop("waits for ever")) == ("hangs", "hangs")
    assert len(found) == 10
    assert set(found.values()) == {"no verdict"}


LISTED = """
import mutants
from mutant_trials import Trial, Verdict
made = mutants.mutants()
assert len(made) == len({each.name for each in made}) > 140
assert mutants._lists_that_lie(made) == []
assert set(mutants.ELSEWHERE) <= {path.name for path in mutants.SOURCE.iterdir()}
assert (mutants.SOURCE / mutants.ASKS_FOR_COLD_BYTES).exists()
mutants.MAY_HANG = {"hangs": "", **{str(number): "" for number in range(8)}}
mutants.EQUIVALENT = {"same": ""}
assert len(mutants._lists_that_lie(made)) == 11
kinds = ("caught", "survives", "hangs", "no verdict")
pairs = [(name, kind) for name in ("same", "hangs", "any") for kind in kinds]
right = {(name, kind) for name, kind in pairs if not mutants._wrong(Verdict(Trial(name), kind))}
assert right == {("same", "survives"), ("hangs", "caught"), ("hangs", "hangs"), ("any", "caught")}
print("held")
"""


def test_a_mutant_is_to_end_as_it_is_listed():
    """A listed one that is not made any more, or that ends otherwise, is wrong; at most eight may only hang."""
    done = asked("-c", LISTED)
    assert done.stdout == "held\n", done.stderr
