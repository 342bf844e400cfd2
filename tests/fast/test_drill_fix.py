"""What `drill --fix` and `init` write into a script: each listed addition, where it is refused, and that the formatting
and the printed lines stay.
"""

import contextlib
import io
import subprocess
import textwrap

import pytest

from holdfast.drill.fix import begin, repair
from holdfast.drill.fix.changes import apply_fix
from holdfast.drill.fix.source import FixRefused, ScriptSource
from holdfast.drill.report import Fix
from holdfast.errors import UsageError


def dedent(text):
    return textwrap.dedent(text).lstrip("\n")


def changed(text, fix):
    """The lines that the fix removes and adds."""
    before, after = dedent(text), apply_fix(dedent(text), fix)
    diff = repair.unified_diff(before, after, "x.py").splitlines()[2:]
    return [line for line in diff if line[0] in "+-"]


def printed(text, place, monkeypatch):
    monkeypatch.setenv("HOLDFAST_RUN_DIR", str(place))
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        exec(compile(text, "script", "exec"), {"__name__": "__main__"})  # a script of this file
    return out.getvalue()


BLOCK = """
    from holdfast import Run
    ema = {}
    with Run("runs/x", dict(model=[0])) as run:
        for step in run.steps(3):
            ema[step] = 1
"""
TRACK = Fix("track", ("ema",), word="ema")


# Objects and attributes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mapping", "expected"),
    [
        ("dict(model=[0])", "dict(model=[0], ema=ema)"),
        ("dict()", "dict(ema=ema)"),
        ('{"model": [0]}', '{"model": [0], "ema": ema}'),
        ("{}", '{"ema": ema}'),
        ("state", "dict(state, ema=ema)"),
        ('state | {"a": [1]}', 'dict(state | {"a": [1]}, ema=ema)'),
        ("dict(model=[0],)", "dict(model=[0],ema=ema,)"),
    ],
)
def test_an_object_is_added_to_a_state_mapping_of_any_form(mapping, expected):
    text = dedent(BLOCK).replace("dict(model=[0])", mapping)
    assert apply_fix(text, TRACK) == text.replace(f'"runs/x", {mapping}', f'"runs/x", {expected}')


def test_a_mapping_of_one_entry_per_line_gets_one_more_line():
    text = """
        from holdfast import Run
        ema = {}
        run = Run(
            "runs/x",
            state=dict(
                model=[0],  # the net
                optimizer={},
            ),
            keep=None,
        ).start()
    """
    assert changed(text, TRACK) == ["+        ema=ema,"]


def test_attributes_are_tracked_by_fields_which_is_imported():
    text = BLOCK.replace("ema", "env")
    assert changed(text, Fix("fields", ("state", "elapsed"), "env", "env")) == [
        "-from holdfast import Run",
        "+from holdfast import Run, Fields",
        '-with Run("runs/x", dict(model=[0])) as run:',
        '+with Run("runs/x", dict(model=[0], env=Fields(env, "state", "elapsed"))) as run:',
    ]


def test_an_object_that_only_a_branch_makes_is_refused():
    """Without the option it has no value, and the line would fail."""
    text = dedent(BLOCK).replace("ema = {}", "if use_ema:\n    ema = {}")
    with pytest.raises(FixRefused, match="ema has no value where Run is made, or not always"):
        apply_fix(text, TRACK)


