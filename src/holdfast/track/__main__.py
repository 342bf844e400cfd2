"""`python -m holdfast.track`: the process that a run's `client` starts for each tracker."""

from ..mirror.apart import leave_parent

leave_parent()

from .worker import main  # noqa: E402  after the signals

main()
