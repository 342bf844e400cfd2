"""What the ranks of one run do together: claim it, save one checkpoint and load it."""
