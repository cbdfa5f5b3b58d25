"""rlref's PPO with options that were tried, to see which of them earn a place in it: what differs from ppo.py.

For `ablation.py`, which plants these replacements in a copy.
"""

from pathlib import Path

from mutants import plant

PPO = Path(__file__).resolve().parent.parent / "rlref" / "ppo.py"
REPLACE = [
    (
        """\
    activation: Literal["tanh", "relu", "swish"] = static("tanh")  # activation of the hidden layers
""",
        """\
    activation: Literal["tanh", "relu", "swish", "elu"] = static("tanh")  # activation of the hidden layers
""",
    ),
    (
        """\
    init_log_std: float = leaf(0.0)  # log standard deviation of every action dimension at the start; for Box actions
""",
        """\
    init_log_std: float = leaf(0.0)  # log standard deviation of every action dimension at the start; for Box actions
    critic_sizes: tuple[int, ...] | None = static(None)  # units of each hidden layer of the critic; None: the actor's
    state_std: bool = static(False)  # a standard deviation that depends on the observation
    squash: bool = static(False)  # a Gaussian squashed by tanh to the Box, in place of clipping
    rescale_actions: bool = static(False)  # the policy works in -1 to 1, stretched to the Box
    recompute_advantages: bool = static(False)  # by the value of now, at the beginning of each epoch
""",
    ),
    (
        """\
    layers = config.hidden_sizes, config.activation, config.layer_norm, config.conv_layers
""",
        """\
    layers = (
        config.hidden_sizes, config.activation, config.layer_norm, config.conv_layers,
        config.critic_sizes or config.hidden_sizes, config.state_std,
    )  # fmt: skip
""",
    ),
    (
        """\
        return distribution.mean[0], jnp.exp(distribution.log_std[0])
""",
        """\
        mean, std = distribution.mean[0], jnp.exp(distribution.log_std[0])
        if not (config.squash or config.rescale_actions):
            return mean, std
        half = jnp.asarray((action_space.high - action_space.low) / 2).reshape(-1)
        middle = jnp.asarray((action_space.high + action_space.low) / 2).reshape(-1)
        return middle + half * (jnp.tanh(mean) if config.squash else mean), half * std
""",
    ),
    (
        """\
    value = forward(task, state.params, state.obs_moments, flat(rollout.obs))[1].reshape(reward.shape)
    next_value = forward(task, state.params, state.obs_moments, flat(rollout.final_obs))[1].reshape(reward.shape)
    advantage = gae(reward, value, next_value, rollout.terminated, rollout.truncated, config.gamma, config.gae_lambda)
    target = advantage + value
    batch = flat(Batch(rollout.obs, rollout.action, rollout.policy, rollout.log_prob, value, advantage, target))
""",
        """\
    old_moments = state.obs_moments

    def batch_by(params: Any) -> Batch:
        value = forward(task, params, old_moments, flat(rollout.obs))[1].reshape(reward.shape)
        after = forward(task, params, old_moments, flat(rollout.final_obs))[1].reshape(reward.shape)
        advantage = gae(reward, value, after, rollout.terminated, rollout.truncated, config.gamma, config.gae_lambda)
        target = advantage + value
        return flat(Batch(rollout.obs, rollout.action, rollout.policy, rollout.log_prob, value, advantage, target))

    batch = batch_by(state.params)
""",
    ),
    (
        """\
    state, aux = learn(task, state, batch, indices, learning_rate)
""",
        """\
    again = batch_by if config.recompute_advantages else None
    state, aux = learn(task, state, batch, indices, learning_rate, again)
""",
    ),
    (
        """\
    return jnp.clip(action.reshape(action.shape[0], *space.shape), space.low, space.high).astype(space.dtype)
""",
        """\
    action = action.reshape(action.shape[0], *space.shape)
    half, middle = (space.high - space.low) / 2, (space.high + space.low) / 2
    if task.config.squash:
        action = middle + half * jnp.tanh(action)
    elif task.config.rescale_actions:
        action = middle + half * action
    return jnp.clip(action, space.low, space.high).astype(space.dtype)
""",
    ),
    (
        """\
def learn(task: Task, state: State, batch: Batch, indices: Array, learning_rate: Array) -> tuple[State, Metrics]:
""",
        """\
def learn(
    task: Task, state: State, batch: Batch, indices: Array, learning_rate: Array, again: Any = None
) -> tuple[State, Metrics]:
""",
    ),
    (
        """\
    def minibatch_step(carry: tuple[Any, ...], index: Array) -> tuple[tuple[Any, ...], Metrics]:
""",
        """\
    def minibatch_step(batch: Batch, carry: tuple[Any, ...], index: Array) -> tuple[tuple[Any, ...], Metrics]:
""",
    ),
    (
        """\
        (params, opt_state, going), aux = scan(minibatch_step, carry, indices)
""",
        """\
        each = batch if again is None else again(unravel(carry[0]))
        (params, opt_state, going), aux = scan(partial(minibatch_step, each), carry, indices)
""",
    ),
    (
        """\
    total = policy_loss + config.vf_coef * value_loss - config.ent_coef * policy.entropy().mean()
""",
        """\
    entropy = policy.entropy()
    if config.squash and isinstance(policy, DiagonalGaussian):  # of tanh of it: one draw's log determinant, in actions
        noise: Any = jax.lax.stop_gradient(batch.action - policy.mean) * jnp.exp(-policy.log_std)
        u = policy.sample(jax.lax.stop_gradient(noise))
        entropy += jnp.sum(2 * (math.log(2) - u - jax.nn.softplus(-2 * u)), axis=-1)
    total = policy_loss + config.vf_coef * value_loss - config.ent_coef * entropy.mean()
""",
    ),
    (
        """\
    conv_layers: tuple[tuple[int, int, int], ...]

    @nn.compact
""",
        """\
    conv_layers: tuple[tuple[int, int, int], ...]
    critic_sizes: tuple[int, ...]
    state_std: bool

    @nn.compact
""",
    ),
    (
        """\
        actor = self.torso(x, "torso" if x.ndim == 4 else "actor")
        critic = actor if x.ndim == 4 else self.torso(x, "critic")
""",
        """\
        actor = self.torso(x, "torso" if x.ndim == 4 else "actor", self.hidden_sizes)
        critic = actor if x.ndim == 4 else self.torso(x, "critic", self.critic_sizes)
""",
    ),
    (
        """\
        log_std = self.param("log_std", lambda _: jnp.full((self.num_outputs,), init_log_std, jnp.float32))
""",
        """\
        log_std = self.param("log_std", lambda _: jnp.full((self.num_outputs,), init_log_std, jnp.float32))
        if self.state_std:
            log_std += nn.Dense(self.num_outputs, kernel_init=orthogonal(0.01), name="std_head", use_bias=False)(actor)
""",
    ),
    (
        """\
    def torso(self, x: Array, name: str) -> Array:
""",
        """\
    def torso(self, x: Array, name: str, sizes: tuple[int, ...]) -> Array:
""",
    ),
    (
        """\
        for i, size in enumerate(self.hidden_sizes):
""",
        """\
        for i, size in enumerate(sizes):
""",
    ),
    (
        '''\
"""Proximal Policy Optimisation (Schulman et al. 2017, arXiv:1707.06347), alone in this file.
''',
        '''\
"""rlref's PPO with options that were tried, to see which of them earn a place in it: for `rlref ablate` alone.

Proximal Policy Optimisation (Schulman et al. 2017, arXiv:1707.06347), alone in this file.
''',
    ),
]


def source() -> str:
    """The file with the options in it. Raises ValueError unless each text to be replaced occurs exactly once."""
    return plant("PPO with more options", PPO.read_text(), REPLACE)
