"""Start: runs the program once, until none of its processes is left."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from ..apps.program import Program
from ..children import processes, warden
from ..children.child import LOST_S, Child
from ..cluster import slurm
from ..cluster.cause import SPOT
from ..cluster.notices import Notices
from ..job import job
from ..terminal import say, warn
from .limits import TimeLimits
from .output import Output
from .signals import STOPS, SignalInbox
from .standby import ReadyStart, Standby
from .watching import HangWatch

# how long processes that the command left behind may run, unless a signal sets another limit
LEFTOVERS_S = 5.0
# within this time after its start a program that uses `Run` installs its signal handlers
LISTENS_S = 10.0
PERHAPS_S = 1.0  # the same for any other program
ROUND_S = 5.0
STANDBY_S = 1.0  # between two looks whether one is to be started
CLOSE_S = 0.05
DEADLINE = "deadline"
SUPERSEDED = "a later start of this job"
_TOLD_BY = {
    DEADLINE: "the job's time is nearly up",
    SPOT: "the cloud takes this machine back",
    SUPERSEDED: "Slurm gave this node up and has started the job elsewhere",
}


@dataclass
class CommandStart:
    """One start of the command, and the signals sent to it."""

    program: Program
    command: Sequence[str]
    environment: Mapping[str, str]
    signals: SignalInbox
    time: TimeLimits
    note: Callable[..., None]  # writes events to the journal
    # processes at work -> seconds until the next
    look: Callable[[Callable[[], Sequence[int]]], float]
    look_s: float = ROUND_S
    listens_s: float = PERHAPS_S
    notices: Notices | None = None
    # gives a sign of life; whether a later start wants this one to leave
    beat: Callable[[], bool] = lambda: False
    lost: Callable[[], bool] = lambda: False  # whether it has gone on without this one
    hangs: HangWatch | None = None
    standby: Standby | None = None
    killed: bool = False
    pid: int = 0  # of the command
    tail: str = ""
    elsewhere: str = ""  # the part of its output that the user does not see above our own messages
    _waiting: list[int] = field(default_factory=list)  # signals to forward
    _handed: set[int] = field(default_factory=set)
    _asking: subprocess.Popen[bytes] | None = None
    _ended_s: float | None = None
    _nudged_s: float | None = None
    _looked_s: float = 0.0

    def run(self) -> int:
        """Start the command and wait until it has ended; return its exit code in subprocess's
        notation.

        Raises:
            UsageError: it cannot be started.
        """
        if self.hangs is not None:
            self.hangs.begin()
        if self.standby is not None:
            self.look_s = min(self.look_s, STANDBY_S)
        ready = (
            self.standby.take_start(self.command, self.environment)
            if self.standby is not None
            else None
        )
        with (
            ready.output if ready is not None else Output() as output,
            self._child(ready, output) as child,
        ):
            output.close_child_ends()
            self.pid = child.pid
            self.note("start", pid=child.pid, standby=ready is not None or None)
            self._waiting = [*self.signals.told_s]
            self._looked_s = time.monotonic()
            while not (child.gone and not self._has_pending_output(output)):
                self._wait_for_event(child, output)
                self._handle_signals(child)
                child.update()
                if child.code is not None and self._ended_s is None:
                    self._ended_s = time.monotonic()
                self._forward_signals(child)
                self._kill_if_due(child)
                self._check_command(child, output)
            self._drop_stop_command()
            self.tail, self.elsewhere = output.tail, output.tail_not_on_stderr
            return child.code if child.code is not None else -signal.SIGKILL

    def _child(self, ready: ReadyStart | None, output: Output) -> Child:
        return (
            ready.child
            if ready is not None
            else Child(self.command, self.environment, output.streams)
        )

    def _has_pending_output(self, output: Output) -> bool:
        """Whether output still has to be passed on. A reader that does not read delays no stop."""
        return bool(output.open_pipes) and not (
            (self.signals.told or self._is_hung)
            and time.monotonic() > (self._ended_s or 0.0) + LEFTOVERS_S
        )

    def _wait_for_event(self, child: Child, output: Output) -> None:
        """Wait until a signal, output or the command's end, or until something is due."""
        poller = select.poll()
        poller.register(self.signals, select.POLLIN)
        if not child.gone:
            poller.register(child, select.POLLIN)
        moving = {}
        for pipe in output.open_pipes:
            descriptor, event = pipe.poll_events()
            poller.register(descriptor, event)
            moving[descriptor] = pipe
        for descriptor, _ in poller.poll(self._pause_s() * 1000):
            if descriptor in moving and moving[descriptor].open:
                moving[descriptor].move_piece()

    def _pause_s(self) -> float:
        if self._waiting or self._asking or self._ended_s is not None or self.killed:
            return CLOSE_S
        now = time.monotonic()
        dues = [self.time.kill_at_s(self.signals) if self.signals.told else self.time.stop_due_s()]
        if self.hangs is not None:
            dues.append(self.hangs.due_s)
        if self.notices is not None and not self.signals.told:
            dues.append(self.notices.due_s)
        due_s = min(
            now + ROUND_S, self._looked_s + self.look_s, *(due for due in dues if due is not None)
        )
        return max(due_s - now, 0.0) + 0.001

    def _handle_signals(self, child: Child) -> None:
        for number in self.signals.received():
            if number == signal.SIGTSTP:
                self._suspend_together(child)
            elif number in STOPS:
                self.note("signal", signal=signal.Signals(number).name)
                self._waiting.append(number)
        why = self._stop_reason_without_signal()
        if self.lost() and not self.killed:
            self.signals.request_stop(SUPERSEDED)
            self._kill(child, f"{SUPERSEDED} has gone on without this one: killed")
        if self.signals.told is None and why is not None:
            self.signals.request_stop(why)
            self.note("signal", signal=why)
            say(f"{_TOLD_BY[why]}: the command is told to stop")
            self._waiting.append(signal.SIGTERM)

    def _stop_reason_without_signal(self) -> str | None:
        """Return why to stop although no signal has come: the deadline, or the cloud's notice."""
        if self.beat():
            return SUPERSEDED
        due = self.time.stop_due_s()
        if due is not None and time.monotonic() >= due:
            return DEADLINE
        return SPOT if self.notices is not None and self.notices.look() else None

    def _suspend_together(self, child: Child) -> None:
        """Suspend and continue the command together with this process (Ctrl-Z)."""
        child.send(signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        child.send(signal.SIGCONT)

    def _forward_signals(self, child: Child) -> None:
        """Forward each signal once:
        some launchers take a repeated signal as a demand to exit at once.
        """
        if child.code is not None or self.killed:
            self._waiting.clear()
            return
        later = []
        for number in self._waiting:
            wanted = self.program.stop(
                signal.SIGTERM if number == signal.SIGHUP else number, child.pid
            )
            if not isinstance(wanted, int):
                self._run_stop_command(child, wanted)
            elif wanted not in self._handed and self._should_delay_signal(child, wanted, number):
                later.append(number)
            elif (here := job()) is not None and slurm.kills_its_step(self.command, wanted):
                self._run_stop_command(child, slurm.signal_to_steps(here, wanted))
            else:
                self._send_signal(child, wanted)
        self._waiting = later

    def _send_signal(self, child: Child, wanted: int) -> None:
        chosen = self._signal_to_send(child, wanted) if wanted not in self._handed else wanted
        if chosen not in self._handed:
            child.send(chosen)
            self.note("handed", signal=signal.Signals(chosen).name)
            if signal.SIGINT in self.signals.told_s:
                say("Ctrl-C: it may save and end; a second one kills it")
        self._handed |= {chosen, wanted}

    def _signal_to_send(self, child: Child, number: int) -> int:
        """Return the signal to send: SIGTERM instead of a notice that would only kill.

        For example, torchrun handles no SIGUSR1.
        """
        group = (
            processes.group_members(child.pid) if number in {signal.SIGUSR1, signal.SIGUSR2} else []
        )
        instead = (
            group
            and not processes.any_catches_signal(group, number)
            and processes.any_catches_signal(group, signal.SIGTERM)
        )
        return signal.SIGTERM if instead else number

    def _should_delay_signal(self, child: Child, number: int, came: int) -> bool:
        """Whether to delay a signal:
        it would kill a program that has just begun and may soon handle it.
        """
        young = time.monotonic() < child.began_s + min(self.listens_s, self.time.grace_s(came) / 3)
        if not young or number == signal.SIGINT:
            return False
        group = processes.group_members(child.pid)
        return not any(
            processes.any_catches_signal(group, each) for each in {number, signal.SIGTERM}
        )

    def _run_stop_command(self, child: Child, command: Sequence[str]) -> None:
        """Run, once, the command that the program's adapter returns for stopping it."""
        if self._asking or signal.SIGTERM in self._handed:
            return
        try:
            nothing = subprocess.DEVNULL
            self._asking = subprocess.Popen(command, stdin=nothing, stdout=nothing, process_group=0)
            self.note("handed", command=[*command])
        except OSError as error:
            warn(f"{command[0]}: {os.strerror(error.errno or 0)}; the program gets SIGTERM instead")
            self._send_signal(child, signal.SIGTERM)

    def _drop_stop_command(self) -> None:
        if self._asking is not None and self._asking.poll() is None:
            os.killpg(self._asking.pid, signal.SIGKILL)  # including a script's own children
            with suppress(subprocess.TimeoutExpired):  # a process that cannot die at present
                self._asking.wait(LOST_S)

    def _kill_if_due(self, child: Child) -> None:
        """Kill processes that did not end in time; end processes that the command left behind."""
        now = time.monotonic()
        if self.signals.insists and not self.killed:
            self._kill(child, "a second Ctrl-C: killed")
        told = self.signals.told is not None
        if told and not self.killed and now >= self.time.kill_at_s(self.signals):
            self._kill(
                child,
                f"not ended {now - min(self.signals.told_s.values(), default=now):.0f} "
                "s after it was told to: killed",
            )
        if (
            self._is_hung
            and not self.killed
            and self.hangs is not None
            and now >= self.hangs.kill_at_s()
        ):
            self._kill(child, "it still hangs: killed")
        if self._ended_s is not None and not child.gone and not self.killed:
            self._end_leftover_processes(child, now)

    def _end_leftover_processes(self, child: Child, now: float) -> None:
        """End processes that the command left behind.

        If the signal killed only its shell, the rest may still be saving.
        """
        fell = self._handed and (child.code or 0) < 0
        if fell and any(
            processes.any_handles_signal(processes.group_members(child.pid), number)
            for number in self._handed
        ):
            return
        if self._nudged_s is None:
            child.send(signal.SIGTERM)
            self._nudged_s = now
        elif now >= self._nudged_s + LEFTOVERS_S:
            self.killed = True
            child.send(signal.SIGKILL)

    def _kill(self, child: Child, why: str) -> None:
        self.killed = True
        child.send(signal.SIGKILL)
        self.note("killed", why=why)
        warn(why)

    def _end_hung(self, child: Child) -> None:
        """Tell a command that hangs to save and end,
        if it still can. A suspended one is continued for that.
        """
        say("the command is told to save and end, if it still can")
        self._waiting.append(signal.SIGTERM)
        warden.send_signal(child.processes(), signal.SIGCONT)

    @property
    def _is_hung(self) -> bool:
        return self.hangs is not None and bool(self.hangs.hung)

    def _check_command(self, child: Child, output: Output) -> None:
        self.time.watch.poll_answers()
        # a stop has a limit of its own: the grace time
        watched = child.code is None and self.signals.told is None
        if watched and self.hangs is not None and self.hangs.check_hang(child.processes, output):
            self._end_hung(child)
        if child.code is None and time.monotonic() >= self._looked_s + self.look_s:
            self.look_s = self.look(lambda: processes.descendants(os.getpid()))
            if self.standby is not None:
                self.standby.start_or_discard(child.pid, self.command, self.environment)
                self.look_s = min(self.look_s, STANDBY_S)
            self._looked_s = time.monotonic()
