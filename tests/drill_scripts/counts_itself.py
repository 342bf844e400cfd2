"""Adds random numbers without torch, and goes on by itself from out/state.json; the first argument names its fault."""

import json
import os
import sys
import time

import numpy as np

FAULT, RESUMED = sys.argv[1], len(sys.argv) > 2
dice, total, done, rows = np.random.default_rng(1), np.zeros(4), 0, []
if RESUMED and FAULT != "anew":
    with open("out/state.json") as file:
        kept = json.load(file)
    total, done = np.array(kept["total"]), kept["done"]
    if FAULT != "dice":
        dice.bit_generator.state = kept["dice"]
    with open("log.csv") as file:
        rows = file.readlines()[: done if FAULT != "dice" else None]
os.makedirs("out", exist_ok=True)
began = time.monotonic()
while done < 30:
    total, done = total + dice.normal(size=4), done + 1
    rows.append(f"{done},{total[0]},{(time.monotonic() - began) / done:.5f}\n")
    with open("log.being-written", "w") as file:
        file.writelines(rows)
    os.replace("log.being-written", "log.csv")
    time.sleep(0.015)
    if done % 5 == 0:
        text = json.dumps({"total": total.tolist(), "done": done, "dice": dice.bit_generator.state})
        name = "out/state.json" if FAULT == "cut" else "out/being-written"
        with open(name, "w", buffering=1) as file:
            for at in range(0, len(text), 20):
                print(text[at : at + 20], end="", file=file, flush=True)
                time.sleep(0.002)
        os.replace(name, f"out/state-{done:02}.json" if FAULT == "anew" else "out/state.json")
np.savez("final.npz", total=total)
