"""Lint: what batch scripts do otherwise than their author thinks. test_bash_claims.py tries it on bash itself."""

import re
import subprocess
from pathlib import Path

import pytest

from holdfast.batch import bash, work
from holdfast.batch.sbatch_options import LocalSbatch
from holdfast.batch.script import ScriptContext, parse_script
from holdfast.lint import RULES, apply_fixes, lint_script
from lint_faults import CLEAN, FAULTS, LONG, NOTICE, edited, job

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
    return {finding.rule: finding.line for finding in lint_script(text, ScriptContext(**around))}


def test_what_holdfast_submit_would_write_has_no_finding():
    """A script that does everything right is left alone."""
    assert {} == found(CLEAN)


def test_the_findings_in_milas_script():
    """Its trap is gone at exec, and each start empties the output."""
    expected = {"append-missing": 5, "trap-before-exec": 14, "cont-trapped": 14, "copy-cut-short": 21}
    assert expected == found(MILA)


def test_the_findings_in_northeasterns_scripts():
    """Ten tasks start whatever the first did; a job of ten minutes may simply run again."""
    assert {"chain-goes-on": 6, "no-notice": 12} == found(GROMACS)
    assert {} == found(TENSORFLOW)


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_found_at_its_line_and_its_cure_is_not(name):
    """A rule that finds everything would be as useless as one that finds nothing."""
    rule, faulty, line, cured = FAULTS[name]
    assert line == found(faulty).get(rule), found(faulty)
    assert rule not in found(cured)


@pytest.mark.parametrize("name", FAULTS)
def test_each_fix_mends_its_own_script_and_bash_still_reads_it(name):
    """The edits of a finding take it away. What they do not name stays as it was, byte for byte."""
    rule, faulty, _, _ = FAULTS[name]
    for finding in lint_script(faulty):
        if finding.rule == rule and finding.edits:
            mended = edited(faulty, finding.edits)
            assert finding not in lint_script(mended)
            assert rule not in {each.rule for each in lint_script(mended) if each.what == finding.what}, mended
            read_by_bash = subprocess.run(["bash", "-n"], input=mended.encode(), capture_output=True, check=False)
            assert (0, b"") == (read_by_bash.returncode, read_by_bash.stderr), mended


def test_most_fixes_are_edits():
    """The test above would be empty without them."""
    edits = [
        rule
        for rule, faulty, _, _ in FAULTS.values()
        for each in lint_script(faulty)
        if each.rule == rule and each.edits
    ]
    assert len(set(edits)) >= 20


def test_every_rule_finds_some_fault():
    """No rule stands there that never went red."""
    around = ScriptContext(exists=lambda _: False, save_s=1e6)
    more = [job("exec torchrun train.py", f"{LONG} --signal=B:TERM@300")]
    scripts = [parse_script(text, around) for text in [*(faulty for _, faulty, *_ in FAULTS.values()), *more]]
    assert [] == [rule.name for rule in RULES if not any(list(rule.check(script)) for script in scripts)]


# The work, and how it may be supervised --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("python prep.py\npython train.py\npython eval.py", 4),
        ("gmx grompp -f md\ngmx mdrun -deffnm md -cpi md.cpt\ngmx trjconv -f md", 4),
        ("python monitor.py &\npython -m pkg.pretrain --eval 1\nkill $!", 4),
        ("./configure\nmake -j\n./solve input\ngzip out", 5),
        ("uv sync\nuv run main.py\nhostname", 4),
        ("mpirun hostname\nmpirun -np 4 uv run main.py", 4),
        ("work() {\n  python model.py\n}\nwork\npython plot.py", 4),
    ],
)
def test_the_long_one_of_several_programs_is_meant(body, line):
    """Of `prep; train; eval` it is `train`."""
    assert {"no-grace": line} == found(job(body, LONG))


EXEC = "exec holdfast run -- "
SUPERVISED = [
    'A=1 nice -n 5 {}python train.py --name "a  b" >> log 2>&1',
    "cd /work && {}python train.py \\\n  --lr 1e-4 < in > out",
    "if [ -e ckpt ]; then\n  {}python train.py --resume\nelse\n  {}./fit\nfi",
    "{}python train.py <<E\nlr: 1\nE",
    "{}python train.py\nexit $?",
]


