"""Lint's rules about `#SBATCH` lines:
which of them sbatch refuses or ignores, and what becomes of the output.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterator, Sequence

from ..batch import sbatch, sbatch_options
from ..batch.script import BatchScript
from ..interval import exit_time_s
from .fix import Edit, LintFix, add_directive, change_option_value, remove_line, replace_in_line
from .rule import Fault, Rule

_PREEMPTS = re.compile(r"preempt|scav|low_?prio|backfill|\bspot", re.IGNORECASE)
_PATTERNS = {
    "USER": "u",
    "SLURM_JOB_ID": "j",
    "SLURM_JOBID": "j",
    "SLURM_JOB_NAME": "x",
    "SLURM_ARRAY_TASK_ID": "a",
}
_PATTERNS |= {"SLURM_ARRAY_JOB_ID": "A", "LOGNAME": "u"}
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})|\$\(|`|^~")
_FREE = ("comment", "wrap", "job-name", "export", "mail-user")  # their values mean nothing to Slurm
_MEMORY = (("mem", "mem-per-cpu"), ("mem", "mem-per-gpu"), ("mem-per-cpu", "mem-per-gpu"))
_SEVERAL = ("signal", "mail-type", "comment")  # signal has a rule of its own; mail-types add up
_CONDA = re.compile(r"^\S+ activate\b|(conda|forge|mamba)\S*/activate\b")
_MISWRITTEN = re.compile(
    r"(?:[ \t]+#|# +)SBATCH(?=\s+--?[a-zA-Z])|#(?!SBATCH)S[ABCHT]{4,6}(?=\s+--?[a-zA-Z])"
)
NO_SUCH = LintFix("take it out, unless your Slurm or a plugin knows it")
_UNIT = re.compile(r"(\d+)([mhd])")
_TIMES = {"m": "{}", "h": "{}:00:00", "d": "{}-0"}  # sbatch takes no units
_LETTER = {"output": "o", "error": "e"}


def requeue_missing(script: BatchScript) -> Iterator[Fault]:
    """On a partition that preempts, a job comes back only if it may be requeued."""
    where = script.option("partition"), script.option("qos")
    preempted = next((each for each in where if each and _PREEMPTS.search(each.value or "")), None)
    said = script.option("requeue", "no-requeue")
    if preempted and (said is None or said.name == "no-requeue"):
        words = "--requeue" if script.option("open-mode") else "--requeue --open-mode=append"
        yield Fault(
            preempted.line,
            f"jobs of {preempted.value} are preempted, "
            "and some sites start them again only with --requeue",
            add_directive(script, words),
        )


def append_missing(script: BatchScript) -> Iterator[Fault]:
    """Each start truncates the output file, unless it is opened for appending."""
    mode, wanted = script.option("open-mode"), script.option("requeue", "no-requeue")
    starts_again = script.requeue_commands or (wanted is not None and wanted.name == "requeue")
    output = script.option("output")
    if output and output.value == "/dev/null":
        return
    if starts_again and (mode is None or not (mode.value or "").startswith("a")):
        yield Fault(
            script.line_of("open-mode", "requeue"),
            "each start of this job empties the output file: what earlier starts printed is lost",
            change_option_value(script, "open-mode", "append")
            if mode
            else add_directive(script, "--open-mode=append"),
        )


def log_folder_missing(script: BatchScript) -> Iterator[Fault]:
    """Slurm opens the output before the script runs,
    and does not create its folder, up to 22.05. 23.02 does.
    """
    told: set[str] = set()
    for option in filter(None, (script.option("output"), script.option("error"))):
        folder = _output_folder(script, option.value or "")
        if not folder or folder in told or _VARIABLE.search(folder) or re.search(r"[<>{}]", folder):
            continue
        told.add(folder)
        late = folder.removeprefix("./") in _created_folders(script)
        exists = script.around.exists(folder)
        if "%" in folder:
            what = (
                f"no folder {folder}/ exists: "
                f"the job fails without a word in Slurm {sbatch_options.VERSION}"
            )
            fix = LintFix("use % in the file's name only")
        elif exists is False or (late and exists is None):
            what = (
                f"without the folder {folder}/ the job fails "
                f"without a word in Slurm {sbatch_options.VERSION}"
            )
            what += "; mkdir in the script comes too late" if late else ""
            fix = LintFix(f"mkdir -p {folder} before sbatch")
        else:
            continue
        if not script.local_sbatch.is_at_least(23, 2):
            yield Fault(option.line, what, fix)


def _output_folder(script: BatchScript, path: str) -> str:
    """Return the folder of an output path,
    with the user's and the job's names filled in where they are known.
    """
    name = script.option("job-name")
    folder = os.path.dirname(path).replace("%u", script.around.user)
    if name and name.value:
        return folder.replace("%x", name.value)
    return "" if "%x" in folder else folder


def array_shares_output(script: BatchScript) -> Iterator[Fault]:
    """The tasks of an array write into one file, unless its name has %a or %j."""
    array, mode = script.array_option, script.option("open-mode")
    appended = script.chain_option and mode and (mode.value or "").startswith("a")
    for option in (
        filter(None, (script.option("output"), script.option("error")))
        if array and not appended
        else ()
    ):
        value = option.value or ""
        if value and value != "/dev/null" and not re.search(r"%\d*[ajJ]|\$", value):
            stem, ending = os.path.splitext(value)
            new = f"{stem}{'' if stem.endswith(('-', '_', '/')) else '_'}%a{ending}"
            yield Fault(
                option.line,
                f"all tasks of the array write to {value}: they overwrite one another",
                change_option_value(script, option.name, new),
            )


def directive_too_late(script: BatchScript) -> Iterator[Fault]:
    """Sbatch ignores options after the first command."""
    lines = script.text.split("\n")
    place = len("\n".join(lines[: script.last]))
    for line in script.late:
        out = remove_line(script, line, "move it above the first command")
        yield Fault(
            line,
            "sbatch ignores this line: it stops reading #SBATCH at the first command",
            out._replace(edits=(*out.edits, Edit(place, place, "\n" + lines[line - 1]))),
        )


def variable_in_directive(script: BatchScript) -> Iterator[Fault]:
    """Sbatch expands neither variables nor ~ in #SBATCH lines."""
    for option in script.options:
        match = _VARIABLE.search(option.value or "")
        if match is None or option.name in _FREE:
            continue
        pattern = _PATTERNS.get(match[1] or match[2] or "") if option.name in _LETTER else None
        edits = replace_in_line(script, option.line, match[0], f"%{pattern}") if pattern else ()
        yield Fault(
            option.line,
            f"sbatch does not replace {match[0]} in a #SBATCH line: "
            f"--{option.name} is taken as it is written",
            LintFix(
                f"write %{pattern}"
                if pattern
                else "write the value out, or give it on sbatch's command line",
                edits,
            ),
        )


