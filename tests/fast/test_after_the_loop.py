"""A finished run that is started again: what the code behind its loop lacks, and the process that ends instead."""

import contextlib

import pytest

from holdfast import Fields, Run
from holdfast.errors import UsageError
from run_ranks import Part, among_threads
from toy import Toy, events, launch, lines, names, new_run, script


def by_epochs(run, toy):
    best = total = 0
    for epoch in run.epochs(2):
        for x in run.batches([1, 2]):
            toy.learn(x)
            loss = x
        total += loss
        best = max(best, total)
        unused = epoch  # noqa: F841
    return best, total


def by_steps(run, toy):
    result = None
    for step in run.steps(3):
        toy.learn(step)
        result = step
    return result


def by_batches(run, toy):
    for x in run.batches([1, 2]):
        toy.learn(x)
    return x


def right(run, toy):
    for step in run.steps(3):
        toy.learn(step)
        once = step
        run.vars.last = once
    return run.vars.last


def by_break(run, toy):
    for step in run.steps(9):
        toy.learn(step)
        if step == 2:
            break
    return step


def by_closure(run, toy):
    history = None
    for step in run.steps(3):
        toy.learn(step)
        history = [step]
    return [step for step in range(3) if [step] != history]


def by_names_of_comprehensions(run, toy):
    kept = 0
    for step in run.steps(3):
        toy.learn(step)
        x = step
        passed = x
        kept_too = [-kept for kept in (passed, x)]  # noqa: F841
    return [[-x for x in range(n)] for n in range(3)], {x: -x for x in range(2)}, kept


@pytest.mark.parametrize(
    ("loop", "told"),
    [
        (by_epochs, "best, total"),
        (by_steps, "result"),
        (by_batches, "x"),
        (right, ""),
        (by_break, "step"),
        (by_closure, "history"),
        (by_names_of_comprehensions, ""),
    ],
)
def test_the_names_that_only_the_body_sets_are_told(tmp_path, capsys, loop, told):
    """What the code behind the loop reads. Nothing on the first start, nor where it reads what the run keeps."""
    for again in (False, True):
        toy = Toy()
        with new_run(tmp_path, toy, vars={"last": 0}) as run:
            if again and loop in (by_batches, by_break):
                with pytest.raises(UnboundLocalError):
                    loop(run, toy)
            else:
                loop(run, toy)
        said = capsys.readouterr().err
        assert again == ("its loop's body runs again only up to a larger total" in said)
        assert bool(again and told) == ("The code behind it reads" in said)
        assert not (again and told) or f"The code behind it reads {told}, which the body sets" in said


def test_a_variable_that_is_restored_is_not_told(tmp_path, capsys):
    """An attribute that `Fields` keeps, and a tracked object that the body binds to itself."""
    path = script(
        tmp_path,
        """
        from holdfast import Fields
        best = 0
        with Run(RUN, dict(toy=toy, mine=Fields(globals(), "best"))) as run:
            for step in run.steps(3):
                toy = toy
                best = step
        print(best, toy.value)
        """,
    )
    first, second = (launch(path) for _ in range(2))
    assert first.out == second.out
    assert "already finished" in second.err
    assert "The code behind it reads" not in second.err


# finished="exit" -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [True, False])
def test_a_finished_run_ends_the_process_on_request(tmp_path, block):
    """With 0; what a `finally` and a `with` have to do is done, and what follows the loop is not."""
    head = 'with new_run(RUN, toy, finished="exit") as run:' if block else "if True:"
    begin = "" if block else 'run = new_run(RUN, toy, finished="exit").start()'
    path = script(
        tmp_path,
        f"""
        try:
            {begin}
            {head}
                for epoch in run.epochs(2 if len(sys.argv) < 2 else 3):
                    for x in run.batches([1, 2]):
                        toy.learn(x)
            print("behind", toy.value)
        finally:
            print("finally")
        """,
    )
    first, second, third = (launch(path) for _ in range(3))
    assert [0, 0, 0] == [each.code for each in (first, second, third)]
    assert first.out.startswith("behind")
    assert ["finally\n"] * 2 == [second.out, third.out]
    assert "already finished at step 4" in third.err
    assert launch(path, "more").out.startswith("behind")  # a raised total has passes left
    assert 1 == len([each for each in names(tmp_path / "run") if each == "step-000000006-end"])


def test_a_run_that_ends_its_process_is_journalled_as_ended(tmp_path):
    """Each attempt, at the last step; the line behind the loop is written once."""
    for attempt in range(3):
        with (
            contextlib.suppress(SystemExit) if attempt else contextlib.nullcontext(),
            new_run(tmp_path, Toy(), finished="exit") as run,
        ):
            [*run.steps(2)]
            run.log(end=attempt)
    assert [2, 2, 2] == [event["step"] for event in events(tmp_path, "end")]
    assert [{"end": 0.0}] == [values for _, _, values in lines(tmp_path) if values]


def test_a_loop_that_is_still_to_come_is_awaited(tmp_path):
    """Two loops of one run, the second with a raised total: the first is over, and the process goes on."""
    for total, passes in ((4, [0, 1, 2, 3]), (6, [4, 5])):
        with new_run(tmp_path, Toy(), finished="exit") as run:
            assert passes == [*run.steps(2), *run.steps(total)]
    with pytest.raises(SystemExit), new_run(tmp_path, Toy(), finished="exit") as run:
        assert [] == [*run.steps(2)]
        [*run.steps(6)]
        raise AssertionError


def test_all_ranks_end_their_processes(tmp_path, monkeypatch):
    among = among_threads(monkeypatch)

    def work(rank):
        part = Part(rank)
        with Run(tmp_path, {"part": part}, finished="exit") as run:
            for _ in run.steps(3):
                part.learn()

    assert [None, None] == among(2, work)
    assert [SystemExit, SystemExit] == [type(each) for each in among(2, work)]


def test_another_word_is_refused(tmp_path):
    with pytest.raises(UsageError, match='give "exit", or "continue"'):
        Run(tmp_path, {"toy": Toy(), "f": Fields(Toy(), "value")}, finished="stop")
