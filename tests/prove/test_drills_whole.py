"""Whole drills of further scripts; tests/slow/test_drills.py has those that prove a guarantee."""

from pathlib import Path

import pytest
from test_drills import BROKEN, EPOCHS, KILLS, ONE_KILL, launcher_is_drilled, of_toy
from test_torchrun_launcher import torchrun

from causes import TORCH, planted, quiet
from holdfast import drill
from holdfast.drill import DrillOptions, report
from holdfast.drill.places import AGAIN, END, FIRST, LAST, LATER
from holdfast.errors import ChildError


@pytest.fixture(scope="module")
def python(zygotes):
    return zygotes("numpy")


def test_each_place_every_signal_and_every_damage_of_a_quick_run(python, tmp_path):
    """Its steps take no time: the run waits at its place, and at its brink, for the signal. All signals in turn, a
    flipped bit and a truncated shard between attempts: quarantined, fallen back, identical.
    """
    signals = ["KILL", "TERM", "INT", "USR1", "USR2"]
    found = of_toy(python, tmp_path, *EPOCHS, options=DrillOptions(kills=6, signals=signals, seed=3))
    assert (found.verdict, found.kills_proven, found.places) == (report.IDENTICAL, 6, 23)
    assert {FIRST, LATER, LAST, END, AGAIN} <= {each.kind for each in found.resumed}
    assert len({(each.step, each.phase) for each in found.resumed}) == 6
    assert [each.signal for each in found.attempts if each.signal] == [*signals, "KILL"]
    damaged = [each.damage.partition(":")[0] for each in found.attempts if each.damage]
    assert len(damaged) == 2
    assert damaged == [name for each in found.attempts for name in each.quarantined]


def test_a_script_that_fails_behind_the_last_batch_goes_on_from_the_place_before(python, tmp_path):
    """As it would without a drill; a note says so, and other places are proven instead."""
    found = planted(python, "behind", tmp_path, options=ONE_KILL._replace(kills=6))
    assert (found.verdict, found.kills_proven) == (report.IDENTICAL, 6)
    assert 1 == sum("behind an epoch's last batch, the code that follows failed" in note for note in found.notes)
    assert not any("last batch" in each.kind for each in found.resumed)


def test_the_example_resumes_bit_for_bit(zygotes):
    """The first three epochs of what `make demo` drills: workers, augmentation, EMA, cosine schedule, a new best."""
    train = Path(__file__).parents[2] / "examples" / "digits" / "train.py"
    assert len(train.read_text().splitlines()) <= 90
    python = zygotes(*TORCH, "sklearn.datasets")
    found = drill.drill([*python, str(train)], DrillOptions(kills=2, seed=7, steps=90), quiet)
    assert found.verdict == report.IDENTICAL
    assert {each.signal for each in found.attempts if each.proven} == {"KILL", "TERM"}
    assert {"loss", "val_acc"} <= set(found.metrics)


def test_a_row_that_a_killed_attempt_has_left_is_found(python, tmp_path):
    """The state is equal, and the file has rows twice; written by the step, it has not."""
    lines = (
        "rows = []",
        "for step in run.steps(12):",
        "    toy.learn(step)",
        f"    open({str(tmp_path / 'rows.csv')!r}, 'a').write(f'{{step}},{{toy.value}}\\n')",
    )
    found = of_toy(python, tmp_path, *lines, options=KILLS)
    assert (found.verdict, found.divergence.cause) == (report.OUTPUT_DIFFERS, "file")
    assert "an undisturbed run added 12 lines, and the killed one" in found.file_differences[0]
    anew = (
        "for step in run.steps(12):",
        "    toy.learn(step)",
        "    run.log(value=toy.value % 1000)",
        f"open({str(tmp_path / 'anew.csv')!r}, 'w').write(repr([line['values'] for line in run.metrics()]))",
    )
    found = of_toy(python, tmp_path, *anew, options=KILLS)
    assert (found.verdict, found.file_differences, found.files_compared) == (report.IDENTICAL, [], 1)


def test_a_script_with_several_runs_gives_each_its_directory(python, tmp_path):
    """The first is killed; how the others end is compared as well."""
    more = [f"with new_run({str(tmp_path / 'more')!r}, toy) as run:", "    for step in run.steps(5):"]
    more.append("        toy.learn(step)")
    for carried, expected in ((False, report.IDENTICAL), (True, report.DIFFERENT)):
        lines = ["seen = 0", "for step in run.steps(9):", "    toy.learn(step)", "    seen += 1"]
        lines += ["toy.value += seen"] * carried  # behind the last save of the first run
        found = of_toy(python, tmp_path, *lines, options=KILLS, name=f"train{carried}.py", after=more)
        assert found.verdict == expected, found
        if carried:
            assert (found.divergence.cause, found.divergence.what[:6]) == ("another run", "run-2:")


def test_the_finished_script_is_started_once_more(python, tmp_path):
    """Lines, and files that are written anew, of code behind the loop; not where the process ends by itself."""
    picture = str(tmp_path / "picture")
    head = ("best = 0", "for step in run.steps(9):", "    toy.learn(step)", "    best = step")
    printed = of_toy(python, tmp_path, *head, "print('best', best)", options=KILLS)
    written = of_toy(python, tmp_path, *head, f"open({picture!r}, 'w').write(str(best))", options=KILLS)
    for found in (printed, written):
        assert (found.verdict, found.divergence.cause) == (report.OUTPUT_DIFFERS, "after the loop")
        assert "the loop's body did not run, which sets best" in found.divergence.advice
    assert ([], 1) == (written.output_differences, len(written.file_differences))
    kept = ("run.vars.best = 0", *head[1:3], "    run.vars.best = step", "print('best', run.vars.best)")
    assert report.IDENTICAL == of_toy(python, tmp_path, *kept, options=KILLS).verdict


def test_of_a_rank_that_fails_its_own_last_lines_are_shown(tmp_path):
    """Not what torchrun says of it for fifty lines; and the journal's word for what was wrong."""
    with pytest.raises(ChildError) as error:
        drill.drill(torchrun(tmp_path, body=BROKEN), DrillOptions(), quiet)
    head, *lines = str(error.value).splitlines()
    assert "undisturbed run 1: the command failed with exit 1, ValueError: my own bug; the end of its output:" == head
    assert ["ValueError: my own bug", "torchrun: rank 0 was the first to end, with 1"] == lines[-2:]
    assert not any("torch/distributed" in line for line in lines)


def test_a_launcher_that_does_not_restart_by_itself_is_drilled(tmp_path):
    """As one that does."""
    launcher_is_drilled(tmp_path, "0")
