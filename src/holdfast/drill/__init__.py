"""Drill: kills a run on purpose, again and again, and compares it bit for bit with one that nobody disturbed.

    drill      all of it in order
    plan       when to kill and what to damage (pure)
    aim        which kill is next, what an end meant (pure)
    kill       starts the command, follows its journal, interrupts and damages (acts)
    evidence   what a run has left (reads)
    compare    where two runs part ways (pure)
    cause      the usual reason (pure)
    report     the findings; table: as text (pure)

Nothing here knows a framework: all evidence is in the run's journal and checkpoints.
"""

from .aim import Options
from .drill import drill
from .report import Report

__all__ = ["Options", "Report", "drill"]
