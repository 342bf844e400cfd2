"""Own resume: the drill of a program that saves and resumes by itself, without a Run.

program    runs it in copies of the directory: twice undisturbed, once killed (acts)
copies     those copies, and the checkpoints in them (acts)
values     the values in the files that two runs left, and which differ (reads)
steps      what the optimizer steps of a resumed attempt began with, and what was lost (pure)
observe    notes these steps inside of the program; needs no Holdfast there
"""