def contradiction(script: BatchScript) -> Iterator[Fault]:
    """If an option is given twice, the last one counts."""
    counted = {option.name: option for option in script.options}
    for option in script.options:
        last = counted[option.name]
        if option.name not in _SEVERAL and option.value != last.value and last.line != option.line:
            yield Fault(
                option.line,
                f"{option} does nothing: line {last.line} "
                "gives another value, and the last one counts",
                LintFix("keep one of the two lines"),
            )
    yield from _more_nodes_than_tasks(script)
    first, second = script.option("requeue"), script.option("no-requeue")
    if first and second:
        told = (
            f"{first} and {second} contradict each other: "
            f"the one in line {max(first.line, second.line)} counts"
        )
        yield Fault(min(first.line, second.line), told, LintFix("keep one of the two"))


def _more_nodes_than_tasks(script: BatchScript) -> Iterator[Fault]:
    """Slurm takes fewer nodes than asked for, or refuses more tasks than the nodes may hold."""
    names = ("nodes", "ntasks", "ntasks-per-node")
    counts = {name: (script.option(name) or sbatch.Option(name)).value or "" for name in names}
    nodes, tasks, each = (int(value) if value.isdecimal() else 0 for value in counts.values())
    if nodes > tasks > 0:
        told = f"{tasks} tasks cannot run on {nodes} nodes: Slurm takes {tasks}"
        yield Fault(
            script.line_of("nodes"), told, LintFix(f"write --nodes={tasks}, or ask for more tasks")
        )
    elif nodes and each and tasks > nodes * each:
        told = (
            f"{nodes} nodes with {each} tasks each do not "
            f"hold --ntasks={tasks}: sbatch refuses the script"
        )
        yield Fault(script.line_of("ntasks"), told, LintFix(f"write --ntasks={nodes * each}"))


