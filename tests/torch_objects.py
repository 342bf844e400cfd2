"""Every kind of torch object that a run may hold, one step of training, and the bits of all of it."""

import warnings
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import lr_scheduler, swa_utils

from holdfast.torch import live
from kept import bits


def state_bits(*targets):
    return [bits(live.capture(target)) for target in targets]


# Modules


def net(width=8):
    return nn.Sequential(nn.Linear(6, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 3))


def seeded_net(seed, dtype=torch.float32):
    torch.manual_seed(seed)
    return net().to(dtype)


def conv_net():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 4 * 4, 2))
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 5)
        self.head = nn.Linear(5, 11, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("mask", torch.arange(4), persistent=False)

    def forward(self, x):
        return self.head(self.embed(x))


class Counting(nn.Linear):
    """Extra state, the way the documentation shows it; its output depends on it."""

    seen = 0

    def forward(self, x):
        self.seen += 1
        return super().forward(x) / self.seen

    def get_extra_state(self):
        return {"seen": self.seen, "history": torch.arange(self.seen)}

    def set_extra_state(self, state):
        self.seen = state["seen"]
        self.history = state["history"]


class Renaming(nn.Linear):
    """Stores its weight transposed and under another name, and wants to know the version."""

    _version = 7
    loaded_version = None

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        destination[prefix + "transposed"] = self.weight.detach().T.contiguous()
        destination[prefix + "bias"] = self.bias.detach()

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, *rest):
        self.loaded_version = local_metadata["version"]
        state_dict[prefix + "weight"] = state_dict.pop(prefix + "transposed").T
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)


def hooked():
    """Its first layer saves its weight under another name, by torch's own hooks."""
    model = net()

    def renamed(module, state, prefix, metadata):
        state[prefix + "WEIGHT"] = state.pop(prefix + "weight")

    def back(module, state, prefix, *rest):
        state[prefix + "weight"] = state.pop(prefix + "WEIGHT")

    model[0].register_state_dict_post_hook(renamed)
    model[0].register_load_state_dict_pre_hook(back)
    return model


def parametrized(wrap):
    model = net()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrap(model[0])
    return model


def counting():
    model: Any = nn.Sequential(Counting(6, 3), nn.Linear(3, 3))
    model[0].seen = int(torch.randint(1, 9, ()))
    return model


def with_buffer(buffer):
    model = net()
    model.register_buffer("extra", buffer)
    return model


def in_inference():
    with torch.inference_mode():
        return net()


MODULES = {
    "plain": net,
    "channels_last": conv_net,
    "bfloat16": lambda: net().to(torch.bfloat16),
    "float8 buffer": lambda: with_buffer(torch.randn(7).to(torch.float8_e4m3fn)),
    "complex buffer": lambda: with_buffer(torch.randn(3, 4, dtype=torch.complex128)),
    "transposed buffer": lambda: with_buffer(torch.randn(3, 4).T),
    "conjugated buffer": lambda: with_buffer(torch.randn(3, 4, dtype=torch.complex64).conj()),
    "empty buffer": lambda: with_buffer(torch.empty(0, 4)),
    "tied": Tied,
    "lstm": lambda: nn.LSTM(4, 5, num_layers=2, bidirectional=True),
    "transformer": lambda: nn.TransformerEncoderLayer(8, 2, 16),
    "extra state": counting,
    "own methods": lambda: nn.Sequential(Renaming(6, 3), nn.Linear(3, 3)),
    "hooks": hooked,
    "weight_norm": lambda: parametrized(nn.utils.parametrizations.weight_norm),
    "spectral_norm": lambda: parametrized(nn.utils.parametrizations.spectral_norm),
    "orthogonal": lambda: parametrized(nn.utils.parametrizations.orthogonal),
    "old weight_norm": lambda: parametrized(nn.utils.weight_norm),
    "old spectral_norm": lambda: parametrized(nn.utils.spectral_norm),
    "averaged": lambda: swa_utils.AveragedModel(net()),
    "inference": in_inference,
}


def batch(model, generator=None):
    """What this model takes."""
    if isinstance(model, Tied | nn.Embedding):
        return torch.randint(9, (4,), generator=generator)
    first = next(model.parameters())
    shape = (2, 3, 6, 6) if first.dim() == 4 else (16, 6)
    return torch.randn(shape, generator=generator).to(first)


# Optimizers


class Fp32Moments(torch.optim.AdamW):
    """Keeps fp32 moments of bf16 parameters, as mixed-precision recipes do; overrides nothing about its state."""

    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                moment = state.setdefault("exp_avg", torch.zeros_like(parameter, dtype=torch.float32))
                state["step"] = state.get("step", torch.tensor(0.0)) + 1
                moment.lerp_(parameter.grad.float(), 0.1)
                with torch.no_grad():
                    parameter.sub_((group["lr"] * moment).to(parameter.dtype))
        return loss


def adam(**options):
    return partial(torch.optim.AdamW, lr=0.01, **options)


