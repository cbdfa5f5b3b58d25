"""Right edits: deliberate changes of method that a knowledgeable user makes in a copy of an agent's file; and bugs on
top of some of them.

Each edit is correct, complete and trains; a checker that calls one wrong is wrong itself. Each bug is one replacement
in an edited file, in the edited lines or elsewhere. `edits_score.py` probes both.
"""

import ast
import functools
from pathlib import Path
from typing import NamedTuple

from mutants import plant

ROOT = Path(__file__).resolve().parent.parent


class Edit(NamedTuple):
    """One change of method."""

    name: str
    agent: str
    method: str
    """what it is, and where it comes from"""
    changes: tuple[str, ...]
    """top-level definitions whose text it changes, or that it adds"""
    replace: tuple[tuple[str, str], ...]
    """old and new text; each old occurs exactly once"""


class EditedBug(NamedTuple):
    """One bug in an edited file."""

    name: str
    edit: str
    """name of the edit that it sits on"""
    old: str
    """text of the edited file, which occurs there exactly once"""
    new: str
    component: str
    """what the bug is in: a key of mutants.COMPONENTS"""
    definition: str
    """top-level definition of the file that the wrong line is in"""


@functools.cache
def edited(edit: Edit) -> str:
    """The agent's file with the edit in it. Raises ValueError unless each text to be replaced occurs exactly once."""
    source = (ROOT / "rlref" / f"{edit.agent}.py").read_text()
    return plant(f"{edit.agent}, {edit.name}", source, edit.replace)


@functools.cache
def with_bug(bug: EditedBug) -> str:
    """The edited file with the bug in it. Raises ValueError unless the bug's text occurs exactly once."""
    edit = BY_NAME[bug.edit]
    return plant(f"{edit.agent}, {edit.name}, {bug.name}", edited(edit), [(bug.old, bug.new)])


def bug_lines(bug: EditedBug) -> tuple[int, int]:
    """The first and the last line of what the bug changed, in the file that has it."""
    start = edited(BY_NAME[bug.edit]).index(bug.old)
    same = next((i for i, (x, y) in enumerate(zip(bug.old, bug.new, strict=False)) if x != y), len(bug.new))
    source, changed = with_bug(bug), bug.new[same:].rstrip("\n")
    first = source[: start + same].count("\n") + 1
    return first, first + changed.count("\n")


def definitions(source: str) -> dict[str, str]:
    """The text of each top-level function, class and assigned name of a file, decorators included."""
    found: dict[str, str] = {}
    lines = source.splitlines()
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            first, names = min([node.lineno, *(x.lineno for x in node.decorator_list)]), [node.name]
        elif isinstance(node, ast.Assign):
            first, names = node.lineno, [x.id for x in node.targets if isinstance(x, ast.Name)]
        else:
            continue
        found |= dict.fromkeys(names, "\n".join(lines[first - 1 : node.end_lineno]))
    return found


def changed_by(edit: Edit) -> set[str]:
    """The top-level definitions of the edited file that are new, or whose text is another than the agent's."""
    before = definitions((ROOT / "rlref" / f"{edit.agent}.py").read_text())
    return {name for name, text in definitions(edited(edit)).items() if before.get(name) != text}


# ---- PPO -------------------------------------------------------------------------------------------------------------
CLIP_COEF = (
    '    clip_coef: float = leaf(0.2, "[0, inf)", (0.05, 0.5, "log"))  # clip the probability ratio to 1 +- this\n'
)
ENT_COEF = '    ent_coef: float = leaf(0.01, "[0, inf)", (1e-4, 0.1, "log"))  # weight of the entropy bonus\n'
GAE_LAMBDA = (
    '    gae_lambda: float = leaf(0.95, "[0, 1]", (0.8, 1.0, "linear"))  # lambda of generalised advantage estimation\n'
)
VF_COEF = '    vf_coef: float = leaf(0.5, "[0, inf)", (0.1, 2.0, "log"))  # weight of the value loss\n'
PPO_ADAM_EPS = '    adam_eps: float = leaf(1e-5, "(0, inf)")  # Adam\'s epsilon\n'
PPO_LEARNING_RATE = (
    "    learning_rate = config.learning_rate * ((1 - step / num_updates) if config.anneal_lr else jnp.float32(1))\n"
)
TOTAL = "    total = policy_loss + config.vf_coef * value_loss - config.ent_coef * policy.entropy().mean()\n"
CLIPPED = """    clipped_ratio = jnp.clip(ratio, 1 - config.clip_coef, 1 + config.clip_coef)
    # min, the pessimistic bound: no gradient only where the ratio has moved too far in the direction that pays.
    policy_loss = -jnp.minimum(ratio * advantage, clipped_ratio * advantage).mean()
"""
SQUARED = """    squared_error = (value - batch.target) ** 2
    if config.clip_vloss:
        clipped_value = batch.value + jnp.clip(value - batch.value, -config.clip_coef, config.clip_coef)
        squared_error = jnp.maximum(squared_error, (clipped_value - batch.target) ** 2)
    value_loss = 0.5 * squared_error.mean()
"""
ADVANTAGE = """\
    advantage = gae(reward, value, next_value, rollout.terminated, rollout.truncated, config.gamma, config.gae_lambda)
    target = advantage + value
"""
GAE = '''\
def gae(reward: Array, value: Array, next_value: Array, terminated: Array, truncated: Array, gamma, gae_lambda):
    """Generalised advantage estimation (Schulman et al. 2015, arXiv:1506.02438, eq. 16); arrays are `[T]` or `[T, N]`.

        delta_t = r_t + gamma (1 - terminated_t) V(s'_t) - V(s_t)
        A_t     = delta_t + gamma lambda (1 - terminated_t) (1 - truncated_t) A_{t+1}

    Where people go wrong: `next_value` is of the step's FINAL observation, never of the one after a reset. A time limit
    does not end the value, so `truncated` keeps the bootstrap (Pardo et al. 2018, arXiv:1712.00378); yet the next step
    belongs to another episode, so either ending cuts the trace. But for imports it needs nothing of this file.
    """
    chex.assert_equal_shape((reward, value, next_value, terminated, truncated))
    delta = reward + gamma * jnp.where(terminated, 0.0, next_value) - value
    trace = gamma * gae_lambda * jnp.where(terminated | truncated, 0.0, 1.0)

    def step(advantage: Array, x: tuple[Array, Array]) -> tuple[Array, Array]:
        advantage = x[0] + x[1] * advantage
        return advantage, advantage

    return jax.lax.scan(step, jnp.zeros_like(delta[0]), (delta, trace), reverse=True, unroll=8)[1]
'''
TORSO = """            x = nn.Dense(size, kernel_init=init, name=f"{name}_{i}")(x)
            x = activation(nn.LayerNorm(name=f"{name}_norm_{i}")(x) if self.layer_norm else x)
            self.sow("intermediates", "hidden", x)
        return x
"""
MINIBATCHES = '''def minibatch_indices(key: Array, epochs: int, batch_size: int, num_minibatches: int) -> Array:
    """`[epochs, M, B]`: in each epoch every sample once, in an order of its own (37 details, core 6)."""
    # One sort of random high bits over the index as low bits; `jax.random.permutation` sorts pairs, slowly on a CPU.
    low = jnp.uint32((1 << int(batch_size - 1).bit_length()) - 1)
    order = jnp.sort(jax.random.bits(key, (epochs, batch_size)) & ~low | jnp.arange(batch_size, dtype=jnp.uint32)) & low
    return order.astype(jnp.int32).reshape(epochs, num_minibatches, batch_size // num_minibatches)
'''
LEARN = '''\
def learn(task: Task, state: State, batch: Batch, indices: Array, learning_rate: Array) -> tuple[State, Metrics]:
    """Epochs of minibatch gradient steps over one rollout, and diagnostics `[epochs, M]`."""
    optimizer, target_kl = make_optimizer(task.config, learning_rate), task.config.target_kl
    # One vector instead of a dozen arrays: an optimiser step is a few kernels, not a hundred. One that looks at single
    # layers (LAMB, Muon, masks) takes `unravel(gradient)`, `unravel(params)`, in `init` `params`; ravel its change.
    params, unravel = ravel_pytree(state.params)
    params_norm = jnp.sqrt(optax.tree.vdot(params, params))

    def minibatch_step(carry: tuple[Any, ...], index: Array) -> tuple[tuple[Any, ...], Metrics]:
        params, opt_state, going = carry
        minibatch = jax.tree.map(lambda x: x[index], batch)
        gradient, aux = jax.grad(lambda p: loss(unravel(p), task, state.obs_moments, minibatch), has_aux=True)(params)
        change, new_opt_state = optimizer.update(gradient, opt_state, params)
        aux |= {"grad_norm": optax.tree.norm(gradient), "applied": going.astype(jnp.float32)}
        aux["update_ratio"] = jnp.sqrt(optax.tree.vdot(change, change)) / params_norm
        new = optax.apply_updates(params, change), new_opt_state
        if target_kl is not None:  # not `cond`, which vmap turns into this `where` anyway
            new = jax.tree.map(partial(jnp.where, going), new, (params, opt_state))
        return (*new, going), aux

    def epoch(carry: tuple[Any, ...], indices: Array) -> tuple[tuple[Any, ...], Metrics]:
        (params, opt_state, going), aux = scan(minibatch_step, carry, indices)
        if target_kl is not None:
            going &= aux["approx_kl"].mean() <= target_kl
        return (params, opt_state, going), aux

    (params, opt_state, _), aux = jax.lax.scan(epoch, (params, state.opt_state, jnp.bool(True)), indices)
    return replace(state, params=unravel(params), opt_state=opt_state), aux
'''

