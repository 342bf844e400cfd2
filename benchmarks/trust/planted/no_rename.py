"""Planted: flushed and checked, but written over the only copy. A kill in a save must show it."""

from no_fsync import LINK, VERSION, resume, write  # noqa: F401

NAME = "planted: no rename"
PRACTICE = "a digest and fsync, written over the only copy"
PROMISES = {}
PLANTED = ("killed in a save", {"lost", "refused", "crashed", "silently wrong"})


def train(folder, first, last, state_of, saved):
    for step in range(first, last + 1):
        write(folder, step, state_of(step), flushed=True, renamed=False, checked=True)
        saved(step)
