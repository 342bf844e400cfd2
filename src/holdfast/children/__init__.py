"""Children: a command that somebody else wrote, started so that nothing of it is lost, and nothing of it outlives us.

child       the command, as its starter sees it
warden      the process in between
processes   what /proc says (reads)
"""
