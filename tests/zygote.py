"""Zygote: imports modules once, and forks a process for each script that a client asks for.

    python zygote.py SOCKET PID MODULE...       serves, until it is terminated or that process has ended
    python zygote_client.py SOCKET SCRIPT ...   stands for `python SCRIPT ...`: its output, signals and exit status

A client that is killed takes its script along: the zygote kills it before it takes the next request.
"""

import atexit
import contextlib
import json
import os
import random
import runpy
import selectors
import signal
import socket
import sys
import threading
import traceback
from importlib import import_module

from holdfast import drill  # noqa: F401  what a script may need is imported already
from holdfast.script import opened

__name__ = "runpy"  # these frames are no part of the script


def serve(path, session):
    ends = os.pidfd_open(session)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(path)
    listening.listen()
    waiting = selectors.DefaultSelector()
    waiting.register(listening, selectors.EVENT_READ)
    waiting.register(ends, selectors.EVENT_READ)
    children = {}  # a client's connection -> (pid, pidfd)
    print("ready", flush=True)
    while True:
        ready = {key.fileobj: key.data for key, _ in waiting.select()}
        if ends in ready:
            return
        for connection in [each for each in ready if each in children]:
            _attend(connection, children, waiting)
        for pidfd, connection in [(each, data) for each, data in ready.items() if isinstance(each, int)]:
            if connection in children:
                _bury(connection, children, waiting, pidfd)
        if listening in ready and len(ready) == 1:
            connection, _ = listening.accept()
            pid = _fork(connection, listening)
            pidfd = os.pidfd_open(pid)
            children[connection] = pid, pidfd
            waiting.register(connection, selectors.EVENT_READ)
            waiting.register(pidfd, selectors.EVENT_READ, connection)


def _attend(connection, children, waiting):
    """Hand on a signal; when the client is gone, kill its script."""
    pid, pidfd = children[connection]
    said = connection.recv(1)
    if said:
        os.kill(pid, said[0])
    else:
        os.kill(pid, signal.SIGKILL)
        _bury(connection, children, waiting, pidfd)


def _bury(connection, children, waiting, pidfd):
    pid, _ = children.pop(connection)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    waiting.unregister(connection)
    waiting.unregister(pidfd)
    os.close(pidfd)
    with contextlib.suppress(OSError):
        connection.sendall(f"{code}\n".encode())
    connection.close()


def _fork(connection, listening):
    data, descriptors, _, _ = socket.recv_fds(connection, 1 << 20, 3)
    while not data.endswith(b"\n"):
        data += connection.recv(1 << 20)
    pid = os.fork()
    if pid:
        for descriptor in descriptors:
            os.close(descriptor)
        return pid
    code = 1
    try:
        listening.close()
        connection.close()
        for target, descriptor in enumerate(descriptors):
            os.dup2(descriptor, target)
        code = _run(json.loads(data))
    finally:
        os._exit(code)


def _run(asked):
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["directory"])
    sys.argv, sys.path[0] = asked["arguments"], os.path.dirname(asked["arguments"][0])
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(write_through=True)
    random.seed()  # as in a process of its own
    for module, seed in (("numpy.random", "seed"), ("torch", "seed")):
        if module in sys.modules:
            getattr(sys.modules[module], seed)()
    opened.record_opened_files()
    for each in [path for path in os.environ.get("PYTHONPATH", "").split(":") if path.endswith("/observe")]:
        runpy.run_path(f"{each}/sitecustomize.py", run_name="sitecustomize")
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    vars(threading)["_shutdown"]()
    atexit._run_exitfuncs()
    return code


if sys.argv[0].endswith("zygote.py"):
    for each in sys.argv[3:]:
        import_module(each)
    serve(sys.argv[1], int(sys.argv[2]))
