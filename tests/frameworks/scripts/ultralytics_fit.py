"""ultralytics_fit.py none|own|holdfast [name=value ...]: a small detector, and all that a kill must not change.

Mosaics, mixed images and sizes draw random numbers; groups of batches may span the ends of epochs. `own` goes on
from last.pt with resume=True.
"""

import json
import sys
from pathlib import Path

import cv2
import numpy as np
from ultralytics import YOLO

import struck
from holdfast import Every
from holdfast.ultralytics import Holdfast

mode, options = sys.argv[1], dict(word.split("=") for word in sys.argv[2:])
YAML = """
nc: 2
end2end: True
reg_max: 1
backbone: [[-1, 1, Conv, [8, 3, 2]], [-1, 1, Conv, [16, 3, 2]], [-1, 1, Conv, [16, 3, 2]]]
head: [[-1, 1, Conv, [16, 3, 2]], [[2, 3], 1, Detect, [nc]]]
"""


def drawn(part, count):
    """Noise with one to three rectangles of two colours."""
    dice = np.random.default_rng(count)
    for kind in ("images", "labels"):
        Path("data", kind, part).mkdir(parents=True)
    for number in range(count):
        image, lines = dice.integers(0, 60, (64, 64, 3), dtype=np.uint8), []
        for _ in range(dice.integers(1, 4)):
            colour, (x, y), (w, h) = int(dice.integers(2)), dice.uniform(0.25, 0.75, 2), dice.uniform(0.2, 0.4, 2)
            corners = [(int((x + s * w / 2) * 64), int((y + s * h / 2) * 64)) for s in (-1, 1)]
            cv2.rectangle(image, *corners, (255, 80, 0) if colour else (0, 160, 255), -1)
            lines.append(f"{colour} {x:.4f} {y:.4f} {w:.4f} {h:.4f}")
        cv2.imwrite(f"data/images/{part}/{number}.png", image)
        Path(f"data/labels/{part}/{number}.txt").write_text("\n".join(lines))


if not Path("data").exists():
    drawn("train", 40)
    drawn("val", 8)
    Path("data.yaml").write_text(f"path: {Path('data').resolve()}\ntrain: images/train\nval: images/val\nnames: [a, b]")
    Path("tiny.yaml").write_text(YAML)


def begun(trainer):
    trainer.args.workers = int(options.get("workers", 0))  # Ultralytics takes none on a CPU


def trained(trainer):
    with Path("batches").open("a") as log:
        print(trainer.epoch, float(trainer.loss), file=log)
    struck.event("batch")


last = Path("out/weights/last.pt")
resume = mode == "own" and last.exists()
model = YOLO(str(last) if resume else "tiny.yaml", task="detect")
model.add_callback("on_pretrain_routine_start", begun)
model.add_callback("on_train_batch_end", trained)
shape = {"imgsz": 64, "batch": 4, "nbs": int(options.get("nbs", 4)), "epochs": 3, "exist_ok": True}
place = {"data": "data.yaml", "project": str(Path.cwd()), "name": "out", "device": "cpu", "plots": False}
chance = {"mixup": 0.3, "multi_scale": 0.5, "close_mosaic": 1, "warmup_epochs": 1, "optimizer": "AdamW"}
walked = Holdfast("run", every=Every(steps=3), background=False) if mode == "holdfast" else None
model.train(trainer=walked, resume=resume, **shape, **place, **chance, verbose=False)

trainer = model.trainer
weights = {f"model.{name}": value for name, value in trainer.model.state_dict().items()}
weights |= {f"ema.{name}": value for name, value in trainer.ema.ema.state_dict().items()}
rows = [line.split(",") for line in trainer.csv.read_text().splitlines()]
best = YOLO(str(trainer.best)).model.state_dict()
result = {
    "weights": struck.digest({name: value.float().numpy() for name, value in weights.items()}),
    "best": struck.digest({name: value.float().numpy() for name, value in best.items()}),
    "log": [row[:1] + row[2:] for row in rows],  # without the seconds
}
Path("result.json").write_text(json.dumps(result))
