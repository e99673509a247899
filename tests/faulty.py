"""Softmax functions with one planted fault each, named as a user names a kernel: tests/faulty.py:zeros."""

from __future__ import annotations

import ctypes
import threading
import time

import torch


def right(x):
    return torch.softmax(x, dim=-1)


def zeros(x):
    return torch.zeros_like(x)


def uniform(x):
    return torch.full_like(x, 1 / x.shape[-1])


_kept: list[torch.Tensor] = []


def stale(x):
    """The first result ever computed, whatever comes later."""
    if not _kept or _kept[0].shape != x.shape:
        _kept[:] = [torch.softmax(x, dim=-1)]
    return _kept[0].clone()


_by_address: dict[int, torch.Tensor] = {}


def cached_by_address(x):
    if x.data_ptr() not in _by_address:
        _by_address[x.data_ptr()] = torch.softmax(x, dim=-1)
    return _by_address[x.data_ptr()].clone()


def half_written(x):
    y = torch.full_like(x, 0.25)
    n = x.shape[-1] // 2
    y[..., :n] = torch.softmax(x, dim=-1)[..., :n]
    return y


def nan_dropping(x):
    return torch.softmax(x, dim=-1).nan_to_num(0.0)


def off_by_one_row(x):
    return torch.softmax(x, dim=-1).roll(1, dims=-2)


def input_mutating(x):
    y = torch.softmax(x, dim=-1)
    with torch.no_grad():
        x.copy_(y)
    return y


def aliasing(x):
    with torch.no_grad():
        return x.copy_(torch.softmax(x, dim=-1))


def wrong_axis(x):
    return torch.softmax(x, dim=-2)


def no_max(x):
    powers = x.float().exp()
    return (powers / powers.sum(-1, keepdim=True)).to(x.dtype)


def half_sum(x):
    powers = (x - x.amax(-1, keepdim=True)).exp()
    total = powers[..., 0:1].clone()
    for i in range(1, x.shape[-1]):
        total += powers[..., i : i + 1]
    return powers / total


def last_column_dropped(x):
    y = torch.softmax(x, dim=-1)
    y[..., -1] = 0
    return y


def wrong_scale(x):
    return torch.softmax(x * 1.01, dim=-1)


def _memory(x):
    """All of x's storage in one row, and the positions in it that a kernel for contiguous rows would take for x's."""
    flat = torch.empty(0, dtype=x.dtype, device=x.device).set_(x.detach().untyped_storage())
    return flat, x.storage_offset() + torch.arange(x.numel(), device=x.device).view(x.shape)


def stride_ignored(x):
    flat, taken = _memory(x)
    return torch.softmax(flat[taken % flat.numel()], dim=-1)


def int32_offset(x):
    """Offsets of rows as 32-bit numbers; what runs beyond wraps around, here into the tensor's own memory."""
    rows = torch.zeros((), dtype=torch.int64)
    for size, stride in zip(x.shape[:-1], x.stride()[:-1], strict=True):
        rows = rows[..., None] + torch.arange(size) * stride
    flat, _ = _memory(x)
    taken = (rows + 2**31) % 2**32 - 2**31
    columns = torch.arange(x.shape[-1]) * x.stride(-1)
    taken = (x.storage_offset() + taken[..., None] + columns).to(x.device)
    return torch.softmax(flat[taken % flat.numel()], dim=-1)


def last_partial_block_dropped(x):
    n = x.shape[-1] // 32 * 32
    y = torch.zeros(x.shape, dtype=x.dtype, device=x.device)
    y[..., :n] = torch.softmax(x[..., :n], dim=-1)
    return y


def one_column_too_many(x):
    """A mask that is off by one: the sum takes in what lies behind the row."""
    flat, _ = _memory(x)
    last = x.storage_offset() + sum((n - 1) * stride for n, stride in zip(x.shape, x.stride(), strict=True))
    behind = flat[(last + 1) % flat.numel()].to(x.dtype)
    wider = torch.cat([x, behind.expand(*x.shape[:-1], 1)], -1)
    return torch.softmax(wider, dim=-1)[..., :-1].contiguous()


def minus_infinity_row_zero(x):
    y = torch.softmax(x, dim=-1)
    return y.masked_fill((x == float("-inf")).all(-1, keepdim=True), 0)


_last_rows: dict[object, torch.Tensor] = {}


