"""A class of the script's that has changed since a checkpoint is no damage to that checkpoint."""

import enum
from collections.abc import Callable
from dataclasses import field, make_dataclass
from functools import partial
from itertools import permutations
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import holdfast
from holdfast import Every, Last, Run
from holdfast.errors import HoldfastError, Mismatch, UsageError
from holdfast.state import codec


def made(kind: Any, name: str = "Mine") -> Any:
    """The class as the script would have it: two versions of it have one name."""
    kind.__module__, kind.__qualname__, kind.__name__ = __name__, name, name
    return kind


def record(*fields: Any, **options: Any) -> Any:
    return made(make_dataclass("Mine", fields, **options))


def tuple_of(*names: str) -> Any:
    return made(NamedTuple("Mine", [(name, int) for name in names]))


class Case(NamedTuple):
    """The class as it was saved, as it became, and the value of it that the state holds."""

    old: Any
    new: Any
    value: Callable[[Any], Any]  # of either class: something to begin with


def first(kind: Any) -> Any:
    return next(iter(kind))


ONE = ("a", int, 1)
CASES = {
    "an enum's member renamed": Case(enum.Enum("Mine", "RED BLUE"), enum.Enum("Mine", "CRIMSON BLUE"), first),
    "an IntEnum's": Case(enum.IntEnum("Mine", "RED BLUE"), enum.IntEnum("Mine", "CRIMSON BLUE"), first),
    "a StrEnum's": Case(enum.StrEnum("Mine", "RED BLUE"), enum.StrEnum("Mine", "CRIMSON BLUE"), first),
    "a Flag's member gone": Case(enum.Flag("Mine", "R W X"), enum.Flag("Mine", "R"), lambda kind: list(kind)[-1]),
    "a composite Flag's": Case(enum.Flag("Mine", "R W X"), enum.Flag("Mine", "R X"), lambda kind: ~kind(0)),
    "a Flag that drops bits": Case(
        enum.Flag("Mine", "R W X", boundary=enum.CONFORM),
        enum.Flag("Mine", "R", boundary=enum.CONFORM),
        lambda kind: ~kind(0),
    ),
    "a Flag became an Enum": Case(enum.Flag("Mine", "R"), enum.Enum("Mine", "R"), first),
    "a named tuple with a new field": Case(
        tuple_of("a"), tuple_of("a", "b"), lambda kind: kind(*range(len(kind._fields)))
    ),
    "a named tuple with one less": Case(
        tuple_of("a", "b"), tuple_of("a"), lambda kind: kind(*range(len(kind._fields)))
    ),
    "a dataclass became a named tuple": Case(record(ONE), tuple_of("a"), lambda kind: kind(a=1)),
    "a dataclass's new field": Case(
        record(("a", int)), record(("a", int), ("b", int)), lambda kind: kind(*range(len(kind.__match_args__)))
    ),
    "a renamed field": Case(record(ONE), record(("b", int, 1)), lambda kind: kind()),
    "a field gone, with slots": Case(
        record(ONE, ("b", int, 2), slots=True), record(ONE, slots=True), lambda kind: kind()
    ),
}


def hashed(kind: Any) -> bool:
    return getattr(kind, "__hash__", None) is not None


@pytest.mark.parametrize(
    ("name", "how"),
    [
        (name, how)
        for name, case in CASES.items()
        for how in ["inside", "key", "vars"]
        if how != "key" or (hashed(case.old) and hashed(case.new))
    ],
)
def test_changed_code_is_a_mismatch_that_moves_nothing(name, how, tmp_path):
    """Each checkpoint stays where it is, also at the second start, and the old code resumes."""
    case = CASES[name]

    def start(kind: Any, last: int) -> list[int]:
        value = case.value(made(kind))
        held = {"it": {value: 1} if how == "key" else [value] if how == "inside" else 0}
        with Run(
            tmp_path / "run", {"held": held}, vars={"it": value} if how == "vars" else {},
            every=Every(steps=1), keep=Last(9), types=[kind],
        ) as run:  # fmt: skip
            return list(run.steps(last))

    assert [0, 1, 2] == start(case.old, 3)
    before = sorted(each.name for each in (tmp_path / "run/checkpoints").iterdir())
    for _ in range(2):
        with pytest.raises(Mismatch, match=r"Mine .*the checkpoint is whole"):
            start(case.new, 5)
    assert before == sorted(each.name for each in (tmp_path / "run/checkpoints").iterdir())
    assert not list((tmp_path / "run").glob("quarantine/*"))
    assert [3, 4] == start(case.old, 5)


