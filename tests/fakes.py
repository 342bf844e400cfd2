"""Executables on PATH that stand in for a scheduler's commands: each says what a test told it to say."""

import os
import shlex
from pathlib import Path

RUNNING = {
    "JobState": "RUNNING",
    "Reason": "None",
    "Requeue": "1",
    "Restarts": "0",
    "BatchFlag": "1",
    "TimeLimit": "UNLIMITED",
    "StartTime": "1000",
    "EndTime": "Unknown",
    "PreemptTime": "None",
    "Partition": "long",
    "Command": "/home/a/job.sh",
    "WorkDir": "/home/a",
    "JobName": "job.sh",
}


def record(**facts):
    """What `scontrol show job` of Slurm 22.05 prints, with SLURM_TIME_FORMAT=%s."""
    of = RUNNING | {name: f"{value:.0f}" if isinstance(value, float) else str(value) for name, value in facts.items()}
    return f"""JobId=120 JobName={of["JobName"]}
   UserId=root(0) GroupId=root(0) MCS_label=N/A
   Priority=4294901759 Nice=0 Account=(null) QOS=(null)
   JobState={of["JobState"]} Reason={of["Reason"]} Dependency=(null)
   Requeue={of["Requeue"]} Restarts={of["Restarts"]} BatchFlag={of["BatchFlag"]} Reboot=0 ExitCode=0:0
   RunTime=00:00:00 TimeLimit={of["TimeLimit"]} TimeMin=N/A
   SubmitTime=990 EligibleTime=990
   AccrueTime=990
   StartTime={of["StartTime"]} EndTime={of["EndTime"]} Deadline=N/A
   PreemptEligibleTime=1000 PreemptTime={of["PreemptTime"]}
   SuspendTime=None SecsPreSuspend=0 LastSchedEval=1000 Scheduler=Backfill
   Partition={of["Partition"]} AllocNode:Sid=localhost:15495
   ReqNodeList=(null) ExcNodeList=(null)
   NodeList=n1
   Command={of["Command"]}
   WorkDir={of["WorkDir"]}
   StdErr=/home/a/slurm-120.out
   Power=


"""


class Fakes:
    """A PATH with nothing on it but what a test puts there."""

    def __init__(self, place: Path, monkeypatch) -> None:
        self.place = place / "bin"
        self.place.mkdir()
        self._log = place / "calls"
        self._cases: dict[str, list[str]] = {}
        monkeypatch.setenv("PATH", str(self.place))

    def say(self, command: str, out: str = "", *, err: str = "", code: int = 0, after: str = "") -> None:
        """Let `command` ("scontrol show job") answer so from now on; `after` is a command for the shell."""
        program, _, words = command.partition(" ")
        number = len(list(self.place.parent.glob("out-*")))
        out_file, err_file = self.place.parent / f"out-{number}", self.place.parent / f"err-{number}"
        out_file.write_text(out), err_file.write_text(err)
        case = f'"{words}"*) {after}{"; " if after else ""}/bin/cat {out_file}; /bin/cat {err_file} >&2; exit {code};;'
        self._cases.setdefault(program, []).insert(0, case)
        log = shlex.quote(str(self._log))
        keep = f"test -t 0 || /bin/cat > {self.place.parent}/stdin-{program}"
        script = f'#!/bin/sh\necho {program} "$*" >> {log}\n{keep}\ncase "$*" in\n' + "\n".join(self._cases[program])
        fresh = self.place / f".{program}"
        fresh.write_text(script + f'\nesac\necho "{program}: unexpected: $*" >&2\nexit 99\n')
        fresh.chmod(0o755)
        os.replace(fresh, self.place / program)

    def job(self, **facts) -> None:
        """Let scontrol show a job."""
        self.say("scontrol show job", record(**facts))

    def stdin(self, program: str) -> str:
        return (self.place.parent / f"stdin-{program}").read_text()

    @property
    def calls(self) -> list[str]:
        """Every call so far."""
        return self._log.read_text().splitlines() if self._log.exists() else []