def test_an_object_made_behind_the_run_moves_the_run_down_where_only_plain_lines_lie_between():
    text = """
        from holdfast import Run
        run = Run("runs/x", dict()).start()
        size = 3
        ema = [0] * size
        for step in run.steps(3):
            ema[0] += 1
    """
    assert apply_fix(dedent(text), TRACK) == dedent(
        """
        from holdfast import Run
        size = 3
        ema = [0] * size
        run = Run("runs/x", dict(ema=ema)).start()
        for step in run.steps(3):
            ema[0] += 1
        """
    )
    with pytest.raises(FixRefused, match="used in between"):
        apply_fix(dedent(text).replace("size = 3", "size = run.epoch"), TRACK)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (BLOCK.replace("ema = {}", "pass"), "ema has no value where Run is made, or not always"),
        (BLOCK.replace("ema = {}", "").replace("for step", "ema = {}\n        for step"), "cannot be moved"),
        (
            "def f():\n    ema = {}\n" + dedent(BLOCK).replace("ema = {}", ""),
            "ema has no value where Run is made, or not always",
        ),
        (BLOCK + "\n    Run('runs/y', dict())", "2 runs"),
        ("import holdfast\n", "makes no Run"),
        (BLOCK.replace("with Run", "with open(''), wrapped(Run").replace(") as run", ")) as run[0]"), "form"),
    ],
)
def test_an_object_without_a_value_there_is_refused(text, why):
    with pytest.raises(FixRefused, match=why):
        apply_fix(dedent(text), TRACK)


# Variables -----------------------------------------------------------------------------------------------------------


IN_A_FUNCTION = """
    from holdfast import Run
    def main(n, best=9.0):
        total = 0.5  # so far
        run = Run("runs/x", dict(a=[0])).start()
        for step in run.steps(n):
            total += step * best
            best = min(best, total)
            print(f"{step}: {total:.2f} {[total for _ in range(2)]}", (lambda: total)(), sum(total for total in [3]))
        print(total)
    def other():
        total = 3
        return total
    main(4)
    print(other())
"""


def test_a_local_variable_becomes_one_of_the_run_behind_the_run_alone(tmp_path, monkeypatch):
    """f-strings, lambdas and comprehensions read it; a comprehension's own variable, and another function's, stay."""
    line = next(each[4:] for each in IN_A_FUNCTION.splitlines() if "{step}" in each)
    assert changed(IN_A_FUNCTION, Fix("vars", ("total",), "main")) == [
        '-    run = Run("runs/x", dict(a=[0])).start()',
        '+    run = Run("runs/x", dict(a=[0]), vars=dict(total=total)).start()',
        "-        total += step * best",
        "-        best = min(best, total)",
        f"-{line}",
        "-    print(total)",
        "+        run.vars.total += step * best",
        "+        best = min(best, run.vars.total)",
        "+"
        + line.replace("{total", "{run.vars.total")
        .replace("[total", "[run.vars.total")
        .replace(": total)", ": run.vars.total)"),
        "+    print(run.vars.total)",
    ]
    text = dedent(IN_A_FUNCTION)
    both = apply_fix(apply_fix(text, Fix("vars", ("total",), "main")), Fix("vars", ("best",), "main"))
    assert "vars=dict(total=total, best=best)" in both
    assert printed(text, tmp_path / "a", monkeypatch) == printed(both, tmp_path / "b", monkeypatch)


def test_a_variable_of_a_function_that_is_called_makes_the_run_global(tmp_path, monkeypatch):
    text = """
        from holdfast import Run
        def train(epoch):
            loss = 0
            for batch in run.batches([1, 2]):
                loss += batch * epoch
            print(loss)
        def main():
            global run
            run = Run("runs/x", dict(a=[0])).start()
            for epoch in run.epochs(2):
                train(epoch)
        main()
    """
    lines = changed(text, Fix("vars", ("loss",), "train"))
    assert lines == [
        "-    loss = 0",
        "+    run.vars.loss = 0",
        "-        loss += batch * epoch",
        "-    print(loss)",
        "+        run.vars.loss += batch * epoch",
        "+    print(run.vars.loss)",
    ]
    text = dedent(text)
    after = apply_fix(text, Fix("vars", ("loss",), "train"))
    assert printed(text, tmp_path / "a", monkeypatch) == printed(after, tmp_path / "b", monkeypatch)
    local = apply_fix(text.replace("    global run\n", "").replace("run.batches([1, 2])", "[1, 2]"), TRACK_LOSS)
    assert "    global run\n    run = Run(" in local


TRACK_LOSS = Fix("vars", ("loss",), "train")


