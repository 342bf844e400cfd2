"""Scores lint against the labelled corpus: `python tests/lint_corpus.py [--held-out]` prints precision and recall.

tests/corpus/lint/README.md says how a finding is counted.
"""

import json
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from holdfast.lint import lint_script

CORPUS = Path(__file__).parent / "corpus" / "lint"
# rule -> the words of the corpus that name its fault
WORDS = {
    "append-missing": ["no-append"],
    "array-shares-output": ["shared-output"],
    "array-shares-run": ["shared-run"],
    "chain-goes-on": ["requeue-after-success"],
    "directive-in-comment": ["commented-directive"],
    "directive-too-late": ["late-directive"],
    "exit-before-saved": ["trap-not-forwarded", "wait-once"],
    "holdfast-not-exec": ["holdfast-no-exec"],
    "lead-beyond-limit": ["time-too-short"],
    "lead-too-short": ["notice-too-short"],
    "log-folder-missing": ["output-dir"],
    "nobody-waits": ["no-wait"],
    "notice-in-set-up": ["signal-to-shell"],
    "notice-to-no-step": ["signal-no-step"],
    "notice-unheard": ["signal-to-shell"],
    "requeue-always": ["requeue-after-success", "requeue-loop"],
    "requeue-missing": ["no-requeue"],
    "script-refused": ["refused"],
    "stops-too-late": ["timeout"],
    "endless-loop": ["requeue-loop"],
    "trap-tells-nobody": ["trap-not-forwarded"],
    "strict-set-up": ["strict-setup"],
    "signal-twice": ["two-signals"],
    "trap-before-exec": ["trap-lost-by-exec"],
    "trap-hidden": ["trap-too-late"],
    "variable-in-directive": ["output-variable", "refused"],
    "whole-array-requeued": ["requeue-whole-array"],
    "holdfast-piped": ["holdfast-pipe"],
    "time-below-save": ["time-too-short"],
    "time-misread": ["time-format"],
}


class Score(NamedTuple):
    """What was found of what there is."""

    right: int
    wrong: list[str]
    found: int
    missed: list[str]

    @property
    def precision(self) -> float:
        return self.right / max(1, self.right + len(self.wrong))

    @property
    def recall(self) -> float:
        return self.found / max(1, self.found + len(self.missed))


def score(directory: Path, *, held_out: bool) -> Score:
    """Compare lint's findings with the labels of one half."""
    right, found = 0, 0
    wrong, missed = [], []
    for name, entry in sorted(json.loads((directory / "labels.json").read_text()).items()):
        if entry["held_out"] == held_out:
            findings = lint_script((directory / name).read_bytes().decode())
            words = [{each["fault"], *each.get("also", ())} for each in entry["labels"]]
            doubtful = [bool(each.get("doubtful")) for each in entry["labels"]]
            hit = set()
            for each in findings:
                said = {each.rule, *WORDS.get(each.rule, ())}
                places = [place for place, names in enumerate(words) if names & said]
                fresh = [place for place in places if not doubtful[place] and place not in hit]
                right += bool(fresh)
                hit |= set(places)
                if not places:
                    wrong.append(f"{name}:{each.line}: {each.rule}: {each.what}")
            sure = [place for place, unsure in enumerate(doubtful) if not unsure]
            found += len(hit & set(sure))
            missed += [f"{name}: {entry['labels'][place]}" for place in sure if place not in hit]
    return Score(right, wrong, found, missed)


if __name__ == "__main__":
    where = Path(sys.argv[1]) if sys.argv[1:2] and not sys.argv[1].startswith("--") else CORPUS
    result = score(where, held_out="--held-out" in sys.argv)
    if "--held-out" not in sys.argv:
        print(*result.wrong, sep="\n")
        print(*result.missed, sep="\n")
        print(Counter(line.split(": ")[1] for line in result.wrong))
    print(f"precision {result.precision:.1%} of {result.right + len(result.wrong)}", end=", ")
    print(f"recall {result.recall:.1%} of {result.found + len(result.missed)}")
