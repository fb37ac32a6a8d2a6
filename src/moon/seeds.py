"""All chance comes from here, and depends on what it is for and on whole numbers alone: the seed, the epoch, a layer.

Nothing draws from a stream that must be saved, so a resumed run, another process or another batch size sees the same
numbers, and no two purposes share a stream.
"""

from __future__ import annotations

from hashlib import blake2b

import torch
from torch import Tensor


def derive(purpose: str, *keys: int) -> int:
    """A 63-bit seed that depends on the purpose, on all keys and on their order."""
    text = ",".join([purpose, *(str(int(key)) for key in keys)])
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def generator(purpose: str, *keys: int) -> torch.Generator:
    """A CPU generator seeded by `derive`; its numbers are moved to where they are needed."""
    return torch.Generator().manual_seed(derive(purpose, *keys))


def hashed_uniform(key: int, count: int, device: torch.device | str) -> Tensor:
    """So many numbers uniform in [0, 1), made where they are needed: the same ones on every device.

    The k-th is a hash of key + k * odd, splitmix64's (Steele et al. 2014), in whole numbers modulo 2^64.
    """
    bits = torch.arange(count, device=device).mul_(_signed(0x9E3779B97F4A7C15)).add_(_signed(key))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        # The shift of a signed number brings in its sign; the mask takes it away.
        bits.bitwise_xor_((bits >> shift).bitwise_and_((1 << (64 - shift)) - 1)).mul_(_signed(factor))
    return (bits >> 40).bitwise_and_((1 << 24) - 1).float().mul_(2.0**-24)


def _signed(bits: int) -> int:
    """64 bits as torch reads them."""
    return (bits + (1 << 63)) % (1 << 64) - (1 << 63)
