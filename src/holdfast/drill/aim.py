"""Aim: where the next attempt resumes, which kill leads there,
and what an attempt's end meant. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from .. import settings
from ..journal import Event, Log
from .evidence import SafePoint
from .kill import AttemptProgress, ChildExit, SentSignal, exit_codes_of_signal
from .places import LAST, SafePointSequence
from .plan import RANK, DrillOptions, Kill, RunPace, plan_kills


class KillSchedule:
    """Chooses the next kill of a drill, until as many distinct places are proven as kills
    were requested.
    """

    def __init__(self, course: SafePointSequence, pace: RunPace, options: DrillOptions) -> None:
        self.course, self.pace, self._options = course, pace, options
        self.wanted = min(options.kills, len(course.places))
        self.queue = plan_kills(
            pace, course, course.choose_targets(self.wanted, options.seed), options
        )
        self._ahead: list[Kill] = []
        self._without: set[SafePoint] = set()  # places that the script cannot be resumed from
        self._were_due: set[str] = set()
        self.due: list[str] = []  # kinds of damage to be done next

    def targets_of_next_start(
        self, resumes_at: SafePoint, proven: Collection[SafePoint]
    ) -> tuple[settings.DrillTarget, ...]:
        """Return the drill targets of the next start. `resumes_at`: where it will resume, as far as
        that is known.

        If too few targets lie ahead because kills led elsewhere, more are chosen.
        """
        known = {*proven, resumes_at}.intersection(self.course.places)
        missing = self.wanted - len(known)
        done = known | self._without
        ahead = [
            kill
            for kill in self.queue
            if _is_ahead(kill, resumes_at) and kill.target.place not in done
        ]
        if len(ahead) < missing:
            taken = {*done, *(kill.target.place for kill in ahead)}
            targets = self.course.choose_more_targets(
                missing - len(ahead), taken, resumes_at, self._options.seed + len(self.queue)
            )
            more = plan_kills(
                self.pace,
                self.course,
                targets,
                self._options._replace(damage=False),
                len(self.queue),
            )
            self.queue += more
            ahead = sorted([*ahead, *more], key=lambda kill: kill.target.place.order)
        self._ahead = ahead if missing > 0 else []
        return tuple(kill.aim for kill in self._ahead)

    def __call__(self, view: AttemptProgress) -> Kill | None:
        """Return the kill for the attempt in `view`; the run chooses its aim by the same rule."""
        came = view.restored
        return (
            None
            if came is None
            else next((kill for kill in self._ahead if _is_ahead(kill, came)), None)
        )

    def avoid_last_batches(self) -> None:
        """Choose no more targets after an epoch's last batch: the run would resume from the
        checkpoint before.
        """
        self._without.update(
            place for place in self.course.places if self.course.kind_of_place(place) == LAST
        )
        self.wanted = min(self.wanted, len(self.course.places) - len(self._without))

    def note_delivered(self, strikes: Iterable[SentSignal]) -> None:
        """Note the delivered kills. The damage that is planned for each of them becomes due,
        once.
        """
        due = [
            strike.damage
            for strike in strikes
            if strike.damage is not None and strike.damage not in self._were_due
        ]
        self.due += due
        self._were_due.update(due)


def _is_ahead(kill: Kill, resumes_at: SafePoint) -> bool:
    return kill.target.place.order > resumes_at.order


def classify_end(ended: ChildExit, log: Log | None) -> str:
    """Return what the end of an attempt means: "finished", "again" or "failed".

    The journal's last event decides where a launcher changes exit codes.
    """
    last: Event = log.events[-1] if log is not None and log.closed else {}
    if last.get("event") == "stop":
        return "finished" if last.get("reason") == "drill limit" else "again"
    if ended.exit == 0:
        return "finished"
    if ended.exit == 75 or last.get("behind"):  # the next start resumes from the checkpoint before
        return "again"
    if ended.fired is None:
        return "failed"
    # after the loss of a rank, the exit codes of the launcher and of the other ranks vary
    return (
        "again"
        if ended.fired.signal == RANK or ended.exit in exit_codes_of_signal(ended.fired.signal)
        else "failed"
    )