def test_targets_of_every_kind_become_variables_of_the_run(tmp_path, monkeypatch):
    text = dedent(
        """
        from holdfast import Run
        def main():
            x, y, z = 1, 2, 3
            run = Run("runs/x", dict(a=[0])).start()
            for step in run.steps(3):
                x, (y, *z) = y + step, (x, x, 4)
                x: int = x + 1
                y = w = x * 2
                for x in range(x, x + 2):
                    pass
                z += [x]
                print(x, y, z, w, dict(x=x)["x"])
        main()
        """
    )
    after = text
    for name in "xyz":
        after = apply_fix(after, Fix("vars", (name,), "main"))
    assert "for run.vars.x in range(run.vars.x, run.vars.x + 2):" in after
    assert 'dict(x=run.vars.x)["x"]' in after
    assert printed(text, tmp_path / "a", monkeypatch) == printed(after, tmp_path / "b", monkeypatch)


def test_a_variable_of_the_module_is_tracked_by_its_name_and_no_line_of_the_loop_changes():
    text = BLOCK.replace("ema = {}", "best = 9.0").replace("ema[step] = 1", "best = step")
    lines = changed(text, Fix("vars", ("best",)))
    assert lines[-1] == '+with Run("runs/x", dict(model=[0], best=Fields(globals(), "best"))) as run:'
    assert len(lines) == 4


def test_an_array_that_is_only_changed_in_place_is_tracked_and_no_line_of_the_loop_changes():
    text = """
        from holdfast import Run
        def main():
            field = np.ones(3)
            run = Run("runs/x", dict()).start()
            for step in run.steps(2):
                field += 1
                field[0] = 2
    """
    fix = Fix("vars", ("field",), "main", "field")
    assert changed(text, fix)[1:] == ['+    run = Run("runs/x", dict(field=field)).start()']
    assert "run.vars.field = run.vars.field * 2" in apply_fix(dedent(text) + "        field = field * 2\n", fix)


def test_a_variable_of_the_module_that_is_made_behind_the_run_becomes_one_of_the_run():
    text = """
        from holdfast import Run
        with Run("runs/x", dict(a=[0])) as run:
            for epoch in run.epochs(2):
                total = 0
                for x in run.batches([1, 2]):
                    total += x
    """
    fix = Fix("vars", ("total",))
    assert changed(text, fix)[1::2] == ["+        run.vars.total = 0", "+            run.vars.total += x"]
    with pytest.raises(FixRefused, match="before Run is made"):
        apply_fix(dedent(text).replace("with Run", "def show():\n    print(total)\nwith Run"), fix)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("def inner():\n            nonlocal total\n            total = 2", "global or nonlocal"),
        ("print(total := 3)", "bound inside of an expression"),
        ("del total", "deleted"),
        ('print(f"{total=}")', "with its own name"),
        ("print(locals())", "looked at by locals"),
        ("import os as total", "not followed"),
        ("def total(): pass", "not followed"),
        ("try: pass\n        except OSError as total: pass", "inside of an expression"),
    ],
)
def test_a_variable_that_no_attribute_can_stand_for_is_refused(line, why):
    text = dedent(IN_A_FUNCTION).replace("        total += step * best\n", f"        total += 1\n        {line}\n")
    with pytest.raises(FixRefused, match=why):
        apply_fix(text, Fix("vars", ("total",), "main"))


def test_a_parameter_of_a_function_that_does_not_make_the_run_is_refused():
    text = """
        from holdfast import Run
        def train(loss):
            loss += 1
        run = Run("runs/x", dict(a=[0])).start()
        for epoch in run.epochs(2):
            train(epoch)
    """
    with pytest.raises(FixRefused, match="parameter of train"):
        apply_fix(dedent(text), TRACK_LOSS)


# Loaders -------------------------------------------------------------------------------------------------------------


