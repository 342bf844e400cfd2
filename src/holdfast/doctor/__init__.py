"""Doctor: checks a file system, a cluster and a run by using them. Leaves nothing behind."""
