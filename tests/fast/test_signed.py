"""Signed checkpoints: a run goes on from what its key has signed, whatever somebody writes into its directory."""

import json
import os
import re
import shutil
import subprocess

import numpy as np
import pytest
import torch

from holdfast import Best, Every, Last, Run, Store, load_into
from holdfast.cli.verify import verify_checkpoint
from holdfast.errors import Damaged, HoldfastError, NotFound, Unreadable, Untrusted, UsageError
from holdfast.store import format, lineage, shards
from holdfast.store.attempt import read_run
from holdfast.store.checkpoint import Checkpoint
from holdfast.store.signing import Signer, public_key
from needed import needs
from run_ranks import among_threads
from run_ranks import train as train_rank
from signatures import key_pair, with_quick_digests
from stores import asked, flip, invoke, listing
from toy import Toy

MANIFEST = "manifest.json"


class Weights:
    """A state with an array that is large enough to lie in a file of its own."""

    def __init__(self):
        self.values = np.zeros(3000)

    def state_dict(self):
        return {"values": self.values}

    def load_state_dict(self, state):
        self.values = np.array(state["values"])


def train(path, steps, signed=None, **options):
    """Train up to that step; return the toy's value and the array's sum."""
    toy, weights = Toy(), Weights()
    with Run(
        path, {"toy": toy, "weights": weights}, every=Every(steps=1), keep=Last(9), signed=signed, **options
    ) as run:
        for step in run.steps(steps):
            toy.learn(step)
            weights.values += step
            run.log(loss=1.0 / (step + 1))
    return toy.value, weights.values.sum()


@pytest.fixture
def key(tmp_path):
    return key_pair(tmp_path)


@pytest.fixture
def saved(tmp_path, key):
    """A signed run of three steps."""
    train(tmp_path / "run", 3, key)
    return tmp_path / "run"


def newest(run):
    return run / "checkpoints" / "step-000000003"


def verify(run, key, *more):
    return invoke("verify", run, "--key", key.with_suffix(".pub"), *more)


def seal(path, change, line=None):
    """Change a manifest's text, and make its own digest right again, as anybody can; `line` replaces the first one."""
    text = change((path / MANIFEST).read_bytes())
    first, rest = text.split(b"\n", 1)
    first = re.sub(rb'"digest": "[0-9a-f]{32}"', b'"digest": "' + b"0" * 32 + b'"', line(first) if line else first)
    found = format.digest(first + b"\n" + rest).encode()
    (path / MANIFEST).write_bytes(first.replace(b"0" * 32, found, 1) + b"\n" + rest)


def as_it_is(text):
    return text


def unsigned(line):
    return re.sub(rb' "key": .*', b"", line)


def strip(run):
    seal(newest(run), as_it_is, unsigned)


def strip_and_forge(run):
    (newest(run) / MANIFEST).write_bytes(format.encode(with_quick_digests(newest(run))))


def forge_with_quick_digests(run):
    """The key and the signature stay."""
    first = (newest(run) / MANIFEST).read_bytes().split(b"\n", 1)[0]
    (newest(run) / MANIFEST).write_bytes(format.encode(with_quick_digests(newest(run))))
    seal(newest(run), as_it_is, lambda _: first)


def swap_signatures(run):
    other = (run / "checkpoints" / "step-000000002" / MANIFEST).read_bytes().split(b"\n", 1)[0]
    seal(newest(run), as_it_is, lambda _: other)


def sign_with_another_key(run):
    signer = Signer(key_pair(run.parent, "other", seed=2))
    manifest = Checkpoint(newest(run)).manifest
    (newest(run) / MANIFEST).write_bytes(format.encode(manifest, signer))


def claim_the_key(run):
    """Another key's signature under the name of ours."""
    ours = Checkpoint(newest(run)).head.key.encode()
    sign_with_another_key(run)
    seal(newest(run), as_it_is, lambda line: re.sub(rb'"key": "[0-9a-f]{64}"', b'"key": "' + ours + b'"', line))


def change_a_metric(run):
    seal(newest(run), lambda text: re.sub(rb'"loss": ?0[.]\d', b'"loss":9.9', text))


def change_the_tree(run):
    seal(newest(run), lambda text: re.sub(rb'("value": ?)(\d)', rb"\g<1>1\g<2>", text))


def rename_an_older_one(run):
    shutil.copytree(run / "checkpoints" / "step-000000001", run / "checkpoints" / "step-000000009")


def bring_another_runs(run):
    other = run.parent / "other-run"
    train(other, 4, run.parent / "key")
    shutil.copytree(other / "checkpoints" / "step-000000004", run / "checkpoints" / "step-000000004")


