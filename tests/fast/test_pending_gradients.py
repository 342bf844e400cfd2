"""Gradients that a loop leaves at a safe point and reads in the next step belong to the state; others do not."""

from itertools import product
from multiprocessing.reduction import ForkingPickler

import pytest
import torch
import torch.multiprocessing  # it knows how a tensor goes to another process
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from holdfast import Every, Last, Run, Store
from toy import Cut

STEPS = 17


def made(kind="module"):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    opt = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    return (
        {"model": model, "opt": opt} if kind == "module" else {"parts": [*model.parameters()], "opt": opt},
        model,
        opt,
    )


def backward(model, parts=1):
    (model(torch.randn(5, 3)).square().mean() / parts).backward()


def entered(path, state, **options):
    return Run(path, state, every=Every(steps=1), keep=Last(99), background=False, **options)


def in_groups(group, *, first, to_none):
    """A loop that accumulates by itself. `first`: it zeroes before a group, and not behind its step."""

    def body(model, opt, step):
        if first and step % group == 0:
            opt.zero_grad(set_to_none=to_none)
        backward(model, group)
        if step % group == group - 1:
            opt.step()
            if not first:
                opt.zero_grad(set_to_none=to_none)

    return body


def ran(path, body, cut=None, kind="module"):
    """The weights after a run of steps."""
    state, model, opt = made(kind)
    with entered(path, state) as run:
        for step in run.steps(STEPS):
            if step == cut:
                raise Cut
            body(model, opt, step)
    return [each.tolist() for each in model.parameters()]


GROUPS = [*product(("module", "parts"), (2, 3, 8), (True, False), (True, False))]


def is_cut(path, case, cuts):
    """A run that was cut at any of these steps ends as the whole one: of a module, or of parameters alone."""
    kind, group, first, to_none = case
    body = in_groups(group, first=first, to_none=to_none)
    whole = ran(path / "whole", body, kind=kind)
    for cut in cuts:
        with pytest.raises(Cut):
            ran(path / f"{cut}", body, cut, kind)
        assert whole == ran(path / f"{cut}", body, kind=kind), cut


@pytest.mark.parametrize("case", [GROUPS[0], GROUPS[5], GROUPS[15], GROUPS[22]], ids=str)
def test_a_group_that_is_cut_anywhere_ends_as_the_whole(tmp_path, case):
    """Groups of 2, 3 and 8, zeroed first or last, both ways; tests/prove has all of them, and more cuts."""
    is_cut(tmp_path, case, (5, 12))


def test_each_cut_of_many_in_one_run(tmp_path):
    """Each attempt makes one step."""
    body = in_groups(3, first=False, to_none=True)
    whole = ran(tmp_path / "whole", body)
    for cut in range(1, STEPS):
        with pytest.raises(Cut):
            ran(tmp_path / "cut", body, cut)
    assert whole == ran(tmp_path / "cut", body)


def skips(model, opt, step):
    """A gradient scaler's overflows: the optimizer does not step, and the next step throws the gradients away."""
    opt.zero_grad()
    backward(model)
    if step % 3 != 1:
        opt.step()


def states(path):
    """What each checkpoint holds of the optimizer, as text: these tensors are small."""
    return {each.name: repr(each.load(part="opt")) for each in Store(path).checkpoints()}


@pytest.mark.parametrize("body", [skips, in_groups(3, first=True, to_none=True)], ids=["skips", "groups"])
def test_each_state_on_the_way_is_that_of_the_whole_run(tmp_path, body):
    """Also which gradients are saved: a resumed run knows of its loop what the whole one knew. Each place of a group
    is cut.
    """
    ran(tmp_path / "whole", body)
    wanted = states(tmp_path / "whole")
    assert any("gradients" in each for each in wanted.values())
    for cut in (1, 2, 9):
        path = tmp_path / f"{cut}"
        with pytest.raises(Cut):
            ran(path, body, cut)
        ran(path, body)
        found = states(path)
        assert [name for name in wanted if found[name] != wanted[name]] == [], cut


