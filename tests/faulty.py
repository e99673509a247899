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
        threading.Timer(0.002, lambda: y.copy_(right)).start()
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