@pytest.mark.parametrize("body", SUPERVISED)
def test_a_fix_keeps_quotes_redirections_and_line_breaks(body):
    """It only puts words before the program."""
    before, after = (job(body.replace("{}", words), LONG) for words in ("", EXEC))
    (finding,) = (each for each in lint_script(before) if each.rule == "no-grace")
    assert after == edited(before, finding.edits)


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("for seed in 1 2; do\n  python train.py $seed\ndone", "the loop"),
        ("python train.py\ncp out /home", "lines 3 to the end"),
        ("train() {\n  python train.py\n}\ntrain", "train() and its calls"),
        ("python train.py | tee log", "in place of the pipe"),
        ("(cd a; python train.py)", "the ( ) around it"),
        ("python train.py &\nwait", "in the background"),
        ("python train.py && python eval.py", "lines 3 to the end"),
        ("trap 'rm -f lock' INT\npython train.py", "the trap of line 3"),
        ("time python train.py", "`time`"),
        ("while ! python train.py; do echo again; done", "the loop"),
    ],
)
def test_where_exec_would_lose_something_the_fix_says_what_to_restructure(body, what):
    """Further commands, a loop, a function, a pipe, a trap: nothing is edited."""
    (finding,) = (each for each in lint_script(job(body, LONG)) if each.rule == "no-grace")
    assert () == finding.edits
    assert what in finding.fix
    assert "exec holdfast run --" in finding.fix


# What lint leaves alone ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        job("exec holdfast run -- python a.py", "--tasks-per-node=4 --output=/scratch/%u/%x.out"),
        job("cat > next.sh <<END\n#SBATCH --mem=4G\nEND\nmake\ngzip a"),
        job("trap 'kill $pid; wait $pid; exit 75' USR1\npython train.py & pid=$!\nwait"),
        job("for f in *.nc; do\n  [ -e $f.png ] && continue\n  python plot.py $f\ndone", LONG),
        job("timeout 9h python train.py", LONG),
        job("exec holdfast run -- ./server", "--nodes=1\n#SBATCH hetjob\n#SBATCH --nodes=16"),
        job("srun python pretrain.py --exit-duration-in-mins 590", LONG),
        job("srun -n 1 rsync -a a b\nmpirun -np 4 tar cf a b", LONG),
        job("for s in a b; do\n  [ -e $s.out ] || ./solve $s > $s.out\ndone", LONG),
        job("exec holdfast run -- python a.py", f"{NOTICE} --array=0-0%1"),
        job("jupyter lab --no-browser", LONG),
        job("stop=0\ntrap 'stop=1' USR1\nfor i in 1 2; do\n  [ $stop = 1 ] && exit 75\n  ./piece $i\ndone"),
        job("srun ./simulate -maxh 9\nsbatch evaluate.sh", LONG),
        job(
            "srun python infer.py --checkpoint base.pt --seed $SLURM_ARRAY_TASK_ID",
            f"{LONG} --signal=USR1@300 --array=1-9",
        ),
        job("rm -f out/run.lock\nexec holdfast run -- python train.py --out-dir out", NOTICE),
        job("trap 'echo $LINENO' ERR\nsnakemake --cores 8 all", LONG),
        job("exec holdfast run -- python a.py", "--requeue --output=/dev/null"),
        job("exec > >(tee -a log) 2>&1\nmake\necho done", LONG),
        job(
            "stop() { [ $1 = TERM ] || scontrol requeue $SLURM_JOB_ID; touch stop; wait; }\n"
            "trap 'stop USR1' USR1\ntrap 'stop TERM' TERM\npython train.py &\nwait"
        ),
        job("#SBATCH -J x\n# a comment\n\n#SBATCH --mail-type=END,FAIL\nmodule load x\nhostname", LONG),
        "#!/usr/bin/env python3\n#SBATCH --time=10:00:00\nimport os\nos.system('trap x USR1')\n",
        "#!/usr/bin/Rscript\n#SBATCH --time=10:00:00 --requeue --open-mode=append\ntrap <- 1\n",
        "#!/usr/bin/env -S bash -l\n#SBATCH --time=30\n./a.out\n",
    ],
)
def test_what_is_right_is_left_alone(text):
    """All of these had findings once."""
    assert {} == found(text)


def test_only_directives_of_a_python_script_are_judged():
    """What stands below is no shell."""
    text = "#!/usr/bin/env python3\n#SBATCH --tme=5\n#SBATCH --requeue\nwhile True: pass\n"
    assert {"script-refused": 2, "append-missing": 3} == found(text)


def refusals(option, here=LocalSbatch()):  # noqa: B008  a frozen value
    text = CLEAN.replace("--requeue", f"{option}\n#SBATCH")
    found = lint_script(text, ScriptContext(sbatch=lambda: here))
    return [(each.what, each.fix) for each in found if each.rule == "script-refused"]


