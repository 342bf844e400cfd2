"""The adapter of docs/adapters.md, for a trainer that fetches ahead and validates: the page's code is one script."""

import re
from pathlib import Path

from causes import quiet
from holdfast import drill
from holdfast.drill import DrillOptions

PAGE = (Path(__file__).parents[2] / "docs/adapters.md").read_text()
TRAINER, ADAPTER, SCRIPT = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def test_the_page_s_adapter_resumes_exactly(zygotes, tmp_path):
    """Killed within epochs, at their last batches and between them; and an adapter is not long."""
    script = tmp_path / "train.py"
    script.write_text(TRAINER + ADAPTER + SCRIPT)
    found = drill.drill([*zygotes("numpy"), str(script)], DrillOptions(kills=6, seed=3), quiet)
    assert found.exit_code == 0, (found.verdict, found.divergence, found.notes)
    assert found.kills_proven == 6
    assert len(ADAPTER.splitlines()) <= 60
