"""Luck: what a drill does at random depends on its seed alone. Pure."""

from __future__ import annotations

from ..data.order import key


def fraction(*parts: object) -> float:
    """A number in [0, 1) that depends on every part."""
    return key("drill", *parts) / 2**64
