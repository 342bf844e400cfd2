"""The drill names the true cause: a sample of the planted scripts. `make prove` tries all."""

import pytest

from causes import PLANTED, is_named_and_mended
from samples import sample


@pytest.mark.parametrize("planted", sample(PLANTED, 3), ids=lambda planted: planted.script)
def test_an_omission_is_found_by_its_name_and_mended_by_the_first_line(planted, zygotes, tmp_path, record_property):
    is_named_and_mended(planted, zygotes, tmp_path, record_property)
