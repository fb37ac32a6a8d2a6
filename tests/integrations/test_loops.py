"""The recipes of docs/loops.md: each is executed, and keeps the network sparse."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import moon

PAGE = Path(__file__).parents[2] / "docs" / "loops.md"


def recipes():
    """The Python blocks of the page by their heading; "" for the first."""
    parts = re.split(r"^## (.*)$", PAGE.read_text(), flags=re.MULTILINE)
    sections = {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}
    return {name: re.findall(r"```python\n(.*?)```", text, re.DOTALL) for name, text in sections.items()}


RECIPES = recipes()


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4))


def batches(rank=0, ranks=1, count=4, size=16):
    x = torch.randn(count, size, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    y = torch.arange(size) % 4
    return [(x[i, rank::ranks], y[rank::ranks]) for i in range(count)]


def started(**more):
    names = {name: getattr(moon, name) for name in ("AutoWeight", "DropSchedule", "Moon", "RigL", "moon_loss")}
    names |= {"torch": torch, "open_head": moon.open_head, "model": network(), "loader": batches(), "epochs": 3}
    names |= {"device": "cpu", **more}
    exec(RECIPES[""][0], names)
    return names


def run(heading, number=0, change=lambda text: text, **more):
    names = started(**more)
    exec(change(RECIPES[heading][number]), names)
    return names


def assert_sparse(topology, steps):
    assert topology.steps == steps
    assert topology.turnover() > 0
    assert 0.09 < topology.density() < 0.11
    for name, mask in topology.masks.items():
        weight = topology.weights[name]
        assert not weight[~mask].any()
        assert not topology.optimizer.state[weight]["momentum_buffer"][~mask].any()
        assert weight.isfinite().all()


def test_every_recipe_has_a_test():
    assert {name: len(blocks) for name, blocks in RECIPES.items() if blocks} == {
        "": 1, "GradScaler": 1, "Clipping and accumulation": 1, "Schedulers and EMA": 1, "torch.compile": 1, "DDP": 1,
        "FSDP2": 1, "The loss only": 2, "Lightning": 1,
    }  # fmt: skip


def test_grad_scaler():
    names = run("GradScaler")
    assert_sparse(names["topology"], 12 - skipped(names["scaler"]))


def skipped(scaler):
    """How often the scale was halved: each time a step was skipped."""
    return round(torch.tensor(2.0**16 / scaler.get_scale()).log2().item())


def test_clipping_and_accumulation():
    assert_sparse(run("Clipping and accumulation")["topology"], 6)


def test_schedulers_and_ema():
    names = run("Schedulers and EMA")
    topology, ema = names["topology"], names["ema"].module
    assert_sparse(topology, 12)
    for name, mask in topology.masks.items():
        assert not ema.get_parameter(name)[~mask].any()
    assert not torch.equal(ema[0].weight, names["model"][0].weight)
    assert names["scheduler"].last_epoch == 12


@pytest.mark.slow
def test_compile():
    torch._dynamo.reset()
    names = run("torch.compile", change=lambda text: text.replace("(model)", '(model, backend="aot_eager")', 1))
    assert "_orig_mod" in dict(names["compiled"].named_children())
    assert_sparse(names["topology"], 12)


def test_the_loss_only_is_the_objective():
    whole = started()
    for epoch in range(3):
        for x, y in whole["loader"]:
            whole["optimizer"].zero_grad()
            whole["objective"](whole["model"], x, y, epoch=epoch).backward()
            whole["topology"].step()
    for number in (0, 1):
        names = run("The loss only", number)
        assert_sparse(names["topology"], 12)
        for name, value in whole["model"].state_dict().items():
            torch.testing.assert_close(names["model"].state_dict()[name], value)
        weight = names["objective"].weight if number == 0 else names["weight"]
        torch.testing.assert_close(weight.beta, whole["objective"].weight.beta)


@pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning")
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
def test_lightning(tmp_path):
    pytest.importorskip("lightning")
    names = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}
    names |= {"enable_model_summary": False, "default_root_dir": tmp_path}
    images = TensorDataset(torch.cat([x for x, _ in batches()]), torch.arange(64) % 4)
    names = run("Lightning", settings=names, loader=DataLoader(images, batch_size=16))
    assert_sparse(names["sparse"].topology, 12)
    assert names["sparse"].vote.voters == 1


def in_processes(count, tmp_path, what):
    """Call a function of this module in several processes that train as one."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    here = str(Path(__file__).parent)
    code = f"import sys; sys.path.insert(0, {here!r}); import test_loops; test_loops.{what}(sys.argv[1])"
    started = []
    for rank in range(count):
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", code, str(tmp_path)]
        started.append(subprocess.Popen(command, env=os.environ | common | own, stderr=subprocess.PIPE, text=True))
    try:
        for process in started:
            _, error = process.communicate(timeout=200)
            assert process.returncode == 0, error
    finally:
        for process in started:
            process.kill()


def ddp_and_fsdp(folder):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    names = run("DDP", loader=batches(rank, 2))
    topology, beta = names["topology"], names["objective"].weight.beta
    assert_sparse(topology, 12)
    torch.save({"masks": topology.masks, "weights": topology.weights, "beta": beta}, Path(folder) / f"{rank}.pt")

    names = run("FSDP2")
    assert 0 < float(names["objective"].weight.beta) < 10
    try:
        moon.RigL(names["model"], names["optimizer"], sparsity=0.9, schedule=names["schedule"])
    except ValueError as error:
        (Path(folder) / f"{rank}.txt").write_text(str(error))
    dist.destroy_process_group()
    os._exit(0)  # without the destructors of torch's threads, which once in many runs end the process with SIGABRT


@pytest.mark.slow
def test_ddp_has_the_same_masks_and_fsdp_only_the_loss(tmp_path):
    in_processes(2, tmp_path, "ddp_and_fsdp")
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=False) for rank in (0, 1))
    assert torch.equal(first["beta"], second["beta"])
    for name, mask in first["masks"].items():
        assert torch.equal(mask, second["masks"][name])
        assert torch.equal(first["weights"][name], second["weights"][name])
    for rank in range(2):
        message = (tmp_path / f"{rank}.txt").read_text()
        assert message.startswith("'0.weight' is divided among processes (FSDP, tensor parallelism or ZeRO)")
        assert "\n" not in message


def test_a_flattened_weight_is_refused():
    model = nn.Linear(8, 4)
    model.weight = nn.Parameter(torch.zeros(0))  # as ZeRO-3 leaves it
    with pytest.raises(ValueError, match="'weight' is divided among processes"):
        moon.Static(model, torch.optim.SGD(model.parameters(), lr=0.1), sparsity=0.5)