PPO = [
    Edit(
        "KL penalty beside the clip",
        "ppo",
        "KL(old, new) with a fixed coefficient is added to the clipped objective (Schulman et al. 2017, section 4)",
        ("Config", "loss"),
        (
            (
                CLIP_COEF,
                CLIP_COEF
                + '    kl_coef: float = leaf(0.5, "[0, inf)", (0.01, 10.0, "log"))  # weight of the KL penalty\n',
            ),
            (
                TOTAL,
                TOTAL + "    kl = batch.policy.kl(policy).mean()  # from the policy that acted\n"
                "    total += config.kl_coef * kl\n",
            ),
            (
                '        "value_loss": value_loss,\n        "approx_kl"',
                '        "value_loss": value_loss,\n        "kl_penalty": config.kl_coef * kl,\n        "approx_kl"',
            ),
        ),
    ),
    Edit(
        "KL penalty instead of the clip",
        "ppo",
        "the ratio is not clipped; KL(old, new) with a fixed coefficient holds it (Schulman et al. 2017, eq. 8)",
        ("Config", "loss"),
        (
            (
                CLIP_COEF,
                '    clip_coef: float = leaf(0.2, "[0, inf)", (0.05, 0.5, "log"))  # of values; and of clip_fraction\n'
                '    kl_coef: float = leaf(1.0, "[0, inf)", (0.01, 10.0, "log"))  # weight of the KL penalty\n',
            ),
            (
                '    """PPO\'s objective, to be minimised, over one minibatch (Schulman et al. 2017, eq. 9); and its',
                '    """PPO\'s objective with a KL penalty, to be minimised (Schulman et al. 2017, eq. 8); and its',
            ),
            (
                CLIPPED,
                "    surrogate = -(ratio * advantage).mean()\n"
                "    kl = batch.policy.kl(policy).mean()  # from the policy that acted\n",
            ),
            (
                TOTAL,
                "    total = surrogate + config.kl_coef * kl\n"
                "    total += config.vf_coef * value_loss - config.ent_coef * policy.entropy().mean()\n",
            ),
            (
                '        "policy_loss": policy_loss,\n',
                '        "surrogate": surrogate,\n        "kl_penalty": config.kl_coef * kl,\n',
            ),
        ),
    ),
    Edit(
        "ratio not clipped",
        "ppo",
        "policy gradient with importance ratios: the surrogate of Schulman et al. 2017, eq. 6, without a clip",
        ("Config", "loss"),
        (
            (
                CLIP_COEF,
                CLIP_COEF.replace("clip the probability ratio to 1 +- this", "of values; and of clip_fraction"),
            ),
            (CLIPPED, "    surrogate = -(ratio * advantage).mean()\n"),
            (TOTAL, TOTAL.replace("policy_loss", "surrogate")),
            ('        "policy_loss": policy_loss,\n', '        "surrogate": surrogate,\n'),
        ),
    ),
    Edit(
        "A2C",
        "ppo",
        "one gradient step on each rollout, of the log-probability and no ratio (Mnih et al. 2016, arXiv:1602.01783)",
        ("Config", "update", "learn", "loss", "diagnose", "check"),
        (
            ("    num_envs: int = static(4)  #", "    num_envs: int = static(8)  #"),
            ("    num_steps: int = static(128)  #", "    num_steps: int = static(16)  #"),
            (
                "    num_minibatches: int = static(4)  # minibatches per epoch; must divide num_envs x num_steps\n"
                "    update_epochs: int = static(4)  # passes over each rollout\n",
                "",
            ),
            (
                '    learning_rate: float = leaf(2.5e-4, "[0, inf)", (1e-5, 1e-2, "log"))',
                '    learning_rate: float = leaf(1e-3, "[0, inf)", (1e-5, 1e-2, "log"))',
            ),
            ("    scale_rewards: bool = static(False)", "    scale_rewards: bool = static(True)"),
            (CLIP_COEF, ""),
            ("    clip_vloss: bool = static(True)  # clip the value's change to +- clip_coef as well\n", ""),
            (
                '    target_kl: float | None = leaf(None, "[0, inf)")  '
                "# nats; the first epoch with a KL above is the last; None: off\n",
                "",
            ),
            (
                "    key, key_collect, key_shuffle = jax.random.split(state.key, 3)\n",
                "    key, key_collect = jax.random.split(state.key)\n",
            ),
            (
                "    indices = minibatch_indices(key_shuffle, config.update_epochs, reward.size, "
                "config.num_minibatches)\n",
                "",
            ),
            (
                "    state, aux = learn(task, state, batch, indices, learning_rate)\n",
                "    state, aux = learn(task, state, batch, learning_rate)\n",
            ),
            (
                "diagnose(task, state, batch, jax.tree.map(lambda x: x[indices[0, 0]], batch), aux)",
                "diagnose(task, state, batch, aux)",
            ),
            (MINIBATCHES + "\n\n", ""),
            (
                LEARN,
                '''def learn(task: Task, state: State, batch: Batch, learning_rate: Array) -> tuple[State, Metrics]:
    """One gradient step on a whole rollout, and its diagnostics."""
    optimizer = make_optimizer(task.config, learning_rate)
    params, unravel = ravel_pytree(state.params)
    gradient, aux = jax.grad(lambda p: loss(unravel(p), task, state.obs_moments, batch), has_aux=True)(params)
    change, opt_state = optimizer.update(gradient, state.opt_state, params)
    aux |= {"grad_norm": optax.tree.norm(gradient), "update_ratio": optax.tree.norm(change) / optax.tree.norm(params)}
    return replace(state, params=unravel(optax.apply_updates(params, change)), opt_state=opt_state), aux
''',
            ),
            (
                '    """PPO\'s objective, to be minimised, over one minibatch (Schulman et al. 2017, eq. 9); and its',
                '    """A2C\'s objective, to be minimised, over one rollout; and its',
            ),
            (
                "    log_ratio = policy.log_prob(batch.action) - batch.log_prob\n    ratio = jnp.exp(log_ratio)\n",
                "    log_prob = policy.log_prob(batch.action)\n",
            ),
            (CLIPPED, "    policy_gradient_loss = -(log_prob * advantage).mean()\n"),
            (SQUARED, "    value_loss = 0.5 * ((value - batch.target) ** 2).mean()\n"),
            (TOTAL, TOTAL.replace("policy_loss", "policy_gradient_loss")),
            (
                """        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "approx_kl": (ratio - 1 - log_ratio).mean(),  # k3 of Schulman 2020, "Approximating KL Divergence"
        "clip_fraction": (jnp.abs(ratio - 1) > config.clip_coef).mean(dtype=jnp.float32),
        "ratio_error": jnp.abs(ratio - 1).max(),
""",
                """        "policy_gradient_loss": policy_gradient_loss,
        "value_loss": value_loss,
        "first_ratio_error": jnp.abs(jnp.exp(log_prob - batch.log_prob) - 1).max(),
""",
            ),
            (
                "def diagnose(task: Task, state: State, batch: Batch, part: Batch, aux: Metrics) -> dict[str, Any]:\n"
                '    """What happened in this update, in scalars: add yours below. `part` is a random minibatch of '
                '`batch`."""\n',
                "def diagnose(task: Task, state: State, batch: Batch, aux: Metrics) -> dict[str, Any]:\n"
                '    """What happened in this update, in scalars: add yours below."""\n',
            ),
            (
                'state.obs_moments, part.obs, mutable=["intermediates"]',
                'state.obs_moments, batch.obs, mutable=["intermediates"]',
            ),
            (
                '    applied, first_ratio_error = aux.pop("applied"), aux.pop("ratio_error")[0, 0]\n'
                "    means = {name: x.mean(where=applied > 0) for name, x in aux.items()}\n",
                "",
            ),
            ("        **means,\n", "        **aux,\n"),
            ('"kl": part.policy.kl(policy).mean()', '"kl": batch.policy.kl(policy).mean()'),
            (
                '        "first_ratio_error": first_ratio_error,\n        "gradient_steps": applied.sum(),\n',
                '        "gradient_steps": 1,\n',
            ),
            (
                "gradient_noise_scale(state.opt_state, part.value.size)",
                "gradient_noise_scale(state.opt_state, batch.value.size)",
            ),
            (
                "        # `means` are over all steps: one bad number shows. One infinite reward",
                "        # One infinite reward",
            ),
            ("jnp.stack([*means.values(), *jax", "jnp.stack([*aux.values(), *jax"),
            (
                "    size, wanted = config.num_envs * config.num_steps, config.num_minibatches\n",
                "    size = config.num_envs * config.num_steps\n",
            ),
            (
                "    near = sorted((m for m in range(1, size + 1) if size % m == 0), "
                "key=lambda m: abs(m - wanted))[:3]\n"
                "    if size % wanted:\n"
                '        raise ValueError(f"num_minibatches is {wanted}; it must be a divisor of {batch}, '
                'such as {sorted(near)}")\n',
                "",
            ),
        ),
    ),
    Edit(
        "V-trace",
        "ppo",
        "advantages and targets by V-trace (Espeholt et al. 2018, arXiv:1802.01561), anew in every epoch (Andrychowicz "
        "et al. 2021, arXiv:2006.05990)",
        ("Batch", "update", "vtrace", "estimated", "learn"),
        (
            (
                "    value: Array\n    advantage: Array\n    target: Array\n",
                "    value: Array  # as collected\n    advantage: Array\n    target: Array\n    reward: Array\n"
                "    terminated: Array\n    truncated: Array\n    final_obs: Array\n",
            ),
            (
                "    # Next values are of what a step led to, not the next row's values: after an ending, those are of "
                "the reset.\n",
                "",
            ),
            (
                "    next_value = forward(task, state.params, state.obs_moments, flat(rollout.final_obs))[1]"
                ".reshape(reward.shape)\n" + ADVANTAGE + "    batch = flat(Batch(rollout.obs, rollout.action, "
                "rollout.policy, rollout.log_prob, value, advantage, target))\n",
                "    acted = rollout.obs, rollout.action, rollout.policy, rollout.log_prob\n"
                "    batch = Batch(*acted, value, value, value, reward, rollout.terminated, rollout.truncated, "
                "rollout.final_obs)\n"
                "    batch = estimated(task, state.params, state.obs_moments, flat(batch))\n",
            ),
            (
                GAE,
                '''\
def vtrace(ratio: Array, reward: Array, value: Array, next_value: Array, terminated: Array, truncated: Array,
           gamma: Any, gae_lambda: Any) -> tuple[Array, Array]:  # fmt: skip
    """Advantages and targets (Espeholt et al. 2018, eq. 1, with lambda as in its remark 2); arrays are `[T, N]`.

    Where the policy is the one that acted, every ratio is 1: targets are the lambda-returns, advantages those of GAE.
    The advantage has no ratio of its own: that of the loss is its weight. Next values are of what a step led to, never
    of a reset; a time limit keeps the bootstrap, and either ending cuts the trace.
    """
    chex.assert_equal_shape((ratio, reward, value, next_value, terminated, truncated))
    weight, ended = jnp.minimum(ratio, 1.0), terminated | truncated
    delta = weight * (reward + gamma * jnp.where(terminated, 0.0, next_value) - value)
    trace = gamma * gae_lambda * weight * jnp.where(ended, 0.0, 1.0)

    def step(correction: Array, x: tuple[Array, Array]) -> tuple[Array, Array]:
        correction = x[0] + x[1] * correction
        return correction, correction

    correction = jax.lax.scan(step, jnp.zeros_like(delta[0]), (delta, trace), reverse=True, unroll=8)[1]
    later = jnp.concatenate([correction[1:], jnp.zeros_like(correction[:1])])
    next_target = next_value + gae_lambda * jnp.where(ended, 0.0, later)
    return reward + gamma * jnp.where(terminated, 0.0, next_target) - value, value + correction


def estimated(task: Task, params: Any, obs_moments: Moments | None, batch: Batch) -> Batch:
    """The batch with advantages and targets by the policy and the values of `params`."""
    shape = task.config.num_steps, task.config.num_envs
    policy, value = forward(task, params, obs_moments, batch.obs)
    next_value = forward(task, params, obs_moments, batch.final_obs)[1]
    ratio = jnp.exp(policy.log_prob(batch.action) - batch.log_prob)
    steps = (ratio, batch.reward, value, next_value, batch.terminated, batch.truncated)
    advantage, target = vtrace(*(x.reshape(shape) for x in steps), task.config.gamma, task.config.gae_lambda)
    return batch._replace(advantage=advantage.reshape(-1), target=target.reshape(-1))
''',
            ),
            (
                "    def minibatch_step(carry: tuple[Any, ...], index: Array) -> tuple[tuple[Any, ...], Metrics]:\n",
                "    def minibatch_step(batch: Batch, carry: tuple[Any, ...], index: Array) -> tuple[tuple[Any, ...], "
                "Metrics]:\n",
            ),
            (
                "        (params, opt_state, going), aux = scan(minibatch_step, carry, indices)\n",
                "        renewed = estimated(task, unravel(carry[0]), state.obs_moments, batch)\n"
                "        (params, opt_state, going), aux = scan(partial(minibatch_step, renewed), carry, indices)\n",
            ),
        ),
    ),
    Edit(
        "Monte Carlo returns",
        "ppo",
        "the advantage is the discounted return up to the episode's end minus V, lambda 1 (Sutton & Barto 2018, 13.4)",
        ("Config", "update", "returns_to_go"),
        (
            (GAE_LAMBDA, ""),
            (
                ADVANTAGE,
                "    target = returns_to_go(reward, next_value, rollout.terminated, rollout.truncated, config.gamma)\n"
                "    advantage = target - value\n",
            ),
            (
                GAE,
                '''\
def returns_to_go(reward: Array, next_value: Array, terminated: Array, truncated: Array, gamma: Any) -> Array:
    """Discounted sums of the rewards from each step on, up to the episode's end; arrays are `[T, N]`.

    Where a time limit, or the rollout's end, cuts an episode, the value of what its last step led to stands for the
    rest; `next_value` is of the step's FINAL observation, never of the one after a reset.
    """
    chex.assert_equal_shape((reward, next_value, terminated, truncated))
    bootstrap = jnp.where(terminated, 0.0, next_value)

    def step(later: Array, x: tuple[Array, ...]) -> tuple[Array, Array]:
        reward, bootstrap, ended = x
        total = reward + gamma * jnp.where(ended, bootstrap, later)
        return total, total

    xs = reward, bootstrap, terminated | truncated
    return jax.lax.scan(step, bootstrap[-1], xs, reverse=True, unroll=8)[1]
''',
            ),
        ),
    ),
    Edit(
        "AdamW",
        "ppo",
        "decoupled weight decay (Loshchilov & Hutter 2019, arXiv:1711.05101)",
        ("Config", "make_optimizer"),
        (
            (
                PPO_ADAM_EPS,
                PPO_ADAM_EPS
                + '    weight_decay: float = leaf(1e-2, "[0, inf)", (1e-4, 0.1, "log"))  # share of the weights, times '
                "the step size\n",
            ),
            (
                "    return optax.chain(optax.clip_by_global_norm(config.max_grad_norm), optax.adam(learning_rate, "
                "eps=config.adam_eps))\n",
                "    adamw = optax.adamw(learning_rate, eps=config.adam_eps, weight_decay=config.weight_decay)\n"
                "    return optax.chain(optax.clip_by_global_norm(config.max_grad_norm), adamw)\n",
            ),
        ),
    ),
    Edit(
        "residual blocks",
        "ppo",
        "each hidden layer is added to its input, where sizes are the same (He et al. 2016, arXiv:1512.03385)",
        ("Config", "Network"),
        (
            (
                "hidden_sizes: tuple[int, ...] = static((64, 64))",
                "hidden_sizes: tuple[int, ...] = static((64, 64, 64))",
            ),
            (
                TORSO,
                """            y = nn.Dense(size, kernel_init=init, name=f"{name}_{i}")(x)
            y = activation(nn.LayerNorm(name=f"{name}_norm_{i}")(y) if self.layer_norm else y)
            self.sow("intermediates", "hidden", y)
            x = x + y if x.shape == y.shape else y
        return x
""",
            ),
        ),
    ),
    Edit(
        "shared torso",
        "ppo",
        "policy and value share the hidden layers (Mnih et al. 2016, arXiv:1602.01783); with scaled "
        "rewards, so that the value's gradient leaves the policy room",
        ("Config", "Network"),
        (
            ("    scale_rewards: bool = static(False)", "    scale_rewards: bool = static(True)"),
            (
                "Features `[B, F]`: two separate MLPs. Images `[B, H, W, C]`: one shared torso, two heads.",
                "Features `[B, F]` or images `[B, H, W, C]`: one shared torso, two heads.",
            ),
            (
                '        actor = self.torso(x, "torso" if x.ndim == 4 else "actor")\n'
                '        critic = actor if x.ndim == 4 else self.torso(x, "critic")\n',
                '        hidden = self.torso(x, "torso")\n',
            ),
            ('name="policy_head")(actor)', 'name="policy_head")(hidden)'),
            ('name="value_head")(critic)', 'name="value_head")(hidden)'),
        ),
    ),
    Edit(
        "Huber value loss",
        "ppo",
        "the value's error counts linearly beyond huber_delta (Andrychowicz et al. 2021, arXiv:2006.05990, choice C17)",
        ("Config", "loss"),
        (
            (
                VF_COEF,
                VF_COEF
                + '    huber_delta: float = leaf(1.0, "(0, inf)", (0.1, 10.0, "log"))  # error from which it is '
                "linear\n",
            ),
            (
                SQUARED,
                """    error = optax.huber_loss(value, batch.target, delta=config.huber_delta)
    if config.clip_vloss:
        clipped_value = batch.value + jnp.clip(value - batch.value, -config.clip_coef, config.clip_coef)
        error = jnp.maximum(error, optax.huber_loss(clipped_value, batch.target, delta=config.huber_delta))
    huber_value_loss = error.mean()
""",
            ),
            (TOTAL, TOTAL.replace("value_loss", "huber_value_loss")),
            ('        "value_loss": value_loss,\n', '        "huber_value_loss": huber_value_loss,\n'),
        ),
    ),
    Edit(
        "two-hot critic",
        "ppo",
        "the critic's head gives a distribution over 121 values, finer near 0, that begins uniform and learns by "
        "cross-entropy with the target, shared by the two values beside it (Hafner et al. 2023, arXiv:2301.04104)",
        ("VALUES", "loss", "Network", "forward", "logits", "two_hot"),
        (
            (
                "RING = 100  # finished",
                "VALUES = jnp.sinh(jnp.linspace(-5.3, 5.3, 121))  # that the critic's distribution is over: up to 100\n"
                "RING = 100  # finished",
            ),
            (
                'nn.Dense(1, kernel_init=orthogonal(1.0), name="value_head")(critic)[..., 0]',
                'nn.Dense(VALUES.size, kernel_init=nn.initializers.zeros, name="value_head")(critic)',
            ),
            (
                """    (policy, value), *others = made if options else (made,)
""",
                """    (policy, value), *others = made if options else (made,)
    p, middle = jax.nn.softmax(value), VALUES.size // 2
    # In pairs, so that a uniform distribution gives exactly 0.
    value = ((p[..., middle + 1 :] - p[..., :middle][..., ::-1]) * VALUES[middle + 1 :]).sum(axis=-1)
""",
            ),
            (
                "@flax.struct.dataclass\nclass Moments:\n",
                """def logits(task: Task, params: Any, obs_moments: Moments | None, obs: Array) -> Array:
    \"\"\"The logits `[B, VALUES.size]` of the critic's distribution.\"\"\"
    x = features(obs, task.obs_space)
    x = x if obs_moments is None else normalize(x, obs_moments)
    return task.network.apply(params, x, task.config.init_log_std)[1]


def two_hot(x: Array) -> Array:
    \"\"\"Weights `[B, VALUES.size]` of the two values beside `x` `[B]`, whose mean is `x`.\"\"\"
    x = jnp.clip(x, VALUES[0], VALUES[-1])
    above = jnp.clip(jnp.searchsorted(VALUES, x), 1, VALUES.size - 1)
    share = (x - VALUES[above - 1]) / (VALUES[above] - VALUES[above - 1])
    one_hot = partial(jax.nn.one_hot, num_classes=VALUES.size)
    return share[:, None] * one_hot(above) + (1 - share)[:, None] * one_hot(above - 1)


@flax.struct.dataclass
class Moments:
""",
            ),
            (
                """    policy, value = forward(task, params, obs_moments, batch.obs)
    log_ratio""",
                """    policy, _ = forward(task, params, obs_moments, batch.obs)
    x = logits(task, params, obs_moments, batch.obs)
    log_ratio""",
            ),
            (
                SQUARED,
                "    value_cross_entropy = -(two_hot(batch.target) * jax.nn.log_softmax(x)).sum(axis=-1).mean()\n",
            ),
            (TOTAL, TOTAL.replace("value_loss", "value_cross_entropy")),
            ('        "value_loss": value_loss,\n', '        "value_cross_entropy": value_cross_entropy,\n'),
        ),
    ),
    Edit(
        "cosine learning rate",
        "ppo",
        "the learning rate falls to 0 along half a cosine (Loshchilov & Hutter 2017, arXiv:1608.03983, no restarts)",
        ("Config", "update"),
        (
            (
                "# lower the learning rate linearly to 0 over the training",
                "# lower the learning rate to 0, along a cosine",
            ),
            (
                PPO_LEARNING_RATE,
                "    cosine = 0.5 * (1 + jnp.cos(jnp.pi * step / num_updates))\n"
                "    learning_rate = config.learning_rate * (cosine if config.anneal_lr else jnp.float32(1))\n",
            ),
        ),
    ),
    Edit(
        "minibatches with replacement",
        "ppo",
        "each minibatch is drawn from the rollout uniformly, with replacement: plain stochastic gradients",
        ("minibatch_indices",),
        (
            (
                MINIBATCHES,
                '''def minibatch_indices(key: Array, epochs: int, batch_size: int, num_minibatches: int) -> Array:
    """`[epochs, M, B]`: each a sample drawn from all, with replacement."""
    return jax.random.randint(key, (epochs, num_minibatches, batch_size // num_minibatches), 0, batch_size)
''',
            ),
        ),
    ),
    Edit(
        "entropy bonus annealed",
        "ppo",
        "the weight of the entropy bonus falls linearly to 0 over the training (as in many tuned settings of PPO)",
        ("Config", "update"),
        (
            (
                ENT_COEF,
                ENT_COEF + "    anneal_ent: bool = static(True)  # lower that weight linearly to 0 over the training\n",
            ),
            (
                "    state, aux = learn(task, state, batch, indices, learning_rate)\n",
                "    ent_coef = config.ent_coef * ((1 - step / num_updates) if config.anneal_ent else jnp.float32(1))\n"
                "    annealed = task._replace(config=replace(config, ent_coef=ent_coef))\n"
                "    state, aux = learn(annealed, state, batch, indices, learning_rate)\n",
            ),
            (
                '    diagnostics |= summary("reward", reward)\n',
                '    diagnostics |= summary("reward", reward) | {"ent_coef": ent_coef}\n',
            ),
        ),
    ),
    Edit(
        "advantages normalised over the batch",
        "ppo",
        "advantages are normalised once over the whole rollout, not in each minibatch (as OpenAI Baselines' PPO2 did)",
        ("Config", "learn", "loss"),
        (
            ("# normalise the advantages of each minibatch", "# normalise the advantages of each rollout"),
            (
                "    params, unravel = ravel_pytree(state.params)\n    params_norm",
                "    if task.config.norm_adv:\n"
                "        advantage = (batch.advantage - batch.advantage.mean()) / (batch.advantage.std() + 1e-8)\n"
                "        batch = batch._replace(advantage=advantage)\n"
                "    params, unravel = ravel_pytree(state.params)\n    params_norm",
            ),
            (
                "    if config.norm_adv:\n"
                "        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)\n",
                "",
            ),
        ),
    ),
    Edit(
        "normal initialisation",
        "ppo",
        "weights begin as normal draws of variance scale^2 / fan-in (LeCun et al. 1998), not as orthogonal matrices",
        ("Network", "normal"),
        (
            ("kernel_init=orthogonal(0.01)", "kernel_init=normal(0.01)"),
            ("kernel_init=orthogonal(1.0)", "kernel_init=normal(1.0)"),
            ("getattr(nn, self.activation), orthogonal(math.sqrt(2))", "getattr(nn, self.activation), normal(1.0)"),
            (
                '''def orthogonal(scale: float) -> Callable[..., Array]:
    """Orthogonal initialisation (37 details, core 2); on a CPU a loop over seeds: batched QR deadlocks on few cores."""

    def initialize(key: Array, shape: Any, dtype: Any) -> Array:
        alone = partial(nn.initializers.orthogonal(scale), shape=shape, dtype=dtype)
        return jax.lax.platform_dependent(key, cpu=jax.custom_batching.sequential_vmap(alone), default=alone)

    return initialize
''',
                '''def normal(scale: float) -> Callable[..., Array]:
    """Normal draws that keep the size of what goes through a layer, times `scale`."""
    return nn.initializers.variance_scaling(scale**2, "fan_in", "normal")
''',
            ),
        ),
    ),
    Edit(
        "GELU",
        "ppo",
        "hidden layers are of GELU (Hendrycks & Gimpel 2016, arXiv:1606.08415), whatever `activation` says",
        ("Network",),
        (("getattr(nn, self.activation), orthogonal(math.sqrt(2))", "nn.gelu, orthogonal(math.sqrt(2))"),),
    ),
    Edit(
        "more metrics",
        "ppo",
        "the weights' norm, the share of actions better than expected, and how far ratios spread",
        ("loss", "diagnose"),
        (
            (
                '        "ratio_error": jnp.abs(ratio - 1).max(),\n',
                '        "ratio_error": jnp.abs(ratio - 1).max(),\n        "ratio_std": ratio.std(),\n',
            ),
            (
                '        "value_bias": (batch.target - batch.value).mean(),\n',
                '        "value_bias": (batch.target - batch.value).mean(),\n'
                '        "weights_norm": optax.tree.norm(state.params),\n'
                '        "advantage_positive": (batch.advantage > 0).mean(dtype=jnp.float32),\n',
            ),
        ),
    ),
    Edit(
        "L2 term in PPO's loss",
        "ppo",
        "half the sum of the squared weights, times l2_coef, is added to the loss (Krogh & Hertz 1992)",
        ("Config", "loss"),
        (
            (VF_COEF, VF_COEF + '    l2_coef: float = leaf(1e-4, "[0, inf)")  # weight of the squared parameters\n'),
            (TOTAL, TOTAL + "    total += task.config.l2_coef * 0.5 * optax.tree.vdot(params, params)\n"),
        ),
    ),
    Edit(
        "padded convolutions",
        "ppo",
        "images are padded with zeros, so that a stride of 1 keeps their size (Goodfellow et al. 2016, section 9.5)",
        ("patches",),
        (
            (
                "    height, width = ((n - kernel) // stride + 1 for n in x.shape[1:3])\n",
                "    before, after = (kernel - 1) // 2, kernel // 2\n"
                "    x = jnp.pad(x, ((0, 0), (before, after), (before, after), (0, 0)))\n"
                "    height, width = ((n - kernel) // stride + 1 for n in x.shape[1:3])\n",
            ),
        ),
    ),
    Edit(
        "renamed functions",
        "ppo",
        "collect, gae, learn and loss are called play, advantages, improve and cost",
        ("update", "play", "advantages", "improve", "cost"),
        (
            (
                "Read `update`, `collect`, `gae`, `learn`, `loss`: that",
                "Read `update`, `play`, `advantages`, `improve`, `cost`: it",
            ),
            ("state, rollout = collect(task, replace", "state, rollout = play(task, replace"),
            (
                "    advantage = gae(reward, value, next_value, rollout.terminated, rollout.truncated, config.gamma, "
                "config.gae_lambda)\n",
                "    ends = rollout.terminated, rollout.truncated\n"
                "    advantage = advantages(reward, value, next_value, *ends, config.gamma, config.gae_lambda)\n",
            ),
            ("state, aux = learn(task, state", "state, aux = improve(task, state"),
            ("def collect(task", "def play(task"),
            (
                "def gae(reward: Array, value: Array, next_value: Array, terminated: Array, truncated: Array, gamma, "
                "gae_lambda):",
                "def advantages(reward: Array, value: Array, next_value: Array, terminated: Array, "
                "truncated: Array, gamma, gae_lambda):",
            ),
            ("def learn(task", "def improve(task"),
            (
                "jax.grad(lambda p: loss(unravel(p), task, state.obs_moments, minibatch), has_aux=True)(params)",
                "jax.grad(lambda p: cost(unravel(p), task, state.obs_moments, minibatch), has_aux=True)(params)",
            ),
            ("def loss(params", "def cost(params"),
        ),
    ),
    Edit(
        "settings removed",
        "ppo",
        "values are never clipped, the activation is always tanh, Adam's epsilon is a constant",
        ("Config", "make", "make_optimizer", "loss", "Network"),
        (
            (PPO_ADAM_EPS, ""),
            ("    clip_vloss: bool = static(True)  # clip the value's change to +- clip_coef as well\n", ""),
            (
                '    activation: Literal["tanh", "relu", "swish"] = static("tanh")  # activation of the hidden '
                "layers\n",
                "",
            ),
            (
                "    layers = config.hidden_sizes, config.activation, config.layer_norm, config.conv_layers\n",
                "    layers = config.hidden_sizes, config.layer_norm, config.conv_layers\n",
            ),
            ("optax.adam(learning_rate, eps=config.adam_eps)", "optax.adam(learning_rate, eps=1e-5)"),
            (SQUARED, "    value_loss = 0.5 * ((value - batch.target) ** 2).mean()\n"),
            ("    hidden_sizes: tuple[int, ...]\n    activation: str\n", "    hidden_sizes: tuple[int, ...]\n"),
            (
                "        activation, init = getattr(nn, self.activation), orthogonal(math.sqrt(2))\n",
                "        init = orthogonal(math.sqrt(2))\n",
            ),
            (
                '            x = activation(nn.Dense(size, kernel_init=init, name=f"{name}_conv_{i}")',
                '            x = nn.tanh(nn.Dense(size, kernel_init=init, name=f"{name}_conv_{i}")',
            ),
            (
                '            x = activation(nn.LayerNorm(name=f"{name}_norm_{i}")',
                '            x = nn.tanh(nn.LayerNorm(name=f"{name}_norm_{i}")',
            ),
        ),
    ),
    Edit(
        "actions rescaled to the Box",
        "ppo",
        "the policy acts between -1 and 1, scaled to the bounds (as gymnasium's RescaleAction)",
        ("make", "env_action", "box_scale"),
        (
            (
                "        return distribution.mean[0], jnp.exp(distribution.log_std[0])\n",
                "        middle, half = (x.reshape(-1) for x in box_scale(action_space))\n"
                "        return middle + half * distribution.mean[0], half * jnp.exp(distribution.log_std[0])\n",
            ),
            (
                "    return jnp.clip(action.reshape(action.shape[0], *space.shape), space.low, space.high)"
                ".astype(space.dtype)\n",
                "    middle, half = box_scale(space)\n"
                "    action = middle + half * action.reshape(action.shape[0], *space.shape)\n"
                "    return jnp.clip(action, space.low, space.high).astype(space.dtype)\n"
                "\n\n"
                "def box_scale(space: Any) -> tuple[Array, Array]:\n"
                '    """The middle and half the width of a Box; 0 and 1 where it has no bounds."""\n'
                "    low, high = (jnp.broadcast_to(jnp.asarray(x, jnp.float32), space.shape) "
                "for x in (space.low, space.high))\n"
                "    bounded = jnp.isfinite(low) & jnp.isfinite(high)\n"
                "    return jnp.where(bounded, (low + high) / 2, 0.0), jnp.where(bounded, (high - low) / 2, 1.0)\n",
            ),
        ),
    ),
    Edit(
        "clip around an average policy",
        "ppo",
        "the ratio to the mean of past parameters is clipped, and weighted by what that policy is to the one that "
        "acted: PPO-EWMA (Hilton et al. 2021, arXiv:2110.00641)",
        ("Config", "State", "Average", "init", "learn", "loss"),
        (
            (
                '    clip_coef: float = leaf(0.2, "[0, inf)", (0.05, 0.5, "log"))  # clip the '
                "probability ratio to 1 +- this\n",
                '    clip_coef: float = leaf(0.2, "[0, inf)", (0.05, 0.5, "log"))  # clip the ratio '
                "to the averaged policy to 1 +- this\n"
                "    # share of the past that the mean of the parameters, which the ratio is clipped "
                "about, keeps at a gradient step\n"
                '    ewma_decay: float = leaf(0.889, "[0, 1)")\n',
            ),
            (
                "    opt_state: optax.OptState  # over the parameters as one vector\n",
                "    opt_state: optax.OptState  # over the parameters as one vector\n"
                "    average: Average  # of the parameters as one vector: the proximal policy\n",
            ),
            (
                "    return_moments: Moments | None  # of discounted_return\n",
                "    return_moments: Moments | None  # of discounted_return\n"
                "\n"
                "\n"
                "@flax.struct.dataclass\n"
                "class Average:\n"
                '    """Exponentially weighted mean of parameters, their first values included."""\n'
                "\n"
                "    mean: Array\n"
                "    weight: Array  # sum of the weights so far: 1, then 1 + decay, 1 + decay + decay^2, ...\n"
                "\n"
                "    def add(self, params: Array, decay: Any) -> Average:\n"
                "        kept = decay * self.weight\n"
                "        return Average((kept * self.mean + params) / (kept + 1), kept + 1)\n",
            ),
            (
                '    params = {"params": task.network.init(key_net, x, '
                'config.init_log_std)["params"]}  # without what `sow` adds\n',
                '    params = {"params": task.network.init(key_net, x, '
                'config.init_log_std)["params"]}  # without what `sow` adds\n'
                "    vector = ravel_pytree(params)[0]\n",
            ),
            (
                "        opt_state=make_optimizer(config, config.learning_rate).init(ravel_pytree(params)[0]),\n",
                "        opt_state=make_optimizer(config, config.learning_rate).init(vector),\n"
                "        average=Average(jnp.copy(vector), jnp.ones(())),\n",
            ),
            (
                "    optimizer, target_kl = make_optimizer(task.config, learning_rate), task.config.target_kl\n",
                "    config = task.config\n"
                "    optimizer, target_kl = make_optimizer(config, learning_rate), config.target_kl\n",
            ),
            (
                "        params, opt_state, going = carry\n",
                "        params, opt_state, average, going = carry\n",
            ),
            (
                "        gradient, aux = jax.grad(lambda p: loss(unravel(p), task, state.obs_moments, "
                "minibatch), has_aux=True)(params)\n",
                "        proximal, _ = forward(task, unravel(average.mean), state.obs_moments, minibatch.obs)\n"
                "        anchor = proximal.log_prob(minibatch.action)  # data, as far as the gradient goes\n"
                "        objective = partial(loss, task=task, obs_moments=state.obs_moments, "
                "batch=minibatch, proximal_log_prob=anchor)\n"
                "        gradient, aux = jax.grad(lambda p: objective(unravel(p)), has_aux=True)(params)\n",
            ),
            (
                "        new = optax.apply_updates(params, change), new_opt_state\n",
                "        new_params = optax.apply_updates(params, change)\n"
                "        new = new_params, new_opt_state, average.add(new_params, config.ewma_decay)\n",
            ),
            (
                "            new = jax.tree.map(partial(jnp.where, going), new, (params, opt_state))\n",
                "            new = jax.tree.map(partial(jnp.where, going), new, (params, opt_state, average))\n",
            ),
            (
                "        (params, opt_state, going), aux = scan(minibatch_step, carry, indices)\n",
                "        (*learned, going), aux = scan(minibatch_step, carry, indices)\n",
            ),
            (
                "        return (params, opt_state, going), aux\n",
                "        return (*learned, going), aux\n",
            ),
            (
                "    (params, opt_state, _), aux = jax.lax.scan(epoch, (params, state.opt_state, "
                "jnp.bool(True)), indices)\n"
                "    return replace(state, params=unravel(params), opt_state=opt_state), aux\n",
                "    start = params, state.opt_state, state.average, jnp.bool(True)\n"
                "    (params, opt_state, average, _), aux = jax.lax.scan(epoch, start, indices)\n"
                "    return replace(state, params=unravel(params), opt_state=opt_state, average=average), aux\n",
            ),
            (
                "def loss(params: Any, task: Task, obs_moments: Moments | None, batch: Batch) -> "
                "tuple[Array, Metrics]:\n"
                '    """PPO\'s objective, to be minimised, over one minibatch (Schulman et al. 2017, '
                'eq. 9); and its diagnostics."""\n',
                "def loss(\n"
                "    params: Any, task: Task, obs_moments: Moments | None, batch: Batch, proximal_log_prob: Array\n"
                ") -> tuple[Array, Metrics]:\n"
                '    """PPO\'s decoupled objective, to be minimised, over one minibatch; and its diagnostics.\n'
                "\n"
                "    Hilton, Cobbe & Schulman 2021 (arXiv:2110.00641), PPO-EWMA: the ratio to the "
                "proximal policy is clipped, and\n"
                "    what that policy is to the one that acted corrects for where the samples come from.\n"
                '    """\n',
            ),
            (
                "    log_ratio = policy.log_prob(batch.action) - batch.log_prob\n    ratio = jnp.exp(log_ratio)\n",
                "    log_prob = policy.log_prob(batch.action)\n"
                "    log_ratio = log_prob - batch.log_prob  # to the policy that acted\n"
                "    acted_ratio = jnp.exp(log_ratio)\n"
                "    ratio, correction = jnp.exp(log_prob - proximal_log_prob), "
                "jnp.exp(proximal_log_prob - batch.log_prob)\n",
            ),
            (
                "    policy_loss = -jnp.minimum(ratio * advantage, clipped_ratio * advantage).mean()\n",
                "    policy_loss = -(correction * jnp.minimum(ratio * advantage, clipped_ratio * advantage)).mean()\n",
            ),
            (
                '        "approx_kl": (ratio - 1 - log_ratio).mean(),  # k3 of Schulman 2020, '
                '"Approximating KL Divergence"\n',
                '        "approx_kl": (acted_ratio - 1 - log_ratio).mean(),  # k3 of Schulman 2020, '
                '"Approximating KL Divergence"\n',
            ),
            (
                '        "ratio_error": jnp.abs(ratio - 1).max(),\n',
                '        "ratio_error": jnp.abs(acted_ratio - 1).max(),\n',
            ),
        ),
    ),
    Edit(
        "PopArt",
        "ppo",
        "value targets in units of their own moments, which forget, and a value head that is rescaled with them (van "
        "Hasselt et al. 2016, arXiv:1602.07714)",
        (
            "Config",
            "State",
            "make",
            "init",
            "update",
            "learn",
            "popart",
            "normalize_value",
            "denormalize_value",
            "loss",
            "diagnose",
            "forward",
            "reward_scale",
        ),
        (
            (
                "    scale_rewards: bool = static(False)  # divide by the std of their discounted sum "
                "so far, never shift; clip to +-10\n",
                "    scale_rewards: bool = static(False)  # divide by the std of their discounted sum "
                "so far, never shift; clip to +-10\n"
                '    popart_rate: float = leaf(0.1, "(0, 1]")  # share of the newest rollout in the '
                "moments that normalise value targets\n",
            ),
            (
                "    return_moments: Moments | None  # of discounted_return\n",
                "    return_moments: Moments | None  # of discounted_return\n"
                "    target_moments: Moments  # of the latest value targets: the network's own output "
                "is a value normalised by these\n",
            ),
            (
                "        _, value = forward(task, state.params, state.obs_moments, obs[None])\n"
                "        return value[0] if state.return_moments is None else value[0] * "
                "reward_scale(state.return_moments)\n",
                "        _, output = forward(task, state.params, state.obs_moments, obs[None])\n"
                "        value = denormalize_value(output[0], state.target_moments)\n"
                "        return value if state.return_moments is None else value * "
                "reward_scale(state.return_moments)\n",
            ),
            (
                "        return_moments=Moments(*jnp.zeros(3)) if config.scale_rewards else None,\n",
                "        return_moments=Moments(*jnp.zeros(3)) if config.scale_rewards else None,\n"
                "        target_moments=Moments(*jnp.zeros(3)),\n",
            ),
            (
                "    value = forward(task, state.params, state.obs_moments, "
                "flat(rollout.obs))[1].reshape(reward.shape)\n"
                "    next_value = forward(task, state.params, state.obs_moments, "
                "flat(rollout.final_obs))[1].reshape(reward.shape)\n",
                "    output = forward(task, state.params, state.obs_moments, "
                "flat(rollout.obs))[1].reshape(reward.shape)\n"
                "    next_output = forward(task, state.params, state.obs_moments, "
                "flat(rollout.final_obs))[1].reshape(reward.shape)\n"
                "    value = denormalize_value(output, state.target_moments)\n"
                "    next_value = denormalize_value(next_output, state.target_moments)\n",
            ),
            (
                "    target = advantage + value\n",
                "    target = advantage + value\n"
                "    state = popart(state, target, config.popart_rate)  # from here on: new moments, "
                "and a head that goes with them\n",
            ),
            (
                "        gradient, aux = jax.grad(lambda p: loss(unravel(p), task, state.obs_moments, "
                "minibatch), has_aux=True)(params)\n",
                "        objective = partial(loss, task=task, state=state, batch=minibatch)\n"
                "        gradient, aux = jax.grad(lambda p: objective(unravel(p)), has_aux=True)(params)\n",
            ),
            (
                "def loss(params: Any, task: Task, obs_moments: Moments | None, batch: Batch) -> "
                "tuple[Array, Metrics]:\n"
                '    """PPO\'s objective, to be minimised, over one minibatch (Schulman et al. 2017, '
                'eq. 9); and its diagnostics."""\n',
                "def popart(state: State, target: Array, rate: Any) -> State:\n"
                '    """Take in the newest value targets `[T, N]`, and keep every value as it was '
                "(van Hasselt et al. 2016, PopArt).\n"
                "\n"
                "    The moments forget: a rollout's weight falls by `rate` with each that comes "
                "after it. The value head is rescaled so\n"
                "    that what `denormalize_value` makes of its output is the same before and after.\n"
                '    """\n'
                "    old = state.target_moments\n"
                "    new = replace(old, count=old.count * (1 - rate)).merge(Moments.of(target.reshape(-1)))\n"
                "    old_scale, new_scale = reward_scale(old), reward_scale(new)\n"
                '    head = state.params["params"]["value_head"]\n'
                "    head = {\n"
                '        "kernel": head["kernel"] * (old_scale / new_scale),\n'
                '        "bias": (old_scale * head["bias"] + old.mean - new.mean) / new_scale,\n'
                "    }\n"
                '    return replace(state, params={"params": {**state.params["params"], "value_head": '
                "head}}, target_moments=new)\n"
                "\n"
                "\n"
                "def normalize_value(value: Array, moments: Moments) -> Array:\n"
                '    """Values in the units of the (scaled) rewards, as the network gives them."""\n'
                "    return (value - moments.mean) / reward_scale(moments)\n"
                "\n"
                "\n"
                "def denormalize_value(output: Array, moments: Moments) -> Array:\n"
                '    """The other way."""\n'
                "    return moments.mean + reward_scale(moments) * output\n"
                "\n"
                "\n"
                "def loss(params: Any, task: Task, state: State, batch: Batch) -> tuple[Array, Metrics]:\n"
                '    """PPO\'s objective, to be minimised, over one minibatch (Schulman et al. 2017, '
                "eq. 9); and its diagnostics.\n"
                "\n"
                "    The value's part of it is in normalised units, its clip too; `batch` is not.\n"
                '    """\n',
            ),
            (
                "    policy, value = forward(task, params, obs_moments, batch.obs)\n",
                "    policy, value = forward(task, params, state.obs_moments, batch.obs)\n"
                "    old_value, target = (normalize_value(x, state.target_moments) for x in "
                "(batch.value, batch.target))\n",
            ),
            (
                "    squared_error = (value - batch.target) ** 2\n",
                "    squared_error = (value - target) ** 2\n",
            ),
            (
                "        clipped_value = batch.value + jnp.clip(value - batch.value, "
                "-config.clip_coef, config.clip_coef)\n"
                "        squared_error = jnp.maximum(squared_error, (clipped_value - batch.target) ** 2)\n",
                "        clipped_value = old_value + jnp.clip(value - old_value, -config.clip_coef, config.clip_coef)\n"
                "        squared_error = jnp.maximum(squared_error, (clipped_value - target) ** 2)\n",
            ),
            (
                '    """Policy and value at raw observations `[B, ...]`; `options` are flax\'s."""\n',
                '    """Policy and normalised value at raw observations `[B, ...]`; `options` are flax\'s."""\n',
            ),
            (
                '    """What rewards are divided by (37 details, continuous 8); 1 as long as the '
                'discounted return has not varied."""\n',
                '    """What rewards and values are divided by (37 details, continuous 8); 1 as long '
                'as what counts has not varied."""\n',
            ),
            (
                "    finished = jnp.arange(RING) < state.num_episodes\n",
                "    finished = jnp.arange(RING) < state.num_episodes\n"
                "    moments = jax.tree.leaves((state.return_moments, state.target_moments))\n",
            ),
            (
                '        "nonfinite": ~jnp.isfinite(jnp.stack([*means.values(), '
                "*jax.tree.leaves(state.return_moments)])).all(),\n",
                '        "nonfinite": ~jnp.isfinite(jnp.stack([*means.values(), *moments])).all(),\n',
            ),
        ),
    ),
    Edit(
        "policy and value in phases of their own",
        "ppo",
        "two networks with an optimiser and a lambda each, and epochs of the value after those of the policy: DNA "
        "(Aitchison and Sweetser 2022, arXiv:2206.10027), without distillation",
        (
            "Config",
            "State",
            "init",
            "update",
            "learn",
            "phase",
            "policy_loss",
            "value_loss",
            "Network",
            "diagnose",
        ),
        (
            (
                "    update_epochs: int = static(4)  # passes over each rollout\n",
                "    update_epochs: int = static(4)  # passes of the policy over each rollout\n"
                "    value_epochs: int = static(4)  # passes of the value over it, after those of the policy\n",
            ),
            (
                '    gae_lambda: float = leaf(0.95, "[0, 1]", (0.8, 1.0, "linear"))  # lambda of '
                "generalised advantage estimation\n",
                '    gae_lambda: float = leaf(0.95, "[0, 1]", (0.8, 1.0, "linear"))  # lambda of '
                "generalised advantage estimation\n"
                '    value_lambda: float = leaf(0.98, "[0, 1]", (0.8, 1.0, "linear"))  # lambda of '
                "the value's targets\n",
            ),
            (
                '    vf_coef: float = leaf(0.5, "[0, inf)", (0.1, 2.0, "log"))  # weight of the value loss\n',
                '    vf_coef: float = leaf(0.5, "[0, inf)", (0.1, 2.0, "log"))  # factor of the value '
                "loss, before its gradient's clip\n",
            ),
            (
                "    opt_state: optax.OptState  # over the parameters as one vector\n",
                '    opt_state: dict[str, optax.OptState]  # of "policy" and "value", each over all '
                "parameters as one vector\n",
            ),
            (
                '    params = {"params": task.network.init(key_net, x, '
                'config.init_log_std)["params"]}  # without what `sow` adds\n',
                '    params = {"params": task.network.init(key_net, x, '
                'config.init_log_std)["params"]}  # without what `sow` adds\n'
                "    optimizer, vector = make_optimizer(config, config.learning_rate), ravel_pytree(params)[0]\n",
            ),
            (
                "        opt_state=make_optimizer(config, config.learning_rate).init(ravel_pytree(params)[0]),\n",
                '        opt_state={"policy": optimizer.init(vector), "value": optimizer.init(vector)},\n',
            ),
            (
                "    key, key_collect, key_shuffle = jax.random.split(state.key, 3)\n",
                "    key, key_collect, key_shuffle, key_value = jax.random.split(state.key, 4)\n",
            ),
            (
                "    advantage = gae(reward, value, next_value, rollout.terminated, "
                "rollout.truncated, config.gamma, config.gae_lambda)\n"
                "    target = advantage + value\n",
                "    estimate = partial(gae, reward, value, next_value, rollout.terminated, "
                "rollout.truncated, config.gamma)\n"
                "    advantage, target = estimate(config.gae_lambda), estimate(config.value_lambda) + value\n",
            ),
            (
                "    indices = minibatch_indices(key_shuffle, config.update_epochs, reward.size, "
                "config.num_minibatches)\n",
                "    indices = minibatch_indices(key_shuffle, config.update_epochs, reward.size, "
                "config.num_minibatches)\n"
                "    value_indices = minibatch_indices(key_value, config.value_epochs, reward.size, "
                "config.num_minibatches)\n",
            ),
            (
                "    state, aux = learn(task, state, batch, indices, learning_rate)\n",
                '    state, aux = learn(task, state, batch, {"policy": indices, "value": '
                "value_indices}, learning_rate)\n",
            ),
            (
                "def learn(task: Task, state: State, batch: Batch, indices: Array, learning_rate: "
                "Array) -> tuple[State, Metrics]:\n"
                '    """Epochs of minibatch gradient steps over one rollout, and diagnostics `[epochs, M]`."""\n'
                "    optimizer, target_kl = make_optimizer(task.config, learning_rate), task.config.target_kl\n",
                "def learn(\n"
                "    task: Task, state: State, batch: Batch, indices: dict[str, Array], learning_rate: Array\n"
                ") -> tuple[State, dict[str, Metrics]]:\n"
                '    """The policy\'s epochs over one rollout, then the value\'s (DNA, Aitchison & '
                "Sweetser 2022); no distillation.\n"
                "\n"
                "    Policy and value share no parameter, so that neither phase moves the other's: "
                "there the gradient is 0 in every step\n"
                "    of the phase, and so is Adam's change. Diagnostics are `[epochs, M]` for each.\n"
                '    """\n'
                "    params, unravel = ravel_pytree(state.params)\n"
                "    params_norm = jnp.sqrt(optax.tree.vdot(params, params))\n"
                "    optimizer, opt_state, aux = make_optimizer(task.config, learning_rate), {}, {}\n"
                '    for name, loss, target_kl in (("policy", policy_loss, task.config.target_kl), '
                '("value", value_loss, None)):\n'
                "        objective = partial(loss, task=task, obs_moments=state.obs_moments)\n"
                "        carry = params, state.opt_state[name]\n"
                "        (params, opt_state[name]), aux[name] = phase(\n"
                "            objective, optimizer, unravel, params_norm, carry, batch, indices[name], target_kl\n"
                "        )\n"
                "    return replace(state, params=unravel(params), opt_state=opt_state), aux\n"
                "\n"
                "\n"
                "def phase(\n"
                "    objective: Callable[..., Any],\n"
                "    optimizer: optax.GradientTransformation,\n"
                "    unravel: Callable[[Array], Any],\n"
                "    params_norm: Array,\n"
                "    start: tuple[Array, Any],\n"
                "    batch: Batch,\n"
                "    indices: Array,\n"
                "    target_kl: Any,\n"
                ") -> tuple[tuple[Array, Any], Metrics]:\n"
                '    """Epochs of minibatch gradient steps on one objective, from parameters and the '
                'optimiser\'s state at the start."""\n',
            ),
            (
                "    params, unravel = ravel_pytree(state.params)\n"
                "    params_norm = jnp.sqrt(optax.tree.vdot(params, params))\n"
                "\n",
                "",
            ),
            (
                "        gradient, aux = jax.grad(lambda p: loss(unravel(p), task, state.obs_moments, "
                "minibatch), has_aux=True)(params)\n",
                "        gradient, aux = jax.grad(lambda p: objective(unravel(p), batch=minibatch), "
                "has_aux=True)(params)\n",
            ),
            (
                "    (params, opt_state, _), aux = jax.lax.scan(epoch, (params, state.opt_state, "
                "jnp.bool(True)), indices)\n"
                "    return replace(state, params=unravel(params), opt_state=opt_state), aux\n",
                "    (params, opt_state, _), aux = jax.lax.scan(epoch, (*start, jnp.bool(True)), indices)\n"
                "    return (params, opt_state), aux\n",
            ),
            (
                "def loss(params: Any, task: Task, obs_moments: Moments | None, batch: Batch) -> "
                "tuple[Array, Metrics]:\n"
                '    """PPO\'s objective, to be minimised, over one minibatch (Schulman et al. 2017, '
                'eq. 9); and its diagnostics."""\n',
                "def policy_loss(params: Any, task: Task, obs_moments: Moments | None, batch: Batch) "
                "-> tuple[Array, Metrics]:\n"
                '    """What the policy minimises over one minibatch (Schulman et al. 2017, eq. 9, no '
                'value); and its diagnostics."""\n',
            ),
            (
                "    policy, value = forward(task, params, obs_moments, batch.obs)\n",
                "    policy, _ = forward(task, params, obs_moments, batch.obs)\n",
            ),
            (
                "    policy_loss = -jnp.minimum(ratio * advantage, clipped_ratio * advantage).mean()\n",
                "    surrogate = -jnp.minimum(ratio * advantage, clipped_ratio * advantage).mean()\n"
                "    total = surrogate - config.ent_coef * policy.entropy().mean()\n"
                "    return total, {\n"
                '        "loss": total,\n'
                '        "policy_loss": surrogate,\n'
                '        "approx_kl": (ratio - 1 - log_ratio).mean(),  # k3 of Schulman 2020, '
                '"Approximating KL Divergence"\n'
                '        "clip_fraction": (jnp.abs(ratio - 1) > config.clip_coef).mean(dtype=jnp.float32),\n'
                '        "ratio_error": jnp.abs(ratio - 1).max(),\n'
                "    }\n"
                "\n"
                "\n"
                "def value_loss(params: Any, task: Task, obs_moments: Moments | None, batch: Batch) "
                "-> tuple[Array, Metrics]:\n"
                '    """What the value minimises over one minibatch; and its diagnostics."""\n'
                "    config = task.config\n"
                "    _, value = forward(task, params, obs_moments, batch.obs)\n",
            ),
            (
                "    value_loss = 0.5 * squared_error.mean()\n"
                "    total = policy_loss + config.vf_coef * value_loss - config.ent_coef * policy.entropy().mean()\n"
                "    return total, {\n"
                '        "loss": total,\n'
                '        "policy_loss": policy_loss,\n'
                '        "value_loss": value_loss,\n'
                '        "approx_kl": (ratio - 1 - log_ratio).mean(),  # k3 of Schulman 2020, '
                '"Approximating KL Divergence"\n'
                '        "clip_fraction": (jnp.abs(ratio - 1) > config.clip_coef).mean(dtype=jnp.float32),\n'
                '        "ratio_error": jnp.abs(ratio - 1).max(),\n'
                "    }\n",
                "    error = 0.5 * squared_error.mean()\n"
                '    return config.vf_coef * error, {"loss": config.vf_coef * error, "value_loss": error}\n',
            ),
            (
                '    """Policy, and V `[B]`. Features `[B, F]`: two separate MLPs. Images `[B, H, W, '
                'C]`: one shared torso, two heads."""\n',
                '    """Policy, and V `[B]`, from features `[B, F]` or images `[B, H, W, C]`: '
                'networks that share no parameter."""\n',
            ),
            (
                '        actor = self.torso(x, "torso" if x.ndim == 4 else "actor")\n'
                '        critic = actor if x.ndim == 4 else self.torso(x, "critic")\n',
                '        actor, critic = self.torso(x, "actor"), self.torso(x, "critic")\n',
            ),
            (
                "def diagnose(task: Task, state: State, batch: Batch, part: Batch, aux: Metrics) -> dict[str, Any]:\n",
                "def diagnose(task: Task, state: State, batch: Batch, part: Batch, aux: dict[str, "
                "Metrics]) -> dict[str, Any]:\n",
            ),
            (
                '    applied, first_ratio_error = aux.pop("applied"), aux.pop("ratio_error")[0, 0]\n'
                "    means = {name: x.mean(where=applied > 0) for name, x in aux.items()}\n",
                '    of_policy, of_value = aux["policy"], aux["value"]\n'
                '    first_ratio_error, policy_applied = of_policy.pop("ratio_error")[0, 0], of_policy["applied"] > 0\n'
                "    means = {name: x.mean() for name, x in of_value.items()}  # the value's epochs all count\n"
                "    means |= {name: x.mean(where=policy_applied) for name, x in of_policy.items()}\n"
                "    # What every gradient step has, over those of both; and the objectives' sum, "
                "which was one objective.\n"
                "    of_both = {k: jnp.concatenate([of_policy[k], of_value[k]]) for k in "
                '("grad_norm", "update_ratio", "applied")}\n'
                '    applied = of_both.pop("applied")\n'
                "    means |= {name: x.mean(where=applied > 0) for name, x in of_both.items()}\n"
                '    means["loss"] += of_value["loss"].mean()\n'
                '    del means["applied"]\n',
            ),
            (
                '        "gradient_noise_scale": gradient_noise_scale(state.opt_state, part.value.size),\n',
                '        "gradient_noise_scale": gradient_noise_scale(state.opt_state["policy"], '
                "part.value.size),  # of the policy's\n",
            ),
        ),
    ),
]

