"""The ranks that tests fork."""

import rank_processes


def test_ranks_that_the_tests_fork_come_to_their_store(monkeypatch):
    """All, however often: none is forked while a thread has a lock that nobody would give back in the fork."""
    monkeypatch.setattr(rank_processes.dist, "init_process_group", lambda *_, **__: None)
    monkeypatch.setattr(rank_processes, "HANGS_S", 20)
    for _ in range(9):
        assert [(rank, "", 0) for rank in range(6)] == rank_processes.everywhere(6, int)
