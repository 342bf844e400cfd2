"""Fix: adds to a user's script what its drills find missing. Wants libcst, the extra `fix`.

source     a script as a syntax tree that keeps its formatting (pure)
changes    each listed addition (pure); loops: those to its loops (pure)
begin      a script's first Run (pure)
repair     copies, drills, adds, proves, writes (acts)
"""
