"""The commands: what they print, what they leave alone, and the exit code of everything that can go wrong."""

import errno
import importlib.metadata
import json
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import click
import ml_dtypes
import msgspec
import numpy as np
import pytest
import torch

from command_runs import finished, flip, save, state
from holdfast.cli import COMMANDS, EXAMPLES, GROUPS, commands
from holdfast.cli.verify import verify_checkpoint
from holdfast.rules import Best, Every, Last
from holdfast.run.run import Run
from holdfast.store import format
from holdfast.store.checkpoint import Checkpoint
from holdfast.store.locate import retry_if_removed, unreadable_reason
from holdfast.store.store import ManifestFields, Store
from stores import asked, done, invoke
from toy import Cut, Toy, new_run
from unread import unreadable

GOLDEN = Path(__file__).parents[1] / "golden/two-ranks/step-000000007-end"


@pytest.fixture
def run(tmp_path, tmp_path_factory):
    return finished(tmp_path, tmp_path_factory)


def saved(root, state):
    with closing(Store(root)) as store:
        store.save(state, step=1)


def listing(root):
    return {str(path): (path.lstat().st_mtime_ns, path.lstat().st_size) for path in [root, *root.rglob("*")]}


# Reading ----------------------------------------------------------------------------------------------------------


def test_ls_has_a_line_for_each_checkpoint(run):
    """Step, epoch, size, metrics, parent; and which is the latest, the best, pinned."""
    lines = done("ls", run).splitlines()
    assert ["step-000000010", "step-000000020", "step-000000030"] == [line.split()[0] for line in lines[1:4]]
    assert {"best", "val_acc=0.9", "step-000000010"} <= set(lines[2].split())
    assert "latest" in lines[3]
    rows = asked("ls", run)["checkpoints"]
    assert [(10, False), (20, True), (30, False)] == [(row["step"], row["best"]) for row in rows]


def test_ls_tells_how_many_ranks_have_saved_a_checkpoint(run):
    """And of one process, nothing."""
    assert " of 2 ranks" in done("ls", GOLDEN)
    assert " ranks" not in done("ls", run)


def test_ls_tells_quarantine_and_attempts(run):
    """Below the checkpoints: what was moved aside and why, and how each attempt ended."""
    store = Store(run)
    store.quarantine(store[30], "digest")
    store.attempt.close("stop", step=31, reason="SIGTERM")
    facts = asked("ls", run)
    assert [("step-000000030", "digest")] == [(each["name"], each["why"]) for each in facts["quarantine"]]
    assert ["ended", "stopped: SIGTERM"] == [each["ended"] for each in facts["attempts"]]
    assert "step-000000030: digest" in done("ls", run)


def test_ls_tells_that_a_run_is_on_hold(run):
    """And of one that is not, nothing."""
    told = "on hold: once it stops it is neither started again nor requeued, until holdfast release"
    assert (False, False) == (asked("ls", run)["held"], told in done("ls", run))
    done("hold", run)
    assert (True, True) == (asked("ls", run)["held"], told in done("ls", run).splitlines())


def killed(run, act):
    """An attempt that does this and is gone."""
    script = f"import sys, os; from holdfast import Store; it = Store(sys.argv[1]).claim(); {act}; os._exit(9)"
    assert 9 == subprocess.run([sys.executable, "-c", script, run], check=False).returncode


def test_an_attempt_that_left_no_good_bye_is_told_from_one_that_lives(run):
    """A killed process is proven gone, and its last sign of life is told; this process is not gone."""
    killed(run, "pass")
    assert ("killed", None) == tuple(asked("ls", run)["attempts"][-1][key] for key in ("ended", "seconds"))
    assert "the last one: 2: killed" in done("ls", run).splitlines()[-1]
    assert "2: killed" == done("ls", run, "--attempts").splitlines()[-1].strip()
    killed(run, "it.record('saved', step=77); it.flush()")  # when it was killed nobody knows: perhaps an hour later
    assert "3 to step 77, 1 saved: killed; last heard of after 0 s" in done("ls", run).splitlines()[-1]
    store = Store(run)
    store.claim()
    assert asked("ls", run)["attempts"][-1]["ended"].startswith(f"may be running: pid {os.getpid()}")
    store.close()


def test_a_damaged_manifest_is_a_line_and_no_crash(run):
    """The others are listed as ever."""
    flip(run / "checkpoints/step-000000020/manifest.json", 200)
    lines = done("ls", run).splitlines()
    assert lines[2].endswith("damaged")
    assert "step-000000030" in lines[3]
    assert ["", "damaged"] == lines[4:6]
    assert lines[6].startswith("  step-000000020: ")
    assert asked("ls", run)["checkpoints"][1]["damaged"].startswith("damaged")


