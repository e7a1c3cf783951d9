"""Profiles: the calibrated step times of one GPU. What `calib` may use of latency goes through this front door."""

from __future__ import annotations

from simkit.latency.latent_work import DIMS, OF_DEEPSEEK_V3
from simkit.latency.physics import (
    ARRAYS,
    ELEMENT_BYTES,
    MEMORY_BOUND_OPS,
    SCALARS,
    Heads,
    Limits,
    Physics,
    Sizes,
    Skew,
    Varlen,
    Work,
    added,
    launch_us,
    skewed,
    work_of,
)
from simkit.latency.profile.experts import EXPERT_FORMATS, ExpertFit, ExpertShape, expert_work, lies_between
from simkit.latency.profile.read import (
    NAME,
    describe,
    is_shipped,
    list_profiles,
    load_profile,
    parse_profile,
    profile_text,
)
from simkit.latency.profile.residuals import (
    AXES,
    EXTRA,
    HEADS,
    KEYS,
    OpFit,
    Prediction,
    ResidualGrid,
    between_neighbours,
    grid_key_sizes,
    grid_keys,
    log_sizes,
    to_nested,
)
from simkit.latency.profile.values import (
    SCHEMA,
    EngineHost,
    Host,
    HostTerms,
    Mixed,
    NotMeasured,
    Profile,
    ProfileError,
)
from simkit.latency.routing import MEASURED_EXPONENT, Load, balanced_load, power_law_load
from simkit.latency.shapes import formats, head_gemm, layer_gemms
from simkit.specs.dtypes import BLOCK_SCALED, MODEL_DTYPES

__all__ = [
    "ARRAYS", "AXES", "BLOCK_SCALED", "DIMS", "ELEMENT_BYTES", "EXPERT_FORMATS", "EXTRA", "HEADS", "KEYS",
    "MEASURED_EXPONENT", "MEMORY_BOUND_OPS", "MODEL_DTYPES", "NAME", "OF_DEEPSEEK_V3", "SCALARS", "SCHEMA",
    "EngineHost", "ExpertFit", "ExpertShape", "Heads", "Host", "HostTerms", "Limits", "Load", "Mixed", "NotMeasured",
    "OpFit", "Physics", "Prediction", "Profile", "ProfileError", "ResidualGrid", "Sizes", "Skew", "Varlen", "Work",
    "added", "balanced_load", "between_neighbours", "describe", "expert_work", "formats", "grid_key_sizes",
    "grid_keys", "head_gemm", "is_shipped", "launch_us", "layer_gemms", "lies_between", "list_profiles",
    "load_profile", "log_sizes", "parse_profile", "power_law_load", "profile_text", "skewed", "to_nested", "work_of",
]  # fmt: skip
