"""scikit-learn's MLPRegressor by `partial_fit`: name what it learns, its optimizer and its generator."""

from sklearn.datasets import make_regression
from sklearn.neural_network import MLPRegressor

from holdfast import Every, Fields, Last, Run

inputs, targets = make_regression(200, 8, random_state=0)
model = MLPRegressor(hidden_layer_sizes=(16,), random_state=0).partial_fit(inputs, targets)
learned = ("coefs_", "intercepts_", "t_", "n_iter_", "loss_", "loss_curve_", "best_loss_")
state = {
    "model": Fields(model, *learned),
    "adam": Fields(model._optimizer, "ms", "vs", "t", "learning_rate"),  # noqa: SLF001  it has no public name
    "random": model._random_state,  # noqa: SLF001
}
with Run("runs/mlp", state, keep=Last(3), every=Every(steps=3)) as run:
    for _ in run.steps(30):
        model.partial_fit(inputs, targets)
        run.log(loss=float(model.loss_))
print("score", model.score(inputs, targets))
