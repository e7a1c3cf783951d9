"""The link between GPUs: all-reduces over PCIe and as stated, against measured ones and numbers by hand."""

from __future__ import annotations

import numpy as np
import pytest

from simkit.errors import InputError
from simkit.latency.effects import DATA_SHEET, STATED
from simkit.latency.link import Link, StatedLink
from simkit.specs.hardware import load_gpu

KIB, MIB = 1 << 10, 1 << 20


def us(gpu: str, ranks: int, num_bytes: float, stated: StatedLink | None = None) -> float:
    """One all-reduce over PCIe, or over the link that is stated."""
    link = Link(load_gpu(gpu), ranks, "pcie", stated)
    return float(link.all_reduce_ns(np.array([float(num_bytes)]), np.ones(1))[0]) / 1e3


@pytest.mark.parametrize(
    ("gpu", "ranks", "num_bytes", "measured_us"),
    [
        ("l40s-48gb", 2, 4 * KIB, 5.583),
        ("l40s-48gb", 2, 64 * MIB, 3541.613),
        ("l40s-48gb", 4, 128 * KIB, 59.629),
        ("l40s-48gb", 4, 64 * MIB, 27241.482),
        ("l40s-48gb", 8, 4 * KIB, 26.733),
        ("l40s-48gb", 8, 256 * KIB, 207.082),
        ("l40s-48gb", 8, 64 * MIB, 60072.983),
        ("rtx-pro-6000", 2, 1 * MIB, 30.146),
        ("rtx-pro-6000", 4, 8 * MIB, 461.988),
        ("rtx-pro-6000", 8, 8 * KIB, 26.571),
        ("rtx-pro-6000", 8, 64 * MIB, 5067.457),
    ],
)
def test_an_all_reduce_over_pcie_takes_what_was_measured(
    gpu: str, ranks: int, num_bytes: int, measured_us: float
) -> None:
    assert us(gpu, ranks, num_bytes) == pytest.approx(measured_us, rel=0.3)


def test_between_the_measured_numbers_of_gpus_a_bus_gives_what_lies_between() -> None:
    for num_bytes in (KIB, 16 * MIB):
        four, six, eight = (us("l40s-48gb", ranks, num_bytes) for ranks in (4, 6, 8))
        assert four < six < eight
    # 58 % of the way from 4 to 8: 13.5 + 0.585 x 12.1 us, and 0.116 - 0.585 x 0.055 of 32 GB/s.
    assert us("l40s-48gb", 6, 0) == pytest.approx(20.58, abs=0.01)
    assert us("l40s-48gb", 6, 16 * MIB) - us("l40s-48gb", 6, 0) == pytest.approx(10_424, rel=1e-3)


def test_an_older_bus_is_as_wasteful_as_gen4_and_a_newer_one_as_gen5() -> None:
    """In shares of its rate: only bytes take longer."""
    assert us("v100-sxm2-32gb", 4, 0) == us("l40s-48gb", 4, 0)
    assert us("v100-sxm2-32gb", 4, MIB) - us("v100-sxm2-32gb", 4, 0) == pytest.approx(
        2 * (us("l40s-48gb", 4, MIB) - us("l40s-48gb", 4, 0))
    )
    assert us("h100-pcie-80gb", 4, MIB) == us("rtx-pro-6000", 4, MIB)


def test_a_stated_link_is_a_ring() -> None:
    """2 (n - 1) hops of 10 us, and 2 (n - 1)/n of the message at 40 GB/s; any GPU, any number of them."""
    ring = StatedLink(latency_us=10.0, gb_per_s=40.0)
    for gpu in ("l40s-48gb", "h100-sxm5-80gb"):
        assert us(gpu, 2, 0, ring) == pytest.approx(20)
        assert us(gpu, 16, 0, ring) == pytest.approx(300)
        assert us(gpu, 2, 4e6, ring) == pytest.approx(20 + 100)
        assert us(gpu, 16, 4e6, ring) == pytest.approx(300 + 187.5)
    assert Link(load_gpu("l4-24gb"), 2, "nvlink", ring).source == STATED  # without NVLink, which it does not go over
    assert Link(load_gpu("l4-24gb"), 2, "pcie").source == DATA_SHEET


@pytest.mark.parametrize("interconnect", ["pcie", "nvlink"])
def test_more_gpus_than_a_node_has_are_refused_without_a_link(interconnect: str) -> None:
    assert Link(load_gpu("h100-sxm5-80gb"), 8, interconnect).source == DATA_SHEET
    with pytest.raises(
        InputError, match=r"^hardware\.link: missing; a node has 8 GPUs, not 9: state the link"
    ) as error:
        Link(load_gpu("h100-sxm5-80gb"), 9, interconnect)
    assert "\n" not in str(error.value)