def test_show_tells_origin_leaves_vars_and_position(run):
    """One checkpoint, the newest unless asked otherwise; no tensor is read."""
    text = done("show", run)
    assert "step            30" in text
    assert "hyperparameters lr=0.1" in text
    assert "abc, with changes that are not committed" in text
    assert "patience = 2" in text
    assert "model/fc.weight  float32 [2, 3]  24 B" in text
    facts = asked("show", run, "--step", "best")
    assert 20 == facts["step"]
    assert {"patience": 2} == facts["vars"]
    assert 20 == facts["position"]["step"]
    assert "bfloat16" == facts["leaves"]["model/half"]["dtype"]


def test_show_limits_long_lists_unless_all_is_asked_for(tmp_path):
    """What is left out is counted."""
    saved(tmp_path, {"m": {f"p{number}": torch.ones(1) for number in range(40)}})
    assert "... and 28 more (--all)" in done("show", tmp_path)
    assert "m/p39" in done("show", tmp_path, "--all")


def test_show_metrics_prints_the_merged_log(run):
    """As text, or with --json a line of JSON for each."""
    assert "step 10  epoch 2  loss=0.5\n" == done("show", run, "--metrics")
    line = json.loads(done("show", run, "--metrics", "--json"))
    assert {"loss": 0.5} == line["values"]


def test_epochs_are_counted_alike_wherever_people_read_them(tmp_path, capsys):
    """As the bar does: `2/3` is the second of three, also of a range; without epochs there is none. JSON has the
    script's own number.
    """
    counted = {}
    for name, epochs in {"a": 3, "b": range(1, 4), "c": None}.items():
        with pytest.raises(Cut), new_run(tmp_path / name, Toy(), every=None) as run:
            for _ in run.steps(9) if epochs is None else run.epochs(epochs):
                for _ in [None] if epochs is None else run.batches([1, 2, 3]):
                    run.log(loss=1)
                    if run.step == 4:
                        run.save()
                    if run.step == 5:
                        raise Cut
        [row] = asked("ls", tmp_path / name)["checkpoints"]
        counted[name] = [row["epoch"], row["nth_epoch"]]
        told = "" if epochs is None else "epoch 2/3"
        assert ("2/3" in done("ls", tmp_path / name)) == ("  epoch           2/3" in done("show", tmp_path / name))
        assert told == re.sub(r"^step 5 *| *loss=1", "", done("show", tmp_path / name, "--metrics").splitlines()[-1])
        capsys.readouterr()
        with pytest.raises(Cut), new_run(tmp_path / name, Toy(), every=None) as run:
            raise Cut
        assert f"resumes at step 5{told and ', '}{told} (attempt 2)" in capsys.readouterr().err
    assert {"a": [1, "2/3"], "b": [2, "2/3"], "c": [0, None]} == counted


def test_show_copes_with_a_checkpoint_of_files(tmp_path):
    """No tree, no leaves: its files are named."""
    store = Store(tmp_path)
    with store.directory(step=1) as path:
        (path / "model.pt").write_text("x")
    store.close()
    assert "model.pt  1 B" in done("show", tmp_path)
    done("verify", tmp_path)


@pytest.mark.parametrize("place", ["tensor data", "header", "manifest", "missing"])
def test_verify_names_file_and_bytes_of_any_damage(run, place):
    """Exit 4; the other checkpoints are read and found well."""
    shard = run / "checkpoints/step-000000020/model.safetensors"
    damaged = shard.with_name("manifest.json") if place == "manifest" else shard
    if place == "missing":
        shard.unlink()
    else:
        flip(damaged, {"tensor data": -1, "header": 20, "manifest": 300}[place])
    done("verify", run, "--step", 30)
    for words in ([run], [run, "--step", 20], [run / "checkpoints/step-000000020"]):
        for cold in ([], ["--cold"]):
            result = invoke("verify", *words, *cold)
            assert 4 == result.exit_code, (words, result.stdout, result.stderr)
            assert f"{damaged}: bytes " in result.stdout
    told = json.loads(invoke("verify", run, "--json").stdout)
    assert [False, True, False] == [len(each["problems"]) > 0 for each in told["checkpoints"]]


@pytest.mark.parametrize("file", ["manifest.json", "model.safetensors"])
def test_verify_says_what_cannot_be_read_and_reads_the_others(run, file):
    """Exit 12, for a whole run and for that checkpoint; beside damage, 4."""
    bad = run / "checkpoints/step-000000020"
    with unreadable(bad / file):
        for words in ([run], [run, "--cold"], [bad], [run, "--step", 20]):
            result = invoke("verify", *words)
            assert (12, "") == (result.exit_code, result.stderr), (words, result.output)
            assert f"step-000000020  unreadable: {bad / file}: Bad file descriptor" in result.stdout
        for step in (10, 30):
            assert f"step-{step:09d}  ok" in invoke("verify", run).stdout
        flip(run / "checkpoints/step-000000010/model.safetensors", -1)
        assert 4 == invoke("verify", run).exit_code


