"""What must hold whatever the task is."""

import numpy as np

from rlref.contract import ALL, CEM, DQN, GRADIENT, PPO
from rlref.health.registry import CRITIC, EVERYTHING, POLICY, SEARCH, STEPS, Measurement, above, below, check
from rlref.health.series import Series, UnknownError


@check(
    "ERROR", ALL, "Non-finite numbers", "nonfinite", source="rlref", explains=EVERYTHING,
    tries="find the first update; lower the learning rate; look for a logarithm or a division of 0 in the environment",
    turns=("learning_rate",),
)  # fmt: skip
def nonfinite(m: Series) -> Measurement:
    """A loss, gradient, value or return is NaN or infinite: everything after it is lost."""
    return above(m["nonfinite"], 0)


@check(
    "ERROR", PPO, "First ratio is not 1", "max |ratio - 1| in the first minibatch", source="37 details",
    explains=EVERYTHING,
    tries="compare log-probs when acting and when learning: masks, normalisation, clipped actions, stale parameters",
)  # fmt: skip
def first_ratio_off(m: Series) -> Measurement:
    """Before the first gradient step the policy is the one that acted, so every ratio is 1; here it is not, so the
    stored log-probs are of another policy, other observations or other actions."""
    return above(m["first_ratio_error"], 1e-4 if m.exact else 3e-2)


@check(
    "ERROR", PPO, "Ratio never moves", "approx_kl", source="rlref", window=0.05, share=0.9, explains=(*CRITIC, *POLICY),
    tries="is the update applied? is the old log-prob computed anew in every step?",
)  # fmt: skip
def ratio_never_moves(m: Series) -> Measurement:
    """After gradient steps all ratios are still 1: the update is not applied, or the old log-prob is recomputed."""
    moving = (m["gradient_steps"] > 1) & (m["learning_rate"] > 0)
    # A deterministic policy has nowhere to go; nor has one of a single action, whose relative entropy is undefined.
    moving &= m["relative_entropy"] > 0.02 if m.discrete else np.isfinite(m["relative_entropy"])
    return below(np.abs(m["approx_kl"]) + m["clip_fraction"], 1e-12, where=moving)


@check(
    "ERROR", ALL, "KL below 0", "kl", source="Jones 2021",
    tries="check the order and the normalisation of the two distributions",
)  # fmt: skip
def kl_negative(m: Series) -> Measurement:
    """An exact KL divergence cannot be negative: it is computed wrongly, or the probabilities do not sum to 1."""
    return below(m["kl"], -1e-6 if m.exact else -1e-3)


@check(
    "ERROR", GRADIENT, "Gradient is 0", "grad_norm", source="rlref", explains=EVERYTHING,
    tries="is the loss detached from the parameters? are the rewards all 0, or all units dead?",
)  # fmt: skip
def gradient_zero(m: Series) -> Measurement:
    """The gradient is exactly 0 and the loss is not: it does not depend on the parameters."""
    loss = m["td_loss"] if m.kind == "dqn" else m["value_loss"]
    return below(m["grad_norm"], 1e-30, where=(m["gradient_steps"] > 0) & (loss > 1e-12))


@check(
    "ERROR", GRADIENT, "Parameters do not move", "update_ratio", source="rlref", explains=(*STEPS, *CRITIC, *POLICY),
    tries="is the learning rate 0, or the optimiser's step thrown away?",
    turns=("learning_rate",),
)  # fmt: skip
def parameters_frozen(m: Series) -> Measurement:
    """There is a gradient, and yet the parameters stay as they are."""
    return below(m["update_ratio"], 1e-12, where=(m["gradient_steps"] > 0) & (m["grad_norm"] > 0))


