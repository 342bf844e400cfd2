"""SciPy's differential evolution, generation by generation: the solver behind `differential_evolution`."""

import numpy as np
from scipy.optimize import rosen
from scipy.optimize._differentialevolution import DifferentialEvolutionSolver

from holdfast import Every, Fields, Last, Run

rng = np.random.default_rng(3)
solver = DifferentialEvolutionSolver(rosen, [(-2, 2)] * 4, rng=rng, popsize=8)
next(solver)  # the costs of the first population exist from here on
names = ("population", "population_energies", "_random_population_index", "scale", "_nfev")
state = {"solver": Fields(solver, *names), "rng": rng}
with Run("runs/evolution", state, keep=Last(3), every=Every(steps=5)) as run:
    for _ in run.steps(60):
        _, best = next(solver)
        run.log(best=float(best))
print("best", solver.x)