# ---- DQN -------------------------------------------------------------------------------------------------------------
DQN_LEARNING_RATE = PPO_LEARNING_RATE
EPSILONS = """    start_e: float = leaf(1.0, "[0, 1]")  # probability of a random action at the start
    end_e: float = leaf(0.05, "[0, 1]", (0.005, 0.2, "log"))  # probability of a random action at the end
    exploration_fraction: float = leaf(0.5, "[0, 1]", (0.05, 0.9, "linear"))  # share of the steps over which it falls
"""
EPSILON_AT = '''def epsilon_at(config: Config, env_steps: Any) -> Array:
    """Probability of a random action after so many environment steps of a seed."""
    progress = jnp.clip(env_steps / jnp.maximum(config.exploration_fraction * config.total_timesteps, 1.0), 0.0, 1.0)
    return config.start_e + progress * (config.end_e - config.start_e)
'''
EPSILON_GREEDY = '''def epsilon_greedy(q: Array, epsilon: Any) -> Array:
    """Probabilities `[..., A]` of the actions with values `q`; 0 of those that are forbidden."""
    allowed = q > FORBIDDEN / 2
    share = epsilon * allowed / jnp.maximum(allowed.sum(axis=-1, keepdims=True), 1)
    return share + (1 - epsilon) * jax.nn.one_hot(q.argmax(axis=-1), q.shape[-1])
'''
TARGET_SETTING = """\
    # value of the next state: the target network's at the online network's best action, its maximum, or its mean under
    # the epsilon-greedy policy
    target: Literal["double", "max", "expected_sarsa"] = static("double")
"""
TARGETS = '''def targets(task: Task, target_params: Any, params: Any, batch: Batch, epsilon: Any) -> Array:
    """What Q `[B]` is fitted to: the n-step return and the discounted value of where it led."""
    target_q = forward(task, target_params, batch.next_obs)
    online_q = forward(task, params, batch.next_obs) if task.config.target == "double" else target_q
    return batch.reward + batch.discount * next_values(task.config.target, target_q, online_q, epsilon)


def next_values(kind: str, target_q: Array, online_q: Array, epsilon: Any) -> Array:
    """Values `[B]` of next states, from Q `[B, A]` of the target network and of the online one.

    `double`: van Hasselt et al. 2016 (arXiv:1509.06461), eq. 4. `max`: Mnih et al. 2015. `expected_sarsa`: Sutton &
    Barto 2018, eq. 6.9, with the epsilon-greedy policy of the target network's values.
    """
    chex.assert_equal_shape((target_q, online_q))
    if kind == "max":
        return target_q.max(axis=-1)
    if kind == "expected_sarsa":
        return jnp.sum(epsilon_greedy(target_q, epsilon) * target_q, axis=-1)
    return taken(target_q, online_q.argmax(axis=-1))
'''
DQN_LOSS = '''def loss(params: Any, task: Task, batch: Batch, target: Array) -> tuple[Array, Array]:
    """Mean error of Q, to be minimised, over one minibatch; and Q `[B]` of the actions taken."""
    # `target` comes as data: no gradient can flow through it.
    q = taken(forward(task, params, batch.obs), batch.action)
    chex.assert_equal_shape((q, target))  # [B, 1] - [B] would broadcast to [B, B]
    error = optax.huber_loss(q, target) if task.config.loss == "huber" else optax.l2_loss(q, target)
    return error.mean(), q
'''
LEARNED = """    (error, q), gradient = gradient_of(params)
"""
SYNCS = """    period = config.target_network_frequency
    grid = [frequency * k for k in range(1, cycles + 1) if cycles % k == 0]
    grid += [size * k for k in (period // size, period // size + 1) if k > 1]
    works = [x for x in grid if steps // x * x >= config.learning_starts]
    nearest = sorted(sorted(works, key=lambda x: abs(x - period))[:3])
    when = f"between learning_starts = {config.learning_starts} and the end at {steps}"
    rule = f"a divisor or a multiple of {one_update}, and of train_frequency, with a sync {when}, such as {nearest}"
    require(period in works, "target_network_frequency", rule)
"""
HIDDEN = """            x = activation(nn.Dense(size, name=f"hidden_{i}")(x))
"""
WRITTEN = """    state = replace(state, buffer=write(state.buffer, pack(block), cycle.row, task.config.num_envs))
"""
WRITE = '''def write(buffer: Array, block: Array, row: Any, num_envs: int) -> Array:
    """Overwrite the rows from `row` on with those of `block`, which never run over the end."""
    return jax.lax.dynamic_update_slice_in_dim(buffer, block, row * num_envs, axis=0)
'''

