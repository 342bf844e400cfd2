"""Doctor: whether a file system, a cluster and a run will do, asked of them themselves. Nothing is left behind."""
