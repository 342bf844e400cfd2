"""Rows: a long sequence of small values of one shape, as a few columns. A replay memory, a history,
a population.

A column is a node with one key:

    {"leaf": key}                  arrays of one dtype and shape, stacked
    {"floats"|"ints"|"bools": leaf}
    {"scalars": leaf}              NumPy's, of one dtype
    {"same": node}                 one text, number or None in every row
    {"tuple": [column, ...]}       tuples of one length
    {"namedtuple": [name, [column, ...]]}
    {"custom": [name, column]}     what the function returned that the user registered
    {"dict": {key: column}}        dicts with these keys, in this order
    {"list"|"tuples": [length, column]}  of any length (a number, or a leaf of numbers), one after
                                         another in a column
    {"kinds": [leaf, [column, ...]]}     for each row, which of the columns has it
    {"nodes": [node, ...]}         text and numbers for which the above have no place

Rows that share memory with other values have no columns: `pack` refuses them, and a view stays a
separate leaf.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate, chain, groupby, islice, pairwise
from typing import Any, ClassVar

from ..errors import Damaged, UsageError
from ..legible import is_text
from . import codec
from .captured import ATOMS, is_array, is_named_tuple
from .nodes import quote_key

LEAST_ROWS = 256
_MOST_BYTES = 16 << 10  # of an array in a row; a larger one is a leaf of its own
# of rows that are written together: what is appended touches the last part only
_PART_BYTES = 4 << 20
_MOST_ROWS = 1 << 16
_MOST_VALUES = 1 << 22  # in a column
_MOST_KINDS, _MOST_FIELDS, _DEEPEST = 16, 64, 8
_NUMBERS = {float: ("floats", "f8"), int: ("ints", "i8"), bool: ("bools", "?")}

Leaf = Callable[[Any, str, str], Any]  # (stacked array, framework, name) -> its node


class _NotPackable(Exception):
    """Raised for rows that cannot be stored as columns."""


def may_be_packed(values: Iterable[Any]) -> bool:
    """Return whether an array is in one of the first rows."""
    return any(_has_array(each, 0) for each in islice(values, 16))


def _has_array(value: Any, depth: int) -> bool:
    if is_array(type(value)):
        return True
    if (registered := _registered_type(type(value))) is not None:
        return depth < _DEEPEST and _has_array(registered.encode(value), depth + 1)
    return (
        isinstance(value, list | tuple | dict)
        and depth < _DEEPEST
        and any(_has_array(each, depth + 1) for each in islice(_members_of(value), _MOST_FIELDS))
    )


def split_rows(values: Sequence[Any]) -> Iterator[tuple[int, int]]:
    """Divide long rows, so that each part has a few MiB. Appending rows changes no boundary."""
    size = _PART_BYTES // max(1, _row_bytes(values[:LEAST_ROWS]) // LEAST_ROWS)
    step = max(LEAST_ROWS, min(_MOST_ROWS, 1 << max(0, size.bit_length() - 1)))
    for start in range(0, len(values), step):
        yield start, min(start + step, len(values))


def _row_bytes(level: Any) -> int:
    """Estimate how many bytes of arrays and numbers are in these rows."""
    size = 0
    for _ in range(_DEEPEST):
        size += sum(each.nbytes if is_array(type(each)) else 8 for each in level)
        level = list(
            chain.from_iterable(
                _members_of(each) for each in level if type(each) in (list, tuple, dict)
            )
        )
    return size


def _members_of(value: Any) -> Any:
    return value.values() if type(value) is dict else value


class Packer:
    """Converts rows into columns. `leaf` and `walk` make nodes; `arrays` are those in the columns
    so far, by identity.
    """

    def __init__(self, leaf: Leaf, walk: Callable[[Any], Any]) -> None:
        self._leaf, self._walk = leaf, walk
        self.arrays: dict[Any, Any] = {}
        self._in_dicts = False
        self.types: set[type] = set()

    def pack(self, rows: list[Any], name: str, depth: int = 0) -> dict[str, Any]:
        if len(rows) > _MOST_VALUES:
            raise _NotPackable
        kinds = {kind for kind, _ in groupby(rows, type)}  # mostly one: no look-up for each row
        if len(kinds) != 1:
            return self._pack_mixed(rows, list(map(type, rows)), name, depth)
        (kind,) = kinds
        if depth > _DEEPEST:
            raise _NotPackable
        if (registered := _registered_type(kind)) is not None:
            encoded = [registered.encode(row) for row in rows]
            return {"custom": [codec.type_name(kind), self.pack(encoded, name, depth + 1)]}
        if kind in _NUMBERS:
            return self._pack_numbers(rows, kind, name)
        if kind in ATOMS:
            return self._pack_scalars(rows)
        if kind is list:
            return {"list": self._pack_concatenated(rows, name, depth)}
        if kind is dict:
            return self._pack_dicts(rows, name, depth)
        if issubclass(kind, tuple):
            return self._pack_tuples(rows, kind, name, depth)
        return self._pack_arrays(rows, kind, name, depth)

    def _pack_numbers(self, rows: list[Any], kind: type, name: str) -> dict[str, Any]:
        word, dtype = _NUMBERS[kind]
        if kind is not float and rows.count(rows[0]) == len(rows):
            return {"same": self._walk(rows[0])}
        try:
            return {word: self._leaf(_column_array(rows, dtype), "numpy", name)}
        except OverflowError:  # a longer integer
            return {"nodes": [self._walk(each) for each in rows]}

    def _pack_scalars(self, rows: list[Any]) -> dict[str, Any]:
        if rows[0] is None or (type(rows[0]) is str and rows.count(rows[0]) == len(rows)):
            return {"same": self._walk(rows[0])}
        return {"nodes": [self._walk(each) for each in rows]}

    def _pack_concatenated(self, rows: list[Any], name: str, depth: int) -> list[Any]:
        lengths = list(map(len, rows))
        alike = lengths.count(lengths[0]) == len(lengths)
        length = (
            lengths[0]
            if alike
            else self._leaf(_column_array(lengths, "i8"), "numpy", f"{name}.len")
        )
        inner = list(chain.from_iterable(rows))
        return [length, self.pack(inner, f"{name}._", depth + 1) if inner else {"nodes": []}]

    def _pack_dicts(self, rows: list[Any], name: str, depth: int) -> dict[str, Any]:
        keys = list(rows[0])
        if len(keys) > _MOST_FIELDS or any(list(row) != keys for row in rows):
            raise _NotPackable
        if not all(type(key) is str and is_text(key) for key in keys):
            raise _NotPackable
        self._in_dicts = True
        fields = {
            key: self.pack([row[key] for row in rows], f"{name}.{quote_key(key)}", depth + 1)
            for key in keys
        }
        return {"dict": fields}

    def _pack_tuples(self, rows: list[Any], kind: Any, name: str, depth: int) -> dict[str, Any]:
        lengths = set(map(len, rows))
        if kind is tuple and (len(lengths) > 1 or max(lengths) > _MOST_FIELDS):
            return {"tuples": self._pack_concatenated(rows, name, depth)}
        fields = [str(number) for number in range(max(lengths))]
        if kind is not tuple:
            if (
                not is_named_tuple(kind)
                or lengths != {len(kind._fields)}
                or any(hasattr(row, "__dict__") for row in rows)
            ):
                raise _NotPackable
            self.types.add(kind)
            fields = kind._fields
        columns = [
            self.pack(list(column), f"{name}.{quote_key(field)}", depth + 1)
            for field, column in zip(fields, zip(*rows, strict=True), strict=True)
        ]
        return (
            {"tuple": columns}
            if kind is tuple
            else {"namedtuple": [codec.type_name(kind), columns]}
        )

    def _pack_arrays(self, rows: list[Any], kind: type, name: str, depth: int) -> dict[str, Any]:
        framework = codec.framework_of(kind)
        if framework is None:
            raise _NotPackable
        forms = (
            codec.import_adapter(framework).stacking_forms(rows)
            if hasattr(codec.import_adapter(framework), "stacking_forms")
            else None
        )
        if forms is None:
            raise _NotPackable
        if forms.count(forms[0]) != len(forms):
            return self._pack_mixed(rows, forms, name, depth)
        if is_array(kind):
            # a module's state, perhaps, which its adapter reads
            if framework == "torch" and self._in_dicts:
                raise _NotPackable
            ids = dict(
                zip(codec.import_adapter(framework).memory_identities(rows), rows, strict=True)
            )
            if (
                len(ids) != len(rows)
                or rows[0].nbytes > _MOST_BYTES
                or not self.arrays.keys().isdisjoint(ids)
            ):
                raise _NotPackable
            self.arrays |= ids
            return self._leaf(codec.import_adapter(framework).stack(rows), framework, name)  # type: ignore[no-any-return]
        return {"scalars": self._leaf(_column_array(rows), "numpy", name)}

    def _pack_mixed(
        self, rows: list[Any], forms: list[Any], name: str, depth: int
    ) -> dict[str, Any]:
        kinds = {form: number for number, form in enumerate(dict.fromkeys(forms))}
        if len(kinds) > _MOST_KINDS or len(kinds) * 2 > len(rows):
            raise _NotPackable
        codes = [kinds[form] for form in forms]
        groups: list[list[Any]] = [[] for _ in kinds]
        for code, row in zip(codes, rows, strict=True):
            groups[code].append(row)
        columns = [
            self.pack(group, f"{name}-{number}", depth + 1) for number, group in enumerate(groups)
        ]
        return {"kinds": [self._leaf(_column_array(codes, "u1"), "numpy", f"{name}.kind"), columns]}


def pack_rows(rows: list[Any], name: str, packer: Packer) -> dict[str, Any] | None:
    """Return these rows as a column; None if they cannot be packed, or hold no array."""
    try:
        column = packer.pack(rows, name)
    except (_NotPackable, UsageError):
        return None
    return column if packer.arrays else None


class PackedRows:
    """A stored sequence whose rows are built on demand: `kind` is list, tuple or deque."""

    def __init__(
        self, kind: type, most: int | None, count: int, make: Callable[[], list[Any]]
    ) -> None:
        self.kind, self.most, self.count = kind, most, count
        self.rows = make

    def unpack(self) -> Any:
        """Return the sequence.

        Raises:
            Damaged: a leaf's bytes do not have their digest, or its columns contradict each other.
        """
        return deque(self.rows(), self.most) if self.kind is deque else self.kind(self.rows())


class Unpacker:
    """Converts columns into rows. `leaf` returns the array under a key, `read` the value
    of a node.
    """

    def __init__(
        self,
        leaf: Callable[[Any], Any],
        read: Callable[[Any], Any],
        named: Callable[[str, Any], Any],
    ) -> None:
        self._leaf, self._read, self._named = leaf, read, named

    def unpack(self, column: Any, count: int) -> list[Any]:
        """Return the values of a column.

        Raises:
            Damaged: it is no such column of so many rows.
        """
        if type(column) is not dict or len(column) != 1:
            raise Damaged("the tree's rows have a column that is none")
        ((tag, content),) = column.items()
        _require(count <= _MOST_VALUES)
        if tag not in self.KINDS:
            raise Damaged(f"the tree's rows have a column of the unknown kind {tag!s:.40}")
        found: list[Any] = self.KINDS[tag](self, content, count)
        if len(found) != count:
            raise Damaged(f"the tree's rows are {count}, and a column has {len(found)}")
        return found

    def _unpack_arrays(self, key: Any, count: int) -> list[Any]:
        array = self._leaf(key)
        _require(array.ndim > 1 and len(array) == count)
        module = codec.import_adapter(str(codec.framework_of(type(array))))
        return list(module.unstack(array))

    def _read_column(self, node: Any, count: int | None = None) -> Any:
        _require(type(node) is dict and len(node) == 1 and "leaf" in node)
        array = self._leaf(node["leaf"])
        _require(getattr(array, "ndim", 0) == 1 and (count is None or len(array) == count))
        return array

    def _unpack_same(self, node: Any, count: int) -> list[Any]:
        value = self._read(node)
        _require(type(value) in ATOMS)
        return [value] * count

    def _unpack_concatenated(
        self, content: Any, count: int, kind: Callable[[Any], Any]
    ) -> list[Any]:
        length, column = _pair(content)
        lengths = (
            [length] * count if type(length) is int else self._read_column(length, count).tolist()
        )
        _require(all(type(each) is int and each >= 0 for each in lengths))
        ends = list(accumulate(lengths, initial=0))
        inner = self.unpack(column, ends[-1])
        found = [inner[start:end] for start, end in pairwise(ends)]
        return found if kind is list else list(map(kind, found))

    def _unpack_fields(self, columns: Any, count: int) -> Iterator[tuple[Any, ...]]:
        _require(type(columns) is list)
        found = [self.unpack(column, count) for column in columns]
        return zip(*found, strict=True) if found else iter([()] * count)

    def _unpack_named_tuples(self, content: Any, count: int) -> list[Any]:
        name, columns = _pair(content)
        make = self._named("namedtuple", name)
        return [make(list(row)) for row in self._unpack_fields(columns, count)]

    def _unpack_customs(self, content: Any, count: int) -> list[Any]:
        name, column = _pair(content)
        return list(map(self._named("custom", name), self.unpack(column, count)))

    def _unpack_dicts(self, content: Any, count: int) -> list[Any]:
        _require(type(content) is dict)
        return [
            dict(zip(content, row, strict=True))
            for row in self._unpack_fields([*content.values()], count)
        ]

    def _unpack_mixed(self, content: Any, count: int) -> list[Any]:
        node, columns = _pair(content)
        codes = self._read_column(node, count).tolist()
        _require(
            type(columns) is list
            and all(type(code) is int and 0 <= code < len(columns) for code in codes)
        )
        found = [
            iter(self.unpack(column, codes.count(number))) for number, column in enumerate(columns)
        ]
        return [next(found[code]) for code in codes]

    def _unpack_nodes(self, content: Any, _: int) -> list[Any]:
        _require(type(content) is list)
        return list(map(self._read, content))

    def _unpack_scalars(self, node: Any, count: int, kind: str) -> list[Any]:
        array = self._read_column(node, count)
        _require(getattr(array.dtype, "kind", "") == kind)
        found: list[Any] = array.tolist()
        return found

    KINDS: ClassVar[dict[str, Callable[[Any, Any, int], list[Any]]]] = {
        "leaf": _unpack_arrays,
        "floats": partial(_unpack_scalars, kind="f"),
        "ints": partial(_unpack_scalars, kind="i"),
        "bools": partial(_unpack_scalars, kind="b"),
        "scalars": lambda self, node, count: list(self._read_column(node, count)),
        "same": _unpack_same,
        "tuple": lambda self, columns, count: list(self._unpack_fields(columns, count)),
        "namedtuple": _unpack_named_tuples,
        "custom": _unpack_customs,
        "dict": _unpack_dicts,
        "list": partial(_unpack_concatenated, kind=list),
        "tuples": partial(_unpack_concatenated, kind=tuple),
        "kinds": _unpack_mixed,
        "nodes": _unpack_nodes,
    }


def _pair(content: Any) -> Any:
    _require(type(content) is list and len(content) == 2)
    return content


def _require(holds: bool) -> None:
    if not holds:
        raise Damaged("the tree's rows contradict themselves")


def _registered_type(kind: type) -> codec.RegisteredType | None:
    found = codec.REGISTERED.get(codec.type_name(kind)) if codec.REGISTERED else None
    return found if found is not None and found.kind is kind else None


def _column_array(values: list[Any], dtype: str | None = None) -> Any:
    return codec.import_adapter("numpy").column_array(values, dtype)