DQN = [
    Edit(
        "Adam afresh at each sync",
        "dqn",
        "the moments of gradients towards older targets are forgotten (Asadi et al. 2023, arXiv:2306.17833)",
        ("until_sync",),
        (
            (
                '    """Cycles, then a sync of the target network if one is due."""\n',
                '    """Cycles, then, if one is due, a sync of the target network and a fresh optimiser."""\n',
            ),
            (
                "    return (replace(state, target_params=unravel(synced)), params), (steps, learned, moved)\n",
                "    fresh = jax.tree.map(partial(jnp.where, sync), optimizer.init(params), state.opt_state)\n"
                "    state = replace(state, target_params=unravel(synced), opt_state=fresh)\n"
                "    return (state, params), (steps, learned, moved)\n",
            ),
        ),
    ),
    Edit(
        "RMSProp",
        "dqn",
        "centred RMSProp, as in Mnih et al. 2015, for Adam",
        ("Config", "make_optimizer"),
        (
            ("# Adam's step size, at the start", "# RMSProp's step size, at the start"),
            (
                '    adam_eps: float = leaf(1e-8, "(0, inf)")  # Adam\'s epsilon\n',
                '    rms_decay: float = leaf(0.95, "[0, 1)")  # of the moving averages of gradients and their squares\n'
                '    rms_eps: float = leaf(1e-5, "(0, inf)")  # added to the variance, under its root\n',
            ),
            (
                "    return optax.chain(clip, optax.adam(learning_rate, eps=config.adam_eps))\n",
                "    rmsprop = optax.rmsprop(learning_rate, decay=config.rms_decay, eps=config.rms_eps, "
                "centered=True)\n"
                "    return optax.chain(clip, rmsprop)\n",
            ),
        ),
    ),
    Edit(
        "Boltzmann exploration",
        "dqn",
        "actions are drawn from the softmax of Q at a temperature that falls (Sutton & Barto 2018, section 2.8)",
        (
            "Config",
            "Cycle",
            "Steps",
            "make",
            "update",
            "one_cycle",
            "collect",
            "targets",
            "next_values",
            "temperature_at",
            "boltzmann",
            "diagnose",
        ),
        (
            (
                "its maximum, or its mean under\n    # the epsilon-greedy policy\n",
                "its maximum, or its mean under\n    # the softmax policy\n",
            ),
            (
                EPSILONS,
                """    start_temperature: float = leaf(1.0, "(0, inf)")  # of the softmax over Q, at the start
    end_temperature: float = leaf(0.02, "(0, inf)", (0.001, 1.0, "log"))  # at the end
    exploration_fraction: float = leaf(0.5, "[0, 1]", (0.05, 0.9, "linear"))  # share of the steps over which it falls
""",
            ),
            (
                "    epsilon: Array  # [T]\n"
                "    draws: tuple[Array, ...]  # [T, N]: uniform, a random action, the environment's key\n",
                "    temperature: Array  # [T]\n"
                "    draws: tuple[Array, ...]  # [T, N]: Gumbel noise `[A]`, the environment's key\n",
            ),
            (
                "    allowed: Array | None  # how many actions were; None: all, always\n",
                "    allowed: Array | None  # how many actions were; None: all, always\n"
                "    entropy: Array  # of the policy that acted\n",
            ),
            (
                "        return epsilon_greedy(value(state, obs), 0.0)\n",
                "        return jax.nn.one_hot(value(state, obs).argmax(), num_actions)\n",
            ),
            (
                "    epsilon = epsilon_at(config, (cycle",
                "    temperature = temperature_at(config, (cycle",
            ),
            (
                "    key, key_explore, key_action, key_env, key_replay = jax.random.split(state.key, 5)\n"
                '    if hasattr(task.obs_space, "action_mask"):\n'
                "        random_action = jax.random.bits(key_action, shape)  # drawn from when it is known which are "
                "allowed\n"
                "    else:\n"
                "        random_action = jax.random.randint(key_action, shape, 0, num_actions)\n"
                "    draws = jax.random.uniform(key_explore, shape), random_action, jax.random.split(key_env, shape)\n",
                "    key, key_explore, key_env, key_replay = jax.random.split(state.key, 4)\n"
                "    draws = jax.random.gumbel(key_explore, (*shape, num_actions)), jax.random.split(key_env, shape)\n",
            ),
            (
                "    plan = Cycle(cycle * shape[1] % capacity, learning, epsilon, draws, index)\n",
                "    plan = Cycle(cycle * shape[1] % capacity, learning, temperature, draws, index)\n",
            ),
            (
                "    ends = epsilon_at(config, step * cycles * config.train_frequency), epsilon_at(config, done[-1])\n",
                "    ends = temperature_at(config, step * cycles * config.train_frequency), "
                "temperature_at(config, done[-1])\n",
            ),
            (
                '        "epsilon": epsilon.mean(),\n        "entropy": entropy.mean(),\n',
                '        "temperature": temperature.mean(),\n        "entropy": steps.entropy.mean(),\n',
            ),
            ("    entropy = policy_entropy(epsilon.reshape(-1, 1), allowed)\n", ""),
            ('"relative_entropy": entropy.mean()', '"relative_entropy": steps.entropy.mean()'),
            (
                "unravel(params), cycle.epsilon, cycle.draws)",
                "unravel(params), cycle.temperature, cycle.draws)",
            ),
            ("unravel(params), batch, cycle.epsilon[-1])", "unravel(params), batch, cycle.temperature[-1])"),
            (
                "def collect(task: Task, state: State, params: Any, epsilon: Array, draws: Any) -> tuple[State, Steps, "
                'Buffer]:\n    """`T` epsilon-greedy steps in each of `N` environments; `epsilon` is `[T]`, `draws` '
                '`[T, N]`."""\n',
                "def collect(task: Task, state: State, params: Any, temperature: Array, draws: Any) -> tuple[State, "
                "Steps, Buffer]:\n"
                '    """`T` steps in each of `N` environments, drawn from the softmax; `temperature` is `[T]`, `draws` '
                '`[T, N]`."""\n',
            ),
            (
                "        epsilon, uniform, random_action, key_env = x\n"
                "        q = forward(task, params, obs)\n"
                "        mask = without_mask(obs, task.obs_space)[2]\n"
                "        random_action = random_action if mask is None else random_allowed(mask, random_action)\n"
                "        action = jnp.where(uniform < epsilon, random_action, q.argmax(axis=-1).astype(jnp.int32))\n",
                "        temperature, noise, key_env = x\n"
                "        q = forward(task, params, obs)\n"
                "        mask = without_mask(obs, task.obs_space)[2]\n"
                "        log_probs = boltzmann(q, temperature)\n"
                "        action = (log_probs + noise).argmax(axis=-1).astype(jnp.int32)  # the Gumbel-max trick\n"
                "        entropy = -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1)\n",
            ),
            (
                "        steps = Steps(action, reward, ended, episode.total, episode.length, excess, unstorable, "
                "allowed)\n",
                "        steps = Steps(action, reward, ended, episode.total, episode.length, excess, unstorable, "
                "allowed, entropy)\n",
            ),
            (
                "    carry, (steps, block) = jax.lax.scan(step, carry, (epsilon, *draws))\n",
                "    carry, (steps, block) = jax.lax.scan(step, carry, (temperature, *draws))\n",
            ),
            (
                TARGETS,
                TARGETS.replace("batch: Batch, epsilon: Any", "batch: Batch, temperature: Any")
                .replace("online_q, epsilon)", "online_q, temperature)")
                .replace("online_q: Array, epsilon: Any", "online_q: Array, temperature: Any")
                .replace("the epsilon-greedy policy of", "the softmax policy of")
                .replace("epsilon_greedy(target_q, epsilon) *", "jnp.exp(boltzmann(target_q, temperature)) *"),
            ),
            (
                EPSILON_AT,
                '''def temperature_at(config: Config, env_steps: Any) -> Array:
    """Temperature of the softmax after so many environment steps of a seed: it falls by the same share in each."""
    progress = jnp.clip(env_steps / jnp.maximum(config.exploration_fraction * config.total_timesteps, 1.0), 0.0, 1.0)
    return config.start_temperature * (config.end_temperature / config.start_temperature) ** progress
''',
            ),
            (
                EPSILON_GREEDY,
                '''def boltzmann(q: Array, temperature: Any) -> Array:
    """Log-probabilities `[..., A]` of the actions with values `q`."""
    return jax.nn.log_softmax(q / temperature)
''',
            ),
            (
                "    task: Task, before: State, state: State, batch: Batch, epsilon: Any, steps: Steps, learned: "
                "Metrics, "
                "learning: Array\n",
                "    task: Task,\n    before: State,\n    state: State,\n    batch: Batch,\n    temperature: Any,\n"
                "    steps: Steps,\n    learned: Metrics,\n    learning: Array,\n",
            ),
            (
                "    `before` and `epsilon[0]` are from its start, `state` and `epsilon[1]` from its end;",
                "    `before`, `temperature[0]` are from its start, `state`, `temperature[1]` from its end;",
            ),
            ("before.params, batch, epsilon[0])", "before.params, batch, temperature[0])"),
            (
                "    # At epsilon 0 the KL of two greedy policies is infinite.\n"
                "    old, new = (epsilon_greedy(q, jnp.maximum(e, 0.01)) for q, e in zip((old_q, new_q), epsilon, "
                "strict=True))\n"
                "    old, new = (jnp.where(old_q > FORBIDDEN / 2, p, 1.0) for p in (old, new))  # not log(0 / 0)\n",
                "    old, new = (boltzmann(q, t) for q, t in zip((old_q, new_q), temperature, strict=True))\n",
            ),
            (
                '"kl": jnp.sum(old * jnp.log(old / new), axis=-1).mean()',
                '"kl": jnp.sum(jnp.exp(old) * (old - new), axis=-1).mean()',
            ),
            (
                '''def policy_entropy(epsilon: Array, num_actions: Any) -> Array:
    """Entropy in nats of an epsilon-greedy policy over so many actions."""
    other = epsilon / num_actions
    return entr(1 - epsilon + other) + (num_actions - 1) * entr(other)


''',
                "",
            ),
        ),
    ),
    Edit(
        "exponential epsilon",
        "dqn",
        "epsilon falls exponentially towards end_e (as in the PyTorch tutorial on DQN)",
        ("Config", "epsilon_at"),
        (
            (
                "# share of the steps over which it falls\n",
                "# share over which it falls by e^-5\n",
            ),
            (
                EPSILON_AT,
                '''def epsilon_at(config: Config, env_steps: Any) -> Array:
    """Probability of a random action after so many environment steps of a seed."""
    progress = env_steps / jnp.maximum(config.exploration_fraction * config.total_timesteps, 1.0)
    return config.end_e + (config.start_e - config.end_e) * jnp.exp(-5.0 * progress)
''',
            ),
        ),
    ),
    Edit(
        "prioritised replay",
        "dqn",
        "slots are drawn by the size of their last error, with importance weights (Schaul et al. 2016, "
        "arXiv:1511.05952)",
        ("Config", "State", "Cycle", "init", "update", "one_cycle", "prioritised", "loss"),
        (
            (
                "    batch_size: int = static(128)  # transitions of one gradient step\n",
                "    batch_size: int = static(128)  # transitions of one gradient step\n"
                '    priority_alpha: float = leaf(0.6, "[0, 1]")  # power of the error that a slot is drawn by\n'
                '    priority_beta: float = leaf(0.4, "[0, 1]")  # power of the importance weights: 1 corrects in '
                "full\n",
            ),
            (
                "    episode: Episode\n    ring_return",
                "    priority: Array  # [R * N] of the slots of the buffer: |target - Q| when last learned from\n"
                "    episode: Episode\n    ring_return",
            ),
            (
                "    slots: Array  # [B, n] of the replay buffer, to learn from\n",
                "    rows: Array  # written by its end, overwritten ones too\n"
                "    chance: Array  # [B] uniform, to draw from the replay buffer\n",
            ),
            (
                "        buffer=jnp.zeros((size, row.shape[1]), row.dtype),\n",
                "        buffer=jnp.zeros((size, row.shape[1]), row.dtype),\n        priority=jnp.zeros(size),\n",
            ),
            (
                "    key, key_explore, key_action, key_env, key_replay = jax.random.split(state.key, 5)\n",
                "    key, key_explore, key_action, key_env, key_replay, key_batch = jax.random.split(state.key, 6)\n",
            ),
            (
                "    bits = jax.random.bits(key_replay, (cycles + 1, config.batch_size))\n"
                "    rows = (cycle + 1) * shape[1]\n"
                "    index, age = replay_indices(bits[:-1], rows[:, None], capacity, num_envs, config.n_step)\n",
                "    chance = jax.random.uniform(key_replay, (cycles, config.batch_size))\n"
                "    rows = (cycle + 1) * shape[1]\n",
            ),
            (
                "    plan = Cycle(cycle * shape[1] % capacity, learning, epsilon, draws, index)\n",
                "    plan = Cycle(cycle * shape[1] % capacity, learning, epsilon, draws, rows, chance)\n",
            ),
            (
                "    index, _ = replay_indices(bits[-1], rows[-1], capacity, num_envs, config.n_step)\n",
                "    bits = jax.random.bits(key_batch, (config.batch_size,))  # uniform, for the diagnostics alone\n"
                "    index, _ = replay_indices(bits, rows[-1], capacity, num_envs, config.n_step)\n",
            ),
            (
                '        "sample_age": age.mean(where=learning[:, None]),\n',
                '        "sample_age": learned["age"].mean(where=learning[:, None]),\n',
            ),
            (
                WRITTEN + "    batch = sample(task, state.buffer, cycle.slots, state.obs)\n",
                """    # What is new has the highest priority so far, so that it is soon learned from.
    new = jnp.full(len(block.reward), jnp.maximum(state.priority.max(), 1.0))
    stored = ((state.buffer, pack(block)), (state.priority, new))
    buffer, priority = (write(old, block, cycle.row, task.config.num_envs) for old, block in stored)
    slots, age, weight = prioritised(task.config, priority, cycle.chance, cycle.rows)
    batch = sample(task, buffer, slots, state.obs)
""",
            ),
            (
                "loss(unravel(p), task, batch, target), has_aux",
                "loss(unravel(p), task, batch, target, weight), has_aux",
            ),
            (LEARNED, "    (_, (q, error)), gradient = gradient_of(params)\n"),
            (
                '    learned = {"q": q, "target": target, "loss": error}\n',
                '    learned = {"q": q, "target": target, "loss": error, "age": age.astype(jnp.float32)}\n',
            ),
            (
                "    new = optax.apply_updates(params, change), opt_state\n"
                "    params, opt_state = jax.tree.map(partial(jnp.where, cycle.learning), new, (params, "
                "state.opt_state))\n"
                "    return (replace(state, opt_state=opt_state), params), (steps, learned)\n",
                "    new = optax.apply_updates(params, change), opt_state, "
                "priority.at[slots[:, 0]].set(jnp.abs(target - q) + 1e-6)\n"
                "    old = params, state.opt_state, priority\n"
                "    params, opt_state, priority = jax.tree.map(partial(jnp.where, cycle.learning), new, old)\n"
                "    return (replace(state, buffer=buffer, priority=priority, opt_state=opt_state), params), "
                "(steps, learned)\n",
            ),
            (
                "def sample(task: Task, buffer: Array, index",
                '''def prioritised(config: Config, priority: Array, chance: Array, rows: Array) -> Any:
    """Slots `[B, n]` drawn by priority, the age `[B]` of the first, and its importance weight, at most 1.

    `chance` `[B]` is uniform. As in `replay_indices`, none of the newest n - 1 rows is drawn first.
    """
    num_envs, n_step, capacity = config.num_envs, config.n_step, len(priority) // config.num_envs
    age = (rows - 1 - jnp.arange(capacity)) % capacity  # of each row, in rows
    whole = (age >= n_step - 1) & (age < rows)
    share = jnp.where(jnp.repeat(whole, num_envs), priority**config.priority_alpha, 0.0)
    total = jnp.cumsum(share)
    first = jnp.minimum(jnp.searchsorted(total, chance * total[-1], side="right"), len(priority) - 1)
    weight = jnp.maximum(share[first], 1e-12) ** -config.priority_beta  # constants fall out of the next line
    weight /= weight.max()
    slots = [(first // num_envs + k) % capacity * num_envs + first % num_envs for k in range(n_step)]
    return jnp.stack(slots, axis=-1), age[first // num_envs] * num_envs, weight


def sample(task: Task, buffer: Array, index''',
            ),
            (
                DQN_LOSS,
                '''def loss(params: Any, task: Task, batch: Batch, target: Array, weight: Array) -> tuple[Array, Any]:
    """Weighted error of Q, to be minimised, over one minibatch; Q `[B]` of the actions taken; and the mean error."""
    # `target` comes as data: no gradient can flow through it.
    q = taken(forward(task, params, batch.obs), batch.action)
    chex.assert_equal_shape((q, target, weight))  # [B, 1] - [B] would broadcast to [B, B]
    error = optax.huber_loss(q, target) if task.config.loss == "huber" else optax.l2_loss(q, target)
    return (weight * error).mean(), (q, error.mean())
''',
            ),
        ),
    ),
    Edit(
        "newest replayed more often",
        "dqn",
        "the chance of a step falls linearly with its age, to 0 for the oldest (emphasising recent experience, Wang & "
        "Ross 2019, arXiv:1906.04009)",
        ("replay_indices",),
        (
            (
                "    Random uint32 `bits` `[...]` draw them uniformly, with replacement, from all stored steps but "
                "those "
                "of the newest\n"
                "    n - 1 rows. Of the `rows` written so far, `[...]` or broadcast to it, the last `capacity` are "
                "stored.\n",
                "    Random uint32 `bits` `[...]` draw them with replacement from all stored steps but those of "
                "the newest "
                "n - 1 rows,\n"
                "    the newest of these twice as often as in a uniform draw, the oldest hardly ever. Of the `rows` "
                "written so far,\n"
                "    `[...]` or broadcast to it, the last `capacity` are stored.\n",
            ),
            (
                "    start = (bits % starts.astype(jnp.uint32)).astype(jnp.int32)\n",
                "    place = jnp.sqrt((bits >> 8).astype(jnp.float32) / (1 << 24))  # in [0, 1]; its density is "
                "linear\n"
                "    start = jnp.minimum((place * starts).astype(jnp.int32), starts - 1)\n",
            ),
        ),
    ),
    Edit(
        "soft target updates",
        "dqn",
        "the target network moves by a small share after every gradient step (Lillicrap et al. 2016, arXiv:1509.02971)",
        ("Config", "update", "check"),
        (
            (
                "    target_network_frequency: int = static(500)  # environment steps between syncs of the target "
                "network\n"
                '    tau: float = leaf(1.0, "(0, 1]", (0.05, 1.0, "log"))  # share of the online network in a sync: 1 '
                "copies it\n",
                '    tau: float = leaf(0.02, "(0, 1]", (0.001, 0.1, "log"))  # share of the online network in a '
                "sync: 1 "
                "copies it\n",
            ),
            (
                "    # Cycles up to a sync, then the sync. Where syncs are further apart than an update, most "
                "updates end "
                "without one.\n"
                "    period = config.target_network_frequency // config.train_frequency\n"
                "    inner = min(period, cycles)\n",
                "    inner = 1  # cycles up to a sync: one comes after every gradient step\n",
            ),
            (
                "    sync = ((cycle + 1) % period == 0) & learning\n    sync = sync.reshape(-1, inner)[:, -1]\n",
                "    sync = learning\n",
            ),
            (
                "    # Syncs come after a gradient step, at the same places in every update, or at the end of some.\n",
                "",
            ),
            (SYNCS, ""),
        ),
    ),
    Edit(
        "clipped double Q",
        "dqn",
        "the smaller of the two networks' values of the online network's best action (Fujimoto et al. 2018, "
        "arXiv:1802.09477, eq. 10)",
        ("Config", "one_cycle", "targets", "next_values", "diagnose"),
        (
            (TARGET_SETTING, ""),
            (
                "    target = targets(task, state.target_params, unravel(params), batch, cycle.epsilon[-1])\n",
                "    target = targets(task, state.target_params, unravel(params), batch)\n",
            ),
            (
                TARGETS,
                '''def targets(task: Task, target_params: Any, params: Any, batch: Batch) -> Array:
    """What Q `[B]` is fitted to: the n-step return and the discounted value of where it led."""
    target_q, online_q = (forward(task, x, batch.next_obs) for x in (target_params, params))
    return batch.reward + batch.discount * next_values(target_q, online_q)


def next_values(target_q: Array, online_q: Array) -> Array:
    """Values `[B]` of next states, from Q `[B, A]` of the target network and of the online one: the smaller of the two.

    Fujimoto et al. 2018, eq. 10; the best action is the online network's, as in double Q-learning.
    """
    chex.assert_equal_shape((target_q, online_q))
    best = online_q.argmax(axis=-1)
    return jnp.minimum(taken(target_q, best), taken(online_q, best))
''',
            ),
            ("before.params, batch, epsilon[0])", "before.params, batch)"),
        ),
    ),
    Edit(
        "layer norm",
        "dqn",
        "each hidden layer's units are normalised before the activation (Ba et al. 2016, arXiv:1607.06450)",
        ("Network",),
        (
            (
                HIDDEN,
                '            x = nn.LayerNorm(name=f"norm_{i}")(nn.Dense(size, name=f"hidden_{i}")(x))\n'
                "            x = activation(x)\n",
            ),
        ),
    ),
    Edit(
        "L2 term in the loss",
        "dqn",
        "half the sum of the squared weights, times l2_coef, is added to the loss (Krogh & Hertz 1992)",
        ("Config", "one_cycle", "loss"),
        (
            (
                "    start_e: float = leaf(1.0",
                '    l2_coef: float = leaf(1e-5, "[0, inf)", (1e-7, 1e-2, "log"))  # weight of the squared parameters\n'
                "    start_e: float = leaf(1.0",
            ),
            (LEARNED, "    (_, (q, error)), gradient = gradient_of(params)\n"),
            (
                DQN_LOSS,
                DQN_LOSS.replace("-> tuple[Array, Array]:", "-> tuple[Array, Any]:")
                .replace(
                    "Mean error of Q, to be minimised, over one minibatch; and Q `[B]` of the actions taken.",
                    "Mean error of Q and an L2 term, to be minimised; and Q `[B]` of the actions taken, and the error.",
                )
                .replace(
                    "    return error.mean(), q\n",
                    "    l2 = 0.5 * optax.tree.vdot(params, params)\n"
                    "    return error.mean() + task.config.l2_coef * l2, (q, error.mean())\n",
                ),
            ),
        ),
    ),
    Edit(
        "learning rate warmed up",
        "dqn",
        "the learning rate rises linearly over the first updates (Goyal et al. 2017, arXiv:1706.02677, section 2.2)",
        ("Config", "update"),
        (
            (
                "    anneal_lr: bool = static(False)",
                '    warmup_fraction: float = leaf(0.05, "(0, 1]")  # share of the updates over which it rises to '
                "that\n"
                "    anneal_lr: bool = static(False)",
            ),
            (
                DQN_LEARNING_RATE,
                DQN_LEARNING_RATE
                + "    learning_rate *= jnp.minimum((step + 1) / jnp.maximum(config.warmup_fraction * num_updates, 1), "
                "1)\n",
            ),
        ),
    ),
    Edit(
        "mean of both networks in the target",
        "dqn",
        "the next value is the mean of both networks' (Averaged-DQN, Anschel et al. 2017, arXiv:1611.01929)",
        ("targets",),
        (
            (
                "    online_q = forward(task, params, batch.next_obs) if task.config.target == "
                '"double" else target_q\n',
                "    online_q = forward(task, params, batch.next_obs)\n    target_q = (target_q + online_q) / 2\n",
            ),
        ),
    ),
    Edit(
        "Nesterov's momentum",
        "dqn",
        "NAdam for Adam (Dozat 2016)",
        ("make_optimizer",),
        (("optax.adam(learning_rate, eps=config.adam_eps)", "optax.nadam(learning_rate, eps=config.adam_eps)"),),
    ),
    Edit(
        "functions inlined",
        "dqn",
        "the loss and the writing to the replay buffer stand in one_cycle itself",
        ("one_cycle",),
        (
            (
                "`one_cycle`, `collect`, `sample`, `targets`, `loss`: that is",
                "`one_cycle`, `collect`, `sample`, `targets`: that is",
            ),
            (
                WRITTEN,
                "    slot = cycle.row * task.config.num_envs\n"
                "    state = replace(state, buffer=jax.lax.dynamic_update_slice_in_dim(state.buffer, pack(block), "
                "slot, "
                "0))\n",
            ),
            (
                "    gradient_of = jax.value_and_grad(lambda p: loss(unravel(p), task, batch, target), has_aux=True)\n"
                "    (error, q), gradient = gradient_of(params)\n",
                """
    def error_of(params: Array) -> tuple[Array, Array]:
        q = taken(forward(task, unravel(params), batch.obs), batch.action)
        error = optax.huber_loss(q, target) if task.config.loss == "huber" else optax.l2_loss(q, target)
        return error.mean(), q

    (error, q), gradient = jax.value_and_grad(error_of, has_aux=True)(params)
""",
            ),
            (WRITE + "\n\n", ""),
            (DQN_LOSS + "\n\n", ""),
        ),
    ),
    Edit(
        "settings removed from DQN",
        "dqn",
        "the loss is always half the squared error, heads are never dueling, the gradient's norm is never clipped",
        ("Config", "make", "make_optimizer", "loss", "Network"),
        (
            (
                '    max_grad_norm: float | None = leaf(None, "(0, inf]", (0.1, 10.0, "log"))  # clip the gradient\'s '
                "norm; None: do not\n",
                "",
            ),
            (
                '    loss: Literal["squared", "huber"] = static("squared")  # half the squared error, or Huber\'s, '
                "linear "
                "beyond 1\n",
                "",
            ),
            (
                "    # separate heads for the state's value and the actions' advantages (Wang et al. 2016, "
                "arXiv:1511.06581)\n    dueling: bool = static(False)\n",
                "",
            ),
            (
                "    network = Network(num_actions, config.dueling, config.hidden_sizes,",
                "    network = Network(num_actions, config.hidden_sizes,",
            ),
            (
                "    clip = optax.identity() if config.max_grad_norm is None else "
                "optax.clip_by_global_norm(config.max_grad_norm)\n"
                "    return optax.chain(clip, optax.adam(learning_rate, eps=config.adam_eps))\n",
                "    return optax.adam(learning_rate, eps=config.adam_eps)\n",
            ),
            (
                '    error = optax.huber_loss(q, target) if task.config.loss == "huber" else optax.l2_loss(q, target)\n'
                "    return error.mean(), q\n",
                "    return optax.l2_loss(q, target).mean(), q\n",
            ),
            ("    num_actions: int\n    dueling: bool\n", "    num_actions: int\n"),
            (
                """        outputs = nn.Dense(self.num_actions, name="head")(x)
        if self.dueling:
            # Only the advantages' differences count: without the mean, a constant could move between the two heads.
            outputs += nn.Dense(1, name="value_head")(x) - outputs.mean(axis=-1, keepdims=True)
        return outputs
""",
                '        return nn.Dense(self.num_actions, name="head")(x)\n',
            ),
        ),
    ),
    Edit(
        "an epsilon of each environment's own",
        "dqn",
        "environments explore by epsilon to the powers from 1 to 4 (Ape-X, Horgan et al. 2018, arXiv:1803.00933)",
        ("update", "collect", "each_epsilon"),
        (
            (
                '        "epsilon": epsilon.mean(),\n',
                '        "epsilon": each_epsilon(epsilon, num_envs).mean(),\n',
            ),
            (
                "policy_entropy(epsilon.reshape(-1, 1), allowed)",
                "policy_entropy(each_epsilon(epsilon.reshape(-1, 1), num_envs).reshape(-1, num_envs), allowed)",
            ),
            (
                "        action = jnp.where(uniform < epsilon, random_action, q.argmax(axis=-1).astype(jnp.int32))\n",
                "        explores = uniform < each_epsilon(epsilon, config.num_envs)\n"
                "        action = jnp.where(explores, random_action, q.argmax(axis=-1).astype(jnp.int32))\n",
            ),
            (
                "def epsilon_greedy(q: Array, epsilon: Any) -> Array:\n",
                "def each_epsilon(epsilon: Array, num_envs: int) -> Array:\n"
                '    """Those of the environments, `[..., N]`."""\n'
                "    return epsilon[..., None] ** jnp.linspace(1.0, 4.0, num_envs)\n"
                "\n\n"
                "def epsilon_greedy(q: Array, epsilon: Any) -> Array:\n",
            ),
        ),
    ),
    Edit(
        "first values of zero",
        "dqn",
        "the last layer's weights begin at 0 (as in Fixup, Zhang et al. 2019, arXiv:1901.09321)",
        ("Network",),
        (
            (
                '        outputs = nn.Dense(self.num_actions, name="head")(x)\n',
                '        outputs = nn.Dense(self.num_actions, kernel_init=nn.initializers.zeros, name="head")(x)\n',
            ),
        ),
    ),
    Edit(
        "held exploration",
        "dqn",
        "a random action is held for 1 to 5 steps, with odds n^-2, as in ez-greedy exploration (Dabney et al. 2021, "
        "arXiv:2006.01782)",
        ("Config", "State", "init", "update", "collect"),
        (
            ("    end_e: float = leaf(0.05,", "    end_e: float = leaf(0.02,"),
            (
                "    episode: Episode\n    ring_return",
                "    episode: Episode\n"
                "    held: Array  # [N] the random action under way\n"
                "    left: Array  # [N] for how many steps more it is held\n"
                "    ring_return",
            ),
            (
                "        episode=new_episodes(num_envs),\n",
                "        episode=new_episodes(num_envs),\n"
                "        held=jnp.zeros(num_envs, jnp.int32),\n"
                "        left=jnp.zeros(num_envs, jnp.int32),\n",
            ),
            (
                "    key, key_explore, key_action, key_env, key_replay = jax.random.split(state.key, 5)\n",
                "    key, key_explore, key_action, key_env, key_replay, key_hold = jax.random.split(state.key, 6)\n",
            ),
            (
                "    draws = jax.random.uniform(key_explore, shape), random_action, jax.random.split(key_env, shape)\n",
                "    durations = jnp.arange(1, 6)\n"
                "    hold = jax.random.choice(key_hold, durations, shape, p=durations**-2.0 / "
                "(durations**-2.0).sum())\n"
                "    draws = jax.random.uniform(key_explore, shape), random_action, jax.random.split(key_env, shape), "
                "hold\n",
            ),
            (
                "        env_state, obs, episode = carry\n        epsilon, uniform, random_action, key_env = x\n",
                "        env_state, obs, episode, held, left = carry\n"
                "        epsilon, uniform, random_action, key_env, hold = x\n",
            ),
            (
                "        action = jnp.where(uniform < epsilon, random_action, q.argmax(axis=-1).astype(jnp.int32))\n",
                "        begins = (uniform < epsilon) & (left == 0)\n"
                "        held, left = jnp.where(begins, random_action, held), jnp.where(begins, hold, left)\n"
                "        action = jnp.where(left > 0, held, q.argmax(axis=-1).astype(jnp.int32))\n",
            ),
            (
                "        return (env_state, next_obs, episode), (steps, block)\n\n"
                "    carry = state.env_state, state.obs, state.episode\n",
                "        left = jnp.where(ended, 0, jnp.maximum(left - 1, 0))\n"
                "        return (env_state, next_obs, episode, held, left), (steps, block)\n\n"
                "    carry = state.env_state, state.obs, state.episode, state.held, state.left\n",
            ),
            (
                "    return replace(state, env_state=carry[0], obs=carry[1], episode=carry[2]), steps, block\n",
                '    new = dict(zip(("env_state", "obs", "episode", "held", "left"), carry, strict=True))\n'
                "    return replace(state, **new), steps, block\n",
            ),
        ),
    ),
    Edit(
        "memory by environment",
        "dqn",
        "the steps of one environment stand beside each other in the replay buffer",
        ("write", "replay_indices"),
        (
            (
                "    return jax.lax.dynamic_update_slice_in_dim(buffer, block, row * num_envs, axis=0)\n",
                "    rows = jnp.swapaxes(block.reshape(-1, num_envs, block.shape[1]), 0, 1)\n"
                "    by_env = buffer.reshape(num_envs, -1, buffer.shape[1])\n"
                "    return jax.lax.dynamic_update_slice_in_dim(by_env, rows, row, axis=1).reshape(buffer.shape)\n",
            ),
            (
                "(row + k) % capacity * num_envs + start % num_envs for k",
                "start % num_envs * capacity + (row + k) % capacity for k",
            ),
        ),
    ),
    Edit(
        "n-step returns cut where not greedy",
        "dqn",
        "rewards are summed as long as actions are the greedy ones, as in Watkins's Q(lambda) (Watkins 1989)",
        ("Config", "Batch", "update", "one_cycle", "sample"),
        (
            (
                "    n_step: int = static(1)  # rewards summed before the bootstrap; above 1 without "
                "correction for exploring actions\n",
                "    # rewards summed before the bootstrap, fewer where an action after the first is "
                "not the greedy one, or is no longer\n"
                "    # (Watkins 1989); with expected_sarsa without that correction\n"
                "    n_step: int = static(3)\n",
            ),
            (
                "    discount: Array  # of the value of next_obs: gamma^n, or a lower power at an "
                "ending; 0 where it terminated\n",
                "    discount: Array  # of the value of next_obs: gamma^m of the m summed, at most n; "
                "0 where the last terminated\n",
            ),
            (
                "    batch = sample(task, state.buffer, index, state.obs)\n",
                "    batch = sample(task, before.params, state.buffer, index, state.obs)\n",
            ),
            (
                "    batch = sample(task, state.buffer, cycle.slots, state.obs)\n",
                "    batch = sample(task, unravel(params), state.buffer, cycle.slots, state.obs)\n",
            ),
            (
                "def sample(task: Task, buffer: Array, index: Array, like: Array) -> Batch:\n"
                '    """The n-step transitions at slots `[B, n]` (Sutton & Barto 2018, section 7.1), '
                "observations like `like`.\n",
                "def sample(task: Task, params: Any, buffer: Array, index: Array, like: Array) -> Batch:\n"
                '    """The n-step transitions at slots `[B, n]` (Sutton & Barto 2018, section 7.1), '
                "observations like `like`.\n"
                "\n"
                "    A step is summed only if its action is the one that `params` hold for the best, "
                "but for the first step, which is\n"
                "    where the value is learned: as in Watkins's Q(lambda) (Watkins 1989; Sutton & "
                "Barto 2018, section 12.10). The\n"
                "    bootstrap is then from that step's own observation, before the action: what is "
                "learned is the greedy policy's value.\n",
            ),
            (
                "    decoded = partial(decode, buffer_dtype=config.buffer_dtype, like=like)\n",
                "",
            ),
            (
                "    steps = [unpack(buffer[slot], stored) for slot in slots]\n",
                "    steps = [unpack(buffer[slot], stored) for slot in slots]\n"
                "    decoded = partial(decode, buffer_dtype=config.buffer_dtype, like=like)\n",
            ),
            (
                "    for slot, step in zip(slots, steps, strict=True):\n",
                "    for k, (slot, step) in enumerate(zip(slots, steps, strict=True)):\n"
                '        if k > 0 and config.target != "expected_sarsa":  # before its reward is '
                "looked at, which would bias the choice\n"
                "            counted &= forward(task, params, decoded(step.obs)).argmax(axis=-1) == step.action\n",
            ),
        ),
    ),
    Edit(
        "two gradient steps a cycle",
        "dqn",
        "twice as many gradient steps for the steps that are taken, each on draws and targets of its own, as in agents "
        "with a high replay ratio (D'Oro et al. 2023)",
        ("Config", "Cycle", "update", "one_cycle", "diagnose"),
        (
            (
                "    batch_size: int = static(128)  # transitions of one gradient step\n",
                "    batch_size: int = static(128)  # transitions of one gradient step\n"
                "    replay_ratio: int = static(2)  # gradient steps in a cycle, each on a minibatch of its own\n",
            ),
            (
                "    slots: Array  # [B, n] of the replay buffer, to learn from\n",
                "    slots: Array  # [G, B, n] of the replay buffer, to learn from in G gradient steps\n",
            ),
            (
                "    bits = jax.random.bits(key_replay, (cycles + 1, config.batch_size))\n",
                "    bits = jax.random.bits(key_replay, (cycles + 1, config.replay_ratio, config.batch_size))\n",
            ),
            (
                "    index, age = replay_indices(bits[:-1], rows[:, None], capacity, num_envs, config.n_step)\n",
                "    index, age = replay_indices(bits[:-1], rows[:, None, None], capacity, num_envs, config.n_step)\n",
            ),
            (
                "    learned = jax.tree.map(lambda x: x.reshape(cycles, *x.shape[2:]), learned)\n",
                "    learned = jax.tree.map(lambda x: x.reshape(-1, *x.shape[3:]), learned)  # [.., "
                ".., G, ...] -> [C * G, ...]\n",
            ),
            (
                "    index, _ = replay_indices(bits[-1], rows[-1], capacity, num_envs, config.n_step)\n",
                "    index, _ = replay_indices(bits[-1, 0], rows[-1], capacity, num_envs, config.n_step)\n",
            ),
            (
                "    diagnostics = diagnose(task, before, state, batch, ends, steps, learned, learning)\n",
                "    learning_steps = jnp.repeat(learning, config.replay_ratio)\n"
                "    diagnostics = diagnose(task, before, state, batch, ends, steps, learned, learning_steps)\n",
            ),
            (
                '        "sample_age": age.mean(where=learning[:, None]),\n',
                '        "sample_age": age.mean(where=learning[:, None, None]),\n',
            ),
            (
                '    """`T` steps in each environment, then one gradient step. The newest parameters '
                'are `params`, not `state.params`."""\n',
                '    """`T` steps in each environment, then `G` gradient steps. The newest '
                'parameters: `params`, not `state.params`."""\n',
            ),
            (
                "    batch = sample(task, state.buffer, cycle.slots, state.obs)\n"
                "    target = targets(task, state.target_params, unravel(params), batch, cycle.epsilon[-1])\n"
                "    gradient_of = jax.value_and_grad(lambda p: loss(unravel(p), task, batch, target), has_aux=True)\n"
                "    (error, q), gradient = gradient_of(params)\n"
                "    change, opt_state = optimizer.update(gradient, state.opt_state, params)\n"
                '    learned = {"q": q, "target": target, "loss": error}\n'
                '    learned |= {k: jnp.sqrt(optax.tree.vdot(x, x)) for k, x in (("grad_norm", '
                'gradient), ("step_norm", change))}\n'
                "    # Not `cond`: fused with the optimiser's step this costs nothing, and only the "
                "warm-up computes in vain.\n"
                "    new = optax.apply_updates(params, change), opt_state\n"
                "    params, opt_state = jax.tree.map(partial(jnp.where, cycle.learning), new, "
                "(params, state.opt_state))\n",
                "\n"
                "    def gradient_step(carry: tuple[Array, Any], slots: Array) -> tuple[tuple[Array, Any], Metrics]:\n"
                "        params, opt_state = carry\n"
                "        batch = sample(task, state.buffer, slots, state.obs)\n"
                "        target = targets(task, state.target_params, unravel(params), batch, cycle.epsilon[-1])\n"
                "        gradient_of = jax.value_and_grad(lambda p: loss(unravel(p), task, batch, "
                "target), has_aux=True)\n"
                "        (error, q), gradient = gradient_of(params)\n"
                "        change, new_opt_state = optimizer.update(gradient, opt_state, params)\n"
                '        learned = {"q": q, "target": target, "loss": error}\n'
                '        learned |= {k: jnp.sqrt(optax.tree.vdot(x, x)) for k, x in (("grad_norm", '
                'gradient), ("step_norm", change))}\n'
                "        # Not `cond`: fused with the optimiser's step this costs nothing, and only "
                "the warm-up computes in vain.\n"
                "        new = optax.apply_updates(params, change), new_opt_state\n"
                "        return jax.tree.map(partial(jnp.where, cycle.learning), new, carry), learned\n"
                "\n"
                "    (params, opt_state), learned = scan(gradient_step, (params, state.opt_state), cycle.slots)\n",
            ),
            (
                "    `learned` `[C, ...]`, counted where `learning` `[C]`.\n",
                "    `learned` `[C * G, ...]`, counted where `learning` `[C * G]`.\n",
            ),
        ),
    ),
]

