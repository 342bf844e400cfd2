"""`holdfast report`: each second of a run in one category, what interruptions cost, and one page of it."""

import csv
import errno
import json
import math
import os
import random
import re
import time
from html.parser import HTMLParser

import pytest

from histories import BEGAN_S, History, line
from holdfast import Best, Every, Last, disk, journal, owner
from holdfast.cli.report import _checkpoints
from holdfast.legible import duration
from holdfast.report import page, report
from holdfast.report.curves import Curve, downsample, summarize
from holdfast.report.live import LiveRun
from holdfast.supervise import status
from stores import asked, invoke
from toy import Toy, new_run

SEEDS = range(20)


def read(path):
    (place,) = status.find_runs(path)
    return report.read(place)


def summed(account):
    """The seconds of each category, by a sum of our own over the stretches; they must meet."""
    found, at_s = {}, account.began_s
    for category, began_s, ended_s in account.spans:
        assert began_s == at_s, "a gap or an overlap"
        at_s = ended_s
        found[category] = found.get(category, 0.0) + ended_s - began_s
    assert at_s == pytest.approx(account.began_s + account.wall_s, abs=1e-3)
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_each_second_of_a_history_is_in_its_category(tmp_path, seed):
    """Within a hundredth of the wall time of what truly happened; in all they are the wall time."""
    truth = History(tmp_path, seed).write(starts=4 + seed % 5, steps=200)
    found = read(tmp_path / "supervisor")
    assert found.account.wall_s == pytest.approx(truth.wall_s, abs=0.01)
    assert sum(found.account.seconds.values()) == pytest.approx(truth.wall_s, rel=1e-3)
    for category, seconds in found.account.seconds.items():
        wrong_s = abs(seconds - truth.seconds[category])
        assert wrong_s < 0.01 * truth.wall_s, (category, seconds, truth.seconds[category])
    assert {name: s for name, s in found.account.seconds.items() if s > 0} == pytest.approx(summed(found.account))
    assert len(truth.ends) - 1 == len(found.interruptions)
    assert "done" == found.verdict[0]
    counts = re.findall(r"[(,] ?(\d+) [a-z]", found.verdict[1].partition(" lost ")[0])
    assert len(found.interruptions) == sum(map(int, counts)), "each has its cause in the sentence"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("supervised", [True, False])
def test_torn_journals_and_clocks_that_jump_still_sum(tmp_path, seed, supervised):
    """At most a twentieth is unknown, and a line says what is estimated."""
    truth = History(tmp_path, seed, supervised=supervised, torn=True, jumps=True).write(5, 300)
    found = read(tmp_path / ("supervisor" if supervised else "run"))
    spent = found.account
    assert sum(spent.seconds.values()) == pytest.approx(spent.wall_s, rel=1e-3)
    summed(spent)
    assert spent.seconds["unknown"] <= 0.05 * spent.wall_s
    assert spent.seconds["training"] > 0.5 * truth.seconds["training"]
    assert spent.estimated
    if supervised:
        assert spent.wall_s == pytest.approx(truth.wall_s, rel=0.01)


@pytest.mark.parametrize("attempt", [1, 2, 4])
def test_an_attempt_whose_journal_cannot_be_read_is_told_and_takes_no_time(tmp_path, attempt):
    """The first, one in the middle or the last: it does not begin in 1970."""
    truth = History(tmp_path, 4, supervised=False).write(4, 200)
    (tmp_path / f"run/history/attempt-{attempt}.jsonl").write_bytes(b"\xff" * 100)
    found = read(tmp_path / "run")
    assert 0 < found.account.wall_s < truth.wall_s + 1
    assert 3 == len(found.starts)
    assert any("the journal of an attempt beside it" in line for line in found.account.estimated)


