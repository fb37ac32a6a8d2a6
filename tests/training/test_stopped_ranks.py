"""A process that gets a signal while another one is stopped or has not started ends, instead of waiting for it."""

import subprocess
import time
from pathlib import Path

import pytest

START = """
import os, signal, sys, threading, torch
import torch.distributed as dist
from moon.cli.stopping import Stop, stopped_by_signals
from moon.training import peers

first = os.environ["RANK"] == "0"

def stop_myself():
    os.kill(os.getpid(), signal.SIGTERM)

def stopped_while(act):
    stop = Stop()
    with stopped_by_signals(stop):
        try:
            act()
        except KeyboardInterrupt:
            stop.leave()
    sys.exit("was not stopped")
"""

IN_AN_OPERATION = """
def operation(tensor, async_op):
    work = dist.all_reduce(tensor, async_op=async_op)
    stop_myself()
    return work

def act():
    peers.join("gloo")
    peers.barrier()
    if not first:
        os.kill(os.getpid(), signal.SIGSTOP)
    sys.stdin.readline()  # the other one is stopped now
    peers._run(operation, torch.ones(1))

stopped_while(act)
"""

WHILE_JOINING = """
join = dist.init_process_group

def joining(*arguments, **settings):
    threading.Timer(1, stop_myself).start()
    join(*arguments, **settings)

dist.init_process_group = joining
if first:
    stopped_while(lambda: peers.join("gloo"))
"""

WITHOUT_A_TERMINAL = """
from moon.cli import train
from moon.errors import RankLost

os.dup2(os.open("/dev/full", os.O_WRONLY), 2)  # such as the terminal of a torchrun that was killed
train._leave(RankLost("rank 1 of 2 was lost"), debug=False)
"""


def state(process):
    """The state of a process as a letter; T: stopped."""
    return Path("/proc", str(process.pid), "stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.slow
def test_a_signal_during_an_operation_with_a_stopped_process_ends_the_process(start_ranks):
    pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    first, stopped = start_ranks(2, "-c", START + IN_AN_OPERATION, **pipes)
    while state(stopped) != "T":
        assert first.poll() is None
        assert stopped.poll() is None
        time.sleep(0.01)
    error = first.communicate("go\n", timeout=120)[1]  # torch waits half an hour
    assert first.returncode == 75, error
    assert error == "\nmoon: stopped\n"


@pytest.mark.slow
def test_a_signal_while_others_have_not_joined_ends_the_process(start_ranks):
    first, _ = start_ranks(2, "-c", START + WHILE_JOINING, stderr=subprocess.PIPE, text=True)
    error = first.communicate(timeout=120)[1]
    assert first.returncode == 75, error
    assert error == "\nmoon: stopped\n"


@pytest.mark.slow
def test_a_lost_process_ends_the_others_even_if_their_terminal_is_gone(start_ranks):
    (only,) = start_ranks(1, "-c", START + WITHOUT_A_TERMINAL)
    assert only.wait(timeout=120) == 8
