"""What all tests share: the same examples in every CI run, fresh ones on a developer's machine."""

import os

from hypothesis import settings

from real_slurm import begun, pytest_sessionfinish, pytest_xdist_make_scheduler, slurm  # noqa: F401

settings.register_profile("ci", derandomize=True, deadline=None, database=None)
settings.register_profile("here", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "here")
