"""The foreign names that our adapters wrap exist in the installed frameworks, as the adapters know them."""

from importlib import import_module, metadata

import pytest

from framework_runs import pinned
from holdfast.trainers.known import NAMES
from holdfast.trainers.names import unknown_digest, why_not_wrapped

ELSEWHERE = {"ultralytics"}  # tests/vision asks for its names
ALL = [(framework, name) for framework, names in NAMES.items() if framework not in ELSEWHERE for name in names]


@pytest.mark.parametrize(("framework", "name"), ALL, ids=[f"{framework}-{name.path}" for framework, name in ALL])
def test_a_name_is_as_known(framework, name):
    import_module(name.path.partition(":")[0])
    assert why_not_wrapped(name) == unknown_digest(name) == ""


def test_every_adapter_has_names():
    assert [framework for framework, names in NAMES.items() if not names] == []


def test_the_installed_versions_are_those_of_one_lock():
    """What the tests of this folder say is said of these versions."""
    installed = {name: metadata.version(name) for name in pinned("lowest.in")}
    locks = [pinned("requirements.lock"), pinned("lowest.lock")]
    assert installed in [{name: lock[name] for name in installed} for lock in locks]
