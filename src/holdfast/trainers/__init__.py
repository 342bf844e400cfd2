"""What the adapters of all trainers share: a run around somebody else's loop, and the foreign names that they wrap."""