OPTIMIZERS = {
    "SGD": partial(torch.optim.SGD, lr=0.01),
    "SGD momentum": partial(torch.optim.SGD, lr=0.01, momentum=0.9, nesterov=True),
    "SGD fused": partial(torch.optim.SGD, lr=0.01, momentum=0.9, fused=True),
    "Adam": partial(torch.optim.Adam, amsgrad=True),
    "Adam tensor lr": lambda parameters: torch.optim.Adam(parameters, lr=torch.tensor(0.01), foreach=False),
    "AdamW": adam(),
    "AdamW foreach": adam(foreach=True, amsgrad=True),
    "AdamW fused": adam(fused=True),
    "Adamax": torch.optim.Adamax,
    "Adadelta": torch.optim.Adadelta,
    "Adafactor": torch.optim.Adafactor,
    "Adagrad": partial(torch.optim.Adagrad, initial_accumulator_value=0.1),
    "Adagrad fused": partial(torch.optim.Adagrad, fused=True),
    "ASGD": partial(torch.optim.ASGD, t0=1),
    "LBFGS": partial(torch.optim.LBFGS, max_iter=3, history_size=2),
    "LBFGS wolfe": partial(torch.optim.LBFGS, max_iter=3, line_search_fn="strong_wolfe"),
    "NAdam": partial(torch.optim.NAdam, foreach=True),
    "RAdam": torch.optim.RAdam,
    "RMSprop": partial(torch.optim.RMSprop, centered=True, momentum=0.9),
    "Rprop": torch.optim.Rprop,
}


def learn(model, optimizer, x):
    def closure():
        optimizer.zero_grad()
        loss = model(x).float().square().mean()
        loss.backward()
        return loss.item()

    optimizer.step(closure)


# Schedulers


class Warmup:
    """A callable object: torch stores its __dict__."""

    def __init__(self):
        self.calls = 0

    def __call__(self, epoch):
        self.calls += 1
        return 1 / (1 + self.calls)


class Remembering(lr_scheduler.LRScheduler):
    """Somebody's scheduler: holds a function, a list of functions and attributes that appear as it runs."""

    def __init__(self, optimizer):
        self.shape = lambda n: 1 / (n + 1)
        self.shapes = [self.shape, max]
        self.settings: dict[str, Any] = {"shape": self.shape, "seen": 0}
        super().__init__(optimizer)

    def get_lr(self):
        self.highest = max(getattr(self, "highest", 0), self.last_epoch)
        self.settings["seen"] += self.highest
        if self.last_epoch == 2:
            self.late = "first seen here"
        return [rate * self.settings["shape"](self.settings["seen"]) for rate in self.base_lrs]


def chained(optimizer):
    parts = [lr_scheduler.ConstantLR(optimizer), lr_scheduler.ExponentialLR(optimizer, 0.9)]
    return lr_scheduler.ChainedScheduler(parts)


def sequential(optimizer):
    parts = [lr_scheduler.LambdaLR(optimizer, lambda n: 0.1 * (n + 1)), lr_scheduler.CosineAnnealingLR(optimizer, 5)]
    return lr_scheduler.SequentialLR(optimizer, parts, [2])


def of_torch(name, *arguments, **options):
    return lambda optimizer: getattr(lr_scheduler, name)(optimizer, *arguments, **options)


SCHEDULERS = {
    "LambdaLR": of_torch("LambdaLR", lambda n: 1 / (n + 1)),
    "LambdaLR object": lambda optimizer: lr_scheduler.LambdaLR(optimizer, Warmup()),
    "LambdaLR partial": of_torch("LambdaLR", partial(pow, 0.5)),
    "MultiplicativeLR": of_torch("MultiplicativeLR", lambda n: 0.9),
    "StepLR": of_torch("StepLR", 2, 0.5),
    "MultiStepLR": of_torch("MultiStepLR", [1, 4, 4], 0.5),
    "ConstantLR": of_torch("ConstantLR", 0.5, 4),
    "LinearLR": of_torch("LinearLR", 0.2, total_iters=4),
    "ExponentialLR": of_torch("ExponentialLR", 0.7),
    "SequentialLR": sequential,
    "PolynomialLR": of_torch("PolynomialLR", 5, 2.0),
    "CosineAnnealingLR": of_torch("CosineAnnealingLR", 5),
    "ChainedScheduler": chained,
    "ReduceLROnPlateau": of_torch("ReduceLROnPlateau", patience=0, cooldown=1),
    "CyclicLR": of_torch("CyclicLR", 0.01, 0.1, 2, mode="exp_range", gamma=0.9),
    "CyclicLR own scale": of_torch("CyclicLR", 0.01, 0.1, 2, scale_fn=lambda x: 0.5),
    "CosineAnnealingWarmRestarts": of_torch("CosineAnnealingWarmRestarts", 2, 2),
    "OneCycleLR": of_torch("OneCycleLR", 0.1, total_steps=9),
    "SWALR": lambda optimizer: swa_utils.SWALR(optimizer, 0.01, anneal_epochs=4),
    "Remembering": Remembering,
}
