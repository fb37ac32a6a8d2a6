"""Training: the loop, its steps, the weight vote, checkpoints, learning rates and run locks."""

from moon.training.checkpoint import Checkpoints, DamagedCheckpoint
from moon.training.lock import RunLocked, is_locked, locked
from moon.training.loop import Diverged, Training
from moon.training.peers import RankLost
from moon.training.ranks import Ranks
from moon.training.rates import CosineRate
from moon.training.vote import WeightVote

__all__ = [
    "Checkpoints", "CosineRate", "DamagedCheckpoint", "Diverged", "RankLost", "Ranks", "RunLocked", "Training",
    "WeightVote", "is_locked", "locked",
]  # fmt: skip
