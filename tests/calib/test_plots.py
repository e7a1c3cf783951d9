"""The page of plots of a calibration: what is on it, and that nothing on it lies on top of anything else."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from calib.fit.fit import FitResult, fit_table, limits_of
from calib.fit.score import MIN_ROWS
from calib.plots.curves import KINDS
from calib.plots.page import page_figure, plot_page
from calib.table import Rows, Table, size_names
from simkit.latency.profile import AXES, work_of
from simkit.specs.hardware import load_gpu

GPU = load_gpu("h100-sxm5-80gb")
HEADS = {"num_heads": (32, 64), "num_kv_heads": (8,), "head_dim": (128,)}
MS = tuple(2**i for i in range(13))


def measured(op: str, dtype: str = "bfloat16", **sizes: tuple[float, ...]) -> Rows:
    """A full grid of made-up measurements: a floor, the physical limit with some loss, and a ripple."""
    grid = np.array(list(itertools.product(*(sizes[name] for name in size_names(op)))), float)
    columns = dict(zip(size_names(op), grid.T, strict=True))
    fastest = limits_of(op, dtype, GPU).fastest_us(work_of(op, dtype, columns))
    return Rows(op, dtype, columns, (3.0 + 1.4 * fastest) * (1.0 + 0.03 * np.sin(np.arange(len(grid)))))


def fitted(*rows: Rows) -> tuple[Table, FitResult]:
    table = Table({(r.op, r.dtype): r for r in rows}, (), ("a made-up GPU",), "0" * 64, sum(len(r) for r in rows))
    return table, fit_table(table, GPU, "made-up", {})


def small() -> list[Rows]:
    """The least that a profile needs, with one size of everything in prefill."""
    return [
        measured("gemm", m=MS, n=(1024, 4096), k=(4096, 14336)),
        measured("attention_decode", batch=(1, 8), kv_len=(16, 256, 4096), **HEADS),
        measured("attention_prefill", batch=(1,), q_len=(512,), kv_len=(0,), **HEADS),
    ]


@pytest.fixture(scope="module")
def page() -> Figure:
    return page_figure(*fitted(*small()))


@pytest.fixture(scope="module")
def full_page() -> Figure:
    """Six panels, three a row: the least room that a panel has."""
    gemm, decode, prefill = small()
    lopsided = (decode.sizes["batch"] == 1) | (decode.sizes["kv_len"] <= 256)
    return page_figure(
        *fitted(
            gemm,
            measured("gemm", "fp8", m=MS, n=(4096, 128256), k=(4096,)),
            decode.take(lopsided),
            prefill,
            *(measured(op, m=MS, n=(4096,)) for op in ("rms_norm", "rms_norm_final", "silu_and_mul", "sampler")),
            measured("memcpy_h2d", bytes=tuple(2.0**i for i in range(10, 30))),
            measured("memcpy_d2d", bytes=tuple(2.0**i for i in range(10, 30))),
        )
    )


def axes_titled(page: Figure, start: str) -> Axes:
    (found,) = [ax for ax in page.axes if ax.get_title(loc="left").startswith(start)]
    return found


def legend_of(ax: Axes) -> list[str]:
    legend = ax.get_legend()
    assert legend is not None
    return [text.get_text() for text in legend.get_texts()]


def test_a_page_has_a_panel_for_each_main_op_and_the_residuals(page: Figure, full_page: Figure) -> None:
    main = ["GEMM, bfloat16", "Decode attention, 32/8 KV heads, bfloat16", "Prefill attention, 32/8 KV heads, bfloat16"]
    last = "Held-out shapes, by a fit on the other 80 %"
    assert [ax.get_title(loc="left") for ax in page.axes] == [*main, last]
    titles = [ax.get_title(loc="left") for ax in full_page.axes]
    assert titles == [main[0], "GEMM, fp8", *main[1:], "Small kernels", "Copies and all-reduce", last]


def test_every_axis_names_its_unit(full_page: Figure) -> None:
    *curves, residuals = full_page.axes
    assert all(ax.get_ylabel() == "time of one call (us)" for ax in curves)
    assert all(ax.get_xscale() == ax.get_yscale() == "log" for ax in curves)
    assert axes_titled(full_page, "GEMM, fp8").get_xlabel() == "tokens in the pass, m"
    assert axes_titled(full_page, "Decode").get_xlabel() == "context of each sequence (tokens)"
    assert axes_titled(full_page, "Prefill").get_xlabel() == "new tokens of each sequence"
    assert axes_titled(full_page, "Copies").get_xlabel() == "message (bytes)"
    assert residuals.get_xlabel() == "predicted / measured - 1 (%)"


def test_the_title_says_what_was_fitted_and_who_measured(page: Figure) -> None:
    heading = page.subfigs[0].get_suptitle()
    assert "made-up for h100-sxm5-80gb, fitted to 66 measurements" in heading
    assert "Source: a made-up GPU" in heading


def test_legends_name_the_shapes_nearest_to_llama(page: Figure, full_page: Figure) -> None:
    assert legend_of(axes_titled(page, "GEMM")) == ["n 4,096, k 4,096", "n 1,024, k 4,096"]
    assert legend_of(axes_titled(page, "Decode")) == ["batch 1", "batch 8"]
    assert legend_of(axes_titled(full_page, "GEMM, fp8")) == ["n 128,256, k 4,096", "n 4,096, k 4,096"]
    assert legend_of(axes_titled(full_page, "Small"))[-1] == "sampler, n 4,096"


def test_the_fit_is_drawn_between_measured_points_and_the_limit_below_it(page: Figure) -> None:
    _, solid, points, limit = axes_titled(page, "GEMM").lines[:4]
    assert len(points.get_xdata()) == len(MS)
    x, us = np.asarray(solid.get_xdata()), np.asarray(solid.get_ydata())
    assert 3 in x
    assert np.sum((x > 2048) & (x < 4096)) > 20
    assert np.isfinite(us).all()
    assert np.allclose(us[np.isin(x, MS)], points.get_ydata(), rtol=2e-3)
    assert (np.asarray(limit.get_ydata()) < us).all()


def test_what_is_extrapolated_is_not_drawn_solid(full_page: Figure) -> None:
    ax = axes_titled(full_page, "Decode")
    everywhere, solid, points, _ = ax.lines[4:8]
    x, us = np.asarray(solid.get_xdata()), np.asarray(solid.get_ydata())
    assert legend_of(ax)[1] == "batch 8"
    assert max(np.asarray(points.get_xdata())) == 256
    assert np.isfinite(us[x <= 256]).all()
    assert np.isnan(us[x > 256]).all()
    assert np.isfinite(np.asarray(everywhere.get_ydata())).all()


def test_residuals_show_numbers_or_why_there_are_none(page: Figure) -> None:
    ax = page.axes[-1]
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert labels == ["gemm bfloat16", "attention_decode bfloat16", "attention_prefill bfloat16"]
    first, *rest = (text.get_text() for text in ax.texts)
    assert first.startswith("MAPE ")
    assert rest == [f"fewer than {MIN_ROWS} shapes: none held out"] * 2
    assert sum(len(np.asarray(dots.get_offsets())) for dots in ax.collections) == round(0.2 * 4 * len(MS))


def test_nothing_lies_on_top_of_anything_else(full_page: Figure) -> None:
    full_page.canvas.draw()
    boxes = [ax.get_tightbbox() for ax in full_page.axes]
    for ax, box in zip(full_page.axes, boxes, strict=True):
        assert box is not None
        assert box.x0 >= 0
        assert box.x1 <= full_page.bbox.x1
        if (legend := ax.get_legend()) is not None:
            assert not legend.get_window_extent().overlaps(ax.get_window_extent())
    assert not [pair for pair in itertools.combinations(boxes, 2) if pair[0] and pair[1] and pair[0].overlaps(pair[1])]


def test_axes_of_a_single_size_have_numbers() -> None:
    single = (
        measured("gemm", m=(16,), n=(4096,), k=(4096,)),
        measured("attention_decode", batch=(1,), kv_len=(128,), **HEADS),
    )
    page = page_figure(*fitted(*single, small()[-1]))
    page.canvas.draw()
    for axis in (axis for ax in page.axes for axis in (ax.xaxis, ax.yaxis)):
        low, high = axis.get_view_interval()
        assert [
            label
            for label in axis.get_majorticklabels()
            if min(low, high) <= sum(label.get_position()) <= max(low, high)
        ]


def test_a_page_is_one_png_of_1400_pixels(tmp_path: Path) -> None:
    plot_page(*fitted(*small()), tmp_path / "page.png")
    content = (tmp_path / "page.png").read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["page.png"]
    assert content.startswith(b"\x89PNG")
    assert int.from_bytes(content[16:20], "big") == 1400


def test_every_op_of_a_profile_can_be_drawn() -> None:
    assert set(KINDS) == set(AXES)
    assert all(kind.axis in AXES[op] for op, kind in KINDS.items())


def test_matplotlib_is_imported_only_to_draw() -> None:
    script = "import calib.plots.page, sys; print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
