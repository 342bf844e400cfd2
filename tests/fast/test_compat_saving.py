"""atomic_torch_save: the file is the old one or the new one, whole and durable."""

import errno
import os
import pickle
from collections import OrderedDict
from pathlib import Path

import pytest
import torch

from faults import Crash, Memory, door, scratched
from holdfast.compat.cycling_utils import atomic_torch_save


def state(number, size=20_000):
    return {"weights": torch.full((size,), float(number)), "step": number, "names": ["a", "b"]}


def number_in(path):
    """Which state the file holds, having compared all of it."""
    found = torch.load(path, weights_only=True)
    wanted = state(found["step"], len(found["weights"]))
    assert torch.equal(wanted["weights"], found["weights"])
    assert wanted["names"] == found["names"]
    return found["step"]


@pytest.mark.parametrize("options", [{}, {"_use_new_zipfile_serialization": False}, {"pickle_protocol": 2}])
@pytest.mark.parametrize("kind", [str, Path])
def test_a_drop_in_for_torch_save(tmp_path, kind, options):
    """The same arguments in, the same object out of torch.load; nothing else is left in the directory."""
    path = kind(tmp_path / "latest.pt")
    for number in (1, 2):
        atomic_torch_save(state(number), path, **options)
        assert number == number_in(path)
    assert ["latest.pt"] == os.listdir(tmp_path)


def test_a_relative_path_is_the_callers_own(tmp_path, monkeypatch):
    """As with torch.save."""
    monkeypatch.chdir(tmp_path)
    atomic_torch_save(state(1), "latest.pt")
    assert number_in("latest.pt") == 1


def refuses(error, *names):
    """Let changes of these names fail."""

    def act(call, perform):
        if call.name in names:
            raise error
        return perform()

    return door(act)


def test_whatever_ends_a_save_leaves_the_old_file(tmp_path):
    """An object that torch refuses half-way, a full disk, an end of the process: as itself, through torch's own
    code.
    """
    path, bad = tmp_path / "latest.pt", {"weights": torch.ones(10), "bad": lambda: None}
    atomic_torch_save(state(1), path)
    with pytest.raises((AttributeError, TypeError, pickle.PicklingError), match=r"pickle|local object"):
        atomic_torch_save(bad, path)
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    for error, name in ((full, "write"), (Crash(), "fsync")):
        with refuses(error, name), pytest.raises(type(error)) as raised:
            atomic_torch_save(state(2), path)
        assert raised.value is error
        assert number_in(path) == 1
    assert ["latest.pt"] == os.listdir(tmp_path)


def test_power_lost_at_any_change_leaves_the_old_or_the_new():
    """Also of what a power loss does to names and data that were not synced. Returned means: the new one."""
    with scratched("compat-saving") as base:
        run = base / "run"
        run.mkdir()
        with door(memory := Memory(base)):
            atomic_torch_save(state(1), run / "latest.pt")
        seen = []

        def change(call, perform):
            seen.extend(picture for _, picture in memory.states())
            return memory(call, perform)

        with door(change):
            atomic_torch_save(state(2), run / "latest.pt")
        for place, picture in enumerate(seen):
            assert number_after(picture, base / f"before-{place}") in {1, 2}
        for place, (_, picture) in enumerate(memory.states()):
            assert number_after(picture, base / f"after-{place}") == 2
        memory.close()
        assert len(seen) > 10


def number_after(picture, place):
    for _ in picture.build(place):
        pass
    return number_in(place / "run" / "latest.pt")


def test_two_that_save_the_same_file_at_once_do_not_disturb_each_other(tmp_path):
    """All ranks of a script that does not ask for its rank: one of the whole files stays."""
    path = tmp_path / "latest.pt"

    class Second:
        def __reduce__(self):
            atomic_torch_save(state(2), path)  # in the midst of the first
            return (OrderedDict, ())

    atomic_torch_save({**state(1), "second": Second()}, path)
    assert number_in(path) == 1
    assert ["latest.pt"] == os.listdir(tmp_path)
