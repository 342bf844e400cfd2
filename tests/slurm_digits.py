"""The digits example in one job of a real Slurm, and what a cluster does to it."""

from pathlib import Path

from holdfast import journal
from real_slurm import Slurm

EXAMPLE = Path(__file__).parents[1] / "examples" / "digits" / "train.py"

# The example itself, a step a second until a file `fast` is there: sub-minute limits need a training of minutes.
PACED = f"""
import os, random, runpy, time
import numpy, torch
random.seed(1)  # the example draws from torch's generator alone; a checkpoint holds these, too
numpy.random.seed(1)
step = torch.optim.AdamW.step
def paced(self, closure=None):
    time.sleep(0 if os.path.exists("fast") else 1)
    return step(self, closure)
torch.optim.AdamW.step = paced
if __name__ == "__main__":
    runpy.run_path({str(EXAMPLE)!r}, run_name="__main__")
"""


class Told:
    """One job, made to suffer; each word of it waits until Slurm has it in its own record."""

    def __init__(self, slurm: Slurm, place: Path, node: str, job: str) -> None:
        self.slurm, self.place, self.node, self.job = slurm, place, node, job
        self.restarts = 0

    def until_it_learns(self) -> None:
        """This start has restored, and done three steps of its own."""
        attempt = self.restarts + 1
        self.slurm.until(lambda: len(metrics_of(self.place / "runs" / "digits", attempt)) >= 3)

    def until_it_waits(self, partition: str = "long") -> None:
        """It is in the queue again; its next start is to be in this partition, without a limit."""
        self.restarts += 1
        self.slurm.until(lambda: self.slurm.show(self.job)["Restarts"] == str(self.restarts))
        self.slurm.wait(self.job, "PENDING", "RUNNING")
        self.slurm.ask("scontrol", "update", f"JobId={self.job}", f"Partition={partition}", "TimeLimit=UNLIMITED")

    def preempted(self, then: str) -> None:
        options = ("-p", "long", "-w", self.node, "-c", "4", "-o", "/dev/null")
        self.slurm.ask("sbatch", *options, "--wrap", "sleep 1", cwd=self.place)
        self.until_it_waits(then)

    def timed_out(self) -> None:
        self.slurm.ask("scontrol", "update", f"JobId={self.job}", "EndTime=now+5")
        self.until_it_waits()

    def requeued_by_hand(self) -> None:
        self.slurm.ask("scontrol", "requeue", self.job)
        self.until_it_waits()

    def node_lost(self, then: str = "long", elsewhere: str = "") -> None:
        """Its machine dies. It is to go on in this partition; `elsewhere`: on another node."""
        lost, self.node = self.node, elsewhere or self.node
        self.slurm.tend("kill-node", lost)
        self.until_it_waits(then)
        self.slurm.ask("scontrol", "update", f"JobId={self.job}", f"ReqNodeList={self.node}")
        self.slurm.tend("start-node", lost)


def metrics_of(run: Path, attempt: int) -> list[dict]:
    logs = [log for log in journal.logs(run) if log.attempt == attempt]
    return [event for log in logs for event in log.events if event["event"] == "metrics"]