def test_code_that_changed_and_still_fits_resumes(tmp_path):
    """Other values of members, more members, a field with a default: none of them is refused."""
    fitting = [
        (
            enum.Enum("Mine", "RED BLUE"),
            enum.Enum("Mine", {"BLUE": "b", "RED": "r", "NEW": 3}),
            lambda kind: kind["RED"],
        ),
        (enum.Enum("Mine", "RED"), enum.Enum("Mine", [("CRIMSON", 1), ("RED", 1)]), lambda kind: kind["RED"]),
        (enum.IntFlag("Mine", "R"), enum.IntFlag("Mine", "R W"), lambda kind: kind(9)),
        (record(ONE), record(ONE, ("b", list, field(default_factory=list))), lambda kind: kind(5)),
    ]
    for number, (old, new, value) in enumerate(fitting):
        for kind in (old, new):
            held = [value(made(kind))]
            with Run(tmp_path / str(number), {"held": held}, types=[kind]) as run:
                assert run.steps(0) is not None
            assert value(kind) == held[0], number


def test_members_that_became_one_are_a_mismatch(tmp_path):
    """Two members of an enum that are aliases now cannot be two members of a set, or two keys."""
    old: Any = enum.Enum("Mine", "RED BLUE")  # type: ignore[misc]
    new: Any = enum.Enum("Mine", [("RED", 1), ("BLUE", 1)])  # type: ignore[misc]
    ways: list[Callable[[Any], Any]] = [set, dict.fromkeys]
    for number, held in enumerate(ways):
        with Run(tmp_path / str(number), {"held": [held(made(old))]}, types=[old]) as run:
            run.save()
        with pytest.raises(Mismatch, match="key of a"):
            Run(tmp_path / str(number), {"held": [held(made(new))]}, types=[new]).__enter__()
        assert not list((tmp_path / str(number)).glob("quarantine/*"))


def test_a_class_that_is_gone_or_cannot_be_made_moves_nothing(tmp_path, monkeypatch):
    """A deleted or renamed class, and a registered function that raises, are told; the old code resumes."""
    monkeypatch.setattr(codec, "REGISTERED", {})

    class Own:
        def __init__(self, number: int) -> None:
            self.number = number

    def start(kind: Any, decode: Callable[[Any], Any] | None) -> int:
        codec.REGISTERED.clear()
        if decode is not None:
            holdfast.register(kind, lambda own: own.number, decode)
        held = [kind(1) if decode is not None else 1]
        with Run(tmp_path / "run", {"held": held}, every=Every(steps=1)) as run:
            return sum(1 for _ in run.steps(3 + run.step))

    def broken(_: Any) -> Any:
        raise KeyError("number")

    made(Own)
    assert start(Own, Own) == 3
    for kind, decode, words in [
        (Own, broken, "decode function"),
        (Own, None, "pass"),
        (made(type("Other", (Own,), {}), "Other"), Own, "pass"),
    ]:
        for _ in range(3):
            with pytest.raises(UsageError, match=words):
                start(kind, decode)
    assert not list((tmp_path / "run").glob("quarantine/*"))
    assert start(Own, Own) == 3
    assert issubclass(UsageError, HoldfastError)


NUMBERS = ["float32", "complex64", "int64", "bool"]
ARRAYS: dict[str, Callable[[str], Any]] = {
    "an array": lambda dtype: np.ones(3, [("a", "<f4")] if dtype == "bool" else dtype),
    "a tensor": lambda dtype: torch.ones(3, dtype=getattr(torch, dtype)),
    "a buffer": lambda dtype: buffered(torch.ones(3, dtype=getattr(torch, dtype))),
}
OPTIMIZERS = [torch.optim.Adam, torch.optim.Adagrad, torch.optim.RMSprop, partial(torch.optim.SGD, momentum=0.9)]


def buffered(tensor: torch.Tensor) -> torch.nn.Module:
    module = torch.nn.Module()
    module.register_buffer("seen", tensor)
    return module


def stepped(optimizer: Any, dtype: str) -> Any:
    parameter = torch.nn.Parameter(torch.ones(3, dtype=getattr(torch, dtype)))
    made = optimizer([parameter], lr=0.1)
    parameter.grad = torch.ones_like(parameter)
    made.step()
    return made


KINDS = [
    *((what, ARRAYS[what], pair) for what in ARRAYS for pair in permutations(NUMBERS, 2)),
    *(("an optimizer", partial(stepped, each), pair) for each in OPTIMIZERS for pair in permutations(NUMBERS[:2])),
]


@pytest.mark.parametrize(("what", "make", "dtypes"), KINDS)
def test_numbers_of_another_kind_are_a_mismatch_that_moves_nothing(tmp_path, what, make, dtypes):
    """Real, complex, whole, truth values and records: the script changed, and its checkpoints are good."""
    saved, live = map(make, dtypes)
    with Run(tmp_path, {"it": saved}) as run:
        run.save()
    with pytest.raises(Mismatch, match=r"\bit\b.*dtype"):
        Run(tmp_path, {"it": live}).start()
    assert not list((tmp_path / "quarantine").iterdir())
    Run(tmp_path, {"it": make(dtypes[0])}).start().__exit__(None, None, None)
