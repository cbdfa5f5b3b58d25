"""An adapter for `rlref probe`: what makes an agent of closure_ppo.py, as probes/README.md shows it."""

import jax
from closure_ppo import CONFIG, ActorCritic, make_train

from probes.adapters import PUREJAXRL, closure

Config, make, Agent, train = closure(
    make_train,
    CONFIG,
    network=lambda config, env, env_params: ActorCritic(env.action_space(env_params).n, config["ACTIVATION"]),
    policy=lambda network, params, obs: jax.nn.softmax(network.apply(params, obs.ravel().astype(float))[0]),
    value=lambda network, params, obs: network.apply(params, obs.ravel().astype(float))[1],
    names=PUREJAXRL | {"NORMALIZE_ADVANTAGES": "norm_adv"},
)
