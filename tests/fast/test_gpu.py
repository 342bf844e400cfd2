"""Tensors on a GPU are saved as they were when the save began, and restored bit for bit; the host holds no copy."""

import re
import threading
from contextlib import closing
from pathlib import Path

import pytest
import torch

import kept
from holdfast import Every, Last, Run, Store
from holdfast.pages import PIECE_BYTES, DistantBytes, address, allocate_pages
from holdfast.state import codec
from holdfast.state.snapshot import Arena
from holdfast.torch import items, staging, stored
from kept import Kept, random_bits, raw

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch.cuda finds no GPU here"),
]
BUSY_CYCLES = 200_000_000  # of the device's clock: a tenth of a second and more


def devices():
    return [torch.device("cuda", index) for index in range(torch.cuda.device_count())]


def several():
    """Tensors of every kind of layout, on every device."""
    found = {}
    for device in devices():
        base = torch.arange(4000.0, device=device)
        kinds = {
            "weight": torch.randn(64, 32, 3, 3, device=device).to(memory_format=torch.channels_last),
            "half": random_bits(torch.bfloat16, 12345).to(device),
            "transposed": torch.randn(300, 700, device=device).t(),
            "conj": torch.randn(30, 40, dtype=torch.complex64, device=device).conj(),
            "sliced": torch.randn(100, 100, device=device)[::3, 1:50],
            "large": torch.randn(3 * PIECE_BYTES // 4, device=device),
            "large and transposed": torch.randn(2049, 1025, device=device).t(),
            "zero": torch.zeros(0, 3, device=device),
            "number": torch.tensor(3.5, device=device),
            "views": [base[100:900].view(20, 40).t(), base[500:1300]],
        }
        found |= {f"{name} on {device.index}": tensor for name, tensor in kinds.items()}
    return found


def tensors(state):
    return [each for value in state.values() for each in (value if isinstance(value, list) else [value])]


def bits(state):
    return list(state), [raw(tensor.cpu()) for tensor in tensors(state)]


def test_a_save_of_tensors_on_a_device_is_exact(tmp_path):
    """Whatever their layout and dtype, gathered on the way to the disk."""
    state = several()
    expected = bits(state)
    with closing(Store(tmp_path)) as store:
        store.save(state, step=1)
        back = store.load()
    assert expected == bits(back)
    assert back["weight on 0"].stride() == state["weight on 0"].stride()


def test_what_changes_right_after_a_snapshot_is_not_in_it(tmp_path):
    """The copies are there when staging returns, also those that wait for work that was under way."""
    state, arena = several(), Arena()
    with closing(Store(tmp_path)) as store:
        for step in range(1, 4):
            for device in devices():
                with torch.cuda.device(device):
                    torch.cuda._sleep(BUSY_CYCLES)
            for tensor in tensors(state):
                tensor.mul_(1.5)
            staged = store.stage(state, arena)
            expected = bits(state)
            for tensor in tensors(state):
                tensor.zero_()
            store.commit(staged, step=step)
            assert expected == bits(store.load())
            state = several()
    arena.release()


def test_the_work_of_the_current_stream_comes_first(tmp_path):
    """A program may work in a stream of its own; what that has under way is waited for."""
    arena = Arena()
    with closing(Store(tmp_path)) as store:
        for step in (1, 2):
            own = torch.cuda.Stream()
            with torch.cuda.stream(own):
                tensor = torch.zeros(1 << 22, device="cuda")
                torch.cuda._sleep(BUSY_CYCLES)
                tensor.fill_(step)
                staged = store.stage({"w": tensor}, arena)
                tensor.fill_(-1)
            store.commit(staged, step=step)
            assert bool((store.load()["w"] == step).all())
    arena.release()


def test_leaves_are_copied_by_another_thread_as_of_the_moment_of_flattening():
    """A thread's current stream is not that of the loop; the moment is the loop's."""
    own = torch.cuda.Stream()
    with torch.cuda.stream(own):
        tensor = torch.zeros(1 << 22, device="cuda")
        torch.cuda._sleep(BUSY_CYCLES)
        tensor.fill_(7)
        data = codec.encode_leaf(tensor).data
    found = []
    thread = threading.Thread(target=lambda: found.append(bytes(data)))
    thread.start()
    thread.join()
    assert found == [raw(torch.full((1 << 22,), 7.0))]


def test_memory_given_back_while_it_is_copied_goes_to_nobody_else():
    """The caching allocator waits for our stream."""
    tensor = torch.full((1 << 22,), 3.0, device="cuda")
    place = tensor.data_ptr()
    memory = items.memory(torch.empty(tensor.nbytes, dtype=torch.uint8, pin_memory=True))  # else CUDA waits itself
    torch.cuda._sleep(BUSY_CYCLES)
    block = codec.encode_leaf(tensor)
    wait = block.data.gather(memory)
    del tensor, block
    other = torch.full((1 << 22,), 4.0, device="cuda")
    assert other.data_ptr() != place
    assert wait is not None
    wait()
    assert bytes(memory) == raw(torch.full((1 << 22,), 3.0))


def test_the_arena_is_pinned_and_given_back(tmp_path):
    """What torch says of the memory, and again when it has grown; afterwards it can be pinned by others."""
    arena, places = Arena(), []
    with closing(Store(tmp_path)) as store:
        for step, size in enumerate((1 << 20, 1 << 24), 1):
            staged = store.stage({"w": torch.ones(size, device="cuda")}, arena)
            memory = staged.leaves["w"].data
            assert torch.frombuffer(memory, dtype=torch.uint8).is_pinned()
            places.append(address(memory))
            store.commit(staged, step=step)
    assert len(set(places)) == 2
    arena.release()
    assert not torch.frombuffer(memory, dtype=torch.uint8).is_pinned()


def test_memory_that_cannot_be_pinned_is_no_error():
    """It is already; CUDA's own error is gone with the thread that met it, and the next kernel runs."""
    device, memory = devices()[0], allocate_pages(1 << 20)
    unpin = staging.pin(memory, device)
    assert staging.pin(memory, device) is None
    assert torch.ones(4, device=device).sum().item() == 4
    assert unpin is not None
    unpin()


def peak_bytes():
    return int(re.findall(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[0]) << 10


@pytest.mark.parametrize("channels_last", [False, True])
def test_neither_a_save_nor_a_restore_holds_the_state_on_the_host(tmp_path, channels_last):
    """64 MiB, for a state of 512 MiB; on the device a piece for each thread."""
    live = torch.randn(512, 256, 32, 32, device="cuda")
    live = live.to(memory_format=torch.channels_last) if channels_last else live
    store = Store(tmp_path)
    store.save({"w": torch.randn(1 << 22, device="cuda").view(1, 4, 1 << 10, 1 << 10)}, step=1)
    expected = live.clone()
    for work in ("save", "restore"):
        torch.cuda.reset_peak_memory_stats()
        before_device = torch.cuda.memory_allocated()
        Path("/proc/self/clear_refs").write_text("5")
        before = peak_bytes()
        if work == "save":
            store.save({"w": live}, step=2)
        else:
            live.zero_()
            filling = stored.TensorRestore()
            filling.read_into(live, store.latest().handles()["w"])
            filling.read_all()
        assert peak_bytes() - before <= 64 << 20
        assert torch.cuda.max_memory_allocated() - before_device <= 8 * PIECE_BYTES
    assert torch.equal(expected, live)
    store.close()


def test_a_restore_comes_after_what_was_under_way():
    """A kernel that still writes to the memory does not write over what was restored."""
    live = torch.zeros(1 << 22, device="cuda")
    expected = torch.randn(1 << 22)
    own = torch.cuda.Stream()
    with torch.cuda.stream(own):
        torch.cuda._sleep(BUSY_CYCLES)
        live.fill_(1)
        filling = stored.TensorRestore()
        filling.read_into(live, Kept("w", codec.encode_leaf(expected)))
        filling.read_all()
    assert torch.equal(expected, live.cpu())


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(16, 256, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.head = torch.nn.Linear(256, 64, dtype=torch.bfloat16)

    def forward(self, x):
        return self.head(self.conv(x).mean((2, 3)).bfloat16()).float().pow(2).mean()


def trained(path, steps, stop=None, **options):
    torch.manual_seed(3)
    model = Model().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    generator = torch.Generator("cuda").manual_seed(1)
    targets = {"model": model, "optimizer": optimizer}
    with Run(path, targets, keep=Last(3), **options) as run:
        for step in run.steps(steps):
            optimizer.zero_grad()
            generator.manual_seed(step)
            model(torch.randn(8, 16, 32, 32, device="cuda", generator=generator)).backward()
            optimizer.step()
            if stop is not None and run.step == stop:
                raise KeyboardInterrupt
    return model.state_dict(), optimizer.state_dict()["state"]


@pytest.mark.parametrize("options", [{"background": False}, {}], ids=["synchronous", "in the background"])
def test_training_with_a_fused_optimizer_resumes_bit_for_bit(tmp_path, monkeypatch, options):
    """Saved after each step, while kernels are under way; cut in the midst, the end is the same."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(mode=True)
    try:
        every = Every(steps=1)
        expected = trained(tmp_path / "whole", 12, every=every, **options)
        with pytest.raises(KeyboardInterrupt):
            trained(tmp_path / "cut", 12, stop=7, every=every, **options)
        actual = trained(tmp_path / "cut", 12, every=every, **options)
    finally:
        torch.use_deterministic_algorithms(mode=False)
    assert kept.bits(expected) == kept.bits(actual)


def test_leaves_on_a_device_are_distant():
    """Nothing of them is copied before somebody asks for it."""
    torch.cuda.synchronize()
    block = codec.encode_leaf(torch.ones(1 << 20, device="cuda"))
    assert isinstance(block.data, DistantBytes)
    assert block.attrs["device"] == "cuda:0"