# ---- CEM -------------------------------------------------------------------------------------------------------------
NOISE = """    noise = jax.random.normal(key_noise, (config.population_size, task.num_params))
"""
CANDIDATES = """    candidates = state.mean + jnp.sqrt(state.variance) * noise
"""
EXTRA_AT = '''def extra_variance_at(config: Config, generation: Any) -> Array:
    """What is added to the variance after a generation (Szita & Lorincz 2006: max(5 - t / 10, 0), at first 100).

    Without it the Gaussian shrinks by the same share whether it has arrived or not, and stops on its way.
    """
    last = config.extra_variance_fraction * config.num_generations
    return config.extra_variance * jnp.maximum(1 - generation / last, 0.0)
'''
REFIT = '''def refit(candidates: Array, elite: Array) -> tuple[Array, Array]:
    """The elites' mean and variance `[D]`, by maximum likelihood: the sum of squares over k, not k - 1."""
    mean = candidates.mean(axis=0, where=elite[:, None])
    variance = ((candidates - mean) ** 2).mean(axis=0, where=elite[:, None])
    return mean, jnp.maximum(variance, MIN_VARIANCE)
'''
RANK_WEIGHTS = '''def rank_weights(score: Array, num_elites: Any) -> Array:
    """Weights `[P]` of the candidates, which add up to 1: log(k + {}) - log(rank) of the k best, 0 of the others."""
    rank = 1 + jnp.argsort(jnp.argsort(-score))
    weight = jnp.maximum(jnp.log(num_elites + {}) - jnp.log(rank), 0.0)
    return weight / weight.sum()


'''
SEEN = """\
    seen: Moments | None  # of all candidates so far: what the next generation's observations are normalised by
"""
NEW = """    new = State(mean, variance + extra_variance, key, state.env_steps + lengths.sum(), state.seen, seen)
"""
EXTRA_SETTINGS = """    # added to every parameter's variance after the first generation, and linearly less from then on
    extra_variance: float = leaf(0.25, "[0, inf)", (0.001, 10.0, "log"))
    extra_variance_fraction: float = leaf(0.5, "(0, 1]", (0.1, 1.0, "linear"))  # share of generations until it is 0
"""
CEM_INIT = '''def init(task: Task, key: Array) -> State:
    """The first Gaussian of one seed."""
    variance = jnp.full(task.num_params, task.config.init_variance, jnp.float32)
    nothing = Moments.of_nothing(task.num_inputs) if task.config.normalize_observations else None
    return State(jnp.zeros(task.num_params), variance, key, jnp.int32(0), nothing, jax.tree.map(jnp.copy, nothing))
'''
TRIED = """    # On fresh keys: the mean, which is the policy; and elites, whose scores were chosen for being high.
    some = jax.random.choice(key_elite, config.population_size, (ELITES_TRIED,), p=elite / elite.sum())
    tried = jnp.concatenate([mean[None], candidates[some]])
    keys_eval = jax.random.split(key_eval, config.num_eval_rollouts)
    of_mean, *of_elites = rollout(task, tried, keys_eval, new.obs_moments)[0].mean(axis=1)
"""
STARTED = """\
    return State(jnp.zeros(task.num_params), variance, key, jnp.int32(0), nothing, jax.tree.map(jnp.copy, nothing))
"""
CEM_SPLIT = """    key, key_noise, key_rollout, key_elite, key_eval = jax.random.split(state.key, 5)
"""
KL_FLOOR = '''def kl_floor(num_elites: Any, num_params: int) -> Array:
    """Expected KL(refit, old) in nats if elites are chosen at random: what a generation changes by chance alone.

    The mean of k draws is off by 1/k variances, and k / variance times their variance is chi-squared with k - 1 degrees
    of freedom, whose logarithm has the mean digamma((k - 1) / 2) + log 2.
    """
    return -0.5 * num_params * (digamma((num_elites - 1) / 2) + jnp.log(2 / num_elites))


'''
FLOOR_METRICS = (
    ("    floor = kl_floor(elite.sum(), num_params)\n", ""),
    ('        "kl_floor": floor,\n        "kl_excess": refit_kl - floor,\n', ""),
    (KL_FLOOR, ""),
    ("from jax.scipy.special import digamma\n", ""),
)

