"""One law asked of many subjects within one test."""

from contextlib import contextmanager


@contextmanager
def asked_of(*subject):
    """Name the subject in whatever error leaves the block."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"asked of {', '.join(map(str, subject))}")
        raise
