"""accelerate's examples/complete_nlp_example.py with the lines of Holdfast; its model and its data are made here.

Gone are --resume_from_checkpoint, --checkpointing_steps, load_state, skip_first_batches and overall_step. The words are
those of the original where a comment does not say otherwise. "accumulate" as in by_feature/gradient_accumulation.py.

    accelerate_nlp.py [manual|accumulate]
"""

import hashlib
import json
import os
import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader

import struck
from holdfast import Best, Every, Last, Run

MAX_GPU_BATCH_SIZE = 4  # 16 in the original
EVAL_BATCH_SIZE = 8
ACCUMULATES = "accumulate" in sys.argv


def sentences(count, seed):
    """Pairs of sentences of unequal lengths; the label says whether they share many words."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        length = int(torch.randint(4, 12, (), generator=generator))
        words = torch.randint(5, 40, (length,), generator=generator)
        yield {"input_ids": words.tolist(), "labels": int(words.unique().numel() < length - 1)}


def collate_fn(examples):
    longest = max(len(each["input_ids"]) for each in examples)
    rows = [each["input_ids"] + [0] * (longest - len(each["input_ids"])) for each in examples]
    ids = torch.tensor(rows)
    labels = torch.tensor([each["labels"] for each in examples])
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": labels}


class Classifier(nn.Module):
    """In the place of BERT."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(40, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 24, dropout=0.1, batch_first=True)
        self.head = nn.Linear(16, 2)

    def forward(self, input_ids, attention_mask, labels):
        hidden = self.layer(self.words(input_ids), src_key_padding_mask=attention_mask == 0)
        logits = self.head(hidden[:, 0])
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def training_function(config):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=3 if ACCUMULATES else 1)
    lr, num_epochs, seed, batch_size = config["lr"], config["num_epochs"], config["seed"], config["batch_size"]

    # If the batch size is too big we use gradient accumulation
    gradient_accumulation_steps = 1
    if batch_size > MAX_GPU_BATCH_SIZE:
        gradient_accumulation_steps = batch_size // MAX_GPU_BATCH_SIZE
        batch_size = MAX_GPU_BATCH_SIZE

    train_dataloader = DataLoader(list(sentences(42, 1)), shuffle=True, collate_fn=collate_fn, batch_size=batch_size)
    eval_dataloader = DataLoader(
        list(sentences(21, 2)), shuffle=False, collate_fn=collate_fn, batch_size=EVAL_BATCH_SIZE
    )
    set_seed(seed)
    model = Classifier()
    model = model.to(accelerator.device)
    optimizer = AdamW(params=model.parameters(), lr=lr)
    total = (len(train_dataloader) * num_epochs) // gradient_accumulation_steps
    lr_scheduler = LambdaLR(optimizer, lambda step: min(step / 10, max(0, total - step) / max(1, total - 10)))
    model, optimizer, train_dataloader, eval_dataloader, lr_scheduler = accelerator.prepare(
        model, optimizer, train_dataloader, eval_dataloader, lr_scheduler
    )
    seen = []
    own = accelerator.process_index == int(os.environ.get("STRIKE_RANK", "0"))

    # Now we train the model: three lines of Holdfast, and two that log
    state = {"accelerator": accelerator, "seen": seen}
    with Run("run", state, keep=Last(2) | Best("f1", max), every=Every(steps=2)) as run:
        for epoch in run.epochs(num_epochs):
            model.train()
            for step, batch in run.enumerate(train_dataloader):
                if own:
                    struck.event("batch")
                seen.append([epoch, step, batch["input_ids"].sum().item()])
                if ACCUMULATES:
                    with accelerator.accumulate(model):
                        loss = model(**batch)["loss"]
                        accelerator.backward(loss)
                        optimizer.step()
                        lr_scheduler.step()
                        optimizer.zero_grad()
                else:
                    loss = model(**batch)["loss"]
                    loss = loss / gradient_accumulation_steps
                    accelerator.backward(loss)
                    if step % gradient_accumulation_steps == 0:
                        optimizer.step()
                        lr_scheduler.step()
                        optimizer.zero_grad()
                run.log(train_loss=loss.item())
            if own:
                struck.event("validation")
            model.eval()
            answers = []
            for batch in eval_dataloader:
                with torch.no_grad():
                    outputs = model(**batch)
                predictions = outputs["logits"].argmax(dim=-1)
                predictions, references = accelerator.gather_for_metrics((predictions, batch["labels"]))
                answers += zip(predictions.tolist(), references.tolist(), strict=True)
            accuracy = sum(one == other for one, other in answers) / len(answers)
            hits = sum(one == other == 1 for one, other in answers)
            f1 = 2 * hits / max(1, sum(one + other for one, other in answers))
            accelerator.print(f"epoch {epoch}:", {"accuracy": accuracy, "f1": f1}, len(answers))
            run.log(accuracy=accuracy, f1=f1)
    accelerator.end_training()

    digest = hashlib.sha256()
    moments = [value for each in optimizer.state_dict()["state"].values() for value in each.values()]
    for tensor in (*accelerator.unwrap_model(model).state_dict().values(), *moments):
        digest.update(tensor.numpy().tobytes())
    lines = [[line["step"], line["epoch"], line["values"]] for line in run.metrics()]
    rate = lr_scheduler.get_last_lr()
    return {"weights": digest.hexdigest(), "seen": seen, "rate": rate, "lines": lines}, accelerator.process_index


result, process = training_function({"lr": 1e-3, "num_epochs": 3, "seed": 42, "batch_size": 12})
Path(f"result-{process}.json" if process else "result.json").write_text(json.dumps(result, indent=1))
