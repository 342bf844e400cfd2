"""Supervise: keeps a command going. It hands on signals, waits, starts it again, and leaves no process behind."""
