"""Data whose order and random numbers a resume restores.

* Stream(sources, batch_size): batches from files, the same ones for any number of workers and ranks
* Seeded(dataset, seed): what `__getitem__` draws depends on (seed, epoch, index) and on nothing
else * Sampler(dataset, seed): a shuffling sampler that resumes anywhere at once * Shuffle(length,
seed, epoch): the order itself, a permutation that can be entered at any place * Zip(a, b): loaders
side by side, each of which goes on where it was * holdfast.torch.samplers: samplers for many ranks,
in the order of torch's own
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING
from typing import Any as _Any

from .order import Shuffle
from .sampler import Sampler
from .seeded import Seeded
from .zipped import Zip

if TYPE_CHECKING:
    from .streams.mixture import Mix
    from .streams.orders import Window
    from .streams.passes import Pack
    from .streams.stream import Stream

__all__ = ["Mix", "Pack", "Sampler", "Seeded", "Shuffle", "Stream", "Window", "Zip"]

_NEED_NUMPY = {
    "Mix": "holdfast.data.streams.mixture",
    "Pack": "holdfast.data.streams.passes",
    "Stream": "holdfast.data.streams.stream",
    "Window": "holdfast.data.streams.orders",
}


if not TYPE_CHECKING:  # a type checker that saw it would believe every name

    def __getattr__(name: str) -> _Any:
        if name not in _NEED_NUMPY:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(_import_module(_NEED_NUMPY[name]), name)
