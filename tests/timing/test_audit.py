import threading

import pytest
import torch

from softmax_exp.timing import Timed, aliases
from softmax_exp.timing.audit import audit

CPU = torch.device("cpu")
X = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))


def softmax(index: int) -> torch.Tensor:
    return torch.softmax(X, -1)


def test_an_honest_entry_has_no_flags() -> None:
    assert audit(Timed("honest", softmax), CPU) == []
    assert audit(Timed("full", lambda index: (softmax(index), {"grad": torch.softmax(-X, -1)})), CPU) == []


def test_a_result_kept_from_an_earlier_call_is_found() -> None:
    kept = torch.softmax(X, -1)
    assert audit(Timed("kept", lambda index: kept), CPU) == ["reuses_output"]
    assert audit(Timed("view of it", lambda index: kept[:8]), CPU) == ["reuses_output"]


def test_work_done_after_the_call_returned_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    go, threads = threading.Event(), []

    def late(index: int) -> torch.Tensor:
        y = torch.full_like(X, float("nan"))
        threads.append(threading.Thread(target=lambda: (go.wait(), y.copy_(torch.softmax(X, -1)))))
        threads[-1].start()
        return y

    def a_moment_later(seconds: float) -> None:
        go.set()
        for thread in threads:
            thread.join()

    monkeypatch.setattr("softmax_exp.timing.audit.time.sleep", a_moment_later)
    assert audit(Timed("late", late), CPU) == ["work_outside_timing"]


def test_an_output_in_the_memory_of_an_input_is_found() -> None:
    x = torch.randn(8, 8)
    assert aliases(x, x) and aliases(x[2:], [x]) and aliases((torch.ones(2), x.view(64)), {"x": x})
    assert not aliases(torch.softmax(x, -1), x)
    y = torch.ones(4)
    assert aliases((y, y[1:]), []), "two outputs in one memory"
    assert not aliases(torch.empty(0), torch.empty(0))