def directive_in_comment(script: BatchScript) -> Iterator[Fault]:
    """A line counts only if it begins with #SBATCH, without a blank before or in it."""
    given = {option.name for option in script.options}
    for number, line in enumerate(script.text.split("\n"), 1):
        match = _MISWRITTEN.match(line)
        read = (
            sbatch.parse_directives(sbatch.DIRECTIVE + line[match.end() :]).options if match else []
        )
        if match and read and not {option.name for option in read} & given:
            yield Fault(
                number,
                "sbatch ignores this line: it does not begin with #SBATCH",
                LintFix(
                    "write #SBATCH", replace_in_line(script, number, match[0], sbatch.DIRECTIVE)
                ),
            )
        if line.strip() and not line.lstrip().startswith("#"):
            return


def time_misread(script: BatchScript) -> Iterator[Fault]:
    """A number alone is minutes; two numbers are minutes and seconds."""
    option = script.option("time")
    match = (
        re.fullmatch(r"(12|24|36|48|72|96|120|168)(:00)?", option.value or "") if option else None
    )
    if option and match and not (match[1] in ("12", "120") and not match[2]):
        yield Fault(
            option.line,
            f"--time={option.value} is {match[1]} minutes, not hours",
            change_option_value(script, "time", f"{match[1]}:00:00"),
        )


def strict_set_up(script: BatchScript) -> Iterator[Fault]:
    """Conda's scripts use variables that are not set."""
    settings = [each for each in script.commands_as_run if each.words[0] == "set"]
    strict = next(
        (each for each in settings if any(re.match(r"-\w*u|nounset", word) for word in each.words)),
        None,
    )
    relaxed = any(re.match(r"\+\w*u", word) for each in settings for word in each.words)
    for command in script.commands_as_run if strict and not relaxed else ():
        conda = command.words[0] in ("conda", "mamba", "micromamba") and "activate" in command.words
        conda = conda or (
            command.words[0] in ("source", ".")
            and _CONDA.search(" ".join(command.words)) is not None
        )
        if strict and conda and command.line > strict.line:
            yield Fault(
                command.line,
                "with set -u the activation may end the job: "
                "its scripts use variables that are not set",
                LintFix("write set +u before it, and set -u after it"),
            )
            return


def time_below_save(script: BatchScript) -> Iterator[Fault]:
    """A job that is shorter than one save makes no progress."""
    limit_s, save_s = sbatch.time_limit_s(script.options), script.around.save_s
    if save_s is not None and limit_s < exit_time_s(save_s):
        yield Fault(
            script.line_of("time"),
            f"--time is {limit_s:.0f} s, and a save took {save_s:.0f} s: "
            "the job ends before its first save",
            LintFix("ask for more time"),
        )


def lead_beyond_limit(script: BatchScript) -> Iterator[Fault]:
    """A notice that is due before the job starts is sent at once."""
    limit_s, signal = sbatch.time_limit_s(script.options), script.signal
    if signal is not None and signal.lead_s >= limit_s:
        new = f"{'B:' if signal.batch else ''}{signal.name}@{int(limit_s) // 4}"
        yield Fault(
            script.line_of("signal"),
            f"--signal comes {signal.lead_s} s before the end "
            f"of a job of {limit_s:.0f} s: as soon as it starts",
            change_option_value(script, "signal", new),
        )


def script_refused(script: BatchScript) -> Iterator[Fault]:
    """Report the lines for which sbatch refuses the script,
    and options that are not known to our table.
    """
    if not script.text.startswith("#!"):
        yield Fault(
            1,
            "sbatch refuses the script: its first line does not name an interpreter",
            LintFix("write #!/bin/bash as the first line", (Edit(0, 0, "#!/bin/bash\n"),)),
        )
    if "\r\n" in script.text:
        whole = Edit(0, len(script.text), script.text.replace("\r\n", "\n"))
        yield Fault(
            1,
            "sbatch refuses the script: it has DOS line breaks",
            LintFix("sed -i 's/\\r$//' FILE", (whole,)),
        )
    for line, why in script.refused.items():
        yield from _refused(script, line, why)
    for option in script.options:
        yield from _find_misused(script, option)
    for pair in _MEMORY:
        one, other = (script.option(name) for name in pair)
        if one and other:
            what = f"sbatch refuses the script: --{one.name} and --{other.name} exclude each other"
            yield Fault(max(one.line, other.line), what, LintFix("keep one of the two"))


