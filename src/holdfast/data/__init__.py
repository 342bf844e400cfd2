"""Data whose order and random numbers a resume restores.

* Seeded(dataset, seed): what `__getitem__` draws depends on (seed, epoch, index) and on nothing
else * Sampler(dataset, seed): a shuffling sampler that resumes anywhere at once * Shuffle(length,
seed, epoch): the order itself, a permutation that can be entered at any place * Zip(a, b): loaders
side by side, each of which goes on where it was * holdfast.torch.samplers: samplers for many ranks,
in the order of torch's own
"""

from .order import Shuffle
from .sampler import Sampler
from .seeded import Seeded
from .zipped import Zip

__all__ = ["Sampler", "Seeded", "Shuffle", "Zip"]
