"""The only training loop, the vote, checkpoints."""

from moon.training.checkpoint import Checkpoints, DamagedCheckpoint
from moon.training.lock import RunLocked, is_locked, locked
from moon.training.loop import Diverged, Training
from moon.training.rates import CosineRate
from moon.training.vote import WeightVote

__all__ = [
    "Checkpoints", "CosineRate", "DamagedCheckpoint", "Diverged", "RunLocked", "Training", "WeightVote", "is_locked",
    "locked",
]  # fmt: skip
