"""Small things at scale: what is quick is the same as what is obvious, and nothing is done twice or too early."""

import gc
import json
import random
import subprocess
import sys
import textwrap
from itertools import chain
from typing import Any

import msgspec
import pytest
import torch

from holdfast import Best, Run, Store
from holdfast.errors import Damaged
from holdfast.retention import CheckpointFacts, beats
from holdfast.run.report import FLUSH_S
from holdfast.state import tree
from holdfast.store import format
from holdfast.torch import leaves

COME_LATE = [
    *("torch", "numpy", "rich", "click", "dataclasses", "json", "traceback", "sysconfig"),
    *("asyncio", "concurrent", "email", "importlib.metadata", "logging", "multiprocessing", "socket", "subprocess"),
    *("zoneinfo", "holdfast.cli", "holdfast.drill", "holdfast.collective.store"),
]


def program(text, *arguments):
    """The JSON that a program of its own prints last. `opened(part)` in it:
    paths opened so far whose name has `part`."""
    before = """
        import json, os, sys
        _opened = []
        sys.addaudithook(lambda event, given: _opened.append(str(given[0])) if event == "open" else None)
        opened = lambda part: [path for path in _opened if part in path]
    """
    source = textwrap.dedent(before) + textwrap.dedent(text)
    command = [sys.executable, "-c", source, *map(str, arguments)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1])


# Flattening --------------------------------------------------------------------------------------------------------


def some_tensors(dice, most=12):
    """Tensors of few memories: apart, tied, overlapping, out of order, with holes, conjugated, empty."""
    memories = [torch.arange(48).to(dice.choice([torch.float32, torch.complex64])) for _ in range(4)]
    changes = [
        lambda t: t,
        lambda t: t.view(8, 6).t(),
        lambda t: t.view(4, 1, 12),
        lambda t: t[dice.randrange(40) :][: dice.randrange(8)],
        lambda t: t[:: dice.randrange(1, 4)],
        lambda t: t.view(6, 8)[:, 2:5],
        lambda t: t.conj(),
        lambda t: t.clone().view(2, 3, 2, 4).contiguous(memory_format=torch.channels_last),
        lambda t: torch.nn.Parameter(t, requires_grad=dice.random() < 0.5),
        lambda t: t[0],
        lambda t: t.new_empty(3, 0),
        lambda t: t[:1].expand(5),
    ]
    return [dice.choice(changes)(dice.choice(memories)) for _ in range(dice.randrange(1, most))]


def span(tensor):
    """Addresses of the first byte and of the end; None without memory whose bytes are the numbers."""
    if not tensor.numel() or tensor.is_conj():
        return None
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    items = 1 + sum((extent - 1) * step for extent, step in steps)
    return tensor.data_ptr(), tensor.data_ptr() + items * tensor.element_size()


def layout(tensor):
    steps = [step for extent, step in zip(tensor.shape, tensor.stride(), strict=True) if extent > 1]
    return tensor.data_ptr(), tensor.dtype, tensor.shape, steps


def groups(tensors):
    """Indices of those that share bytes, by looking at each pair."""
    found = []
    for index, tensor in enumerate(tensors):
        mine = span(tensor)
        touched = [
            group
            for group in found
            if mine and any((other := span(tensors[i])) and mine[0] < other[1] and other[0] < mine[1] for i in group)
        ]
        found = [group for group in found if group not in touched] + [sorted([*chain(*touched), index])]
    return sorted(found)


def numbers(tensor):
    """Its bytes in C order."""
    plain = tensor.detach().resolve_conj().contiguous().view(-1).view(torch.uint8) if tensor.numel() else b""
    return bytes(plain.tolist() if tensor.numel() else plain)


def kept(tensors):
    attrs = {"parameter": any(isinstance(tensor, torch.nn.Parameter) for tensor in tensors)}
    attrs["requires_grad"] = any(tensor.requires_grad for tensor in tensors)
    return {name: True for name, holds in attrs.items() if holds}


