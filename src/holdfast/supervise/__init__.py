"""Supervise: runs a command until it is done. Forwards signals,
waits, restarts it, and leaves no process behind.
"""
