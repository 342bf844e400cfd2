"""Windows: rank 0 announces one window ahead what all ranks do at a safe point, so ranks need not
wait at each one.

Every rank counts its safe points, and the counts agree. Some safe points are edges of windows. At
an edge all ranks do what rank 0 announced at the edge before. So a rank waits only for one that is
more than a window behind.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from ..ranks import Ranks

WINDOW_S = 0.1  # duration of a window
# per window: when steps become slower, an order still takes two windows of slow steps
MOST_POINTS = 50
SWEEP = 4096  # edges after which rank 0 deletes announcements that all ranks have read


class RankOrder(msgspec.Struct, frozen=True, array_like=True):
    """What every rank must do at one window edge."""

    points: int = 1  # from this edge to the next
    stop: str = ""  # the reason; empty: continue
    save: bool = False
    land: bool = False  # take the outcome of the save in flight


NOTHING = RankOrder()
_ORDERS = msgspec.msgpack.Decoder(RankOrder)  # made here for the reason that `format` has


class OrderWindows:
    """One run's safe points, on one rank.

    order = windows.arrive()            # at every safe point, on every rank
    if windows.leading: windows.say(...)   # rank 0 at an edge: what happens at the next one
    """

    def __init__(
        self,
        ranks: Ranks,
        clock: Callable[[], float] = time.monotonic,
        *,
        most_points: int = MOST_POINTS,
    ) -> None:
        self._ranks, self._words, self._clock, self._most = (
            ranks,
            ranks.separate_conversation("windows"),
            clock,
            most_points,
        )
        self.point, self._last_edge, self._edge, self._edges = 0, 0, 1, 0
        self._said = NOTHING
        self._began_at, self._began_s, self._point_s = 0, clock(), WINDOW_S
        self.spent: list[Ranks] = []  # channels to delete when all ranks have reached another edge
        self.said_at = 0  # the safe point at which the present order was announced
        self._wished = False  # rank 0 has received the signal that reached this rank
        self.leading = False  # this is rank 0 at an edge, and it has not announced the next one
        if ranks.leads:
            self._send_order(NOTHING)

    def count_safe_point(self) -> RankOrder:
        """Count one safe point; return what to do there.

        Raises:
            RanksError: rank 0 did not reach the edge before this one in time.
        """
        self.point += 1
        if self.point != self._edge:
            return NOTHING
        self._edges += 1
        self.said_at, self._last_edge = self._last_edge, self.point
        order = self._said
        if self._ranks.rank:
            order = _ORDERS.decode(self._words.announce("window"))
        else:
            self.leading = True
            now = self._clock()
            self._point_s = (now - self._began_s) / (self.point - self._began_at)
            self._began_at, self._began_s = self.point, now
        if self._edges % SWEEP == 0:  # a rank that responds has read the announcement of this edge
            self._ranks.gather("windows")
            for each in (self._words, *self.spent):
                each.sweep()
            self.spent.clear()
        self._edge += order.points
        return order

    def report_signal(self, reason: str) -> None:
        """Report to rank 0, once, a signal that this rank received."""
        if not self._wished:
            self._wished = True
            self._ranks.leave_request(reason)

    @property
    def order_delay_s(self) -> float:
        """Seconds, at the current pace, until an order takes effect that rank 0 has not
        announced yet.
        """
        return (self._edge - self.point + self._choose_window_length()) * self._point_s

    def announce_order(self, *, stop: str = "", save: bool = False, land: bool = False) -> None:
        """On rank 0, at an edge: announce what happens at the next one."""
        self._send_order(RankOrder(self._choose_window_length(), stop, save, land))

    def _choose_window_length(self) -> int:
        """Safe points that fit into WINDOW_S: at most twice,
        at least a quarter of the last number.
        """
        wanted, last = int(WINDOW_S / max(self._point_s, 1e-9)), self._said.points
        return max(1, last // 4, min(wanted, 2 * last, self._most))

    def _send_order(self, order: RankOrder) -> None:
        self._words.announce("window", msgspec.msgpack.encode(order))
        self._said, self.leading = order, False
