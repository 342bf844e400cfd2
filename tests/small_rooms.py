"""A law that is asked in a forked child, which may take little memory and little time."""

import json
import os
import resource
from collections.abc import Callable
from pathlib import Path


def in_a_small_room(law: Callable[[], list[str]], room_bytes: int, seconds: int = 200) -> list[str]:
    """What `law` returns in a child that may take so much more memory than this process has, and so many seconds."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reads)
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            most = pages * resource.getpagesize() + room_bytes
            resource.setrlimit(resource.RLIMIT_AS, (most, most))
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
            with os.fdopen(writes, "w") as answer:
                json.dump(law(), answer)
        finally:
            os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else ["it did not end: too much time or memory"]
