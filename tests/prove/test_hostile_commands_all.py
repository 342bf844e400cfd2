"""Every command on every odd checkpoint whose digests are right."""

import pytest
from test_hostile_commands import commands_end_soon

from odd_checkpoints import ODD


@pytest.mark.usefixtures("no_syncs")
@pytest.mark.parametrize("name", ODD)
def test_each_command_ends_soon_with_a_line_at_each_odd_checkpoint(name, tmp_path):
    commands_end_soon(name, tmp_path, slice(None))
