"""torch.distributed.checkpoint in our format: for programs that call its `save`, `async_save` and
`load` themselves.

    dcp.save(state, storage_writer=Writer("runs/x", step=100))
    dcp.load(state, storage_reader=Reader("runs/x"))

DCP's planners decide which rank writes and reads what. The result is a checkpoint like any other of
ours: the same manifest, shards and digests, one atomic commit, and no pickle. `Reader` also reads
what `Run` and `Store` have saved, and they read what `Writer` has saved.
"""

from .dcp_reader import Reader
from .dcp_writer import Writer

__all__ = ["Reader", "Writer"]
