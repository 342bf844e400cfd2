"""torch.distributed.checkpoint in our format: for programs that call its `save`, `async_save` and `load` themselves.

    dcp.save(state, storage_writer=Writer("runs/x", step=100))
    dcp.load(state, storage_reader=Reader("runs/x"))

DCP's planners say who writes what and who needs what; what they agree on becomes a checkpoint like any other of ours:
the same manifest, shards and digests, one atomic commit, and no pickle. `Reader` reads what `Run` and `Store` have saved,
too, and they what `Writer` has.
"""

from .dcp_reader import Reader
from .dcp_writer import Writer

__all__ = ["Reader", "Writer"]
