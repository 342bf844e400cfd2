"""Lint against the labelled corpus: the half that may be looked at. The other half is scored by hand, once."""

import pytest

from lint_corpus import CORPUS, score


@pytest.mark.skipif(not CORPUS.is_dir(), reason="the corpus is not in this tree")
def test_lint_finds_what_is_labelled_and_little_else():
    """The goal is a precision of 95% and a recall of 90%."""
    result = score(CORPUS, held_out=False)
    print(f"precision {result.precision:.1%}, recall {result.recall:.1%}")
    assert result.right > 80
    assert result.precision >= 0.95, result.wrong
    assert result.recall >= 0.90, result.missed
