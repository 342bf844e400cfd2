"""A pytest plugin: with --sample=WORD, of each law one case that the word draws, and every name of a framework."""

import random
from itertools import groupby

CHEAP = "test_names.py"


def drawn(cases, word):
    """Of each law one of its cases, "test_file.py::test_name[case]": with the same word the same ones."""
    laws = groupby(sorted(cases), key=lambda case: case.partition("[")[0])
    return {random.Random(f"{word} {law}").choice(list(found)) for law, found in laws}


def pytest_addoption(parser):
    parser.addoption("--sample", metavar="WORD", help=__doc__)


def pytest_report_header(config):
    word = config.getoption("sample")
    return [f"one case of each law, drawn by --sample={word}"] if word else []


def pytest_collection_modifyitems(config, items):
    if word := config.getoption("sample"):
        chosen = drawn([item.nodeid for item in items], word)
        left = {item for item in items if item.nodeid not in chosen and item.path.name != CHEAP}
        config.hook.pytest_deselected(items=list(left))
        items[:] = [item for item in items if item not in left]
