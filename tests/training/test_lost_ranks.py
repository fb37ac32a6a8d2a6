"""Training with two processes of which one is killed or stopped: what the other one says, and how the run goes on."""

import json
import os
import subprocess
import sys

import pytest

from moon.cli.stopping import RESUMES

NET = '''
"""A small network that sends a signal to its process in the second epoch, as PLAN says: attempt -> (rank, signal)."""
import json, os
from torch import nn

plan = json.loads(os.environ.get("PLAN", "{}"))
rank, number = plan.get(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), (None, None))

class Net(nn.Sequential):
    steps = 0

    def forward(self, x):
        self.steps += self.training
        if self.steps == 6 and str(rank) == os.environ["RANK"]:
            os.kill(os.getpid(), number)
        return super().forward(x)

def make(num_classes, in_channels):
    return Net(nn.Flatten(), nn.Linear(784, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, num_classes))
'''
EPOCHS = 4
TRAIN = [
    "-m", "moon", "train", "mnist", "--data", "data", "--net", "signalling:make", "--epochs", EPOCHS, "--batch-size",
    64, "--sparsity", 0.5, "--checkpoint-seconds", 0, "--out", "run",
]  # fmt: skip


@pytest.fixture
def folder(data_root, tmp_path):
    assert data_root == tmp_path / "data"
    (tmp_path / "signalling.py").write_text(NET)
    return tmp_path


def plan(**signals):
    """The environment in which attempt `_N` loses a rank by a signal."""
    return {"PLAN": json.dumps({attempt[1:]: signal for attempt, signal in signals.items()})}


@pytest.fixture
def train(start_ranks, folder):
    """A function that trains with two processes, as `plan` says."""

    def start(env):
        pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
        return start_ranks(2, *TRAIN, env=env, cwd=folder, **pipes)

    return start


def digest(folder):
    return json.loads((folder / "run" / "result.json").read_text())["model_sha256"]


@pytest.mark.slow
def test_a_killed_process_is_named_in_one_line_and_the_same_command_resumes(train, folder):
    first, killed = train(plan(_0=[1, 9]))
    warning, error = first.communicate(timeout=600)[1].splitlines()
    assert killed.wait(600) == -9
    assert first.returncode == 8
    assert "10 validation images" in warning  # the data set of the tests is small
    assert error.startswith("moon train: rank 1 of 2 was lost (")
    assert error.endswith(f"), after 1 of {EPOCHS} epochs; {RESUMES}")
    assert (folder / "run" / "checkpoints" / "000001").is_dir()
    assert [process.wait(600) for process in train(plan())] == [0, 0]


@pytest.mark.slow
def test_a_stopped_process_is_not_waited_for_without_end(train):
    stopped, second = train(plan(_0=[0, 19]) | {"MOON_RANK_SECONDS": "10"})  # SIGSTOP
    error = second.communicate(timeout=600)[1]
    assert stopped.poll() is None
    assert second.returncode == 8
    assert error == (
        "moon train: rank 0 of 2 sent no heartbeat for 10 s (limit: MOON_RANK_SECONDS), "
        f"after 1 of {EPOCHS} epochs; {RESUMES}\n"
    )


@pytest.mark.slow
def test_torchrun_restarts_a_run_that_loses_processes_and_the_result_is_that_of_an_undisturbed_one(train, folder):
    assert [process.wait(600) for process in train(plan())] == [0, 0]
    undisturbed = digest(folder)
    (folder / "run").rename(folder / "undisturbed")
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        2,
        "--max-restarts",
        3,
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | plan(_0=[1, 9], _1=[0, 9])
    command, pipes = list(map(str, torchrun + TRAIN)), {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=folder, env=environment, text=True, **pipes) as started:
        try:
            output, error = started.communicate(timeout=600)
        finally:
            started.terminate()  # after a timeout: torchrun then ends the processes that it started
    assert started.returncode == 0, error
    assert output.count("resuming from epoch") == 2
    assert digest(folder) == undisturbed
