"""`python -m holdfast.mirror`: the process that a run's `client` starts."""

from .apart import leave_parent

leave_parent()

from .worker import main  # noqa: E402  after the signals

main()
