"""joblib.dump into one file, as scikit-learn's page on persistence has it."""

import joblib

NAME = "joblib"
VERSION = joblib.__version__
PRACTICE = "one file, written over at each save"
LINK = "https://scikit-learn.org/stable/model_persistence.html"
PROMISES = {}
FILE = "model.joblib"


def train(folder, first, last, state_of, saved):
    for step in range(first, last + 1):
        joblib.dump({"step": step, "state": state_of(step)}, folder / FILE)
        saved(step)


def resume(folder, like):
    if not (folder / FILE).exists():
        return None
    kept = joblib.load(folder / FILE)
    return kept["step"], kept["state"]
