"""LoRA on a model of 200 MB made here, whose base is frozen; the run's directory keeps every checkpoint."""

import hashlib
import json
import warnings
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

from holdfast import Every
from holdfast.transformers import Holdfast
from struck import event

warnings.filterwarnings("ignore")
torch.set_num_threads(1)


class Text(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        ids = torch.arange(8) * 7 + index
        return {"input_ids": ids, "labels": ids}


class Watch(TrainerCallback):
    def on_step_end(self, *_, **__):
        event("step")


torch.manual_seed(0)
sizes = {"hidden_size": 512, "intermediate_size": 512, "num_hidden_layers": 1, "num_attention_heads": 4}
base = LlamaForCausalLM(LlamaConfig(vocab_size=100_000, **sizes, tie_word_embeddings=True))
assert sum(each.nbytes for each in base.parameters()) >= 200e6
model = get_peft_model(base, LoraConfig(r=4, lora_dropout=0.1, target_modules=["q_proj", "v_proj"]))
args = TrainingArguments(
    output_dir="out",
    max_steps=6,
    per_device_train_batch_size=2,
    learning_rate=0.01,
    logging_steps=2,
    save_strategy="no",
    report_to="none",
    disable_tqdm=True,
    use_cpu=True,
)
callback = Holdfast("run", every=Every(steps=1), keep=Every(steps=1))
trainer = Trainer(model, args, train_dataset=Text(), callbacks=[Watch(), callback])
output = trainer.train()
trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
result = {
    "weights": hashlib.sha256(b"".join(each.detach().numpy().tobytes() for each in trained.values())).hexdigest(),
    "output": [output.global_step, output.training_loss],
    "history": [[entry.get("loss"), entry["step"]] for entry in trainer.state.log_history],
}
Path("result.json").write_text(json.dumps(result))