CEM = [
    Edit(
        "mirrored sampling",
        "cem",
        "each draw comes with its mirror image about the mean (antithetic; Brockhoff et al. 2010)",
        ("update",),
        (
            (
                NOISE,
                "    half = jax.random.normal(key_noise, ((config.population_size + 1) // 2, task.num_params))\n"
                "    noise = jnp.concatenate([half, -half])[: config.population_size]\n",
            ),
        ),
    ),
    Edit(
        "elites chosen in two stages",
        "cem",
        "twice as many as are needed play again, on other keys, and the best by both plays are the elites (sequential "
        "halving, Karnin et al. 2013)",
        ("update",),
        (
            (
                "    elite = elites(score, num_elites)\n",
                "    promising = elites(score, 2 * num_elites)\n"
                "    keys_again = jax.random.split(jax.random.fold_in(key_rollout, 1), config.num_rollouts)\n"
                "    again, steps_again, ended_again, _ = rollout(task, candidates, keys_again, state.seen)\n"
                "    score = jnp.where(promising, (score + again.mean(axis=1)) / 2, score)\n"
                "    steps_again, ended_again = (x.sum(where=promising[:, None]) for x in (steps_again, ended_again))\n"
                "    elite = elites(jnp.where(promising, score, -jnp.inf), num_elites)\n",
            ),
            (NEW, NEW.replace("lengths.sum()", "lengths.sum() + steps_again")),
            (
                '        "episodes": ended.sum(),\n        "extra_variance"',
                '        "episodes": ended.sum() + ended_again,\n        "extra_variance"',
            ),
        ),
    ),
    Edit(
        "rank-weighted refit",
        "cem",
        "better elites weigh more in the refit, log(k + 1/2) - log(rank), as in CMA-ES (Hansen 2016, arXiv:1604.00772)",
        ("update", "rank_weights", "refit", "diagnose"),
        (
            (
                "    fitted = refit(candidates, elite)\n",
                "    fitted = refit(candidates, rank_weights(score, num_elites))\n",
            ),
            (
                REFIT,
                RANK_WEIGHTS.format("1/2", "0.5")
                + '''def refit(candidates: Array, weight: Array) -> tuple[Array, Array]:
    """The weighted mean and variance `[D]` of the candidates, by maximum likelihood."""
    mean = weight @ candidates
    variance = weight @ (candidates - mean) ** 2
    return mean, jnp.maximum(variance, MIN_VARIANCE)
''',
            ),
            *FLOOR_METRICS,
        ),
    ),
    Edit(
        "variance about the old mean",
        "cem",
        "better elites weigh more, log(k + 1) - log(rank), and the variance is about the mean before (CEM-RL, Pourchot "
        "& Sigaud 2019, arXiv:1810.01222)",
        ("update", "rank_weights", "refit", "diagnose"),
        (
            (
                "    fitted = refit(candidates, elite)\n",
                "    fitted = refit(candidates, rank_weights(score, num_elites), state.mean)\n",
            ),
            (
                REFIT,
                RANK_WEIGHTS.format("1", "1")
                + '''def refit(candidates: Array, weight: Array, old_mean: Array) -> tuple[Array, Array]:
    """The weighted mean `[D]` of the candidates, and their weighted squares about the mean they were drawn from."""
    variance = weight @ (candidates - old_mean) ** 2
    return weight @ candidates, jnp.maximum(variance, MIN_VARIANCE)
''',
            ),
            *FLOOR_METRICS,
        ),
    ),
    Edit(
        "natural gradient",
        "cem",
        "all candidates move mean and deviations, by utilities of their ranks, as in SNES (Schaul et al. 2011; "
        "Wierstra et al. 2014)",
        ("update", "utilities", "natural_step", "diagnose"),
        (
            (
                "    fitted = refit(candidates, elite)\n",
                "    fitted = natural_step(state.mean, state.variance, noise, utilities(score))\n",
            ),
            (
                REFIT,
                '''def utilities(score: Array) -> Array:
    """Utilities `[P]` of the candidates, which add up to 0: more than 0 of the better ones, by their ranks alone."""
    size = score.shape[0]
    rank = 1 + jnp.argsort(jnp.argsort(-score))
    shaped = jnp.maximum(jnp.log(size / 2 + 1) - jnp.log(rank), 0.0)
    return shaped / shaped.sum() - 1 / size


def natural_step(mean: Array, variance: Array, noise: Array, utility: Array) -> tuple[Array, Array]:
    """Mean and variance `[D]` after a step along the natural gradient; noise `[P, D]` is standard normal."""
    size = mean.shape[0]
    rate = (3 + jnp.log(size)) / (5 * jnp.sqrt(size))  # of the deviations' logarithms; the mean's is 1
    new_variance = variance * jnp.exp(rate * (utility @ (noise**2 - 1)))
    return mean + jnp.sqrt(variance) * (utility @ noise), jnp.maximum(new_variance, MIN_VARIANCE)
''',
            ),
            *FLOOR_METRICS,
        ),
    ),
    Edit(
        "floor of the standard deviation",
        "cem",
        "no parameter's standard deviation falls below a floor, in place of extra variance (as where TD-MPC plans, "
        "Hansen et al. 2022, arXiv:2203.04955)",
        ("Config", "State", "update"),
        (
            (
                EXTRA_SETTINGS,
                '    min_std: float = leaf(0.2, "[0, inf)", (0.001, 1.0, "log"))  # of every parameter, after a '
                "refit\n",
            ),
            (
                "    # share of the old mean and variance (extra variance included)",
                "    # share of the old mean and variance",
            ),
            ("    extra_variance = extra_variance_at(config, step)\n", ""),
            (
                NEW,
                "    variance = jnp.maximum(variance, config.min_std**2)\n"
                "    new = State(mean, variance, key, state.env_steps + lengths.sum(), state.seen, seen)\n",
            ),
            ('        "extra_variance": extra_variance,\n', ""),
            ("    variance: Array  # [D], the extra variance included\n", "    variance: Array  # [D]\n"),
            ("\n\n" + EXTRA_AT, ""),
        ),
    ),
    Edit(
        "exponential noise",
        "cem",
        "the extra variance falls by the same share in every generation, not linearly",
        ("Config", "extra_variance_at"),
        (
            (
                "after the first generation, and linearly less from then on\n",
                "after the first generation, and exponentially less from then on\n",
            ),
            ("# share of generations until it is 0\n", "# generations until 1 % is left\n"),
            (
                EXTRA_AT,
                '''def extra_variance_at(config: Config, generation: Any) -> Array:
    """What is added to the variance after a generation: it falls to 1 % over its share of the generations, and on.

    Without it the Gaussian shrinks by the same share whether it has arrived or not, and stops on its way.
    """
    last = config.extra_variance_fraction * config.num_generations
    return config.extra_variance * 0.01 ** (generation / last)
''',
            ),
        ),
    ),
    Edit(
        "elites kept",
        "cem",
        "the best candidates play again in the next generation, among new ones (Pinneri et al. 2020, arXiv:2008.06389)",
        ("Config", "State", "init", "update", "check"),
        (
            (
                "    num_rollouts: int = static(4)  # episodes",
                '    num_kept: int = static(2, "[0, inf)")  # best candidates of a generation that are in the next '
                "as well\n"
                "    num_rollouts: int = static(4)  # episodes",
            ),
            (
                SEEN,
                SEEN + "    kept: Array  # [num_kept, D] best candidates of the last generation\n",
            ),
            (
                CEM_INIT,
                '''def init(task: Task, key: Array) -> State:
    """The first Gaussian of one seed, and draws from it for the candidates that are kept later."""
    key, key_kept = jax.random.split(key)
    variance = jnp.full(task.num_params, task.config.init_variance, jnp.float32)
    kept = jnp.sqrt(variance) * jax.random.normal(key_kept, (task.config.num_kept, task.num_params))
    nothing = Moments.of_nothing(task.num_inputs) if task.config.normalize_observations else None
    seen = jax.tree.map(jnp.copy, nothing)
    return State(jnp.zeros(task.num_params), variance, key, jnp.int32(0), nothing, seen, kept)
''',
            ),
            (
                NOISE + CANDIDATES,
                "    noise = jax.random.normal(key_noise, (config.population_size - config.num_kept, "
                "task.num_params))\n"
                "    candidates = jnp.concatenate([state.kept, state.mean + jnp.sqrt(state.variance) * noise])\n",
            ),
            (
                NEW,
                "    kept = candidates[jnp.argsort(-score)[: config.num_kept]]\n"
                "    env_steps = state.env_steps + lengths.sum()\n"
                "    new = State(mean, variance + extra_variance, key, env_steps, state.seen, seen, kept)\n",
            ),
            (
                "    fraction: Any = config.elite_fraction\n",
                "    fraction: Any = config.elite_fraction\n"
                "    if config.num_kept >= size:\n"
                '        raise ValueError(f"num_kept is {config.num_kept}; it must be below population_size {size}")\n',
            ),
        ),
    ),
    Edit(
        "first variance by fan-in",
        "cem",
        "the first variance of a kernel is divided by its number of inputs (LeCun et al. 1998), that of a bias is not",
        ("Config", "init"),
        (
            ('(0.01, 100.0, "log"))  # of every parameter; mean 0\n', '(0.01, 100.0, "log"))  # of biases; mean 0\n'),
            (
                CEM_INIT,
                '''def init(task: Task, key: Array) -> State:
    """The first Gaussian of one seed."""
    layers = task.unflatten(jnp.full(task.num_params, task.config.init_variance, jnp.float32))
    variance, _ = ravel_pytree([(kernel / len(kernel), bias) for kernel, bias in layers])
    nothing = Moments.of_nothing(task.num_inputs) if task.config.normalize_observations else None
    return State(jnp.zeros(task.num_params), variance, key, jnp.int32(0), nothing, jax.tree.map(jnp.copy, nothing))
''',
            ),
        ),
    ),
    Edit(
        "random numbers of each candidate's own",
        "cem",
        "candidates do not share the keys of their rollouts (on sharing them, Glasserman & Yao 1992)",
        ("rollout",),
        (
            (
                "    keys_reset = key_of(keys, task.max_steps)  # a number that no step has\n"
                "    start = jax.vmap(task.env.reset, in_axes=(0, None))(keys_reset, task.env_params)\n"
                "    obs, env_state = jax.vmap(lambda _: start)(candidates)\n",
                "    keys = jax.vmap(lambda i: key_of(keys, i))(jnp.arange(len(candidates)))  # [P, K]\n"
                "    key_of = jax.vmap(key_of, in_axes=(0, None))\n"
                "    keys_reset = key_of(keys, task.max_steps)  # a number that no step has\n"
                "    reset = jax.vmap(jax.vmap(task.env.reset, in_axes=(0, None)), in_axes=(0, None))\n"
                "    obs, env_state = reset(keys_reset, task.env_params)\n",
            ),
            (
                "    # Over rollouts, then over candidates, which have the keys in common.\n"
                "    env_step = jax.vmap(jax.vmap(task.env.step, in_axes=(0, 0, 0, None)), "
                "in_axes=(None, 0, 0, None))\n",
                "    # Over rollouts, then over candidates.\n"
                "    env_step = jax.vmap(jax.vmap(task.env.step, in_axes=(0, 0, 0, None)), in_axes=(0, 0, 0, None))\n",
            ),
            ("    shape = len(candidates), len(keys)\n", "    shape = keys.shape\n"),
        ),
    ),
    Edit(
        "actions cut at their bounds",
        "cem",
        "outputs are cut at the bounds of a Box, not squashed by tanh (as in Mania et al. 2018, arXiv:1803.07055)",
        ("act",),
        (("    squashed = jnp.tanh(outputs).reshape", "    squashed = jnp.clip(outputs, -1, 1).reshape"),),
    ),
    Edit(
        "renamed functions in CEM",
        "cem",
        "rollout, elites and refit are called play, best and fit",
        ("update", "play", "best", "fit"),
        (
            ("Read `update`, `rollout`, `elites`, `refit`: that is", "Read `update`, `play`, `best`, `fit`: that is"),
            (
                "    returns, lengths, ended, seen = rollout(task, candidates",
                "    returns, lengths, ended, seen = play(task, candidates",
            ),
            ("    elite = elites(score, num_elites)\n", "    elite = best(score, num_elites)\n"),
            ("    fitted = refit(candidates, elite)\n", "    fitted = fit(candidates, elite)\n"),
            ("of_mean, *of_elites = rollout(task, tried", "of_mean, *of_elites = play(task, tried"),
            ("def rollout(task", "def play(task"),
            ("def elites(score", "def best(score"),
            ("def refit(candidates", "def fit(candidates"),
        ),
    ),
    Edit(
        "fewer metrics",
        "cem",
        "no selection bias, no expected KL and no analysis of variance: nothing but the mean is evaluated",
        ("Config", "update", "diagnose"),
        (
            (
                "ELITES_TRIED = 4  # elites that are played once more, on fresh keys, to measure the selection bias\n",
                "",
            ),
            (
                "# episodes of the new mean, and of some elites, on fresh keys; not",
                "# episodes of the new mean, on fresh keys; not",
            ),
            (CEM_SPLIT, "    key, key_noise, key_rollout, key_eval = jax.random.split(state.key, 4)\n"),
            (
                TRIED,
                "    keys_eval = jax.random.split(key_eval, config.num_eval_rollouts)\n"
                "    of_mean = rollout(task, mean[None], keys_eval, new.obs_moments)[0].mean()\n",
            ),
            ('        "selection_bias": (score[some] - jnp.stack(of_elites)).mean(),\n', ""),
            *FLOOR_METRICS,
            ('        "explained_variance": explained_variance(returns),\n', ""),
            (
                '''def explained_variance(returns: Array) -> Array:
    """Share of the variance of candidates' mean returns that is theirs, and not that of their `K` rollouts; `[P, K]`.

    Two-way analysis of variance, candidates x keys: what a key is worth to all candidates alike is no noise under
    common random numbers. NaN for K = 1, and where the means do not vary by more than float32 rounding.
    """
    size, rollouts = returns.shape
    if rollouts == 1:
        return jnp.float32(jnp.nan)
    of_candidate, of_key = returns.mean(axis=1, keepdims=True), returns.mean(axis=0, keepdims=True)
    residual = returns - of_candidate - of_key + returns.mean()
    mean_square = (residual**2).sum() / ((size - 1) * (rollouts - 1))
    variance = of_candidate.var(ddof=1)
    varies = variance > (1e-6 * jnp.abs(of_candidate).max()) ** 2
    return jnp.where(varies, 1 - mean_square / rollouts / variance, jnp.nan)


''',
                "",
            ),
        ),
    ),
    Edit(
        "normalised observations",
        "cem",
        "observations are always normalised, the mean's by all that was seen, its own generation included: V2 of ARS "
        "(Mania et al. 2018, arXiv:1803.07055)",
        ("Config", "State", "make", "init", "update"),
        (
            (
                "    # by the mean and std of all that candidates of earlier generations have seen; then clip to +-10\n"
                "    normalize_observations: bool = static(False)\n",
                "",
            ),
            (
                "    obs_moments: Moments | None  # by which `mean` was fitted; None unless normalize_observations\n"
                + SEEN,
                "    seen: Moments  # of all candidates so far\n",
            ),
            (
                "    nothing = Moments.of_nothing(task.num_inputs) if task.config.normalize_observations else None\n"
                + STARTED,
                "    seen = Moments.of_nothing(task.num_inputs)\n"
                "    return State(jnp.zeros(task.num_params), variance, key, jnp.int32(0), seen)\n",
            ),
            ("obs[None], state.obs_moments)", "obs[None], state.seen)"),
            (
                "    seen = None if state.seen is None else state.seen.merge(seen)\n" + NEW,
                "    new = State(mean, variance + extra_variance, key, state.env_steps + lengths.sum(), "
                "state.seen.merge(seen))\n",
            ),
            ("rollout(task, tried, keys_eval, new.obs_moments)", "rollout(task, tried, keys_eval, new.seen)"),
        ),
    ),
    Edit(
        "relative entropy policy search",
        "cem",
        "all candidates are weighted by exp(score / T), as far from equal weights as the elites would be: episodic "
        "REPS (Peters et al. 2010)",
        ("Config", "update", "reps_weights", "refit", "diagnose"),
        (
            (
                "from jax.scipy.special import digamma\n",
                "from jax.scipy.special import digamma, entr\n",
            ),
            (
                '    elite_fraction: float = leaf(0.125, "(0, 1]", (0.03, 0.5, "log"))  # of '
                "candidates, refitted to; at least 2 of them\n",
                "    # of candidates, at least 2 of them: the refit's weights are as far from equal "
                "ones as if these alone had weight\n"
                '    elite_fraction: float = leaf(0.125, "(0, 1]", (0.03, 0.5, "log"))\n',
            ),
            (
                "    fitted = refit(candidates, elite)\n",
                "    weights = reps_weights(score, jnp.log(config.population_size / num_elites))\n"
                "    fitted = refit(candidates, weights)\n",
            ),
            (
                "    diagnostics = diagnose(state, new, fitted, returns, lengths, elite) | {\n",
                "    diagnostics = diagnose(state, new, fitted, returns, lengths, elite, weights) | {\n",
            ),
            (
                "def refit(candidates: Array, elite: Array) -> tuple[Array, Array]:\n"
                '    """The elites\' mean and variance `[D]`, by maximum likelihood: the sum of '
                'squares over k, not k - 1."""\n'
                "    mean = candidates.mean(axis=0, where=elite[:, None])\n"
                "    variance = ((candidates - mean) ** 2).mean(axis=0, where=elite[:, None])\n",
                "def reps_weights(score: Array, bound: Any) -> Array:\n"
                '    """Weights `[P]` that sum to 1, for scores `[P]`: episodic REPS (Peters, '
                "Muelling & Altuen 2010).\n"
                "\n"
                "    Of all weights within a KL of `bound` nats from equal ones, those with the "
                "highest mean score: exp(score / T), T\n"
                "    from a bisection, as the KL falls where T rises. Where even T = 0 stays within, "
                "the best have equal weights. NaN is\n"
                "    worse than any score and has none.\n"
                '    """\n'
                "    valid, score = ~jnp.isnan(score), jnp.clip(score, -1e30, 1e30)\n"
                "    best, worst = jnp.nanmax(score), jnp.nanmin(score)\n"
                "    gain = (score - best) / jnp.where(best > worst, best - worst, 1.0)  # -1 to 0, "
                "so that T is a share of the range\n"
                "    gain = jnp.where(valid | ~valid.any(), jnp.nan_to_num(gain), -jnp.inf)\n"
                "\n"
                "    def weights(log_temperature: Array) -> Array:\n"
                "        return jax.nn.softmax(gain / jnp.exp(log_temperature))\n"
                "\n"
                "    def halve(_: Any, ends: tuple[Array, Array]) -> tuple[Array, Array]:\n"
                "        low, high = ends\n"
                "        middle = (low + high) / 2\n"
                "        too_far = jnp.log(len(score)) - entr(weights(middle)).sum() > bound\n"
                "        return jnp.where(too_far, middle, low), jnp.where(too_far, high, middle)\n"
                "\n"
                "    ends = jnp.float32(math.log(1e-9)), jnp.float32(math.log(1e3))\n"
                "    return weights(jax.lax.fori_loop(0, 30, halve, ends)[1])\n"
                "\n"
                "\n"
                "def refit(candidates: Array, weights: Array) -> tuple[Array, Array]:\n"
                '    """The candidates\' weighted mean and variance `[D]`, by maximum likelihood; '
                '`weights` sum to 1."""\n'
                "    mean = jnp.sum(weights[:, None] * candidates, axis=0)\n"
                "    variance = jnp.sum(weights[:, None] * (candidates - mean) ** 2, axis=0)\n",
            ),
            (
                "    old: State, new: State, fitted: tuple[Array, Array], returns: Array, lengths: "
                "Array, elite: Array\n",
                "    old: State,\n"
                "    new: State,\n"
                "    fitted: tuple[Array, Array],\n"
                "    returns: Array,\n"
                "    lengths: Array,\n"
                "    elite: Array,\n"
                "    weights: Array,\n",
            ),
            (
                "    `old` drew the candidates, `fitted` is the mean and variance of the elites "
                "alone, and `new` is what came of it;\n"
                "    `returns` and `lengths` are `[P, K]`, `elite` `[P]`.\n",
                "    `old` drew the candidates, `fitted` is their mean and variance by `weights`, and "
                "`new` is what came of it;\n"
                "    `returns` and `lengths` are `[P, K]`, `elite` and `weights` `[P]`.\n",
            ),
            (
                "    floor = kl_floor(elite.sum(), num_params)\n",
                "    floor = kl_floor(1 / (weights**2).sum(), num_params)  # as many elites of equal "
                "weight as these count for\n",
            ),
        ),
    ),
    Edit(
        "restarts about the best mean",
        "cem",
        "the best mean so far is the policy, and a search that stalls begins anew about it (Auger and Hansen 2005)",
        ("Config", "State", "Agent", "make", "init", "episodes_per_generation", "update", "check"),
        (
            (
                "    num_eval_rollouts: int = static(16)  # episodes of the new mean, and of some "
                "elites, on fresh keys; not in env_steps\n",
                "    # episodes in which the new mean contends with the best so far; as many again, "
                "not in env_steps, of both and of some\n"
                "    # elites, for the diagnostics; all on fresh keys\n"
                "    num_eval_rollouts: int = static(16)\n"
                "    patience: int = static(6)  # generations without a better mean, after which the "
                "search begins anew about the best\n",
            ),
            (
                "    env_steps: Array  # int32, of all candidates so far\n"
                "    obs_moments: Moments | None  # by which `mean` was fitted",
                "    env_steps: Array  # int32, of all candidates and contests so far\n"
                "    best_mean: Array  # [D], the policy: the mean that no later one has done better than\n"
                "    stall: Array  # int32, generations since the last better mean or the last restart\n"
                "    obs_moments: Moments | None  # by which the means of this generation were played",
            ),
            (
                "    # Of the Gaussian's mean: ONE raw observation -> one-hot [A] of its action; Box: "
                "mean [D], its action; std [D], 0\n",
                "    # Of the best mean: ONE raw observation -> one-hot [A] of its action; Box: mean "
                "[D], its action; std [D], 0\n",
            ),
            (
                "    steps_per_update = config.population_size * config.num_rollouts * task.max_steps\n",
                "    steps_per_update = episodes_per_generation(config) * task.max_steps\n",
            ),
            (
                "        action = act(task, state.mean, obs[None], state",
                "        action = act(task, state.best_mean, obs[None], state",
            ),
            (
                STARTED,
                "    mean, best_mean = jnp.zeros(task.num_params), jnp.zeros(task.num_params)  # not "
                "one array: the runner donates states\n"
                "    seen = jax.tree.map(jnp.copy, nothing)\n"
                "    return State(mean, variance, key, jnp.int32(0), best_mean, jnp.int32(0), nothing, seen)\n"
                "\n"
                "\n"
                "def episodes_per_generation(config: Config) -> int:\n"
                '    """Of the candidates, and of the two means\' contest."""\n'
                "    return config.population_size * config.num_rollouts + 2 * config.num_eval_rollouts\n",
            ),
            (
                NEW,
                "",
            ),
            (
                "    # On fresh keys: the mean, which is the policy; and elites, whose scores were "
                "chosen for being high.\n",
                "    # On fresh keys: the new mean, the best so far, and elites, whose scores were "
                "chosen for being high. The first half\n"
                "    # of the keys decides between the means, the best being played anew each time, "
                "lest one lucky result stay for ever;\n"
                "    # the second half has decided nothing, so it is what the diagnostics are from.\n",
            ),
            (
                "    tried = jnp.concatenate([mean[None], candidates[some]])\n"
                "    keys_eval = jax.random.split(key_eval, config.num_eval_rollouts)\n"
                "    of_mean, *of_elites = rollout(task, tried, keys_eval, new.obs_moments)[0].mean(axis=1)\n",
                "    tried = jnp.concatenate([mean[None], state.best_mean[None], candidates[some]])\n"
                "    num_eval = config.num_eval_rollouts\n"
                "    keys_eval = jax.random.split(key_eval, 2 * num_eval)\n"
                "    played, durations, finished, _ = rollout(task, tried, keys_eval, state.seen)\n"
                "    contest, (of_mean, of_best, *of_elites) = played[:2, :num_eval].mean(axis=1), "
                "played[:, num_eval:].mean(axis=1)\n"
                "    at_least_as_good = (contest[0] >= contest[1]) | jnp.isnan(contest[1])\n"
                "    best_mean = jnp.where(at_least_as_good, mean, state.best_mean)\n"
                "    stall = jnp.where(contest[0] > contest[1], 0, state.stall + 1)\n"
                "    restart = stall >= config.patience\n"
                "    new = State(\n"
                "        mean=jnp.where(restart, best_mean, mean),\n"
                "        variance=jnp.where(restart, config.init_variance, variance + extra_variance),\n"
                "        key=key,\n"
                "        env_steps=state.env_steps + lengths.sum() + durations[:2, :num_eval].sum(),\n"
                "        best_mean=best_mean,\n"
                "        stall=jnp.where(restart, 0, stall),\n"
                "        obs_moments=state.seen,\n"
                "        seen=seen,\n"
                "    )\n",
            ),
            (
                '        "episodes": ended.sum(),\n',
                '        "episodes": ended.sum() + finished[:2, :num_eval].sum(),\n'
                '        "restart": restart,\n'
                '        "stall": stall,\n',
            ),
            (
                '        "mean_policy_return": of_mean,\n',
                '        "mean_policy_return": jnp.where(at_least_as_good, of_mean, of_best),  # of the policy\n',
            ),
            (
                '    counts = f"{config.num_generations} x population_size {size} x num_rollouts '
                '{config.num_rollouts} x {limit} steps"\n'
                "    if config.num_generations * size * config.num_rollouts * int(limit) >= 2**31:\n",
                "    episodes = episodes_per_generation(config)\n"
                '    counts = f"{config.num_generations} x {episodes} episodes of candidates and '
                'contests x {limit} steps"\n'
                "    if config.num_generations * episodes * int(limit) >= 2**31:\n",
            ),
        ),
    ),
]

