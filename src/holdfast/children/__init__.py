"""Children: start a command so that none of its processes is lost, and none outlives us.

child       the command, seen by its starter
warden      the process in between
processes   reads /proc
steps       memory in which a run writes how far it is, for its supervisor
"""