def test_a_manifest_that_cannot_be_read_now_ends_show_with_the_exit_code_for_that(run):
    """12: nothing says that the checkpoint is damaged."""
    bad = run / "checkpoints/step-000000020"
    with unreadable(bad / "manifest.json"):
        result = invoke("show", run, "--step", "20")
    assert (12, "") == (result.exit_code, result.stdout)
    assert f"holdfast: {bad / 'manifest.json'}: cannot be read: Bad file descriptor\n" == result.stderr


def test_verify_says_what_cannot_be_looked_at(run, monkeypatch):
    """Nobody knows whether the file is there."""
    bad, real = str(run / "checkpoints/step-000000020/manifest.json"), os.stat

    def failing(path, *rest, **options):
        if str(path) == bad:
            raise OSError(errno.EIO, os.strerror(errno.EIO), bad)
        return real(path, *rest, **options)

    monkeypatch.setattr(os, "stat", failing)
    with unreadable(bad):
        result = invoke("verify", run)
    assert (12, "") == (result.exit_code, result.stderr), result.output
    assert f"step-000000020  unreadable: {bad}: " in result.stdout
    assert 2 == result.stdout.count("  ok  ")


def test_a_journal_that_cannot_be_read_hides_no_checkpoint(run):
    """It says which places the run has: of those nothing is known."""
    with unreadable(next(run.glob("attempts/*/*.jsonl"))) as reads:
        found = done("verify", run)
    assert reads
    assert 3 == found.count("  ok  ")
    assert "nobody knows: " in found


def test_diff_says_when_only_random_generators_differ(tmp_path):
    """One that nobody seeds differs from run to run; the line to type leaves it out."""
    for seed in (1, 2):
        rng = {"python": random.Random(seed).getstate()}
        saved(tmp_path / str(seed), {"model": [1, 2], "holdfast": {"rng": rng}})
    found = invoke("diff", tmp_path / "1", tmp_path / "2")
    assert 1 == found.exit_code
    assert "everything else is identical" in found.stdout
    assert "0 of 0 leaves and 1 other place differ" == found.stdout.splitlines()[-1]
    assert "--exempt '*rng/python'" in found.stdout
    done("diff", tmp_path / "1", tmp_path / "2", "--exempt", "*rng/python")


def test_diff_exits_as_diff_does(run, tmp_path):
    """0 identical, 1 different, more for trouble."""
    copy = shutil.copytree(run, tmp_path / "copy")
    same = invoke("diff", run, copy)
    assert (0, "identical: 3 leaves") == (same.exit_code, same.stdout.splitlines()[-1])
    other = invoke("diff", f"{run}@10", f"{copy}@best")
    assert 1 == other.exit_code
    assert "model/fc.weight: 6 of 6 values differ, largest difference 10" in other.stdout
    assert "holdfast/position/step: position: 10 in a, 20 in b" in other.stdout
    assert "3 of 3 leaves and 3 other places differ" == other.stdout.splitlines()[-1]
    assert "holdfast/rng/python: " in other.stdout
    assert 3 == invoke("diff", run, tmp_path / "absent").exit_code
    flip(copy / "checkpoints/step-000000030/model.safetensors", -1)
    assert 4 == invoke("diff", run, copy).exit_code
    done("diff", run, copy, "--quick")


def test_diff_tells_everything_in_json(run):
    """Places, areas and distances as values."""
    result = invoke("diff", f"{run}@10", f"{run}@20", "--exempt", "optimizer", "--json")
    facts = json.loads(result.stdout)
    assert (1, False, ["optimizer"]) == (result.exit_code, facts["identical"], facts["exempt"])
    places = {each["where"]: each for each in facts["differences"]}
    assert 10.0 == places["model/fc.weight"]["largest"]
    assert "rng" == places["holdfast/rng/python"]["area"]
    assert not any(where.startswith("optimizer") for where in places)


# What RUN is ------------------------------------------------------------------------------------------------------


def spellings(run, tmp_path):
    checkpoint = run / "checkpoints/step-000000030"
    yield run
    yield run / "checkpoints"
    yield run / "checkpoints/latest"
    yield checkpoint
    yield shutil.copytree(checkpoint, tmp_path / "renamed")
    yield shutil.copytree(run / "checkpoints", tmp_path / "moved", symlinks=True)
    bare = tmp_path / "bare"
    shutil.copytree(run / "checkpoints", bare / "checkpoints", symlinks=True)
    yield bare


def test_a_run_a_checkpoint_and_copies_of_either_are_understood(run, tmp_path):
    """Seven spellings, every reading command: the same checkpoint is found, and nothing is written."""
    for number, place in enumerate(spellings(run, tmp_path)):
        before = listing(place)
        assert "step-000000030" == asked("ls", place)["checkpoints"][-1]["name"]
        assert 30 == asked("show", place)["step"]
        assert 30 == asked("show", place, "--step", "30")["step"]
        done("verify", place)
        done("diff", place, run)
        assert 4 == asked("export", place, "--all", "-o", tmp_path / f"{number}.safetensors")["tensors"]
        assert before == listing(place)


