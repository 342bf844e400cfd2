"""Training scripts, each in one function: RIGHT ones, of which a resume loses nothing, and FORGETFUL ones.

Each gets the run's directory. A forgetful one is listed with the kind of the word that it must get, and the name in it.
"""

import copy
import math
import random
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    ExponentialLR,
    LambdaLR,
    ReduceLROnPlateau,
    SequentialLR,
)
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

from holdfast import Every, Fields, Run

STEPS = 40  # more than the last look


def net(width=4):
    return nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width), nn.Tanh(), nn.Linear(width, 1))


def adam(*modules):
    return torch.optim.Adam([each for module in modules for each in module.parameters()], 0.01)


def loss_of(model, generator=None):
    return model(torch.randn(6, 3, generator=generator)).square().mean()


def learn(model, optimizer):
    optimizer.zero_grad()
    loss = loss_of(model)
    loss.backward()
    optimizer.step()
    return loss


def entered(path, state, **options):
    return Run(path, state, every=Every(steps=10), **options)


def loader(count=12, **options):
    return DataLoader(TensorDataset(torch.arange(3.0 * count).view(count, 3)), batch_size=4, **options)


# Right ------------------------------------------------------------------------------------------------------------


def plain(path):
    model = net()
    optimizer = adam(model)
    scheduler = ExponentialLR(optimizer, 0.9)
    with entered(path, {"model": model, "optimizer": optimizer, "scheduler": scheduler}) as run:
        for _ in run.steps(STEPS):
            learn(model, optimizer)
            scheduler.step()


def maml(path):
    """An inner optimizer of a copy, made anew in each step."""
    model = net()
    optimizer = adam(model)
    with entered(path, {"model": model, "optimizer": optimizer}) as run:
        for _ in run.steps(STEPS):
            fast = copy.deepcopy(model)
            inner = torch.optim.SGD(fast.parameters(), 0.1, momentum=0.9)
            for _ in range(3):
                learn(fast, inner)
            optimizer.zero_grad()
            for one, other in zip(model.parameters(), fast.parameters(), strict=True):
                one.grad = one.detach() - other.detach()
            optimizer.step()


def reptile(path):
    """An inner optimizer of the tracked parameters themselves, made anew in each step; its name outlives the step."""
    model = net()
    with entered(path, {"model": model}) as run:
        for _ in run.steps(STEPS):
            inner = adam(model)
            for _ in range(3):
                learn(model, inner)


def lbfgs_inside(path):
    """Something is fitted inside of a step, from its beginning."""
    model = net()
    optimizer = adam(model)
    with entered(path, {"model": model, "optimizer": optimizer}) as run:
        for _ in run.steps(STEPS):
            scale = torch.ones(1, requires_grad=True)
            fit = torch.optim.LBFGS([scale], max_iter=3)
            target = loss_of(model).detach()

            def closure(scale=scale, fit=fit, target=target):
                fit.zero_grad()
                loss = (scale - target).square().sum()
                loss.backward()
                return loss

            fit.step(closure)
            optimizer.zero_grad()
            (loss_of(model) * scale.detach()).sum().backward()
            optimizer.step()


def gan(path):
    generator, critic = nn.Linear(3, 3), net()
    of_generator, of_critic = adam(generator), adam(critic)
    state = {"generator": generator, "critic": critic, "of_generator": of_generator, "of_critic": of_critic}
    with entered(path, state) as run:
        for step in run.steps(STEPS):
            of_critic.zero_grad()
            (critic(torch.randn(4, 3)) - critic(generator(torch.randn(4, 3)).detach())).mean().backward()
            of_critic.step()
            if step % 3 == 0:
                of_generator.zero_grad()
                critic(generator(torch.randn(4, 3))).mean().backward()
                of_generator.step()


def teacher(path):
    """It is frozen, and stays in training mode: its batch norm counts."""
    model, master = net(), net().requires_grad_(False)
    optimizer = adam(model)
    with entered(path, {"model": model, "optimizer": optimizer}) as run:
        for _ in run.steps(STEPS):
            x = torch.randn(6, 3)
            optimizer.zero_grad()
            (model(x) - master(x)).square().mean().backward()
            optimizer.step()


