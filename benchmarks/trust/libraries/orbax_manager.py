"""Orbax: CheckpointManager, which keeps the last two; each save is waited for."""

import orbax.checkpoint as ocp

NAME = "Orbax"
VERSION = ocp.__version__
PRACTICE = "CheckpointManager(max_to_keep=2), wait_until_finished after each save"
LINK = "https://orbax.readthedocs.io/en/latest/guides/checkpoint/orbax_checkpoint_101.html"
PROMISES = {
    "killed in a save": "https://orbax.readthedocs.io/en/latest/guides/checkpoint/checkpoint_format.html",
}


def train(folder, first, last, state_of, saved):
    with ocp.CheckpointManager(folder, options=ocp.CheckpointManagerOptions(max_to_keep=2)) as manager:
        for step in range(first, last + 1):
            manager.save(step, args=ocp.args.StandardSave(state_of(step)))
            manager.wait_until_finished()
            saved(step)


def resume(folder, like):
    with ocp.CheckpointManager(folder, options=ocp.CheckpointManagerOptions(max_to_keep=2)) as manager:
        step = manager.latest_step()
        return None if step is None else (step, manager.restore(step, args=ocp.args.StandardRestore()))