@pytest.mark.parametrize("command", ["ls", "show", "verify", "diff", "prune", "export", "pin", "unpin"])
def test_missing_and_foreign_places_get_one_line_and_exit_3(command, tmp_path):
    """Also a directory that another program calls checkpoints, and another program's manifest.json."""
    foreign = tmp_path / "foreign"
    (foreign / "checkpoints").mkdir(parents=True)
    (foreign / "checkpoints/epoch=1.index").write_text("x")
    (foreign / "manifest.json").write_text("{}")
    (tmp_path / "file").write_text("x")
    more = {"diff": [foreign], "prune": ["--keep", "Last(1)"], "export": ["-o", tmp_path / "m.npz"]}
    more |= {"pin": ["--step", "1"], "unpin": ["--step", "1"]}
    for place in (tmp_path / "absent", foreign, foreign / "checkpoints", tmp_path / "file"):
        before = listing(tmp_path)
        result = invoke(command, place, *more.get(command, []))
        assert (3, "") == (result.exit_code, result.stdout)
        assert result.stderr.startswith(f"holdfast: {place}: ")
        assert 1 == result.stderr.count("\n")
        assert before == listing(tmp_path)
    assert "no such" in invoke(command, tmp_path / "absent", *more.get(command, [])).stderr


def test_a_run_without_a_checkpoint_is_listed_and_not_shown(tmp_path):
    """It has begun; what asks for a checkpoint says that there is none."""
    store = Store(tmp_path / "new")
    store.claim()
    store.close()
    assert "no committed checkpoint" in done("ls", tmp_path / "new")
    for command in ("show", "verify"):
        result = invoke(command, tmp_path / "new")
        assert (3, f"holdfast: {tmp_path / 'new'}: no committed checkpoint\n") == (result.exit_code, result.stderr)


# exit code, command, and what stderr says
REFUSED = """\
2 nosuch
2 ls
2 ls {run} --nosuch
2 ls {run} another
2 show {run} --step x
2 show {run} --step -1
2 show {run}/checkpoints/step-000000030 --step
2 diff {run}
2 prune {run}
2 prune {run} --keep Fewest(1)
2 prune {run} --keep __import__('os')
2 prune {run}/checkpoints/step-000000030 --keep Last(1)
2 export {run}
2 export {run} -o model.bin
2 export {run} -o {run}/checkpoints/step-000000030/x.npz
2 pin {run}
3 show {run} --step 25 # step-000000030
3 export {run} --part ema -o {run}/x.npz
1 export {run} -o {run}/absent/m.safetensors # No such file or directory
3 ls {long} # no such file or directory
3 diff {run} {long}
"""


def test_a_refusal_is_one_line_and_an_exit_code(run):
    """2: wrong use, 3: no such step, 1: the system's refusals. The line says what was wrong; nothing is changed."""
    before = listing(run)
    assert REFUSED
    for line in REFUSED.splitlines():
        (code, *words), _, told = (part.split() for part in line.format(run=run, long="x" * 300).partition("# "))
        result = invoke(*words)
        assert (int(code), "", 1) == (result.exit_code, result.stdout, result.stderr.count("\n")), line
        assert result.stderr.startswith("holdfast: "), line
        assert " ".join(told) in result.stderr, line
    assert before == listing(run)


def test_a_format_of_the_future_is_refused_and_not_damage(run, monkeypatch):
    """Exit 1, and the advice to use a newer Holdfast."""
    path = run / "checkpoints/step-000000030/manifest.json"
    manifest = format.decode(path.read_bytes(), path)
    with monkeypatch.context() as patch:
        patch.setattr(format, "version_of", lambda _: format.NEWEST + 1)
        path.write_bytes(format.encode(manifest))
    for words, code in ((["show"], 1), (["verify"], 1), (["diff", run], 2)):
        result = invoke(words[0], run, *words[1:])
        assert code == result.exit_code
        assert "use a newer one" in result.output


# Tending ----------------------------------------------------------------------------------------------------------


def test_a_dry_run_says_what_would_go_and_changes_nothing(run):
    """Also while the run lives: nothing is claimed."""
    store = Store(run)
    store.claim()
    before = listing(run)
    facts = asked("prune", run, "--keep", "Last(1) | Best('val_acc', max)", "--dry-run")
    assert [True, False, False] == [row["goes"] for row in facts["checkpoints"]]
    assert "would go  step-000000010" in done("prune", run, "--keep", "Last(2)", "--dry-run")
    assert before == listing(run)
    store.close()


