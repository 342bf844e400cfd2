"""`every=Auto()` in a real process that is killed again and again."""

import json
import signal
import subprocess
import sys

from holdfast import journal
from holdfast.run.schedule import chosen_interval
from holdfast.young_daly import explain_choice
from toy import events, script, waited_for

KILLS = 4
KILLED = """
    from holdfast import Auto
    with new_run(RUN, toy, every=Auto(interrupted_hours=0.001), keep=Last(2)) as run:
        for step in run.steps(10**6 if sys.argv[1] == "on" else run.step + 50):
            toy.learn()
            time.sleep(0.005)
"""


def begun(place):
    return len(journal.logs(place / "run"))


def saves(place):
    return sum(event["event"] == "saved" for event in journal.logs(place / "run")[-1].events)


def test_a_run_that_is_killed_learns_how_often(tmp_path):
    """Each start chooses once, and knows one interruption more; the doctor says it in a sentence; no save is lost."""
    train = script(tmp_path, KILLED)
    for number in range(KILLS):
        process = subprocess.Popen([sys.executable, train, "on"], cwd=tmp_path)
        waited_for(lambda number=number: begun(tmp_path) == number + 1 and saves(tmp_path) >= 3)
        process.send_signal(signal.SIGKILL)
        assert -signal.SIGKILL == process.wait()
    subprocess.run([sys.executable, train, "end"], cwd=tmp_path, check=True)
    logs = journal.logs(tmp_path / "run")
    assert [1] * KILLS == [sum(event["event"] == "interval" for event in log.events) for log in logs[:KILLS]]
    assert [*range(KILLS)] == [chosen_interval(log).seen.interruptions for log in logs[:KILLS]]
    assert all(chosen_interval(log).costs.restart_s > 0.05 for log in logs[:KILLS])
    resumed = [event["step"] for event in events(tmp_path / "run", "restored")]
    assert KILLS + 1 == len(resumed)
    assert sorted(set(resumed)) == resumed
    words = [sys.executable, "-m", "holdfast", "doctor", "run", "--json"]
    answer = subprocess.run(words, cwd=tmp_path, stdout=subprocess.PIPE, check=False)  # it also judges this machine
    said = [each["what"] for each in json.loads(answer.stdout)["checks"] if each["name"] == "interval"]
    assert [explain_choice(next(filter(None, map(chosen_interval, reversed(logs)))))] == said