def over_an_epochs_end(path, cut=None):
    """Groups of three batches in epochs of five: yolov5's, reduced. They grow from one to three."""
    state, model, opt = made()
    loader = DataLoader(TensorDataset(torch.arange(60.0).view(20, 3) / 60), batch_size=4, shuffle=True)
    done, count = -1, 0
    with entered(path, state, vars={"done": done}) as run:
        for epoch in run.epochs(4):
            for i, (x,) in run.enumerate(loader):
                if cut == (epoch, i):
                    raise Cut
                number = i + epoch * len(loader)
                model(x).square().mean().backward()
                if number - run.vars.done >= min(3, 1 + number // 4):
                    opt.step()
                    opt.zero_grad()
                    run.vars.done = number
                    count += 1
    return [each.tolist() for each in model.parameters()], run.vars.done


def test_a_group_goes_on_over_the_end_of_an_epoch(tmp_path):
    """Cut inside of epochs and at their ends."""
    whole = over_an_epochs_end(tmp_path / "whole")
    for cut in [(1, 0), (1, 2), (2, 0), (2, 3), (3, 0), (3, 1)]:
        path = tmp_path / f"{cut[0]}-{cut[1]}"
        with pytest.raises(Cut):
            over_an_epochs_end(path, cut)
        assert whole == over_an_epochs_end(path), cut


# Loops that read nothing ------------------------------------------------------------------------------------------


def zeroes_first(model, opt, step, *, to_none=True):
    opt.zero_grad(set_to_none=to_none)
    backward(model)
    opt.step()


def zeroes_last(model, opt, step, *, to_none=True):
    backward(model)
    opt.step()
    opt.zero_grad(set_to_none=to_none)


def zeroes_first_in_place(model, opt, step):
    zeroes_first(model, opt, step, to_none=False)


def zeroes_last_in_place(model, opt, step):
    zeroes_last(model, opt, step, to_none=False)


def two_backwards(model, opt, step):
    """The first one is thrown away, as a critic's gradients of the generator's loss."""
    backward(model)
    opt.zero_grad()
    backward(model)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()


def polluted(model, opt, step):
    """Another loss leaves gradients behind the step; they are thrown away in the next one."""
    opt.zero_grad()
    backward(model)
    opt.step()
    backward(model)


def sets_gradients(model, opt, step):
    loss = model(torch.randn(5, 3)).square().mean()
    for one, its in zip(model.parameters(), torch.autograd.grad(loss, [*model.parameters()]), strict=True):
        one.grad = its
    opt.step()


def closure(model, opt, step):
    def again():
        opt.zero_grad()
        loss = model(torch.randn(5, 3)).square().mean()
        loss.backward()
        return loss

    opt.step(again)


def scaled(model, opt, step, scaler=torch.amp.GradScaler("cpu")):  # noqa: B008
    opt.zero_grad()
    scaler.scale(model(torch.randn(5, 3)).square().mean()).backward()
    scaler.unscale_(opt)
    scaler.step(opt)
    scaler.update()


LOOPS = [
    zeroes_first, zeroes_last, zeroes_first_in_place, zeroes_last_in_place, two_backwards, polluted, sets_gradients,
    closure, scaled,
]  # fmt: skip


@pytest.mark.parametrize("body", LOOPS, ids=lambda each: each.__name__)
def test_a_loop_that_reads_none_of_them_saves_none(tmp_path, body):
    """Not one byte, in no checkpoint."""
    ran(tmp_path, body)
    parts = [each.load(part="opt") for each in Store(tmp_path).checkpoints()]
    assert STEPS + 0 <= len(parts)
    assert [{"state", "param_groups"}] == [set(each) for each in parts[:1]]
    assert all({"state", "param_groups"} == set(each) for each in parts)


def test_an_epochs_end_saves_no_gradients_that_its_last_batch_did_not(tmp_path):
    """No step lies between: what another loss left is no more pending there than behind the step."""
    state, model, opt = made()
    with entered(tmp_path, state) as run:
        for _ in run.epochs(3):
            for step in run.batches([0, 1, 2, 3]):
                polluted(model, opt, step)
    names = [each.name for each in Store(tmp_path).checkpoints()]
    assert sum(name.endswith("-end") for name in names) >= 2
    assert all({"state", "param_groups"} == set(each.load(part="opt")) for each in Store(tmp_path).checkpoints())


@pytest.mark.parametrize(("first", "every"), [*product(("critic", "generator"), (1, 5))])
def test_two_optimizers_whose_losses_reach_each_others_models_save_none(tmp_path, first, every):
    """A GAN, in both orders, with a generator that learns in each fifth step."""
    torch.manual_seed(0)
    generator, critic = nn.Linear(3, 3), nn.Linear(3, 1)
    of_generator, of_critic = (torch.optim.Adam(each.parameters(), 0.01) for each in (generator, critic))

    def learn_critic():
        of_critic.zero_grad()
        (critic(torch.randn(4, 3)) - critic(generator(torch.randn(4, 3)).detach())).mean().backward()
        of_critic.step()

    def learn_generator():
        of_generator.zero_grad()
        critic(generator(torch.randn(4, 3))).mean().backward()
        of_generator.step()

    state = {"generator": generator, "critic": critic, "of_generator": of_generator, "of_critic": of_critic}
    with entered(tmp_path, state) as run:
        for step in run.steps(STEPS):
            acts = [learn_critic] + [learn_generator] * (step % every == 0)
            for act in acts if first == "critic" else acts[::-1]:
                act()
    for each in Store(tmp_path).checkpoints():
        assert not any(".besides" in each.load(part=name) for name in ("of_generator", "of_critic"))


def test_gradients_that_a_step_reads_are_saved_and_no_hook_stays(tmp_path):
    """The control of the law above: the group's checkpoints have them."""
    ran(tmp_path, in_groups(4, first=False, to_none=True))
    kept = [each.load(part="opt").get(".besides", {}).get("gradients") for each in Store(tmp_path).checkpoints()]
    assert [4, 4, 4, 0] == [len(each) for each in kept[:4]]
    _, model, opt = made()
    ran(tmp_path / "more", zeroes_first)
    assert not opt._optimizer_step_post_hooks
    assert not any(each._backward_hooks for each in model.parameters())


def test_a_parameter_with_its_hook_goes_to_another_process_without_a_word(tmp_path, recwarn):
    """torch warns of hooks that stay behind; of one that the script did not add, it must not."""
    state, model, opt = made()
    with entered(tmp_path, state) as run:
        for _ in run.steps(3):
            opt.zero_grad()
            backward(model)
            opt.step()
        hooked = [each for each in model.parameters() if each._backward_hooks]
        for each in hooked:
            ForkingPickler.dumps(each)
    assert hooked
    assert not [each for each in recwarn if "hook" in str(each.message)]
