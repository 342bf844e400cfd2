"""To MLflow: sends rows by MLflow's client."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from .cursor import NOTHING, Cursor
from .ledger import Row
from .options import MLflow

BATCH_METRICS, BATCH_PARAMS, LONGEST_PARAM = 1000, 100, 500  # that every server takes in a call
KEY = "holdfast.run"  # the tag by which a run is found again


class MLflowRun:
    """The run of one cursor at MLflow."""

    def __init__(self, options: MLflow, params: Mapping[str, Any]) -> None:
        from mlflow import MlflowClient

        self._client = MlflowClient(tracking_uri=options.tracking_uri)
        self._options, self._params = options, params

    def begin(self, cursor: Cursor) -> int | None:
        name, client = self._options.experiment, self._client
        there = client.get_experiment_by_name(name)
        experiment = client.create_experiment(name) if there is None else there.experiment_id
        runs = client.search_runs([experiment], f"tags.`{KEY}` = '{cursor.key}'")
        tags = {KEY: cursor.key} | ({"mlflow.note.content": cursor.note} if cursor.note else {})
        run = runs[0] if runs else client.create_run(experiment, run_name=cursor.title, tags=tags)
        self._id = run.info.run_id
        client.update_run(self._id, status="RUNNING")
        self._log_params(run.data.params)
        self._held = {
            metric: max(
                (point.step for point in client.get_metric_history(self._id, metric)),
                default=NOTHING,
            )
            for metric in run.data.metrics
        }
        return max(self._held.values(), default=NOTHING)

    def send(self, rows: Sequence[Row]) -> None:
        from mlflow.entities import Metric

        metrics = [
            Metric(key, value, int(row.time_s * 1000), row.step)
            for row in rows
            for name, value in row.values.items()
            if row.step > self._held.get(key := _legal(name), NOTHING)
        ]
        for first in range(0, len(metrics), BATCH_METRICS):
            self._client.log_batch(self._id, metrics=metrics[first : first + BATCH_METRICS])

    def end(self, *, finished: bool) -> None:
        if finished:
            self._client.set_terminated(self._id, "FINISHED")

    def _log_params(self, there: Mapping[str, str]) -> None:
        """Log the hyperparameters that are not there: MLflow never changes one."""
        from mlflow.entities import Param

        params = [
            Param(_legal(name), str(value)[:LONGEST_PARAM])
            for name, value in self._params.items()
            if _legal(name) not in there
        ]
        for first in range(0, len(params), BATCH_PARAMS):
            self._client.log_batch(self._id, params=params[first : first + BATCH_PARAMS])


def _legal(name: str) -> str:
    """Return a name that MLflow takes."""
    return re.sub(r"[^\w\-. :/]", "_", name)[:250]
