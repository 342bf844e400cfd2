"""How a run without a block ends with its process, which is what counts there."""

import subprocess
import sys

import pytest

from toy import events, launch, lines, names, script

HEAD = """
    run = new_run(RUN, toy, every=Every(steps=2)).start()
"""


LOOP = """
    for epoch in run.epochs(2):
        for batch in run.batches([1, 2, 3, 4]):
            toy.learn(batch)
            if run.step == when:
                how()
            run.log(value=toy.value % 1000)
    print(toy.value, run.step)
"""


def last(path):
    """What the last attempt that said anything ended with."""
    return [e for kind in ("end", "stop", "failed") for e in events(path, kind)]


def attempt(path, body, **environment):
    return launch(script(path, HEAD + body), **environment)


def going(path, when=-1, how="None", loop=LOOP):
    return attempt(path, f"\n    when, how = {when}, lambda: {how}\n" + loop)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What an undisturbed run prints, and its metrics."""
    path = tmp_path_factory.mktemp("whole")
    ended = going(path)
    assert 0 == ended.code, ended
    assert "finished: 8 steps in 1 attempt" in ended.err
    return ended.out, lines(path / "run")


@pytest.mark.parametrize(
    ("how", "code", "told"),
    [
        ("sys.exit(1)", 1, "failed"),
        ("sys.exit(0)", 0, "failed"),
        ("1 / 0", 1, "failed"),
        ("send('TERM')", 75, "stop"),
        ("send('INT')", 75, "stop"),
        ("send('KILL')", -9, None),
        ("[send('INT') for _ in range(3)]", -2, "failed"),
    ],
)
def test_whatever_ends_the_process_in_its_loop_the_next_one_goes_on(tmp_path, whole, how, code, told):
    """Nothing is committed as finished, the next start is not refused, and the end is the undisturbed one."""
    ended = going(tmp_path, 5, how)
    assert code == ended.code, ended
    path = tmp_path / "run"
    assert {told} - {None} == {event["event"] for event in last(path)}, ended
    assert "-end" not in names(path)[-1][-4:] or names(path)[-1] == "step-000000004-end"
    if how == "1 / 0":
        assert events(path, "failed")[-1]["error"].startswith("ZeroDivisionError")
    again = going(tmp_path)
    assert (0, whole[0], whole[1]) == (again.code, again.out, lines(path)), again


def test_a_process_that_ends_without_having_ended_its_loop_finishes_nothing(tmp_path):
    """An iterator that the script holds, and no loop at all: a line says so; the next start is not refused."""
    ended = attempt(tmp_path, "\n    steps = iter(run.steps(9))\n    print(next(steps), next(steps))\n")
    assert (0, "0 1\n") == (ended.code, ended.out), ended
    assert "not finished: the process ends at step 1 of its loop" in ended.err
    ended = attempt(tmp_path, "\n    print(run.step)\n")
    assert (0, "0\n") == (ended.code, ended.out), ended
    assert ["failed"] * 2 == [event["event"] for event in last(tmp_path / "run")]


@pytest.mark.parametrize(
    ("how", "code"), [("monkey()", 7), ("send('TERM')", 75)], ids=["a full disk", "a stop in the last pass"]
)
def test_what_a_break_could_not_raise_is_the_processs_exit_code(tmp_path, how, code):
    """Nobody used the run afterwards: it ends with the error's own code, after all that the script printed."""
    body = f"""
    from holdfast import disk
    def monkey():
        disk.free_bytes = lambda path: 10
    for step in run.steps():
        toy.learn(step)
        if step == 2:
            {how}
            break
    print("after")
    """
    ended = attempt(tmp_path, body)
    assert (code, "after\n") == (ended.code, ended.out), ended


def test_what_a_script_registers_for_its_exit_is_called_before_the_run_ends_the_process(tmp_path):
    """Also when it was registered before anything of Holdfast was used: its import is what counts."""
    script = (
        "import atexit, os, signal, holdfast; atexit.register(print, 'mine')\n"
        "for _ in holdfast.Run('run', {}, every=None).start().steps(5):\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    break"
    )
    ended = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (75, "mine\n") == (ended.returncode, ended.stdout), ended


def test_a_forked_child_neither_ends_nor_breaks_it(tmp_path, whole):
    """It leaves the loop, and its process ends: the run is its parent's, and goes on to the undisturbed end."""
    how = "os.fork() or sys.exit(0)"
    ended = going(tmp_path, 3, how)
    assert (0, whole[0], whole[1]) == (ended.code, ended.out, lines(tmp_path / "run")), ended
    assert 1 == ended.err.count("finished"), ended


NOTEBOOK = """
    import textwrap
    from IPython.core.interactiveshell import InteractiveShell
    shell = InteractiveShell.instance()
    first = "run = new_run(RUN, toy, every=Every(steps=2)).start()"
    second = textwrap.dedent('''
        for epoch in run.epochs(2):
            for batch in run.batches([1, 2, 3, 4]):
                toy.learn(batch)
                if run.step == when:
                    how()
                run.log(value=toy.value % 1000)
        ''')

    def cells(when=-1, how=None):
        shell.push(dict(toy=toy, send=send, new_run=new_run, Every=Every, RUN=RUN, when=when, how=how))
        shell.run_cell(first)
        return type(shell.run_cell(second).error_in_exec).__name__

    names = [cells(3, lambda: 1 / 0), cells(4, lambda: [send("INT") for _ in range(3)]), cells(5, lambda: send("INT"))]
    names += [type(shell.run_cell("import time; send('INT'); time.sleep(1)").error_in_exec).__name__, cells()]
    print()
    print(*names)
    print(shell.run_cell("run.step").result, toy.value, shell.run_cell("len(run.metrics())").result)
"""


def test_in_a_notebook_cells_are_run_again(tmp_path, whole):
    """After an error, after Ctrl-C twice and once. Ctrl-C in another cell is Python's."""
    ended = launch(script(tmp_path, NOTEBOOK), IPYTHONDIR=str(tmp_path / "ipython"))
    assert 0 == ended.code, ended
    value = whole[0].split()[0]
    told = ["ZeroDivisionError KeyboardInterrupt Stopped KeyboardInterrupt NoneType", f"8 {value} 8"]
    assert told == [line for line in ended.out.splitlines() if line and "Out[" not in line][-2:], ended
    assert whole[1] == lines(tmp_path / "run")
