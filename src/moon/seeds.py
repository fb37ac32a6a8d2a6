"""Seeds and random numbers that depend only on a purpose and on integers, such as the seed, the epoch or a layer.

No generator has state that must be saved. A resumed run, another process or another batch size therefore draws the same
numbers, and no two purposes share a stream.
"""

from __future__ import annotations

from hashlib import blake2b

import torch
from torch import Tensor


def derive(purpose: str, *keys: int) -> int:
    """Derive a 63-bit seed, the same on every machine, from a purpose such as "batches" and integers in their order."""
    text = ",".join([purpose, *(str(int(key)) for key in keys)])
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def generator(purpose: str, *keys: int) -> torch.Generator:
    """Return a new CPU generator with the seed `derive(purpose, *keys)`; move the numbers it draws to the device."""
    return torch.Generator().manual_seed(derive(purpose, *keys))


def hashed_uniform(key: int, count: int, device: torch.device | str) -> Tensor:
    """Return `count` float32 numbers uniform in [0, 1), computed on `device` and identical on every device.

    The k-th number is splitmix64's hash (Steele et al. 2014) of key + k * 0x9E3779B97F4A7C15 modulo 2^64.
    """
    if torch.compiler.is_compiling():  # leaves this function to Python: torch 2.13 compiles int64 products wrongly
        raise RuntimeError("hashes are not compiled")
    bits = torch.arange(count, device=device).mul_(_signed(0x9E3779B97F4A7C15)).add_(_signed(key))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        # Shifting a negative number fills with ones; the mask makes the shift logical.
        bits.bitwise_xor_((bits >> shift).bitwise_and_((1 << (64 - shift)) - 1)).mul_(_signed(factor))
    return (bits >> 40).bitwise_and_((1 << 24) - 1).float().mul_(2.0**-24)


def _signed(bits: int) -> int:
    """Return 64 bits as the signed integer that torch takes."""
    return (bits + (1 << 63)) % (1 << 64) - (1 << 63)
