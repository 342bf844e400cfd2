"""The notebooks of examples/notebooks run as they stand, in a real kernel, and a run survives what is done to one."""

import os
import sys
import threading
import time
from pathlib import Path

import nbclient
import nbformat
import pytest

NOTEBOOKS = Path(__file__).parents[2] / "examples" / "notebooks"
INTERRUPT_S = 1.5


def executed(name, place, *, interrupted=False):
    """The outputs of each code cell; with `interrupted` the kernel is, while the cell with the loop runs."""
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    client = nbclient.NotebookClient(
        notebook, timeout=120, allow_errors=interrupted, resources={"metadata": {"path": place}}
    )
    with client.setup_kernel():
        for number, cell in enumerate(notebook.cells):
            if interrupted and "run.batches" in cell.source:
                threading.Thread(target=_interrupt, args=(client, place), daemon=True).start()
            client.execute_cell(cell, number)
    return ["".join(_texts(cell)) for cell in notebook.cells if cell.cell_type == "code"]


def _interrupt(client, place):
    while not (place / "runs/notebook/attempts").is_dir():
        time.sleep(0.05)
    time.sleep(INTERRUPT_S)
    os.kill(client.km.provisioner.pid, 2)


def _texts(cell):
    for output in cell.outputs:
        yield output.get("text", "") or "\n".join(output.get("traceback", []))
        yield from (str(text) for text in output.get("data", {}).values())


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    place = tmp_path_factory.mktemp("undisturbed")
    return place, executed("train", place)


def test_a_cell_that_was_interrupted_goes_on_in_another_kernel_to_the_same_numbers(undisturbed, tmp_path):
    """The stop ends the cell with one line, without advice to exit; the progress is one line under the cell."""
    _, expected = undisturbed
    stopped = executed("train", tmp_path, interrupted=True)
    assert "SIGINT: finishing step" in stopped[1]
    assert "stopped by SIGINT" in stopped[1]
    assert "To exit: use" not in stopped[1]
    assert stopped[1].count("epoch ") == 1
    resumed = executed("train", tmp_path)
    assert "resumes" in resumed[1]
    assert "finished: 48 steps in 2 attempts" in resumed[1]
    assert expected[-1] == resumed[-1]


def test_run_store_and_checkpoint_are_shown_as_tables(undisturbed, monkeypatch):
    """And the commands work in a cell."""
    place, outputs = undisturbed
    assert "<table><caption>&lt;Run" in outputs[2]
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    looked = executed("look", place)
    assert "step-000000048-end" in looked[0]
    assert "<table>" in looked[0]
    assert "latest" in looked[2]
    assert "goes on at step 40" in looked[-1]
