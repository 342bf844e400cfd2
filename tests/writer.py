"""A program of somebody else's: it writes its checkpoint in place, slowly, and reads it when it is given one.

    writer.py STEPS [--from FILE] [--pause SECONDS] [--step SECONDS] [--max-s SECONDS]

Each step adds to a number; every 5 steps, and on SIGTERM, state.ck is overwritten, half now and half after the pause.
It prints its number at the end. A file that is not whole makes it say so and exit with 1. A step of which the file
`poison` holds the number makes it crash.
"""

import argparse
import os
import signal
import sys
import time
from pathlib import Path

SIZE = 2000
told = []


def write(step, value, pause_s):
    text = f"{step} {value} ".ljust(SIZE, ".") + "\n"
    with open("state.ck", "r+" if Path("state.ck").exists() else "w") as file:
        file.write(text[: SIZE // 2])
        file.flush()
        time.sleep(pause_s)
        file.write(text[SIZE // 2 :].replace(".", str(step % 10)))


def read(path):
    text = Path(path).read_text()
    words = text.split()
    step = int(words[0])
    if len(text) != SIZE + 1 or set(text[SIZE // 2 : -1]) != {str(step % 10)}:
        print("writer: FATAL: state.ck is not whole", flush=True)
        sys.exit(1)
    return step, int(words[1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("steps", type=int)
    parser.add_argument("--from", dest="start")
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--step", type=float, default=0.02)
    parser.add_argument("--max-s", type=float, default=float("inf"))
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: told.append(1))
    ends = time.monotonic() + given.max_s
    step, value = read(given.start) if given.start else (0, 1)
    print("from", step, flush=True)
    while step < given.steps:
        step += 1
        value = value * 31 % 1_000_003 + step
        time.sleep(given.step)
        if Path("poison").exists() and step == int(Path("poison").read_text()):
            os._exit(9)
        if step % 5 == 0 or told:
            write(step, value, given.pause)
        if told:
            print("stopped early", flush=True)
            sys.exit(1)
        if time.monotonic() > ends:
            print("stopped early, the limit is reached", flush=True)
            sys.exit(0)
    print("value", value, flush=True)


if __name__ == "__main__":
    main()
