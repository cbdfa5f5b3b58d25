"""The names under which gymnasium knows the probes once `probes` is imported: `gymnasium.make("rlref/Discount-v0")`.

They stand here, and not only in the ladder, so that `import probes` need not wait for jax.
"""

import gymnasium

NAMES = (
    "constant",
    "obs_value",
    "discount",
    "reset_leak",
    "truncation_pair",
    "truncation_loop",
    "bandit",
    "context_bandit",
    "noisy_bandit",
    "table",
    "allowed",
    "two_choices",
    "exclusive_or",
    "env_axis",
    "reset_temptation",
    "reset_temptation_visible",
    "delayed_credit",
    "noisy_reward",
    "patience",
    "small_rewards",
    "large_rewards",
    "soft_bandit_1",
    "soft_bandit_2",
    "password",
    "will_to_live",
    "offset_obs",
    "continuous_target",
    "far_optimum",
    "curved_target",
    "boundary",
    "pixels",
    "target_chain",
    "target_loop",
    "max_not_mean",
    "allowed_next",
    "phase_flip",
)


def gym_id(name: str, variant: int = 0, kind: str = "ppo") -> str:
    """`truncation_pair` -> `rlref/TruncationPair-v0`; variants and kinds other than the first are part of the name."""
    words = [name.title().replace("_", "")]
    words += [f"variant{variant}"] if variant else []
    words += ["mirrored"] if kind == "cem" else []
    return f"rlref/{'-'.join(words)}-v0"


def register_variant(name: str, variant: int, kind: str) -> str:
    """Tell gymnasium of a probe as one seed of an agent of a kind meets it; returns its id."""
    env_id = gym_id(name, variant, kind)
    if env_id not in gymnasium.registry:
        kwargs = {"name": name, "variant": variant, "kind": kind}
        gymnasium.register(env_id, entry_point="probes.gym:ProbeEnv", kwargs=kwargs)
    return env_id


def register() -> None:
    """Tell gymnasium of every probe."""
    for name in NAMES:
        gymnasium.register(gym_id(name), entry_point="probes.gym:ProbeEnv", kwargs={"name": name})
