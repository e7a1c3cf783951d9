"""The fit of host terms on models whose terms are known: linear ones, hidden ones, ones that act alike."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simkit.latency.profile.values import HostTerms
from simkit.types import Floats
from simkit.validation.runs.host_fit import HostFit, Predict, fit_host

START = HostTerms(500.0, 0.0, 0.0)
ALL = ("fixed_us", "per_seq_us", "first_token_us")
SEQS = np.array([1.0, 4.0, 16.0, 64.0])
GPU_US = np.array([9_000.0, 9_500.0, 11_000.0, 16_000.0])


def serve(terms: HostTerms, *, hides: bool = False) -> Floats:
    """TPOT and TTFT, in us, at four loads: a step a token, one step and the path of a request to the first."""
    host = terms.fixed_us + terms.per_seq_us * SEQS
    step = np.maximum(GPU_US, host) if hides else GPU_US + host
    return np.concatenate([step, 2 * step + terms.first_token_us])


def hiding(terms: HostTerms) -> Floats:
    return serve(terms, hides=True)


def close(found: HostTerms, truth: HostTerms, relative: float = 1e-6) -> bool:
    return all(getattr(found, name) == pytest.approx(getattr(truth, name), rel=relative, abs=1e-6) for name in ALL)


@settings(max_examples=40, deadline=None)
@given(fixed=st.floats(0, 2e4), per_seq=st.floats(0, 300), first_token=st.floats(0, 2e5))
def test_terms_of_a_linear_model_are_found_exactly(fixed: float, per_seq: float, first_token: float) -> None:
    truth = HostTerms(fixed, per_seq, first_token)
    fit = fit_host(serve, serve(truth), START, ALL)
    assert close(fit.terms, truth)
    assert (fit.fitted, fit.idle, fit.alike) == (ALL, (), ())
    assert np.abs(fit.after).max() < 1e-9
    assert fit.before == pytest.approx(serve(START) / serve(truth) - 1)


def test_terms_that_are_not_wanted_stay() -> None:
    truth = HostTerms(1500.0, 0.0, 700.0)
    fit = fit_host(serve, serve(truth), HostTerms(500.0, 0.0, 700.0), ("fixed_us",))
    assert close(fit.terms, truth)
    assert fit.fitted == ("fixed_us",)


def test_no_term_falls_below_zero_and_the_others_make_the_best_of_it() -> None:
    """An engine faster than its kernels: the step terms end at 0, and the path of a request is still found."""
    measured = np.concatenate([0.97 * GPU_US, 2 * GPU_US + 3_000])
    fit = fit_host(serve, measured, START, ALL)
    assert (fit.terms.fixed_us, fit.terms.per_seq_us) == (0, 0)
    assert fit.terms.first_token_us > 0
    alone = fit_host(serve, measured, HostTerms(0.0, 0.0, 0.0), ("first_token_us",))
    assert fit.terms.first_token_us == pytest.approx(alone.terms.first_token_us, rel=1e-3)


def test_what_the_gpu_hides_is_idle_and_stays_as_it_was() -> None:
    truth = HostTerms(3_000.0, 20.0, 4_000.0)
    fit = fit_host(hiding, hiding(truth), START, ALL)
    assert (fit.fitted, fit.idle) == (("first_token_us",), ("fixed_us", "per_seq_us"))
    assert fit.terms == HostTerms(500.0, 0.0, pytest.approx(4_000.0))  # type: ignore[arg-type]
    assert set(fit.errors_us) == {"first_token_us"}


def test_a_host_that_is_slower_than_its_gpu_is_found_from_a_start_that_is_seen() -> None:
    truth = HostTerms(20_000.0, 100.0, 4_000.0)
    fit = fit_host(hiding, hiding(truth), HostTerms(17_000.0, 0.0, 0.0), ALL)
    assert close(fit.terms, truth, 1e-4)


def test_a_fit_that_ends_where_the_term_is_hidden_does_not_go_back_to_a_worse_start() -> None:
    """From a host far too slow the search ends below the GPU's time; the start would be seen again."""
    truth = HostTerms(500.0, 0.0, 0.0)
    fit = fit_host(hiding, hiding(truth), HostTerms(30_000.0, 0.0, 0.0), ("fixed_us",))
    assert fit.terms.fixed_us <= GPU_US[0] * 1.01
    assert np.abs(fit.after).max() < 0.01
    assert fit.fitted == ("fixed_us",)


