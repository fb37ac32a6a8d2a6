"""Triton kernels: BatchNorm with ReLU, the SGD update of all weights, and the selection of the highest scores.

Feature maps are in channels-last layout, so a map is a matrix of `rows` (images * height * width) by `columns`
(channels). A sum over rows is divided into parts of `part` rows, one program each. The last program of a block of
columns to finish adds the parts, always in the same order, so that the result does not depend on which program that is.
It resets the counter of finished programs to zero for the next call.
"""

# pyright: reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from moon.fast.compiling import compile_kernel, is_dry_run


def launch(kernel: Any, grid: tuple[int, ...], *values: Any, **options: Any) -> None:
    """Launch a kernel with a grid of programs; in a `dry_run` only compile it."""
    if is_dry_run():
        compile_kernel(kernel, grid, *values, **options)
    else:
        kernel[grid](*values, **options)


@triton.jit
def _is_last(counter, parts):
    """Whether all other programs of this block of columns have written their parts."""
    tl.debug_barrier()
    return tl.atomic_add(counter, 1, sem="acq_rel") == parts - 1


@triton.jit
def _load_parts(pointer, parts, columns, column, PARTS: tl.constexpr):
    """The parts that all programs of this block of columns have written, (PARTS, COLUMNS), padded with zeros."""
    part = tl.arange(0, PARTS)
    index = part[:, None] * columns + column[None, :]
    return tl.load(pointer + index, mask=(part < parts)[:, None], other=0.0, cache_modifier=".cg")


