"""What came of the training."""

import numpy as np

from rlref import stats
from rlref.contract import ALL
from rlref.health.registry import Measurement, above, below, check
from rlref.health.series import Series, UnknownError, mean_where


@check(
    "WARN", ALL, "Worse than at the start", "(return - return at the start) / its spread there", source="rlref",
    window=0.1, share=0.9, explains=("no_progress", "fell_back", "entropy_maximal", "length_constant"),
    tries="the sign of the loss or of the advantages; rewards that punish; steps that are too large",
)  # fmt: skip
def worse_than_start(m: Series) -> Measurement:
    """The policy does worse than the untrained one did: it learns the opposite, or has broken down."""
    start, spread = m.return_at_start()
    return below((m.score - start) / spread, -0.25, where=(spread > 0) & (m.progress > 0.2))


@check(
    "WARN", ALL, "No progress", "gain in return / least gain that is progress", source="rlref", window=0.1, share=0.9,
    explains=("max_return_far", "kl_at_floor"),
    tries="rlref probe on your agent, rlref inspect on your environment; then CEM, which needs no gradients",
)  # fmt: skip
def no_progress(m: Series) -> Measurement:
    """In half of the training returns rose neither by their spread at the start nor half way to the best episode."""
    level, (start, spread) = m.smooth(m.score, 0.05), m.return_at_start()
    # Where an episode pays 1 or -1, a random policy's spread is all that there is to gain.
    room = np.fmax.accumulate(m["return_max"], axis=1) - start
    enough = np.fmin(spread, room / 2)
    gain = np.fmax.accumulate(level, axis=1) - start
    return below(gain / enough, 1, where=(enough > 0) & (m.progress > 0.5))


@check(
    "WARN", ALL, "Fell back", "share of the gain in return that is left", source="rlref", window=0.1, share=0.9,
    tries="lower or anneal the learning rate; keep the best checkpoint; more seeds",
    turns=("learning_rate", "anneal_lr"),
)  # fmt: skip
def fell_back(m: Series) -> Measurement:
    """It had learned, and lost more than half of it again."""
    level = m.smooth(m.score, 0.05)
    best, (start, spread) = np.fmax.accumulate(level, axis=1), m.return_at_start()
    real = best - start > 2 * spread
    return below((level - start) / (best - start), 0.5, where=real & (m.progress > 0.3))


@check(
    "INFO", ALL, "Throughput falls", "steps_per_second, of its start", source="Jones 2021, Rahtz 2018", window=0.1,
    share=0.9, shared_by_seeds=True, tries="profile: a leak, a recompilation, or another process on the machine",
)  # fmt: skip
def throughput_falls(m: Series) -> Measurement:
    """Training has become slower and slower."""
    speed = m["steps_per_second"]
    if m.kind == "cem":  # a generation takes as long as its longest episode
        speed = np.where(m["length_std"] == 0, speed, np.nan)
    start = mean_where(speed, (m.progress > 0.1) & (m.progress <= 0.3))
    return below(m.smooth(speed) / start, 0.5, where=m.progress > 0.5)


@check(
    "WARN", ALL, "Seeds disagree", "share of seeds below half the median's gain", shared_by_seeds=True,
    source="Irpan 2018, Rahtz 2018, Henderson et al. 2018",
    tries="more seeds, and the interquartile mean with its interval; look at what the bad ones have in common",
)  # fmt: skip
def seeds_disagree(m: Series) -> Measurement:
    """Some seeds learned and others did not: it got lucky, or it does not work."""
    gain = stats.last(m.smooth(m.score)) - m.at_start(m["return_mean"])[:, 0]
    gain, spread = gain[np.isfinite(gain)], m.at_start(m["return_std"])
    if len(gain) < 4:
        raise UnknownError("four seeds with returns")
    learned = np.median(gain) > np.median(spread[np.isfinite(spread)])
    at_end = np.arange(m.shape[1]) == m.num_updates - 1
    return above((gain < 0.5 * np.median(gain)).mean(), 0.3 - 1e-9, where=at_end & learned)