def compiled(path):
    model = nn.Linear(3, 1)
    optimizer = adam(model)
    quick = torch.compile(model, backend="eager")

    @torch.compile(backend="eager")
    def step_of(optimizer=optimizer):
        optimizer.step()

    with entered(path, {"model": model, "optimizer": optimizer}) as run:
        for _ in run.steps(STEPS):
            optimizer.zero_grad()
            loss_of(quick).backward()
            step_of()


def two_runs(path):
    """Two runs in one process, in turn. The second one's model learns from the first one's, which is at rest."""
    one, two = net(), net()
    of_one, of_two = adam(one), adam(two)
    with entered(path, {"one": one, "of_one": of_one}) as run:
        for _ in run.steps(STEPS):
            learn(one, of_one)
    with entered(path / "two", {"two": two, "of_two": of_two}) as run:
        for _ in run.steps(STEPS):
            learn(two, of_two)


class Trainer:
    """Saves what it holds by itself."""

    def __init__(self):
        self.model = net()
        self.optimizer = adam(self.model)
        self.ema = AveragedModel(self.model)
        self.scheduler = ExponentialLR(self.optimizer, 0.9)
        self.parts = (self.model, self.optimizer, self.ema, self.scheduler)

    def state_dict(self):
        return copy.deepcopy([each.state_dict() for each in self.parts])

    def load_state_dict(self, state):
        for each, its in zip(self.parts, state, strict=True):
            each.load_state_dict(its)


def inside_a_tracked_object(path):
    trainer = Trainer()
    model, optimizer, ema = trainer.model, trainer.optimizer, trainer.ema
    with entered(path, {"trainer": trainer}) as run:
        for _ in run.steps(STEPS):
            learn(model, optimizer)
            ema.update_parameters(model)
            trainer.scheduler.step()


def lists_and_dicts(path):
    models = [net(), net()]
    optimizers = {"first": adam(models[0]), "second": adam(models[1])}
    schedulers = [ExponentialLR(each, 0.9) for each in optimizers.values()]
    with entered(path, {"models": models, "optimizers": optimizers, "schedulers": schedulers}) as run:
        for _ in run.steps(STEPS):
            for model, optimizer in zip(models, optimizers.values(), strict=True):
                learn(model, optimizer)
            for scheduler in schedulers:
                scheduler.step()


def fields_of_an_agent(path):
    agent = Trainer()
    fields = Fields(agent, "model", "optimizer", "ema", "scheduler")
    with entered(path, {"agent": fields}) as run:
        for _ in run.steps(STEPS):
            learn(agent.model, agent.optimizer)
            agent.ema.update_parameters(agent.model)
            agent.scheduler.step()


