"""The copies behind the limit read each word once and write each word once, whatever the shares."""

import pytest
import torch

from softmax_exp.kernels.copy import FORMS, CopyForm, move

SMALL = [CopyForm(64, 4), CopyForm(64, 4, per_sm=1, reads="evict_last")]  # a tile each; three programs that loop


@pytest.mark.parametrize("form", SMALL, ids=lambda form: form.name)
@pytest.mark.parametrize("n", [1, 63, 64, 1000, 640])
def test_one_read_a_write_is_a_copy(form: CopyForm, n: int, device: str) -> None:
    src = torch.randint(-(2**31), 2**31 - 1, (n,), dtype=torch.int32, device=device)
    dst = torch.full((n,), -7, dtype=torch.int32, device=device)
    assert torch.equal(move(src, dst, form, n_sms=3), src)


@pytest.mark.parametrize("form", SMALL, ids=lambda form: form.name)
@pytest.mark.parametrize(("n_src", "n_dst"), [(1280, 640), (1920, 1280), (320, 640), (1088, 640)])
def test_other_shares_of_whole_tiles_read_every_word_once(form: CopyForm, n_src: int, n_dst: int, device: str) -> None:
    src = torch.randint(-1000, 1000, (n_src,), dtype=torch.int32, device=device)
    dst = torch.full((n_dst,), 2**20, dtype=torch.int32, device=device)
    assert int(move(src, dst, form, n_sms=3).sum()) == int(src.sum())


@pytest.mark.parametrize("form", SMALL, ids=lambda form: form.name)
@pytest.mark.parametrize(("n_src", "n_dst"), [(2000, 1000), (1500, 1000), (500, 1000), (3, 1)])
def test_ragged_shares_write_every_word(form: CopyForm, n_src: int, n_dst: int, device: str) -> None:
    src = torch.randint(-1000, 1000, (n_src,), dtype=torch.int32, device=device)
    dst = torch.full((n_dst + 64,), 2**20, dtype=torch.int32, device=device)
    move(src, dst[:n_dst], form, n_sms=3)
    assert int(dst[:n_dst].abs().max()) <= 2000, "a word was not written"
    assert bool((dst[n_dst:] == 2**20).all()), "a word beyond the end was written"


def test_forms_have_names_of_their_own() -> None:
    assert len({form.name for form in FORMS}) == len(FORMS)
    assert any(form.per_sm for form in FORMS), "no persistent form among the candidates"
    assert any(form.reads for form in FORMS), "no form whose reads are evicted last among the candidates"
