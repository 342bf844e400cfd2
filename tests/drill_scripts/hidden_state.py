"""The hidden state of a recurrent model is a local of the function that trains."""

import numpy as np
from line import DATA, FIX, Line

from holdfast import Run


def train(model):
    hidden = np.zeros(3)
    first = {"hidden": hidden} if FIX else {}
    with Run("runs/x", {"model": model}, vars=first) as run:
        for _ in run.epochs(3):
            for x in run.batches(DATA):
                if FIX:
                    run.vars.hidden = np.tanh(run.vars.hidden * 0.9 + x)
                    hidden = run.vars.hidden
                else:
                    hidden = np.tanh(hidden * 0.9 + x)
                run.log(loss=model.step(x, noise=hidden.sum()))


train(Line())
