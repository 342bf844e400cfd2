"""A pytest plugin: with --sample=WORD, of each law one case that the word draws, and every name of a framework.

Of the laws in tests/prove, which are long, the word draws half.
"""

import random
from itertools import groupby

CHEAP = "test_names.py"


def is_asked(law, word):
    """Whether this law, "tests/prove/test_file.py::test_name", is one that the word draws."""
    return "prove/" not in law or random.Random(f"half {word} {law}").random() < 0.5


def drawn(cases, word):
    """Of each law one of its cases, "test_file.py::test_name[case]": with the same word the same ones."""
    laws = groupby(sorted(cases), key=lambda case: case.partition("[")[0])
    return {random.Random(f"{word} {law}").choice(list(found)) for law, found in laws if is_asked(law, word)}


def pytest_addoption(parser):
    parser.addoption("--sample", metavar="WORD", help=__doc__)


def pytest_report_header(config):
    word = config.getoption("sample")
    return [f"one case of each law, and half of the laws in tests/prove, drawn by --sample={word}"] if word else []


def pytest_collection_modifyitems(config, items):
    if word := config.getoption("sample"):
        chosen = drawn([item.nodeid for item in items], word)
        left = {item for item in items if item.nodeid not in chosen and item.path.name != CHEAP}
        config.hook.pytest_deselected(items=list(left))
        items[:] = [item for item in items if item not in left]