def test_a_misspelt_option_is_told_with_the_one_that_was_meant():
    """One like none is told as well; what sbatch or a plugin of many sites takes is not."""
    assert [("--ouput is not known to Slurm 22.05", "write --output")] == refusals("--ouput=x")
    assert [("--qqq is not known to Slurm 22.05", "take it out, unless your Slurm or a plugin knows it")] == refusals(
        "--qqq"
    )
    assert ["write --mem"] == [fix for _, fix in refusals("\u2013mem=4G")]
    for option in ("-D x", "--gpus 1", "--x11", "--container-image=x", "--ntasks-per-n=2", "--mail-type=END", "-H"):
        assert [] == refusals(option)


# Slurm 22.05 knows none of them; 25.11 takes the first two.
NEWER = ["--consolidate-segments", "--requeue=expedite", "--output", "--time=10m", "-z", "-J a\\ b"]
HELP = """\
  -z, --zeal                  how much
      --requeue[=expedite]    if set, permit the job to be requeued
      --consolidate-segments=n continues below
                              as --output[=x] and --mem do
"""


@pytest.mark.parametrize("option", NEWER)
def test_what_only_the_table_does_not_know_is_never_called_refused(option):
    """The table is of one version. Another one, here or on the cluster, may take it."""
    for here in (LocalSbatch(), LocalSbatch("25.11.2"), LocalSbatch("25.11.2", HELP.replace("-z", "-y"))):
        told = refusals(option, here)
        known = here.help and option in NEWER[:2]
        assert (
            [] == told
            if known
            else ["is not known to Slurm 22.05"] == [re.sub(r"^.*(?=is not known)", "", what) for what, _ in told]
        )


def test_what_the_help_of_the_local_sbatch_names_is_no_finding():
    """The option itself, a value where the table has none, or none where the table has one; and plugins'."""
    for option in ("--requeue=expedite", "--consolidate-segments=1", "--consolidate-segments", "--zeal", "-z"):
        assert [] == refusals(option, LocalSbatch("25.11.2", HELP)), option
    assert [] == refusals("--output", LocalSbatch("25.11.2", "  -o, --output[=out]  file"))
    for option in ("--segments", "--consolidate", "--output", "--ze", "--requeue=expedite --qqq"):
        assert 1 == len(refusals(option, LocalSbatch("25.11.2", HELP))), option


def test_a_local_sbatch_of_the_tables_version_is_quoted():
    """Of that one it is known what it refuses."""
    for option, why in {
        "--qqq": "it has no option --qqq",
        "--requeue=expedite": "--requeue takes no value",
        "--output": "--output has no value",
        "--time=10m": "--time cannot be 10m",
        "-z": "it has no option -z",
        "-J a\\ b": "'b' is neither an option nor the value of one",
    }.items():
        assert [f"sbatch 22.05.8 refuses the script: {why}"] == [
            what for what, _ in refusals(option, LocalSbatch("22.05.8"))
        ]


def test_what_every_version_refuses_is_called_so_whatever_is_here():
    """Nobody is asked about it, nor about a script without a fault."""

    def asked():
        raise AssertionError

    for text in (
        CLEAN,
        CLEAN.replace("#!/bin/bash", "# a job"),
        CLEAN.replace("\n", "\r\n"),
        CLEAN.replace("--requeue", "--mem=1 --mem-per-cpu=1"),
        CLEAN.replace("--requeue", "--requeue stray"),
        CLEAN.replace("--requeue", '--comment="open'),
    ):
        told = [each.what for each in lint_script(text, ScriptContext(sbatch=asked)) if each.rule == "script-refused"]
        assert all(what.startswith("sbatch refuses the script: ") for what in told)
        assert (text == CLEAN) == (told == [])


def test_a_time_with_a_unit_is_written_as_sbatch_reads_it():
    """The one that was meant: a number alone is minutes."""
    for given, meant in {"30m": "30", "3h": "3:00:00", "2d": "2-0"}.items():
        script = f"#!/bin/bash\n#SBATCH --time={given}\n"
        assert script.replace(given, meant) == apply_fixes(script)


# What was measured -----------------------------------------------------------------------------------------------


def test_a_lead_shorter_than_the_measured_save_is_found():
    """Half as much again as it took, and a second to leave."""
    finds = {save_s: "lead-too-short" in found(CLEAN, save_s=save_s) for save_s in (41.0, 250.0, None)}
    assert {41.0: False, 250.0: True, None: False} == finds


