"""How much memory a save, a restore and a check take besides the state, each measured in a process of its own."""

import shutil
import subprocess
import sys

import pytest
from test_torch_processes import python

MEASURED = """
import re, sys
from pathlib import Path
import torch
from holdfast import Every, Last, Run, Store, disk

how, order, leaves, path = sys.argv[1:]
count = int(leaves)

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) << 10

def reset():
    Path("/proc/self/clear_refs").write_text("5")
    return peak()

model = torch.nn.Module()
for number in range(count):
    tensor = torch.full((256 // count, 1024, 16, 16), float(number)).to(memory_format=getattr(torch, order))
    model.register_parameter(f"p{number}", torch.nn.Parameter(tensor))
del tensor
assert sum(parameter.nbytes for parameter in model.parameters()) == 256 << 20
small = {"w": torch.randn(2, 1024, 64, 64).to(memory_format=torch.channels_last)}
Store(path + "-first").save(small, step=1)  # what comes once: imports

def step():
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 1

if how.startswith("saved"):
    store = Store(path, keep=Last(1 if "pruned" in how else 9))
    before = reset()
    for number in (1, 2, 3):
        step()
        store.save({"model": model.state_dict()}, step=number)
    print(peak() - before)
elif how == "in the background":
    before = reset()
    with Run(path, {"model": model}, every=Every(steps=1), keep=Last(9)) as run:
        warm = 0
        for number in run.steps(100):
            step()
            warm += number > 0 and not run._last_session().saves.arena.is_warming
            if warm == 3:
                run.wait()
                print(peak() - before)
                break
else:
    with Run(path, {"model": model}, every=None, keep=Last(9)) as run:
        for _ in run.steps(1):
            step()
    checkpoint = Store(path).latest()
    for name in checkpoint.manifest.files:
        disk.drop_cached(checkpoint.path / name) if "cold" in how else (checkpoint.path / name).read_bytes()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    before = reset()
    with Run(path, {"model": model}, every=None, keep=Last(9), go_back=1) as run:  # else this process's values count
        for _ in run.steps(2):
            print(peak() - before)
            assert all(bool((p == n + 1).all()) for n, p in enumerate(model.parameters()))
            before = reset()
            assert not [*checkpoint.problems(cold=True), *checkpoint.problems()]
            print(peak() - before)
"""
STATE, LITTLE, CHUNKS = 256 << 20, 64 << 20, 24 << 20  # chunks: what one file takes on its way to the disk
MOST = {
    ("saved", "channels_last", 1): LITTLE,
    ("saved and pruned", "contiguous_format", 32): LITTLE,
    ("in the background", "channels_last", 1): 1.05 * STATE + CHUNKS,
    ("in the background", "contiguous_format", 32): 1.05 * STATE + CHUNKS,
    ("restored, cold", "channels_last", 1): LITTLE,
    ("restored, cached", "channels_last", 32): LITTLE,
}


@pytest.mark.parametrize(("how", "order", "leaves"), MOST)
def test_a_state_takes_little_memory_besides_itself(tmp_path, how, order, leaves):
    """64 MiB for a save, a prune, a restore and a check; one copy and a file's chunks for a save in the background.

    In any order of the items.
    """
    command = [sys.executable, "-c", MEASURED, how, order, str(leaves), str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    shutil.rmtree(tmp_path)
    extra = [*map(int, done.stdout.split())]
    print(how, order, leaves, [each >> 20 for each in extra], "MiB")
    assert len(extra) == (2 if "restored" in how else 1)
    assert 0 < max(extra) <= MOST[how, order, leaves]


PEAK = """
    import os, re, sys, torch
    from holdfast import Run
    os.fsync = lambda descriptor: None

    def peak_mib():
        return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) >> 10

    torch.manual_seed(int(sys.argv[2]))
    model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048, bias=False) for _ in range(16)))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with Run(sys.argv[1] + "-warm", dict(model=torch.nn.Linear(2, 2)), every=None):
        pass
    open("/proc/self/clear_refs", "w").write("5")
    before = peak_mib()
    with Run(sys.argv[1], dict(model=model, optimizer=optimizer), every=None) as run:
        for step in run.steps(1 + int(sys.argv[2])):
            pass
    restored = peak_mib()
    copies = [parameter.detach().clone() for parameter in model.parameters()]
    print(restored - before, peak_mib() - restored, run.step, float(model[15].weight.double().sum()))
"""


def test_a_resume_needs_no_second_copy_of_the_model(tmp_path):
    """256 MiB are saved by one process and restored by another: the peak rises by less than a quarter of that."""
    lines = [python(PEAK, tmp_path / "run", attempt).split() for attempt in (0, 1)]
    (_, _, _, saved), (peak_mib, copy_mib, step, restored) = lines
    assert (saved, "2") == (restored, step)
    assert int(peak_mib) < 64
    assert int(copy_mib) > 200, "the measure sees a copy when there is one"
