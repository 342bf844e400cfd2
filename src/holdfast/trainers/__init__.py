"""Shared by the adapters of all trainers: a run around another program's loop, and the foreign
names that they wrap.
"""
