"""DMTCP and CRIU as they behaved when they were tried, for machines that have neither: exit codes, traps and all.

One script under all names. It can checkpoint one kind of program only: one that goes on from the number of lines in the
file that its first argument names, cut back to where the image says.
"""

import sys

NAMES = {"dmtcp": ("dmtcp_launch", "dmtcp_restart", "dmtcp_command"), "criu": ("criu",)}
SCRIPT = '''#!{python}
import json, os, signal, subprocess, sys, time
from pathlib import Path

NAME, WORDS = os.path.basename(sys.argv[0]), sys.argv[1:]


def value(option):
    return WORDS[WORDS.index(option) + 1] if option in WORDS else None


def run(command, images):
    """The program below a launcher that writes an image and kills it when it is asked, by a file, to."""
    child = subprocess.Popen(command)
    signal.signal(signal.SIGTERM, lambda *_: (child.kill(), child.wait(), os._exit(143)))
    while child.poll() is None:
        if Path(value("--port-file") + ".asked").exists():
            child.kill()
            child.wait()
            out = Path(command[1])
            image = Path(images) / "ckpt_fake_1-2-3.dmtcp"
            part = Path(f"{image}.temp")
            part.write_text(json.dumps({"command": command, "bytes": out.stat().st_size, "end": 1}))
            time.sleep(0.2)
            part.rename(image)
            script = Path(os.environ.get("DMTCP_CHECKPOINT_DIR", "."))
            (script / "dmtcp_restart_script.sh").write_text("#!/bin/sh\\n")
            return 0  # like success
        time.sleep(0.02)
    return child.returncode


def launch(command):
    Path(value("--port-file")).write_text(value("--port-file") + ".asked")
    return run(command, value("--ckptdir"))


def dmtcp_launch():
    return launch(WORDS[WORDS.index("--interval") + 2 :])


def dmtcp_restart():
    images = [word for word in WORDS if word.endswith(".dmtcp")]
    if not images or not all(map(os.path.exists, images)):
        return 99
    try:
        image = json.loads(Path(images[0]).read_text())
    except ValueError:
        os.kill(os.getpid(), signal.SIGSEGV)
    time.sleep(0.3)  # being restored, it hears nobody
    Path(value("--port-file") + ".asked").unlink(missing_ok=True)
    os.truncate(image["command"][1], image["bytes"])
    return launch(image["command"])


def dmtcp_command():
    port = Path(value("--coord-port") or "/nowhere/port")
    if port.parent.is_dir():
        port.touch()
        print("Computation was checkpointed and killed.")
    return 2  # whatever happened


def criu():
    images = Path(value("-D"))
    if WORDS[0] == "dump":
        pid = int(value("-t"))
        own = Path("/proc/self/cmdline").read_bytes().split(b"\\0")[1]
        while own in (command := Path(f"/proc/{pid}/cmdline").read_bytes()):
            time.sleep(0.01)  # a restore that has forked it, and not yet made it the program
        command = command.decode().split("\\0")[:-1]
        os.kill(pid, signal.SIGSTOP)
        (images / "pages-1.img").write_text(json.dumps({"command": command}))
        (images / "inventory.img").write_text("x")
        os.kill(pid, signal.SIGKILL)
        return 0
    if (images / "inventory.img").stat().st_size == 0:
        print("Error (criu/image.c:96): Unexpected EOF on inventory", file=sys.stderr)
        print("Error (criu/cr-restore.c:2324): Restoring FAILED.", file=sys.stderr)
        return 1
    command = json.loads((images / "pages-1.img").read_text())["command"]
    (Path(value("-W")) / "stats-restore").touch()
    out = open(Path(value("-W")).parent / "output.txt", "a")
    subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, process_group=0)
    os.execvp(WORDS[WORDS.index("--") + 1], WORDS[WORDS.index("--") + 1 :])  # which waits for it


sys.exit(globals()[NAME]())
'''

COUNTER = """#!{python}
import sys, time
from pathlib import Path

out = Path(sys.argv[1])
with out.open("a", buffering=1) as file:
    for line in range(len(out.read_text().splitlines()) + 1, 31):
        time.sleep(0.05)
        file.write(f"{line} {line * line}\\n")
print("counted", flush=True)
sys.exit(int(sys.argv[2]) if len(sys.argv) > 2 else 0)
"""


def install(place, app):
    """The fakes of its programs, and the counter, in the directory `place`."""
    place.mkdir()
    for name, text in [*((name, SCRIPT) for name in NAMES[app]), ("counter", COUNTER)]:
        (place / name).write_text(text.replace("{python}", sys.executable))
        (place / name).chmod(0o755)
    return place
