"""sbatch's options: their names, which of them take a value, and which values it refuses. Pure.

Source: sbatch of Slurm 22.05, asked with `--test-only` (tests/slow/test_lint_oracle.py); options of
later versions. Another version may accept options that this table lacks: the sbatch of this machine
is asked (`LocalSbatch`).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from typing import NamedTuple

VERSION = "22.05"  # of the Slurm that this table describes
UNKNOWN = f" is not known to Slurm {VERSION}"
_LETTERS = """
A account   a array   B extra-node-info   b begin   C constraint   c cpus-per-task   d dependency   D chdir   e error
F nodefile   G gpus   H hold   i input   J job-name   k no-kill   L licenses   M clusters   m distribution   N nodes
n ntasks   O overcommit   o output   p partition   Q quiet   q qos   S core-spec   s oversubscribe   t time   v verbose
W wait   w nodelist   x exclude
"""
_REQUIRED = """
account acctg-freq array batch bb bbf begin chdir cluster-constraint clusters comment constraint container context
core-spec cores-per-socket cpu-freq cpus-per-gpu cpus-per-task deadline delay-boot dependency distribution error exclude
export export-file extra-node-info gid gpu-bind gpu-freq gpus gpus-per-node gpus-per-socket gpus-per-task gres
gres-flags hint input job-name kill-on-invalid-dep licenses mail-type mail-user mcs-label mem mem-bind mem-per-cpu
mem-per-gpu mincpus network nodefile nodelist nodes ntasks ntasks-per-core ntasks-per-gpu ntasks-per-node
ntasks-per-socket ntasks-per-tres open-mode output partition power prefer priority profile qos reservation signal
sockets-per-node switches thread-spec threads-per-core time time-min tmp uid wait-all-nodes wckey wrap
"""
_NONE = """
contiguous help hold ignore-pbs no-requeue overcommit oversubscribe parsable quiet reboot requeue spread-job test-only
usage use-min-nodes verbose version wait
"""
_OPTIONAL = "exclusive get-user-env nice no-kill propagate"
# Options of other versions, and of plugins that many sites have. Whether they take a value is not
# checked.
_ELSEWHERE = """
container-id external extra oom-kill-step resv-ports segment stepmgr tres-bind tres-per-task umask x11
"""
_ALIASES = {"tasks-per-node": "ntasks-per-node", "cluster": "clusters"}

LONG = dict(zip(_LETTERS.split()[::2], _LETTERS.split()[1::2], strict=True))
ALONE = "HkOQsvW"  # letters that take no value
REQUIRED = frozenset(_REQUIRED.split())
NONE = frozenset(_NONE.split())
OPTIONAL = frozenset(_OPTIONAL.split())
NAMES = frozenset([*REQUIRED, *NONE, *OPTIONAL, *_ELSEWHERE.split()])

_SIGNALS = """
HUP INT QUIT ABRT KILL ALRM TERM USR1 USR2 URG CONT STOP TSTP TTIN TTOU XCPU
"""
_MAILS = """
NONE BEGIN END FAIL REQUEUE ALL INVALID_DEPEND STAGE_OUT TIME_LIMIT TIME_LIMIT_90 TIME_LIMIT_80 TIME_LIMIT_50
ARRAY_TASKS
"""
_TASKS = r"\d+(-\d+(:\d+)?)?"


class LocalSbatch(NamedTuple):
    """The version and help of this machine's sbatch;
    empty if there is none, or if it does not answer.
    """

    version: str = ""  # "25.11.2"
    help: str = ""

    @property
    def has_table_version(self) -> bool:
        """Whether it is of the version that this table describes."""
        return self.version.startswith(f"{VERSION}.")

    def is_at_least(self, *version: int) -> bool:
        """Whether it is known to be of this version or a later one: `since(23, 2)`."""
        return tuple(map(int, re.findall(r"\d+", self.version))) >= version

    def help_mentions(self, name: str, value: str | None) -> bool:
        """Whether its help names an option that the table does not know with this value,
        or without one.
        """
        flag = re.escape(name if name.startswith("-") else f"--{name}")
        found = re.search(rf"^ +(?:-\w,? +)?{flag}(?![\w-])(\[?)(=?)", self.help, re.MULTILINE)
        if found is None or not value_kind(name):
            return found is not None
        if value is None:
            return value_kind(name) == "required" and bool(found[1])
        return value_kind(name) == "none" and bool(found[2])


def full_option_name(name: str) -> str:
    """Return the full name of an option that may be an alias or abbreviated; `name` itself if
    there is no such one.
    """
    if name in NAMES or name in _ALIASES:
        return _ALIASES.get(name, name)
    meant = {
        _ALIASES.get(each, each) for each in (*NAMES, *_ALIASES) if name and each.startswith(name)
    }
    return meant.pop() if len(meant) == 1 else name


def value_kind(name: str) -> str:
    """Return whether the option takes a value: "required",
    "none", "optional", or "" where that is not known.
    """
    sets = {"required": REQUIRED, "none": NONE, "optional": OPTIONAL}
    return next((each for each, names in sets.items() if name in names), "")


def probably_meant(name: str) -> str | None:
    """Return the option that was probably meant; None:
    sbatch, or a plugin of many sites (Pyxis), knows `name`.
    """
    if name in NAMES or name.startswith("container-"):
        return None
    several = sorted(each for each in NAMES if name and each.startswith(name))
    return next(iter(several or difflib.get_close_matches(name, sorted(NAMES), n=1)), "")


def why_value_refused(name: str, value: str | None) -> str | None:
    """Return what is wrong with the option's value; None:
    sbatch would take it, or only the site can tell.
    """
    takes = value_kind(name)
    if takes == "required" and value is None:
        return f"--{name} has no value"
    if takes == "none" and value is not None:
        return f"--{name} takes no value"
    # to be filled in
    if value is None or name not in _VALUES or re.search(r"[<>{}\[\]$]|\.\.\.", value):
        return None
    return None if _VALUES[name](value) else f"--{name} cannot be {value}"


def _matches(pattern: str) -> Callable[[str], bool]:
    return lambda value: re.fullmatch(pattern, value, re.IGNORECASE) is not None


def _is_mail_types(value: str) -> bool:
    return any(word.upper() in _MAILS.split() for word in value.split(","))  # others are ignored


def _ranges(pattern: str) -> Callable[[str], bool]:
    """As `_matches`; and no range may end before it begins."""

    def fits(value: str) -> bool:
        spans = re.findall(r"(\d+)-(\d+)", value)
        return _matches(pattern)(value) and all(int(first) <= int(last) for first, last in spans)

    return fits


def _signal(value: str) -> bool:
    _, _, lead = value.partition("@")
    return _matches(_SIGNAL)(value) and int(lead or 0) <= _MOST_LEAD_S


_TIME = r"-1|infinite|unlimited|\d+(:\d+){0,2}|\d+-(\d+(:\d+){0,2})?"
_MEMORY = r"\d+([KMGT]B?)?"
_HINT = "compute_bound|memory_bound|(no)?multithread|help"
_MOST_LEAD_S = 65535
_COUNT = r"0*[1-9]\d*"
_NODES = r"\d+[km]?(-\d+[km]?)?|[\d,:-]*[,:][\d,:-]*"  # later versions take a list
_SIGNAL = rf"([RB]+:)?(\d+|(SIG)?({'|'.join(_SIGNALS.split())}))(@\d*)?"
_VALUES: dict[str, Callable[[str], bool]] = {
    "array": _ranges(rf"{_TASKS}(,{_TASKS})*(%\d*)?"),
    "cpus-per-task": _matches(_COUNT),
    "cores-per-socket": _matches(_COUNT),
    "dependency": _matches(r"singleton|after\w*[:+].*|[^,?]*singleton.*"),
    "exclusive": _matches("user|mcs|topo"),
    "hint": _matches(rf"({_HINT})(,({_HINT}))*"),
    "kill-on-invalid-dep": _matches("yes|no"),
    "mail-type": _is_mail_types,
    "mem": _matches(_MEMORY),
    "mem-per-cpu": _matches(_MEMORY),
    "mem-per-gpu": _matches(_MEMORY),
    "mincpus": _matches(_COUNT),
    "nodes": _ranges(_NODES),
    "ntasks": _matches(_COUNT),
    "ntasks-per-core": _matches(_COUNT),
    "ntasks-per-node": _matches(_COUNT),
    "ntasks-per-socket": _matches(_COUNT),
    "signal": _signal,
    "sockets-per-node": _matches(_COUNT),
    "switches": _matches(r"\d+(@.*)?"),
    "threads-per-core": _matches(_COUNT),
    "time": _matches(_TIME),
    "time-min": _matches(_TIME),
    "tmp": _matches(_MEMORY),
}
