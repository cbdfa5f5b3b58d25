"""The search of CEM."""

import numpy as np

from rlref.contract import CEM
from rlref.health.registry import OUTCOME, SEARCH, Measurement, above, below, check
from rlref.health.series import Series, UnknownError, spread_so_far


@check(
    "WARN", CEM, "First candidates are alike", "return_std", source="rlref", explains=SEARCH,
    tries="does every candidate, and every parameter, have its own noise? is init_variance large enough?",
)  # fmt: skip
def candidates_alike(m: Series) -> Measurement:
    """All candidates of the first generation score the same, though later returns vary: they do not differ."""
    varies = spread_so_far(m["return_min"], m["return_max"]) > 0
    return below(m["return_std"], 1e-9, where=(np.arange(m.shape[1]) == 0) & varies[:, -1:])


@check(
    "WARN", CEM, "Search ends too early", "std_mean", source="Szita & Lorincz 2006", window=0.1, share=0.9,
    explains=OUTCOME, tries="more extra_variance, for longer; a larger elite_fraction; a larger population",
    turns=("extra_variance", "extra_variance_fraction", "elite_fraction", "population_size"),
)  # fmt: skip
def search_collapse(m: Series) -> Measurement:
    """The Gaussian has shrunk to a point while scores were still getting better."""
    level = m.smooth(m.score)
    gained = level - m.lagged(level, 0.1)
    improving = gained > 0.1 * (np.fmax.accumulate(level, axis=1) - m.at_start(m.score))
    return below(m["std_mean"], 0.05 * m["std_mean"][:, :1], where=improving)


@check(
    "INFO", CEM, "KL at its floor", "kl_excess / kl_floor", source="rlref", window=0.2, share=0.9,
    explains=("no_progress",), tries="more rollouts, a larger population; unless it is solved",
    turns=("num_rollouts", "population_size"),
)  # fmt: skip
def kl_at_floor(m: Series) -> Measurement:
    """Elites move the Gaussian hardly more than random ones would: chance outweighs what scores say."""
    return below(m["kl_excess"] / m["kl_floor"], 0.1)


@check(
    "WARN", CEM, "Search widens", "std_mean / its start", source="rlref", window=0.1, share=0.9, explains=OUTCOME,
    tries="less extra_variance, or for fewer generations; is the variance taken for its root, or the other way round?",
    turns=("extra_variance", "extra_variance_fraction"),
)  # fmt: skip
def search_widens(m: Series) -> Measurement:
    """The Gaussian is wider than it began and what was added explain: it does not close in on anything."""
    added = np.cumsum(m["extra_variance"], axis=1)
    return above(m["std_mean"] / np.sqrt(m["std_mean"][:, :1] ** 2 + added), 1.2, where=m.progress > 0.3)


@check(
    "WARN", CEM, "The mean policy is not what was found", "(return_min - mean_policy_return) / spread",
    source="rlref", window=0.1, share=0.8, explains=OUTCOME,
    tries="is the Gaussian's mean evaluated, on fresh keys, as candidates are? more rollouts against lucky elites",
    turns=("num_rollouts",),
)  # fmt: skip
def policy_apart(m: Series) -> Measurement:
    """The mean's policy scores below every candidate drawn around it."""
    # Candidates share their keys, whose luck is not in their spread.
    scale = m["return_std"] + 0.25 * m.at_start(m["return_std"]) + 0.05 * np.abs(m["return_mean"])
    return above((m["return_min"] - m["mean_policy_return"]) / scale, 1, where=scale > 0)


@check(
    "INFO", CEM, "Searches end alike", "interquartile range of the seeds' last scores / their median gain",
    source="Mania et al. 2018", shared_by_seeds=True,
    tries="larger hidden_sizes, normalize_observations, or another agent; unless there is no more to have",
    turns=("hidden_sizes", "normalize_observations"),
)  # fmt: skip
def policy_class_limits(m: Series) -> Measurement:
    """The middle half of the searches have stopped at one level: the policy's class limits them, or the task."""
    spread, at_end = apart_at_the_end(m)
    return below(spread, 0.05, where=at_end)


@check(
    "INFO", CEM, "Searches end apart", "interquartile range of the seeds' last scores / their median gain",
    source="Mania et al. 2018", shared_by_seeds=True,
    tries="a larger population, more rollouts, more extra_variance for longer; the best seed shows what can be had",
    turns=("population_size", "num_rollouts", "extra_variance", "extra_variance_fraction"),
)  # fmt: skip
def search_limits(m: Series) -> Measurement:
    """Most searches have stopped, at different levels: policies of this class can do more than most seeds found."""
    spread, at_end = apart_at_the_end(m)
    return above(spread, 0.2, where=at_end)


def apart_at_the_end(m: Series) -> tuple[np.ndarray, np.ndarray]:
    """How far seeds' scores are apart, to what they have gained; and where that counts: at the end, if all is over.

    It is over if within the last fifth of the training scores have changed by less than a twentieth of the gain: what
    falls again has found more than it ends with.
    """
    level = m.smooth(m.score)
    end, before = level[:, -1], m.lagged(level, 0.2)[:, -1]
    gain = end - m.at_start(m.score)[:, 0]
    known = np.isfinite(gain) & np.isfinite(before)
    if known.sum() < 4:
        raise UnknownError("four seeds with returns")
    median = np.median(gain[known])
    low, high = np.quantile(end[known], [0.25, 0.75])
    over = median > 0 and abs(np.median((end - before)[known])) < 0.05 * median
    return np.full(m.shape[1], (high - low) / median), (np.arange(m.shape[1]) == m.num_updates - 1) & over
