"""A NumPy program with threads that knows nothing of Holdfast: 40 lines into a file, 0.1 s each; then an exit code."""

import sys
import threading
import time
from pathlib import Path

import numpy as np


def work(number, sums, path):
    random = np.random.default_rng(number)
    values = random.standard_normal(500)
    with Path(path).open("a", buffering=1) as out:
        for step in range(1, 41):
            for _ in range(20):
                values = np.sort(np.cos(values) + 1e-3 * random.standard_normal(500))
            sums[number] += values.sum()
            out.write(f"{step} {sums[number].hex()}\n")
            time.sleep(0.1)


def main():
    path, threads = sys.argv[1], int(sys.argv[2])
    sums = [0.0] * threads
    others = [threading.Thread(target=work, args=(n, sums, f"{path}.{n}")) for n in range(1, threads)]
    for other in others:
        other.start()
    work(0, sums, f"{path}.0")
    for other in others:
        other.join()
    print("sum", sum(sums).hex(), flush=True)
    sys.exit(int(sys.argv[3]) if len(sys.argv) > 3 else 0)


if __name__ == "__main__":
    main()
