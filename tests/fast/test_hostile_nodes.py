"""What is shown of a tree never fails otherwise than with Damaged, whatever stands in its nodes."""

import msgspec
import pytest

from holdfast.errors import Damaged
from holdfast.inspect import diff
from holdfast.state import nodes
from odd_checkpoints import NODES, TAGGED

LOOKS = {
    "in a few letters": lambda node: nodes.format_node(node, 160),
    "in full": nodes.format_node,
    "as JSON": lambda node: msgspec.json.encode(nodes.to_json(node)),
    "its leaves": nodes.find_path_ends,
    "its values": lambda node: [nodes.format_node(each, 160) for _, each in nodes.iterate_values(node)],
    "its members": lambda node: list(nodes.describe_members(node, 160)),
    "beside a leaf": lambda node: list(diff._node_differences("x", node, {"leaf": "a"})),
    "beside a view": lambda node: list(diff._node_differences("x", {"view": {"leaf": "a"}}, node)),
    "beside a list": lambda node: list(diff._node_differences("x", node, [1, {"tuple": [2]}])),
    "beside a mapping": lambda node: list(diff._node_differences("x", {"dict": {"a": 1}}, {"dict": {"a": node}})),
}


@pytest.mark.parametrize("look", LOOKS)
def test_every_odd_node_is_shown_or_is_damage(look):
    """Each tag with each wrong content: no other error, and some of both."""
    shown = damaged = 0
    for node in TAGGED.values():
        try:
            LOOKS[look](node)
            shown += 1
        except Damaged:
            damaged += 1
    assert len(TAGGED) == shown + damaged > 500
    assert shown > 20
    assert damaged > 20


def test_a_number_that_python_does_not_spell_is_shown_in_hexadecimal():
    """In text and in JSON; a number of 4,000 digits is a number."""
    long, short = 2**20000, 10**4000
    assert hex(long) == nodes.format_node({"int": hex(long)}) == nodes.to_json({"int": hex(long)})
    assert short == nodes.to_json({"int": hex(short)})
    assert "-0x1" == nodes.format_node({"int": hex(-long)}, 160)[:4]


@pytest.mark.parametrize("name", ["lists in lists", "mappings in mappings", "keys in keys"])
def test_what_is_deeper_than_any_save_is_damage(name):
    """Not a RecursionError, and not thousands of lines."""
    node = msgspec.json.decode(NODES[name])
    for look in (nodes.format_node, nodes.to_json, nodes.find_path_ends, lambda node: [*nodes.iterate_values(node)]):
        with pytest.raises(Damaged, match="more than 100 containers deep"):
            look(node)


def test_a_long_list_is_shown_without_naming_each_member():
    """Its beginning; what is left out is never spelled."""
    node = [*range(10_000)]
    assert "[0, 1, 2, 3, 4,..." == nodes.format_node(node, 18)
    assert 160 == len(nodes.format_node({"tuple": node}, 160))
    assert [("x", node)] == [*nodes.iterate_values(node, "x")]
    assert nodes.PathEnds([], 10_000) == nodes.find_path_ends(node)
