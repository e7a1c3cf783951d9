"""Routed experts of one model on a profile: their times, and what of these does not rest on measurements."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from simkit.latency.deployment import Deployment
from simkit.latency.profile import Profile
from simkit.latency.profile.experts import ExpertFit, ExpertShape, priced_as
from simkit.latency.routing import Load, load_over
from simkit.types import Bools, Floats
from simkit.units import NS_PER_US


@dataclass(frozen=True, slots=True)
class PricedExperts:
    """ns of the routed experts of one layer for 1, 2, ... rows, and names of what does not rest on measurements with
    the rows that it holds for."""

    ns: Floats
    reasons: tuple[tuple[str, Bools], ...]


def experts_of(deployment: Deployment, profile: Profile, rows: Floats) -> PricedExperts | None:
    """The times of passes of `rows` rows; None where the profile has no table that fits."""
    model, asked = deployment.model, deployment.quantization
    name = priced_as(profile.experts, deployment.dtype, asked)
    if name is None or not model.is_moe:
        return None
    fit, shape = profile.experts[name], shape_of(deployment)
    load = load_over(deployment.routing, shape.num_experts, shape.topk, shape.moe_ep, rows)
    found = fit.predict(shape, rows, load, matrices=3 if model.gated_mlp else 2)
    return PricedExperts(found.us * NS_PER_US, tuple(_reasons(fit, shape, load, found.beyond, asked)))


def shape_of(deployment: Deployment) -> ExpertShape:
    """The experts of a layer as the ranks of a deployment share them."""
    model, ranks = deployment.model, deployment.tensor_parallel_size
    divided = (1, ranks) if deployment.expert_parallel else (ranks, 1)
    return ExpertShape(
        model.num_experts, model.experts_per_token, model.hidden_size, model.moe_intermediate_size, *divided
    )


def _reasons(
    fit: ExpertFit, shape: ExpertShape, load: Load, beyond: Bools, asked: str | None
) -> Iterator[tuple[str, Bools]]:
    """What does not rest on measurements; a row has one reason, the first that holds."""
    everywhere = np.ones(len(beyond), dtype=bool)
    if not fit.measured(shape):
        yield "experts: by those of other shapes", everywhere
    elif not fit.has_spread(load.spread):
        yield "experts: routing not measured", everywhere
    elif asked == "fp8" and fit.dtype != asked:
        yield "experts of one scale: priced as scales by block", everywhere
    elif beyond.any():
        yield "experts: beyond the measured sizes", beyond
