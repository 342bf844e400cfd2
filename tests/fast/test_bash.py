"""Reading of batch scripts: bash as bash splits it, directives as sbatch reads them."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.batch import bash, sbatch
from holdfast.batch.script import interpreter
from holdfast.lint import lint_script


def test_commands_are_read_as_bash_splits_them():
    """Quotes, substitutions, here-documents, redirections, functions, groups, loops and the background."""
    text = r"""
first "a b" 'c;d' e\ f "$(date; wc | x)" `y; z` $((1 + 2)) ${v:-(} # comment
cat > out.txt <<'END' && second
not a command
END
third &> log 2>&1 < in &
( fourth; fifth ) & { sixth; } &
f() { inside; }
function g { within
}
while kill -0 $pid; do seventh; done; for x in 1 2; do each $x; done
if [[ a && -n b ]]; then eighth; fi; x=(1 2) ninth --a=b#c \
   continued
case $x in a|b) tenth ;; *) eleventh ;; esac
"""
    commands = bash.commands(text)
    words = [command.words[0] for command in commands]
    assert (
        "first cat second third fourth fifth sixth inside within kill seventh each [[ eighth x=(1 2) tenth eleventh"
    ) == " ".join(words)
    assert ("first", "a b", "c;d", "e f", "$(date; wc | x)", "`y; z`", "$((1 + 2))", "${v:-(}") == commands[0].words
    assert ["third", "fourth", "fifth", "sixth"] == [each.words[0] for each in commands if each.background]
    assert {"inside": "f", "within": "g"} == {each.words[0]: each.function for each in commands if each.function}
    assert ["kill", "seventh", "each"] == [each.words[0] for each in commands if each.loop]
    assert [12, 14, 14] == [each.line for each in commands[-3:]]
    assert ("x=(1 2)", "ninth", "--a=b#c", "continued") == commands[-3].words


def test_directives_are_read_as_sbatch_reads_them():
    """Short names become long ones, and a comment may follow."""
    for line, options in {
        "--time=10 --mem 4G": ["--time=10", "--mem=4G"],
        "-t 10 -N2 -plong": ["--time=10", "--nodes=2", "--partition=long"],
        "-HW -J x": ["--hold", "--wait", "--job-name=x"],
        "--comment='a b' # no --more": ['--comment="a b"'],
        r'--comment="say \"x\" #1" -n 3': [r'--comment="say \"x\" #1"', "--ntasks=3"],
    }.items():
        assert options == [
            str(option) for option in sbatch.parse_directives(f"#!/bin/bash\n#SBATCH {line}\n").options
        ], line


def test_the_signal_is_read_as_sbatch_reads_it():
    """sbatch(1): without a number it comes 60 s before the end; the last one counts."""
    for line, signal in {
        "#SBATCH --signal=B:USR1@120": ("USR1", True, 120),
        "#SBATCH --requeue --signal=SIGUSR2@90": ("USR2", False, 90),
        "#SBATCH --signal B:10@30": ("USR1", True, 30),
        '#SBATCH --signal="RB:TERM@300"': ("TERM", True, 300),
        "#SBATCH --signal=USR2@9 --signal=usr1": ("USR1", False, 60),
        "# SBATCH --signal=USR1@5": None,
        "echo --signal=USR1@5": None,
    }.items():
        assert signal == sbatch.requested_signal(sbatch.parse_directives(f"#!/bin/bash\n{line}\nexec x\n").options), (
            line
        )


PIECES = [
    *"'\"`)}{\n&|(#\\ ",
    *["$(", "${", "((", "[[", "]]", "<<E", ";;", "esac", "for", "do", "done", "f()", "wait", "E"],
]
PIECES += ["case x in", "exec x", "trap 'a' USR1", "#SBATCH -x --y=z\n"]


@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=5), max_size=30).map("".join))
def test_whatever_the_text_is_it_is_read_to_its_end(text):
    """Half a script, or none at all: no error, and no line that is not there."""
    lines = text.count("\n") + 1
    assert all(1 <= command.line <= lines and command.words for command in bash.commands(text))
    assert all(1 <= finding.line <= lines for finding in lint_script(text))


RUBBISH = {
    "brackets": "(" * 20_000,
    "substitutions": "$(" * 20_000,
    "quoted substitutions": '"$(' * 20_000,
    "arrays": "a=(" * 20_000,
    "comments": "#" * 50_000,
    "permissions": "# holdfast: allow " * 3_000,
    "background": "a & " * 5_000,
    "directives": "#SBATCH --a='" * 10_000,
    "a function that calls itself": "f() {\n" + "f\n" * 100 + "}\n" + "f\n" * 20,
}


@pytest.mark.parametrize("what", RUBBISH)
def test_rubbish_is_read_to_its_end_in_time(what):
    """No recursion, and nothing that grows with the square of a line."""
    began = time.monotonic()
    lint_script(f"#!/bin/bash\n{RUBBISH[what]}\n")
    assert time.monotonic() - began < 2


def test_a_command_knows_its_place():
    """Pipelines, lists, branches and loops, and where its text begins and ends, with redirections."""
    text = """\
a && b || c
d | tee x &
if ! time e; then f > o; elif g; then h; else i; fi; k
( l; m ) | n
case $x in a) o ;; b) p ;; esac
for q in 1 2; do r; done | s
A=1 t "x y" 2>&1 <<E >> log
nothing; here
E
u &&
  v &
"""
    found = {each.words[0]: each for each in bash.commands(text)}
    assert {"a", "b", "c", "u", "v"} == {name for name, each in found.items() if each.joined}
    assert {"d", "tee", "l", "m", "n", "r", "s"} == {name for name, each in found.items() if each.piped}
    assert {"d", "tee", "u", "v"} == {name for name, each in found.items() if each.background}
    assert {"e": "time"} == {name: each.prefix for name, each in found.items() if each.prefix}
    places = {name: (each.within[0].kind, each.within[0].part) for name, each in found.items() if each.within}
    branches = {name: part for name, (kind, part) in places.items() if kind == "if"}
    assert {"e": 0, "f": 1, "g": 2, "h": 3, "i": 5} == branches
    assert (("case", 0), ("case", 1)) == (places["o"], places["p"])
    whole = found["A=1"]
    assert ('A=1 t "x y" 2>&1 <<E >> log', (">&", "<<", ">>")) == (text[whole.start : whole.end], whole.operators)
    assert text[whole.places[1] :].startswith("t ")


def test_comments_are_told_from_what_only_looks_like_one():
    """Here-documents and quotes have none."""
    text = "#!/bin/bash\n# one\ncat <<E\n# two\nE\necho '\n# three' # four\n"
    assert {1, 2, 7} == bash.parse(text).comments


@pytest.mark.parametrize(
    ("first", "name"),
    [
        ("#!/bin/bash -l", "bash"),
        ("#! /bin/sh -e", "sh"),
        ("#!/usr/bin/env -S bash -l", "bash"),
        ("#!/usr/bin/env -S A=1 zsh", "zsh"),
        ("#!/usr/bin/env python3", "python3"),
        ("#!/usr/bin/Rscript --vanilla", "Rscript"),
        ("# no interpreter", ""),
    ],
)
def test_the_first_line_names_the_interpreter(first, name):
    """With its options, and through env."""
    assert name == interpreter(f"{first}\n#SBATCH --time=1\n")
