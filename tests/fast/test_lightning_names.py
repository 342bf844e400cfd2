"""Lightning's adapter where Lightning is not installed."""

import pytest

from holdfast.errors import UsageError
from holdfast.lightning import Holdfast, framework


def test_without_lightning_one_line_says_what_to_install(monkeypatch):
    """It names the command."""
    monkeypatch.setattr(framework, "PACKAGES", ("no_such_lightning.pytorch", "no_such_pytorch_lightning"))
    with pytest.raises(UsageError, match=r"^holdfast\.lightning wants Lightning: pip install lightning$"):
        Holdfast("runs/x")
