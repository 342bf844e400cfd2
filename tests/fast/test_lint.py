"""Lint: what batch scripts do otherwise than their author thinks. test_bash_claims.py tries it on bash itself."""

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from holdfast import journal
from holdfast.cli import commands
from holdfast.cluster import bash, sbatch
from holdfast.cluster.batch import Around, read
from holdfast.cluster.lint import RULES, lint

CLEAN = """\
#!/bin/bash
#SBATCH --time=1:00:00
#SBATCH --requeue --open-mode=append
#SBATCH --signal=B:USR1@300
trap '' USR1 USR2; module load anaconda/3
exec holdfast run -- python train.py
"""

# As Mila's guide has it: a handler, and after it exec.
MILA = """\
#!/bin/bash
#SBATCH --gpus-per-task=1
#SBATCH --mem=16G
#SBATCH --time=00:15:00
#SBATCH --requeue
#SBATCH --signal=B:TERM@300 # five minutes
                            # and a second line
on_signal()
{
    echo "told to stop"
    wait
}

trap 'on_signal' SIGINT SIGTERM SIGCONT

echo "Date:     $(date)"
module --quiet purge
module load anaconda/3
conda activate pytorch
mkdir -p $SLURM_TMPDIR/data
cp --update /network/datasets/cifar10/cifar-10-python.tar.gz $SLURM_TMPDIR/data/
unset CUDA_VISIBLE_DEVICES
exec python main.py
"""

# As Northeastern's guide has it: ten tasks, one at a time; GROMACS under srun, and a program in the foreground.
GROMACS = """\
#!/bin/bash
#SBATCH --partition=short
#SBATCH --nodes=1
#SBATCH --time=12:00:00
#SBATCH --ntasks=56
#SBATCH --array=1-10%1  # one at a time
#SBATCH --output=myrun-%A_%a.out

module load gromacs/2020.3-gpu-mpi
source /shared/gromacs/bin/GMXRC.bash

srun --mpi=pmi2 -n $SLURM_NTASKS gmx_mpi mdrun -ntomp 1 -s myrun.tpr -v -dlb yes -cpi state
"""
TENSORFLOW = """\
#!/bin/bash
#SBATCH --time=00:10:00
#SBATCH --gres=gpu:1
#SBATCH --output=%A-%a.out
#SBATCH --array=1-10%1

source activate tf_gpu
numOfSteps=$(( 500 * SLURM_ARRAY_TASK_ID ))
python train_with_checkpoints.py $numOfSteps &> log.$SLURM_ARRAY_TASK_ID
"""


def found(text, **around):
    """The findings as {rule: line}."""
    return {finding.rule: finding.line for finding in lint(text, Around(**around))}


def job(body, options="--requeue --open-mode=append --signal=B:USR1@300"):
    return f"#!/bin/bash\n#SBATCH {options}\n{body}\n"


def test_what_holdfast_submit_would_write_has_no_finding():
    """A script that does everything right is left alone."""
    assert {} == found(CLEAN)


def test_the_findings_in_milas_script():
    """Its trap is gone at exec; SIGTERM as a notice looks like a scancel; nothing requeues when the time is over."""
    assert {
        "append-missing": 5,
        "requeue-is-not-for-time": 5,
        "term-as-notice": 6,
        "trap-before-exec": 14,
        "cont-trapped": 14,
        "copy-cut-short": 21,
    } == found(MILA)


def test_the_findings_in_northeasterns_scripts():
    """Ten tasks start whatever the first did; and the program in the foreground is killed without a word."""
    assert {"requeue-missing": 1, "append-missing": 1, "chain-goes-on": 6} == found(GROMACS)
    assert {"requeue-missing": 1, "append-missing": 1, "chain-goes-on": 5, "no-grace": 9} == found(TENSORFLOW)