def stateless_sgd(path):
    """It keeps nothing: without momentum, at one rate, a new one does the same."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with entered(path, {"model": model}) as run:
        for _ in run.steps(STEPS):
            learn(model, optimizer)


def foreach_and_fused(path):
    one, two = net(), net()
    of_one = torch.optim.AdamW(one.parameters(), 0.01, foreach=True)
    of_two = torch.optim.AdamW(two.parameters(), 0.01, fused=True)
    with entered(path, {"one": one, "two": two, "of_one": of_one, "of_two": of_two}) as run:
        for _ in run.steps(STEPS):
            learn(one, of_one)
            learn(two, of_two)


def at_test_time(path):
    """Another model is adapted in each evaluation, from the same beginning, by an optimizer that lives on."""
    model, other = net(), net()
    optimizer, adapting, first = adam(model), adam(other), copy.deepcopy(other.state_dict())
    with entered(path, {"model": model, "optimizer": optimizer}) as run:
        for _ in run.steps(STEPS):
            learn(model, optimizer)
            other.load_state_dict(first)
            learn(other, adapting)


def optimizer_per_epoch(path):
    """Whole epochs are steps: the optimizer of each begins anew."""
    model = net()
    with entered(path, {"model": model}) as run:
        for _ in run.epochs(12):
            optimizer = adam(model)
            for _ in range(3):
                learn(model, optimizer)


def copied_in_each_epoch(path):
    """A snapshot of the model, by deepcopy, or into the same object."""
    model, shown = net(), net()
    optimizer = adam(model)
    with entered(path, {"model": model, "optimizer": optimizer}) as run:
        for _ in run.steps(STEPS):
            learn(model, optimizer)
            best = copy.deepcopy(model).eval()
            shown.load_state_dict(model.state_dict())
            shown.eval()(torch.randn(2, 3)), best(torch.randn(2, 3))


def weights_in_a_list(path):
    """Lists of the parameters, of their copies, and of gradients that each step makes anew."""
    model = net()
    optimizer = adam(model)
    parameters = list(model.parameters())
    copies = [each.detach().clone() for each in parameters]
    with entered(path, {"model": model, "optimizer": optimizer}) as run:
        for _ in run.steps(STEPS):
            learn(model, optimizer)
            for one, other in zip(copies, parameters, strict=True):
                one.copy_(other.detach())
            gradients = [each.grad.clone() for each in parameters if each.grad is not None]
            assert len(gradients) == len(copies)


def functional(path):
    model = nn.Linear(3, 1)
    parameters = {name: each.detach().clone() for name, each in model.named_parameters()}
    with entered(path, {"parameters": parameters}) as run:
        for _ in run.steps(STEPS):
            x = torch.randn(4, 3)

            def loss(values, x=x):
                return torch.func.functional_call(model, values, (x,)).square().mean()

            for name, each in torch.func.grad(loss)(parameters).items():
                parameters[name].sub_(0.01 * each)


def wrapped_in_ddp(path):
    """The wrapper trains, and the module is tracked."""
    alone = torch.distributed.is_initialized()
    if not alone:
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        model = net()
        parallel = DistributedDataParallel(model)
        optimizer = adam(parallel)
        with entered(path, {"model": model, "optimizer": optimizer}) as run:
            for _ in run.steps(STEPS):
                learn(parallel, optimizer)
    finally:
        torch.distributed.destroy_process_group()


class Mixed:
    """As apex wraps an optimizer: no subclass of torch's."""

    def __init__(self, optimizer):
        self.inner, self.scale = optimizer, 2.0**10

    def zero_grad(self):
        self.inner.zero_grad()

    def step(self):
        self.scale *= 1.001
        self.inner.step()

    def state_dict(self):
        return {"inner": self.inner.state_dict(), "scale": self.scale}

    def load_state_dict(self, state):
        self.scale = state["scale"]
        self.inner.load_state_dict(state["inner"])


def wrapped_as_apex_does(path):
    model = net()
    optimizer = Mixed(adam(model))
    with entered(path, {"model": model, "optimizer": optimizer}) as run:
        for _ in run.steps(STEPS):
            learn(model, optimizer)


def average_made_anew(path):
    """The mean of two tracked models, in a new module in each step."""
    one, two = net(), net()
    optimizer = adam(one, two)
    with entered(path, {"one": one, "two": two, "optimizer": optimizer}) as run:
        for _ in run.steps(STEPS):
            optimizer.zero_grad()
            (loss_of(one) + loss_of(two)).backward()
            optimizer.step()
            mean = AveragedModel(one)
            mean.update_parameters(one)
            mean.update_parameters(two)
            mean(torch.randn(4, 3))


def by_the_epochs_number(path):
    """A scheduler that is told where it is: `step(epoch + i / n)`."""
    model, data = net(), loader()
    optimizer = adam(model)
    scheduler = CosineAnnealingWarmRestarts(optimizer, 5)
    with entered(path, {"model": model, "optimizer": optimizer}) as run:
        for epoch in run.epochs(6):
            for i, (x,) in run.enumerate(data):
                optimizer.zero_grad()
                model(x).mean().backward()
                optimizer.step()
                scheduler.step(epoch + i / len(data))


