"""Room: what will be short is told before it is, once; and no link carries a file into a purge."""

import os
import time
from types import SimpleNamespace

import pytest

from holdfast import Every, Last, Run, disk, settings
from holdfast import disk_space as room
from holdfast.cluster.quota import Quota, quotas
from holdfast.disk_space import SpaceNeed, describe_purge, find_shortages, predict_need
from holdfast.errors import UsageError
from holdfast.retention import CheckpointFacts
from holdfast.rules import Whole, Within
from stores import having, invoke
from toy import Toy

DAY_S = 86400


def facts(*steps, size=10):
    return [
        CheckpointFacts(f"step-{step:09d}", step, "step", None, 60.0 * step, {}, size, pinned=False) for step in steps
    ]


@pytest.mark.parametrize(
    ("there", "rule", "more"),
    [
        ((100, 200, 300), Last(3), 1),  # one more, until the oldest goes
        ((100,), Last(3), 3),
        ((100, 200, 300), None, room.AHEAD),
        ((100, 200), Every(steps=100) | Last(1), room.AHEAD),
        ((100, 200), Every(steps=1000) | Last(1), 1),
        ((100, 200, 300), Within(35), 1),
        ((), Last(3), 0),
    ],
)
def test_what_the_next_saves_need_is_what_the_rule_lets_stand(there, rule, more):
    """At the worst moment: when the new one is whole and the old one is not removed yet."""
    assert predict_need(facts(*there), rule, 10, 3) == SpaceNeed(room.AHEAD, 10 * more, 3 * more)


def test_each_limit_that_the_next_saves_meet_is_told(tmp_path, monkeypatch):
    """Space, files, and the quotas of this file system: not those of another, and no limit that is none."""
    mount = room._mount_point(tmp_path)
    monkeypatch.setattr(
        os, "statvfs", lambda _: SimpleNamespace(f_bavail=9, f_frsize=1, f_files=100, f_favail=4, f_blocks=1)
    )
    limits = [
        Quota("user ada", mount, 95, 100, 96, 100),
        Quota("group lab", mount, 95, 0, 96, 0),
        Quota("user ada", "/elsewhere", 100, 100, 100, 100),
    ]
    found = dict(find_shortages(tmp_path, SpaceNeed(5, 10, 5), limits))
    assert {*found} == {"space", "files", "quota of user ada", "files of user ada"}
    assert dict(find_shortages(tmp_path, SpaceNeed(5, 5, 4), limits)) == {}


def test_a_run_tells_in_time_and_once(tmp_path, monkeypatch, capsys):
    """After its first save, long before one fails; training goes on."""
    real = disk.free_bytes(tmp_path)
    assert real > 1 << 20
    monkeypatch.setattr(room, "LOOK_S", 0.0)
    monkeypatch.setattr(room, "find_shortages", lambda *_: [("space", "the next 5 saves need more")])
    toy = Toy()
    with Run(tmp_path / "run", {"toy": toy}, every=Every(steps=1), background=False) as run:
        for _ in run.steps(4):
            toy.learn()
    told = capsys.readouterr().err
    assert told.count("the next 5 saves need more: free some, or keep fewer checkpoints") == 1
    assert len(run.store().checkpoints()) == 3


QUOTAS = """Disk quotas for user ada (uid 1000):
 Filesystem blocks   quota   limit   grace   files   quota   limit   grace
      /home 100*   90  200   1700000000   10    20    30   0
   /scratch  10    0  0     0     1       0       0    0
Disk quotas for group lab (gid 7): none
Disk quotas for group club (gid 8):
 Filesystem blocks   quota   limit   grace   files   quota   limit   grace
      /home 5 50 0      6       7       0
"""


def test_quotas_of_users_and_groups_are_read(tmp_path, monkeypatch):
    """Blocks of 1 KiB and files, a soft limit where there is no hard one, with and without times of grace."""
    (tmp_path / "quota").write_text(f"#!/bin/sh\ncat <<'E'\n{QUOTAS}E\n")
    (tmp_path / "quota").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert quotas() == [
        Quota("user ada", "/home", 100 << 10, 200 << 10, 10, 30),
        Quota("user ada", "/scratch", 10 << 10, 0, 1, 0),
        Quota("group club", "/home", 5 << 10, 50 << 10, 6, 7),
    ]
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert quotas() == []


def age(path, days):
    os.utime(path, (time.time() - days * DAY_S,) * 2)


def test_what_a_purge_takes_soon_is_named(tmp_path):
    """Checkpoints, pins, the journals and run.json are of one run: the first file that goes is told, with its day."""
    root = having(tmp_path / "run", 1, 2).root
    assert describe_purge(root, 30, time.time()) is None
    age(root / "run.json", 22)
    assert describe_purge(root, 30, time.time()) is None
    age(root / "run.json", 23)
    age(root / "checkpoints/step-000000001/model.safetensors", 25)
    told = describe_purge(root, 30, time.time()) or ""
    assert "2 files of the run are nearly as old: first goes checkpoints/step-000000001/model.safetensors" in told
    checked = invoke("doctor", root, "--purge-days", 30)
    assert f"warning  purge: {told.partition('; ')[0]}" in checked.stdout
    assert "ok       purge" in invoke("doctor", root, "--purge-days", 60).stdout
    assert "purge" not in invoke("doctor", root).stdout


def test_a_run_on_a_file_system_with_a_purge_tells_it(tmp_path, monkeypatch, capsys):
    """HOLDFAST_PURGE_DAYS says after how many days; what is no number is refused before anything is written."""
    monkeypatch.setenv(settings.PURGE_DAYS, "30")
    with Run(tmp_path / "run", {"toy": Toy()}) as run:
        for _ in run.steps(1):
            age(tmp_path / "run/run.json", 29)
            run.save()
    assert "this site deletes files after 30 days, and a file of the run is nearly as old" in capsys.readouterr().err
    monkeypatch.setenv(settings.PURGE_DAYS, "a month")
    with pytest.raises(UsageError, match="HOLDFAST_PURGE_DAYS=a month: a number of days above 0 is wanted"):
        Run(tmp_path / "other", {"toy": Toy()}).start()
    assert not (tmp_path / "other").exists()


class Frozen:
    def state_dict(self):
        return {"table": bytes(2 << 20)}

    def load_state_dict(self, state):
        assert state["table"] == bytes(2 << 20)


@pytest.mark.parametrize("days", [None, 30])
def test_no_new_checkpoint_holds_a_file_that_a_purge_takes_soon(tmp_path, monkeypatch, days):
    """A link keeps the time at which the file was written. Where files are deleted by age, links end in time."""
    if days is not None:
        monkeypatch.setenv(settings.PURGE_DAYS, str(days))
    began_s = time.time()
    with Run(
        tmp_path / "run", {"toy": Toy(), "frozen": Frozen()}, every=Every(steps=1), background=False,
        whole=Whole(checkpoints=1000, hours=24 * 365),
    ) as run:  # fmt: skip
        for step in run.steps(3):
            if step == 2:
                run._session.attempt.flush()
                monkeypatch.setattr(time, "time", lambda: began_s + 20 * DAY_S)
    newest = tmp_path / "run/checkpoints" / os.readlink(tmp_path / "run/checkpoints/latest")
    shared = [path for path in newest.iterdir() if path.stat().st_nlink > 1]
    assert bool(shared) == (days is None)
