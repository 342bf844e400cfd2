"""The builder of hostile stores: what it changes is odd, and everything around it is as valid as before."""

import pytest

import hostile_stores
from holdfast.store.checkpoint import Checkpoint

BUILDERS = [hostile_stores.valid, hostile_stores.two_ranks, hostile_stores.divided]


@pytest.mark.parametrize("build", BUILDERS)
def test_a_manifest_that_is_written_again_unchanged_has_the_same_bytes(build, tmp_path):
    """Also when every digest is computed again from the files."""
    folder = build(tmp_path)
    before = (folder / "manifest.json").read_bytes()
    for again in (lambda: hostile_stores.rewrite(folder, lambda _: None), lambda: hostile_stores.mend(folder)):
        again()
        assert before == (folder / "manifest.json").read_bytes()


@pytest.mark.parametrize("build", BUILDERS)
def test_a_changed_file_is_whole_once_its_digests_are_mended(build, tmp_path):
    folder = build(tmp_path)
    shard = min(folder.glob("*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-1] + b"\x55")
    assert [*Checkpoint(folder).problems()]
    hostile_stores.mend(folder)
    assert [] == [*Checkpoint(folder).problems()]
    hostile_stores.rewrite_tree(folder, "odd", b"[7]")
    assert [7] == Checkpoint(folder).load()["odd"]
