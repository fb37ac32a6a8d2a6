"""Triton kernels of MOON's loss. The logits of a batch are few, so one program computes all of them."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportIndexIssue=false, reportOperatorIssue=false

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _softmax_of(logits, y, start, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The logits of some rows, their softmax, and for each row the label, -log p_label and p of the last column.

    -log p_label is NaN for a label without a column. Rows after the end have any values.
    """
    row = start + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    index = row[:, None].to(tl.int64) * columns + column[None, :]
    value = tl.load(logits + index, mask=(row < rows)[:, None] & (column < columns)[None, :], other=0.0).to(tl.float32)
    value = tl.where((column < columns)[None, :], value, float("-inf"))
    label = tl.load(y + row, mask=row < rows, other=0).to(tl.int32)
    highest = tl.max(value, 1)
    exponential = tl.exp(value - highest[:, None])
    total = tl.sum(exponential, 1)
    p = exponential / total[:, None]
    nll = tl.log(total) + highest - tl.sum(tl.where(column[None, :] == label[:, None], value, 0.0), 1)
    nll = tl.where((label >= 0) & (label < columns), nll, float("nan"))  # there is no such class: the loss is NaN
    p_unknown = tl.sum(tl.where(column[None, :] == columns - 1, p, 0.0), 1)
    return value, p, label, nll, p_unknown


@triton.jit(do_not_specialize=["rows", "columns"])
def unknown_aware(logits, y, w, loss, grad, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The mean over rows of nll * (1 + a), a = w / (1 + w * p_unknown) where the arg-max is wrong and 0 elsewhere.

    `grad` is its gradient with respect to the logits z, by da / dp_unknown = -a^2 and
    dp_unknown / dz_j = p_unknown * ([j is unknown] - p_j).
    """
    column = tl.arange(0, COLUMNS)[None, :]
    weight = tl.load(w).to(tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    for start in range(0, rows, ROWS):
        value, p, label, nll, p_unknown = _softmax_of(logits, y, start, rows, columns, ROWS, COLUMNS)
        row = start + tl.arange(0, ROWS)
        added = tl.where(tl.argmax(value, 1) != label, weight / (1 + weight * p_unknown), 0.0)
        total += tl.where(row < rows, nll * (1 + added), 0.0)
        through_unknown = (-nll * added * added * p_unknown)[:, None]
        d = (1 + added)[:, None] * (p - (column == label[:, None]).to(tl.float32))
        d += through_unknown * ((column == columns - 1).to(tl.float32) - p)
        index = row[:, None].to(tl.int64) * columns + column
        tl.store(grad + index, (d / rows).to(grad.dtype.element_ty), mask=(row < rows)[:, None] & (column < columns))
    tl.store(loss, tl.sum(total, 0) / rows)


@triton.jit(do_not_specialize=["rows", "columns"])
def observation(logits, y, p_unknowns, losses, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """p of the last column and -log p_label of each row."""
    start = tl.program_id(0) * ROWS
    _, _, _, nll, p_unknown = _softmax_of(logits, y, start, rows, columns, ROWS, COLUMNS)
    row = start + tl.arange(0, ROWS)
    tl.store(p_unknowns + row, p_unknown, mask=row < rows)
    tl.store(losses + row, nll, mask=row < rows)


@triton.jit(do_not_specialize=["rows", "quiet_epochs"])
def moving_average(beta, p_unknowns, losses, new, epoch, smoothing, quiet_epochs, rows, ROWS: tl.constexpr):
    """beta moved towards the mean of (1 - p_unknown) * loss in quiet epochs; that mean itself if beta is NaN."""
    total = tl.zeros([ROWS], tl.float32)
    for start in range(0, rows, ROWS):
        row = start + tl.arange(0, ROWS)
        p_unknown = tl.load(p_unknowns + row, mask=row < rows, other=1.0).to(tl.float32)
        total += (1 - p_unknown) * tl.load(losses + row, mask=row < rows, other=0.0).to(tl.float32)
    mean, old = tl.sum(total, 0) / rows, tl.load(beta)
    moved = tl.where(old != old, mean, old + smoothing * (mean - old))
    tl.store(new, tl.where(tl.load(epoch) < quiet_epochs, moved, old))


@triton.jit(do_not_specialize=["quiet_epochs", "steps"])
def scheduled_weight(beta, w, epoch, quiet_epochs, steps, init_factor, final, RISES: tl.constexpr):
    """w in this epoch: 0 in quiet epochs, then from beta / init_factor to `final` in `steps` epochs if it RISES."""
    now, old = tl.load(epoch), tl.load(beta)
    progress = 0.0
    if RISES:
        progress = tl.where(steps == 0, 1.0, (now - quiet_epochs).to(tl.float32) / tl.maximum(steps, 1))
        progress = tl.minimum(progress, 1.0)
    value = tl.where(old != old, 0.0, old) * ((1 - progress) / init_factor) + final * progress
    tl.store(w, tl.where(now >= quiet_epochs, value, 0.0))