def test_an_index_is_counted_by_the_run():
    text = """
        from holdfast import Run
        with Run("runs/x", dict(a=[0])) as run:
            for epoch in run.epochs(2):
                for i, x in enumerate(run.batches([3, 4], accumulate=2), 1):
                    print(i)
    """
    assert changed(text, Fix("enumerate", ("i",))) == [
        "-        for i, x in enumerate(run.batches([3, 4], accumulate=2), 1):",
        "+        for i, x in run.enumerate([3, 4], accumulate=2, start=1):",
    ]


LOADER = """
    from torch.utils.data import DataLoader
    from holdfast import Run
    test = DataLoader(held_back, 8)
    loader = DataLoader(crops, 4, shuffle=True, num_workers=2)
    with Run("runs/x", dict(a=[0])) as run:
        for epoch in run.epochs(2):
            for x in run.batches(loader):
                pass
"""


def test_the_dataset_of_the_loader_that_is_walked_is_seeded():
    assert changed(LOADER, Fix("seeded", ("train",)))[-1] == (
        "+loader = DataLoader(Seeded(crops, seed=0), 4, shuffle=True, num_workers=2)"
    )
    with pytest.raises(FixRefused, match="2 DataLoaders"):
        apply_fix(dedent(LOADER).replace("run.batches(loader)", "run.batches(get())"), Fix("seeded", ("train",)))


def test_a_loader_is_walked_by_the_run_and_next_is_refused():
    text = LOADER.replace("run.batches(loader)", "loader").replace("pass", "x.backward()")
    assert changed(text, Fix("batches", ()))[-1] == "+        for x in run.batches(loader):"
    assert changed(text, Fix("batches", ("loader",)))[-1] == "+        for x in run.batches(loader):"
    with pytest.raises(FixRefused, match="by next"):
        apply_fix(dedent(text), Fix("batches", ("it",)))


# From zero -----------------------------------------------------------------------------------------------------------


def test_a_training_script_gets_its_run_its_state_and_its_loops():
    """mnist's shape: the loop over batches is in a function, and the run is made in another one."""
    text = dedent(
        '''
        """Trains."""
        from __future__ import annotations

        import torch
        from torch import optim


        def train(model, loader, optimizer):
            model.train()
            for index, (x, y) in enumerate(tqdm(loader, desc="x")):
                optimizer.zero_grad()
                loss(model(x), y).backward()
                optimizer.step()


        def main():
            model = Net()
            optimizer = optim.SGD(model.parameters(), lr=0.1)
            lr = optim.lr_scheduler.StepLR(optimizer, 1)

            # as often as asked
            for epoch in range(1, N + 1):
                train(model, loader, optimizer)
                lr.step()
        '''
    )
    diff = repair.unified_diff(text, begin.add_run(text, "train"), "x.py").splitlines()[2:]
    assert [line for line in diff if line[0] in "+-"] == [
        "+from holdfast import Run",
        '-    for index, (x, y) in enumerate(tqdm(loader, desc="x")):',
        '+    for index, (x, y) in tqdm(run.enumerate(loader), desc="x"):',
        "+    global run",
        '+    run = Run("runs/train", dict(model=model, optimizer=optimizer, lr=lr)).start()',
        "-    for epoch in range(1, N + 1):",
        "+    for epoch in run.epochs(range(1, N + 1)):",
    ]


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        ("for i in range(n):", "for i in run.steps(n):"),
        ("for i in range(0, n):", "for i in run.steps(n):"),
        ("for i in range(1, n):", "for i in run.epochs(range(1, n)):"),
        ("for i in range(0, n, 2):", "for i in run.batches(range(0, n, 2)):"),
        ("for i in tqdm(range(n), leave=False):", "for i in tqdm(run.steps(n), leave=False):"),
        ("for i, x in enumerate(data):", "for i, x in run.enumerate(data):"),
        ("for x, y in zip(a, b):", "for x, y in run.batches(Zip(a, b)):"),
        ("while True:", "for _ in run.steps():"),
    ],
)
def test_an_outermost_loop_of_any_form_is_walked_by_the_run(head, expected):
    text = f"{head}\n    work()\n"
    assert f"\n{expected}\n    work()\n" in begin.add_run(text, "x")