REFUSED = [
    strip,
    strip_and_forge,
    forge_with_quick_digests,
    swap_signatures,
    sign_with_another_key,
    claim_the_key,
    change_a_metric,
    change_the_tree,
    bring_another_runs,
]


def test_a_signed_run_goes_on_to_the_same_bits_and_every_checkpoint_verifies(tmp_path, key):
    """The key that `ssh-keygen` makes signs; its public half checks."""
    train(tmp_path / "run", 3, key)
    value, total = train(tmp_path / "run", 5, key)
    assert total == 3000 * (0 + 1 + 2 + 3 + 4)
    assert value
    found = verify(tmp_path / "run", key)
    assert 0 == found.exit_code, found
    assert found.stdout.count(f"signed by {public_key(key.with_suffix('.pub')).fingerprint}") == 5
    names = {leaf.digest for leaf in Store(tmp_path / "run").latest().manifest.leaves.values()}
    assert {64} == {len(name) for name in names}


@pytest.mark.parametrize("attack", REFUSED, ids=lambda attack: attack.__name__)
def test_what_the_key_did_not_sign_is_refused_and_nothing_is_changed(saved, key, attack):
    """The start ends with one line. No older checkpoint is taken: somebody has to look. `verify --key` exits with 4."""
    attack(saved)
    before = {path: path.read_bytes() for path in saved.glob("checkpoints/*/*")}
    with pytest.raises(Untrusted, match=r"signed|signature|saved by run"):
        train(saved, 5, key)
    assert before == {path: path.read_bytes() for path in saved.glob("checkpoints/*/*")}
    assert not [*(saved / "quarantine").iterdir()]
    if attack is not bring_another_runs:  # which is what its own key has signed
        found = verify(saved, key)
        assert 4 == found.exit_code, found
        assert "step-000000003  NOT TRUSTED" in found.stdout


@pytest.mark.parametrize("file", ["weights.safetensors", "holdfast.safetensors"])
def test_files_of_another_signed_checkpoint_are_damage(saved, key, file):
    """A file of step 2 in the place of step 3's: the start sets step 3 aside, and goes on from step 2."""
    shutil.copyfile(saved / "checkpoints" / "step-000000002" / file, newest(saved) / file)
    assert 3000 * 10 == train(saved, 5, key)[1]
    assert ["step-000000003-damaged"] == os.listdir(saved / "quarantine")


def test_an_older_one_under_a_newer_name_is_damage(saved, key):
    """The step is signed, and a directory's name must be its step's."""
    rename_an_older_one(saved)
    assert 3000 * 10 == train(saved, 5, key)[1]
    assert ["step-000000009-damaged"] == os.listdir(saved / "quarantine")


