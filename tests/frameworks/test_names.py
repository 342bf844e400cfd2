"""The foreign names that our adapters wrap exist in the installed frameworks, as the adapters know them."""

from importlib import import_module

import pytest

from holdfast.trainers.known import NAMES
from holdfast.trainers.names import unlike

ALL = [(framework, name) for framework, names in NAMES.items() for name in names]


@pytest.mark.parametrize(("framework", "name"), ALL, ids=[f"{framework}-{name.path}" for framework, name in ALL])
def test_a_name_is_as_known(framework, name):
    import_module(name.path.partition(":")[0])
    assert unlike(name) == ""


def test_every_adapter_has_names():
    assert [framework for framework, names in NAMES.items() if not names] == []