def test_what_an_interruption_cost_is_told_with_what_would_have_saved_it(tmp_path):
    """The steps that were done again, the seconds, and the time to the next step."""
    history = History(tmp_path, 3)
    truth = history.write(6, 260)
    found = read(tmp_path / "supervisor")
    for each, end, lost in zip(found.interruptions, truth.ends, truth.lost_steps, strict=False):
        assert each.step - each.resumed_step == lost
        assert (each.lost_s > 0) == (lost > 0 and end != "hang") or end == "hang"
        assert each.down_s > 0
        assert ("--hang-after" in each.advice) == (end == "hang")
        assert ("hang" == each.cause) == (end == "hang")
        assert each.lost_s == each.costs["redone"]


@pytest.mark.parametrize("seed", SEEDS)
def test_what_interruptions_cost_is_all_but_work_and_the_first_start(tmp_path, seed):
    """The same number in text, page and JSON: no training that counts, no save, not the end of a finished run."""
    History(tmp_path, seed).write(4 + seed % 5, 200)
    out = tmp_path / "page.html"
    text = invoke("report", tmp_path / "supervisor", "--html", out).stdout
    facts = asked("report", tmp_path / "supervisor")
    first, last = facts["attempts"][0]["seconds"], facts["attempts"][-1]["seconds"]
    work_s = sum(facts["seconds"][name] for name in ("training", "save", "evaluation"))
    work_s += first["start"] + first.get("restore", 0.0) + last.get("stop", 0.0)
    assert facts["lost_s"] == pytest.approx(facts["wall_s"] - work_s, abs=0.01)
    assert facts["lost_s"] == pytest.approx(sum(facts["lost"].values()))
    assert [*facts["lost"].values()] == sorted(facts["lost"].values(), reverse=True)
    costs = [sum(each["costs"].values()) for each in facts["interruptions"]]
    assert facts["lost_s"] == pytest.approx(sum(costs))
    told = f" lost {duration(facts['lost_s'])}, the first start not counted: "
    assert told in text
    assert told in out.read_text()


def test_a_run_that_was_done_and_then_trained_on_lost_nothing(tmp_path):
    """The time between is no interruption."""
    for last in (2, 4):
        with new_run(tmp_path / "run", Toy()) as at:
            for _ in at.steps(last):
                pass
    facts = asked("report", tmp_path / "run")
    assert (2, 0) == (len(facts["attempts"]), facts["lost_s"])
    assert "0 interruptions." in invoke("report", tmp_path / "run").stdout


def test_a_run_that_is_at_work_is_told_up_to_now(tmp_path):
    """The last start counts as training until this moment; where the process is gone, it does not."""
    for name, pid in (("alive", os.getpid()), ("gone", 2**22)):
        run = History(tmp_path / name, 1, supervised=False).run
        facts = owner.describe_this_process() | ({} if name == "alive" else {"pid": pid})
        began_s = time.time() - 1000
        lines = [
            line(began_s, "begin", attempt=1, run="0" * 32, owner=facts),
            line(began_s + 10, "restored", step=0, phase="step", checkpoint=None),
            line(began_s + 20, "metrics", step=1, phase="step", epoch=0, values={"loss": 1.0}),
        ]
        (run / "attempts/1").mkdir()
        (run / "attempts/1/attempt-1.jsonl").write_text("".join(lines))
        found = read(run)
        alive = name == "alive"
        assert ("goes on" if alive else "needs you") == found.verdict[0]
        assert found.account.wall_s == pytest.approx(1000 if alive else 20, abs=5)
        assert [] == found.interruptions if alive else found.interruptions


def test_a_run_without_a_start_and_a_folder_without_runs(tmp_path):
    """No division by zero, and a line that says what is missing."""
    empty = History(tmp_path, 1, supervised=False).run
    text = invoke("report", empty).output
    assert "not started" in text or "0 s" in text, text
    result = invoke("report", tmp_path / "nothing")
    assert 0 != result.exit_code
    assert "no run is there" in result.stderr