def test_a_flipped_byte_anywhere_is_found_out(saved, key):
    """In the manifest, with its signature and key, and in every file."""
    checkpoint = newest(saved)
    public = public_key(key.with_suffix(".pub"))
    for path in checkpoint.iterdir():
        for place in range(0, path.stat().st_size, max(1, path.stat().st_size // 60)):
            flip(path, place)
            with pytest.raises((Damaged, HoldfastError)):
                Checkpoint(checkpoint, key=public).load()
            flip(path, place)
    Checkpoint(checkpoint, key=public).load()


def test_digests_that_anybody_can_make_are_refused_even_when_they_are_signed(saved, key):
    """All digests of a signed manifest are SHA-256; those of another are not."""
    signer = Signer(key)
    (newest(saved) / MANIFEST).write_bytes(format.encode(with_quick_digests(newest(saved)), signer))
    with pytest.raises(Damaged, match="not one that a checkpoint can hold"):
        Checkpoint(newest(saved)).load()


def test_files_are_linked_between_checkpoints_of_one_kind_only(tmp_path, key, monkeypatch):
    """A steady leaf is linked from one signed checkpoint to the next, never across."""
    monkeypatch.setattr(lineage, "LINK_BYTES", 1000)
    monkeypatch.setattr(shards, "LINK_BYTES", 1000)
    steady = {"frozen": np.arange(5000.0), "step": np.zeros(1)}

    def links_of(step, signer):
        """Save three more; how many files of each checkpoint are links."""
        store = Store(tmp_path / "run", signer=signer)
        if step > 1:
            store.go_on(Checkpoint(store.latest().path))  # as a restore does, had it been allowed
        for number in range(step, step + 3):
            steady["step"] = steady["step"] + 1
            store.save(steady, step=number)
        store.close()
        found = [checkpoint.manifest.files.values() for checkpoint in Store(tmp_path / "run").checkpoints()]
        return [sum(file.links for file in files) for files in found]

    links = links_of(1, Signer(key))
    assert links[-1] >= 1  # the third of them
    links = links_of(4, None)
    assert 0 == links[3]  # the first unsigned one
    assert links[-1] >= 1
    links = links_of(7, Signer(key))
    assert 0 == links[6]
    assert links[-1] >= 1
    for checkpoint in Store(tmp_path / "run").checkpoints():
        assert not [*checkpoint.problems()]


def test_all_ranks_refuse_a_checkpoint_that_is_not_signed(tmp_path, key, monkeypatch):
    """Parts and pieces are covered by SHA-256, too; a forged part is damage."""
    among = among_threads(monkeypatch)
    run = tmp_path / "run"
    whole = among(2, lambda rank: train_rank(run, rank, steps=8, signed=key))
    checkpoint = Store(run).latest()
    assert {64} == {len(leaf.digest) for leaf in checkpoint.manifest.leaves.values()}
    assert not [*checkpoint.signed_by(public_key(key.with_suffix(".pub"))).problems()]
    again = among(2, lambda rank: train_rank(run, rank, steps=12, signed=key))
    assert whole != again
    assert not [each for each in again if isinstance(each, BaseException)]
    view = Store(run).latest().signed_by(public_key(key.with_suffix(".pub"))).as_rank(1)
    assert not [*view.problems(cold=True)]
    seal(run / "checkpoints" / "step-000000012", as_it_is, unsigned)
    assert [*view.problems(cold=True)]  # it reads the manifest anew
    refused = among(2, lambda rank: train_rank(run, rank, steps=16, signed=key))
    assert [Untrusted, Untrusted] == [type(each) for each in refused]


def test_a_signed_run_does_not_go_on_without_its_key(saved, key):
    """It would prune what the key has signed. The start is refused, changes no checkpoint, and names the key."""
    before = listing(saved / "checkpoints")
    name = re.escape(public_key(key.with_suffix(".pub")).fingerprint)
    for options in ({}, {"allow_fresh": True}, {"go_back": 2}):
        with pytest.raises(UsageError, match=rf"step-00000000[23]: is signed by key {name}.*Say signed=.*branch_from="):
            train(saved, 4, **options)
    assert before == listing(saved / "checkpoints")
    assert 3000 * 10 == train(saved, 5, key)[1]
    assert 3000 * 15 == train(saved.parent / "unsigned", 6, branch_from=saved)[1]


def test_a_signed_run_does_not_go_on_without_its_key_at_any_rank(tmp_path, key, monkeypatch):
    """All ranks raise what rank 0 finds."""
    among = among_threads(monkeypatch)
    among(2, lambda rank: train_rank(tmp_path / "run", rank, steps=4, signed=key))
    before = listing(tmp_path / "run/checkpoints")
    refused = among(2, lambda rank: train_rank(tmp_path / "run", rank, steps=8))
    assert all(isinstance(each, HoldfastError) and "is signed by key" in str(each) for each in refused), refused
    assert before == listing(tmp_path / "run/checkpoints")


@pytest.mark.parametrize("spoil", [None, strip])
def test_a_signed_run_keeps_its_id_when_run_json_is_gone(saved, key, spoil):
    """By what its key has signed. A start that is refused gives the run no other id."""
    run = read_run(saved)
    (saved / "run.json").unlink()
    if spoil is not None:
        spoil(saved)
        with pytest.raises(Untrusted, match="is not signed"):
            train(saved, 5, key)
        shutil.rmtree(newest(saved))
    assert 3000 * 10 == train(saved, 5, key)[1]
    assert run == read_run(saved)


def test_a_signed_mirror_brings_no_run_without_the_key(saved, key):
    """What a place holds is refused when it has arrived; nothing is pruned, here or there."""
    place = saved.parent / "place"
    train(saved, 4, key, mirror=str(place))
    shutil.rmtree(saved)
    before = sorted(path for path in place.rglob("manifest.json"))
    with pytest.raises(UsageError, match="is signed by key"):
        train(saved, 5, mirror=str(place))
    assert before == sorted(path for path in place.rglob("manifest.json"))
    assert 3000 * 10 == train(saved, 5, key, mirror=str(place))[1]


def test_an_unsigned_run_becomes_signed_by_a_branch(tmp_path, key):
    """What `branch_from` names is the caller's word."""
    train(tmp_path / "old", 3)
    assert 3000 * 10 == train(tmp_path / "new", 5, key, branch_from=tmp_path / "old")[1]
    assert 0 == verify(tmp_path / "new", key).exit_code


def test_show_and_verify_say_who_signed(saved, key):
    """The fingerprint is that of `ssh-keygen -l`."""
    name = public_key(key.with_suffix(".pub")).fingerprint
    assert f"by key {name}" in invoke("show", saved).stdout
    assert name == asked("show", saved)["signed"]
    assert 3 == invoke("ls", saved).stdout.count(f"signed by {name[:15]}")
    found = json.loads(verify(saved, key, "--json").stdout)
    assert [name] * 3 == [each["signed"] for each in found["checkpoints"]]


def test_verify_tells_another_key_from_damage_and_that_nothing_was_checked(saved, key):
    """The files of what another key has signed are whole. Without --key nobody has looked at a signature."""
    key_pair(saved.parent, "other", seed=2)
    told = invoke("verify", saved, "--key", saved.parent / "other.pub")
    assert (4, 3, 0) == (told.exit_code, told.stdout.count("NOT TRUSTED"), told.stdout.count("DAMAGED"))
    flip(next(newest(saved).glob("weights*")), -8)
    assert "step-000000003  DAMAGED" in invoke("verify", saved, "--key", key.with_suffix(".pub")).stdout
    hint = f"key {public_key(key.with_suffix('.pub')).fingerprint} is said to have signed; that was not checked"
    assert 1 == invoke("verify", saved).stdout.count(hint)
    assert hint not in invoke("verify", saved, "--key", key.with_suffix(".pub")).stdout


def test_what_cannot_be_read_is_not_called_signed(saved, key):
    """Nothing is known about it, whatever key was asked for."""
    checkpoint = Store(saved).latest().signed_by(public_key(key.with_suffix(".pub")))

    def closed(*_, **__):
        raise Unreadable("a file cannot be read: Permission denied")

    found = verify_checkpoint(checkpoint, closed, cold=False)
    assert found is not None
    assert (12, None, None) == (found.exit_code, found.facts["signed"], found.facts["assurance"])
    assert "Permission denied" in found.facts["unreadable"]


def test_a_copy_keeps_its_signature(saved, key, tmp_path):
    """It is in the manifest, so nothing has to be copied beside the files."""
    assert 0 == invoke("copy", saved, tmp_path / "copy").exit_code
    assert 0 == verify(tmp_path / "copy", key).exit_code


@needs("ssh-keygen")
def test_a_key_that_cannot_sign_is_refused_before_anything_is_written(tmp_path, key):
    """Each with one line: others may read it, it has a passphrase, it is of another kind, it is not there."""
    key.chmod(0o640)
    with pytest.raises(UsageError, match="chmod 600"):
        Signer(key)
    key.chmod(0o600)
    for name, words, why in [
        ("locked", ["-t", "ed25519", "-N", "secret"], "passphrase"),
        ("rsa", ["-t", "rsa", "-b", "2048", "-N", ""], "no Ed25519 key"),
    ]:
        subprocess.run(["ssh-keygen", "-q", "-f", str(tmp_path / name), *words], check=True)
        with pytest.raises(UsageError, match=why):
            train(tmp_path / "run", 1, tmp_path / name)
    with pytest.raises(UsageError, match="No such file"):
        train(tmp_path / "run", 1, tmp_path / "missing")
    with pytest.raises(UsageError, match="no private key"):
        (tmp_path / "text").touch(0o600)
        Signer(tmp_path / "text")
    assert not (tmp_path / "run").exists()


PUBLIC = [
    "ssh-ed25519 AAAA me@here\n",
    "ecdsa-sha2-nistp256 AAAA\n",
    "-----BEGIN PUBLIC KEY-----\n",
    "---- BEGIN SSH2 PUBLIC KEY ----\n",
]
PRIVATE = [
    "-----BEGIN OPENSSH PRIVATE KEY-----\n",
    "-----BEGIN PRIVATE KEY-----\n",
    "-----BEGIN RSA PRIVATE KEY-----\n",
]


@pytest.mark.parametrize("text", PUBLIC)
def test_a_public_key_that_was_to_sign_is_told(tmp_path, text):
    """Whatever its mode is: others may read it, and that is no fault of it."""
    file = tmp_path / "key.pub"
    file.write_text(text)
    for mode in (0o644, 0o600):
        file.chmod(mode)
        with pytest.raises(UsageError, match=f"^{file}: is a public key, and signing needs the private one"):
            train(tmp_path / "run", 1, file)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("text", PRIVATE)
def test_a_private_key_that_was_to_check_is_told(tmp_path, text):
    file = tmp_path / "key"
    file.write_text(text)
    with pytest.raises(UsageError, match=f"^{file}: is a private key, and checking needs the public one"):
        public_key(file)


@needs("openssl")
def test_openssls_key_and_ours_are_one(tmp_path, key):
    """PEM of openssl is read as well, and its own check accepts a signature of ours."""
    private, public = tmp_path / "private.pem", tmp_path / "public.pem"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", str(private)], check=True)
    private.chmod(0o600)
    subprocess.run(["openssl", "pkey", "-in", str(private), "-pubout", "-out", str(public)], check=True)
    store = Store(tmp_path / "run", signer=Signer(private))
    path = store.save({"a": 1}, step=1).path
    first, rest = (path / MANIFEST).read_bytes().split(b"\n", 1)
    signature = first.split(b'"')[-2]
    zeroed = re.sub(rb'"digest": "[0-9a-f]{32}"', b'"digest": "' + b"0" * 32 + b'"', first)
    (tmp_path / "data").write_bytes(zeroed.replace(signature, b"0" * 128) + b"\n" + rest)
    (tmp_path / "signature").write_bytes(bytes.fromhex(signature.decode()))
    words = ["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", str(public), "-rawin", "-in", str(tmp_path / "data")]
    subprocess.run([*words, "-sigfile", str(tmp_path / "signature")], check=True, capture_output=True)


def test_a_store_that_checks_refuses_to_load(tmp_path, key):
    """`Store.load` looks at no older checkpoint, either."""
    store = Store(tmp_path / "run", signer=Signer(key))
    store.save({"a": 1}, step=1)
    store.save({"a": 2}, step=2)
    seal(store.latest().path, as_it_is, unsigned)
    with pytest.raises(Untrusted):
        Store(tmp_path / "run", signer=Signer(key)).load()
    assert {"a": 2} == Store(tmp_path / "run").load()
    with pytest.raises(NotFound):
        Store(tmp_path / "none", signer=Signer(key)).load()


@pytest.mark.parametrize("step", [None, 2, "best"])
def test_weights_are_read_from_what_the_key_signed_only(tmp_path, key, step):
    """Also of a checkpoint that is named itself. Nothing is overwritten before, and no older one is taken."""
    model, public = torch.nn.Linear(1, 1), key.with_suffix(".pub")
    with Run(tmp_path / "run", {"model": model}, every=Every(steps=1), keep=Best("loss", min), signed=key) as run:
        for _ in run.steps(2):
            run.log(loss=0.5 if run.step else 1.0)
    path = Store(tmp_path / "run").latest().path
    assert load_into(torch.nn.Linear(1, 1), tmp_path / "run", step=step, key=public).complete
    assert load_into(torch.nn.Linear(1, 1), path, key=str(public)).complete
    other, before = torch.nn.Linear(1, 1), key_pair(tmp_path, "other", seed=2).with_suffix(".pub")
    weight = other.weight.detach().clone()
    with pytest.raises(Untrusted, match="is signed by key"):
        load_into(other, tmp_path / "run", step=step, key=before)
    (path / MANIFEST).write_bytes(format.encode(with_quick_digests(path)))
    for where, options in [(tmp_path / "run", {"step": step}), (path, {})]:
        with pytest.raises(Untrusted, match="is not signed, and key SHA256:"):
            load_into(other, where, key=public, **options)
    assert torch.equal(weight, other.weight)
    assert load_into(other, path).complete


def test_a_signed_run_begins_from_its_mirror_and_heals_from_it(saved, key):
    """What is fetched there is signed, and what is healed has the digests that were."""
    place = saved.parent / "place"
    train(saved, 4, key, mirror=place)
    flip(next((saved / "checkpoints" / "step-000000004").glob("weights*")), -8)
    assert 3000 * 10 == train(saved, 5, key, mirror=place)[1]
    assert not [*(saved / "quarantine").iterdir()]
    shutil.rmtree(saved)
    assert 3000 * 15 == train(saved, 6, key, mirror=place)[1]
    assert 0 == verify(saved, key).exit_code


def test_what_a_place_holds_unsigned_is_refused_by_its_name_there(saved, key):
    """Nothing of it comes into the run's directory, and the line says where it lies."""
    place = saved.parent / "place"
    train(saved, 4, key, mirror=place)
    (copy,) = place.glob("checkpoints/*/step-000000004")
    (copy / MANIFEST).write_bytes(format.encode(with_quick_digests(copy)))
    shutil.rmtree(saved)
    with pytest.raises(Untrusted, match=f"step-000000004 at {place}: is not signed"):
        train(saved, 5, key, mirror=place)
    assert [] == [*(saved / "checkpoints").glob("step-*")]
