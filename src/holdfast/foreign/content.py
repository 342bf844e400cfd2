"""ForeignContent: what was found in another program's checkpoint."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..state import nodes
from ..store.problems import Problem
from .leaf import ForeignLeaf

CRC = "CRC-32"  # how the bytes are checked; other formats have no checksums


def no_problems() -> Iterator[Problem]:
    """Yield no problem: the format has no checksums."""
    return iter(())


class ForeignContent(NamedTuple):
    """The tree and leaves of a checkpoint, and the facts that are known about it."""

    format: str  # for people: "torch zip", "safetensors"
    tree: Any
    leaves: Mapping[str, ForeignLeaf]
    files: Sequence[Path]
    facts: Mapping[str, Any] = {}  # to show: versions, what a pickle would import
    proof: str | None = None  # how the bytes are checked
    flaws: Sequence[Problem] = ()  # missing or contradictory parts
    check: Callable[[], Iterator[Problem]] = no_problems  # reads every byte that `proof` proves
    values: str = "read"  # or why the values of its leaves are not read

    @property
    def problems(self) -> Iterator[Problem]:
        """Yield the problems that are found without reading all bytes."""
        yield from self.flaws
        for leaf in self.leaves.values():
            if lacking := leaf.why_too_short():
                yield Problem(
                    leaf.path if leaf.path.name else self.files[0],
                    0,
                    0,
                    f"leaf {leaf.key!r}: {lacking}",
                )

    def find_number(self, *names: str) -> float | None:
        """Return the first number under one of these names, at the top of the tree or in
        trainer_state.
        """
        for place in (("trainer_state",), ()):
            for name in names:
                found = nodes.scalar_value(nodes.node_at(self.tree, *place, name))
                if isinstance(found, int | float) and not isinstance(found, bool):
                    return found
        return None

    @property
    def step(self) -> int | None:
        found = self.find_number(
            "global_step", "step", "iteration", "iter", "steps", "num_steps", "update"
        )
        named = _number_in_name(
            self.files, r"(?:^|(?:step|iter|checkpoint|ckpt)[=_-]?)(\d{1,15})(?=\D*$)"
        )
        return int(found) if found is not None and abs(found) < 1e18 else named

    @property
    def epoch(self) -> float | None:
        found = self.find_number("epoch", "epochs", "current_epoch")
        return found if found is not None else _number_in_name(self.files, r"epoch[=_-]?(\d{1,15})")


def _number_in_name(files: Sequence[Path], pattern: str) -> int | None:
    """Return the number in the name of the file; of several files, the number in that of their
    folder.
    """
    named = files[0] if len(files) == 1 else files[0].parent if files else Path()
    found = re.findall(pattern, named.name, re.IGNORECASE)
    return int(found[-1]) if found else None


# where the weights are, in the order of trust
_MODELS = (
    "model",
    "state_dict",
    "model_state_dict",
    "module",
    "net",
    "weights",
    "params",
    "model_state",
    "ema",
)


def find_model_part(tree: Any) -> str | None:
    """Return the member of the tree that holds a model's weights; None: the tree is the model, or
    it is unknown which member is.
    """
    members = nodes.parse_node(tree).members or {}
    if any(nodes.split_tag(each)[0] in nodes.LEAVES for each in members.values()):
        return None
    return next((name for name in _MODELS if name in members and _has_leaf(members[name])), None)


def _has_leaf(node: Any) -> bool:
    return bool(nodes.leaf_keys(node))