def test_commands_print_text_json_and_csv(tmp_path):
    """The same figures; the CSV has each step once."""
    History(tmp_path, 5).write(5, 150)
    text = invoke("report", tmp_path / "supervisor").stdout
    facts = asked("report", tmp_path / "supervisor")
    assert f"{facts['goodput']:.1%}" in text
    assert sum(facts["seconds"].values()) == pytest.approx(facts["wall_s"])
    assert sum(facts["google"].values()) == pytest.approx(facts["wall_s"])
    assert {"wall_s", "seconds", "goodput", "attempts", "interruptions"} <= {*facts}
    for attempt in facts["attempts"]:
        assert sum(attempt["seconds"].values()) == pytest.approx(attempt["wall_s"], abs=1e-3)
    table = tmp_path / "metrics.csv"
    assert "wrote" in invoke("report", tmp_path / "supervisor", "--csv", table).stdout
    with table.open() as file:
        lines = [*csv.DictReader(file)]
    rows = [row for row in lines if row["phase"] == "step"]
    assert ["40", "80", "120"] == [row["step"] for row in lines if row["accuracy"]]
    assert [*range(1, 151)] == [int(row["step"]) for row in rows]
    assert all(float(row["loss"]) == 1 / int(row["step"]) for row in rows)
    assert {"0"} == {row["epoch"] for row in rows if row["phase"] == "step"}


@pytest.mark.parametrize("option", ["--html", "--csv"])
def test_a_file_that_cannot_be_written_is_told_before_anything_is_read(tmp_path, option):
    """A directory in its place, none above it, a pipe, or a link, as /dev/stdout is one: nothing is replaced."""
    History(tmp_path, 5, supervised=False).write(2, 30)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    there = sorted(tmp_path.iterdir())
    for name, says in (
        ("run", "is a directory: name a file"),
        ("nowhere/x", "there is no directory"),
        ("pipe", "is no regular file"),
        ("link", "is no regular file"),
    ):
        refused = invoke("report", tmp_path / "run", option, tmp_path / name)
        assert 2 == refused.exit_code
        assert says in refused.stderr
    assert there == sorted(tmp_path.iterdir())
    assert (tmp_path / "link").is_symlink()


def test_a_full_disk_is_told_with_the_name_of_the_file(tmp_path, monkeypatch):
    """No temporary name, and nothing is left."""
    History(tmp_path, 5, supervised=False).write(2, 30)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(disk, "_write_all", full)
    refused = invoke("report", tmp_path / "run", "--html", tmp_path / "page.html")
    assert (1, f"holdfast: {tmp_path}/page.html: No space left on device\n") == (refused.exit_code, refused.stderr)
    assert ["run"] == os.listdir(tmp_path)


def test_metrics_are_printed_for_a_pipe(tmp_path, monkeypatch):
    """`--csv -` prints the metrics and nothing else; no file of that name is made."""
    monkeypatch.chdir(tmp_path)
    History(tmp_path, 5, supervised=False).write(2, 30)
    printed = invoke("report", "run", "--csv", "-")
    assert 0 == invoke("report", "run", "--csv", "file").exit_code
    assert (tmp_path / "file").read_bytes().decode() == printed.stdout
    assert {"run", "file"} == {*os.listdir()}
    assert 2 == invoke("report", "run", "--csv", "-", "--json").exit_code


def test_several_runs_are_compared_a_line_each(tmp_path):
    """With the sums at the end; a page is of one run."""
    for seed in range(3):
        History(tmp_path / f"r{seed}", seed, supervised=False).write(3, 60)
        (tmp_path / f"r{seed}/run").rename(tmp_path / f"run-{seed}")
        (tmp_path / f"r{seed}").rmdir()
    text = invoke("report", tmp_path).stdout
    assert "3 runs: 3 done" in text
    assert 3 == len(re.findall(r"^run-\d", text, re.MULTILINE))
    assert 3 == len(asked("report", tmp_path)["runs"])
    refused = invoke("report", tmp_path, "--html", tmp_path / "x.html")
    assert 2 == refused.exit_code
    assert not (tmp_path / "x.html").exists()


