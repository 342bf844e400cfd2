"""Runs with torch in processes of their own: memory, workers of loaders, and signals to all of them."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from holdfast import Store
from toy import waited_for

SCRIPT = Path(__file__).parents[1] / "training.py"


def python(code, *words):
    """What a program prints; it ends well."""
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


def group_signalled(command, number, begun):
    """Exit code and output of a process whose whole group is signalled once `begun(process)` has returned."""
    command = [sys.executable, *map(str, command)]
    options: dict[str, Any] = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.STDOUT,
        "text": True,
        "start_new_session": True,
    }
    with subprocess.Popen(command, **options) as process:
        try:
            begun(process)
            os.killpg(process.pid, number)
            said = process.communicate(timeout=120)[0]
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return process.returncode, said


def test_a_signal_to_the_whole_group_saves_and_exits_75(tmp_path):
    """Slurm and Ctrl-C signal the workers too: they go on, the run saves and ends, and nothing else is printed."""
    run = tmp_path / "run"
    asked = {"path": str(run), "workers": 2, "persistent": True, "evaluation_workers": 0, "epochs": 1000}

    def begun(process):
        waited_for(lambda: process.poll() is not None or len(list(run.glob("checkpoints/step-*"))) >= 3, 120)

    code, said = group_signalled([SCRIPT, json.dumps(asked)], signal.SIGINT, begun)
    assert code == 75, said
    endings = ("starts fresh (attempt 1)", "this step", "saved, run me again")
    lines = [line.replace(" and this one", " and this step") for line in said.splitlines() if "as asked" not in line]
    assert [True] * 3 == [line.endswith(text) for line, text in zip(lines, endings, strict=True)], lines


GROUP = """
import multiprocessing, sys, time, torch
from torch.utils.data import DataLoader, TensorDataset
from holdfast import Run

if __name__ == "__main__":
    multiprocessing.set_start_method(sys.argv[2])
    early = multiprocessing.Process(target=int)  # a forkserver that knows nothing of the run
    early.start()
    early.join()
    data = TensorDataset(torch.arange(64.0).unsqueeze(1))
    evaluation = DataLoader(data, batch_size=1, num_workers=2)
    loader = DataLoader(data, batch_size=32, num_workers=2)
    model = torch.nn.Linear(1, 1)
    with Run(sys.argv[1], dict(model=model)) as run:
        for epoch in run.epochs(1000):
            for number, (x,) in enumerate(run.batches(loader)):
                if number == 1:
                    print("training", flush=True)
                    time.sleep(1)
                model(x)
            for number, (x,) in enumerate(evaluation):
                if number == 1:
                    print("evaluating", flush=True)
                time.sleep(0.1)
"""


@pytest.mark.parametrize(("start", "during"), [("fork", "evaluating"), ("spawn", "training")])
def test_a_signal_to_the_whole_group_ends_no_worker(start, during, tmp_path):
    """Slurm and `timeout` signal every process: workers live on, of a loader outside run.batches too, and the run is
    saved. tests/prove has each way to start them.
    """
    ends_no_worker(start, during, tmp_path)


def ends_no_worker(start, during, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(GROUP)

    def begun(process):
        lines = iter(process.stdout.readline, "")
        assert any(line == f"{during}\n" for line in lines)

    code, said = group_signalled([script, tmp_path / "run", start], signal.SIGTERM, begun)
    assert (75, False) == (code, "Traceback" in said), said
    assert Store(tmp_path / "run").latest().phase == ("step" if during == "training" else "end")


CHILD = """
    import multiprocessing, os, signal, sys, torch
    from torch.utils.data import DataLoader, TensorDataset
    from holdfast import Run

    def train(path):
        model = torch.nn.Linear(2, 2)
        loader = DataLoader(TensorDataset(torch.zeros(40, 2)), 4, num_workers=2, persistent_workers=True)
        with Run(path, dict(model=model), every=None) as run:
            for epoch in run.epochs(3):
                for number, (x,) in enumerate(run.batches(loader)):
                    if epoch == 1 and number == 3:
                        os.kill(os.getpid(), signal.SIGTERM)

    if __name__ == "__main__":
        import holdfast.torch.loader
        child = multiprocessing.get_context(sys.argv[2]).Process(target=train, args=(sys.argv[1],))
        child.start()
        child.join(60)
        print(child.exitcode)
        if child.is_alive():
            child.kill()
        os._exit(0)
"""


def test_a_run_inside_a_child_process_ends_with_its_workers(tmp_path):
    """Launchers start training through multiprocessing, whose children run no atexit functions: they end all the
    same.
    """
    ends_inside_a_child("fork", tmp_path)


def ends_inside_a_child(start, tmp_path):
    script = tmp_path / "launch.py"
    script.write_text(textwrap.dedent(CHILD))
    command = [sys.executable, str(script), str(tmp_path / "run"), start]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=240)
    assert done.stdout == "75\n", done.stderr


FORKSERVER = """
    import os, signal, sys, torch
    from torch.utils.data import DataLoader, TensorDataset
    from holdfast import Run

    if __name__ == "__main__":
        model = torch.nn.Linear(2, 2)
        data = TensorDataset(torch.zeros(40, 2))
        loader = DataLoader(data, 4, num_workers=2, persistent_workers=True, multiprocessing_context=sys.argv[2])
        with Run(sys.argv[1], dict(model=model), every=None) as run:
            for epoch in run.epochs(3):
                for number, (x,) in enumerate(run.batches(loader)):
                    if epoch == 1 and number == 3:
                        os.kill(os.getpid(), signal.SIGTERM)
"""


def test_a_script_ends_with_its_workers_however_they_were_started(tmp_path):
    """A worker ends when the process that uses it says so: of a forkserver's workers that is not their parent."""
    ends_with_workers("forkserver", tmp_path)


def ends_with_workers(start, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(FORKSERVER))
    command = [sys.executable, str(script), str(tmp_path / "run"), start]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 75, done.stderr
