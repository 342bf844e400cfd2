"""python fuzz_process.py TARGET PLACE CORPUS SECONDS SEED FOUND: fuzz one kind of file, guided by coverage.

It ends with another code than 0 at the first input that is a fault, and leaves that in FOUND. PLACE/counts gets how
many inputs were tried, and how many of them were read.
"""

import json
import random
import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["holdfast"]):
    import fuzzed
import hostile

counts = [0, 0]


def main(target, place, corpus, seconds, seed, found):
    place = Path(place)
    place.mkdir(parents=True, exist_ok=True)

    def one(data):
        counts[1] += fuzzed.answered(target, bytes(data), place / "store")
        counts[0] += 1
        if counts[0] % 50 == 0:
            (place / "counts").write_text(json.dumps(counts))

    limits = ["-timeout=20", "-rss_limit_mb=4096", f"-max_total_time={seconds}", f"-seed={seed}", "-max_len=65536"]
    words = [sys.argv[0], *limits, f"-artifact_prefix={found}/{target}-", "-print_final_stats=1", corpus]
    atheris.Setup(words, one, custom_mutator=mutated if target in {"manifest", "part", "journal", "claim"} else None)
    atheris.Fuzz()


def mutated(data, most, seed):
    """Change one place of a JSON document, or bytes."""
    luck = random.Random(seed)
    try:
        document = json.loads(data)
        path = luck.choice(list(hostile.places(document)))
        made = json.dumps(
            hostile.changed(document, path, hostile.value_of(luck.randrange(len(hostile.ODD) + 2)))
        ).encode()
    except (ValueError, RecursionError, TypeError, LookupError):
        made = b""
    return made if 0 < len(made) <= most and luck.random() < 0.8 else atheris.Mutate(data, most)


if __name__ == "__main__":
    main(*sys.argv[1:])