def test_prune_removes_what_the_rule_does_not_keep_and_gives_the_run_back(run):
    """Pinned ones stay; the next writer finds the run free."""
    done("pin", run, "--step", 10)
    facts = asked("prune", run, "--keep", "Last(1)")
    assert [False, True, False] == [row["goes"] for row in facts["checkpoints"]]
    assert ["step-000000010", "step-000000030"] == [each["name"] for each in asked("ls", run)["checkpoints"]]
    assert 0 == facts["freed_bytes"] % 1 < facts["freed_bytes"]
    done("unpin", run, "--step", 10)
    save(store := Store(run), 40)
    store.close()
    assert [1, 1] == [asked("prune", run, "--keep", "Last(2)")["checkpoints"][0]["goes"], len(store.checkpoints()) - 1]


def test_prune_takes_the_runs_own_rule_and_empties_the_quarantine(tmp_path):
    """The rule of the newest start. With --quarantine alone nothing else goes; what goes has its size."""
    root = tmp_path / "run"
    for end, rule in ((2, Last(3)), (4, Last(2) | Best("loss", min))):
        with Run(root, {"x": np.zeros(100)}, keep=rule, every=Every(steps=1)) as run:
            for step in run.steps(end):
                run.log(loss=float(step))
    with closing(store := Store(root)):
        store.save({"x": np.zeros(100)}, step=5)
        store.quarantine(store.latest(), "damaged")
    before = [each["name"] for each in asked("ls", root)["checkpoints"]]
    facts = asked("prune", root, "--quarantine", "--dry-run")
    assert (None, [], 1) == (facts["rule"], facts["checkpoints"], len(facts["quarantine"]))
    assert facts["freed_bytes"] == facts["quarantine"][0]["size_bytes"] > 800
    assert "1 in quarantine removed" in done("prune", root, "--quarantine")
    assert [] == [*(root / "quarantine").iterdir()]
    assert before == [each["name"] for each in asked("ls", root)["checkpoints"]]
    assert "Last(2) | Best('loss', min, 1)" == asked("prune", root)["rule"]


def test_bytes_on_disk_are_those_of_the_files_that_are_there(tmp_path):
    """Whatever the manifest names, in folders as well. A file that an older checkpoint has too is that one's."""
    with closing(store := Store(tmp_path)):
        for step in (1, 2):
            with store.directory(step=step) as path:
                (path / "model.pt").write_bytes(bytes(1000))
                (path / "folder").mkdir()
                (path / "folder/part").write_bytes(bytes(200))
    first, second = (tmp_path / "checkpoints" / each["name"] for each in asked("ls", tmp_path)["checkpoints"])

    manifests = [(each / "manifest.json").stat().st_size for each in (first, second)]

    def on_disk():
        rows = zip(asked("ls", tmp_path)["checkpoints"], manifests, strict=True)
        return [(row["disk_bytes"] - own, row["shares_with"]) for row, own in rows]

    assert [(1200, []), (1200, [])] == on_disk()
    (first / "model.pt").unlink()
    (second / "folder/more").write_bytes(bytes(30))
    assert [(200, []), (1230, [])] == on_disk()
    (second / "folder/part").unlink()
    (second / "folder/part").hardlink_to(first / "folder/part")
    assert [(200, []), (1030, [first.name])] == on_disk()


@pytest.mark.parametrize("how", [[], ["--dry-run"]])
def test_prune_counts_what_lies_in_folders_as_freed(run, how):
    """As any other file: once for all its names, and not while a checkpoint that stays has one of them."""
    before = asked("prune", run, "--keep", "Last(1)", "--dry-run")
    found = [run / "checkpoints" / row["name"] for row in before["checkpoints"]]
    for folder in found:
        (folder / "one/two").mkdir(parents=True)
    (found[0] / "one/two/own").write_bytes(bytes(1000))
    (found[1] / "one/own").hardlink_to(found[0] / "one/two/own")
    (found[0] / "one/stays").write_bytes(bytes(300))
    (found[2] / "one/two/stays").hardlink_to(found[0] / "one/stays")
    told = asked("prune", run, "--keep", "Last(1)", *how)
    assert ([True, True, False], 1000) == (
        [row["goes"] for row in told["checkpoints"]],
        told["freed_bytes"] - before["freed_bytes"],
    )


def test_a_living_run_is_not_pruned(run):
    """Exit 2, with the owner named; reading and pinning go on."""
    store = Store(run)
    store.claim()
    result = invoke("prune", run, "--keep", "Last(1)")
    assert 2 == result.exit_code
    assert f"pid {os.getpid()}" in result.stderr
    assert 3 == len(store.checkpoints())
    done("pin", run, "--step", "best")
    assert [False, True, False] == [row["pinned"] for row in asked("ls", run)["checkpoints"]]
    store.close()