def rate_by_formula(path):
    model = net()
    optimizer = adam(model)
    with entered(path, {"model": model, "optimizer": optimizer}) as run:
        for step in run.steps(STEPS):
            for group in optimizer.param_groups:
                group["lr"] = 0.01 * 0.5 * (1 + math.cos(step / STEPS))
            learn(model, optimizer)


def evaluation_generator(path):
    """Evaluations draw from one generator, from its seed each time, and the validation loader has one of its own."""
    model, drawn = net(), torch.Generator()
    optimizer = adam(model)
    dice = random.Random(0)
    valid = loader(shuffle=True, generator=torch.Generator().manual_seed(1))
    with entered(path, {"model": model, "optimizer": optimizer}) as run:
        for step in run.steps(STEPS):
            learn(model, optimizer)
            drawn.manual_seed(step)
            dice.seed(step)
            loss_of(model, drawn), dice.random()
            rng = np.random.default_rng(step)
            rng.normal()
            for (x,) in valid:
                model(x)


def loaders_generator(path):
    """The run itself knows where its loader's generator is."""
    model = net()
    optimizer = adam(model)
    drawn = torch.Generator().manual_seed(0)
    data = loader(24, shuffle=True, generator=drawn)
    with entered(path, {"model": model, "optimizer": optimizer}) as run:
        for _ in run.epochs(4):
            for (x,) in run.batches(data):
                optimizer.zero_grad()
                model(x).mean().backward()
                optimizer.step()


def validation_of_epochs(path, die=None):
    """Each epoch's validation draws from its seed on, and makes a probe's weights at its first use in the process."""
    model, data, drawn, probe = net(), loader(40), torch.Generator(), nn.LazyLinear(1)
    optimizer = adam(model)
    with entered(path, {"model": model, "optimizer": optimizer}) as run:
        for _ in run.epochs(4):
            for (x,) in run.batches(data):
                optimizer.zero_grad()
                model(x).mean().backward()
                optimizer.step()
                if run.step == die:
                    raise OSError
            drawn.manual_seed(5)
            for (x,) in loader(shuffle=True, generator=drawn):
                probe(x)


def partly_frozen(path):
    """A group holds what is not trained, and nobody tracks that."""
    backbone, head = nn.Linear(3, 3).requires_grad_(False), nn.Linear(3, 1)
    optimizer = adam(backbone, head)
    with entered(path, {"head": head, "optimizer": optimizer}) as run:
        for _ in run.steps(STEPS):
            optimizer.zero_grad()
            head(backbone(torch.randn(4, 3))).mean().backward()
            optimizer.step()


def ema_tracked(path):
    model = net()
    optimizer = adam(model)
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    with entered(path, {"model": model, "optimizer": optimizer, "ema": ema}) as run:
        for _ in run.steps(STEPS):
            learn(model, optimizer)
            ema.update_parameters(model)


def without_a_block(path):
    model = net()
    optimizer = adam(model)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    run = entered(path, {"model": model, "optimizer": optimizer}).start()
    for _ in run.steps(STEPS):
        optimizer.zero_grad()
        scaler.scale(loss_of(model)).backward()
        scaler.step(optimizer)
        scaler.update()


def another_programs_loop(path):
    """A trainer that walks the loop itself: its adapter knows what to save."""
    model, more = net(), net()
    optimizer = adam(model)
    scheduler = ExponentialLR(optimizer, 0.9)
    with entered(path, {"model": model, "more": more}) as run:
        loop = run.loop(steps=STEPS)
        while loop.goes_on:
            learn(model, optimizer)
            scheduler.step()
            loop.step_done()
        loop.leave()


def only_calls_of_safe_point(path):
    model = net()
    optimizer = adam(model)
    with entered(path, {"model": model, "optimizer": optimizer}) as run:
        while run.step < STEPS:
            learn(model, optimizer)
            run.safe_point()


