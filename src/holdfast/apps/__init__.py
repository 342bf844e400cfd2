"""Apps: programs that we did not write, one file each: how they are started, told to stop, and gone on with.

`known.program(app, work, room)` finds the one that `--app` names.
"""
