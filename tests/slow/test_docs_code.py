"""The code in the documents runs as it stands."""

import re
import subprocess

from test_docs import DOCUMENTS, ROOT

import holdfast
from causes import TORCH

SETTING = """
import torch
from holdfast import Run
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
model = nn.Linear(4, 2)
optimizer = torch.optim.AdamW(model.parameters())
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
loader = DataLoader(TensorDataset(torch.randn(8, 4), torch.randint(0, 2, (8,))), batch_size=4, shuffle=True)
loss = torch.zeros(())
loss_fn = nn.functional.cross_entropy
train_state = {"w": torch.zeros(2).numpy()}
def train_step(state, batch): return {"w": state["w"] + 1}, 0.5
def evaluate(model): return 0.5
"""


def blocks(document):
    """The Python code of a document, block by block."""
    return re.findall(r"^```python\n(.*?)^```", document.read_text(), re.DOTALL | re.MULTILINE)


APART = """
import os, sys, warnings
warnings.simplefilter("error", SyntaxWarning)
for number, block in enumerate({blocks!r}):
    child = os.fork()
    if child == 0:
        os.mkdir(str(number))
        os.chdir(str(number))
        exec(block, globals())
        sys.exit(0)
    if os.waitpid(child, 0)[1] != 0:
        sys.exit(f"this did not run:\\n{{block}}")
"""


def test_code_in_the_documents_runs(tmp_path, zygotes):
    """Each block, and the example in the package's own docstring, runs as it stands, given the model and the loader
    that a reader has; each in a directory and a process of its own, which has these already.
    """
    example = "\n".join(line[4:] for line in holdfast.__doc__.splitlines() if line.startswith("    "))
    # drilled as whole scripts by tests/slow/test_loops.py and tests/slow/test_adapters_page.py
    scripts = {ROOT / "docs/loops.md", ROOT / "docs/questions.md", ROOT / "docs/adapters.md"}
    for block in blocks(ROOT / "docs/questions.md"):  # most need a library that is not installed here
        compile(block, "docs/questions.md", "exec")
    # theirs are not installed here; tests/frameworks has the same lines in its scripts
    scripts |= {
        ROOT / f"docs/{name}.md" for name in ("accelerate", "keras", "lightning", "stable-baselines3", "transformers")
    }
    written = [block for document in DOCUMENTS if document not in scripts for block in blocks(document)]
    assert len(written) > 1
    assert "with Run(" in example
    script = tmp_path / "all.py"
    script.write_text(SETTING + APART.format(blocks=[*written, example]))
    words = [*zygotes(*TORCH), str(script)]
    done = subprocess.run(words, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr


def test_what_is_missing_in_a_checkpoint_by_hand_is_as_the_page_says(tmp_path, zygotes):
    """docs/why.md: only the last of its five checkpoints resumes exactly."""
    page = (ROOT / "docs/why.md").read_text()
    [(program, printed)] = re.findall(
        r"^```python program\n(.*?)^```\n\n```text\n(.*?)^```", page, re.DOTALL | re.MULTILINE
    )
    (tmp_path / "train.py").write_text(program)
    words = [*zygotes(*TORCH), "train.py"]
    run = subprocess.run(words, check=True, cwd=tmp_path, capture_output=True, text=True)
    assert printed == run.stdout