def obvious(state):
    """What flatten finds in a dict of tensors, by the definitions."""
    names, tensors = list(state), list(state.values())
    nodes, blocks = {}, {}
    for group in groups(tensors):
        members = [tensors[index] for index in group]
        first, key = members[0], names[group[0]]
        if all(layout(member) == layout(first) for member in members):
            c_order = first.stride() == torch.empty(first.shape).stride()
            dense = torch.empty_strided(first.shape, first.stride()).untyped_storage().nbytes() == 4 * first.numel()
            stride = {} if c_order or not dense or not first.numel() else {"stride": list(first.stride())}
            blocks[key] = (leaves.NAMES[first.dtype], tuple(first.shape), numbers(first), kept(members) | stride)
            nodes |= {names[index]: {"leaf": key} for index in group}
            continue
        start, stop = min(span(m)[0] for m in members), max(span(m)[1] for m in members)
        pad = start % max(member.element_size() for member in members)
        for index in group:
            view: dict[str, Any] = {"leaf": f"{key}@storage", "dtype": leaves.NAMES[tensors[index].dtype]}
            view |= {"shape": list(tensors[index].shape), "stride": list(tensors[index].stride())}
            view |= {"offset": span(tensors[index])[0] - start + pad, **kept([tensors[index]])}
            nodes[names[index]] = {"view": view}
        storage = torch.empty(0, dtype=torch.uint8).set_(first.untyped_storage())
        raw = bytes(storage[start - storage.data_ptr() : stop - storage.data_ptr()].tolist())
        blocks[f"{key}@storage"] = ("uint8", (pad + len(raw),), bytes(pad) + raw, {})
    return {"dict": {name: nodes[name] for name in names}}, blocks


def test_flatten_finds_what_the_definitions_say():
    """Keys, ties, views, strides, attributes and bytes, in the same order, of random states."""
    for seed in range(200):
        state = {f"t{index}": tensor for index, tensor in enumerate(some_tensors(random.Random(seed)))}
        expected_tree, expected_blocks = obvious(state)
        flat = tree.flatten(state)
        found = {key: (b.dtype, b.shape, bytes(b.data), dict(b.attrs)) for key, b in flat.leaves.items()}
        assert expected_tree == flat.tree, seed
        assert list(expected_blocks.items()) == list(found.items()), seed


def test_a_block_keeps_the_memory_that_its_tensor_had():
    """A tensor that is given other memory, as `.data = ` does, takes nothing from a save in progress."""
    parameter = torch.nn.Parameter(torch.arange(1000.0))
    block = tree.flatten(parameter).leaves["value"]
    expected = bytes(block.data)
    parameter.data = torch.zeros(1000)
    gc.collect()
    torch.full((1000,), 7.0)
    assert expected == bytes(block.data)


# Manifests ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path)
    for step in range(1, 6):
        store.save({"model": {"w": b"x" * 2000, "b": step}}, step=step, metrics={"loss": 1 / step})
    store.close()
    return store


def signed(data):
    """The same manifest with a digest that holds."""
    start = data.index(b'"digest": "') + 11
    blank = data[:start] + b"0" * 32 + data[start + 32 :]
    return data[:start] + format.digest(blank).encode() + data[start + 32 :]


def test_a_head_is_the_manifest_without_its_leaves(store):
    """Field by field, and from a manifest that another program has laid out differently, too."""
    data = (store.latest().path / format.MANIFEST).read_bytes()
    first, rest = data.split(b"\n", 1)
    fields = msgspec.json.decode(b"{" + rest)
    backwards = b",".join(
        msgspec.json.encode(name) + b":" + msgspec.json.encode(fields[name]) for name in reversed(fields)
    )
    for text in (data, signed(first + b"\n" + backwards + b"}"), signed(first + b"\n" + rest.replace(b"\n", b" "))):
        manifest, head = format.decode(text, "it"), format.decode_head(text, "it")
        for name in format.Head.__struct_fields__:
            assert getattr(manifest, name) == getattr(head, name)


def test_a_changed_byte_among_the_leaves_is_seen_by_who_reads_the_head(store):
    """The digest is the whole manifest's, however little of it is looked at."""
    data = bytearray((store.latest().path / format.MANIFEST).read_bytes())
    for place in range(data.index(b'"leaves"'), len(data), 7):
        data[place] ^= 1
        with pytest.raises(Damaged):
            format.decode_head(bytes(data), "it")
        data[place] ^= 1


def test_the_newest_checkpoint_is_opened_without_the_others(store):
    """One manifest is read, however many there are."""
    script = """
        import holdfast
        assert holdfast.Store(sys.argv[1]).latest().manifest.step == 5
        print(json.dumps(opened("manifest.json")))
    """
    assert [str(store.latest().path / format.MANIFEST)] == program(script, store.root)


def test_ls_reads_each_manifest_once_and_no_shard(store):
    """The names, the marks, the best and the newest come out of one pass."""
    script = """
        from holdfast.cli import commands
        try:
            commands.main(["ls", sys.argv[1]])
        except SystemExit as end:
            assert not end.code
        print(json.dumps(opened(os.path.join(sys.argv[1], "checkpoints", "step"))))
    """
    assert sorted(str(each.path / format.MANIFEST) for each in store.checkpoints()) == sorted(
        program(script, store.root)
    )


