"""What a supervisor learns from the journal of the run that its command holds."""

from holdfast import journal
from holdfast.cluster import job_leader
from holdfast.supervise.witness import LOOKED_AT_BYTES, RunJournalReader


def test_a_long_journal_is_not_read_whole(tmp_path, monkeypatch):
    """It is looked at twice a minute: its beginning, where it ends, and the last saves are enough."""
    run, parsed = tmp_path / "run", []
    path = run / "attempts/1/attempt-1.jsonl"
    path.parent.mkdir(parents=True)
    metrics = [{"event": "metrics", "step": step, "values": {"loss": 0.5}, "text": "x" * 1000} for step in range(2000)]
    saved = {"event": "saved", "step": 2000, "save_s": 7.5}
    stop = {"event": "stop", "reason": "SIGTERM", "time": 20.0}
    path.write_bytes(journal.encode_events([{"event": "begin", "time": 10.0}, *metrics, saved, stop]))
    job_leader.report_run_path(tmp_path, run)
    parse = journal.parse
    monkeypatch.setattr(journal, "parse", lambda data: parsed.append(len(data)) or parse(data))
    witness = RunJournalReader(tmp_path)
    said = witness.read_outcome(10.0)
    witness.measure_saves()
    assert ("stop", "SIGTERM", 20.0, 7.5) == (said.event, said.reason, said.unix_s, witness.save_s)
    assert 2 == len(parsed)
    assert max(parsed) < path.stat().st_size / 2, parsed


def test_no_line_is_lost_between_the_two_ends(tmp_path):
    """Wherever the beginning that is read ends: also in the midst of the run's last word."""
    run = tmp_path / "run"
    path = run / "attempts/1/attempt-1.jsonl"
    path.parent.mkdir(parents=True)
    job_leader.report_run_path(tmp_path, run)
    begin, stop = ([{"event": event, "time": 10.0}] for event in ("begin", "stop"))
    filler = LOOKED_AT_BYTES - len(journal.encode_events([*begin, {"event": "told", "time": 10.0, "text": ""}]))
    path.write_bytes(
        journal.encode_events([*begin, {"event": "told", "time": 10.0, "text": "x" * (filler - 9)}, *stop])
    )
    assert LOOKED_AT_BYTES < path.stat().st_size < LOOKED_AT_BYTES + 40
    assert "stop" == RunJournalReader(tmp_path).read_outcome(10.0).event
