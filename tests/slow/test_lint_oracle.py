"""What sbatch refuses, asked of a real one: lint says the same of every line."""

import subprocess
from functools import cache

from holdfast.batch.script import ScriptContext
from holdfast.cluster.slurm import local_sbatch
from holdfast.lint import lint_script

# Values that only a site can judge (partitions, features, sizes of nodes) are not among them.
DIRECTIVES = r"""
--tasks-per-node=2
--ntasks-per-node=2
--ntasks-per-n=2
--part=long
--share
--oversubscribe
--oversubscribe=yes
--tim=10
--time=abc
--time=10
--time=1:00:00
--time=1-00:00:00
--time=1-2:3:4
--time=1-
--time=1:2:3:4
--time=1-2:3:4:5
--time=10m
--time=2h
--time=5:
--time=:30
--time=
--time=infinite
--time=UNLIMITED
--time 10
--time "10"
--time='10'
--time=00:10:00 # a comment
--time=10 #a comment
--time=10#a comment
--mem=100
--mem=100M
--mem=100MB
--mem=10X
--mem=1.5G
--mem=1GiB
--mem=1 G
--mem 1 G
--mem=
--mem-per
--mem-per-cpu=10mb
--signal=B:USR1
--signal=B:USR1@
--signal=B:USR1@60
--signal="B:USR1@60"
--signal B:USR1@60
--signal=R:USR1@10
--signal=BR:USR1@10
--signal=SIGUSR1@60
--signal=sigusr1
--signal=99@10
--signal=10
--signal=XCPU
--signal=ALRM
--signal=USR1@abc
--signal=FOO@10
--signal=WINCH
--signal=PIPE
--signal=BUS
--signal=B@10
--signal=B:@10
--signal=B:USR1@70000
--array=1-10
--array=0-10:2%3
--array=0-10%0
--array=1,3-5
--array=[1-3]
--array=1-
--array=5-1
--array=a
--mail-type=END
--mail-type=begin,end
--mail-type=END,FOO
--mail-type=FOO
--mail-type=FOO,END
--open-mode=append
--open-mode=truncate
--ntasks=1
--ntasks=0
--ntasks=x
--ntasks=1-4
--ntasks=$N
-n=4
-n 1
-n1
--nodes=1
--nodes=1-2
--nodes=two
--nodes=1;
--nodes = 1
--nodes= 1
--nodes=2-1
-N=1
-N1 -n 1
-N1 -n1 extra
--cpus-per-task=1
--cpus-per-task=0
--cpus-per-task=2.5
-c=2
-c 1
--ouput=x
--output=x
--output
--output=
-o x
-o=x
--o x
-J a
-J=a
-J a b
-J "a b"
-J a\ b
--job-name
--job-name=a#b c
--comment=a b
--comment="a b"
--comment="say \"x\" #1"
--comment="open
--requeue
--requeue=yes
--requeue stray
--no-requeue
--hold=1
-H
-HW
-s
-s 1
-k
-k x
--exclusive
--exclusive=user
--exclusive user
--exclusive=yes
--exclusive=mcs
--hint=nomultithread
--hint=multithread,nomultithread
--hint=fast
--kill-on-invalid-dep=maybe
--threads-per-core=x
--threads-per-core=1
--ntasks-per-socket=0
--ntasks-per-core=1
--tmp=x
--tmp=0
--get-user-env
--nice
--nice=10
--export=ALL
--exclude=
--wait
--wait=1
--begin=now+1hour
--dependency=afterok:1
--dependency=afterok
--dependency=afterok:1,afterany:2
--dependency=singleton
--dependency=foo
--switches=1
--switches=x
--mincpus=x
--kill-on-invalid-dep=yes
--qqq
-z
-mem=1
-time=10
-gres=x
-job-name=x
time=10
$N
--
-- x
—time=10
–time=10
"""


def sbatch_refuses(slurm, script):
    """Whether sbatch refuses it, and why."""
    done = subprocess.run(
        ["sbatch", "--test-only", script], check=False, capture_output=True, text=True, env=slurm.environment
    )
    return done.returncode != 0, done.stderr


def test_lint_refuses_the_directives_that_sbatch_refuses(slurm, tmp_path, monkeypatch):
    """And takes the others, line by line. With another version here, at least what is called refused is."""
    monkeypatch.setenv("SLURM_CONF", slurm.environment["SLURM_CONF"])
    here = cache(local_sbatch)
    assert here().version, "this sbatch does not answer"
    script = tmp_path / "job.sh"
    answers, differ = [], []
    lines = [f"#SBATCH {words}" for words in DIRECTIVES.strip().split("\n")]
    lines += ["#SBATCH", "#SBATCH--time=x", "#SBATCHING", " #SBATCH --qqq", "##SBATCH --qqq", "# SBATCH --qqq"]
    lines += ["#SBATCH\t--requeue", "#sbatch --qqq", "#SBATCH hetjob", "#SBATCH --mem=1 --mem-per-cpu=1"]
    for line in lines:
        script.write_text(f"#!/bin/bash\n{line}\nsleep 1\n")
        answer, why = sbatch_refuses(slurm, script)
        answers.append(answer)
        found = lint_script(script.read_text(), ScriptContext(sbatch=here))
        says = [each.what for each in found if each.rule in ("script-refused", "variable-in-directive")]
        told = any("refuses" in what for what in says) and not answer
        if answer != bool(says) if here().has_table_version else told:
            differ.append((line, why, says))
    assert [] == differ
    assert min(answers.count(True), answers.count(False)) > 50


def test_lint_refuses_the_first_lines_that_sbatch_refuses(slurm, tmp_path):
    """No interpreter, one in a later line, DOS line breaks; directives after a command are not read."""
    script = tmp_path / "job.sh"
    answers = []
    for text in (
        "#!/bin/bash\nsleep 1\n",
        "#! /bin/bash -l\nsleep 1\n",
        "#!/usr/bin/env python3\n#SBATCH --time=1\n",
        "#!/usr/bin/env python3\n#SBATCH --qqq\n",
        "#!/bin/bash\nsleep 1\n#SBATCH --qqq\n",
        "#!/bin/bash\n\n  # a comment\n#SBATCH --qqq\n",
        "sleep 1\n",
        "\n#!/bin/bash\nsleep 1\n",
        "# a job\n#!/bin/bash\nsleep 1\n",
        "#!/bin/bash\r\nsleep 1\r\n",
    ):
        script.write_bytes(text.encode())
        answer, why = sbatch_refuses(slurm, script)
        answers.append(answer)
        assert answer == any(each.rule == "script-refused" for each in lint_script(text)), (text, why)
    assert {True, False} == set(answers)