def schedulers_inside(path):
    model = net()
    optimizer = adam(model)
    scheduler = ChainedScheduler([_sequence(optimizer), LambdaLR(optimizer, lambda step: 0.9**step)])
    with entered(path, {"model": model, "optimizer": optimizer, "scheduler": scheduler}) as run:
        for _ in run.steps(STEPS):
            learn(model, optimizer)
            scheduler.step()


RIGHT: list[Any] = [
    schedulers_inside,
    plain, maml, reptile, lbfgs_inside, gan, teacher, compiled, two_runs, inside_a_tracked_object, lists_and_dicts,
    fields_of_an_agent, stateless_sgd, foreach_and_fused, at_test_time, optimizer_per_epoch, copied_in_each_epoch,
    weights_in_a_list, validation_of_epochs,
    functional, wrapped_in_ddp, wrapped_as_apex_does, average_made_anew, by_the_epochs_number, rate_by_formula,
    evaluation_generator, loaders_generator, partly_frozen, ema_tracked, without_a_block, another_programs_loop,
    only_calls_of_safe_point,
]  # fmt: skip


# Forgetful --------------------------------------------------------------------------------------------------------


def optimizer_forgotten(path):
    model = net()
    optimizer = adam(model)
    with entered(path, {"model": model}) as run:
        for _ in run.steps(STEPS):
            learn(model, optimizer)


def second_optimizer_forgotten(path):
    """It steps in each eighth step only."""
    one, two = net(), net()
    of_one, of_two = adam(one), adam(two)
    with entered(path, {"one": one, "two": two, "of_one": of_one}) as run:
        for step in run.steps(STEPS):
            learn(one, of_one)
            if step % 8 == 0:
                learn(two, of_two)


def momentum_forgotten(path):
    agent = Trainer()
    agent.optimizer = torch.optim.SGD(agent.model.parameters(), 0.01, momentum=0.9)
    with entered(path, {"model": agent.model}) as run:
        for _ in run.steps(STEPS):
            learn(agent.model, agent.optimizer)


def made_in_each_epoch(path):
    """It is made anew in each epoch, and a resume inside of one begins without its moments."""
    model, data = net(), loader(40)
    with entered(path, {"model": model}) as run:
        for _ in run.epochs(3):
            optimizer = adam(model)
            for (x,) in run.batches(data):
                optimizer.zero_grad()
                model(x).mean().backward()
                optimizer.step()


def rate_of_stateless_sgd(path):
    """SGD keeps nothing, but its rate falls, and that is kept nowhere."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with entered(path, {"model": model}) as run:
        for _ in run.steps(STEPS):
            learn(model, optimizer)
            optimizer.param_groups[0]["lr"] *= 0.9


def under_a_scheduler(path):
    """The scheduler that is tracked refers to it, and saves nothing of it."""
    model = net()
    optimizer = adam(model)
    scheduler = ExponentialLR(optimizer, 0.9)
    with entered(path, {"model": model, "scheduler": scheduler}) as run:
        for _ in run.steps(STEPS):
            learn(model, optimizer)
            scheduler.step()


def _under(make):
    """The tracked scheduler is of a class with a state_dict() of its own, which saves nothing of the optimizer."""

    def script(path):
        model = net()
        optimizer = adam(model)
        scheduler = make(optimizer)
        with entered(path, {"model": model, "schedulers": [scheduler]}) as run:
            for _ in run.steps(STEPS):
                learn(model, optimizer)
                scheduler.step()

    return script


def under_a_function(path):
    _under(lambda optimizer: LambdaLR(optimizer, lambda step: 0.9**step))(path)


def under_a_sequence(path):
    _under(_sequence)(path)


def _sequence(optimizer):
    return SequentialLR(optimizer, [ExponentialLR(optimizer, 0.9), ExponentialLR(optimizer, 0.8)], [2])


def loss_weights(path):
    model, log_var = net(), nn.Parameter(torch.zeros(()))
    optimizer = torch.optim.Adam([*model.parameters(), log_var], 0.05)
    with entered(path, {"model": model, "optimizer": optimizer}) as run:
        for _ in run.steps(STEPS):
            optimizer.zero_grad()
            (loss_of(model) * torch.exp(-log_var) + log_var).backward()
            optimizer.step()


def second_group(path):
    """A whole group is of a module that nobody tracks; SGD without momentum keeps nothing for its parameters."""
    model, head = nn.Linear(3, 3), nn.Linear(3, 1)
    optimizer = torch.optim.SGD([{"params": model.parameters()}, {"params": head.parameters(), "lr": 0.1}], 0.01)
    with entered(path, {"model": model, "optimizer": optimizer}) as run:
        for _ in run.steps(STEPS):
            head(model(torch.randn(4, 3))).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()


def scheduler_forgotten(path):
    model = net()
    optimizer = adam(model)
    scheduler = CosineAnnealingLR(optimizer, 100)
    with entered(path, {"model": model, "optimizer": optimizer}) as run:
        for _ in run.steps(STEPS):
            learn(model, optimizer)
            scheduler.step()


def schedulers_in_a_list(path):
    """Each member has the list's line: two lines for `schedulers=` could not both be written."""
    models = [net(), net()]
    optimizers = [adam(each) for each in models]
    schedulers = [CosineAnnealingLR(each, 100) for each in optimizers]
    with entered(path, {"models": models, "optimizers": optimizers}) as run:
        for _ in run.steps(STEPS):
            for model, optimizer, scheduler in zip(models, optimizers, schedulers, strict=True):
                learn(model, optimizer)
                scheduler.step()


