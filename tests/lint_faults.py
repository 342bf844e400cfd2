"""Faults of batch scripts: for each the rule, a script that has it, the line of the finding, and one without it."""

CLEAN = """\
#!/bin/bash
#SBATCH --time=12:00:00
#SBATCH --requeue --open-mode=append
#SBATCH --signal=B:USR1@300
trap '' USR1 USR2; module load anaconda/3
exec holdfast run -- python train.py
"""


def edited(text, edits):
    """The script with the edits of a finding made."""
    for edit in sorted(edits, reverse=True):
        text = text[: edit.start] + edit.new + text[edit.end :]
    return text


def job(body, options="--requeue --open-mode=append --signal=B:USR1@300"):
    return f"#!/bin/bash\n#SBATCH {options}\n{body}\n"


LONG = "--time=10:00:00"
NOTICE = f"{LONG} --signal=B:USR1@300"
REQUEUE = "scontrol requeue $SLURM_JOB_ID"
TASK = "${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"
FAULTS = {
    "a notice to a shell that has no trap": (
        "notice-unheard",
        job("python train.py"),
        2,
        job("exec python train.py", NOTICE),
    ),
    "a notice to a shell that has no trap, and a step": (
        "notice-unheard",
        job("srun python train.py\necho done", f"{LONG} --signal=B:TERM@300"),
        2,
        job("srun python train.py\necho done", f"{LONG} --signal=TERM@300"),
    ),
    "a notice to steps, and there are none": (
        "notice-to-no-step",
        job("exec holdfast run -- python train.py", f"{LONG} --signal=USR1@300"),
        2,
        job("exec holdfast run -- srun python train.py", f"{LONG} --signal=USR1@300"),
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
    "a clean-up before exec": (
        "clean-up-before-exec",
        job("trap 'rm -rf /tmp/mine' EXIT\nexec python train.py"),
        3,
        job("trap 'rm -rf /tmp/mine' EXIT\npython train.py"),
    ),
    "a foreground child hides a trap": (
        "trap-hidden",
        job(f"trap '{REQUEUE}' USR1\npython train.py"),
        4,
        job(f"trap 'kill -USR1 $pid; {REQUEUE}; wait' USR1\npython train.py & pid=$!\nwait"),
    ),
    "a foreground step hides the batch shell's trap": (
        "trap-hidden",
        job(f"trap '{REQUEUE}' SIGUSR1\nsrun python train.py > log 2>&1"),
        4,
        job(f"trap '{REQUEUE}; wait' SIGUSR1\nsrun python train.py > log 2>&1 &\nwait"),
    ),
    "a trap that nobody asked for": (
        "trap-unasked",
        job("trap 'kill -TERM $!; wait' USR1\npython train.py &\nwait", f"{LONG} --requeue --open-mode=append"),
        3,
        job("trap 'kill -TERM $!; wait' USR1\npython train.py &\nwait"),
    ),
    "a trap for another signal than the one asked for": (
        "trap-unasked",
        job("trap 'kill -TERM $!; wait' USR2\npython train.py &\nwait"),
        3,
        job("trap 'kill -TERM $!; wait' USR1\npython train.py &\nwait"),
    ),
    "a trap of the shell for a signal to steps": (
        "trap-unasked",
        job("trap 'touch stop' USR1\nsrun python train.py &\nwait", f"{LONG} --signal=USR1@300"),
        3,
        job("trap 'touch stop' USR1\nsrun python train.py &\nwait", NOTICE),
    ),
    "a signal in a comment": (
        "trap-unasked",
        job("trap 'kill $!; wait' USR1\npython train.py &\nwait", f"{LONG}\n##SBATCH --signal=B:USR1@60"),
        4,
        job("trap 'kill $!; wait' USR1\n# sbatch --signal=B:USR1@60\npython train.py &\nwait", LONG),
    ),
    "two signals": (
        "signal-twice",
        job("exec holdfast run -- python train.py", f"--signal=B:USR1@60\n#SBATCH {NOTICE}"),
        2,
        job("exec holdfast run -- python train.py", NOTICE),
    ),
    "a wait that ends at the signal": (
        "wait-once",
        job(f"trap 'kill -USR1 $!; {REQUEUE}' USR1\npython train.py &\nwait"),
        5,
        job(
            f"trap 'kill -USR1 $!; {REQUEUE}' USR1\npython train.py & pid=$!\n"
            'while kill -0 "$pid" 2>/dev/null; do\n  wait "$pid"\ndone'
        ),
    ),
    "a wait for one child that ends at the signal": (
        "wait-once",
        job("set -e\ntrap 'kill -USR1 $pid' USR1\npython train.py & pid=$!\nwait $pid\necho done"),
        6,
        job("set -e\ntrap 'kill -USR1 $pid; wait $pid; exit' USR1\npython train.py & pid=$!\nwait $pid\necho done"),
    ),
    "nobody waits, but somebody speaks": (
        "nobody-waits",
        job("python train.py &\necho started", LONG),
        3,
        job("python train.py &\npid=$!\nwhile kill -0 $pid; do sleep 60; done", LONG),
    ),
    "nobody waits at all": (
        "nobody-waits",
        job(f"trap '{REQUEUE}; wait' USR1\npython train.py &"),
        4,
        job(f"trap '{REQUEUE}; wait' USR1\npython train.py &\nwait"),
    ),
    "a trap that leaves before the program has saved": (
        "exit-before-saved",
        job("trap 'kill -TERM $pid; exit 0' USR1\npython train.py & pid=$!\nwait"),
        3,
        job("trap 'kill -TERM $pid; wait; exit 0' USR1\npython train.py & pid=$!\nwait"),
    ),
    "srun and SIGTERM": (
        "srun-term",
        job("exec srun python train.py", f"{LONG} --signal=B:TERM@300"),
        3,
        job("exec srun python train.py", f"{LONG} --signal=TERM@300"),
    ),
    "a program that dies of the notice": (
        "signal-kills",
        job("srun lmp -in in.melt", f"{LONG} --signal=USR1@300"),
        2,
        job("srun gmx mdrun", f"{LONG} --signal=USR1@300"),
    ),
    "a trap in csh": (
        "wrong-shell",
        "#!/bin/csh\n#SBATCH --time=1:00:00\ntrap 'touch stop' USR1\n./a.out\n",
        3,
        "#!/bin/bash\n#SBATCH --time=1:00:00\ntrap 'touch stop' TERM\n./a.out\n",
    ),
    "a trap for SIGCONT": (
        "cont-trapped",
        job("trap 'touch stop; wait' TERM CONT\npython train.py &\nwait", "--no-requeue"),
        3,
        job("trap 'touch stop; wait' TERM\npython train.py &\nwait", "--no-requeue"),
    ),
    "torchrun dies of the notice": (
        "torchrun-signal",
        job("exec torchrun --shutdown-timeout=300 train.py", f"{LONG} --signal=B:USR2@300"),
        3,
        job(
            "exec torchrun --shutdown-timeout=300 --signals-to-handle=SIGTERM,SIGUSR2 train.py",
            f"{LONG} --signal=B:USR2@300",
        ),
    ),
    "a notice in the set-up of a short job": (
        "notice-in-set-up",
        job("module load cuda\nexec holdfast run -- python a.py", "--signal=B:USR1@300 --time=10"),
        3,
        job("trap '' USR1\nmodule load cuda\nexec holdfast run -- python a.py", "--signal=B:USR1@300 --time=10"),
    ),
    "a notice that is hardly one": (
        "lead-too-short",
        job("exec holdfast run -- python a.py", f"{LONG} --signal=B:USR1@10"),
        2,
        job("exec holdfast run -- python a.py", f"{LONG} --signal=B:USR1@60"),
    ),
    "a program in the foreground": (
        "no-grace",
        job("python train.py --name 'a b' > log 2>&1", LONG),
        3,
        job("python train.py", "--time=30"),
    ),
    "a program in the foreground, and more to do": (
        "no-grace",
        job("python prep.py\npython train.py | tee log\npython eval.py", LONG),
        4,
        job("make -j 8\ngzip *.dat", LONG),
    ),
    "a step that is told late": (
        "no-notice",
        job("srun gmx_mpi mdrun -deffnm md", LONG),
        3,
        job("srun gmx_mpi mdrun -deffnm md -maxh 9.5", LONG),
    ),
    "holdfast as a child of the shell": (
        "holdfast-not-exec",
        job("holdfast run -- python train.py > log 2>&1", NOTICE),
        3,
        job("exec holdfast run -- python train.py > log 2>&1", NOTICE),
    ),
    "holdfast in the background": (
        "holdfast-not-exec",
        job("holdfast run -- python train.py &\nwait", LONG),
        3,
        job("trap 'kill -USR1 $!; wait' USR1\nholdfast run -- python train.py &\nwait", NOTICE),
    ),
    "holdfast in a pipe": (
        "holdfast-piped",
        job("exec holdfast run -- python train.py | tee log", NOTICE),
        3,
        job("exec holdfast run -- python train.py > log", NOTICE),
    ),
    "what follows an exec": (
        "after-exec",
        job("exec holdfast run -- python train.py\npython eval.py", NOTICE),
        4,
        job("if [ -e a ]; then exec holdfast run -- python train.py; fi\npython eval.py", NOTICE),
    ),
    "array tasks that share a run": (
        "array-shares-run",
        job("exec holdfast run --run runs/x -- python train.py", f"{NOTICE} --array=1-9"),
        3,
        job("exec holdfast run -- python train.py", f"{NOTICE} --array=1-9"),
    ),
    "array tasks that share a checkpoint": (
        "shared-run",
        job("srun python train.py --seed $SLURM_ARRAY_TASK_ID --checkpoint-dir=ckpt", f"{NOTICE} --array=1-9"),
        3,
        job("srun python train.py --checkpoint-dir=ckpt/$SLURM_ARRAY_TASK_ID", f"{NOTICE} --array=1-9"),
    ),
    "array tasks that share their output": (
        "array-shares-output",
        job("exec holdfast run --chain -- python a.py", f"{NOTICE} --array=1-9 --output=a.log"),
        2,
        job("exec holdfast run --chain -- python a.py", f"{NOTICE} --array=1-9 --output=a_%a.log"),
    ),
    "a whole array requeued": (
        "whole-array-requeued",
        job(f"trap '{REQUEUE}; wait' USR1\npython a.py &\nwait", f"{NOTICE} --array=1-9"),
        3,
        job(f"trap 'scontrol requeue {TASK}; wait' USR1\npython a.py &\nwait", f"{NOTICE} --array=1-9"),
    ),
    "a chain that goes on": (
        "chain-goes-on",
        job("exec holdfast run -- python a.py", "--requeue --array=1-9%1"),
        2,
        job("exec holdfast run --chain -- python a.py", "--requeue --array=1-9%1"),
    ),
    "a requeue of what must not be requeued": (
        "requeue-refused",
        job(f"trap '{REQUEUE}; wait' USR1\npython a.py &\nwait", f"{NOTICE} --no-requeue"),
        3,
        job(f"trap '{REQUEUE}; wait' USR1\npython a.py &\nwait", f"{NOTICE} --requeue"),
    ),
    "a job that cannot be cancelled": (
        "requeue-after-cancel",
        job(f"trap '{REQUEUE}; wait' TERM\npython a.py &\nwait"),
        3,
        job(f"trap '{REQUEUE}; wait' USR1\npython a.py &\nwait"),
    ),
    "a job that never ends": (
        "requeue-always",
        job(f"srun python a.py\n{REQUEUE}"),
        4,
        job(f"srun python a.py\n[ -e done ] || {REQUEUE}"),
    ),
    "a requeue after each failure": (
        "requeue-always",
        job(f"srun python a.py || {REQUEUE}"),
        3,
        job(f"srun python a.py\n[ -e done ] || {REQUEUE}"),
    ),
    "a requeue by the status alone": (
        "requeue-always",
        job(f"srun python a.py\nif [ $? -ne 0 ]; then\n  {REQUEUE}\nfi"),
        5,
        job(f"srun python a.py\nif [ $? -eq 75 ]; then\n  {REQUEUE}\nfi"),
    ),
    "a requeue at every exit": (
        "requeue-always",
        job(f"trap '{REQUEUE}' EXIT\npython a.py"),
        3,
        job(f"trap '[ -e done ] || {REQUEUE}' EXIT\npython a.py"),
    ),
    "a program that is ended after seconds": (
        "stops-too-late",
        job("timeout 23 python train.py", "--time=24:00:00"),
        3,
        job("timeout 23h python train.py", "--time=24:00:00"),
    ),
    "a successor that is never submitted": (
        "resubmit-too-late",
        job("srun python train.py\n[ -e done ] || sbatch $0", LONG),
        4,
        job("sbatch --dependency=afterany:$SLURM_JOB_ID $0\nsrun python train.py", LONG),
    ),
    "a successor that waits for ever": (
        "chain-breaks",
        job("sbatch --dependency=afterok:$SLURM_JOB_ID $0\nsrun python train.py", LONG),
        3,
        job("sbatch --dependency=afterany:$SLURM_JOB_ID $0\nsrun python train.py", LONG),
    ),
    "a start that removes what was saved": (
        "wipes-checkpoint",
        job("rm -rf out\nexec python train.py --out out/a"),
        3,
        job("rm -rf tmp\nexec python train.py --out out/a"),
    ),
    "a checkpoint on the node": (
        "local-checkpoint",
        job("DIR=$TMPDIR/a\nsrun python train.py --ckpt $DIR/b", NOTICE),
        4,
        job("DIR=$SCRATCH/a\nsrun python train.py --ckpt $DIR/b", NOTICE),
    ),
    "a copy that comes too late": (
        "copy-back-late",
        job("srun python train.py --log x\ncp -r $TMPDIR/out $HOME", LONG),
        4,
        job("srun python train.py --log x\ncp -r out $HOME", LONG),
    ),
    "a cd that may fail": (
        "unguarded-cd",
        job("cd $SCRATCH/$CASE\nrm -rf old *.tmp\nexec holdfast run -- python a.py"),
        3,
        job("cd $SCRATCH/$CASE || exit 1\nrm -rf old *.tmp\nexec holdfast run -- python a.py"),
    ),
    "a trap that tells nobody": (
        "trap-tells-nobody",
        job(f"trap '{REQUEUE}; wait' USR1\npython a.py & pid=$!\nwait"),
        3,
        job(f"trap 'kill -TERM $pid; wait; {REQUEUE}' USR1\npython a.py & pid=$!\nwait"),
    ),
    "a trap that kills srun": (
        "srun-term",
        job("trap 'kill -TERM $pid; wait' USR1\nsrun python a.py & pid=$!\nwait"),
        4,
        job("trap 'kill -USR2 $pid; wait' USR1\nsrun python a.py & pid=$!\nwait"),
    ),
    "the same checkpoint for ever": (
        "fixed-resume",
        job("CKPT=out/step_400.pt\nexec python train.py --resume=$CKPT"),
        4,
        job("CKPT=out/latest.pt\nexec python train.py --resume=$CKPT"),
    ),
    "mdrun that begins anew": (
        "no-resume",
        job("exec gmx mdrun -deffnm md"),
        3,
        job("exec gmx mdrun -deffnm md -cpi md.cpt"),
    ),
    "a command in a variable": (
        "no-grace",
        job('application="python -u train.py"\nCMD="$application --lr 1 > log"\neval $CMD', LONG),
        5,
        job('application="make -j"\nCMD="$application all > log"\neval $CMD', LONG),
    ),
    "a launcher in a variable": (
        "no-notice",
        job('LAUNCH="srun -n 4"\n$LAUNCH ./solver', LONG),
        4,
        job('LAUNCH="srun -n 4"\n$LAUNCH ./solver', NOTICE.replace("B:", "")),
    ),
    "a case that is divided anew": (
        "no-resume",
        job("decomposePar -force\nmpirun pimpleFoam -parallel", LONG),
        3,
        job("[ -d processor0 ] || decomposePar\nmpirun pimpleFoam -parallel", LONG),
    ),
    "a loop without an end": (
        "endless-loop",
        job("until srun ./kmc --restore; do\n  echo again\ndone", NOTICE),
        3,
        job("until srun ./kmc --restore; do\n  n=$((n + 1)); [ $n -lt 3 ] || exit 1\ndone", NOTICE),
    ),
    "a program that would stop after the job": (
        "stops-too-late",
        job("srun gmx_mpi mdrun -cpi md.cpt -maxh 10", LONG),
        3,
        job("srun gmx_mpi mdrun -cpi md.cpt -maxh 9.8", LONG),
    ),
    "a timeout that kills": (
        "stops-too-late",
        job("timeout -s KILL 9h python train.py", LONG),
        3,
        job("timeout 9h python train.py", LONG),
    ),
    "a pipe that hides a failure": (
        "pipe-hides-status",
        job("srun ./flow | tee log\nif [ $? -eq 0 ]; then\n  rm -rf checkpoints\nfi", NOTICE),
        3,
        job("set -o pipefail\nsrun ./flow | tee log\nif [ $? -eq 0 ]; then\n  rm -rf checkpoints\nfi", NOTICE),
    ),
    "a long program in csh": (
        "no-grace",
        f"#!/bin/tcsh\n#SBATCH {LONG}\nforeach i (1 2 3)\n  g16 < $i.com > $i.log\nend\n",
        4,
        "#!/bin/tcsh\n#SBATCH --time=30\nset x = 1\nif ( -e a ) then\n  g16 a.com\nendif\n",
    ),
    "a copy that keeps what was cut short": (
        "copy-cut-short",
        CLEAN.replace("module load anaconda/3", "cp -ru /data $SLURM_TMPDIR"),
        5,
        CLEAN.replace("module load anaconda/3", "cp -r /data $SLURM_TMPDIR"),
    ),
    "a preempted job that does not ask to come back": (
        "requeue-missing",
        job("exec holdfast run -- python a.py", "--partition=preemptible"),
        2,
        job("exec holdfast run -- python a.py", "--partition=gpu"),
    ),
    "output that each start empties": (
        "append-missing",
        CLEAN.replace("append", "truncate"),
        3,
        CLEAN.replace("--requeue --open-mode=append", "--no-requeue"),
    ),
    "a folder that the script makes too late": (
        "log-folder-missing",
        job("mkdir -p logs\nexec holdfast run -- python a.py", "--output=logs/%j.out"),
        2,
        job("exec holdfast run -- python a.py", "--output=logs/%x.%u.out"),
    ),
    "a folder for each job": (
        "log-folder-missing",
        job("exec holdfast run -- python a.py", "-e logs/%j/err"),
        2,
        job("exec holdfast run -- python a.py", "-e logs/%u/err"),
    ),
    "a directive after a command": (
        "directive-too-late",
        CLEAN.replace("module load anaconda/3", "module load anaconda/3\n#SBATCH --mem=16G"),
        6,
        CLEAN.replace("module load anaconda/3", "cat <<END\n#SBATCH --mem=16G\nEND"),
    ),
    "a directive in a comment": (
        "directive-in-comment",
        CLEAN.replace("#SBATCH --signal", "# SBATCH --signal"),
        4,
        CLEAN.replace("#SBATCH --signal", "##SBATCH --signal"),
    ),
    "a directive misspelt": (
        "directive-in-comment",
        CLEAN.replace("#SBATCH --signal", "#SBACTH --signal"),
        4,
        CLEAN,
    ),
    "a variable in a directive": (
        "variable-in-directive",
        CLEAN.replace("--requeue", "--requeue --output=$SLURM_JOB_ID.out"),
        3,
        CLEAN.replace("--requeue", "--requeue --output=%j.out"),
    ),
    "two values of one option": (
        "contradiction",
        CLEAN.replace("#SBATCH --requeue", "#SBATCH --time=2:00:00\n#SBATCH --requeue"),
        2,
        CLEAN.replace("--requeue", "--mail-type=END --mail-type=FAIL --requeue"),
    ),
    "more nodes than tasks": (
        "contradiction",
        CLEAN.replace("--requeue", "--nodes=4 --ntasks=2 --requeue"),
        3,
        CLEAN.replace("--requeue", "--nodes=4 --ntasks=8 --requeue"),
    ),
    "more tasks than the nodes may hold": (
        "contradiction",
        CLEAN.replace("--requeue", "--nodes=2 --ntasks=8 --ntasks-per-node=2 --requeue"),
        3,
        CLEAN.replace("--requeue", "--nodes=2 --ntasks=4 --ntasks-per-node=2 --requeue"),
    ),
    "minutes for hours": ("time-misread", CLEAN.replace("12:00:00", "48"), 2, CLEAN.replace("12:00:00", "2-0")),
    "a strict set-up": (
        "strict-set-up",
        CLEAN.replace("module load anaconda/3", "set -eu\nconda activate torch"),
        6,
        CLEAN.replace("module load anaconda/3", "set -e\nconda activate torch"),
    ),
    "a notice as soon as the job starts": (
        "lead-beyond-limit",
        job("exec holdfast run -- python a.py", "--signal=B:USR1@600 --time=5"),
        2,
        job("exec holdfast run -- python a.py", "--signal=B:USR1@600 --time=50"),
    ),
    "a word that is no option": (
        "script-refused",
        CLEAN.replace("--requeue", "--requeue stray"),
        3,
        CLEAN.replace("--requeue", "--requeue --job-name words"),
    ),
    "an option that there is not": ("script-refused", CLEAN.replace("--requeue", "-! --requeue"), 3, CLEAN),
    "one dash": ("script-refused", CLEAN.replace("--requeue", "--requeue -mem=4G"), 3, CLEAN),
    "an option misspelt": (
        "script-refused",
        CLEAN.replace("--time=12:00:00", "--tme=12:00:00"),
        2,
        CLEAN.replace("--time", "--job=x --time"),
    ),
    "an option of other schedulers": (
        "script-refused",
        CLEAN.replace("--requeue", "--requeue --share"),
        3,
        CLEAN.replace("--requeue", "--requeue --tasks-per-node=2"),
    ),
    "a value that there is not": (
        "script-refused",
        CLEAN.replace("12:00:00", "12h"),
        2,
        CLEAN.replace("12:00:00", "1-12"),
    ),
    "no interpreter": ("script-refused", CLEAN.replace("#!/bin/bash", "# a job"), 1, CLEAN),
    "line breaks of DOS": ("script-refused", CLEAN.replace("\n", "\r\n"), 1, CLEAN),
}
