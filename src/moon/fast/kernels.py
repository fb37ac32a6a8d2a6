"""Triton kernels: BatchNorm with ReLU in two passes each way, the whole update of SGD in one, the best of many scores.

Images lie channels-last, so a map is a matrix of `rows` (images * height * width) by `columns` (channels). Sums over
rows are taken in parts of `part` rows each; the last program of a column block to end adds the parts, always in the
same order, so a sum does not depend on which one that was. It leaves the counter at zero for the next call.
"""

# pyright: reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl


def launch(kernel: Any, grid: tuple[int, ...], *values: Any, **options: Any) -> None:
    """Run so many programs of a kernel."""
    kernel[grid](*values, **options)


@triton.jit
def _is_last(counter, parts):
    """Whether all other programs of this column block have written their parts."""
    tl.debug_barrier()
    return tl.atomic_add(counter, 1, sem="acq_rel") == parts - 1


@triton.jit
def _parts(of, parts, columns, at, PARTS: tl.constexpr):
    """What all programs of this column block have written, (PARTS, COLUMNS), zero behind the last one."""
    part = tl.arange(0, PARTS)
    place = part[:, None] * columns + at[None, :]
    return tl.load(of + place, mask=(part < parts)[:, None], other=0.0, cache_modifier=".cg")