# Starting ----------------------------------------------------------------------------------------------------------


def test_importing_holdfast_brings_nothing_that_can_wait():
    """Frameworks, terminals, child processes, sockets, mail headers and threads' pools come when they are needed."""
    script = f"""
        late = lambda: [name for name in {COME_LATE} if name in sys.modules]
        del sys.modules["json"]  # the program's own
        from holdfast import Run, Store
        import holdfast.state.tree as t, holdfast.state.rng as r
        t.flatten({{'a': [b'x' * 4000, {{2: (3,)}}], 'rng': r.capture()}})
        print(json.dumps(late()))
    """
    assert [] == program(script)


def test_help_imports_no_command():
    """The list of commands is a table; rich is for those that draw."""
    script = """
        from holdfast.cli import COMMANDS, commands
        try:
            commands.main(["--help"])
        except SystemExit as end:
            assert not end.code
        names = [f"holdfast.cli.{name}" for name in COMMANDS]
        names += ["rich", "torch", "numpy", "msgspec", "holdfast.run", "holdfast.store"]
        print(json.dumps([name for name in names if name in sys.modules]))
    """
    assert [] == program(script)


def test_a_start_reads_one_manifest_and_the_last_journal_alone(tmp_path):
    """However many checkpoints and attempts a run has: only the newest manifest, and only the last journal."""
    script = """
        import random
        from holdfast import Every, Last, Run
        with Run(sys.argv[1], {"dice": random.Random(1)}, keep=Last(20), every=Every(steps=1)) as run:
            paths = [path for path in opened("attempt-") + opened("manifest.json") if ".claim" not in path]
            late = ["importlib.metadata", "holdfast.collective.store", "dataclasses"]
            late = [name for name in late if name in sys.modules]
            for _ in run.steps(int(sys.argv[2])):
                run.log(loss=0.5)
        names = [os.path.basename(path) for path in paths]
        print(json.dumps([len(os.listdir(sys.argv[1] + "/checkpoints")), names, late]))
    """
    for attempt, last in enumerate((3, 6, 9, 9), 1):
        checkpoints, read, late = program(script, tmp_path, last)
        assert checkpoints > last
        earlier = [name for name in read if name != f"attempt-{attempt}.jsonl"]
        expected = {"manifest.json": 1, f"attempt-{attempt - 1}.jsonl": 3} if attempt > 1 else {}
        assert expected.keys() == {*earlier}
        # the journal: to see whether its attempt lives, to fence it, and once more where it lies then
        assert all(earlier.count(name) <= most for name, most in expected.items())
        assert [] == late


# Steps -------------------------------------------------------------------------------------------------------------


def test_a_step_touches_no_file(tmp_path):
    """Between saves the journal is written at most once a second,
    however many steps there are and whatever they log."""
    script = """
        import time
        from holdfast import Run
        from holdfast.stateful.vars import Vars
        class Nothing:
            state_dict = lambda self: {}
            load_state_dict = lambda self, state: None
        with Run(sys.argv[1], dict(nothing=Nothing()), every=None) as run:
            for number in run.batches(range(20_000)):
                if number == 10:
                    began, before = time.monotonic(), len(_opened)
                run.log(loss=0.5)
                if number == 19_990:
                    found, seconds = _opened[before:], time.monotonic() - began
        print(json.dumps([found, seconds]))
    """
    found, seconds = program(script, tmp_path)
    assert len(found) <= seconds / FLUSH_S + 1
    assert all("attempt-1.jsonl" in path for path in found)


def test_a_new_best_is_what_it_is_among_all_checkpoints(tmp_path):
    """Only the few that matter are remembered between saves,
    and several rules for one metric do not get in each other's way."""
    rules = Best("loss", min, n=2), Best("loss", max), Best("other", max)
    dice = random.Random(4)
    losses = [dice.randrange(8) for _ in range(40)]
    expected, facts = [], []
    for step, loss in enumerate(losses, 1):
        if any(beats(loss, rule, facts) for rule in rules[:2]):
            expected.append(step)
            facts.append(CheckpointFacts(str(step), step, "step", None, 0.0, {"loss": loss}, 0, pinned=False))
    keep = rules[0] | rules[1] | rules[2]
    with Run(tmp_path, {"dice": random.Random(1)}, keep=keep, every=None, background=False) as run:
        for step in run.steps(len(losses)):
            run.log(loss=losses[step])
    lines = (path.read_bytes().splitlines() for path in tmp_path.rglob("attempt-*.jsonl"))
    events = [json.loads(line) for each in lines for line in each if line]
    assert expected == [e["step"] for e in events if e["event"] == "saved" and e["reason"] == "new best"]
