"""Reads that fail: strace lets real system calls on one file return an error; nodes are UTS namespaces."""

import os
import socket
import subprocess
import sys
import textwrap
from contextlib import contextmanager
from unittest import mock

from holdfast import disk
from toy import Ended, script

CALLS = "openat,read,pread64,preadv,preadv2"
BODY = """
    from holdfast.run import failures
    failures.MOST_S = float(sys.argv[2])
    deadline = float(sys.argv[3]) if len(sys.argv) > 3 and sys.argv[3] != "-" else None
    back = int(sys.argv[4]) if len(sys.argv) > 4 else None
    options = dict(deadline=deadline and time.time() + deadline, go_back=back, mirror=os.environ.get("PLACE"))
    with new_run(RUN, toy, **options) as run:
        print("resumed", run.step, flush=True)
        for step in run.steps(int(sys.argv[1])):
            toy.learn(step)
    print("value", toy.value)
"""


def training(place):
    """A script that trains a toy up to step argv[1], and waits argv[2] s at most for a file that cannot be read."""
    return script(place, BODY)


def rank_training(place):
    """The same for one of several ranks; each has a value of its own."""
    begin = """
        import torch.distributed as dist
        dist.init_process_group("gloo", world_size=2)
        toy.value += dist.get_rank()
    """
    return script(place, textwrap.dedent(begin) + textwrap.dedent(BODY))


def ranks_ended(befores, path, *words):
    """What became of the ranks; each has its own words before the command."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        here = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "GLOO_SOCKET_IFNAME": "lo"}
    running = [
        begin(before, path, *words, **here, RANK=str(rank), WORLD_SIZE=str(len(befores)))
        for rank, before in enumerate(befores)
    ]
    return [Ended(process) for process in running]


def failing(file, code="EIO", when="1+", calls=CALLS):
    """The words before a command whose calls on that file return an error; `when` as strace counts calls."""
    fault = f"inject={calls}:error={code}:when={when}"
    return ["strace", "-f", "-qqq", "-o", "/dev/null", "-P", str(file), "-e", f"trace={calls}", "-e", fault]


@contextmanager
def unreadable(file):
    """In this process each read of that file fails, as its descriptors only write. Yields a list of them."""
    real, made = disk.open_plain, []

    def opened(path, *, follow=False, direct=False):
        if str(path) != str(file):
            return real(path, follow=follow, direct=direct)
        os.close(real(path, follow=follow, direct=direct))
        made.append(os.open(path, os.O_WRONLY))
        return made[-1]

    with mock.patch.object(disk, "open_plain", opened):
        yield made


SHIM = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/uio.h>
static int bad(int fd) {
    const char *wanted = getenv("BAD_INODE");
    struct stat facts;
    int is = wanted && !fstat(fd, &facts) && facts.st_ino == strtoull(wanted, 0, 10);
    if (is) errno = EIO;
    return is;
}
#define FAILS(name, more, ...) ssize_t name(int fd, more) { \
    static ssize_t (*real)(int, more); \
    if (!real) real = dlsym(RTLD_NEXT, #name); \
    return bad(fd) ? -1 : real(__VA_ARGS__); }
#define COMMA ,
FAILS(read, void *b COMMA size_t n, fd, b, n)
FAILS(preadv, const struct iovec *v COMMA int n COMMA off_t o, fd, v, n, o)
FAILS(preadv64, const struct iovec *v COMMA int n COMMA off64_t o, fd, v, n, o)
"""


def bad_sector(place, file):
    """The words before a command for which no read of this inode succeeds, whatever its name becomes."""
    (place / "shim.c").write_text(SHIM)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(place / "shim.so"), str(place / "shim.c"), "-ldl"], check=True)
    return ["env", f"LD_PRELOAD={place}/shim.so", f"BAD_INODE={file.stat().st_ino}"]


def on(host):
    """The words before a command that runs on a node of that name."""
    return ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', host]


def begin(before, path, *words, **environment):
    return subprocess.Popen(
        [*before, sys.executable, str(path), *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def ended(before, path, *words):
    return Ended(begin(before, path, *words))


def content(run):
    """All that the run's checkpoints and its quarantine hold: the bytes by name."""
    found = [path for room in ("checkpoints", "quarantine") for path in (run / room).rglob("*") if path.is_file()]
    return {path.relative_to(run).as_posix(): path.read_bytes() for path in found}


def value(out):
    return next(line.split()[1] for line in out.splitlines() if line.startswith("value"))
