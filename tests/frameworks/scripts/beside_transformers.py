"""beside_transformers.py none|own|holdfast: dropout and noise; Trainer's own mechanism, or ours."""

import json
import sys
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments, set_seed

import struck

mode = sys.argv[1]
set_seed(7)


class Noisy(torch.utils.data.Dataset):
    rows = torch.randint(1, 40, (84, 8))

    def __len__(self):
        return 84

    def __getitem__(self, place):
        row = self.rows[place].clone()
        row[torch.randint(8, ())] = 0  # a token is dropped
        return {"input_ids": row, "labels": row}


class Count(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        with Path("batches").open("a") as trained:
            print(state.global_step, file=trained)
        struck.event("batch")


shape = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 16, "max_position_embeddings": 8}
config = LlamaConfig(**shape, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, attention_dropout=0.2)
callbacks = [Count()]
if mode == "holdfast":
    from holdfast import Every
    from holdfast.transformers import Holdfast

    callbacks.append(Holdfast("run", every=Every(steps=3), background=False))
arguments = TrainingArguments(
    output_dir="out",
    per_device_train_batch_size=12,
    num_train_epochs=3,
    logging_steps=5,
    save_strategy="steps" if mode == "own" else "no",
    save_steps=3,
    report_to=[],
    disable_tqdm=True,
    use_cpu=True,
    dataloader_pin_memory=False,
)
model = LlamaForCausalLM(config)
trainer = Trainer(model, arguments, train_dataset=Noisy(), callbacks=callbacks)
trainer.train(resume_from_checkpoint=bool(list(Path().glob("out/checkpoint-*"))) if mode == "own" else None)
weights = {name: value.numpy() for name, value in model.state_dict().items()}
log = [
    {k: v for k, v in row.items() if "runtime" not in k and "per_second" not in k} for row in trainer.state.log_history
]
Path("result.json").write_text(json.dumps({"weights": struck.digest(weights), "log": log}))
