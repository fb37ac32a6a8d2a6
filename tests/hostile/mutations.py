"""Random changes to files."""

from __future__ import annotations

import random
import re

EXTREME = (0, 1, 2, 127, 128, 255, 256, 2**15 - 1, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63)
TEXTS = (b"0", b"-1", b"1e999", b"nan", b"9" * 30, b"2147483648", b"\xff", b"[" * 40, b'"', b"\x00", b"..", b"/")


def change(data: bytes, others: list[bytes], rng: random.Random) -> bytes:
    """One to four changes."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at, size = rng.randrange(len(out) + 1), rng.choice((1, 2, 4, 8))
        kind = rng.randrange(9)
        if kind == 0 and at < len(out):
            out[at] ^= 1 << rng.randrange(8)
        elif kind in (1, 2):
            number = rng.choice(EXTREME) % 256**size
            out[at : at + size] = number.to_bytes(size, rng.choice(("little", "big")))
        elif kind == 3 and (numbers := list(re.finditer(rb"[0-9]+", bytes(out[:20_000])))):
            place = rng.choice(numbers)
            out[place.start() : place.end()] = rng.choice((*TEXTS, *(str(n).encode() for n in EXTREME)))
        elif kind == 4:
            del out[at : at + rng.choice((1, 2, 8, 100, len(out)))]
        elif kind == 5:
            out[at:at] = out[at : at + rng.choice((1, 8, 64, 1000))]
        elif kind == 6:
            out[at:at] = rng.choice(TEXTS) if rng.random() < 0.5 else rng.randbytes(rng.randint(1, 16))
        elif kind == 7 and others:
            other = rng.choice(others)
            start = rng.randrange(len(other) + 1)
            out[at : at + 64] = other[start : start + rng.choice((8, 64, 1000))]
        elif kind == 8:
            to, length = rng.randrange(len(out) + 1), rng.choice((4, 16, 64))
            out[at : at + length], out[to : to + length] = out[to : to + length], out[at : at + length]
    return bytes(out) if out != data else change(data, others, rng)