@check(
    "WARN", GRADIENT, "Learning rate off its schedule", "learning_rate / its schedule - 1", source="rlref",
    explains=(*STEPS, *CRITIC, *POLICY), tries="compare it with learning_rate and anneal_lr",
    turns=("learning_rate", "anneal_lr"),
)  # fmt: skip
def learning_rate_off(m: Series) -> Measurement:
    """The step size is not what the settings say."""
    start, left = m.setting("learning_rate"), 1 - np.arange(m.shape[1]) / m.num_updates
    expected = start * (left if m.setting("anneal_lr") else np.ones(m.shape[1]))
    return above(np.abs(m["learning_rate"] - expected) / np.maximum(start, 1e-30), 0.01)


@check(
    "WARN", GRADIENT, "Number of gradient steps is off", "gradient_steps, beside what they should be", source="rlref",
    explains=(*STEPS, *CRITIC, *POLICY), tries="look at the loops over epochs and minibatches, and at target_kl",
    turns=("update_epochs", "num_minibatches", "target_kl"),
)  # fmt: skip
def gradient_steps_off(m: Series) -> Measurement:
    """An update takes other than its number of gradient steps."""
    steps = m["gradient_steps"]
    if m.kind == "dqn":
        learned = (m["env_steps"] - m.setting("learning_starts")) // m.setting("train_frequency") + 1
        return above(np.abs(steps - np.clip(learned, 0, m.setting("cycles_per_update"))), 1)
    expected = m.setting("update_epochs") * m.setting("num_minibatches")
    if m.setting("target_kl") is None:
        return above(np.abs(steps - expected), 0)
    return above(np.maximum(steps - expected, steps % m.setting("num_minibatches")), 0)  # whole epochs, or fewer


@check(
    "WARN", DQN, "Epsilon off its schedule", "epsilon - its schedule", source="rlref", explains=(*CRITIC, *POLICY),
    tries="does it count environment steps of one seed? does it end at end_e after exploration_fraction?",
    turns=("start_e", "end_e", "exploration_fraction"),
)  # fmt: skip
def epsilon_off(m: Series) -> Measurement:
    """Random actions are not taken as often as the settings say."""
    start, end = m.setting("start_e"), m.setting("end_e")
    lasts = max(m.setting("exploration_fraction") * m.setting("total_timesteps"), 1)
    size = m.setting("cycles_per_update") * m.setting("train_frequency")
    at = np.arange(m.shape[1])[:, None] * size + np.arange(0, size, m.setting("num_envs"))  # [U, steps]
    expected = (start + (end - start) * np.minimum(at / lasts, 1)).mean(axis=1)
    return above(np.abs(m["epsilon"] - expected), 0.01)


@check(
    "WARN", DQN, "Less random than epsilon says", "action_entropy - entropy", source="rlref", window=0.05,
    share=0.8, explains=(*CRITIC, *POLICY),
    tries="is the greedy action taken where the random one should be? are keys used twice?",
)  # fmt: skip
def exploration_missing(m: Series) -> Measurement:
    """Actions pooled over an update are at least as random as the policy was on average; here they are less."""
    return below(m["action_entropy"] - m["entropy"], -0.05)


@check(
    "WARN", DQN, "Replay buffer does not fill", "buffer_fill / expected", source="rlref", explains=(*CRITIC, *POLICY),
    tries="look at the index that is written to",
    turns=("buffer_size",),
)  # fmt: skip
def buffer_off(m: Series) -> Measurement:
    """The buffer holds less than what was collected, or never overwrites."""
    expected = np.minimum(m["env_steps"] / m.setting("buffer_size"), 1)
    return below(m["buffer_fill"] / expected, 0.9)


@check(
    "ERROR", DQN, "Replay buffer changes observations", "unstorable_fraction", source="rlref", explains=EVERYTHING,
    tries="buffer_dtype same; or uint8 for whole numbers to 255, bool for 0 and 1",
    turns=("buffer_dtype",),
)  # fmt: skip
def observations_changed(m: Series) -> Measurement:
    """The environment shows what buffer_dtype cannot hold, so learning is from other observations than acting."""
    return above(m["unstorable_fraction"], 0)


