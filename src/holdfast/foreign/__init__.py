"""Checkpoints that other programs wrote: what they hold and whether they are complete. Nothing in
them is executed.

One file per format; `table` finds the right one, and `checkpoint` lets the commands read it as one
of ours.
"""
