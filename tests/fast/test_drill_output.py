"""What a command prints counts: lines between two safe points are compared with the reference run's."""

import sys

from test_drill import until

from holdfast.drill import kill
from holdfast.drill.evidence import SafePoint
from holdfast.drill.output import Section, compare_output, find_varying, split_numbers, split_sections, without_marks

NOTHING = find_varying([], [])


def mark(step, attempt=1, phase="step"):
    return f"\x1eholdfast {step} {phase} {attempt}\x1e\n"


def test_output_is_cut_at_safe_points():
    """What was printed before the first belongs to the start; what follows the last one is whole only if the command
    was.
    """
    text = f"hello\n{mark(1)}a\nb\n{mark(2)}{mark(2, phase='end')}done\n"
    cut = [Section(SafePoint(1), 1, ("a", "b")), Section(SafePoint(2), 1, ())]
    assert split_sections(text, finished=False) == cut
    assert split_sections(text, finished=True) == [*cut, Section(SafePoint(2, "end"), 1, ("done",))]
    assert split_sections("no marks\n", finished=True) == []
    assert without_marks(text) == "hello\na\nb\ndone\n"


def test_an_unfinished_line_stays_one():
    """A mark within it is taken out with its own newline."""
    assert without_marks(f"1{mark(1)}2{mark(2)}\n") == "12\n"


def test_a_section_ends_with_its_attempt():
    """A launcher may begin another attempt in the same output: its start-up lines belong to no safe point."""
    text = f"{mark(1)}a\n{mark(2)}b\nstarting\n{mark(1, 2)}c\n{mark(2, 2)}"
    assert split_sections(text, finished=False) == [Section(SafePoint(1), 1, ("a",)), Section(SafePoint(1), 2, ("c",))]


def one(*lines, attempt=1, step=1):
    return [Section(SafePoint(step), attempt, lines)]


def test_the_first_line_that_differs_is_named():
    """Changed, missing, or one too many."""
    for now, found in (
        (("loss 0.25", "ok"), None),
        (("loss 0.26", "ok"), ("loss 0.25", "loss 0.26")),
        (("loss 0.25", "bad"), ("ok", "bad")),
        (("loss 0.25",), ("ok", None)),
        (("loss 0.25", "ok", "more"), (None, "more")),
    ):
        lines, compared = compare_output(one("loss 0.25", "ok"), one(*now, attempt=2), NOTHING)
        assert lines == ([] if found is None else [(SafePoint(1), 2, *found)])
        assert compared == len(now)


def test_a_number_that_two_undisturbed_runs_have_otherwise_is_not_compared():
    """In no line of that wording; the other numbers of the line are."""
    first = one("step 1 cost 7.5 loss 0.5", step=1) + one("step 2 cost 3.5 loss 0.25", step=2)
    second = one("step 1 cost 7.5 loss 0.5", step=1) + one("step 2 cost 4.5 loss 0.25", step=2)
    known = find_varying(first, second)
    assert compare_output(first, one("step 1 cost 9 loss 0.5"), known)[0] == []
    assert len(compare_output(first, one("step 1 cost 9 loss 0.6"), known)[0]) == 1


def test_a_wording_a_position_and_a_place_that_vary_are_not_compared():
    """Names of temporary files, and places where the number of lines varies; the lines beside them are."""
    known = find_varying(one("in /tmp/aab", "x") + one(step=2), one("in /tmp/cde", "x") + one("z", step=2))
    reference = one("in /tmp/aab", "x") + one(step=2)
    assert compare_output(reference, one("in /tmp/fgh", "x") + one("a", step=2), known) == ([], 1)
    assert len(compare_output(reference, one("in /tmp/fgh", "y"), known)[0]) == 1


def test_timings_are_not_compared_even_when_two_runs_had_them_alike():
    """A resumed run is slower at its first step."""
    for pair in (
        ("took 0.5 s", "took 12.5 s"),
        ("epoch 1 [00:01<00:09]", "epoch 1 [00:03<00:12]"),
        ("3.5 it/s", "9 it/s"),
        ("120 images/sec", "90 images/sec"),
        ("elapsed: 5", "elapsed: 6"),
        ("10%|#   \r20%|##", "30%|### \r"),
    ):
        was, now = map(one, pair)
        assert compare_output(was, now, find_varying(was, was))[0] == [], pair


def test_what_only_looks_like_a_timing_is_compared():
    """A unit is a word of its own."""
    for was, now in (("5 samples", "6 samples"), ("loss 0.5", "loss nan"), ("0.3 max 0.1 min", "0.4 max 0.1 min")):
        assert len(compare_output(one(was), one(now), NOTHING)[0]) == 1
    assert split_numbers("loss -1.5e-3, at 0x7f0a") == ("loss#, at#", ("-1.5e-3", "0x7f0a"))


def test_the_spaces_that_pad_a_number_are_no_difference():
    """A shorter timing in a field of fixed width has more spaces before it; the other numbers are still compared."""
    first, second, killed = (f"| time: {seconds:5.2f}s | loss {6.5:5.2f} |" for seconds in (15.63, 15.1, 4.37))
    known = find_varying(one(first), one(second))
    assert compare_output(one(first), one(killed), known)[0] == []
    assert compare_output(one(first), one(killed.replace("6.50", "6.51")), known)[0]


def test_exempt_lines_are_not_compared():
    """By the patterns that exempt metrics, too."""
    known = find_varying([], [], exempt=["host *"])
    assert compare_output(one("host a"), one("host b"), known) == ([], 0)


def test_both_streams_are_in_the_tail_and_one_is_compared():
    """Standard error has what varies: warnings, progress bars, Holdfast's own lines."""
    program = "import sys; print('out'); print('err', file=sys.stderr); print('\\x1eholdfast 1 step 1\\x1e')"
    with kill.ChildTree([sys.executable, "-c", program], {"PYTHONUNBUFFERED": "1"}) as child:
        until(child.ended)
        child.finish()
        assert sorted(child.tail.splitlines()) == ["err", "out"]
        assert child.printed == f"out\n{mark(1)}"
