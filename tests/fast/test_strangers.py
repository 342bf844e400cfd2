"""Scripts that somebody else wrote: the lines that Holdfast adds to each are counted.

`tests/prove/test_strangers_drilled.py` drills them where copies are at hand.
"""

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HOME = ROOT / "examples" / "strangers"
# of those that take more than six: random crops in workers need Seeded, and a seed or an index is missing
MOST_LINES = {"imagenet_folder": 7, "timm": 8, "torchvision_classification": 8}


@pytest.fixture(scope="module")
def patches():
    """The module that reads and applies them."""
    sys.path.insert(0, str(HOME))
    try:
        import patches

        yield patches
    finally:
        sys.path.remove(str(HOME))


def names():
    return sorted(path.stem for path in HOME.glob("*.toml"))


def test_patches_are_small_and_honest(patches):
    """At most six lines, one statement in each, no line of theirs moved; the version that it fits is named."""
    assert names() == sorted(patches.strangers())
    for name, stranger in patches.strangers().items():
        assert stranger.added + stranger.changed <= MOST_LINES.get(name, 6), name
        assert stranger.indented == 0, name
        for edit in stranger.patch:
            new = edit.text if isinstance(edit, patches.Added) else edit.new
            assert new.isascii(), name
            assert not {";", "\n"} & set(new), name
        assert re.fullmatch(r"[0-9a-f]{40}", stranger.commit), name
        assert re.fullmatch(r"[0-9a-f]{64}", stranger.sha256), name


def test_the_table_has_the_counts_of_the_patches(patches):
    """docs/exactness.md has a row for every script, with the lines that its patch adds, changes and re-indents."""
    section = (ROOT / "docs/exactness.md").read_text().partition("\n## Scripts of others\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    counted = [patches.row(each) for each in patches.strangers().values()]
    assert len(counted) >= 9
    assert [row[: len(begin)] for row, begin in zip(rows, counted, strict=True)] == counted


THEIRS = "import os\nfor i in range(3):\n    print(i)\nprint('end')\n"
OURS = "import os\nfrom x import y\nfor i in y.steps(3):\n    print(i)\n    y()\nprint('end')\n"
PATCH = ["+1|from x import y", "~2|range( => y.steps(", "+3|    y()"]


def test_a_patch_changes_lines_by_their_old_numbers(patches):
    """What is added above does not move what is changed below; `git apply` makes the same of the unified form."""
    assert patches.apply([patches.parse(line) for line in PATCH], THEIRS) == OURS


def described(patches, **other):
    told = {
        "name": "loop",
        "upstream": "https://example.org/somebody/loops",
        "commit": "0" * 40,
        "licence": "MIT",
        "script": "loop.py",
        "sha256": hashlib.sha256(THEIRS.encode()).hexdigest(),
        "folder": ".",
        "command": ["loop.py"],
        "patch": [patches.parse(line) for line in PATCH],
    }
    return patches.Stranger(**told | other)


def test_git_takes_the_unified_form(patches, tmp_path):
    (tmp_path / "loop.py").write_text(THEIRS)
    unified = patches.unified(described(patches), THEIRS)
    git = ["git", "-c", "safe.directory=*", "apply", "--unidiff-zero", "-"]
    subprocess.run(git, input=unified, text=True, cwd=tmp_path, check=True, env=os.environ | {"GIT_DIR": "none"})
    assert (tmp_path / "loop.py").read_text() == OURS


def test_another_version_of_the_script_is_refused(patches):
    """The line numbers hold for one file; another one is not patched at random places."""
    with pytest.raises(ValueError, match="check that one out"):
        patches.patched(described(patches), THEIRS + "\n")


def test_a_line_without_the_words_is_refused(patches):
    """A replacement that finds nothing to replace, or two places, is an error and no silent success."""
    for words in ("while", "i"):
        with pytest.raises(ValueError, match="not once"):
            patches.apply([patches.Changed(2, words, "x")], THEIRS)