def test_commands_bear_checkpoints_that_vanish(tmp_path):
    """A run saves and prunes as fast as it can: no reading command ever fails or calls it damage."""
    store = Store(tmp_path, keep=Last(2))
    save(store, 1)
    stop = threading.Event()

    def work():
        step = 1
        while not stop.is_set():
            save(store, step := step + 1)

    worker = threading.Thread(target=work)
    worker.start()
    try:
        for _ in range(30):
            for words in (["ls"], ["show"], ["verify"], ["prune", "--keep", "Last(1)", "--dry-run"]):
                result = invoke(words[0], tmp_path, *words[1:])
                assert 0 == result.exit_code, (words, result.output)
                assert "damaged" not in result.stdout.lower()
    finally:
        stop.set()
        worker.join()
        store.close()


def test_a_dry_run_bears_checkpoints_that_vanish_before_they_are_read(run, monkeypatch):
    """What went after the listing is not in the table, and frees nothing."""
    listed = Store.checkpoints

    def late(store):
        found = listed(store)
        shutil.rmtree(run / "checkpoints/step-000000010", ignore_errors=True)
        return found

    monkeypatch.setattr(Store, "checkpoints", late)
    told = asked("prune", run, "--keep", "Last(1)", "--dry-run")
    assert ["step-000000020", "step-000000030"] == [row["name"] for row in told["checkpoints"]]
    assert [True, False] == [row["goes"] for row in told["checkpoints"]]


def test_what_went_between_the_listing_and_the_reading_is_no_damage(run):
    """A checkpoint whose directory is gone, before its manifest was read or after, is left out, or looked for anew."""
    unread, read = (Checkpoint(run / f"checkpoints/step-0000000{step}") for step in (10, 20))
    assert 20 == read.step
    for checkpoint in (unread, read):
        shutil.rmtree(checkpoint.path)
        assert verify_checkpoint(checkpoint, cold=False) is None
        assert "gone" == unreadable_reason(Checkpoint(checkpoint.path))
    looks = iter([unread, read, Checkpoint(run / "checkpoints/step-000000030")])
    assert 24 == retry_if_removed(lambda: len(next(looks).leaf("model/fc.weight").read()))


# Exporting --------------------------------------------------------------------------------------------------------


def test_a_model_is_exported_for_safetensors_numpy_and_torch(run, tmp_path):
    """The same tensors under the model's own names; ties are said, and a .safetensors file has them once."""
    from safetensors.torch import load_file

    expected = state(20)["model"]
    result = invoke("export", run, "--step", "best", "-o", tmp_path / "m.safetensors")
    assert "head.weight is tied to fc.weight: left out of the file; safetensors.torch.load_model" in result.stdout
    done("export", run, "--step", "best", "-o", tmp_path / "m.pt")
    found = load_file(tmp_path / "m.safetensors")
    assert expected.keys() - found.keys() == {"head.weight"}
    assert all(torch.equal(expected[name], found[name]) for name in found)
    found = torch.load(tmp_path / "m.pt", weights_only=True)
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert found["fc.weight"].data_ptr() == found["head.weight"].data_ptr()


def test_the_model_to_export_is_named_where_it_has_another_name(tmp_path):
    """As in Northeastern's guide, which calls it net; a store of one's own has no model to name."""
    facts = ManifestFields(document={"model": {"nets/g": {}}})
    Store(tmp_path / "run").save({"nets": {"g": {"w": torch.ones(2)}}}, step=1, facts=facts)
    Store(tmp_path / "store").save({"x": torch.ones(2)}, step=1)
    for place, words in ("run", "it has: nets; say --part nets, or --all"), ("store", "x; say --part NAME, or --all"):
        result = invoke("export", tmp_path / place, "-o", tmp_path / "m.npz")
        assert result.exit_code == 3
        assert words in result.stderr


class Tied(torch.nn.Module):
    """An output layer with the input's weight, as language models have it. Its state is not in order of the names."""

    def __init__(self):
        super().__init__()
        self.wte, self.head = torch.nn.Embedding(5, 3), torch.nn.Linear(3, 5)
        self.head.weight = self.wte.weight


def test_an_export_with_tied_weights_is_loaded_by_safetensors_itself(tmp_path):
    """`load_model` wants tied weights once, and refuses a second name; `save_model` writes the same names."""
    from safetensors import safe_open
    from safetensors.torch import load_model, save_model

    saved(tmp_path / "run", {"model": (model := Tied()).state_dict()})
    result = invoke("export", tmp_path / "run", "-o", tmp_path / "m.safetensors")
    assert "  wte.weight is tied to head.weight: left out of the file" in result.stdout
    save_model(model, str(tmp_path / "theirs.safetensors"))
    files = (tmp_path / "m.safetensors", tmp_path / "theirs.safetensors")
    with safe_open(files[0], "pt") as ours, safe_open(files[1], "pt") as theirs:
        assert ours.keys() == theirs.keys()
        assert theirs.metadata().items() <= ours.metadata().items()
    fresh = Tied()
    missing, unexpected = load_model(fresh, tmp_path / "m.safetensors")
    assert not missing
    assert not unexpected
    assert all(torch.equal(value, fresh.state_dict()[name]) for name, value in model.state_dict().items())
    assert fresh.head.weight is fresh.wte.weight


