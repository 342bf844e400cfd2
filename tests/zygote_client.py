"""Stands for `python SCRIPT ...`, run by a zygote: `python -S zygote_client.py SOCKET SCRIPT ...`."""

import json
import os
import signal
import socket
import sys

connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
connection.connect(sys.argv[1])
asked = {"arguments": sys.argv[2:], "directory": os.getcwd(), "environment": dict(os.environ)}
for name in ("TERM", "INT", "USR1", "USR2"):
    signal.signal(getattr(signal, f"SIG{name}"), lambda number, _: connection.sendall(bytes([number])))
socket.send_fds(connection, [json.dumps(asked).encode() + b"\n"], [0, 1, 2])
answer = connection.makefile().readline()
if not answer:  # the zygote has ended, which says nothing of how the script did
    sys.exit("zygote_client.py: the zygote gave no answer")
code = int(answer)
if code < 0:
    signal.signal(-code, signal.SIG_DFL) if code != -9 else None
    os.kill(os.getpid(), -code)
sys.exit(code)
