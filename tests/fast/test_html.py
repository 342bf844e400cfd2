"""What a notebook shows of a run's checkpoints."""

import numpy as np

from holdfast import Store


def test_a_store_is_shown_as_a_table_that_escapes_and_bears_a_damaged_checkpoint(tmp_path):
    """Each checkpoint is a row; what its names hold is text and no markup; one that is damaged says so."""
    store = Store(tmp_path / "<b>")
    for step in (1, 2):
        store.save({"x": np.zeros(3)}, step=step, metrics={"<i>": 0.5})
    (store.latest().path / "manifest.json").write_text("{}")
    shown = store._repr_html_()
    assert shown.count("<tr>") == 3
    assert "&lt;i&gt;=0.5" in shown
    assert "<b>" not in shown
    assert "<i>" not in shown
    assert "manifest.json" in shown
    assert "<td>step-000000001</td>" in store[1]._repr_html_()
