"""Drill: kills a run on purpose, again and again, and compares it bit for bit with an undisturbed
one.

    drill      all of it in order
    places     from which safe points to resume the run (pure)
    plan       how each kill is done, and what is damaged (pure)
    aim        which kill is next, what an end meant (pure)
    kill       starts the command, follows its journal, interrupts and damages (acts)
    attempts   what each attempt did, and which resume points that proves (pure)
    evidence   what a run has left (reads)
    compare    where two runs diverge (pure); output: where their printed lines do; leftovers: files
               of another run
    sights     values of the script's variables; suspects: variables that a resume did not restore
               (pure)
    cause      why a resumed run differs, and advice: what to write (pure); by_itself: why two
               undisturbed runs differ
    judge      where and why, in one value (pure)
    report     the findings; table: as text (pure)

Nothing here knows a framework: all evidence is in the run's journal and checkpoints.
"""

from .drill import drill
from .plan import DrillOptions
from .report import DrillReport

__all__ = ["DrillOptions", "DrillReport", "drill"]
