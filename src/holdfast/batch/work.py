"""Work: which command of a batch script is the job's purpose,
and which only prepare or tidy up. Pure.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Sequence
from itertools import pairwise

from .bash import ShellCommand

# Commands that prepare or tidy up. Any other program that a script starts may be its work.
_QUICK = """
. : [ [[ @ alias ar awk breaksw else end endif endsw foreach goto limit onintr rehash setenv switch unlimit unsetenv
awk basename bc break builtin bunzip2 bzip2 c++ cargo cat cc cd chmod chown clang clear cmake column
comm complete conda configure continue cp curl cut date declare df diff dirname dos2unix du echo eval exit export expr
f2py f77 f90 false file find flock free g++ gcc gfortran getconf getopts git grep groups gsutil gunzip gzip hash hdfs
head hf hostname icc icpc icx id ifort ifx install ip join kill less let ln local logger ls lscpu lsb_release mail make
mamba man mapfile md5sum micromamba mkdir mkfifo mktemp ml module mpic++ mpicc mpicxx mpif77 mpif90 mpifort mpiicc
mpiifort msub mv ncu ninja nc nproc npm nvc nvc++ nvcc nvfortran nvidia-smi nvidia-cuda-mps-control passwd paste patch
pbzip2 pgrep pigz ping pip pip3 pipx pkill popd poetry printenv printf ps pushd pwd qstat quota rclone read readarray
readlink readonly realpath reset return rev rm rmdir rocm-smi rsync s3cmd sacct sbatch scancel scontrol scp sed seff seq
set sha1sum sha256sum shift shopt sinfo sleep sort source spack split squeue srun_cr ssh sshare sstat stage stat sync
tac tail tar tee test time times tmux top touch tr trap tree true type typeset udocker ulimit umask unalias uname uniq
unlink unset unxz unzip uptime uv vim virtualenv w wait watch wc wget whereis which who whoami xargs xz yes zcat zip
zstd
"""
QUICK = frozenset(_QUICK.split())
# Programs that wait for people or other programs: they have nothing to save.
_SERVERS = """
Xvfb code code-server dask-scheduler dask-worker jupyter jupyter-lab jupyter-notebook mongod ngrok ollama postgres
redis-server rserver sshd tensorboard vncserver
"""
SERVERS = frozenset(_SERVERS.split())
# Programs that start another one; their options are skipped.
_WRAPPERS = "command env exec ionice nice nohup numactl setsid stdbuf taskset time timeout"
WRAPPERS = frozenset(_WRAPPERS.split())
SHORT_S = 3600  # a job that is not longer can simply run again
INTERPRETERS = re.compile(
    r"(python|pypy|perl|ruby|julia|Rscript|R|bash|sh|zsh|node|java|matlab|octave)[\d.]*"
)
LAUNCHERS = frozenset({"srun", "mpirun", "mpiexec", "ibrun"})
_VALUE = re.compile(r"-|\d+[smhd]?$|\w+=")  # what a wrapper takes before the program
_QUICK_WORDS = re.compile(
    r"(--version|--help|-V|-version|--dry-run)$|-m (pip|"
    r"venv|virtualenv|compileall|zipfile|http\.server)\b|"
    r"^(apptainer|singularity|docker|podman) (pull|build|remote|"
    r"cache|inspect|run-help)\b|^(uv|poetry|conda) (?!run)|"
    r"^go (build|get|mod|install|vet)\b"
)
_LONG = re.compile(
    r"train|fit\b|finetun|fine_tun|mdrun|namd|\blmp|lammps|"
    r"gromacs|vasp|\bpw\.x|cp2k|amber|sander|pmemd|openmm|"
    r"simul|solver|solve\b|torchrun|deepspeed|accelerate|"
    r"relax|sample|search|optimi[sz]|Foam\b|learn",
    re.IGNORECASE,
)
_SHORT = re.compile(
    r"prep|grompp|trjconv|editconf|solvate|genion|pdb2gmx|"
    r"make_ndx|energy|eval|test|plot|post|analy[sz]|downl|fetch|"
    r"conver|export|merge|report|summar|upload|setup|set_up|"
    r"install|collect|clean|compress|visuali|check|valid|extract|"
    r"stat|metric|inspect|monitor|notify|decompose|reconstruct|"
    r"mesh|index|split|stage|copy|archive|render|figure|draw|"
    r"generate|score|aggregat|combine|gather|format|bootstrap_|download|"
    r"print|show|info|hello|hostname|serve|watch|sync|tokeni[sz]|cache",
    re.IGNORECASE,
)
_SCRIPT = re.compile(r"\.(py|R|r|jl|m|sh|bash|pl|rb|lua|ipynb)$")


def program_words(command: ShellCommand) -> tuple[str, ...]:
    """Return the command's words, from the program on: without assignments, `exec`, `nohup`,
    `time` and the like.
    """
    return command.words[program_index(command) :]


def program_index(command: ShellCommand) -> int:
    """Return the index of the word that names the program."""
    words, place = command.words, 0
    while place < len(words):
        if re.match(r"\w+(\[\w+\])?\+?=", words[place]):
            place += 1
        elif os.path.basename(words[place]) in WRAPPERS:
            place += 1
            while place < len(words) - 1 and _VALUE.match(words[place]):
                place += 1
        else:
            break
    return place


def program_name(command: ShellCommand) -> str:
    """Return what people call the program: `python train.py`,
    `gmx mdrun`, `srun torchrun`, `Trinity`.
    """
    words = [word for word in program_words(command) if word and "\n" not in word]
    first = os.path.basename(next(iter(words), ""))
    if first in LAUNCHERS:
        behind = _words_after_launcher(words)[:1]
    elif INTERPRETERS.fullmatch(first):
        behind = [word for word in words[1:] if not word.startswith("-")][:1]
    else:
        behind = [
            word for word in words[1:2] if not re.match(r"-|\w+=|.*\.(?!py|R|r|jl|m|sh)\w+$", word)
        ]
    said = [os.path.basename(word) for word in behind if not word.startswith("$")]
    return " ".join([first, *said])[:40] or "the program"


def _words_after_launcher(words: Sequence[str]) -> list[str]:
    """The words behind those of a launcher: without its options, and the values of short ones."""
    behind = [
        word
        for before, word in pairwise(words)
        if not re.match(r"-\w+$", before) and not word.startswith("-")
    ]
    return [word for word in behind if not re.match(r"\d+$", word)]


def is_work(command: ShellCommand) -> bool:
    """Whether the command may be what the job is for."""
    words = program_words(command)
    if words and os.path.basename(words[0]) in LAUNCHERS:
        started = next(iter(_words_after_launcher(words)), "")
        return not started or _is_work(words[words.index(started) :])
    return _is_work(words)


def longest_program(commands: Sequence[ShellCommand]) -> ShellCommand | None:
    """Return the program that probably runs longest:
    `train` in `prep; train; eval`. None: there is no program.
    """
    programs = [command for command in commands if is_work(command)]
    waits = any(command.words[0] == "wait" for command in commands)
    return (
        max(enumerate(programs), key=lambda pair: (*_estimate_length(pair[1], waits), pair[0]))[1]
        if programs
        else None
    )


def has_own_time_limit(command: ShellCommand) -> bool:
    """Whether the program is told to stop after some time."""
    limits = (
        r"-maxh\b|\btimeout\b|--(seconds|hours|duration)\b|"
        r"--?[\w-]*(max|wall|stop|exit|limit|run)[-_]?[\w-]*(time|"
        r"hours?|min(ute)?s|sec(ond)?s|limit|clock|duration|after)\b"
    )
    return bool(re.search(limits, " ".join(command.words)))


def looks_long(command: ShellCommand) -> bool:
    """Whether the name of the program tells that it works for hours."""
    return bool(_LONG.search(" ".join(_descriptive_words(program_words(command)))))


def _estimate_length(command: ShellCommand, waits: bool) -> tuple[int, bool]:
    """How long the command probably takes, and whether it runs where the script waits for it."""
    said = [os.path.basename(word) for word in _descriptive_words(program_words(command))]
    kinds = {2: _LONG, 0: _SHORT}
    begins = (duration for word in said for duration, kind in kinds.items() if kind.match(word))
    holds = (duration for duration, kind in kinds.items() if kind.search(" ".join(said)))
    return next(begins, next(holds, 1)), command.background == waits


def _descriptive_words(words: Sequence[str]) -> list[str]:
    """Return the program and the words that tell what it does; not its options and files."""
    said: list[str] = []
    for word in words:
        if word.startswith(("-", "$", "<", ">")) and said:
            continue
        said.append(word)
        if _SCRIPT.search(word) or len(said) == 4:
            break
    return said


def _is_work(words: Sequence[str]) -> bool:
    if not words or re.match(r"$|\(\(|\$\(\(|-|[\d.]+$", words[0]):
        return False
    first, text = os.path.basename(words[0]), " ".join([os.path.basename(words[0]), *words[1:]])
    if first in ("uv", "poetry", "conda") and words[1:2] == ("run",):
        return True
    if (
        first in QUICK | SERVERS
        or re.search(_QUICK_WORDS, text)
        or re.match(r"\w+(\[.*\])?\+?=", words[0])
    ):
        return False
    if INTERPRETERS.fullmatch(first) and re.match(r"-\w*[ceEVv]$", next(iter(words[1:]), "")):
        return first in ("bash", "sh")  # else a line of code
    return len(words) > 1 or not INTERPRETERS.fullmatch(first)
