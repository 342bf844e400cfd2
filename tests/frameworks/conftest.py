"""SAMPLE=WORD in the environment: of each law one case, drawn by that word, and every name."""

import os

from framework_runs import drawn

WORD = os.environ.get("SAMPLE", "")


def pytest_report_header():
    return [f"one case of each law, drawn by SAMPLE={WORD}"] if WORD else []


def pytest_collection_modifyitems(config, items):
    if WORD:
        cheap = {item.nodeid for item in items if item.path.name == "test_names.py"}
        chosen = cheap | drawn([item.nodeid for item in items], WORD)
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in chosen])
        items[:] = [item for item in items if item.nodeid in chosen]
