"""Three epochs of eight steps with trackers: `tracked.py RUN`. The options come as JSON in TRACKED."""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

from holdfast import Every, journal
from holdfast.track import MLflow, WandB
from toy import Toy, new_run, waited_for

options: dict[str, Any] = {
    "kill": 0,
    "sent": False,
    "sleep": 0.0,
    "shift": 0.0,
    "go_back": None,
    "trackers": ["wandb", "mlflow"],
}
options |= json.loads(os.environ.get("TRACKED", "{}"))
path = Path(sys.argv[1])
known = {"wandb": WandB("digits", mode="offline"), "mlflow": MLflow("digits", tracking_uri="sqlite:///db/mlflow.db")}
toy, taken = Toy(), 0
random.seed(29)


def everything_durable_was_sent():
    """Whether the cursors of this attempt stand before the newest saved step."""
    attempt, journal_path = journal.newest_attempt(path)
    saved = [event["step"] for event in journal.read(journal_path) if event["event"] in ("saved", "restored")]
    cursors = [json.loads(file.read_text()) for file in path.glob("trackers/*.json")]
    run.metrics()  # the journal is shown to readers
    return len(cursors) == len(options["trackers"]) and all(
        each["attempt"] == attempt and each["step"] >= max(saved) - 1 for each in cursors
    )


with new_run(
    path,
    toy,
    every=Every(steps=3),
    background=False,
    hyperparameters={"lr": 0.1, "token": "hunter22"},
    go_back=options["go_back"],
    track=[known[name] for name in options["trackers"]],
) as run:
    for epoch in run.epochs(3):
        for batch in run.batches(range(8)):
            toy.learn(batch)
            run.log(loss=toy.value / 2**61 + options["shift"], half=batch / 2)
            taken += 1
            time.sleep(options["sleep"])
            if run.step + 1 == 12 and (file := Path("db")).is_file():  # the tracker was away until now
                file.unlink()
                file.mkdir()
            if taken == options["kill"]:
                if options["sent"]:
                    waited_for(everything_durable_was_sent, 120)
                os.kill(os.getpid(), signal.SIGKILL)
        run.log(acc=epoch)
assert not {"wandb", "mlflow"} & {*sys.modules}
