"""Metrics of a run with which nothing is wrong, for tests to break one at a time."""

import numpy as np

from rlref import cem, dqn, ppo

SEEDS, UPDATES = 8, 100
COUNT = np.arange(UPDATES)
PART = (COUNT + 1) / UPDATES


def settings(module, **changed):
    return vars(module.Config(**changed))


def healthy(kind):
    """The metrics and settings of a run with which nothing is wrong, `[SEEDS, UPDATES]`."""
    both = {
        "nonfinite": 0, "episodes": 10, "steps_per_second": 1e5, "return_count": 100, "return_mean": 20 + 80 * PART,
        "return_std": 10, "return_min": 10 + 70 * PART, "return_max": 40 + 90 * PART, "length_mean": 20 + 80 * PART,
        "length_std": 5, "length_max": 30 + 80 * PART, "length_min": 10 + 80 * PART,
    }  # fmt: skip
    learned = {
        "grad_norm": 0.4, "update_ratio": 1e-3, "value_loss": 1, "explained_variance": 0.3 + 0.5 * PART,
        "value_bias": 0.05,
        "target_mean": 1, "target_std": 1, "target_min": -1, "target_max": 3, "value_min": -1, "value_max": 3,
        "value_mean": 1, "reward_min": 0, "reward_max": 1, "reward_mean": 0.5, "reward_std": 0.5,
        "dormant_fraction": 0.1,
    }  # fmt: skip
    if kind in ("ppo", "ppo_rnn"):
        config = settings(ppo, total_timesteps=UPDATES * 512)
        entropy = 1 - 0.7 * PART
        x = both | learned | {
            "env_steps": 512 * (COUNT + 1), "learning_rate": 2.5e-4 * (1 - COUNT / UPDATES), "gradient_steps": 16,
            "first_ratio_error": 0, "approx_kl": 0.005, "kl": 0.005, "clip_fraction": 0.1, "advantage_mean": 0,
            "advantage_std": 1, "relative_entropy": entropy, "entropy": entropy * np.log(3),
        }  # fmt: skip
        if kind == "ppo_rnn":
            x |= {"memory_norm": 0.6, "memory_saturation": 0.1, "memory_kl": PART, "memory_staleness": 0.05}
            x |= {"memory_gradient": 0.9}
    elif kind == "dqn":
        config = settings(dqn, total_timesteps=UPDATES * 1000)
        steps = 1000 * (COUNT + 1)
        learning = steps >= 10_000
        epsilon = np.maximum(1 - 0.95 * (steps - 500) / 50_000, 0.05)
        learned = {name: np.where(learning, value, np.nan) for name, value in learned.items()}
        x = both | learned | {
            "env_steps": steps, "learning_rate": 2.5e-4, "gradient_steps": np.where(steps == 10_000, 1, 100 * learning),
            "epsilon": epsilon, "entropy": epsilon / 2, "relative_entropy": epsilon / 2, "action_entropy": 0.6,
            "kl": 0.01, "churn": 0.05, "td_loss": 1, "buffer_fill": np.minimum(steps / 10_000, 1),
            "overestimation": 0.1, "unstorable_fraction": 0,
            "sample_age": np.where(learning, np.minimum(steps, 10_000) / 2, np.nan),
            "target_step": np.where(learning, 0.1, np.nan), "target_distance": np.where(learning, 0.1, np.nan),
        }  # fmt: skip
    else:
        config = settings(cem, num_generations=UPDATES)
        x = both | {
            "env_steps": 1000 * (COUNT + 1), "kl": 2, "kl_refit": 3, "kl_floor": 1.4, "kl_excess": 1.6,
            "elite_mean": both["return_mean"] + 15, "elite_threshold": both["return_mean"] + 5,
            "mean_policy_return": both["return_mean"] + 5, "std_min": 0.6, "std_mean": 1.0 - 0.3 * PART,
            "extra_variance": 0.25 * np.maximum(1 - COUNT / 50, 0), "explained_variance": 0.5,
            "relative_entropy": 1, "entropy": 10,
        }  # fmt: skip
    return {name: np.tile(np.broadcast_to(np.float32(value), UPDATES), (SEEDS, 1)) for name, value in x.items()}, config