@triton.jit
def moments(
    x, part_mean, part_square, counter, mean, inverse_std, running_mean, running_var, num_batches_tracked,
    rows, columns, part, epsilon, momentum,
    PARTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Mean and 1 / standard deviation of each column, and the update of the running statistics.

    Sums of squares are of differences from the mean of the part, merged as in Chan et al. (1979).
    """
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    first = tl.program_id(0) * part
    end = tl.minimum(first + part, rows)
    # Each element of a tile has its own mean and sum of squares: nothing is added across rows in the loop.
    count = tl.zeros([ROWS, 1], tl.float32)
    centre, square = tl.zeros([ROWS, COLUMNS], tl.float32), tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(first, end, ROWS):
        row = start + tl.arange(0, ROWS)[:, None]
        valid = row < end
        value = tl.load(x + row.to(tl.int64) * columns + column[None, :], mask=valid, other=0.0).to(tl.float32)
        count += tl.where(valid, 1.0, 0.0)
        difference = tl.where(valid, value - centre, 0.0)
        centre += difference * (1 / tl.maximum(count, 1.0))
        square += difference * tl.where(valid, value - centre, 0.0)
    mean_of_part = tl.sum(centre * count, 0) / (end - first).to(tl.float32)
    difference = centre - mean_of_part[None, :]
    parts = tl.num_programs(0)
    tl.store(part_mean + tl.program_id(0) * columns + column, mean_of_part)
    tl.store(part_square + tl.program_id(0) * columns + column, tl.sum(square + count * difference * difference, 0))
    if _is_last(counter + tl.program_id(1), parts):
        tl.store(counter + tl.program_id(1), 0)
        index = tl.arange(0, PARTS)
        rows_of_part = tl.minimum(tl.maximum(rows - index * part, 0), part).to(tl.float32)[:, None]
        means = _load_parts(part_mean, parts, columns, column, PARTS)
        squares = _load_parts(part_square, parts, columns, column, PARTS)
        total_mean = tl.sum(means * rows_of_part, 0) / rows
        shift = means - total_mean[None, :]
        total_square = tl.sum(squares + rows_of_part * shift * shift, 0)
        tl.store(mean + column, total_mean)
        tl.store(inverse_std + column, 1 / tl.sqrt(total_square / rows + epsilon))
        old = tl.load(running_mean + column)
        tl.store(running_mean + column, old + momentum * (total_mean - old))
        old = tl.load(running_var + column)
        tl.store(running_var + column, old + momentum * (total_square / (rows - 1) - old))
        if tl.program_id(1) == 0:
            tl.store(num_batches_tracked, tl.load(num_batches_tracked) + 1)


@triton.jit
def normalise(
    x, residual, y, mean, inverse_std, weight, bias, rows, columns,
    RELU: tl.constexpr, RESIDUAL: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """y = (x - mean) * inverse_std * weight + bias, plus a residual, then ReLU."""
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    index = row[:, None].to(tl.int64) * columns + column[None, :]
    valid = (row < rows)[:, None]
    scale = tl.load(inverse_std + column) * tl.load(weight + column)
    value = tl.load(x + index, mask=valid, other=0.0).to(tl.float32)
    value = (value - tl.load(mean + column)[None, :]) * scale[None, :] + tl.load(bias + column)[None, :]
    if RESIDUAL:
        value += tl.load(residual + index, mask=valid, other=0.0).to(tl.float32)
    if RELU:
        value = tl.where(value < 0, 0.0, value)  # NaN stays NaN
    tl.store(y + index, value.to(y.dtype.element_ty), mask=valid)


@triton.jit
def norm_grad_sums(
    grad, second_grad, x, y, grad_out, part_sum, part_product, counter, mean, inverse_std, weight, bias, weight_grad,
    bias_grad, means, rows, columns, part,
    RELU: tl.constexpr, RESIDUAL: tl.constexpr, TWO: tl.constexpr, ADD: tl.constexpr,
    PARTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The gradients of bias and weight: sums over rows of d and of d * (x - mean) * inverse_std.

    d is the gradient with respect to the input of ReLU. With a residual, d is written to `grad_out`, because it is
    also the gradient of the residual; so is the sum of TWO gradients. `means` are the two sums divided by the number of
    rows.
    """
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    first = tl.program_id(0) * part
    end = tl.minimum(first + part, rows)
    centre, scale = tl.load(mean + column)[None, :], tl.load(inverse_std + column)
    gain, offset = (scale * tl.load(weight + column))[None, :], tl.load(bias + column)[None, :]
    total, product = tl.zeros([ROWS, COLUMNS], tl.float32), tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(first, end, ROWS):
        row = start + tl.arange(0, ROWS)
        index = row[:, None].to(tl.int64) * columns + column[None, :]
        valid = (row < end)[:, None]
        difference = tl.load(x + index, mask=valid, other=0.0).to(tl.float32) - centre
        d = tl.load(grad + index, mask=valid, other=0.0).to(tl.float32)
        if TWO:
            d += tl.load(second_grad + index, mask=valid, other=0.0).to(tl.float32)
        if RELU:
            if RESIDUAL:
                d = tl.where(tl.load(y + index, mask=valid, other=0.0) > 0, d, 0.0)
            else:  # the input of ReLU is computed from x again
                d = tl.where(difference * gain + offset > 0, d, 0.0)
        if RESIDUAL or TWO:
            tl.store(grad_out + index, d.to(grad_out.dtype.element_ty), mask=valid)
        total += d
        product += d * difference
    parts = tl.num_programs(0)
    tl.store(part_sum + tl.program_id(0) * columns + column, tl.sum(total, 0))
    tl.store(part_product + tl.program_id(0) * columns + column, tl.sum(product, 0) * scale)
    if _is_last(counter + tl.program_id(1), parts):
        tl.store(counter + tl.program_id(1), 0)
        of_bias = tl.sum(_load_parts(part_sum, parts, columns, column, PARTS), 0)
        of_weight = tl.sum(_load_parts(part_product, parts, columns, column, PARTS), 0)
        tl.store(means + column, of_bias / rows)
        tl.store(means + columns + column, of_weight / rows)
        if ADD:
            of_bias += tl.load(bias_grad + column)
            of_weight += tl.load(weight_grad + column)
        tl.store(bias_grad + column, of_bias)
        tl.store(weight_grad + column, of_weight)


@triton.jit
def norm_grad_input(
    grad, x, x_grad, mean, inverse_std, weight, bias, means, rows, columns,
    RELU: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The gradient of x: weight * inverse_std * (d - mean of d - z * mean of d * z), z = (x - mean) * inverse_std."""
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    index = row[:, None].to(tl.int64) * columns + column[None, :]
    valid = (row < rows)[:, None]
    scale = tl.load(inverse_std + column)
    gain = scale * tl.load(weight + column)
    difference = tl.load(x + index, mask=valid, other=0.0).to(tl.float32) - tl.load(mean + column)[None, :]
    d = tl.load(grad + index, mask=valid, other=0.0).to(tl.float32)
    if RELU:
        d = tl.where(difference * gain[None, :] + tl.load(bias + column)[None, :] > 0, d, 0.0)
    of_z = scale * tl.load(means + columns + column)
    value = gain[None, :] * (d - tl.load(means + column)[None, :] - difference * of_z[None, :])
    tl.store(x_grad + index, value.to(x_grad.dtype.element_ty), mask=valid)


@triton.jit(do_not_specialize=["first"])
def sgd(
    weight, grad, addresses, momentum_buffer, mask, low_precision, lr, first, momentum, decay,
    NESTEROV: tl.constexpr, LOW_PRECISION: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """v <- momentum * v + (g + decay * w), w <- w - lr * v (or Nesterov's g + momentum * v), both zero where masked.

    Groups of four elements that are all masked are neither read nor written: they are zero. The gradient of a block may
    be elsewhere in memory, at its address, with the dtype of `low_precision`. Nothing changes if lr is minus infinity.
    """
    rate = tl.load(lr)
    if rate != float("-inf"):
        block = (tl.program_id(0) + first).to(tl.int64)
        address = tl.load(addresses + block)
        inside = tl.arange(0, BLOCK // 4)[:, None] * 4 + tl.arange(0, 4)[None, :]
        index = block * BLOCK + inside
        group = block * (BLOCK // 4) + tl.arange(0, BLOCK // 4)
        four_masks = tl.load(mask.to(tl.pointer_type(tl.int32)) + group)  # one byte per element
        four_masks = tl.where(address < 0, 0, four_masks)
        is_used = (four_masks != 0)[:, None]
        is_kept = ((four_masks[:, None] >> (tl.arange(0, 4) * 8)[None, :]) & 1) != 0
        w = tl.load(weight + index, mask=is_used, other=0.0)
        v = tl.load(momentum_buffer + index, mask=is_used, other=0.0)
        if address > 0:
            separate = tl.multiple_of(address.to(tl.pointer_type(low_precision.dtype.element_ty)), 16)
            g = tl.load(separate + inside, mask=is_used, other=0.0).to(tl.float32)
        else:
            g = tl.load(grad + index, mask=is_used, other=0.0)
        g += decay * w
        v = momentum * v + g
        if NESTEROV:
            g += momentum * v
        else:
            g = v
        w = tl.where(is_kept, w - rate * g, 0.0)  # select instead of multiply, so that NaN is removed
        tl.store(momentum_buffer + index, tl.where(is_kept, v, 0.0), mask=is_used)
        tl.store(weight + index, w, mask=is_used)
        if LOW_PRECISION:
            tl.store(low_precision + index, w.to(low_precision.dtype.element_ty), mask=is_used)


@triton.jit
def _load_ranks(score, blocks, BLOCK: tl.constexpr):
    """The scores of this block as integers in the same order, -1 after the end of the list.

    Also returns their indices, the end of the list, its number, its first block and how many blocks it has.
    """
    row = blocks + tl.program_id(0) * 5
    index, end = tl.load(row) + tl.arange(0, BLOCK), tl.load(row + 1)
    value = tl.load(score + index, mask=index < end, other=0.0) + 0.0  # -0.0 becomes 0.0
    bits = value.to(tl.int32, bitcast=True)
    bits = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    ranks = tl.where(index < end, bits.to(tl.int64) + 0x80000000, -1)
    return ranks, index, end, tl.load(row + 2), tl.load(row + 3), tl.load(row + 4)


@triton.jit
def select_digit(score, blocks, histograms, found, counters, SHIFT: tl.constexpr, BLOCK: tl.constexpr):
    """Find the next eight bits of the k-th highest rank of each list.

    found[0] are the upper bits found so far, found[1] is k among the ranks that share them. The last program of a list
    to finish searches the histogram from the highest value.
    """
    ranks, _, _, number, _, programs = _load_ranks(score, blocks, BLOCK)
    found += number * 3
    histogram = histograms + number * 256
    upper, k = tl.load(found), tl.load(found + 1)
    shares = (ranks >> (SHIFT + 8)) == upper
    counts = tl.histogram(tl.where(shares, (ranks >> SHIFT) & 255, 256).to(tl.int32), 512)  # 256: other upper bits
    bins = tl.arange(0, 512)
    tl.atomic_add(histogram + bins, counts, mask=(bins < 256) & (counts > 0))
    if _is_last(counters + number, programs.to(tl.int32)):
        tl.store(counters + number, 0)
        value = tl.arange(0, 256)
        count = tl.load(histogram + value, cache_modifier=".cg").to(tl.int64)
        tl.store(histogram + value, tl.zeros([256], tl.int32))
        at_least = tl.cumsum(count, 0, reverse=True)
        is_digit = (at_least >= k) & (at_least - count < k)
        tl.store(found, upper * 256 + tl.sum(tl.where(is_digit, value, 0).to(tl.int64), 0))
        tl.store(found + 1, k - tl.sum(tl.where(is_digit, at_least - count, 0), 0))


@triton.jit
def count_ties(score, blocks, found, before, counters, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    """For each block, the number of scores before it that are equal to the k-th highest of its list."""
    ranks, _, _, number, first, programs = _load_ranks(score, blocks, BLOCK)
    tl.store(before + tl.program_id(0), tl.sum((ranks == tl.load(found + number * 3)).to(tl.int32), 0))
    if _is_last(counters + number, programs.to(tl.int32)):
        tl.store(counters + number, 0)
        part = tl.arange(0, PARTS)
        count = tl.load(before + first + part, mask=part < programs, other=0, cache_modifier=".cg")
        tl.store(before + first + part, tl.cumsum(count, 0) - count, mask=part < programs)


@triton.jit
def write_masks(score, blocks, found, before, mask, BLOCK: tl.constexpr):
    """True for scores above the k-th highest, and for the first of those equal to it, so that k are selected."""
    ranks, index, end, number, _, _ = _load_ranks(score, blocks, BLOCK)
    found += number * 3
    kth, equal_count, k = tl.load(found), tl.load(found + 1), tl.load(found + 2)
    equal = (ranks == kth).to(tl.int32)
    position = (tl.load(before + tl.program_id(0)) + tl.cumsum(equal, 0)).to(tl.int64)  # counted from 1
    selected = (ranks > kth) | ((equal != 0) & (position <= equal_count))
    tl.store(mask + index, selected & (k > 0), mask=index < end)
