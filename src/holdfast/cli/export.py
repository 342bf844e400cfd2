"""`holdfast export`: a checkpoint's tensors as a file for other programs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from .. import disk, scan
from ..errors import NoSpace, UsageError
from ..foreign.checkpoint import ForeignCheckpoint
from ..inspect import tensors
from ..inspect.pt import write_pt
from ..inspect.tensors import SelectedTensors, Tensor
from ..legible import counted, size
from ..store.checkpoint import Checkpoint
from ..store.format import MANIFEST
from ..store.locate import retry_if_removed
from . import options
from .formatting import print_report, showing_progress
from .sources import open_source


@click.command()
@options.run_at
@options.step
@options.rank
@click.option(
    "-o", "--output", metavar="FILE", required=True, help="Where to; the ending chooses the format."
)
@options.option(
    "--part",
    metavar="NAME",
    show_default="the model's weights",
    help="The part of the state to write.",
)
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Write the tensors of every part, named by their whole paths.",
)
@click.option("--force", is_flag=True, help="Replace FILE when it exists.")
@options.as_json
def command(
    run: str,
    step: int | str | None,
    rank: int | None,
    output: str,
    part: str | None,
    everything: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Write tensors of a checkpoint of RUN to FILE (.safetensors, .npz or .pt), every byte checked
    on the way.

    What several ranks hold in pieces is written whole. Tied tensors are written once: .pt ties
    them again, and so does safetensors.torch.load_model. In .npz each name has its own.
    """
    target = Path(output)
    write = FORMATS.get(target.suffix)
    if write is None:
        raise UsageError(f"{output}: the ending says the format; it is one of {', '.join(FORMATS)}")
    _require_free(target, force=force)
    with showing_progress() as tell, open_source(run, tell, foreign=True) as here:

        def written() -> tuple[Checkpoint, SelectedTensors]:
            found = here.locate().select(step)
            here.fetch_files(found, ())
            checkpoint = options.view_as_rank(found, rank)
            if isinstance(checkpoint, ForeignCheckpoint):
                checkpoint.require_whole()
            chosen = tensors.select_tensors(
                checkpoint, None if everything else part or checkpoint.main_part
            )
            tensors.require_known(chosen.tensors)
            here.fetch_files(found, chosen.files)
            _require_space(target, chosen.tensors)
            tensors.verify_tensors(chosen.tensors)
            disk.replace_with(target, write(chosen.tensors, _file_names(checkpoint)))
            return checkpoint, chosen

        checkpoint, chosen = retry_if_removed(written)
    facts = {
        "file": output,
        "checkpoint": checkpoint.name,
        "tensors": len(chosen.tensors),
        "size_bytes": target.stat().st_size,
        "tied": chosen.tied,
        "left_out": chosen.left_out,
    }
    print_report(facts, _lines(facts, TIES[target.suffix]), as_json=as_json)


def _file_names(checkpoint: Checkpoint) -> dict[str, str]:
    step = checkpoint.content.step if isinstance(checkpoint, ForeignCheckpoint) else checkpoint.step
    return {"holdfast": checkpoint.name} | ({} if step is None else {"step": str(step)})


def _require_free(target: Path, *, force: bool) -> None:
    if scan.lexists(target) and not force:
        raise UsageError(f"{target} exists; say --force to replace it")
    if scan.is_dir(target):
        raise UsageError(f"{target} is a directory; name a file")
    if scan.exists(target.absolute().parent / MANIFEST):
        raise UsageError(
            f"{target}: its directory is a checkpoint, "
            "and those are immutable; choose another place"
        )


def _require_space(target: Path, found: Sequence[Tensor]) -> None:
    """Require free space for the exported tensors.

    Raises:
        NoSpace: what would be written does not fit. A view that repeats a few bytes without end is
            found out here.
    """
    need = sum({tensor.identity: tensor.size_bytes for tensor in found}.values())
    free = disk.free_bytes(target.absolute().parent)
    if need > free:
        raise NoSpace(
            f"{target}: {size(need)} would be written, "
            f"and {size(free)} are free there; name another place"
        )


# file ending -> function that makes the file's chunks from tensors and metadata
FORMATS: dict[str, Callable[[Sequence[Tensor], Mapping[str, str]], Iterable[Any]]] = {
    ".safetensors": tensors.write_safetensors,
    ".npz": lambda found, _: tensors.write_npz(found),
    ".pt": lambda found, _: write_pt(found),
}

# file ending -> how a tied tensor is written
TIES = {
    ".safetensors": "left out of the file; safetensors.torch.load_model ties it again",
    ".npz": "written for each name",
    ".pt": "tied again",
}


def _lines(facts: dict[str, Any], ties: str) -> Iterator[str]:
    written = counted(facts["tensors"], "tensor")
    yield f"{facts['file']}: {written} of {facts['checkpoint']}, {size(facts['size_bytes'])}"
    for name, first in facts["tied"].items():
        yield f"  {name} is tied to {first}: {ties}"
    if facts["left_out"]:
        yield f"  {counted(facts['left_out'], 'value')} left out: only tensors are exported"
