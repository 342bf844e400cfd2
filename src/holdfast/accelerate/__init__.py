"""Hugging Face accelerate without a Trainer: its prepared loaders in `run.batches`, its Accelerator
in the state.

    with Run("runs/x", dict(accelerator=accelerator)) as run:
        for epoch in run.epochs(3):
            for batch in run.batches(train_loader):
                with accelerator.accumulate(model):
                    ...

loader        walks a prepared loader by accelerate's own iteration, over batches that can begin
              anywhere
accelerator   what an Accelerator is made of, for the state
live          prepared optimizers and schedulers: those inside them
"""
