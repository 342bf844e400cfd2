"""The mirrors' process with shorter time limits, and with a disk that fails by a plan.

    MIRROR_WORKER='{"set": [["s3", "_READ_S", 1.0]], "disk": [PLAN, FOLDER]}' mirror_worker.py ... -m holdfast.mirror

Stands in the place of the interpreter in `holdfast.mirror.client`.
"""

import importlib
import json
import os
import runpy
from pathlib import Path


def main():
    asked = json.loads(os.environ.get("MIRROR_WORKER", "{}"))
    for module, name, value in asked.get("set", ()):
        owner = importlib.import_module(f"holdfast.mirror.{module}")
        *inside, last = name.split(".")
        for each in inside:
            owner = getattr(owner, each)
        if not hasattr(owner, last):
            raise AttributeError(f"{module}.{name}: the tests set a limit that is not there any more")
        setattr(owner, last, value)
    for plan, folder in asked.get("disk", ()):
        from disk_faults import strike
        from fault_plans import Plan

        strike(Plan(Path(plan)), Path(folder))
    runpy.run_module("holdfast.mirror", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