def scheduler_of_epochs(path, die=None):
    """It steps at each epoch's end only, behind the first looks at the steps. `die`: the step in which it is ended."""
    model, data = net(), loader(40)
    optimizer = adam(model)
    scheduler = LambdaLR(optimizer, lambda epoch: 0.9**epoch)
    with entered(path, {"model": model, "optimizer": optimizer}) as run:
        for _ in run.epochs(4):
            for (x,) in run.batches(data):
                optimizer.zero_grad()
                model(x).mean().backward()
                optimizer.step()
                if run.step == die:
                    raise OSError
            scheduler.step()


def plateau(path):
    model = net()
    optimizer = adam(model)
    scheduler = ReduceLROnPlateau(optimizer)
    with entered(path, {"model": model, "optimizer": optimizer}) as run:
        for _ in run.steps(STEPS):
            scheduler.step(learn(model, optimizer).item())


def scaler_forgotten(path):
    model = net()
    optimizer = adam(model)
    scaler = torch.amp.GradScaler("cpu", growth_interval=100)
    with entered(path, {"model": model, "optimizer": optimizer}) as run:
        for _ in run.steps(STEPS):
            optimizer.zero_grad()
            scaler.scale(loss_of(model)).backward()
            scaler.step(optimizer)
            scaler.update()


def swa_forgotten(path):
    model = net()
    optimizer = adam(model)
    averaged = AveragedModel(model)
    with entered(path, {"model": model, "optimizer": optimizer}) as run:
        for _ in run.steps(STEPS):
            learn(model, optimizer)
            averaged.update_parameters(model)


def ema_by_hand(path):
    model = net()
    optimizer, smooth = adam(model), copy.deepcopy(model)
    with entered(path, {"model": model, "optimizer": optimizer}) as run:
        for _ in run.steps(STEPS):
            learn(model, optimizer)
            with torch.no_grad():
                for one, other in zip(smooth.parameters(), model.parameters(), strict=True):
                    one.lerp_(other, 0.1)


class Shadow:
    """As torch_ema: a list of averages, with a state_dict()."""

    def __init__(self, model):
        self.model, self.averages, self.updates = model, [each.detach().clone() for each in model.parameters()], 0

    def update(self):
        self.updates += 1
        for one, other in zip(self.averages, self.model.parameters(), strict=True):
            one.lerp_(other.detach(), 0.1)

    def state_dict(self):
        return {"averages": self.averages}

    def load_state_dict(self, state):
        self.averages = state["averages"]


