"""Which settings mattered in a random search: the share of the score's variance that each accounts for.

Settings are drawn independently, so the shares add up: each is an estimate of the first-order index of Sobol (1993),
by a regression on polynomials (Sudret 2008, "Global sensitivity analysis using polynomial chaos expansions").
"""

import warnings
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

Array = np.ndarray
RESAMPLES = 1000
PLACES = np.linspace(0, 1, 50)  # where the fit is drawn
SPARE = 10  # least residual degrees of freedom; with fewer there is no regression


class Importance(NamedTuple):
    """What one setting accounts for."""

    share: float
    """of the variance between the settings tried, corrected for chance (epsilon squared, Kelley 1935): about 0, and
    possibly negative, if the setting does not matter"""
    low: float
    high: float
    """`low` and `high`: 95 % bootstrap interval over the settings tried"""
    p: float
    """p-value of the F test that the setting accounts for nothing"""


class Regression(NamedTuple):
    """Score on settings, without interactions."""

    importances: dict[str, Importance]
    explained: float
    """share of the variance that all settings together account for, corrected for chance: adjusted R^2"""
    luck: float
    """share of the variance that is the seeds' luck, by one-way analysis of variance; NaN for one seed. The rest is
    interactions, and curves that are no parabolas"""
    curves: dict[str, Array]
    """numeric setting -> fitted score at PLACES, with the other settings at their mean"""


def regression(scores: Array, places: Mapping[str, Array]) -> Regression | None:
    """Regress the mean score over seeds on settings; None if too few settings were tried, or all scored the same.

    Args:
      scores: `[K, S]`, finite.
      places: setting -> `[K]`: its position in its range as floats in [0, 1], which enter as a parabola; or the index
        of its choice as integers.
    """
    from scipy import stats

    y = scores.mean(axis=1)
    blocks = {name: design_columns(x) for name, x in places.items()}
    columns = np.concatenate([np.ones((len(y), 1)), *blocks.values()], axis=1)
    owner = np.array([-1, *(i for i, block in enumerate(blocks.values()) for _ in range(block.shape[1]))])
    spare = len(y) - columns.shape[1]
    if spare < SPARE or np.ptp(y) == 0:
        return None
    (coefficients,), (residual,), (lost,) = fit(columns[None], y[None], owner)
    total, noise = ((y - y.mean()) ** 2).sum(), residual / spare

    drawn = np.random.default_rng(0).integers(0, len(y), (RESAMPLES, len(y)))
    _, _, losses = fit(columns[drawn], y[drawn], owner)
    resampled = losses / np.maximum(y[drawn].var(axis=1) * len(y), 1e-300)[:, None]

    importances = {}
    for i, (name, block) in enumerate(blocks.items()):
        q = block.shape[1]
        share = (lost[i] - q * noise) / total
        # Repeated settings make a fit look better than it is: only the bootstrap's spread is used, not its centre.
        low, high = share + np.quantile(resampled[:, i] - resampled[:, i].mean(), [0.025, 0.975])
        p = stats.f.sf(lost[i] / q / noise, q, spare) if noise > 0 else 0.0
        importances[name] = Importance(float(share), float(low), float(high), float(p))
    curves = {
        name: coefficients[0] + design_columns(PLACES) @ coefficients[owner == i]
        for i, (name, x) in enumerate(places.items())
        if x.dtype.kind == "f"
    }
    return Regression(importances, float(1 - noise / (total / (len(y) - 1))), seed_variance_share(scores), curves)


def design_columns(x: Array) -> Array:
    """The columns of a setting, `[K, q]`: Legendre polynomials of degree 1 and 2, or centred indicators of its choices.

    For uniform places the polynomials are orthogonal to each other and to a constant. The first choice has no column.
    """
    if x.dtype.kind == "f":
        z = 2 * x - 1
        return np.stack([z, (3 * z**2 - 1) / 2], axis=1)
    chosen = (x[:, None] == np.unique(x)[1:]).astype(np.float64)
    return chosen - chosen.mean(axis=0)  # so that the constant stays the mean over all


def fit(columns: Array, y: Array, owner: Array) -> tuple[Array, Array, Array]:
    """Least squares of `y` `[R, K]` on `columns` `[R, K, P]`; `owner` `[P]`: the setting of each, -1 for the constant.

    Returns coefficients `[R, P]`, the residual sum of squares `[R]`, and its increase without the columns of each
    setting `[R, owners]`.
    """
    inverse = np.linalg.pinv(np.swapaxes(columns, 1, 2) @ columns, hermitian=True)
    coefficients = (inverse @ (np.swapaxes(columns, 1, 2) @ y[..., None]))[..., 0]
    residual = ((y - (columns @ coefficients[..., None])[..., 0]) ** 2).sum(axis=1)
    lost = []
    for i in range(owner.max() + 1):
        own = np.flatnonzero(owner == i)
        block = np.linalg.pinv(inverse[:, own[:, None], own], hermitian=True)
        lost.append(np.einsum("ri,rij,rj->r", coefficients[:, own], block, coefficients[:, own]))
    return coefficients, residual, np.stack(lost, axis=1)


def seed_variance_share(scores: Array) -> float:
    """The share of the variance of settings' mean scores, `[K, S]`, that comes from the seeds; NaN for one seed."""
    if scores.shape[1] < 2:
        return float("nan")
    within = scores.var(axis=1, ddof=1).mean() / scores.shape[1]
    return float(min(1.0, within / scores.mean(axis=1).var(ddof=1)))


def ped_anova(scores: Array, places: Mapping[str, Array], target: float) -> dict[str, float] | None:
    """How much each setting's distribution among the best differs from that among all; None without optuna.

    PED-ANOVA (Watanabe et al. 2023, "PED-ANOVA: Efficiently Quantifying Hyperparameter Importance in Arbitrary
    Subspaces"), by optuna; the values add up to 1. None too where all settings score alike.

    Args:
      scores: `[K]`, of each setting.
      places: as in `regression`.
      target: which share of the settings counts as the best.
    """
    if np.ptp(scores) == 0:
        return None  # the best are all: optuna would call every setting equally important
    try:
        import optuna
    except ImportError:
        return None
    from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns that it is new
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        ranges: dict[str, BaseDistribution] = {
            name: FloatDistribution(0, 1) if x.dtype.kind == "f" else CategoricalDistribution(np.unique(x).tolist())
            for name, x in places.items()
        }
        study = optuna.create_study(direction="maximize")
        for k, score in enumerate(scores.tolist()):
            params = {name: x[k].item() for name, x in places.items()}
            study.add_trial(optuna.trial.create_trial(params=params, distributions=ranges, value=score))
        evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=target)
        return dict(optuna.importance.get_param_importances(study, evaluator=evaluator))
