"""What docs/loops.md says of SciPy's engines of quasi-random points."""

import numpy as np
import pytest
from scipy.stats import qmc

from holdfast import Every, Fields, Last, Run
from toy import Cut

ENGINES = {
    "Sobol": (qmc.Sobol, ("num_generated", "_quasi")),
    "Halton": (qmc.Halton, ("num_generated",)),
    "LatinHypercube": (qmc.LatinHypercube, ("num_generated", "rng")),
    "PoissonDisk": (qmc.PoissonDisk, ("num_generated", "rng", "sample_pool", "sample_grid")),
}


def points(path, name, *, cut=None):
    kind, fields = ENGINES[name]
    engine, seen = kind(d=2, rng=0), np.zeros((9, 2))
    with Run(path, {"engine": Fields(engine, *fields), "seen": seen}, every=Every(steps=1), keep=Last(99)) as run:
        for step in run.steps(9):
            if step == cut:
                raise Cut
            seen[step] = engine.random(2)[0]
    return seen.tolist()


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_goes_on_with_the_points_of_an_undisturbed_run(tmp_path, name):
    """Its named attributes are all that the next points depend on."""
    whole = points(tmp_path / "whole", name)
    with pytest.raises(Cut):
        points(tmp_path / "cut", name, cut=5)
    assert whole == points(tmp_path / "cut", name)