RNN_MEMORY_SIZE = "    memory_size: int = static(32)  # its units\n"
RNN_UNROLL = """\
    def step(memory: Array, x: tuple[Array, Array]) -> tuple[Array, Array]:
        memory = remember(task, params, memory, *x)
        return memory, memory

    return jax.lax.scan(step, memory, (new.reshape(*reset.shape, -1), reset))[1]
"""
RNN_RESET = "    memory = jnp.where(reset[:, None], empty(task.config), memory)\n"
RNN_LOG_STD = "        if not self.discrete:  # added to `init_log_std`, which may be traced\n"

PPO_RNN = [
    Edit(
        "LSTM for GRU",
        "ppo_rnn",
        "the memory is an LSTM (Gers et al. 2000), as in most published recurrent agents (Kapturowski et al. 2019)",
        ("Config",),
        (('cell: Literal["gru", "lstm"] = static("gru")', 'cell: Literal["gru", "lstm"] = static("lstm")'),),
    ),
    Edit(
        "minimal gated unit",
        "ppo_rnn",
        "the candidate sees the whole memory, without a reset gate (after Zhou et al. 2016, arXiv:1603.09420)",
        ("Network",),
        (("jnp.tanh(xn + nn.sigmoid(xr + hr) * hn)", "jnp.tanh(xn + hn)"),),
    ),
    Edit(
        "layer norm before the memory",
        "ppo_rnn",
        "what enters the gates is normalised over its layer (Ba et al. 2016, arXiv:1607.06450)",
        ("Network",),
        (
            (RNN_LOG_STD, "        self.norm = nn.LayerNorm()\n" + RNN_LOG_STD),
            ("        return self.inputs(x)\n", "        return self.inputs(self.norm(x))\n"),
        ),
    ),
    Edit(
        "KL penalty in recurrent PPO",
        "ppo_rnn",
        "KL(old, new) with a fixed coefficient is added to the clipped objective (Schulman et al. 2017, section 4)",
        ("Config", "loss"),
        (
            (
                RNN_MEMORY_SIZE,
                RNN_MEMORY_SIZE + '    kl_coef: float = leaf(0.5, "[0, inf)")  # weight of the KL penalty\n',
            ),
            (
                "    return total, {\n",
                "    total += config.kl_coef * batch.policy.kl(policy).mean()  # from the policy that acted\n"
                "    return total, {\n",
            ),
        ),
    ),
    Edit(
        "burn-in",
        "ppo_rnn",
        "the first quarter of each sequence is remembered, and not learned from (Kapturowski et al. 2019, R2D2)",
        ("loss",),
        (
            (
                "    memory = unroll(task, params, batch.memory[0], new, batch.seen.reset)\n",
                "    memory = unroll(task, params, batch.memory[0], new, batch.seen.reset)\n"
                "    begin = len(memory) // 4\n",
            ),
            (
                "    batch = flat(batch._replace(memory=memory))  # from here on as without a memory\n",
                "    batch = batch._replace(memory=memory)\n"
                "    batch = flat(jax.tree.map(lambda x: x[begin:], batch))  # from here on as without a memory\n",
            ),
        ),
    ),
    Edit(
        "gradients back eight steps",
        "ppo_rnn",
        "truncated backpropagation through time: no gradient goes back over every eighth step (Williams & Peng 1990)",
        ("unroll",),
        (
            (
                RNN_UNROLL,
                """\
    def step(memory: Array, x: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        t, *seen = x
        memory = remember(task, params, jnp.where(t % 8 == 0, jax.lax.stop_gradient(memory), memory), *seen)
        return memory, memory

    return jax.lax.scan(step, memory, (jnp.arange(len(reset)), new.reshape(*reset.shape, -1), reset))[1]
""",
            ),
        ),
    ),
    Edit(
        "AdamW in recurrent PPO",
        "ppo_rnn",
        "decoupled weight decay (Loshchilov & Hutter 2019, arXiv:1711.05101)",
        ("make_optimizer",),
        (
            (
                "optax.adam(learning_rate, eps=config.adam_eps))\n",
                "optax.adamw(learning_rate, eps=config.adam_eps))\n",
            ),
        ),
    ),
    Edit(
        "memory that is learned to begin with",
        "ppo_rnn",
        "an episode begins with a memory that is a parameter, at first 0 (as in Hochreiter et al. 2001)",
        ("Network", "remember"),
        (
            (
                RNN_LOG_STD,
                '        size = config.memory_size * (1 if config.cell == "gru" else 2)\n'
                '        self.first = self.param("first", nn.initializers.zeros, (size,))\n' + RNN_LOG_STD,
            ),
            (RNN_RESET, '    memory = jnp.where(reset[:, None], params["params"]["first"], memory)\n'),
        ),
    ),
    Edit(
        "a critic that teaches the memory half as much",
        "ppo_rnn",
        "the value's gradient is halved where it enters the memory (as MuZero's, Schrittwieser et al. 2020, app. G)",
        ("Network",),
        (("self.value_head(h)", "self.value_head((h + jax.lax.stop_gradient(h)) / 2)"),),
    ),
    Edit(
        "last reward by its sign",
        "ppo_rnn",
        "the network is shown the sign of the last reward, whatever its size (as rewards clipped by Mnih et al. 2015)",
        ("extras",),
        (
            (
                "jnp.concatenate([x, seen.last_reward[:, None]], axis=-1)",
                "jnp.concatenate([x, jnp.sign(seen.last_reward)[:, None]], axis=-1)",
            ),
        ),
    ),
]

