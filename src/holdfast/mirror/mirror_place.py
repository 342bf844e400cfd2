"""Mirror place: one place during a run, as the run sees it: its copies, and whether it answers.

Only the client's thread changes it. Other threads read single fields, which are replaced and never
changed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from ..retention import CheckpointFacts
from ..rules import Rule
from . import waiting
from .records import PlaceState

QUIET_S = 60.0  # a copy without progress for so long is reported
NEVER = float("inf")
# between two lines of one kind: that copying is interrupted, or that the place answers again
SAY_S = 60.0


class MirrorPlace:
    """The run's record of one mirror.

    `seen`: its content when it was claimed; None: it may be absent, and has not answered yet.
    """

    def __init__(self, index: int, shown: str, rule: Rule, seen: PlaceState | None) -> None:
        self.index, self.shown, self.rule = index, shown, rule
        self.seen = seen
        self.there: Mapping[str, CheckpointFacts] = {}  # its copies of this run's lineage
        self.begun = False  # it is known what is there
        self.served = False  # the worker that runs now has been told that
        self.left_alone = False  # this attempt does nothing more there
        self.drained = False
        self.copying = ""
        self.keeps_all = False  # it refuses removals
        self.down = ""  # why copying does not go on
        # the longer of the last two copies: one may have waited for an outage to end
        self.took_s = 0.0
        self._last_took_s = 0.0
        self._damaged: frozenset[str] = frozenset()  # here: they are not copied
        self._heard_s = 0.0  # by the monotonic clock
        self._said_down = False  # what was printed about it
        self._said_s = {True: -SAY_S, False: -SAY_S}  # when each was printed

    def missing_checkpoints(self, local: Sequence[CheckpointFacts]) -> list[str]:
        """Names of the checkpoints that are to be copied."""
        if self.left_alone or not self.begun:
            return []
        sound = [facts for facts in local if facts.name not in self._damaged]
        return waiting.checkpoints_to_copy(sound, [*self.there.values()], self.rule)

    @property
    def is_stalled(self) -> bool:
        """Whether a copy has made no progress for a long time."""
        return bool(self.copying) and time.monotonic() - self._heard_s > QUIET_S

    # Events
    # ----------------------------------------------------------------------------------------------

    def note_claimed(self, seen: PlaceState) -> None:
        """Note that the place is claimed, and what lies there."""
        self.seen = seen

    def note_lineage_copies(self, there: Mapping[str, CheckpointFacts]) -> None:
        """Note which copies there are of this run's lineage. From now on checkpoints are copied."""
        self.there, self.begun, self.served = there, True, True

    def queue_if_idle(self, name: str) -> None:
        """Note that `name` is copied next, unless a copy is in progress."""
        if self.begun and not self.left_alone and name not in self.there:
            self.copying = self.copying or name

    def note_copying(self, name: str) -> None:
        """Note what is being copied; "": nothing is."""
        self.copying = name

    def note_worker_lost(self) -> None:
        self.copying, self.drained, self.served = "", False, False

    def note_drained(self) -> None:
        """Note that all copies are complete."""
        self.drained = True

    def abandon(self) -> None:
        self.left_alone = True

    def note_removal_refused(self) -> bool:
        """Note that the place refuses removals; return whether that is new."""
        was, self.keeps_all = self.keeps_all, True
        return not was

    def note_progress(self) -> None:
        """Note that the place has answered, or made progress, now."""
        self._heard_s = time.monotonic()

    def note_copied(self, name: str, facts: CheckpointFacts | None, took_s: float) -> None:
        """Note a verified copy. `facts` is None if the checkpoint was pruned meanwhile."""
        self.there = {**self.there, name: facts} if facts is not None else self.there
        self.took_s, self._last_took_s = max(self._last_took_s, took_s), took_s

    def note_removed(self, name: str, *, whole: bool) -> None:
        """Note a removal; without `whole`, of files that are no copy."""
        self.keeps_all = False
        if whole:
            self.there = {each: facts for each, facts in self.there.items() if each != name}

    def give_up_checkpoint(self, name: str) -> None:
        """Note that this checkpoint is never copied."""
        self._damaged |= {name}

    def note_interrupted(self, why: str) -> bool:
        """Note why copying is interrupted; return whether that is new."""
        was, self.down = self.down, why
        return not was

    def note_answering(self) -> None:
        self.down = ""

    @property
    def next_message_in_s(self) -> float:
        """Return the seconds until a message about an interruption may be printed again."""
        if self.left_alone or bool(self.down) == self._said_down:
            return NEVER
        return max(0.0, self._said_s[bool(self.down)] + SAY_S - time.monotonic())

    def note_message_printed(self) -> None:
        """Note that the line was printed."""
        self._said_down = bool(self.down)
        self._said_s[self._said_down] = time.monotonic()
