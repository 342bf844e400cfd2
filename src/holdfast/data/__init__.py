"""Data whose order and random numbers a resume restores.

* Stream(sources, batch_size): batches from files, the same ones for any number of workers and ranks
* Lines, JsonLines, CsvRows, Records, Documents, Parquet, Arrow, Tar: sources, one for each format
* Kept, Skipping: a source without some samples
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
    from .streams.arrow import Arrow, Parquet
    from .streams.chosen import Kept, Skipping
    from .streams.documents import Documents
    from .streams.lines import CsvRows, JsonLines, Lines
    from .streams.mixture import Mix
    from .streams.orders import Window
    from .streams.passes import Pack
    from .streams.records import Records
    from .streams.source import DamagedSample, Indexed, Source, SourceShard
    from .streams.stream import Stream
    from .streams.tar import Tar

__all__ = [
    "Arrow",
    "CsvRows",
    "DamagedSample",
    "Documents",
    "Indexed",
    "JsonLines",
    "Kept",
    "Lines",
    "Mix",
    "Pack",
    "Parquet",
    "Records",
    "Sampler",
    "Seeded",
    "Shuffle",
    "Skipping",
    "Source",
    "SourceShard",
    "Stream",
    "Tar",
    "Window",
    "Zip",
]

_NEED_NUMPY = {
    "Arrow": "holdfast.data.streams.arrow",
    "CsvRows": "holdfast.data.streams.lines",
    "DamagedSample": "holdfast.data.streams.source",
    "Documents": "holdfast.data.streams.documents",
    "Indexed": "holdfast.data.streams.source",
    "JsonLines": "holdfast.data.streams.lines",
    "Kept": "holdfast.data.streams.chosen",
    "Lines": "holdfast.data.streams.lines",
    "Mix": "holdfast.data.streams.mixture",
    "Pack": "holdfast.data.streams.passes",
    "Parquet": "holdfast.data.streams.arrow",
    "Records": "holdfast.data.streams.records",
    "Skipping": "holdfast.data.streams.chosen",
    "Source": "holdfast.data.streams.source",
    "SourceShard": "holdfast.data.streams.source",
    "Stream": "holdfast.data.streams.stream",
    "Tar": "holdfast.data.streams.tar",
    "Window": "holdfast.data.streams.orders",
}


if not TYPE_CHECKING:  # a type checker that saw it would believe every name

    def __getattr__(name: str) -> _Any:
        if name not in _NEED_NUMPY:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(_import_module(_NEED_NUMPY[name]), name)
