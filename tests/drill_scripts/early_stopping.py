"""The counter that ends the training early is a local."""

from line import DATA, FIX, Line

from holdfast import Run


def main():
    model, bad, best = Line(), 0, 0.0
    with Run("runs/x", {"model": model}, vars={"bad": 0, "best": 0.0} if FIX else {}) as run:
        for _ in run.epochs(20):
            for x in run.batches(DATA):
                run.log(loss=model.step(x))
            accuracy = 1 / (1 + (run.epoch - 1) ** 2)
            if FIX:
                run.vars.bad = 0 if accuracy > run.vars.best else run.vars.bad + 1
                run.vars.best = max(accuracy, run.vars.best)
                bad = run.vars.bad
            else:
                bad = 0 if accuracy > best else bad + 1
                best = max(accuracy, best)
            if bad >= 3:
                break


main()
