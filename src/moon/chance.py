"""All chance comes from here, and depends on what it is for and on whole numbers alone: the seed, the epoch, a layer.

Nothing draws from a stream that must be saved, so a resumed run, another process or another batch size sees the same
numbers, and no two purposes share a stream.
"""

from __future__ import annotations

from hashlib import blake2b

import torch


def derive(purpose: str, *keys: int) -> int:
    """A 63-bit seed that depends on the purpose, on all keys and on their order."""
    text = ",".join([purpose, *(str(int(key)) for key in keys)])
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def generator(purpose: str, *keys: int) -> torch.Generator:
    """A CPU generator seeded by `derive`; its numbers are moved to where they are needed."""
    return torch.Generator().manual_seed(derive(purpose, *keys))
