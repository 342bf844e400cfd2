"""Apps: adapters for programs that we did not write, one file each. They start, stop and resume a
program.

`known.adapter_for(app, work, room)` returns the adapter that `--app` names.
"""
