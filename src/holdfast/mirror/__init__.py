"""Mirrors: verified copies of a run's checkpoints at other places, and a start from them."""
