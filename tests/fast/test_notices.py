"""Spot notices: a metadata service on loopback, asked between two steps without waiting."""

import json
import socket
import threading
import time

import pytest

from holdfast.cluster import notices
from holdfast.cluster.notices import CLOUDS, Notices


def here(cloud, server):
    """The cloud's own table, with only its address changed."""
    address = f"http://127.0.0.1:{server.server_port}"
    moved = [url.replace("http://169.254.169.254", address) for url in (CLOUDS[cloud].url, CLOUDS[cloud].token_url)]
    return CLOUDS[cloud]._replace(url=moved[0], token_url=moved[1])


def looked(it, times=60, enough=lambda: False):
    """Whether it comes to a notice within some looks, or before they are `enough`."""
    for _ in range(times):
        if it.look():
            return True
        if enough():
            return False
        time.sleep(0.01)
    return False


def aws(answer, ttl="21600"):
    def answers(method, path, headers):
        if path == "/latest/api/token":
            right = method == "PUT" and headers.get("x-aws-ec2-metadata-token-ttl-seconds") == ttl
            return (200, "TOKEN==") if right else (400, "")
        if headers.get("x-aws-ec2-metadata-token") != "TOKEN==":
            return 401, ""
        return answer

    return answers


def gcp(answer):
    return lambda method, path, headers: answer if headers.get("metadata-flavor") == "Google" else (403, "")


def azure(answer):
    return lambda method, path, headers: answer if headers.get("metadata") == "true" else (400, "")


def events(*kinds):
    return json.dumps({"DocumentIncarnation": 1, "Events": [{"EventType": kind} for kind in kinds]})


CASES = [
    ("aws", aws((404, "Not Found")), False),
    ("aws", aws((200, '{"action": "terminate", "time": "2026-11-21T08:22:00Z"}')), True),
    ("aws", aws((200, '{"action": "hibernate"}')), True),
    ("aws", aws((200, "<html>proxy</html>")), False),
    ("aws", lambda *_: (403, ""), False),
    ("gcp", gcp((200, "FALSE")), False),
    ("gcp", gcp((200, "TRUE\n")), True),
    ("gcp", gcp((503, "TRUE")), False),
    ("azure", azure((200, events())), False),
    ("azure", azure((200, events("Freeze", "Reboot"))), False),
    ("azure", azure((200, events("Freeze", "Preempt"))), True),
    ("azure", azure((200, '{"Events": 7}')), False),
]


@pytest.mark.parametrize(("cloud", "answers", "expected"), CASES)
def test_what_the_cloud_says_becomes_a_notice(service, cloud, answers, expected):
    """By its own words and nothing else; with the headers without which it says nothing."""
    service.answers = answers
    it = Notices(here(cloud, service), every_s=0.001)
    assert expected == looked(it, enough=lambda: len(service.asked) == 4)  # the second answer has been taken up
    assert service.asked


def test_it_is_asked_only_when_it_is_due(service):
    """A thousand safe points a second are one question every five."""
    service.answers = gcp((200, "FALSE"))
    it = Notices(here("gcp", service))
    for _ in range(300):
        assert not it.look()
        time.sleep(0.001)
    assert 1 == len(service.asked)


def test_a_token_that_has_run_out_is_fetched_again(service):
    """AWS says 401 then."""
    current = ["A"]

    def answers(method, path, headers):
        if path.endswith("token"):
            return 200, current[0]
        return (200, '{"action": "stop"}') if headers["x-aws-ec2-metadata-token"] == "B" == current[0] else (404, "")

    def expired(method, path, headers):
        known = path.endswith("token") or headers["x-aws-ec2-metadata-token"] == "B"
        return answers(method, path, headers) if known else (401, "")

    service.answers = answers
    it = Notices(here("aws", service), every_s=0.02)
    assert not looked(it, 10)
    current[0], service.answers = "B", expired
    assert looked(it)


def test_a_look_never_waits(monkeypatch):
    """A service that accepts and says nothing costs microseconds, and a line for who wonders."""
    monkeypatch.setattr(notices, "LIMIT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        cloud = CLOUDS["gcp"]._replace(url=f"http://127.0.0.1:{silent.getsockname()[1]}/x")
        it = Notices(cloud, every_s=0.01)
        began = time.monotonic()
        took = []
        while not it.complaint and time.monotonic() < began + 10:
            before = time.perf_counter()
            it.look()
            took.append(time.perf_counter() - before)
            time.sleep(0.001)
    assert "no answer within 0.1 s" == it.complaint
    assert sorted(took)[len(took) // 2] < 0.002
    assert not it.soon


def test_an_answer_that_comes_in_pieces_is_read_to_its_end():
    """Not its first piece: the notice may be in the second."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        it = Notices(CLOUDS["gcp"]._replace(url=f"http://127.0.0.1:{server.getsockname()[1]}/x"))
        assert not it.look()
        theirs, _ = server.accept()
        with theirs:
            theirs.recv(4096)
            for piece in (b"HTTP/1.0 200 OK\r\n\r\n", b"TR", b"UE"):
                theirs.sendall(piece)
                assert not looked(it, 5)
        assert looked(it)


def test_nobody_there_is_no_notice():
    """On a machine of one's own, and in a container that may not ask."""
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    it = Notices(CLOUDS["gcp"]._replace(url=f"http://127.0.0.1:{port}/x"), every_s=0.01)
    assert not looked(it, 10)
    assert "Connection refused" == it.complaint


def test_what_it_said_once_stands_and_it_starts_no_thread(service):
    """A notice is not taken back. A loader's worker may be forked at any instant."""

    def ours():
        return {thread for thread in threading.enumerate() if "process_request" not in thread.name}

    service.answers = gcp((200, "TRUE"))
    before, it = ours(), Notices(here("gcp", service), every_s=0.01)
    assert looked(it)
    service.answers = gcp((200, "FALSE"))
    assert looked(it)
    assert (before, 1) == (ours(), len(service.asked))


def test_the_next_look_is_due_soon_while_a_question_is_under_way(service):
    """And else when the next question is."""
    asserted = threading.Event()
    service.answers = lambda *_: (404, "") if asserted.wait(60) else (500, "")
    it = Notices(here("gcp", service), every_s=20)
    before = time.monotonic()
    it.look()
    assert it.due_s < time.monotonic() + 1
    asserted.set()
    assert not looked(it, times=20)
    assert before + 15 < it.due_s < time.monotonic() + 25


# Under the supervisor -------------------------------------------------------------------------------------------------
