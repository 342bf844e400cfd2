"""Long text lies in a shard; a checkpoint's size is that of all its files."""

import msgspec
import numpy as np

from holdfast import Every, Run, Store, Within
from holdfast.data.digest import digest
from holdfast.state import tree
from holdfast.state.unflatten import LONG_TEXT
from stores import invoke

LONG = "tree=1 " * 10_000
TEXTS = {"ascii": LONG, "letters": "é√" * LONG_TEXT, "surrogates": "\ud800" * (LONG_TEXT + 1), "short": "x" * LONG_TEXT}


def size_of(path):
    return sum(each.stat().st_size for each in path.iterdir())


def test_long_text_comes_back_from_a_leaf(tmp_path):
    """To the letter, in containers and as values; in keys and sets it stays in the tree."""
    state = {"texts": TEXTS, "twice": [LONG, LONG], "key": {(LONG, 1): 1, 2: 2}, "set": {LONG}, LONG[:5000]: 3}
    flat = tree.flatten(state)
    assert sorted(flat.leaves) == ["texts/ascii", "texts/letters", "texts/surrogates", "twice/0", "twice/1"]
    Store(tmp_path).save(state, step=1)
    assert state == Store(tmp_path).load()
    assert len(msgspec.json.encode(tree.flatten({"it": LONG}).tree)) < 100


def test_a_run_keeps_within_its_bytes_what_its_files_are(tmp_path):
    """Also where a state has no arrays: of many short texts the manifest counts."""
    with Run(tmp_path, {}, vars={"model": "", "many": []}, every=Every(steps=1), keep=Within(500_000)) as run:
        for step in run.steps(8):
            run.vars.model = f"tree {step} " * 10_000
            run.vars.many = [f"leaf {step}.{number} " * 9 for number in range(600)]
    kept = sorted(path for path in (tmp_path / "checkpoints").glob("step-*"))
    assert 2 <= len(kept) <= 500_000 // size_of(kept[-1])
    store = Store(tmp_path)
    assert [size_of(path) for path in kept] == [each.size_bytes for each in store.checkpoints()]
    rows = msgspec.json.decode(invoke("ls", tmp_path, "--json").stdout)["checkpoints"]
    assert [size_of(path) for path in kept] == [row["size_bytes"] for row in rows]
    assert sum(map(size_of, kept)) == sum(row["disk_bytes"] for row in rows)
    shown = invoke("show", kept[-1], "--json").stdout
    assert msgspec.json.decode(shown)["size_bytes"] == size_of(kept[-1])
    assert "holdfast/vars/model" in invoke("show", kept[-1]).stdout


def test_a_change_of_long_text_is_a_difference(tmp_path):
    """`diff` names it."""
    store = Store(tmp_path)
    for step, text in enumerate((LONG, LONG + "2"), 1):
        store.save({"model": text}, step=step)
    found = invoke("diff", *(tmp_path / f"checkpoints/step-00000000{step}" for step in (1, 2)))
    assert found.exit_code == 1
    assert "model" in found.stdout


def test_the_digest_of_a_batch_is_what_it_was():
    """Checkpoints hold digests of batches: one that 0.1.0 computed has to be found again."""
    removed = set(range(100))
    for _ in range(90):
        removed.pop()
    batches = [LONG, [(np.arange(3) + at, at) for at in range(300)], removed]
    for batch in batches:
        flat = tree.flatten(batch, first=True)
        assert not any(tag in str(flat.tree) for tag in ("long_str", "packed", "set_table"))
        assert any(tag in str(tree.flatten(batch).tree) for tag in ("long_str", "packed", "set_table"))
    assert digest([LONG]) == "db9fc2fc2ba717453edd3a04cbca01dc"  # computed by 0.1.0