def test_terms_that_act_alike_are_not_both_made_up() -> None:
    """At one load a step's fixed work and that for each of its sequences are one number."""

    def at_one_load(terms: HostTerms) -> Floats:
        step = 9_000 + terms.fixed_us + 16 * terms.per_seq_us
        return np.array([step, step, 2 * step + terms.first_token_us, 3 * step])

    fit = fit_host(at_one_load, at_one_load(HostTerms(1_000.0, 50.0, 2_000.0)), START, ALL)
    assert (fit.fitted, fit.alike, fit.idle) == (("fixed_us", "first_token_us"), ("per_seq_us",), ())
    assert close(fit.terms, HostTerms(1_800.0, 0.0, 2_000.0))


def noisy(seed: int, weights: bool) -> HostFit:
    """400 numbers, the second half ten times as noisy."""
    seqs = np.linspace(1, 64, 400)
    sigma = np.where(np.arange(400) < 200, 0.005, 0.05)[np.random.default_rng(0).permutation(400)]
    truth = HostTerms(1_500.0, 40.0, 0.0)

    def predict(terms: HostTerms) -> Floats:
        found: Floats = 10_000 + terms.fixed_us + terms.per_seq_us * seqs
        return found

    measured = predict(truth) * (1 + sigma * np.random.default_rng(seed).standard_normal(400))
    return fit_host(predict, measured, START, ALL[:2], 1 / sigma**2 if weights else None)


def test_standard_errors_are_those_of_repeated_fits() -> None:
    """Of 60 fits to new noise: their spread is what each of them says, and the truth is their mean."""
    fits = [noisy(seed, weights=True) for seed in range(1, 61)]
    for name, truth in (("fixed_us", 1_500.0), ("per_seq_us", 40.0)):
        found = np.array([getattr(fit.terms, name) for fit in fits])
        said = np.mean([fit.errors_us[name] for fit in fits])
        assert found.std() == pytest.approx(said, rel=0.3)
        assert abs(found.mean() - truth) < 3 * said / np.sqrt(60)


def test_weights_make_use_of_what_is_sure() -> None:
    spread = {
        weights: np.std([noisy(seed, weights).terms.per_seq_us for seed in range(1, 31)]) for weights in (True, False)
    }
    assert spread[True] < spread[False] / 2


def test_a_prediction_that_jumps_a_little_with_every_term_does_not_mislead() -> None:
    """Schedules shift with each term; here by 0.2 % of what is predicted, at random but the same for the same terms."""

    def jumping(terms: HostTerms) -> Floats:
        draw = np.random.default_rng([int(getattr(terms, name) * 1e3) for name in ALL])
        return serve(terms) * (1 + 0.002 * draw.standard_normal(8))

    truth = HostTerms(1_500.0, 40.0, 6_000.0)
    fit = fit_host(jumping, serve(truth), START, ALL)
    assert close(fit.terms, truth, 0.1)


def counted(predict: Predict) -> tuple[Predict, list[int]]:
    calls = [0]

    def counting(terms: HostTerms) -> Floats:
        calls[0] += 1
        return predict(terms)

    return counting, calls


def test_few_simulations_are_needed() -> None:
    predict, calls = counted(serve)
    fit_host(predict, serve(HostTerms(1_500.0, 40.0, 6_000.0)), START, ALL)
    assert calls[0] <= 15


def test_what_cannot_be_fitted_is_refused() -> None:
    with pytest.raises(ValueError, match="3 terms cannot be fitted to 2 measured numbers"):
        fit_host(lambda _: np.ones(2), np.ones(2), START, ALL)
    with pytest.raises(ValueError, match="measured numbers must be positive"):
        fit_host(serve, np.zeros(8), START, ALL)


def test_nothing_wanted_is_nothing_done() -> None:
    fit = fit_host(serve, serve(START) * 2, START, ())
    assert (fit.terms, fit.fitted, fit.errors_us) == (START, (), {})