def ema_object(path):
    model = net()
    optimizer, ema = adam(model), Shadow(model)
    with entered(path, {"model": model, "optimizer": optimizer}) as run:
        for _ in run.steps(STEPS):
            learn(model, optimizer)
            ema.update()


class Plain:
    """A trainer without a state_dict()."""

    def __init__(self):
        self.model = net()
        self.optimizer = adam(self.model)
        self.average = {name: each.clone() for name, each in self.model.state_dict().items()}


def ema_in_a_dict(path):
    """A dict of tensors, in an attribute of the trainer."""
    agent = Plain()
    with entered(path, {"model": agent.model, "optimizer": agent.optimizer}) as run:
        for _ in run.steps(STEPS):
            learn(agent.model, agent.optimizer)
            for name, each in agent.model.state_dict().items():
                agent.average[name].copy_(0.9 * agent.average[name] + 0.1 * each)


def ema_in_a_list(path):
    model = net()
    optimizer, averages = adam(model), [each.detach().clone() for each in model.parameters()]
    with entered(path, {"model": model, "optimizer": optimizer}) as run:
        for _ in run.steps(STEPS):
            learn(model, optimizer)
            for one, other in zip(averages, model.parameters(), strict=True):
                one.lerp_(other.detach(), 0.1)


def _draws(draw):
    def script(path, make):
        model, rng = net(), make()
        optimizer = adam(model)
        with entered(path, {"model": model, "optimizer": optimizer}) as run:
            for _ in run.steps(STEPS):
                draw(rng)
                learn(model, optimizer)

    return script


class Environment:
    def __init__(self):
        self.rng = np.random.default_rng(0)


def generator_of_an_environment(path):
    """The script seeds the global generators, which says nothing of this one."""
    random.seed(0)
    np.random.seed(0)
    model, env = net(), Environment()
    optimizer = adam(model)
    with entered(path, {"model": model, "optimizer": optimizer}) as run:
        for _ in run.steps(STEPS):
            env.rng.normal()
            learn(model, optimizer)


def torch_generator(path):
    _draws(lambda rng: torch.randn(2, generator=rng))(path, lambda: torch.Generator().manual_seed(3))


def numpy_generator(path):
    _draws(lambda rng: rng.normal(size=3))(path, lambda: np.random.default_rng(3))


def random_state(path):
    _draws(lambda rng: rng.normal(size=3))(path, lambda: np.random.RandomState(3))


def python_random(path):
    _draws(lambda rng: rng.random())(path, lambda: random.Random(3))


FORGETFUL: list[tuple[Any, str, str]] = [
    (optimizer_forgotten, "forgotten", "optimizer"),
    (second_optimizer_forgotten, "forgotten", "of_two"),
    (momentum_forgotten, "forgotten", "agent.optimizer"),
    (made_in_each_epoch, "forgotten", "optimizer"),
    (rate_of_stateless_sgd, "forgotten", "optimizer"),
    (under_a_scheduler, "forgotten", "optimizer"),
    (under_a_function, "forgotten", "optimizer"),
    (under_a_sequence, "forgotten", "optimizer"),
    (loss_weights, "untracked_parameters", "optimizer"),
    (second_group, "untracked_parameters", "optimizer"),
    (scheduler_forgotten, "forgotten", "scheduler"),
    (schedulers_in_a_list, "forgotten", "schedulers"),
    (scheduler_of_epochs, "forgotten", "scheduler"),
    (plateau, "forgotten", "scheduler"),
    (scaler_forgotten, "forgotten", "scaler"),
    (swa_forgotten, "forgotten", "averaged"),
    (ema_by_hand, "forgotten", "smooth"),
    (ema_object, "forgotten", "ema"),
    (ema_in_a_dict, "forgotten", "agent.average"),
    (ema_in_a_list, "forgotten", "averages"),
    (generator_of_an_environment, "forgotten", "env.rng"),
    (torch_generator, "forgotten", "rng"),
    (numpy_generator, "forgotten", "rng"),
    (random_state, "forgotten", "rng"),
    (python_random, "forgotten", "rng"),
]