def stale_row(x):
    """The last row as it was in the call before."""
    y = torch.softmax(x, dim=-1)
    key = (x.shape, x.dtype)
    before, _last_rows[key] = _last_rows.get(key), y.clone()
    if before is not None:
        y[..., -1, :] = before[..., -1, :]
    return y


_n_races = 0


def race_on_a_row(x):
    """In every third call a row's sum has lost an update: it lacks what half of the row would have added."""
    global _n_races
    _n_races += 1
    y = torch.softmax(x, dim=-1)
    if _n_races % 3 == 0:
        y[..., 0, :] *= 2
    return y


def approximate_exp(x):
    """An exponential that is off by a hundredth."""
    distance = x.float() - x.float().amax(-1, keepdim=True)
    powers = distance.exp() * (1 + 1e-2 * (37 * distance).sin())
    return (powers / powers.sum(-1, keepdim=True)).to(x.dtype)


def rough(x):
    """Right, and in float32 several times as far off as torch.softmax."""
    return torch.softmax(x, dim=-1) * (1 + 5e-7)


def detached(x):
    return torch.softmax(x.detach(), dim=-1)


def other_dtype(x):
    return torch.softmax(x.float(), dim=-1)


def other_shape(x):
    return torch.softmax(x, dim=-1)[..., :-1]


def not_a_tensor(x):
    return torch.softmax(x, dim=-1).tolist()


class _WrongSign(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.softmax(x, dim=-1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, dy):
        (y,) = ctx.saved_tensors
        return -y * (dy - (dy * y).sum(-1, keepdim=True))


def gradient_of_wrong_sign(x):
    return _WrongSign.apply(x)


_output: dict[object, torch.Tensor] = {}


def reusing_output(x):
    """Right, but into one memory for every call."""
    y = _output.setdefault((x.shape, x.dtype, x.device), torch.empty_like(x))
    return y.copy_(torch.softmax(x, dim=-1))


def late(x):
    """Returns memory that a thread fills later."""
    y = torch.zeros_like(x)
    right = torch.softmax(x, dim=-1)
    if threading.active_count() < 50:
        threading.Timer(0.5, lambda: y.copy_(right)).start()
    return y


_side: dict[object, torch.cuda.Stream] = {}


def other_stream(x):
    """The work on a stream of its own, of which the current one knows nothing."""
    if x.device not in _side:
        _side[x.device] = torch.cuda.Stream(x.device)
    with torch.cuda.stream(_side[x.device]):
        return torch.softmax(x, dim=-1)


def raising(x):
    raise RuntimeError("planted")


def segfault(x):
    ctypes.string_at(0)


def endless(x):
    while True:
        time.sleep(1)


def all_memory(x):
    return torch.empty(1 << 60, dtype=torch.uint8)


_calls = 0


def segfault_when_timed(x):
    """Right when it is tried alone, deadly some calls later."""
    global _calls
    _calls += 1
    if _calls > 4:
        ctypes.string_at(0)
    return torch.softmax(x, dim=-1)


# Each variant loads this file for itself, so what one leaves behind for another stands where all see it.
_process = vars(torch).setdefault("_planted", {"faulted": None})
_process["bystander"] = False


def fault_seen_later(x, show=lambda: ctypes.string_at(0)):
    """Right when it is tried, then at fault in a way that only the next call of anything shows, as a GPU's faults."""
    global _calls
    _calls += 1
    if _process["faulted"] and not _process["bystander"]:
        show()
    if _calls > 12:
        _process["faulted"] = show
    return torch.softmax(x, dim=-1)


def bystander(x):
    _process["bystander"] = True
    if _process["faulted"]:
        _process["faulted"]()
    return torch.softmax(x, dim=-1)


def context_lost_later(x):
    """The same where the process survives, but not its GPU context."""
    return fault_seen_later(x, _lose_context)


def _lose_context():
    from softmax_exp import outcome

    def synchronize(device):
        raise RuntimeError("planted: the context is lost")

    outcome.synchronize = synchronize
    raise RuntimeError("planted: an error of an earlier call")


def raising_when_timed(x):
    global _calls
    _calls += 1
    if _calls > 4:
        raise RuntimeError("planted later")
    return torch.softmax(x, dim=-1)


def _plain(x):
    return torch.softmax(x * 2 - x, dim=-1)


_compiled = torch.compile(_plain, backend="eager", dynamic=False)


def recompiling(x):
    """Compiled for the shapes it meets; after a few calls it meets another one each time."""
    global _calls
    _calls += 1
    if _calls > 4:
        _compiled(x.flatten()[: _calls + 1])
    return _compiled(x)