@triton.jit
def moments(
    x, part_centre, part_square, counter, mean, inverse, running_mean, running_var, tracked,
    rows, columns, part, epsilon, momentum,
    PARTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Mean and 1 / deviation of each column, and the running statistics after it.

    Sums of squares are those of differences from the part's own mean, merged after Chan et al. (1979).
    """
    at = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    first = tl.program_id(0) * part
    end = tl.minimum(first + part, rows)
    # Each place of a tile has a mean and a sum of squares of its own: nothing is added across rows in the loop.
    count = tl.zeros([ROWS, 1], tl.float32)
    centre, square = tl.zeros([ROWS, COLUMNS], tl.float32), tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(first, end, ROWS):
        row = start + tl.arange(0, ROWS)[:, None]
        valid = row < end
        value = tl.load(x + row.to(tl.int64) * columns + at[None, :], mask=valid, other=0.0).to(tl.float32)
        count += tl.where(valid, 1.0, 0.0)
        apart = tl.where(valid, value - centre, 0.0)
        centre += apart * (1 / tl.maximum(count, 1.0))
        square += apart * tl.where(valid, value - centre, 0.0)
    own_centre = tl.sum(centre * count, 0) / (end - first).to(tl.float32)
    apart = centre - own_centre[None, :]
    parts = tl.num_programs(0)
    tl.store(part_centre + tl.program_id(0) * columns + at, own_centre)
    tl.store(part_square + tl.program_id(0) * columns + at, tl.sum(square + count * apart * apart, 0))
    if _is_last(counter + tl.program_id(1), parts):
        tl.store(counter + tl.program_id(1), 0)
        index = tl.arange(0, PARTS)
        share = tl.minimum(tl.maximum(rows - index * part, 0), part).to(tl.float32)[:, None]
        centres = _parts(part_centre, parts, columns, at, PARTS)
        squares = _parts(part_square, parts, columns, at, PARTS)
        whole_centre = tl.sum(centres * share, 0) / rows
        shift = centres - whole_centre[None, :]
        whole_square = tl.sum(squares + share * shift * shift, 0)
        tl.store(mean + at, whole_centre)
        tl.store(inverse + at, 1 / tl.sqrt(whole_square / rows + epsilon))
        old = tl.load(running_mean + at)
        tl.store(running_mean + at, old + momentum * (whole_centre - old))
        old = tl.load(running_var + at)
        tl.store(running_var + at, old + momentum * (whole_square / (rows - 1) - old))
        if tl.program_id(1) == 0:
            tl.store(tracked, tl.load(tracked) + 1)


@triton.jit
def normalise(
    x, residual, y, mean, inverse, weight, bias, rows, columns,
    RELU: tl.constexpr, RESIDUAL: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """y = (x - mean) * inverse * weight + bias, plus a residual, cut off at zero."""
    at = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    place = row[:, None].to(tl.int64) * columns + at[None, :]
    valid = (row < rows)[:, None]
    scale = tl.load(inverse + at) * tl.load(weight + at)
    value = tl.load(x + place, mask=valid, other=0.0).to(tl.float32)
    value = (value - tl.load(mean + at)[None, :]) * scale[None, :] + tl.load(bias + at)[None, :]
    if RESIDUAL:
        value += tl.load(residual + place, mask=valid, other=0.0).to(tl.float32)
    if RELU:
        value = tl.where(value < 0, 0.0, value)  # NaN stays
    tl.store(y + place, value.to(y.dtype.element_ty), mask=valid)


@triton.jit
def slopes(
    slope, other, x, y, passed, part_sum, part_product, counter, mean, inverse, weight, bias, weight_slope, bias_slope,
    sums, rows, columns, part,
    RELU: tl.constexpr, RESIDUAL: tl.constexpr, TWO: tl.constexpr, ADD: tl.constexpr,
    PARTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The slopes of bias and weight: sums over rows of d and of d * (x - mean) * inverse, d the slope behind ReLU.

    With a residual d is written to `passed`, because it is the residual's slope, too, and so is the sum of TWO slopes.
    """
    at = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    first = tl.program_id(0) * part
    end = tl.minimum(first + part, rows)
    centre, scale = tl.load(mean + at)[None, :], tl.load(inverse + at)
    gain, offset = (scale * tl.load(weight + at))[None, :], tl.load(bias + at)[None, :]
    plain, product = tl.zeros([ROWS, COLUMNS], tl.float32), tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(first, end, ROWS):
        row = start + tl.arange(0, ROWS)
        place = row[:, None].to(tl.int64) * columns + at[None, :]
        valid = (row < end)[:, None]
        away = tl.load(x + place, mask=valid, other=0.0).to(tl.float32) - centre
        d = tl.load(slope + place, mask=valid, other=0.0).to(tl.float32)
        if TWO:
            d += tl.load(other + place, mask=valid, other=0.0).to(tl.float32)
        if RELU:
            if RESIDUAL:
                d = tl.where(tl.load(y + place, mask=valid, other=0.0) > 0, d, 0.0)
            else:  # ReLU's side is found from x again
                d = tl.where(away * gain + offset > 0, d, 0.0)
        if RESIDUAL or TWO:
            tl.store(passed + place, d.to(passed.dtype.element_ty), mask=valid)
        plain += d
        product += d * away
    parts = tl.num_programs(0)
    tl.store(part_sum + tl.program_id(0) * columns + at, tl.sum(plain, 0))
    tl.store(part_product + tl.program_id(0) * columns + at, tl.sum(product, 0) * scale)
    if _is_last(counter + tl.program_id(1), parts):
        tl.store(counter + tl.program_id(1), 0)
        of_bias = tl.sum(_parts(part_sum, parts, columns, at, PARTS), 0)
        of_weight = tl.sum(_parts(part_product, parts, columns, at, PARTS), 0)
        tl.store(sums + at, of_bias / rows)
        tl.store(sums + columns + at, of_weight / rows)
        if ADD:
            of_bias += tl.load(bias_slope + at)
            of_weight += tl.load(weight_slope + at)
        tl.store(bias_slope + at, of_bias)
        tl.store(weight_slope + at, of_weight)


@triton.jit
def back(
    slope, x, slope_of_x, mean, inverse, weight, bias, sums, rows, columns,
    RELU: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The slope of x: weight * inverse * (d - mean of d - z * mean of d * z), z = (x - mean) * inverse."""
    at = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    place = row[:, None].to(tl.int64) * columns + at[None, :]
    valid = (row < rows)[:, None]
    scale = tl.load(inverse + at)
    gain = scale * tl.load(weight + at)
    away = tl.load(x + place, mask=valid, other=0.0).to(tl.float32) - tl.load(mean + at)[None, :]
    d = tl.load(slope + place, mask=valid, other=0.0).to(tl.float32)
    if RELU:
        d = tl.where(away * gain[None, :] + tl.load(bias + at)[None, :] > 0, d, 0.0)
    of_z = scale * tl.load(sums + columns + at)
    value = gain[None, :] * (d - tl.load(sums + at)[None, :] - away * of_z[None, :])
    tl.store(slope_of_x + place, value.to(slope_of_x.dtype.element_ty), mask=valid)


@triton.jit
def sgd(
    weight, slope, places, velocity, exists, low, rate, first, momentum, decay,
    NESTEROV: tl.constexpr, LOW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """v <- momentum * v + (g + decay * w), w <- w - rate * v (or of Nesterov's g), both zero where nothing exists.

    Four neighbours of which none exists are neither read nor written: they are zero. A block's gradient may lie
    elsewhere, at a place in memory, in the type of `low`. With a rate of minus infinity nothing happens.
    """
    speed = tl.load(rate)
    if speed != float("-inf"):
        block = (tl.program_id(0) + first).to(tl.int64)
        place = tl.load(places + block)
        inside = tl.arange(0, BLOCK // 4)[:, None] * 4 + tl.arange(0, 4)[None, :]
        at = block * BLOCK + inside
        four = block * (BLOCK // 4) + tl.arange(0, BLOCK // 4)
        marks = tl.load(exists.to(tl.pointer_type(tl.int32)) + four)  # a byte each
        marks = tl.where(place < 0, 0, marks)
        some = (marks != 0)[:, None]
        alive = ((marks[:, None] >> (tl.arange(0, 4) * 8)[None, :]) & 1) != 0
        w = tl.load(weight + at, mask=some, other=0.0)
        v = tl.load(velocity + at, mask=some, other=0.0)
        if place > 0:
            there = tl.multiple_of(place.to(tl.pointer_type(low.dtype.element_ty)), 16)
            g = tl.load(there + inside, mask=some, other=0.0).to(tl.float32)
        else:
            g = tl.load(slope + at, mask=some, other=0.0)
        g += decay * w
        v = momentum * v + g
        if NESTEROV:
            g += momentum * v
        else:
            g = v
        w = tl.where(alive, w - speed * g, 0.0)  # selecting, not multiplying, stops a NaN
        tl.store(velocity + at, tl.where(alive, v, 0.0), mask=some)
        tl.store(weight + at, w, mask=some)
        if LOW:
            tl.store(low + at, w.to(low.dtype.element_ty), mask=some)


@triton.jit
def _ranks(score, blocks, BLOCK: tl.constexpr):
    """The block's scores as whole numbers of 32 bits in the same order, -1 behind the list's end; where they are, and
    which list it is, its first block and how many it has."""
    row = blocks + tl.program_id(0) * 5
    at, end = tl.load(row) + tl.arange(0, BLOCK), tl.load(row + 1)
    value = tl.load(score + at, mask=at < end, other=0.0) + 0.0  # -0.0 is 0.0
    bits = value.to(tl.int32, bitcast=True)
    bits = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    ranks = tl.where(at < end, bits.to(tl.int64) + 0x80000000, -1)
    return ranks, at, end, tl.load(row + 2), tl.load(row + 3), tl.load(row + 4)


@triton.jit
def digit(score, blocks, histograms, found, counters, SHIFT: tl.constexpr, BLOCK: tl.constexpr):
    """Eight more bits of each list's k-th highest rank: found[0] is its upper bits so far, found[1] is k among those
    that share them. The last program of a list to end counts down from the highest."""
    ranks, _, _, which, _, programs = _ranks(score, blocks, BLOCK)
    found += which * 3
    histogram = histograms + which * 256
    upper, k = tl.load(found), tl.load(found + 1)
    shares = (ranks >> (SHIFT + 8)) == upper
    own = tl.histogram(tl.where(shares, (ranks >> SHIFT) & 255, 256).to(tl.int32), 512)  # 256: not one of them
    bins = tl.arange(0, 512)
    tl.atomic_add(histogram + bins, own, mask=(bins < 256) & (own > 0))
    if _is_last(counters + which, programs.to(tl.int32)):
        tl.store(counters + which, 0)
        value = tl.arange(0, 256)
        count = tl.load(histogram + value, cache_modifier=".cg").to(tl.int64)
        tl.store(histogram + value, tl.zeros([256], tl.int32))
        at_least = tl.cumsum(count, 0, reverse=True)
        is_it = (at_least >= k) & (at_least - count < k)
        tl.store(found, upper * 256 + tl.sum(tl.where(is_it, value, 0).to(tl.int64), 0))
        tl.store(found + 1, k - tl.sum(tl.where(is_it, at_least - count, 0), 0))


@triton.jit
def ties(score, blocks, found, before, counters, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    """How many scores equal to its list's k-th highest lie before each block."""
    ranks, _, _, which, first, programs = _ranks(score, blocks, BLOCK)
    tl.store(before + tl.program_id(0), tl.sum((ranks == tl.load(found + which * 3)).to(tl.int32), 0))
    if _is_last(counters + which, programs.to(tl.int32)):
        tl.store(counters + which, 0)
        part = tl.arange(0, PARTS)
        count = tl.load(before + first + part, mask=part < programs, other=0, cache_modifier=".cg")
        tl.store(before + first + part, tl.cumsum(count, 0) - count, mask=part < programs)


@triton.jit
def mark(score, blocks, found, before, mask, BLOCK: tl.constexpr):
    """True for all above the k-th highest, and for as many of its equals as there is room for, the first ones."""
    ranks, at, end, which, _, _ = _ranks(score, blocks, BLOCK)
    found += which * 3
    kth, room, k = tl.load(found), tl.load(found + 1), tl.load(found + 2)
    equal = (ranks == kth).to(tl.int32)
    place = (tl.load(before + tl.program_id(0)) + tl.cumsum(equal, 0)).to(tl.int64)  # from 1
    best = (ranks > kth) | ((equal != 0) & (place <= room))
    tl.store(mask + at, best & (k > 0), mask=at < end)
