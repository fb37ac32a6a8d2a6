"""All chance comes from here, and depends on whole numbers alone: a seed, and where in the run it is used.

Nothing draws from a stream that must be saved, so a resumed run, another process or another batch size sees the same
numbers.
"""

from __future__ import annotations

import numpy as np
import torch


def derive(*keys: int) -> int:
    """A 63-bit seed that depends on all keys (whole numbers, at least 0) and their order."""
    state = np.random.SeedSequence(list(keys)).generate_state(2, np.uint32)
    return (int(state[0]) << 31) ^ int(state[1])


def generator(*keys: int) -> torch.Generator:
    """A CPU generator seeded by `derive(*keys)`; its numbers are moved to where they are needed."""
    return torch.Generator().manual_seed(derive(*keys))