FAULTS = {
    # name: (rule, script with the fault, line of the finding, script without it)
    "a notice to a shell that has no trap": (
        "notice-unheard",
        job("python train.py"),
        2,
        job("exec python train.py", "--no-requeue --signal=B:USR1@300"),
    ),
    "a notice to steps, and there are none": (
        "notice-unheard",
        job("exec holdfast run -- python train.py", "--requeue --open-mode=append --signal=USR1@300"),
        2,
        job("exec holdfast run -- srun python train.py", "--requeue --open-mode=append --signal=USR1@300"),
    ),
    "a trap before exec": (
        "trap-before-exec",
        job("trap 'touch stop' USR1\nexec holdfast run -- python train.py"),
        3,
        job("trap '' USR1\nexec holdfast run -- python train.py"),
    ),
    "a trap in a function before exec": (
        "trap-before-exec",
        job("listen() { trap 'touch stop' USR1; }\nlisten\nexec holdfast run -- python train.py"),
        3,
        job("listen() { trap 'touch stop' USR1; }\nexec holdfast run -- python train.py"),
    ),
    "a trap that is set again after it was taken back": (
        "trap-before-exec",
        job("trap - USR1\ntrap 'touch stop' USR1\nexec holdfast run -- python train.py"),
        4,
        job("trap - USR1\ntrap -p\nexec holdfast run -- python train.py"),
    ),
    "a foreground child hides a trap": (
        "trap-hidden",
        job("trap 'scontrol requeue $SLURM_JOB_ID' USR1\npython train.py"),
        4,
        job("trap 'kill -USR1 $pid; scontrol requeue $SLURM_JOB_ID; wait' USR1\npython train.py & pid=$!\nwait"),
    ),
    "a foreground step hides the batch shell's trap": (
        "trap-hidden",
        job("trap 'scontrol requeue $SLURM_JOB_ID' SIGUSR1\nsrun python train.py"),
        4,
        job("trap 'scontrol requeue $SLURM_JOB_ID; wait' SIGUSR1\nsrun python train.py &\nwait"),
    ),
    "a wait that ends at the signal": (
        "wait-once",
        job("trap 'kill -USR1 $!; scontrol requeue $SLURM_JOB_ID' USR1\npython train.py &\nwait"),
        5,
        job(
            "trap 'kill -USR1 $!; scontrol requeue $SLURM_JOB_ID' USR1\npython train.py & pid=$!\n"
            'while kill -0 "$pid" 2>/dev/null; do\n  wait "$pid"\ndone'
        ),
    ),
    "nobody waits at all": (
        "wait-once",
        job("trap 'scontrol requeue $SLURM_JOB_ID; wait' USR1\npython train.py &"),
        4,
        job("trap 'scontrol requeue $SLURM_JOB_ID; wait' USR1\npython train.py &\nwait"),
    ),
    "SIGTERM as a notice": (
        "term-as-notice",
        job("exec holdfast run -- python train.py", "--requeue --open-mode=append --signal B:TERM@60"),
        2,
        CLEAN,
    ),
    "no word about requeue": ("requeue-missing", CLEAN.replace("--requeue ", ""), 1, CLEAN),
    "output that each start empties": (
        "append-missing",
        CLEAN.replace("append", "truncate"),
        3,
        CLEAN.replace("--requeue --open-mode=append", "--no-requeue"),
    ),
    "requeue relied on for the time limit": (
        "requeue-is-not-for-time",
        job("exec python train.py"),
        2,
        job("trap 'scontrol requeue $SLURM_JOB_ID; wait' USR1\npython train.py &\nwait"),
    ),
    "torchrun's grace": (
        "torchrun-grace",
        job("exec torchrun train.py", "--no-requeue --signal=B:TERM@300"),
        3,
        job("export PET_SHUTDOWN_TIMEOUT=300\nexec torchrun train.py", "--no-requeue --signal=B:TERM@300"),
    ),
    "torchrun dies of the notice": (
        "torchrun-signal",
        job("exec torchrun --shutdown-timeout=300 train.py", "--no-requeue --signal=B:USR2@300"),
        3,
        job(
            "exec torchrun --shutdown-timeout=300 --signals-to-handle=SIGTERM,SIGUSR2 train.py",
            "--no-requeue --signal=B:USR2@300",
        ),
    ),
    "USR1 with NCCL": (
        "usr1-with-nccl",
        job("exec holdfast run -- srun python train.py", "--no-requeue --signal=B:USR1@300 --gpus-per-node=4 -n 4"),
        2,
        job("exec holdfast run -- srun python train.py", "--no-requeue --signal=B:USR2@300 --gpus-per-node=4 -n 4"),
    ),
    "a whole array requeued": (
        "whole-array-requeued",
        job("trap 'scontrol requeue $SLURM_JOB_ID; wait' USR1\npython a.py &\nwait", "--requeue --array=1-9"),
        3,
        job(
            "trap 'scontrol requeue ${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}; wait' USR1\npython a.py &\nwait",
            "--requeue --array=1-9",
        ),
    ),
    "a chain that goes on": (
        "chain-goes-on",
        job("exec holdfast run -- python a.py", "--requeue --array=1-9%1"),
        2,
        job("exec holdfast run --chain -- python a.py", "--requeue --array=1-9%1"),
    ),
    "a directive after a command": (
        "directive-too-late",
        CLEAN.replace("module load anaconda/3", "module load anaconda/3\n#SBATCH --mem=16G"),
        6,
        CLEAN,
    ),
    "a word that is no option": (
        "script-refused",
        CLEAN.replace("--requeue", "--requeue stray words"),
        3,
        CLEAN.replace("--requeue", "--requeue --job-name words"),
    ),
    "an option that there is not": ("script-refused", CLEAN.replace("--requeue", "-! --requeue"), 3, CLEAN),
    "a notice in the set-up": (
        "notice-in-set-up",
        job("module load cuda\nexec holdfast run -- python a.py"),
        3,
        job("trap '' USR1\nmodule load cuda\nexec holdfast run -- python a.py"),
    ),
    "a notice for a shell that still unpacks": (
        "notice-in-set-up",
        job("set -e\ntar -xf x.tar\nexec holdfast run -- python a.py"),
        4,
        job("set -e\nexec holdfast run -- python a.py"),
    ),
    "an option misspelt": (
        "script-refused",
        CLEAN.replace("--time=1:00:00", "--tme=1:00:00"),
        2,
        CLEAN.replace("--time", "--tim"),
    ),
    "line breaks of DOS": ("script-refused", CLEAN.replace("\n", "\r\n"), 1, CLEAN),
    "a copy that keeps what was cut short": (
        "copy-cut-short",
        CLEAN.replace("module load anaconda/3", "cp -ru /data $SLURM_TMPDIR"),
        5,
        CLEAN.replace("module load anaconda/3", "cp -r /data $SLURM_TMPDIR"),
    ),
    "a program in the foreground": (
        "no-grace",
        job("python train.py", "--no-requeue"),
        3,
        job("srun python train.py", "--no-requeue"),
    ),
    "a trap for SIGCONT": (
        "cont-trapped",
        job("trap 'touch stop; wait' TERM CONT\npython train.py &\nwait", "--no-requeue"),
        3,
        job("trap 'touch stop; wait' TERM\npython train.py &\nwait", "--no-requeue"),
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_found_at_its_line_and_its_cure_is_not(name):
    """A rule that finds everything would be as useless as one that finds nothing."""
    rule, faulty, line, cured = FAULTS[name]
    assert line == found(faulty).get(rule), found(faulty)
    assert rule not in found(cured)


def test_a_misspelt_option_is_told_with_the_one_that_was_meant():
    """One like none is told as well; what sbatch or a plugin of many sites takes is not."""

    def fixes(option):
        text = CLEAN.replace("--requeue", f"--requeue {option}")
        return [(each.what, each.fix) for each in lint(text) if each.rule == "script-refused"]

    assert [("--ouput is no option of sbatch", "write --output")] == fixes("--ouput=x")
    assert [("--qqq is no option of sbatch", "remove it")] == fixes("--qqq")
    for option in ("-D x", "--gpus 1", "--x11", "--container-image=x", "--ntasks-per-n=2", "--mail-type=END", "-H"):
        assert [] == fixes(option)


def test_every_rule_finds_some_fault():
    """No rule stands there that never went red."""
    texts = [faulty for _, faulty, *_ in FAULTS.values()] + [CLEAN.replace("--requeue", "--requeue -o logs/x")]
    around = Around(exists=lambda _: False, save_s=1e6)
    scripts = [read(text, around) for text in texts]
    assert [] == [rule.__name__ for rule in RULES if not any(list(rule(script)) for script in scripts)]


def test_a_script_that_uses_holdfast_requeues_by_itself():
    """Run asks for it in time: the program is read, not run."""
    text = job("exec python train.py")
    assert "requeue-is-not-for-time" in found(text, read=lambda _: "import holdfastened\n")
    assert "requeue-is-not-for-time" not in found(text, read=lambda _: "import os\nfrom holdfast import Run\n")


def test_usr1_is_fine_for_one_task_whatever_gpus_it_has():
    """NCCL is for several."""
    options = "--no-requeue --signal=B:USR1@300 --gpus-per-node=4 --nodes=1 --cpus-per-task=8"
    assert {} == found(job("exec holdfast run -- python train.py", options))
    assert ["usr1-with-nccl"] == list(found(job("exec holdfast run -- srun python a.py", f"{options} -n 1-4")))


def test_a_lead_shorter_than_the_measured_save_is_found():
    """Half as much again as it took, and a second to leave."""
    finds = {save_s: "lead-too-short" in found(CLEAN, save_s=save_s) for save_s in (41.0, 250.0, None)}
    assert {41.0: False, 250.0: True, None: False} == finds


def test_torchruns_grace_is_enough_for_a_save_that_is_fast():
    """What was measured is believed."""
    text = job("exec torchrun train.py", "--no-requeue --signal=B:TERM@300")
    assert "torchrun-grace" not in found(text, save_s=10.0)
    assert "torchrun-grace" in found(text, save_s=25.0)
    deaf = text.replace("B:TERM", "B:USR2")
    assert "torchrun-signal" in found(deaf, save_s=10.0)
    assert "torchrun-signal" not in found(deaf.replace("exec torchrun", "exec holdfast run -- torchrun"), save_s=10.0)


@pytest.mark.parametrize(
    ("option", "finds"),
    [("--output=logs/%j.out", True), ("-o there/%j.out", False), ("-e %x/err", True), ("--output=%j.out", False)],
)
def test_a_log_folder_that_is_not_there_is_found_also_when_the_script_makes_it(option, finds):
    """Slurm opens the output before the first line of the script runs."""
    text = CLEAN.replace("module load", "mkdir -p logs\nmodule load").replace("--requeue", f"--requeue {option}")
    around = Around(exists=lambda folder: folder == "there")
    whys = [each.why for each in lint(text, around) if each.rule == "log-folder-missing"]
    assert finds == bool(whys)
    assert all("mkdir in the script comes too late" in why for why in whys)
    without = [each.why for each in lint(text.replace("mkdir -p logs\n", ""), around)]
    assert not any("too late" in why for why in without)


def test_a_comment_switches_a_rule_off():
    """For what lint cannot see: a program that requeues by other means."""
    text = job("# requeues by itself: holdfast: allow x\nexec python train.py")
    assert ["requeue-is-not-for-time"] == list(found(text))
    assert {} == found(text.replace("allow x", "allow requeue-is-not-for-time, append-missing"))


# The command ----------------------------------------------------------------------------------------------------


def invoke(*words):
    return CliRunner().invoke(commands, ["lint", *map(str, words)])


def test_the_command_says_file_line_what_why_and_fix(tmp_path, monkeypatch):
    """Exit 1 with findings, 0 without, 2 for a file that is not there."""
    monkeypatch.chdir(tmp_path)
    Path("job.sh").write_text(CLEAN.replace("append", "truncate"))
    Path("clean.sh").write_text(CLEAN)
    result = invoke("job.sh", "clean.sh")
    assert 1 == result.exit_code
    assert (
        "job.sh:3: no --open-mode=append: each start of the job empties its output: "
        "what the earlier ones said is lost; write #SBATCH --open-mode=append [append-missing]\n"
    ) == result.stdout
    assert (0, "") == (invoke("clean.sh").exit_code, invoke("clean.sh").stdout)
    assert 2 == invoke("nowhere.sh").exit_code
    assert 2 == invoke().exit_code
    Path("job.py").write_text("#!/usr/bin/env python3\n#SBATCH --time=5\n")
    assert (2, 1) == (invoke("job.py").exit_code, len(invoke("job.py").stderr.splitlines()))
    Path("job.zsh").write_text(CLEAN.replace("/bin/bash", "/usr/bin/env zsh"))
    assert 0 == invoke("job.zsh").exit_code
    assert 3 == invoke("clean.sh", "--run", "nowhere").exit_code


def test_the_command_prints_json(tmp_path):
    """The same facts, for programs."""
    script = tmp_path / "job.sh"
    script.write_text(CLEAN.replace("append", "truncate"))
    (finding,) = json.loads(invoke(script, "--json").stdout)["findings"]
    assert {"file", "line", "rule", "what", "why", "fix"} == set(finding)
    assert (str(script), 3, "append-missing") == (finding["file"], finding["line"], finding["rule"])
    script.write_text(CLEAN)
    assert {"findings": []} == json.loads(invoke(script, "--json").stdout)


def test_the_command_knows_what_saves_of_the_scripts_own_run_took(tmp_path, monkeypatch):
    """`holdfast run --run DIR` says where to look; --run says it otherwise."""
    monkeypatch.chdir(tmp_path)
    history = Path("runs/x/history")
    history.mkdir(parents=True)
    (history / "attempt-1.jsonl").write_bytes(journal.lines([{"event": "saved", "step": 1, "save_s": 400.0}]))
    Path("job.sh").write_text(CLEAN)
    assert 0 == invoke("job.sh").exit_code
    assert "a save took 400 s; write @631 [lead-too-short]" in invoke("job.sh", "--run", "runs/x").stdout
    Path("job.sh").write_text(CLEAN.replace("holdfast run --", "holdfast run --run runs/x --"))
    assert "a save took 400 s; write @631 [lead-too-short]" in invoke("job.sh").stdout
    Path("job.sh").write_text(CLEAN.replace("holdfast run --", "holdfast run --run=runs/x -- foo --run=y"))
    assert "a save took 400 s; write @631 [lead-too-short]" in invoke("job.sh").stdout


def test_the_command_reads_the_program_that_the_script_starts(tmp_path, monkeypatch):
    """Beside the script, or where the job will run."""
    monkeypatch.chdir(tmp_path)
    Path("jobs").mkdir()
    Path("jobs/job.sh").write_text(job("exec python train.py"))
    assert 1 == invoke("jobs/job.sh").exit_code
    Path("jobs/train.py").write_text("from holdfast import Run\n")
    assert 0 == invoke("jobs/job.sh").exit_code


# Reading bash ---------------------------------------------------------------------------------------------------


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
        assert options == [str(option) for option in sbatch.directives(f"#!/bin/bash\n#SBATCH {line}\n").options], line


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
        assert signal == sbatch.signal(sbatch.directives(f"#!/bin/bash\n{line}\nexec x\n").options), line


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
    assert all(1 <= finding.line <= lines for finding in lint(text))


# What is claimed of bash, tried ---------------------------------------------------------------------------------


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
    lint(f"#!/bin/bash\n{RUBBISH[what]}\n")
    assert time.monotonic() - began < 2