def _refused(script: BatchScript, line: int, why: str) -> Iterator[Fault]:
    text = script.text.split("\n")[line - 1]
    letter, unknown, _ = why.partition(sbatch_options.UNKNOWN)
    if re.search(r"<[^>]*>", text):
        return  # to be filled in
    if unknown:
        yield from _report_unknown(
            script,
            sbatch.Option(letter, None, line),
            letter,
            f"it has no option {letter}",
            NO_SUCH,
        )
    elif "\\ " in text:  # one blank of a value, since Slurm 24.05
        yield from _report_unknown(
            script,
            sbatch.Option("\\ ", None, line),
            "a blank after \\",
            why,
            _dash_fix(script, line),
        )
    else:
        yield Fault(line, f"sbatch refuses the script: {why}", _dash_fix(script, line))


def _find_misused(script: BatchScript, option: sbatch.Option) -> Iterator[Fault]:
    meant = sbatch_options.probably_meant(option.name)
    if meant is not None:
        edits = (
            replace_in_line(script, option.line, f"--{option.name}", f"--{meant}") if meant else ()
        )
        fix = LintFix(f"write --{meant}", edits) if meant else NO_SUCH
        yield from _report_unknown(
            script, option, f"--{option.name}", f"it has no option --{option.name}", fix
        )
    elif wrong := sbatch_options.why_value_refused(option.name, option.value):
        told = str(option) if option.value is not None else f"{option} without a value"
        unit = _UNIT.fullmatch(option.value or "") if option.name == "time" else None
        fix = (
            change_option_value(script, "time", _TIMES[unit[2]].format(unit[1]))
            if unit
            else LintFix("see man sbatch for what it may be")
        )
        yield from _report_unknown(script, option, told, wrong, fix)


def _report_unknown(
    script: BatchScript, option: sbatch.Option, told: str, wrong: str, fix: LintFix
) -> Iterator[Fault]:
    """Report an option that our table lacks, unless the sbatch of this machine knows it."""
    here = script.local_sbatch
    if here.has_table_version and not here.help_mentions(option.name, option.value):
        yield Fault(option.line, f"sbatch {here.version} refuses the script: {wrong}", fix)
    elif not here.help_mentions(option.name, option.value):
        yield Fault(option.line, f"{told}{sbatch_options.UNKNOWN}", fix)


def _dash_fix(script: BatchScript, number: int) -> LintFix:
    """Return the fix of a line with words that are no options."""
    line = script.text.split("\n")[number - 1]
    # and dashes of word processors
    match = re.search(r"(?<=\s)(?:-|[\u2013\u2014]+)(?=([A-Za-z][\w-]+))", line)
    if match and match[1] in sbatch_options.NAMES:
        return LintFix(
            f"write --{match[1]}",
            replace_in_line(script, number, match[0] + match[1], f"--{match[1]}"),
        )
    return LintFix(
        'write --option=value, with quotes around a value that has blanks: --comment="a b"'
    )


def _created_folders(script: BatchScript) -> set[str]:
    """The folders that the script makes."""
    words = (word for each in script.commands if each.words[0] == "mkdir" for word in each.words)
    return {word.rstrip("/").removeprefix("./") for word in words}


RULES: Sequence[Rule] = (
    Rule("may lose work", requeue_missing, once=True),
    Rule("may lose work", append_missing, once=True),
    Rule("may lose work", log_folder_missing),
    Rule("may lose work", array_shares_output),
    Rule("may lose work", directive_too_late),
    Rule("may lose work", variable_in_directive),
    Rule("may lose work", contradiction),
    Rule("may lose work", directive_in_comment),
    Rule("may lose work", time_misread),
    Rule("style", strict_set_up),
    Rule("loses work", time_below_save),
    Rule("may lose work", lead_beyond_limit),
    Rule("may lose work", script_refused),
)