@check(
    "WARN", DQN, "Replay is not uniform in age", "mean age of samples / age of the oldest", source="rlref",
    window=0.05, share=0.8, explains=(*CRITIC, *POLICY),
    tries="does sampling reach exactly what is filled, and writing go round the whole buffer?",
)  # fmt: skip
def sample_age_off(m: Series) -> Measurement:
    """Uniform samples are on average half as old as the oldest transition; here they are not."""
    oldest = np.minimum(m["env_steps"], m.setting("buffer_size"))
    size, row = m["env_steps"][:, :1], m.setting("num_envs") * m.setting("n_step")
    return above(np.abs(m["sample_age"] / oldest - 0.5), 0.1 + row / oldest, where=m["env_steps"] > 20 * size)


@check(
    "ERROR", DQN, "Target network never moves", "target_step", source="rlref", explains=EVERYTHING,
    tries="is the target synced, and the synced one used?",
)  # fmt: skip
def target_frozen(m: Series) -> Measurement:
    """At a sync the target network stays as it was, though the online network moves: it is never synced."""
    return below(m["target_step"], 1e-12, where=m["update_ratio"] > 1e-6)  # what float32 can hold


@check(
    "ERROR", DQN, "Target network is the online network", "target_distance", source="rlref", explains=EVERYTHING,
    tries="is the target a copy, or another name for the same parameters?",
)  # fmt: skip
def target_aliased(m: Series) -> Measurement:
    """Just before a sync the target network equals the online one: it moves with every gradient step."""
    return below(m["target_distance"], 1e-12, where=m["update_ratio"] > 1e-6)


@check(
    "ERROR", CEM, "Elites score below the population", "elite_mean - return_mean", source="rlref", explains=SEARCH,
    tries="look at the sign and the order of the selection",
)  # fmt: skip
def elites_below(m: Series) -> Measurement:
    """The mean score of the elites is below that of all candidates: the wrong ones are chosen."""
    margin = -1e-5 * (np.abs(m["return_mean"]) + m["return_std"])
    return below(m["elite_mean"] - m["return_mean"], margin, where=m["return_std"] > 0)


@check(
    "ERROR", CEM, "Elites are not the best", "elite_threshold - (return_max or the mean of the rest)", source="rlref",
    explains=SEARCH, tries="are as many chosen as elite_fraction says, the highest scores first?",
    turns=("elite_fraction",),
)  # fmt: skip
def elites_not_best(m: Series) -> Measurement:
    """With the elites' mean and lowest score as they are, the others would have to score higher than they do."""
    population = m.setting("population_size")
    elites = max(round(m.setting("elite_fraction") * population), 2)
    if elites >= population:
        raise UnknownError("candidates that are no elites")
    rest = (population * m["return_mean"] - elites * m["elite_mean"]) / (population - elites)
    slack = 1e-4 * (np.abs(m["return_mean"]) + m["return_std"])
    return below(m["elite_threshold"] - rest, -slack, where=m["return_std"] > 0)


@check(
    "WARN", CEM, "Extra variance off its schedule", "extra_variance - its schedule", source="Szita & Lorincz 2006",
    explains=SEARCH, tries="it falls linearly to 0 over extra_variance_fraction of the generations",
    turns=("extra_variance", "extra_variance_fraction"),
)  # fmt: skip
def extra_variance_off(m: Series) -> Measurement:
    """The noise floor is not what the settings say."""
    start, last = m.setting("extra_variance"), m.setting("extra_variance_fraction") * m.num_updates
    expected = start * np.maximum(1 - np.arange(m.shape[1]) / max(last, 1e-9), 0)
    return above(np.abs(m["extra_variance"] - expected), 0.01 * start + 1e-9)


@check(
    "ERROR", CEM, "Variance below its floor", "std_min^2 / extra variance of the generation before", source="rlref",
    explains=SEARCH, tries="is the extra variance added to the variance, after smoothing?",
)  # fmt: skip
def floor_not_held(m: Series) -> Measurement:
    """The smallest variance is below what was added to every parameter: the noise floor is not added."""
    added = m.lagged(m["extra_variance"], 0)  # by one generation
    return below(m["std_min"] ** 2 / added, 0.99, where=added > 1e-9)
