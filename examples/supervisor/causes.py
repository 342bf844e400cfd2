"""Four programs that fail, each under `holdfast run --retries 3`, and what the supervisor says of them.

    python examples/supervisor/causes.py

A crash is tried again at once. An error that comes twice at the same step is not tried again. After a full
disk, or want of memory, the supervisor waits before the next start.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

LOOP = """
from holdfast import Every, Run

class Total:
    value = 0
    def state_dict(self): return {"value": self.value}
    def load_state_dict(self, state): self.value = state["value"]

total = Total()
with Run("run", {"total": total}, every=Every(steps=2)) as run:
    for epoch in run.epochs(1):
        for x in run.batches(range(10)):
            if x == 5:
                raise ValueError(f"a bad record, number {x}")
            total.value += x
"""
ONCE = "import os, pathlib, sys; first = not os.path.exists('once'); pathlib.Path('once').touch();"
PROGRAMS = {
    "crash": f"{ONCE} first and os.kill(os.getpid(), 11)",  # SIGSEGV, as from a fault in compiled code
    "same error": LOOP,
    "full disk": f"{ONCE} first and open('/dev/full', 'wb', buffering=0).write(b'x')",
    "memory": f"{ONCE} import resource; first and resource.setrlimit(resource.RLIMIT_AS, 2 * (2**30,)); bytes(2**32)",
}


def main() -> None:
    """Run them one after another."""
    for name, text in PROGRAMS.items():
        with tempfile.TemporaryDirectory() as place:
            Path(place, "program.py").write_text(text)
            run = [sys.executable, "-m", "holdfast", "run", "--run", "kept", "--retries", "3"]
            ended = subprocess.run(
                [*run, "--", sys.executable, "program.py"], cwd=place, capture_output=True, text=True, check=False
            )
            print(f"{name}: exit {ended.returncode}")
            print("".join(f"    {line}\n" for line in ended.stderr.splitlines() if "program.py: " in line), end="")


if __name__ == "__main__":
    main()