def test_a_while_loop_is_left_where_its_test_fails(tmp_path, monkeypatch):
    text = dedent(
        """
        g, fits = 0, [1]
        while max(fits) < 20 and g < 1000:
            g += 1
            if g == 2:
                continue
            fits = [each * 2 for each in fits]
            print(g, fits)
        print(g)
        """
    )
    after = begin.add_run(text, "x")
    assert "for _ in run.steps():\n    if not (max(fits) < 20 and g < 1000):\n        break\n" in after
    assert printed(text, tmp_path / "a", monkeypatch) == printed(after, tmp_path / "b", monkeypatch)


def test_passes_over_one_set_of_data_and_parts_of_a_step_are_not_walked():
    """PPO's shape, and a loop over micro-batches: the outermost loop alone is walked."""
    ppo = dedent(
        """
        for iteration in range(5):
            for epoch in range(4):
                for start in range(0, 8, 2):
                    optimizer.zero_grad()
                    loss.backward()
        """
    )
    micro = "for step in range(5):\n    for part in range(4):\n        loss.backward()\n    optimizer.zero_grad()\n"
    for text in (ppo, micro):
        assert begin.add_run(text, "x").count("run.") == 1


def test_a_loop_that_makes_data_is_no_training_loop():
    """Equinox's shape: a generator of batches, and a step in a function inside of main()."""
    text = dedent(
        """
        def dataloader(x):
            while True:
                for begin in range(0, 8, 2):
                    yield x[begin : begin + 2]

        def main(steps):
            def make_step(model, x):
                return optax.apply_updates(model, x)

            for step, x in zip(range(steps), dataloader(xs)):
                model = make_step(model, x)
        """
    )
    assert "for step, x in run.batches(Zip(range(steps), dataloader(xs))):" in begin.add_run(text, "x")


def test_a_script_without_a_loop_or_that_is_no_python_is_refused():
    with pytest.raises(FixRefused, match="no training loop"):
        begin.add_run("print(1)\n", "x")
    with pytest.raises(UsageError, match="line 1"):
        ScriptSource("for in\n")


def test_a_name_that_is_taken_is_not_taken_again():
    text = "run = 3\nfor i in range(run):\n    print(i)\n"
    assert "survivor = Run(" in begin.add_run(text, "x")


def test_a_script_with_a_run_is_left_to_the_drill():
    text = dedent(BLOCK)
    assert begin.add_run(text, "x") == text


# The diff ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["\n", ""])
def test_the_diff_applies_with_patch(tmp_path, end):
    text = dedent(BLOCK).rstrip("\n") + end
    after = apply_fix(text, TRACK)
    (tmp_path / "x.py").write_text(text)
    (tmp_path / "diff").write_text(repair.unified_diff(text, after, "x.py"))
    subprocess.run(["patch", "-s", "x.py", "diff"], cwd=tmp_path, check=True)
    assert (tmp_path / "x.py").read_text() == after


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("indent", ["  ", "\t"])
def test_what_is_not_changed_keeps_every_byte(newline, indent):
    text = dedent(BLOCK).replace("    ", indent).replace("\n", newline) + f"# end{newline}x = ( 1,2 ){newline}"
    after = apply_fix(text, TRACK)
    assert after == text.replace("dict(model=[0])", "dict(model=[0], ema=ema)")


def test_what_only_a_branch_binds_is_not_tracked_unless_a_line_that_always_runs_uses_it():
    """An optimizer that an option asks for has no value without the option; a model of two branches has one."""
    text = dedent(
        """
        if small:
            model = Net(1)
        else:
            model = Net(2)
        model.to(device)
        if args.use_optimizer:
            optimizer = SGD(model.parameters())
        if __name__ == "__main__":
            for i in range(3):
                model.zero_grad()
                loss.backward()
        """
    )
    assert 'Run("runs/x", dict(model=model)).start()' in begin.add_run(text, "x")
