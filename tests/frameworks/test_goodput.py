"""Google's ml-goodput-measurement and `holdfast report` agree about the same histories, each by its own computation.

Its recorder gets what each history's journals show, and its entries stay in memory. Its computation needs no cloud, but
its modules import Google's clients: `make test-frameworks` installs it without them, and they are empty here.
"""

import datetime as dt
import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

import pytest

from histories import STEP_S, History
from holdfast import journal
from stores import asked

PART = 0.01  # of the wall time


class Log:
    """Google's recorder writes into it, and its calculator reads from it, as from the log of its cloud."""

    def __init__(self):
        self.entries = []

    def write_cloud_logging_entry(self, entry):
        self.entries.append(entry)

    def read_cloud_logging_entries(self, *_, **__):
        return self.entries, None


@pytest.fixture(scope="module")
def goodput():
    """Google's module, without its package's `__init__`, which imports what uploads figures."""
    package = ModuleType("ml_goodput_measurement")
    vars(package)["__path__"] = find_spec(package.__name__).submodule_search_locations
    logging, storage = ModuleType("google.cloud.logging"), ModuleType("google.cloud.storage")
    vars(logging)["Client"] = object  # of an annotation
    cloud, google = ModuleType("google.cloud"), ModuleType("google")
    vars(cloud).update(logging=logging, storage=storage)
    vars(google)["cloud"] = cloud
    with pytest.MonkeyPatch.context() as patch:
        for module in (package, google, cloud, logging, storage):
            patch.setitem(sys.modules, module.__name__, module)
        return import_module("ml_goodput_measurement.src.goodput")


def replayed(goodput, history):
    """What its recorder writes in a training that has this history.

    A step that had begun when the program ended is recorded, also where the program stopped before it: theirs takes
    notice of an interruption only when a step begins a second time.
    """
    log = Log()
    recorder = goodput.GoodputRecorder("job", "log", logging_enabled=True, cloud_logger=log)
    began = [each["time"] for each in journal.read(history.directory / "supervisor.jsonl") if each["event"] == "start"]
    for each, began_s in zip(journal.logs(history.run), began, strict=True):
        recorder.record_job_start_time(utc(began_s))
        recorder.record_tpu_init_start_time(utc(began_s))
        for event in each.events:
            match event["event"]:
                case "begin":
                    opened_s = event["time"]
                    recorder.record_tpu_init_end_time(utc(opened_s))
                case "restored":
                    free_s, step = event["time"], event["step"]
                    log.entries.append(operation("restore", step, free_s - opened_s))
                case "metrics" if event["phase"] == "end":
                    recorder.record_custom_badput_event_start_time(utc(free_s), "evaluation")
                    free_s = event["time"]
                    recorder.record_custom_badput_event_end_time(utc(free_s), "evaluation")
                case "metrics":
                    recorder.record_step_start_time(event["step"] - 1, utc(free_s))
                    free_s, step = event["time"], event["step"]
                case "saved" if event["reason"] == "due":
                    free_s = event["time"]
                    log.entries.append(operation("save", step, event["stall_s"]))
        if each.last["event"] == "end":
            recorder.record_job_end_time(utc(free_s))
        else:
            recorder.record_step_start_time(step, utc(free_s))
    return log


def operation(kind, step, took_s):
    """What its checkpoint manager would log."""
    names = ["checkpoint_manager", "checkpointer"]
    names = [f"{name}_blocking" for name in names] + ["wait_for_prev", "get_old_steps"] if kind == "save" else names
    took = {f"{name}_duration_secs": took_s for name in names}
    return {"job_name": "job", "event_type": kind, "step": step, "directory": "/", **took}


def utc(time_s):
    return dt.datetime.fromtimestamp(time_s, dt.UTC)


@pytest.mark.parametrize("seed", range(20))
def test_a_history_has_the_same_goodput(goodput, seed, tmp_path):
    """Within a hundredth of the wall time; so have the seconds under its names, but for what it counts otherwise.

    It has no name for a hang or a stop: both lie between the last step and the next start. What was done of a step that
    a stop cut short lies there, too. Where an attempt saved nothing, the preparation of its first step is lost progress
    or other time. Of several restores of one step it counts the mean. It ends with the last step.
    """
    history = History(tmp_path, seed)
    truth = history.write(4 + seed % 5, 200)
    report = asked("report", history.directory)
    calculator = goodput.GoodputCalculator("job", "log", replayed(goodput, history), cache_dir=str(tmp_path / "cache"))
    calculator.get_job_goodput()
    details = calculator.get_job_goodput_details()
    ((_, productive_s),) = details["goodput_time"].items()
    theirs = {kind.name: value for kind, value in details["badput_time"].items()}
    ours, wall_s = report["seconds"], report["wall_s"]
    near = pytest.approx
    cut_s = STEP_S * sum(end in {"SIGTERM", "time limit", "done"} for end in truth.ends)
    assert details["total_elapsed_time"] == near(wall_s, rel=PART)
    assert productive_s + cut_s == near(ours["training"], abs=PART * wall_s)
    assert productive_s / details["total_elapsed_time"] == near(report["goodput"], abs=PART + cut_s / wall_s)
    assert theirs["CUSTOM_BADPUT_EVENTS"]["EVALUATION"] == near(ours["evaluation"])
    assert theirs["UNPRODUCTIVE_CHECKPOINT_SAVE_TIME"] == near(ours["save"])
    between_s = sum(ours[name] for name in ("hang", "stop", "queue", "idle"))
    assert theirs["INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION"] == near(between_s, abs=cut_s + 0.01)
    begun = ("TPU_INITIALIZATION", "PROGRAM_STARTUP", "UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME")
    begun_s = sum(theirs[name] for name in (*begun, "WASTED_PROGRESS_FROM_DISRUPTION", "OTHER"))
    assert begun_s == near(sum(ours[name] for name in ("start", "restore", "redone")), abs=PART * wall_s)
    if theirs["OTHER"] < 1:  # every attempt saved
        assert theirs["WASTED_PROGRESS_FROM_DISRUPTION"] == near(ours["redone"], abs=0.01)
        assert theirs["UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME"] == near(ours["restore"], abs=0.01)
