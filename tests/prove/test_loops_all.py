"""The loops of docs/loops.md, all of them, each drilled as it stands there."""

import pytest
from test_loops import LOOPS, resumes_exactly


@pytest.mark.parametrize("name", LOOPS)
def test_each_loop_of_the_page_resumes_exactly(name, zygotes, tmp_path, record_property):
    resumes_exactly(name, zygotes, tmp_path, record_property)