def test_all_parts_are_exported_under_their_paths(tmp_path):
    """Views and layouts are written out in C order; values that are no tensors are counted.

    In a .safetensors file they lie at multiples of their item size, as a memory map wants it, whatever their names.
    """
    base = torch.arange(24, dtype=torch.float64).reshape(4, 6)
    made = {"m": {"a": base[1:, ::2], "b": base[:2], "f": np.asfortranarray(np.ones((2, 3))), "z": torch.empty(0, 3)}}
    made["m"] |= {"s": torch.tensor(True), "n": 5}
    saved(tmp_path / "run", made)
    for suffix in ("npz", "safetensors", "pt"):
        facts = asked("export", tmp_path / "run", "--all", "-o", tmp_path / f"m.{suffix}")
        assert (5, 1) == (facts["tensors"], facts["left_out"])
    data = (tmp_path / "m.safetensors").read_bytes()
    size = int.from_bytes(data[:8], "little")
    starts = {name: each["data_offsets"][0] for name, each in json.loads(data[8 : 8 + size]).items() if name[0] == "m"}
    assert 0 == size % 8
    assert {"m/a": 0, "m/b": 72, "m/f": 168, "m/z": 216, "m/s": 216} == starts
    from safetensors.numpy import load_file

    loaded = torch.load(tmp_path / "m.pt", weights_only=True)
    for found in (np.load(tmp_path / "m.npz"), load_file(tmp_path / "m.safetensors"), loaded):
        for name in "abfzs":
            assert np.array_equal(np.asarray(made["m"][name]), np.asarray(found[f"m/{name}"]))
            assert np.asarray(made["m"][name]).dtype == np.asarray(found[f"m/{name}"]).dtype


def test_what_a_format_cannot_hold_is_refused_by_name(run, tmp_path):
    """bfloat16 in .npz: the tensor and the way out are named, and no file is left."""
    result = invoke("export", run, "-o", tmp_path / "m.npz")
    assert (2, ["run"]) == (result.exit_code, os.listdir(tmp_path))
    assert "half: NumPy has no bfloat16; export to .safetensors" in result.stderr


def test_what_no_format_can_hold_is_refused_with_another_way(tmp_path):
    """None of the three names another one that refuses as well."""
    Store(tmp_path / "run").save({"few": np.ones(3, ml_dtypes.int4)}, step=1)
    for kind in "safetensors", "npz", "pt":
        result = invoke("export", tmp_path / "run", "--all", "-o", tmp_path / f"m.{kind}")
        assert (2, ["run"]) == (result.exit_code, os.listdir(tmp_path))
        assert "few: no format has int4; holdfast.Store(RUN).load() gives the array" in result.stderr


def test_export_replaces_nothing_unless_forced_and_leaves_no_half_of_a_file(run, tmp_path):
    """An existing file stays; a damaged shard gives exit 4 and no file."""
    target = tmp_path / "m.safetensors"
    target.write_text("mine")
    assert 2 == invoke("export", run, "-o", target).exit_code
    assert "mine" == target.read_text()
    flip(run / "checkpoints/step-000000030/model.safetensors", -1)
    assert 4 == invoke("export", run, "--force", "-o", target).exit_code
    assert ("mine", ["m.safetensors", "run"]) == (target.read_text(), sorted(os.listdir(tmp_path)))
    done("export", run, "--force", "--step", 20, "-o", target)


# The process ------------------------------------------------------------------------------------------------------


def test_each_command_has_help_and_json():
    """Each stands in a group, can be called, says what it does, and speaks JSON. An example has its line."""
    assert list(COMMANDS) == " ".join(GROUPS.values()).split() != []
    for name in COMMANDS:
        told = done(name, "--help")
        assert "--json" in told, name
        assert not re.search(rf"[^:\s] +holdfast {name}\b", told), name
        text = commands.get_command(click.Context(commands), name).help
        shown = [line.strip() for line in told.splitlines()]
        assert [] == [line for line in re.findall(r"^ +(holdfast .*)$", text, re.MULTILINE) if line not in shown]


def test_each_command_shows_two_examples_that_it_would_take():
    """Every option of an example exists, and so many arguments are taken."""
    shown = EXAMPLES.strip().splitlines()
    assert dict.fromkeys(COMMANDS, 2) == dict(Counter(line.split()[0] for line in shown))
    for line in shown:
        name, *words = shlex.split(line)
        command = commands.get_command(None, name)
        extra = name == "submit"  # what it does not know goes to sbatch
        context = click.Context(command, info_name=name, ignore_unknown_options=extra, allow_extra_args=extra)
        command.make_parser(context).parse_args(words)
        assert f"  holdfast {line}" in done(name, "--help")


def test_a_command_that_does_not_exist_is_answered_with_the_one_that_was_meant():
    assert "there is no command 'lst': did you mean ls?" in invoke("lst").stderr
    assert "there is no command 'zzz'; see " in invoke("zzz").stderr


