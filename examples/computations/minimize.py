"""SciPy's `minimize` in pieces: each step is a whole minimization of a few iterations, which begins where the last one
ended. Its estimate of the curvature begins anew with each piece, killed or not.
"""

import numpy as np
from scipy.optimize import minimize, rosen, rosen_der

from holdfast import Every, Last, Run

x = np.full(5, -1.2)
with Run("runs/minimize", {"x": x}, keep=Last(3), every=Every(steps=2)) as run:
    for _ in run.steps(30):
        found = minimize(rosen, x, jac=rosen_der, method="L-BFGS-B", options={"maxiter": 5})
        x[:] = found.x
        run.log(cost=float(found.fun))
print("best", x)
