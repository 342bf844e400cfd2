"""Children: start a command so that no process of it is lost, and none outlives us.

child       the command, as its starter sees it
warden      the process in between
processes   what /proc says (reads)
"""