def test_a_step_stands_behind_an_at_sign_wherever_a_checkpoint_is_meant(run, tmp_path):
    """As with --step; both, or neither where one is needed, is a wrong use."""
    for words in (["show"], ["export", "--force", "-o", tmp_path / "x.safetensors"], ["verify"], ["pin"], ["unpin"]):
        assert done(*words, run, "--step", 20) == done(*words, f"{run}@20"), words
    for words in (
        ["show", f"{run}@20", "--step", 20],
        ["show", "--step", 20, f"{run}@20"],
        ["pin", run],
        ["pin", f"{run}@x"],
        ["pin", "s3://bucket/run@20"],
    ):
        assert 2 == invoke(*words).exit_code, words


def test_names_from_files_cannot_command_the_terminal(tmp_path):
    """Control, formatting and unpaired characters in keys, notes, metrics and reasons are printed as escapes."""
    evil = "\x1b]0;x\x07\n\u202e\udc80[red]"
    store = Store(tmp_path / "run")
    hostile = {evil: torch.ones(1), "holdfast": {"vars": {evil: evil}}, "x": {evil: [evil]}}
    facts = {"note": evil.replace("\udc80", ""), "document": {"dataset": "\x9b31m"}}
    for step in (1, 2):
        store.save({**hostile, "n": step}, step=step, facts=ManifestFields(metrics={"\x1b[2J": 1.0}, **facts))
    store.attempt.record("metrics", step=1, phase="step", values={"\x1b[2J": 1.0})
    store.quarantine(store[1], "a\x1b[2J")
    store.attempt.close("failed", step=2, error="\x1b[2J")
    (tmp_path / "run/checkpoints/step-000000003").mkdir()
    (tmp_path / "run/checkpoints/step-000000003/manifest.json").write_text("\x1b[2J")
    asking: list[list[Any]] = [
        ["ls"],
        ["show", "--step", 2],
        ["show", "--step", 2, "--all"],
        ["show", "--metrics"],
        ["verify"],
    ]
    for words in [*asking, ["diff", f"{tmp_path / 'run'}@2"], ["show", "--step", 3], ["ls", "\x1b[2J"]]:
        for extra in ([], ["--json"]):
            result = invoke(words[0], tmp_path / "run", *words[1:], *extra)
            told = result.stdout + result.stderr
            assert all(letter.isprintable() or letter == "\n" for letter in told), (words, told)
    assert "\\x1b" in done("ls", tmp_path / "run")


def test_the_version_is_the_packages():
    """One line with the name."""
    assert f"holdfast {importlib.metadata.version('holdfast')}\n" == done("--version")


# what stands in a manifest with a sound digest, a line each
HOSTILE = """\
{"tree": {"view": [1]}}
{"tree": {"view": {"leaf": "model/fc.weight"}}}
{"tree": {"leaf": ["x"]}}
{"tree": {"leaf": "absent"}}
{"tree": {"dict": [1]}}
{"tree": {"dict": {"model": {"leaf": "absent"}}}}
{"tree": {"dict": {"model": {"view": {"leaf": "model/fc.weight", "dtype": "x"}}}}}
{"tree": {"a": 1, "b": 2}}
{"tree": {"items": [[1]]}}
{"tree": {"ordered_with": [[]]}}
{"tree": {"defaultdict": "x"}}
{"tree": {"int": "zz"}}
{"tree": {"dataclass": ["x", 3]}}
{"tree": {"dict": {"holdfast": {"dict": {"vars": {"a": 1, "b": 2}}}}}}
{"created": "yesterday"}
{"best": {"metric": "val_acc"}}
{"best": {"direction": "max"}}
{"best": {"metric": "", "direction": "max"}}
{"document": {"git": 3, "command": {"x": 1}, "model": {"m": {"parameters": "x"}}}}
""".splitlines()
NESTED = '{"tree": %s}' % ("[" * 400 + "]" * 400)


@pytest.mark.parametrize("change", [*HOSTILE, NESTED])
def test_a_manifest_that_contradicts_itself_is_never_a_traceback(run, tmp_path, change):
    """Sound digest, hostile content: each command ends with its line and its exit code."""
    path = run / "checkpoints/step-000000030/manifest.json"
    manifest = format.decode(path.read_bytes(), path)
    path.write_bytes(format.encode(msgspec.structs.replace(manifest, **json.loads(change))))
    asking = f"""\
        ls {run}
        show {run}
        show {run} --all
        show {run} --json
        show {run} --step best
        verify {run}
        diff {run} {run}@10
        export {run} --all -o {tmp_path}/x.npz
        export {run} -o {tmp_path}/x.safetensors
        prune {run} --keep Last(2) --dry-run
        prune {run} --keep Best('val_acc',max)"""
    for words in asking.splitlines():
        result = invoke(*words.split())
        assert result.stderr.count("\n") <= 1