class _Page(HTMLParser):
    """The tags, scripts and addresses of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.outside, self.scripts, self._script = [], [], [], None
        self.handlers = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.outside += [value for name, value in attrs if name in {"src", "href", "action", "data"}]
        self.handlers += [name for name, _ in attrs if name.startswith("on")]
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data):
        if self.tags and self.tags[-1] == "script" and self.scripts:
            self.scripts[-1] += data


HOSTILE = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "' onload='alert(1)",
    '"><svg/onload=alert(1)>',
    "\u2028\u0000\ud800&lt;",
    "]]>--><!--",
    "\u202eright to left\u2066",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_text_of_a_run_is_no_markup(tmp_path, text):
    """Hostile names of metrics, errors, notes and arguments: the page has the same elements and scripts."""

    def written(place, name):
        history = History(place, 2, supervised=False)
        history.write(2, 30)
        journal = history.run / "history/attempt-1.jsonl"
        name = name.replace("\ud800", "?")
        with journal.open("a", encoding="utf-8") as file:
            file.write(line(BEGAN_S + 5, "environment", command=[name], python=name, libraries={name: name}))
            file.write(line(BEGAN_S + 5, "told", what=name))
            file.write(line(BEGAN_S + 60, "metrics", step=1, phase="step", epoch=0, values={name: 1.0}))
            file.write(line(BEGAN_S + 61, "failed", step=1, phase="step", error=name))
        written = page.html(read(history.run), [], 0).decode()
        assert not {"\0", "\u2028", "\u202e", "\u2066"} & {*written}
        return _Page(written)

    plain, hostile = written(tmp_path / "a", "plain"), written(tmp_path / "b", text)
    assert plain.tags == hostile.tags
    assert [] == hostile.outside == hostile.handlers
    assert [*map(len, plain.scripts[1:])] == [*map(len, hostile.scripts[1:])]
    json.loads(hostile.scripts[0])


def test_no_secret_of_an_error_or_an_argument_is_on_the_page(tmp_path, monkeypatch):
    """Passwords and signatures of addresses, and values with a telling name; the journals have none either."""
    monkeypatch.setattr("sys.argv", ["train.py", "--api-key", "hunter22", "https://h/x?sv=1&sig=hunter22"])
    with pytest.raises(ValueError, match="hunter22"), new_run(tmp_path / "run", Toy()) as at:
        for _ in at.steps(2):
            raise ValueError("403 from https://me:hunter22@host/path, token=hunter22")
    assert 0 == invoke("report", tmp_path / "run", "--html", tmp_path / "page.html").exit_code
    assert "ValueError: 403 from https://[redacted]@host/path" in (tmp_path / "page.html").read_text()
    kept = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    assert b"hunter22" not in kept


def test_a_page_is_one_file_of_few_bytes(tmp_path):
    """Below 300 kB beside its data; nothing is loaded from elsewhere."""
    History(tmp_path, 4).write(9, 400)
    out = tmp_path / "report.html"
    assert "wrote" in invoke("report", tmp_path / "supervisor", "--html", out).stdout
    text = out.read_text()
    found = _Page(text)
    assert len(text) - len(found.scripts[0]) < 300_000
    assert [] == found.outside
    assert "default-src 'none'" in text
    charts = json.loads(found.scripts[0])
    assert 400 == charts["curves"][0]["lines"][0]["steps"][-1]


def test_of_equal_values_the_first_is_the_greatest_and_the_least():
    """As `keep=Best(...)` keeps the older one of two checkpoints with equal values."""
    facts = summarize(Curve("accuracy", [1, 2, 3, 4], [0.1, 0.9, 0.9, 0.1], []))
    assert (0.1, 1, 0.9, 2) == tuple(facts[name] for name in ("min", "min_step", "max", "max_step"))


@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_values_that_were_logged_again_are_compared(tmp_path, shift):
    """Of a start that was killed behind its checkpoint: equal ones are called so, others with their metric."""
    run = tmp_path / "run"
    with new_run(run, Toy(), every=Every(steps=4)) as at:
        for step in at.steps(8):
            at.log(loss=float(step), nothing=math.nan)
    with new_run(run, Toy(), every=Every(steps=4), go_back=4) as at:
        for step in at.steps(8):
            at.log(loss=step + shift, nothing=math.nan)
    found = read(run)
    assert (8, 4 * bool(shift)) == tuple(sum(getattr(c, name) for c in found.curves) for name in ("again", "different"))
    assert "NaN or infinite: nothing." in found.soundness
    told = "4 differ (loss)" if shift else "One curve: all values logged again (8) are equal to the first ones."
    assert told in found.soundness
    assert told in invoke("report", run).stdout
    assert 0 == invoke("report", run, "--html", tmp_path / "page.html").exit_code
    assert told in (tmp_path / "page.html").read_text()
    assert {"loss": 4} if shift else {} == asked("report", run)["different"]


def test_the_page_names_the_place_of_the_best_checkpoint_and_of_its_copies(tmp_path):
    """The copies as the journals tell of them."""
    run, toy = tmp_path / "run", Toy()
    with new_run(run, toy, keep=Best("score", max), mirror=tmp_path / "copies") as at:
        for epoch in at.epochs(3):
            at.log(score=float(epoch == 1))
    page = tmp_path / "report.html"
    assert 0 == invoke("report", run, "--html", page).exit_code
    best = os.readlink(run / "checkpoints/best")
    assert "Best: score 1 at step 2, the largest by keep=Best(...)." in page.read_text()
    assert f"The best checkpoint, step 2: <code>{run}/checkpoints/{best}</code>" in page.read_text()
    assert f"{tmp_path}/copies</td>" in page.read_text()


def test_the_page_has_checkpoints_whose_metrics_are_no_numbers(tmp_path):
    """NaN, infinities, and one that was infinite at first."""
    toy = Toy()
    with new_run(tmp_path / "run", toy, keep=Last(4)) as at:
        for step in at.steps(4):
            at.log(loss=(math.nan, math.inf, -math.inf, 0.0)[step])
    assert 0 == invoke("report", tmp_path / "run", "--html", tmp_path / "page.html").exit_code
    assert "<td>loss nan</td>" in (tmp_path / "page.html").read_text()
    assert "<td>loss -inf</td>" in (tmp_path / "page.html").read_text()


def test_the_page_says_what_to_change_where_most_was_lost(tmp_path):
    """A hang first, then by the training that was done again; the rest stands in the table."""
    History(tmp_path, 7).write(30, 600)
    found = read(tmp_path / "supervisor")
    told = page.html(found, [], 0).decode().partition("What to change</h2>")[2].partition("</section>")[0]
    failed = max(each.attempt for each in found.interruptions if each.cause == "error")
    assert told.startswith(f"<p>Attempt {failed} ended with ValueError: no, raised by the script.")
    assert 1 == told.count("ValueError"), "of equal errors the newest"
    advised = [each for each in found.interruptions if each.advice and not each.advice.startswith("every=Auto()")]
    assert f"{len(found.advice) + len(advised) - page.MOST_ADVICE} more: see Interruptions." in told
    first = max(advised, key=lambda each: (each.cause == "hang", each.lost_s))
    assert f"Attempt {first.attempt}, {first.cause}: " in told


def test_an_interval_of_saves_is_advised_once_with_what_it_would_have_gained(tmp_path):
    """In the list of what to change; each interruption names it shortly, or says why nothing would have helped."""
    run = History(tmp_path, 1, supervised=False).run
    saved = {"phase": "step", "save_s": 0.01, "stall_s": 0.01, "reason": "due"}
    for attempt, last in enumerate((27, 47, 60, 80), 1):
        first, began_s = (attempt - 1) * 20, BEGAN_S + 200 * attempt
        facts = {"host": "n1", "pid": attempt}
        lines = [line(began_s, "begin", attempt=attempt, run="0" * 32, owner=facts)]
        lines.append(line(began_s + 1, "restored", step=first, phase="step", checkpoint=None))
        for step in range(first + 1, last + 1):
            at_s = began_s + 2 * (step - first)
            lines.append(line(at_s, "metrics", step=step, phase="step", values={"loss": 1.0 / step}))
            lines += [line(at_s + 0.1, "saved", step=step, **saved)] * (step % 10 == 0)
        lines += [line(at_s + 1, "end", step=last, phase="step")] * (attempt == 4)
        (run / "history").mkdir(exist_ok=True)
        (run / f"history/attempt-{attempt}.jsonl").write_text("".join(lines))
    found = read(run)
    assert [14, 14, 0] == [round(each.lost_s) for each in found.interruptions]
    *short, last = [each.saved_by for each in found.interruptions]
    assert ["every=Auto(): saves about 1.1 s apart"] * 2 == short
    assert "nothing: only 0 s of training was lost" == last
    (told,) = [each for each in found.advice if "every=Auto()" in each]
    assert "saves were about 20 s apart, and 2 interruptions lost 28 s of training: " in told
    assert "write `Run(..., every=Auto())` in the script" in told
    assert "Attempt 4: no step was logged twice." in found.soundness


@pytest.mark.parametrize(("reason", "advised"), [("due", "every=Auto()"), ("new best", "keep=Best(...) less often")])
def test_saves_that_cost_much_are_advised_on_by_their_reason(tmp_path, reason, advised):
    """An interval changes nothing where each new best is saved."""
    run = History(tmp_path, 1, supervised=False).run
    (run / "history").mkdir(exist_ok=True)
    saved = {"phase": "step", "save_s": 5.0, "stall_s": 5.0, "reason": reason}
    lines = [line(BEGAN_S, "begin", attempt=1, run="0" * 32, owner={"host": "n1", "pid": 1})]
    lines.append(line(BEGAN_S + 1, "restored", step=0, phase="step", checkpoint=None))
    for step in range(1, 9):
        lines.append(line(BEGAN_S + 10 * step, "metrics", step=step, phase="step", values={"loss": 1.0}))
        lines.append(line(BEGAN_S + 10 * step + 5, "saved", step=step, **saved))
    lines.append(line(BEGAN_S + 90, "end", step=8, phase="step"))
    (run / "history/attempt-1.jsonl").write_text("".join(lines))
    (told,) = [each for each in read(run).advice if "the loop waited" in each]
    assert advised in told


def test_the_page_tells_which_checkpoints_were_verified_and_when(tmp_path):
    """Read back before older ones were deleted, or restored; not one that is read for the first time later."""
    run = tmp_path / "run"
    for last in (4, 6):
        with new_run(run, Toy(), keep=Last(3), background=False) as at:
            for _ in at.steps(last):
                pass
    facts = asked("report", run)
    assert len(facts["checkpoints"]) == facts["existing"] == 3
    assert [] == facts["late_ranks"]
    begun = [log.events[0]["time"] for log in journal.logs(run)]
    when = {each["step"]: each["verified"] for each in facts["checkpoints"]}
    assert {4, 5, 6} == {*when}
    assert all(begun[1] < at_s < time.time() for at_s in when.values())
    (last,) = [each for each in facts["checkpoints"] if each["step"] == 6]
    # the same name in an earlier life of the run
    rows, _ = _checkpoints(str(run), {last["directory"]: begun[1]})
    assert [None] * 3 == [row["verified"] for row in rows]
    assert 0 == invoke("report", run, "--html", tmp_path / "page.html").exit_code
    assert "read again after its save" in (tmp_path / "page.html").read_text()


def test_a_checkpoint_before_which_nothing_was_deleted_is_not_called_verified(tmp_path):
    """It was never read; nor is a damaged one."""
    run = tmp_path / "run"
    with new_run(run, Toy(), keep=Last(3)) as at:
        for _ in at.steps(2):
            pass
    (run / "checkpoints/step-000000001/manifest.json").write_text("{}")
    found = asked("report", run)["checkpoints"]
    assert [None, None] == [each["verified"] for each in found]


def test_of_many_checkpoints_the_page_has_the_newest_the_pinned_and_the_best(tmp_path, monkeypatch):
    """The manifests of the others are not read: one that is damaged there is no trouble."""
    monkeypatch.setattr(page, "MOST_ROWS", 2)
    run, toy = tmp_path / "run", Toy()
    with new_run(run, toy, keep=Last(100) | Best("score", max)) as at:
        for step in at.steps(8):
            at.log(score=float(step == 3))
    assert 0 == invoke("pin", run, "--step", 2).exit_code
    (run / "checkpoints/step-000000005/manifest.json").write_text("{}")
    out = tmp_path / "report.html"
    assert 0 == invoke("report", run, "--html", out).exit_code
    text = out.read_text()
    shown = [each for each in range(1, 9) if f'<td class="long">step-{each:09d}</td>' in text]
    assert [2, 4, 7, 8] == shown
    assert "8 checkpoints exist." in text
    assert "checkpoints/step-000000004</code>" in text


def test_downsampling_keeps_the_extremes():
    """The first and the last point, each stretch's least and greatest value, and what is no number."""
    values = [math.sin(at / 50) for at in range(100_000)]
    values[777], values[50_123], values[60_001] = 9.0, -9.0, math.nan
    steps, kept = downsample([*range(len(values))], values)
    assert len(steps) < 1200
    assert (0, 99_999) == (steps[0], steps[-1])
    assert {777, 50_123, 60_001} <= {*steps}
    assert all(value == values[step] or math.isnan(value) for step, value in zip(steps, kept, strict=True))


