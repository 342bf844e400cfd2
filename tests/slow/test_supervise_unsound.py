"""A run that stops on NaN ends for good: neither its supervisor nor the scheduler starts it again by themselves."""

import pytest

from holdfast import Store, journal
from job_fakes import in_a_job
from supervised import supervised, train
from toy import events, launch, script

DIVERGES = """
    import torch
    weights = torch.nn.Parameter(torch.ones(3))
    state = dict(toy=toy, weights=weights)
    go_back = int(sys.argv[1]) if len(sys.argv) > 1 else None
    with Run(RUN, state, every=Every(steps=2), keep=Last(2), stop_on_nan=True, go_back=go_back) as run:
        for step in run.steps(8):
            toy.learn(step)
            with torch.no_grad():
                weights += 1
                if step == 5 and go_back is None:
                    weights[1] = float("nan")
                    send("TERM") if "SLURM_JOB_ID" in os.environ else None
    print("value", weights.tolist(), flush=True)
    """


@pytest.fixture
def fakes(tmp_path, monkeypatch):
    return in_a_job(tmp_path, monkeypatch)


def last(run):
    return journal.logs(run)[-1].events[-1]


def test_a_script_whose_weights_are_not_finite_exits_with_1_and_says_from_where_it_would_repeat(tmp_path):
    """At each start, until it is told to go back; then it ends as if nothing had been."""
    train = script(tmp_path, DIVERGES)
    for said in ("stop_on_nan: step-000000006 has", "does not go on from there: step-000000006 has"):
        ended = launch(train)
        assert 1 == ended.code, ended
        assert f"{said} infinite or NaN numbers in weights; step-000000004 is the last one without" in ended.err
        assert "go_back=4" in ended.err.splitlines()[-1]
        assert ("failed", "NotFinite") == (last(tmp_path / "run")["event"], last(tmp_path / "run")["kind"])
    ended = launch(train, "4")
    assert (0, "value [9.0, 9.0, 9.0]\n") == (ended.code, ended.out), ended


def test_a_supervisor_leaves_a_run_whose_weights_are_not_finite(tmp_path):
    """Whatever number of retries is left, with the cause in its last line."""
    it = supervised(tmp_path, train(tmp_path, DIVERGES), "--retries", "5")
    assert 1 == len(it.events("start"))
    assert 8 == it.code
    assert "weights not finite: another start would end like this one" in it.said
    assert "weights not finite" == it.events("exit")[0]["cause"]


def test_a_job_whose_run_finds_such_weights_at_its_notice_is_not_requeued(tmp_path, fakes):
    """Slurm's evidence speaks for a requeue, as of any job at its time limit. The run ends with 1 all the same."""
    ended = launch(script(tmp_path, DIVERGES))
    assert 1 == ended.code, ended
    assert not [call for call in fakes.calls if "requeue" in call]
    assert [] == events(tmp_path / "run", "requeued")
    assert "failed" == last(tmp_path / "run")["event"]
    assert ["weights"] == Store(tmp_path / "run").latest().head.not_finite
