"""Which records are drawn together."""

import dataclasses

from softmax_exp.records import Record
from softmax_exp.report.panels import case_title, panels
from softmax_exp.results import Results
from tests import made_up


def matrix(job, variant, rows, cols, **changes):
    made = made_up.passed(job, variant, cols)
    changes = {"shape": [rows, cols], "n_rows": rows, "workload": "matrix", "batch": None, "heads": None, **changes}
    return dataclasses.replace(made, **changes)


def of(*cells: Record) -> Results:
    return Results("s", list(cells))


def test_cases_that_differ_in_size_alone_make_one_panel_with_a_line_a_variant():
    [panel] = panels([Results("s", made_up.records())])
    assert panel.title == "8x12xSxS float16 forward" and panel.sizes == [128, 512, 2048]
    assert [series.label for series in panel.series] == list(made_up.VARIANTS)
    assert [record.n_cols for record in panel.series[0].records] == [128, 512, 2048]


def test_dtype_mode_mask_and_decoding_are_panels_of_their_own():
    whole = made_up.passed(0, "eager", 128)
    others = [
        dataclasses.replace(whole, dtype="float32"),
        dataclasses.replace(whole, mode="backward"),
        dataclasses.replace(whole, mask="causal"),
        dataclasses.replace(whole, seq_q=1, shape=[8, 12, 1, 128]),
    ]
    titles = [panel.title for panel in panels([of(whole, *others)])]
    assert sorted(titles) == [
        "8x12x1xS float16 forward",
        "8x12xSxS float16 backward",
        "8x12xSxS float16 forward",
        "8x12xSxS float16 forward causal mask",
        "8x12xSxS float32 forward",
    ]


def test_shapes_given_directly_are_lists_of_sizes():  # S24: shape=[8,12,512,512],[1,1,64,64]
    one = dataclasses.replace(made_up.passed(0, "eager", 512), batch=None, heads=None)
    two = dataclasses.replace(one, job=1, shape=[1, 1, 64, 64], n_rows=64, n_cols=64)
    [panel] = panels([of(one, two)])
    assert panel.title == "rows x S float16 forward" and panel.sizes == [64, 512]
    assert [case_title(record) for record in panel.records] == [
        "1x1x64x64 float16 forward",
        "8x12x512x512 float16 forward",
    ]


def test_matrices_are_one_line_while_each_width_comes_once_else_a_panel_a_number_of_rows():
    tall, flat = matrix(0, "eager", 4096, 128), matrix(1, "eager", 64, 8192)
    assert [panel.title for panel in panels([of(tall, flat)])] == ["rows x S float16 forward"]
    again = matrix(2, "eager", 64, 128)
    titles = {panel.title for panel in panels([of(tall, flat, again)])}
    assert titles == {"4096 x S float16 forward", "64 x S float16 forward"}


def test_a_variant_has_one_number_in_all_sweeps_and_its_arguments_make_another():
    first = of(made_up.passed(0, "eager", 128), made_up.passed(0, "triton", 128))
    second = of(made_up.passed(0, "triton", 128), made_up.passed(0, "triton", 256, variant_args={"num_warps": 8}))
    [panel] = panels([first, second])
    assert [(series.number, series.sweep, series.label) for series in panel.series] == [
        (0, 0, "eager [1]"),
        (1, 0, "triton [1]"),
        (1, 1, "triton [2]"),
        (2, 1, "triton num_warps=8 [2]"),
    ]


def test_figures_of_a_gpu_and_of_a_cpu_are_never_in_one_panel():
    gpu, cpu = made_up.passed(0, "eager", 128), made_up.passed(0, "eager", 128, clock="host")
    assert len(panels([of(gpu), of(cpu)])) == 2
