"""Train a small vision transformer on scikit-learn's handwritten digits with Hugging Face's Trainer.

    python examples/transformers/train.py
    holdfast drill -- python examples/transformers/train.py      # proves that it resumes bit for bit

Only the two lines marked with (*) are Holdfast's.
"""

import random

import torch
from sklearn.datasets import load_digits
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

from holdfast.transformers import Holdfast  # (*)

TRAIN = 1437


class Digits(Dataset):
    """8 x 8 images; those to learn from are moved about and made noisy at random."""

    def __init__(self, images, labels, *, moved):
        self.images, self.labels, self.moved = images, labels, moved

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image = self.images[index]
        if self.moved:
            image = torch.roll(image, (random.randint(-1, 1), random.randint(-1, 1)), dims=(1, 2))
            image = image + 0.1 * torch.randn_like(image)
        return {"pixel_values": image, "labels": self.labels[index]}


def accuracy(predicted):
    return {"accuracy": float((predicted.predictions.argmax(1) == predicted.label_ids).mean())}


def main():
    torch.set_num_threads(1)  # as many as you like, but always as many
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    torch.manual_seed(0)
    shape = {"image_size": 8, "patch_size": 2, "num_channels": 1, "num_labels": 10}
    layers = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    model = ViTForImageClassification(ViTConfig(**shape, **layers, hidden_dropout_prob=0.1))
    args = TrainingArguments(
        output_dir="out/transformers",
        num_train_epochs=4,
        per_device_train_batch_size=16,
        gradient_accumulation_steps=2,
        learning_rate=4e-3,
        logging_steps=15,
        eval_strategy="epoch",
        save_strategy="no",  # Holdfast saves
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(
        model,
        args,
        train_dataset=Digits(images[:TRAIN], labels[:TRAIN], moved=True),
        eval_dataset=Digits(images[TRAIN:], labels[TRAIN:], moved=False),
        compute_metrics=accuracy,
        callbacks=[Holdfast("runs/transformers")],  # (*)
    )
    trainer.train()


if __name__ == "__main__":
    main()