EDITS = PPO + DQN + CEM + PPO_RNN
BY_NAME = {edit.name: edit for edit in EDITS}

# ---- Bugs ------------------------------------------------------------------------------------------------------------
BUGS = [
    # PPO, in the edited lines
    EditedBug(
        "the KL penalty with the wrong sign",
        "KL penalty beside the clip",
        "    total += config.kl_coef * kl\n",
        "    total -= config.kl_coef * kl\n",
        "policy loss",
        "loss",
    ),
    EditedBug(
        "no gradient through the KL penalty",
        "KL penalty instead of the clip",
        "    kl = batch.policy.kl(policy).mean()",
        "    kl = batch.policy.kl(jax.lax.stop_gradient(policy)).mean()",
        "policy loss",
        "loss",
    ),
    EditedBug(
        "no gradient through the ratio",
        "ratio not clipped",
        "    surrogate = -(ratio * advantage).mean()\n",
        "    surrogate = -(jax.lax.stop_gradient(ratio) * advantage).mean()\n",
        "policy loss",
        "loss",
    ),
    EditedBug(
        "the log-probability as collected",
        "A2C",
        "-(log_prob * advantage).mean()",
        "-(batch.log_prob * advantage).mean()",
        "policy loss",
        "loss",
    ),
    EditedBug(
        "V-trace bootstraps through termination",
        "V-trace",
        "    return reward + gamma * jnp.where(terminated, 0.0, next_target) - value, value + correction\n",
        "    return reward + gamma * next_target - value, value + correction\n",
        "advantages",
        "vtrace",
    ),
    EditedBug(
        "V-trace's ratio upside down",
        "V-trace",
        "ratio = jnp.exp(policy.log_prob(batch.action) - batch.log_prob)\n    steps",
        "ratio = jnp.exp(batch.log_prob - policy.log_prob(batch.action))\n    steps",
        "advantages",
        "estimated",
    ),
    EditedBug(
        "V-trace's axes swapped on the way back",
        "V-trace",
        "target=target.reshape(-1))",
        "target=target.T.reshape(-1))",
        "batch",
        "estimated",
    ),
    EditedBug(
        "returns run on past a time limit",
        "Monte Carlo returns",
        "    xs = reward, bootstrap, terminated | truncated\n",
        "    xs = reward, bootstrap, terminated\n",
        "advantages",
        "returns_to_go",
    ),
    EditedBug(
        "weights grow instead of decaying",
        "AdamW",
        "weight_decay=config.weight_decay",
        "weight_decay=-config.weight_decay",
        "gradient steps",
        "make_optimizer",
    ),
    EditedBug(
        "a block's input added to itself",
        "residual blocks",
        "x = x + y if x.shape == y.shape else y",
        "x = x + x if x.shape == y.shape else y",
        "network",
        "Network",
    ),
    EditedBug(
        "Huber's loss of the value as collected",
        "Huber value loss",
        "    error = optax.huber_loss(value, batch.target",
        "    error = optax.huber_loss(batch.value, batch.target",
        "value loss",
        "loss",
    ),
    EditedBug(
        "the shares of the two values swapped",
        "two-hot critic",
        "share[:, None] * one_hot(above) + (1 - share)[:, None] * one_hot(above - 1)",
        "(1 - share)[:, None] * one_hot(above) + share[:, None] * one_hot(above - 1)",
        "value loss",
        "two_hot",
    ),
    EditedBug(
        "the cosine upside down",
        "cosine learning rate",
        "0.5 * (1 + jnp.cos(",
        "0.5 * (1 - jnp.cos(",
        "learning rate",
        "update",
    ),
    EditedBug(
        "the last minibatch's share of a rollout never drawn",
        "minibatches with replacement",
        "batch_size // num_minibatches), 0, batch_size)",
        "batch_size // num_minibatches), 0, batch_size - batch_size // num_minibatches)",
        "minibatches",
        "minibatch_indices",
    ),
    EditedBug(
        "the entropy bonus rises",
        "entropy bonus annealed",
        "config.ent_coef * ((1 - step / num_updates) if config.anneal_ent",
        "config.ent_coef * ((step / num_updates) if config.anneal_ent",
        "entropy bonus",
        "update",
    ),
    EditedBug(
        "advantages divided by their variance",
        "advantages normalised over the batch",
        "(batch.advantage.std() + 1e-8)",
        "(batch.advantage.var() + 1e-8)",
        "gradient steps",
        "learn",
    ),
    # PPO, elsewhere
    EditedBug(
        "max for min in the clip, beside a KL penalty",
        "KL penalty beside the clip",
        "-jnp.minimum(ratio",
        "-jnp.maximum(ratio",
        "policy loss",
        "loss",
    ),
    EditedBug(
        "entropy sign, without a clip",
        "ratio not clipped",
        "- config.ent_coef *",
        "+ config.ent_coef *",
        "entropy bonus",
        "loss",
    ),
    EditedBug(
        "bootstrap from the reset observation in A2C",
        "A2C",
        'info["final_observation"], terminated | truncated',
        "obs, terminated | truncated",
        "rollout",
        "collect",
    ),
    EditedBug(
        "bootstrap through termination, beside a two-hot critic",
        "two-hot critic",
        "gamma * jnp.where(terminated, 0.0, next_value)",
        "gamma * next_value",
        "advantages",
        "gae",
    ),
    EditedBug(
        "log-prob of another sample, beside AdamW",
        "AdamW",
        "rollout.policy.log_prob(rollout.action)",
        "rollout.policy.log_prob(jnp.roll(rollout.action, 1, axis=1))",
        "rollout",
        "collect",
    ),
    EditedBug(
        "no bootstrap at truncation, in a shared torso's file",
        "shared torso",
        "gamma * jnp.where(terminated, 0.0, next_value)",
        "gamma * jnp.where(terminated | truncated, 0.0, next_value)",
        "advantages",
        "gae",
    ),
    EditedBug(
        "keys shared by environments, with replacement",
        "minibatches with replacement",
        "jax.random.split(key_env, shape)",
        "jnp.broadcast_to(jax.random.split(key_env, (shape[0], 1)), shape)",
        "random keys",
        "collect",
    ),
    EditedBug(
        "observation statistics not applied at evaluation, with another initialisation",
        "normal initialisation",
        "distribution, _ = forward(task, state.params, state.obs_moments, obs[None])",
        "distribution, _ = forward(task, state.params, None, obs[None])",
        "evaluation",
        "make",
    ),
    EditedBug(
        "KL(new, old), among more metrics",
        "more metrics",
        '"kl": part.policy.kl(policy).mean()',
        '"kl": policy.kl(part.policy).mean()',
        "metrics",
        "diagnose",
    ),
    EditedBug(
        "trace not cut at the end of an episode, under another name",
        "renamed functions",
        "jnp.where(terminated | truncated, 0.0, 1.0)",
        "jnp.ones_like(delta)",
        "advantages",
        "advantages",
    ),
    EditedBug(
        "Gaussian entropy averaged over dimensions, with settings removed",
        "settings removed",
        "return jnp.sum(self.log_std + 0.5",
        "return jnp.mean(self.log_std + 0.5",
        "action distribution",
        "DiagonalGaussian",
    ),
    # DQN, in the edited lines
    EditedBug(
        "RMSProp climbs",
        "RMSProp",
        "optax.rmsprop(learning_rate,",
        "optax.rmsprop(-learning_rate,",
        "gradient steps",
        "make_optimizer",
    ),
    EditedBug(
        "Q times the temperature",
        "Boltzmann exploration",
        "jax.nn.log_softmax(q / temperature)",
        "jax.nn.log_softmax(q * temperature)",
        "exploration",
        "boltzmann",
    ),
    EditedBug(
        "Gumbel noise with the wrong sign, in the softmax",
        "Boltzmann exploration",
        "(log_probs + noise).argmax",
        "(log_probs - noise).argmax",
        "exploration",
        "collect",
    ),
    EditedBug(
        "epsilon grows exponentially",
        "exponential epsilon",
        "jnp.exp(-5.0 * progress)",
        "jnp.exp(5.0 * progress)",
        "exploration",
        "epsilon_at",
    ),
    EditedBug(
        "importance weights upside down",
        "prioritised replay",
        "** -config.priority_beta",
        "** config.priority_beta",
        "loss",
        "prioritised",
    ),
    EditedBug(
        "priorities written to the first slots",
        "prioritised replay",
        "priority.at[slots[:, 0]]",
        "priority.at[jnp.arange(len(q))]",
        "replay",
        "one_cycle",
    ),
    EditedBug(
        "slots that nothing was written to are drawn",
        "newest replayed more often",
        "jnp.minimum((place * starts).astype(jnp.int32), starts - 1)",
        "(place * capacity * num_envs).astype(jnp.int32)",
        "replay",
        "replay_indices",
    ),
    EditedBug(
        "the target network moves in the warm-up alone",
        "soft target updates",
        "    sync = learning\n",
        "    sync = ~learning\n",
        "target network",
        "update",
    ),
    EditedBug(
        "the larger of the two values",
        "clipped double Q",
        "jnp.minimum(taken(target_q, best), taken(online_q, best))",
        "jnp.maximum(taken(target_q, best), taken(online_q, best))",
        "next value",
        "next_values",
    ),
    EditedBug(
        "layer norm over the batch",
        "layer norm",
        'nn.LayerNorm(name=f"norm_{i}")',
        'nn.LayerNorm(name=f"norm_{i}", reduction_axes=0)',
        "network",
        "Network",
    ),
    EditedBug(
        "weights are pushed away from 0",
        "L2 term in the loss",
        "error.mean() + task.config.l2_coef * l2",
        "error.mean() - task.config.l2_coef * l2",
        "loss",
        "loss",
    ),
    EditedBug(
        "a row taken for a slot",
        "functions inlined",
        "    slot = cycle.row * task.config.num_envs\n",
        "    slot = cycle.row\n",
        "replay",
        "one_cycle",
    ),
    # DQN, elsewhere
    EditedBug(
        "target aliases online, with RMSProp",
        "RMSProp",
        "target = targets(task, state.target_params, unravel(params), batch, cycle.epsilon[-1])",
        "target = targets(task, unravel(params), unravel(params), batch, cycle.epsilon[-1])",
        "target network",
        "one_cycle",
    ),
    EditedBug(
        "truncation as termination, in prioritised replay",
        "prioritised replay",
        "jnp.where(end.terminated, 0.0, discount)",
        "jnp.where(end.terminated | end.truncated, 0.0, discount)",
        "returns",
        "sample",
    ),
    EditedBug(
        "Polyak average swapped",
        "soft target updates",
        "config.tau * new + (1 - config.tau) * old",
        "config.tau * old + (1 - config.tau) * new",
        "target network",
        "until_sync",
    ),
    EditedBug(
        "gather with the wrong action, beside clipped double Q",
        "clipped double Q",
        "q = taken(forward(task, params, batch.obs), batch.action)",
        "q = forward(task, params, batch.obs).max(axis=-1)",
        "loss",
        "loss",
    ),
    EditedBug(
        "replay key reset to a constant, in a warm-up's file",
        "learning rate warmed up",
        "jax.random.bits(key_replay,",
        "jax.random.bits(jax.random.key(0),",
        "random keys",
        "update",
    ),
    EditedBug(
        "obs and next_obs swapped, beside inlined functions",
        "functions inlined",
        "Buffer(encode(obs, dtype), action, reward, terminated, truncated, encode(final_obs, dtype))",
        "Buffer(encode(final_obs, dtype), action, reward, terminated, truncated, encode(obs, dtype))",
        "replay",
        "collect",
    ),
    EditedBug(
        "gamma squared, with settings removed",
        "settings removed from DQN",
        "discount * config.gamma, discount",
        "discount * config.gamma**2, discount",
        "returns",
        "sample",
    ),
    EditedBug(
        "explained variance with its arguments swapped, beside an L2 term",
        "L2 term in the loss",
        "explained_variance(old_target, old_value)",
        "explained_variance(old_value, old_target)",
        "metrics",
        "diagnose",
    ),
    # CEM, in the edited lines
    EditedBug(
        "each draw comes twice, not with its mirror image",
        "mirrored sampling",
        "jnp.concatenate([half, -half])",
        "jnp.concatenate([half, half])",
        "candidates",
        "update",
    ),
    EditedBug(
        "the worst elites weigh most",
        "rank-weighted refit",
        "    weight = jnp.maximum(jnp.log(num_elites + 0.5) - jnp.log(rank), 0.0)\n",
        "    weight = jnp.where(rank <= num_elites, jnp.log(rank), 0.0)\n",
        "elites",
        "rank_weights",
    ),
    EditedBug(
        "ranks of the places, not of the candidates",
        "rank-weighted refit",
        "1 + jnp.argsort(jnp.argsort(-score))",
        "1 + jnp.argsort(-score)",
        "elites",
        "rank_weights",
    ),
    EditedBug(
        "the floor of the std taken for the variance's",
        "floor of the standard deviation",
        "jnp.maximum(variance, config.min_std**2)",
        "jnp.maximum(variance, config.min_std)",
        "extra variance",
        "update",
    ),
    EditedBug(
        "the extra variance grows",
        "exponential noise",
        "0.01 ** (generation / last)",
        "0.01 ** -(generation / last)",
        "extra variance",
        "extra_variance_at",
    ),
    EditedBug(
        "the worst candidates are kept",
        "elites kept",
        "candidates[jnp.argsort(-score)[: config.num_kept]]",
        "candidates[jnp.argsort(score)[: config.num_kept]]",
        "elites",
        "update",
    ),
    # CEM, elsewhere
    EditedBug(
        "fitness summed past the first end of episode, beside mirrored sampling",
        "mirrored sampling",
        "jnp.where(alive, reward.astype(jnp.float32), 0.0)",
        "reward.astype(jnp.float32)",
        "fitness",
        "rollout",
    ),
    EditedBug(
        "variance used as std, beside a floor",
        "floor of the standard deviation",
        "jnp.sqrt(state.variance) * noise",
        "state.variance * noise",
        "candidates",
        "update",
    ),
    EditedBug(
        "key not carried on, beside a first variance by fan-in",
        "first variance by fan-in",
        "State(mean, variance + extra_variance, key,",
        "State(mean, variance + extra_variance, state.key,",
        "random keys",
        "update",
    ),
    EditedBug(
        "argsort used as values, under another name",
        "renamed functions in CEM",
        "jnp.zeros(len(score), bool).at[order].set(jnp.arange(len(score)) < num_elites)",
        "order < num_elites",
        "elites",
        "best",
    ),
    EditedBug(
        "KL(old, new), among fewer metrics",
        "fewer metrics",
        "gaussian_kl(new.mean, new.variance, old.mean, old.variance)",
        "gaussian_kl(old.mean, old.variance, new.mean, new.variance)",
        "metrics",
        "diagnose",
    ),
    EditedBug(
        "evaluation on the keys of the selection, beside kept elites",
        "elites kept",
        "jax.random.split(key_eval,",
        "jax.random.split(key_rollout,",
        "random keys",
        "update",
    ),
]
