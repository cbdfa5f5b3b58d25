"""The names under which gymnasium knows the probes: `gymnasium.make("rlref/Discount-v0")`.

gymnasium calls `register` when it is imported, through the entry point in pyproject.toml; so this file imports nothing.
"""

NAMES = (
    "constant",
    "obs_value",
    "discount",
    "reset_leak",
    "truncation_pair",
    "truncation_loop",
    "bandit",
    "context_bandit",
    "table",
    "env_axis",
    "reset_temptation",
    "reset_temptation_visible",
    "delayed_credit",
    "noisy_reward",
    "small_rewards",
    "large_rewards",
    "soft_bandit_1",
    "soft_bandit_2",
    "password",
    "will_to_live",
    "offset_obs",
    "continuous_target",
    "boundary",
    "pixels",
    "target_chain",
    "target_loop",
    "max_not_mean",
    "phase_flip",
)


def gym_id(name: str) -> str:
    """`truncation_pair` -> `rlref/TruncationPair-v0`."""
    return f"rlref/{name.title().replace('_', '')}-v0"


def register() -> None:
    """Tell gymnasium of every probe."""
    import gymnasium

    for name in NAMES:
        if gym_id(name) not in gymnasium.registry:
            gymnasium.register(gym_id(name), entry_point="probes.gym:ProbeEnv", kwargs={"name": name})
