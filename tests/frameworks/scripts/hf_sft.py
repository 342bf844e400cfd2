"""TRL's SFTTrainer, which sums its own metrics between two logs."""

import hashlib
import json
import warnings
from pathlib import Path

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from trl import SFTConfig, SFTTrainer

from holdfast import Every
from holdfast.transformers import Holdfast
from struck import event

warnings.filterwarnings("ignore")
torch.set_num_threads(1)
TIMES = ("time", "per_second")


class Watch(TrainerCallback):
    def on_step_end(self, *_, **__):
        event("step")

    def on_prediction_step(self, *_, **__):
        event("validation")


def untimed(entry):
    return {name: "a number" if any(word in name for word in TIMES) else value for name, value in entry.items()}


words = [f"word{number}" for number in range(20)]
known = {word: number for number, word in enumerate(["<pad>", "<eos>", *words])}
raw = Tokenizer(models.WordLevel(known, unk_token="<pad>"))
raw.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>", eos_token="<eos>")
texts = [" ".join(words[(start * step) % 20] for step in range(3 + start % 5)) for start in range(16)]
torch.manual_seed(0)
sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
model = LlamaForCausalLM(LlamaConfig(vocab_size=len(known), **sizes, attention_dropout=0.1))
args = SFTConfig(
    output_dir="out",
    num_train_epochs=2,
    per_device_train_batch_size=2,
    gradient_accumulation_steps=2,
    learning_rate=0.01,
    logging_steps=3,
    eval_strategy="epoch",
    save_strategy="no",
    report_to="none",
    disable_tqdm=True,
    use_cpu=True,
    bf16=False,
)
trainer = SFTTrainer(
    model,
    args,
    train_dataset=Dataset.from_dict({"text": texts}),
    eval_dataset=Dataset.from_dict({"text": texts[:4]}),
    processing_class=tokenizer,
    callbacks=[Watch(), Holdfast("run", every=Every(steps=2))],
)
output = trainer.train()
result = {
    "weights": hashlib.sha256(b"".join(each.detach().numpy().tobytes() for each in model.parameters())).hexdigest(),
    "history": [untimed(entry) for entry in trainer.state.log_history],
    "output": [output.global_step, output.training_loss, untimed(output.metrics)],
}
Path("result.json").write_text(json.dumps(result, indent=1))