def test_a_short_job_keeps_three_quarters_of_its_time():
    """What `submit` writes into it by itself is no fault, and the fix fits into it."""

    def told(limit, lead):
        text = CLEAN.replace("12:00:00", limit)
        text = re.sub(r"(--signal=\S*@)\d+", rf"\g<1>{lead}", text)
        return [finding.fix for finding in lint_script(text) if finding.rule == "lead-too-short"]

    assert [] == told("1", 15)
    assert [["write --signal=B:USR1@15"], ["write --signal=B:USR1@45"]] == [told("1", 10), told("3:00", 20)]
    assert ["write --signal=B:USR1@300"] == told("12:00:00", 20)


def test_a_job_shorter_than_one_save_is_found():
    """It gets nowhere, however often it is started."""
    text = CLEAN.replace("12:00:00", "10")
    finds = {save_s: "time-below-save" in found(text, save_s=save_s) for save_s in (41.0, 500.0, None)}
    assert {41.0: False, 500.0: True, None: False} == finds


def test_torchruns_grace_is_compared_with_the_measured_save():
    """Torchrun waits 30 s."""
    text = job("exec torchrun train.py", f"{LONG} --signal=B:TERM@300")
    finds = {save_s: "torchrun-grace" in found(text, save_s=save_s) for save_s in (10.0, 25.0, None)}
    assert {10.0: False, 25.0: True, None: False} == finds
    deaf = text.replace("B:TERM", "B:USR2")
    assert "torchrun-signal" in found(deaf, save_s=10.0)
    assert "torchrun-signal" not in found(deaf.replace("exec torchrun", "exec holdfast run -- torchrun"), save_s=10.0)


@pytest.mark.parametrize(
    ("option", "finds"),
    [
        ("--output=logs/%j.out", True),
        ("-o there/%j.out", False),
        ("-e %x/err", False),
        ("-J there -e %x/err", False),
        ("-J none -e %x/err", True),
        ("-e %u/err", True),
        ("-e %j/err", True),
        ("--output=%j.out", False),
    ],
)
def test_a_log_folder_that_is_not_there_is_found(option, finds):
    """Slurm opens the output before the first line of the script runs. %u and %x are filled in. 23.02 makes it."""
    text = CLEAN.replace("--requeue", f"--requeue {option}")
    around = {"exists": lambda folder: folder == "there", "user": "me"}
    assert finds == ("log-folder-missing" in found(text, **around))
    assert finds == ("log-folder-missing" in found(text, **around, sbatch=lambda: LocalSbatch("22.05.8")))
    assert "log-folder-missing" not in found(text, **around, sbatch=lambda: LocalSbatch("23.02.0"))


def test_a_comment_switches_a_rule_off():
    """For what lint cannot see: a program that requeues by other means."""
    text = job("# comes back by other means: holdfast: allow x\nexec python train.py", f"{NOTICE} --requeue")
    assert ["append-missing"] == list(found(text))
    assert {} == found(text.replace("allow x", "allow wait-once, append-missing"))


def test_a_script_whose_program_uses_holdfast_is_supervised():
    """The program is read, not run."""
    script = job("exec python train.py")
    assert not parse_script(script, ScriptContext(read=lambda _: "import holdfastened\n")).is_supervised
    assert parse_script(script, ScriptContext(read=lambda _: "import os\nfrom holdfast import Run\n")).is_supervised


def test_the_documentation_names_each_rule_with_its_severity():
    """In the order of the table."""
    page = (Path(__file__).parents[2] / "docs/lint.md").read_text()
    assert [(rule.name, rule.severity) for rule in RULES] == re.findall(
        r"^\| `([a-z0-9-]+)` \| ([a-z ]+) \|", page, re.MULTILINE
    )


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("A=1 nice -n 5 python -u train.py --x", "python train.py"),
        ("python -m pkg.train", "python pkg.train"),
        ("python scripts/train.py data.csv", "python train.py"),
        ("/opt/bin/gmx mdrun -deffnm md", "gmx mdrun"),
        ("srun -n 4 --label torchrun a.py", "srun torchrun"),
        ("srun --mpi=pmix ./solver in.txt", "srun solver"),
        ("Trinity --seqType fq", "Trinity"),
        ("./a.out < in", "a.out"),
    ],
)
def test_a_program_is_called_what_people_call_it(command, name):
    """In every message."""
    assert name == work.program_name(bash.commands(command)[0])
