import pytest

from softmax_exp.cases import Case, stable_hash


def test_sizes_and_bytes_of_attention_scores():
    case = Case(shape=(8, 12, 512, 512))
    assert (case.n_rows, case.n_cols, case.numel) == (8 * 12 * 512, 512, 8 * 12 * 512 * 512)
    assert case.tensor_bytes == 2 * case.numel
    assert (case.bytes_read, case.bytes_written) == (case.tensor_bytes, case.tensor_bytes)
    assert case.named_sizes == {"n_rows": 49152, "n_cols": 512, "batch": 8, "heads": 12, "seq_q": 512, "seq": 512}


@pytest.mark.parametrize(("mode", "read", "written"), [("forward", 1, 1), ("backward", 2, 1), ("full", 3, 2)])
def test_each_mode_reads_and_writes_what_it_must(mode, read, written):
    case = Case(shape=(4, 100), dtype="float32", mode=mode)
    assert (case.bytes_read, case.bytes_written) == (1600 * read, 1600 * written)
    assert case.least_bytes == 1600 * (read + written)


def test_a_causal_case_reads_half_and_writes_all():
    case = Case(shape=(2, 3, 100, 100), mask="causal")
    assert case.attended == 6 * 100 * 101 // 2
    assert case.bytes_read == 2 * case.attended and case.bytes_written == case.tensor_bytes


def test_causal_decoding_sees_every_key():
    assert Case(shape=(2, 3, 1, 100), mask="causal").attended == 600
    assert Case(shape=(1, 1, 4, 2), mask="causal").attended == 0 + 0 + 1 + 2


def test_a_mask_is_read_once():
    additive = Case(shape=(2, 3, 4, 8), mask="additive")
    assert additive.mask_shape == (1, 1, 4, 8)
    assert additive.bytes_read == additive.tensor_bytes + 2 * 32
    assert Case(shape=(2, 3, 4, 8), mask="boolean").bytes_read == additive.tensor_bytes + 32


@pytest.mark.parametrize("shape", [(0, 2), (10, 0), (4, 0, 0), (5,), (2, 3, 4)])
def test_any_shape_survives_json(shape):
    case = Case(shape=shape, mask="none", scale=0.5)
    assert Case.from_dict(case.to_dict()) == case
    assert case.numel == case.n_rows * case.n_cols


def test_an_element_that_stands_in_memory_once_is_read_once():
    forward, full = (Case(shape=(8, 12, 64, 64), layout="expanded", mode=mode) for mode in ("forward", "full"))
    assert forward.bytes_read == forward.tensor_bytes // 8 and forward.bytes_written == forward.tensor_bytes
    assert full.bytes_read == full.tensor_bytes // 8 + 2 * full.tensor_bytes
    assert Case(shape=(64,), layout="expanded").bytes_read == 128


def test_titles_name_what_is_unusual():
    assert Case(shape=(8, 12, 512, 512)).title == "8x12x512x512 float16 forward"
    case = Case(shape=(4, 8), mask="causal", scale=0.125, distribution="nan", layout="padded")
    assert case.title == "4x8 float16 forward causal mask scale 0.125 nan padded"


def test_hashes_do_not_depend_on_order_and_see_every_value():
    assert stable_hash({"a": 1, "b": 2}) == stable_hash({"b": 2, "a": 1}) != stable_hash({"a": 1, "b": 3})