ODD = [None, -1, 0, 1e308, 10**18, 10**30, "x", "nan", [], {}, True, {"a": [1]}]
KINDS = ["loop", "environment", "told", "saved", "metrics", "exit", "start", "begin", "restored", "tracker_told", 3]


@pytest.mark.parametrize("seed", range(25))
def test_journals_of_any_content_are_reported(tmp_path, seed):
    """Fields of any kind, lines in any order: the sums hold, the page is made, and a look at the live run works."""
    draw = random.Random(seed)
    History(tmp_path, seed, supervised=seed % 3 > 0).write(3, 40)
    for path in tmp_path.rglob("*.jsonl"):
        lines = [json.loads(each) for each in path.read_text().splitlines() if each]
        for _ in range(draw.randrange(1, 12)):
            event = draw.choice(lines)
            if draw.random() < 0.2:
                event["event"] = draw.choice(KINDS)
            field = draw.choice([*event, "time", "step", "phase", "total", "reason", "size_bytes", "stall_s"])
            event[field] = draw.choice(ODD)
        if draw.random() < 0.3:
            draw.shuffle(lines)
        path.write_text("".join(f"\n{json.dumps(each)}\n" for each in lines))
    for place in status.find_runs(tmp_path):
        found = report.read(place)
        json.dumps(report.facts(found))
        assert sum(found.account.seconds.values()) == pytest.approx(found.account.wall_s, rel=1e-3, abs=1e-3)
        assert page.html(found, [], 0).startswith(b"<!doctype html>")
        run = LiveRun(place)
        run.refresh(None, time.time())
        assert run.left_s is None or run.left_s >= 0
