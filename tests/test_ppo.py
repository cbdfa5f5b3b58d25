import dataclasses
import math
import re
import subprocess
import sys
from collections import deque
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.stats
import toy_envs
from gymnax.environments import spaces
from helpers import adam_of, child_environment, count_conds, flat, leaves_equal, task_of, trains_alone
from jax.flatten_util import ravel_pytree

from rlref import ppo

# The compiler takes seconds for each set of static settings, so tests share these few; float settings are traced.
SMALL = ppo.Config(num_envs=3, num_steps=8, total_timesteps=6 * 24, hidden_sizes=(8,), num_minibatches=2)
ONE_STEP = SMALL.replace(num_minibatches=1, update_epochs=1)
RUNNING = SMALL.replace(update_epochs=2, normalize_observations=True, scale_rewards=True, learning_rate=0.01)
STOPPING = SMALL.replace(update_epochs=3, anneal_lr=False, learning_rate=0.02)
CLOCK = toy_envs.Clock()
PAIR = toy_envs.Pair()
REWARDS = np.random.default_rng(0).normal(0.5, 1, 64).astype(np.float32)


@partial(jax.jit, static_argnums=0)
def init(env, config, key, env_params=None):
    return ppo.make(config, env, env_params).init(key)


@partial(jax.jit, static_argnums=0)
def update(env, config, state, step, env_params=None):
    return ppo.make(config, env, env_params).update(state, step)


@jax.jit
def look(config, state, obs):
    """The agent's policy and value at many observations of `Clock`."""
    agent = ppo.make(config, CLOCK)
    return tuple(jax.vmap(f, (None, 0))(state, obs) for f in (agent.policy, agent.value))


def look_at_times(config, state, times):
    p, v = look(config, state, toy_envs.clock_obs(times).reshape(-1, 2).astype(np.float32))
    return np.float64(p).reshape(*times.shape, 2), np.float64(v).reshape(times.shape)


def train_clock(config, updates=1, start=None, seed=0, **params):
    """States before, between and after updates; and the diagnostics of each."""
    params = CLOCK.default_params.replace(**({"rewards": REWARDS} | params))
    states, diagnostics = [init(CLOCK, config, jax.random.key(seed), params)], []
    if start is not None:
        time = jnp.array(start, jnp.int32)
        env_state = states[0].env_state.replace(time=time)
        states[0] = states[0].replace(env_state=env_state, obs=toy_envs.clock_obs(time))
    for step in range(updates):
        state, metrics = update(CLOCK, config, states[-1], step, params)
        states.append(state)
        diagnostics.append({name: float(x) for name, x in metrics.items()})
    return states, diagnostics


def clock_times(start, steps, end=toy_envs.NEVER):
    """`[T, N]`: the times before each step, those it led to, and whether it ended the episode."""
    before, after = [], []
    time = np.array(start)
    for _ in range(steps):
        before.append(time)
        after.append(time + 1)
        time = np.where(time + 1 >= end, 0, time + 1)
    return np.array(before), np.array(after), np.array(after) >= end


def naive_gae(reward, value, next_value, terminated, truncated, gamma, gae_lambda):
    """The sum of all later deltas, each weighted afresh, of one trajectory or of several side by side."""
    if np.ndim(reward) == 2:
        columns = (np.array(x).T for x in (reward, value, next_value, terminated, truncated))
        return np.stack([naive_gae(*column, gamma, gae_lambda) for column in zip(*columns, strict=True)], axis=1)
    advantage = []
    for t in range(len(reward)):
        total, weight = 0.0, 1.0
        for k in range(t, len(reward)):
            bootstrap = 0.0 if terminated[k] else gamma * float(next_value[k])
            total += weight * (float(reward[k]) + bootstrap - float(value[k]))
            weight *= gamma * gae_lambda
            if terminated[k] or truncated[k]:
                break
        advantage.append(total)
    return np.array(advantage)


@pytest.mark.parametrize("gamma", [0, 0.5, 1])
@pytest.mark.parametrize("gae_lambda", [0, 0.5, 1])
def test_gae_equals_a_naive_loop(gamma, gae_lambda):
    rng = np.random.default_rng(1)
    reward, value, next_value = rng.normal(size=(3, 12, 6)).astype(np.float32)
    terminated, truncated = rng.random((2, 12, 6)) < 0.2
    got = jax.jit(ppo.gae)(reward, value, next_value, terminated, truncated, gamma, gae_lambda)
    want = naive_gae(reward, value, next_value, terminated, truncated, gamma, gae_lambda)
    np.testing.assert_allclose(got, want, atol=1e-5)


def test_gae_of_one_trajectory_by_hand():
    # gamma = lambda = 1/2, all values 4. Bootstrapped deltas are r + 2 - 4, the terminated one r - 4:
    # -1, 0 (truncated), -2 (terminated), 2. Traces of 1/4 cross neither ending.
    got = ppo.gae(
        reward=jnp.array([1.0, 2.0, 2.0, 4.0]),
        value=jnp.full(4, 4.0),
        next_value=jnp.full(4, 4.0),
        terminated=jnp.array([False, False, True, False]),
        truncated=jnp.array([False, True, False, False]),
        gamma=0.5,
        gae_lambda=0.5,
    )
    np.testing.assert_array_equal(got, [-1 + 0.25 * 0, 0, -2, 2])


def test_gae_carries_the_trace_between_endings():
    # No value anywhere: the advantage is the sum of later rewards of the same episode, halved at every step.
    zero = jnp.zeros(4)
    truncated = jnp.array([False, False, True, False])
    got = ppo.gae(jnp.array([8.0, 4.0, 2.0, 1.0]), zero, zero, zero > 0, truncated, 1.0, 0.5)
    np.testing.assert_array_equal(got, [8 + 2 + 0.5, 4 + 1, 2, 1])


def test_a_step_both_terminated_and_truncated_has_no_bootstrap():
    one, yes = jnp.ones(1), jnp.array([True])
    np.testing.assert_array_equal(ppo.gae(one, one, 5 * one, yes, yes, 1.0, 1.0), [0])


def test_gae_with_lambda_1_gives_monte_carlo_returns():
    rng = np.random.default_rng(2)
    steps, gamma = 15, 0.9
    reward = rng.normal(size=steps)
    terminated, truncated = np.isin(np.arange(steps), [2, 9]), np.isin(np.arange(steps), [5, 12])
    value, last_value, final_value = rng.normal(size=steps), rng.normal(), rng.normal(size=steps)
    next_value = np.where(terminated | truncated, final_value, np.append(value[1:], last_value))
    returns, following = np.zeros(steps), last_value
    for t in reversed(range(steps)):
        if terminated[t]:
            following = 0.0
        elif truncated[t]:
            following = final_value[t]
        following = returns[t] = reward[t] + gamma * following
    arrays = (jnp.array(x) for x in (reward, value, next_value, terminated, truncated))
    np.testing.assert_allclose(ppo.gae(*arrays, gamma, 1.0) + value, returns, atol=1e-5)


PROBABILITIES = np.array([[0.1, 0.2, 0.7], [0.5, 0.25, 0.25]])
OTHER = np.array([[0.6, 0.3, 0.1], [0.2, 0.2, 0.6]])
MEAN, STD = np.array([0.3, -1.0]), np.array([0.5, 2.0])
OTHER_MEAN, OTHER_STD = np.array([1.0, -0.5]), np.array([1.5, 0.8])


def categorical(probabilities):
    return ppo.Categorical(jnp.log(jnp.array(probabilities, jnp.float32)))


def gaussian(mean, std):
    return ppo.DiagonalGaussian(jnp.array(mean, jnp.float32), jnp.log(jnp.array(std, jnp.float32)))


def test_categorical_log_prob_is_that_of_the_action():
    got = categorical(PROBABILITIES).log_prob(jnp.array([2, 0]))
    np.testing.assert_allclose(got, np.log([0.7, 0.5]), rtol=1e-5)


def test_categorical_entropy():
    got = categorical(PROBABILITIES).entropy()
    np.testing.assert_allclose(got, scipy.stats.entropy(PROBABILITIES, axis=1), rtol=1e-5)


def test_categorical_kl():
    got = categorical(PROBABILITIES).kl(categorical(OTHER))
    np.testing.assert_allclose(got, scipy.stats.entropy(PROBABILITIES, OTHER, axis=1), rtol=1e-5)


def test_categorical_samples_are_as_frequent_as_probable():
    n, policy = 40_000, categorical(PROBABILITIES[0])
    action = policy.sample(policy.noise(jax.random.key(0), (n, 3)))
    for a, p in enumerate(PROBABILITIES[0]):
        low, high = scipy.stats.binom.interval(1 - 1e-5, n, p)
        assert low <= (action == a).sum() <= high


def test_gaussian_log_prob_is_the_sum_over_dimensions():
    action = np.array([[0.0, 0.0], [2.0, -3.0]])
    want = scipy.stats.norm.logpdf(action, MEAN, STD).sum(axis=1)
    np.testing.assert_allclose(gaussian(MEAN, STD).log_prob(jnp.array(action)), want, rtol=1e-5)


def test_gaussian_entropy_is_that_of_the_joint_density():
    want = scipy.stats.multivariate_normal(MEAN, np.diag(STD**2)).entropy()
    np.testing.assert_allclose(gaussian(MEAN, STD).entropy(), want, rtol=1e-5)


def test_gaussian_kl_equals_a_numeric_integral():
    x = np.linspace(-30, 30, 60_001)[:, None]
    log_p, log_q = scipy.stats.norm.logpdf(x, MEAN, STD), scipy.stats.norm.logpdf(x, OTHER_MEAN, OTHER_STD)
    want = (np.exp(log_p) * (log_p - log_q)).sum() * 0.001
    np.testing.assert_allclose(gaussian(MEAN, STD).kl(gaussian(OTHER_MEAN, OTHER_STD)), want, rtol=1e-4)


def test_gaussian_samples_have_its_distribution():
    policy = gaussian(MEAN, STD)
    action = np.array(policy.sample(policy.noise(jax.random.key(0), (5000, 2))))
    for d in range(2):
        assert scipy.stats.kstest(action[:, d], scipy.stats.norm(MEAN[d], STD[d]).cdf).pvalue > 1e-4
    assert abs(scipy.stats.spearmanr(action).statistic) < 0.06  # four standard errors: the dimensions are independent


def test_layer_norm_makes_each_hidden_layer_blind_to_the_scale_of_its_weights():
    agent = ppo.make(SMALL.replace(layer_norm=True, hidden_sizes=(8, 7), activation="swish"), CLOCK)
    state, obs = agent.init(jax.random.key(0)), jnp.linspace(-1, 1, 2)
    layers = state.params["params"]
    hidden = {name for name in layers if re.fullmatch(r"(actor|critic)_\d", name)}
    assert {f"{who}_norm_{i}" for who in ("actor", "critic") for i in (0, 1)} == {*layers} - hidden - {
        "policy_head", "value_head",
    }  # fmt: skip

    @jax.jit
    def outputs(params):
        changed = dataclasses.replace(state, params=params)
        return agent.policy(changed, obs), agent.value(changed, obs)

    before = outputs(state.params)
    for name in hidden:
        after = outputs({"params": layers | {name: jax.tree.map(lambda x: 50 * x, layers[name])}})
        for x, y in zip(after, before, strict=True):
            np.testing.assert_allclose(x, y, atol=2e-4)
    after, _ = jax.jit(agent.update)(state, jnp.int32(0))
    moved = jax.tree.map(lambda x, y: (x != y).any(), layers, after.params["params"])
    assert all(jax.tree.leaves(moved))


@pytest.mark.parametrize(("batch_size", "minibatches"), [(77, 1), (77, 7), (77, 11), (64, 4), (1, 1)])
def test_each_epoch_takes_every_sample_once(batch_size, minibatches):
    indices = ppo.minibatch_indices(jax.random.key(3), 5, batch_size, minibatches)
    assert indices.shape == (5, minibatches, batch_size // minibatches)
    for epoch in np.array(indices):
        assert sorted(epoch.reshape(-1)) == list(range(batch_size))


def test_epochs_have_orders_of_their_own():
    orders = np.array(ppo.minibatch_indices(jax.random.key(3), 5, 77, 7)).reshape(5, -1)
    assert len({tuple(order) for order in orders}) == 5


@pytest.mark.slow
def test_every_sample_is_as_often_first_as_any_other():
    keys = jax.random.split(jax.random.key(0), 7000)
    first = jax.vmap(lambda key: ppo.minibatch_indices(key, 2, 7, 1)[:, 0, 0])(keys)
    for epoch in np.array(first).T:
        assert scipy.stats.chisquare(np.bincount(epoch, minlength=7)).pvalue > 1e-4


def test_samples_meet_in_a_minibatch_as_often_as_chance_has_it():
    # Of 6 samples in minibatches of 3, a second one shares the minibatch of the first with probability 2/5.
    keys = jax.random.split(jax.random.key(1), 5000)
    part = np.array(jax.vmap(lambda key: ppo.minibatch_indices(key, 1, 6, 2)[0, 0])(keys))
    low, high = scipy.stats.binom.interval(1 - 1e-5, 5000, 2 / 5)
    for other in range(1, 6):
        together = ((part == 0).any(axis=1) == (part == other).any(axis=1)).sum()
        assert low <= together <= high


@jax.jit
def value_and_gradient(config, params, batch):
    task = task_of(ppo.make(config, CLOCK))
    (_, aux), gradient = jax.value_and_grad(ppo.loss, has_aux=True)(params, task, None, batch)
    return aux, gradient["params"]


@pytest.fixture(scope="module")
def loss_at():
    """The loss and gradient of a network that says `value` and has the logits (0, 0) everywhere.

    The action is 0, of probability 1/2, and `ratio` is set by the old log-probability.
    """
    zeros = jax.tree.map(jnp.zeros_like, init(CLOCK, ONE_STEP, jax.random.key(0)).params)

    def loss_at(ratio=1.0, advantage=0.0, value=0.0, old_value=0.0, target=0.0, **settings):
        columns = np.broadcast_arrays(*map(np.atleast_1d, (ratio, old_value, advantage, target)))
        ratio, old_value, advantage, target = (jnp.array(x, jnp.float32) for x in columns)
        params = {"params": zeros["params"] | {"value_head": {"kernel": jnp.zeros((8, 1)), "bias": jnp.array([value])}}}
        n = ratio.size
        log_prob = jnp.log(0.5) - jnp.log(ratio)
        batch = ppo.Batch(jnp.ones((n, 2)), jnp.zeros(n, jnp.int32), None, log_prob, old_value, advantage, target)
        config = ONE_STEP.replace(**({"norm_adv": False, "ent_coef": 0.0, "vf_coef": 0.0} | settings))
        return value_and_gradient(config, params, batch)

    return loss_at


@pytest.mark.parametrize(
    ("advantage", "ratio", "loss", "clipped"),
    [
        (2.0, 0.5, -1.0, False),
        (2.0, 1.1, -2.2, False),
        (2.0, 1.5, -2.4, True),
        (-2.0, 0.5, 1.6, True),
        (-2.0, 1.1, 2.2, False),
        (-2.0, 1.5, 3.0, False),
    ],
)
def test_surrogate_has_no_gradient_exactly_where_it_is_clipped(loss_at, advantage, ratio, loss, clipped):
    aux, gradient = loss_at(ratio=ratio, advantage=advantage)
    assert aux["policy_loss"] == pytest.approx(loss, rel=1e-5)
    # d ratio / d logits = ratio * (1 - 1/2, 0 - 1/2)
    want = [0.0, 0.0] if clipped else [-advantage * ratio / 2, advantage * ratio / 2]
    np.testing.assert_allclose(gradient["policy_head"]["bias"], want, rtol=1e-5)


def test_advantages_are_normalised_in_each_minibatch(loss_at):
    # (1, 3) becomes (-1, 1), so that the mean of ratio x advantage is (-1.1 + 0.9) / 2.
    aux, _ = loss_at(ratio=[1.1, 0.9], advantage=[1.0, 3.0], norm_adv=True)
    assert aux["policy_loss"] == pytest.approx(0.1, abs=1e-5)


@pytest.mark.parametrize(
    ("old_value", "target", "clip_vloss", "value_loss"),
    [
        (0.5, 2.0, True, 0.5 * 1.3**2),  # the value 1 is clipped to 0.7: further from 2, so that counts
        (0.5, 0.0, True, 0.5),  # nearer to 0: the unclipped error counts
        (1.1, 2.0, True, 0.5),  # within the clip
        (1.5, 0.0, True, 0.5 * 1.3**2),  # clipped from below, to 1.3
        (0.5, 2.0, False, 0.5),
    ],
)
def test_value_loss_with_and_without_clipping(loss_at, old_value, target, clip_vloss, value_loss):
    aux, _ = loss_at(value=1.0, old_value=old_value, target=target, clip_vloss=clip_vloss)
    assert aux["value_loss"] == pytest.approx(value_loss, rel=1e-5)


def test_value_gradient_takes_the_target_as_given(loss_at):
    _, gradient = loss_at(value=1.0, old_value=1.0, target=[3.0, 4.0], vf_coef=0.5)
    np.testing.assert_allclose(gradient["value_head"]["bias"], [0.5 * (1 - 3.5)], rtol=1e-5)


def test_loss_adds_the_value_loss_and_subtracts_the_entropy(loss_at):
    aux, _ = loss_at(advantage=3.0, value=1.0, old_value=1.0, target=3.0, vf_coef=0.25, ent_coef=0.1)
    assert aux["loss"] == pytest.approx(-3 + 0.25 * 2 - 0.1 * np.log(2), rel=1e-5)


def test_approx_kl_and_clip_fraction_of_known_ratios(loss_at):
    aux, _ = loss_at(ratio=[0.5, 1.0, 1.1, 1.5])
    k3 = [0.5 - 1 - np.log(0.5), 0, 0.1 - np.log(1.1), 0.5 - np.log(1.5)]
    assert aux["approx_kl"] == pytest.approx(np.mean(k3), rel=1e-4)
    assert aux["clip_fraction"] == 0.5
    assert aux["ratio_error"] == pytest.approx(0.5, rel=1e-5)


def test_samples_of_a_batch_do_not_touch_each_other():
    task = task_of(ppo.make(SMALL, CLOCK))
    params = init(CLOCK, SMALL, jax.random.key(0)).params
    obs = jax.random.normal(jax.random.key(1), (3, 2))

    def outputs(obs):
        policy, value = ppo.forward(task, params, None, obs)
        return jnp.column_stack([policy.log_probs, value])

    touches = (np.array(jax.jit(jax.jacobian(outputs))(obs)) != 0).any(axis=(1, 3))
    np.testing.assert_array_equal(touches, np.eye(3))


def gradient_of(config, state):
    """The gradient of the first optimiser step, from Adam's first moment."""
    adam = adam_of(state)
    assert adam.count == 1
    _, unravel = ravel_pytree(state.params)
    return jax.tree.map(np.float64, unravel(adam.mu / 0.1))["params"]


@pytest.mark.parametrize("ending", ["terminate_at", "max_steps_in_episode"])
def test_first_value_gradient_is_that_of_a_numpy_rollout(ending):
    config = ONE_STEP.replace(max_grad_norm=np.inf, gamma=0.9, gae_lambda=0.7, vf_coef=0.5)
    (before, after), _ = train_clock(config, start=[0, 2, 3], **{ending: 5})
    time, next_time, ended = clock_times([0, 2, 3], 8, 5)
    _, value = look_at_times(config, before, time)
    _, next_value = look_at_times(config, before, next_time)
    no = np.zeros_like(ended)
    endings = (ended, no) if ending == "terminate_at" else (no, ended)
    advantage = naive_gae(REWARDS[time], value, next_value, *endings, 0.9, 0.7)
    want = -0.5 * advantage.mean()  # value - target is -advantage
    np.testing.assert_allclose(gradient_of(config, after)["value_head"]["bias"], [want], rtol=1e-4)


def test_first_policy_gradient_is_that_of_a_numpy_rollout():
    config = ONE_STEP.replace(max_grad_norm=np.inf, ent_coef=0.0)
    (before, after), _ = train_clock(config, start=[0, 20, 40])
    time, next_time, never = clock_times([0, 20, 40], 8)
    probabilities, value = look_at_times(config, before, time)
    _, next_value = look_at_times(config, before, next_time)
    advantage = naive_gae(REWARDS[time], value, next_value, never, never, 0.99, 0.95)
    advantage = (advantage - advantage.mean()) / advantage.std()
    action = np.array(after.env_state.actions)[None] >> np.arange(8)[::-1, None] & 1
    score = np.eye(2)[action] - probabilities
    want = -(advantage[..., None] * score).mean(axis=(0, 1))
    np.testing.assert_allclose(gradient_of(config, after)["policy_head"]["bias"], want, rtol=1e-3, atol=1e-6)


def test_first_step_is_adams():
    config = ONE_STEP.replace(max_grad_norm=np.inf, learning_rate=0.01, adam_eps=1e-3)
    (before, after), _ = train_clock(config)
    gradient = flat(gradient_of(config, after))
    want = flat(before.params) - 0.01 * gradient / (np.abs(gradient) + 1e-3)
    np.testing.assert_allclose(flat(after.params), want, atol=1e-6)


@pytest.mark.slow
def test_every_parameter_tensor_moves():
    (before, _, after), _ = train_clock(RUNNING, updates=2)
    for x, y in zip(jax.tree.leaves(before.params), jax.tree.leaves(after.params), strict=True):
        assert not np.array_equal(x, y)


def test_learning_rate_falls_linearly_to_zero():
    state = train_clock(ONE_STEP, updates=0)[0][0]
    got = [update(CLOCK, ONE_STEP, state, step, CLOCK.default_params)[1]["learning_rate"] for step in (0, 3, 5)]
    np.testing.assert_allclose(got, [2.5e-4, 1.25e-4, 2.5e-4 / 6], rtol=1e-6)


def test_half_the_learning_rate_is_half_the_step():
    config = ONE_STEP.replace(learning_rate=0.01)
    state = train_clock(config, updates=0)[0][0]
    params = [update(CLOCK, config, state, step, CLOCK.default_params)[0].params for step in (0, 3)]
    whole, half = (flat(p) - flat(state.params) for p in params)
    assert np.abs(whole).max() > 0.005
    np.testing.assert_allclose(half, whole / 2, atol=1e-6)


def test_learning_rate_is_constant_without_annealing(stopping):
    assert [d["learning_rate"] for d in stopping(1e9)[1]] == [pytest.approx(0.02)] * 2


def test_first_ratio_is_1_at_every_update_with_running_statistics():
    _, diagnostics = train_clock(RUNNING, updates=4, terminate_at=5)
    assert max(d["first_ratio_error"] for d in diagnostics) < 1e-5
    assert min(d["approx_kl"] for d in diagnostics) > 1e-6  # it is the first ratio alone that is 1


@pytest.mark.slow
def test_first_ratio_is_1_at_every_update_for_box_actions():
    config = SMALL.replace(env_id="Pendulum-v1", learning_rate=0.01)
    agent = ppo.make(config)
    steps = jnp.arange(4)
    _, diagnostics = jax.jit(lambda key: jax.lax.scan(agent.update, agent.init(key), steps))(jax.random.key(0))
    assert diagnostics["first_ratio_error"].max() < 1e-5
    assert diagnostics["approx_kl"].min() > 1e-6


@pytest.fixture(scope="module")
def stopping():
    return lambda target_kl: train_clock(STOPPING.replace(target_kl=target_kl), updates=2)


def test_target_kl_stops_after_the_first_epoch(stopping):
    assert [d["gradient_steps"] for d in stopping(1e-9)[1]] == [2, 2]


def test_a_target_kl_never_reached_stops_nothing(stopping):
    assert [d["gradient_steps"] for d in stopping(1e9)[1]] == [6, 6]


def test_stopping_after_an_epoch_is_training_for_one_epoch(stopping):
    stopped, stopped_diagnostics = stopping(1e-9)
    single, single_diagnostics = train_clock(STOPPING.replace(update_epochs=1), updates=2)
    np.testing.assert_allclose(flat(stopped[2].params), flat(single[2].params), atol=1e-6)
    np.testing.assert_allclose(adam_of(stopped[2]).nu, adam_of(single[2]).nu, atol=1e-6)
    for name in ("approx_kl", "policy_loss", "value_loss", "grad_norm", "update_ratio", "gradient_noise_scale"):
        assert stopped_diagnostics[1][name] == pytest.approx(single_diagnostics[1][name], rel=1e-3, abs=1e-6), name


@pytest.fixture(scope="module")
def seeds():
    """Three seeds side by side: before, after one update, after another run of it, and the diagnostics."""
    params = CLOCK.default_params.replace(rewards=REWARDS, spread=9, terminate_at=13)
    keys = jax.random.split(jax.random.key(7), 3)
    before = jax.vmap(lambda key: init(CLOCK, RUNNING, key, params))(keys)
    step = jax.jit(jax.vmap(lambda state: update(CLOCK, RUNNING, state, 0, params)))
    return keys, params, before, *step(before), step(before)


def test_a_seed_alone_equals_that_seed_among_others(seeds):
    keys, params, _, after, diagnostics, _ = seeds
    alone = init(CLOCK, RUNNING, keys[1], params)
    alone = update(CLOCK, RUNNING, alone, 0, params)
    among = jax.tree.map(lambda x: x[1], (after, diagnostics))
    for x, y in zip(jax.tree.leaves(alone), jax.tree.leaves(among), strict=True):
        if jnp.issubdtype(x.dtype, jnp.floating):
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)
        else:  # keys, counts, times, and the record of all actions
            assert leaves_equal(x, y)


def test_seeds_differ_in_parameters_and_actions(seeds):
    _, _, before, after, _, _ = seeds
    for what in (before.params, after.params, after.env_state.actions, after.env_state.time):
        rows = np.concatenate([np.array(x).reshape(3, -1) for x in jax.tree.leaves(what)], axis=1)
        assert len(np.unique(rows, axis=0)) == 3


def test_a_rerun_is_bitwise_equal(seeds):
    _, _, _, after, diagnostics, again = seeds
    assert leaves_equal((after, diagnostics), again)


def test_environments_of_a_seed_differ(seeds):
    actions = np.array(seeds[3].env_state.actions)
    assert all(len(set(row)) == 3 for row in actions)


def test_every_update_draws_new_actions():
    # The initial policy is nearly uniform, so the same key would bring back nearly all 24 actions.
    states, _ = train_clock(ONE_STEP.replace(learning_rate=0.0), updates=3)
    actions = np.array([state.env_state.actions for state in states[1:]]) & 0xFF  # the newest eight
    bits = actions[..., None] >> np.arange(8) & 1
    for i, j in ((0, 1), (1, 2), (0, 2)):
        assert (bits[i] != bits[j]).sum() > 3


def test_six_updates_equal_twice_three_bitwise():
    params = CLOCK.default_params.replace(rewards=REWARDS, terminate_at=5)
    agent = ppo.make(RUNNING, CLOCK, params)
    scan = jax.jit(lambda state, steps: jax.lax.scan(agent.update, state, steps))
    start = init(CLOCK, RUNNING, jax.random.key(0), params)
    at_once, all_diagnostics = scan(start, jnp.arange(6))
    halfway, first = scan(start, jnp.arange(3))
    in_parts, second = scan(halfway, jnp.arange(3, 6))
    assert leaves_equal(at_once, in_parts)
    assert leaves_equal(all_diagnostics, jax.tree.map(lambda x, y: jnp.concatenate([x, y]), first, second))


def test_summary_of_a_part():
    got = ppo.summary("x", jnp.array([9.0, 2.0, 4.0, -9.0]), jnp.array([False, True, True, False]))
    assert {name: float(x) for name, x in got.items()} == {"x_mean": 3, "x_std": 1, "x_min": 2, "x_max": 4}


def test_explained_variance_of_a_value_off_by_a_constant_is_1():
    assert ppo.explained_variance(jnp.array([0.0, 2.0]), jnp.array([5.0, 7.0])) == 1


def test_explained_variance_of_constant_targets_is_undefined():
    assert np.isnan(ppo.explained_variance(jnp.full(4, 2.0), jnp.arange(4.0)))


def test_explained_variance_of_the_mean_is_0():
    assert ppo.explained_variance(jnp.array([1.0, 3.0]), jnp.array([2.0, 2.0])) == 0


def test_a_dead_layer_is_all_dormant():
    assert ppo.dormant_fraction([jnp.zeros((2, 3)), jnp.ones((2, 1))]) == 0.75


def test_gradient_noise_scale_of_recorded_gradients():
    gradients = np.random.default_rng(0).normal(0.3, 1, (6, 10)).astype(np.float32)
    adam, batch_size = optax.scale_by_adam(), 32
    state = adam.init(jnp.zeros(10))
    mean = square = np.zeros(10)
    for gradient in gradients:
        _, state = adam.update(jnp.array(gradient), state)
        mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * np.float64(gradient) ** 2
    mean, square = mean / (1 - 0.9**6), square / (1 - 0.999**6)
    want = batch_size * (square - mean**2).sum() / (mean**2).sum()
    assert ppo.gradient_noise_scale(state, batch_size) == pytest.approx(want, rel=1e-3)


def test_gradient_noise_scale_counts_the_samples_of_a_minibatch():
    (_, _, state), diagnostics = train_clock(RUNNING, updates=2)
    adam = jax.tree.map(np.float64, adam_of(state))
    mean, square = adam.mu / (1 - 0.9**8), adam.nu / (1 - 0.999**8)
    want = 12 * (square.sum() / (mean**2).sum() - 1)
    assert diagnostics[1]["gradient_noise_scale"] == pytest.approx(want, rel=1e-3)


def test_the_ring_holds_the_last_100_episodes_in_order():
    rng = np.random.default_rng(0)
    fields = dict.fromkeys(field.name for field in dataclasses.fields(ppo.State))
    ring = {"ring_return": jnp.zeros(100), "ring_length": jnp.zeros(100), "num_episodes": jnp.int32(0)}
    state = ppo.State(**fields | ring)
    record = jax.jit(ppo.record_episodes)
    last, number = deque(maxlen=100), 0
    for share in (0, 0.2, 0.3, 0.1, 0.9, 0, 0.3, 1):  # of 200 steps: at .9 and 1, more than 100 end in one rollout
        ended = rng.random((40, 5)) < share
        returns, lengths = rng.normal(size=(40, 5)).astype(np.float32), rng.integers(1, 99, (40, 5))
        state = record(state, ended, returns, lengths)
        for t in range(40):
            for n in np.flatnonzero(ended[t]):
                last.append((returns[t, n], lengths[t, n]))
                number += 1
        assert state.num_episodes == number
        slots = np.arange(number - len(last), number) % 100
        np.testing.assert_array_equal(state.ring_return[slots], [x for x, _ in last])
        np.testing.assert_array_equal(state.ring_length[slots], [x for _, x in last])


def test_returns_and_lengths_are_those_of_finished_episodes():
    # All three environments end at time 10: in the second rollout of eight steps, and again in the third.
    _, diagnostics = train_clock(ONE_STEP, updates=3, terminate_at=10)
    assert [d["episodes"] for d in diagnostics] == [0, 3, 3]
    assert [d["return_count"] for d in diagnostics] == [0, 3, 6]
    assert all(
        np.isnan(diagnostics[0][f"{x}_{y}"]) for x in ("return", "length") for y in ("mean", "std", "min", "max")
    )
    for d in diagnostics[1:]:
        assert d["length_mean"] == d["length_min"] == d["length_max"] == 10
        assert d["return_mean"] == pytest.approx(REWARDS[:10].sum(), rel=1e-5)
        assert d["return_std"] == pytest.approx(0, abs=1e-5)


def test_returns_of_episodes_that_started_at_different_times():
    # In 16 steps the first ends once, the others twice: an episode that starts late has only the rewards from there.
    _, (_, d) = train_clock(ONE_STEP.replace(gamma=0.5), updates=2, start=[0, 4, 7], max_steps_in_episode=10)
    want = [REWARDS[first:10].sum() for first in (0, 4, 7, 0, 0)]
    assert d["return_count"] == 5
    got = [d[f"return_{name}"] for name in ("mean", "std", "min", "max")]
    assert got == pytest.approx([np.mean(want), np.std(want), np.min(want), np.max(want)], rel=1e-4)
    assert (d["length_min"], d["length_max"]) == (3, 10)


def test_kl_is_from_the_old_policy_to_the_new_one():
    config = ONE_STEP.replace(learning_rate=0.05)
    (before, after), (d,) = train_clock(config, start=[0, 20, 40])
    time, _, _ = clock_times([0, 20, 40], 8)
    old, new = (look_at_times(config, state, time)[0] for state in (before, after))
    kl, reverse = (np.sum(p * np.log(p / q), axis=-1).mean() for p, q in ((old, new), (new, old)))
    assert abs(kl - reverse) > 0.01 * kl  # or this test could not tell
    assert d["kl"] == pytest.approx(kl, rel=1e-3)


def test_entropy_is_that_of_the_policy_that_collected():
    config = ONE_STEP.replace(learning_rate=0.05)
    states, diagnostics = train_clock(config, updates=3)
    for i, d in enumerate(diagnostics):
        p, _ = look_at_times(config, states[i], np.tile(np.arange(8 * i, 8 * i + 8), 3))
        want = -np.sum(p * np.log(p), axis=-1).mean()
        assert d["entropy"] == pytest.approx(want, rel=1e-4)
        assert d["relative_entropy"] == pytest.approx(want / np.log(2), rel=1e-4)


def test_diagnostics_of_targets_that_are_the_rewards():
    # With gamma 0 the lambda-return is the reward itself.
    config = ONE_STEP.replace(gamma=0.0)
    (before, _), (d,) = train_clock(config, start=[0, 20, 40])
    time, _, _ = clock_times([0, 20, 40], 8)
    _, value = look_at_times(config, before, time)
    target = np.float64(REWARDS[time])
    for name, x in {"reward": target, "target": target, "value": value, "advantage": target - value}.items():
        got = [d[f"{name}_{how}"] for how in ("mean", "std", "min", "max")]
        assert got == pytest.approx([x.mean(), x.std(), x.min(), x.max()], rel=1e-4, abs=1e-6), name
    assert d["value_bias"] == pytest.approx((target - value).mean(), rel=1e-4)
    assert d["explained_variance"] == pytest.approx(1 - (target - value).var() / target.var(), abs=1e-4)


def test_gradient_norm_is_that_before_clipping():
    (_, free), (unclipped,) = train_clock(ONE_STEP.replace(max_grad_norm=np.inf))
    (_, held), (clipped,) = train_clock(ONE_STEP.replace(max_grad_norm=1e-3))
    norm = np.linalg.norm(flat(gradient_of(ONE_STEP, free)))
    assert norm > 0.01
    assert unclipped["grad_norm"] == clipped["grad_norm"] == pytest.approx(norm, rel=1e-4)
    assert np.linalg.norm(flat(gradient_of(ONE_STEP, held))) == pytest.approx(1e-3, rel=1e-4)


def test_update_ratio_is_the_length_of_a_step_relative_to_the_parameters():
    (before, after), (d,) = train_clock(ONE_STEP.replace(learning_rate=0.01))
    old, new = flat(before.params), flat(after.params)
    assert d["update_ratio"] == pytest.approx(np.linalg.norm(new - old) / np.linalg.norm(old), rel=1e-3)


def test_steps_are_counted():
    _, diagnostics = train_clock(RUNNING, updates=3)
    assert [d["env_steps"] for d in diagnostics] == [24, 48, 72]
    assert [d["gradient_steps"] for d in diagnostics] == [4, 4, 4]


def test_a_bad_reward_shows_as_nonfinite_from_its_update_on():
    rewards = REWARDS.copy()
    rewards[20] = np.nan  # steps 16 to 23 are the third update's
    _, diagnostics = train_clock(ONE_STEP, updates=4, rewards=rewards)
    assert [d["nonfinite"] for d in diagnostics] == [0, 0, 1, 1]


@pytest.mark.slow
def test_an_infinite_reward_shows_as_nonfinite_though_scaling_clips_it():
    rewards = REWARDS.copy()
    rewards[20] = np.inf
    _, diagnostics = train_clock(ONE_STEP.replace(scale_rewards=True), updates=4, rewards=rewards)
    assert [d["nonfinite"] for d in diagnostics] == [0, 0, 1, 1]


@pytest.mark.parametrize(("offset", "spread", "rtol"), [(0, 1, 1e-4), (1000, 0.01, 0.02)])
def test_moments_equal_numpy_over_all_data(offset, spread, rtol):
    rng = np.random.default_rng(0)
    parts = [(offset + spread * rng.normal(size=(n, 3))).astype(np.float32) for n in (5, 1, 40, 200)]
    moments = ppo.Moments.of(jnp.array(parts[0]))
    for part in parts[1:]:
        moments = moments.merge(ppo.Moments.of(jnp.array(part)))
    together = np.concatenate(parts).astype(np.float64)
    np.testing.assert_allclose(moments.mean, together.mean(axis=0), rtol=1e-6, atol=1e-5)
    np.testing.assert_allclose(moments.variance, together.var(axis=0), rtol=rtol)
    assert moments.count == 246


def test_moments_of_nothing_add_nothing():
    nothing = ppo.Moments(*jnp.zeros(3))
    got = nothing.merge(ppo.Moments.of(jnp.array([1.0, 3.0])))
    assert (got.mean, got.variance, got.count) == (2, 1, 2)


def test_observation_statistics_are_of_all_observations_seen():
    states, _ = train_clock(RUNNING, updates=3, spread=30)
    start = np.array(states[0].env_state.time)
    for k, state in enumerate(states):
        seen = toy_envs.clock_obs(start + np.arange(8 * k + 1)[:, None]).reshape(-1, 2)
        assert state.obs_moments.count == len(seen)
        np.testing.assert_allclose(state.obs_moments.mean, seen.mean(axis=0), rtol=1e-4)
        np.testing.assert_allclose(state.obs_moments.variance, seen.var(axis=0), rtol=1e-4)


def test_observation_statistics_are_of_what_the_policy_sees_after_an_end():
    # Time 5 is never seen: the policy sees the start of the next episode in its place.
    states, _ = train_clock(RUNNING, updates=1, terminate_at=5)
    seen = toy_envs.clock_obs(np.repeat([0, 1, 2, 3, 4, 0, 1, 2, 3], 3))
    np.testing.assert_allclose(states[1].obs_moments.mean, seen.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(states[1].obs_moments.variance, seen.var(axis=0), rtol=1e-5)


def test_policy_and_value_normalise_what_they_are_shown():
    state = train_clock(RUNNING, updates=2)[0][2]
    times = np.array([0, 3, 16, 9999])
    got_policy, got_value = look_at_times(RUNNING, state, times)
    moments = jax.tree.map(np.float64, state.obs_moments)
    shown = (toy_envs.clock_obs(times) - moments.mean) / np.sqrt(moments.variance)
    assert np.abs(shown[-1]).min() > 10  # the last one is clipped
    plain = SMALL, state.replace(obs_moments=None, return_moments=None), np.clip(shown, -10, 10).astype(np.float32)
    want_policy, want_value = look(*plain)
    np.testing.assert_allclose(got_policy, want_policy, rtol=1e-4)
    np.testing.assert_allclose(got_value, want_value * np.sqrt(state.return_moments.variance), rtol=1e-4)


def scaled_rewards(start, updates, gamma, end, rewards):
    """`[T, N]` of each update: the rewards over the std of all discounted sums until then, by a loop."""
    time, _, ended = clock_times(start, 8 * updates, end)
    total, totals = np.zeros(len(start)), []
    for t in range(8 * updates):
        total = gamma * total + rewards[time[t]]
        totals.append(total)
        total = np.where(ended[t], 0, total)
    for k in range(updates):
        std = np.std(totals[: 8 * k + 8])
        yield np.clip(rewards[time[8 * k : 8 * k + 8]] / std, -10, 10)


def test_rewards_are_divided_by_the_std_of_their_discounted_sums():
    config, start = RUNNING.replace(gamma=0.8), [0, 2, 4]
    _, diagnostics = train_clock(config, updates=3, start=start, terminate_at=7)
    for d, want in zip(diagnostics, scaled_rewards(start, 3, 0.8, 7, np.float64(REWARDS)), strict=True):
        got = [d[f"reward_{how}"] for how in ("mean", "std", "min", "max")]
        assert got == pytest.approx([want.mean(), want.std(), want.min(), want.max()], rel=1e-4)


def test_constant_rewards_are_scaled_and_never_shifted():
    _, (d,) = train_clock(RUNNING.replace(gamma=0.8), rewards=np.full(64, -3.0, np.float32))
    (want,) = scaled_rewards([0, 0, 0], 1, 0.8, toy_envs.NEVER, np.full(64, -3.0))
    assert d["reward_min"] == pytest.approx(want.min(), rel=1e-4)
    assert d["reward_max"] == pytest.approx(want.max(), rel=1e-4)
    assert d["reward_max"] < 0


def test_scaled_rewards_are_clipped_at_10():
    # The last of 6 x 24 rewards is 1000 and the others 0: without clipping it would become (144^2 / 143)^.5 = 12.04.
    rewards = np.zeros(64, np.float32)
    rewards[47] = 1000
    _, diagnostics = train_clock(RUNNING.replace(gamma=0.0), start=[0, 50, 50], updates=6, rewards=rewards)
    assert diagnostics[5]["reward_max"] == 10


def test_rewards_whose_sums_do_not_vary_are_left_alone():
    _, (d,) = train_clock(RUNNING, rewards=np.full(64, 3, np.float32), terminate_at=1)
    assert (d["reward_min"], d["reward_max"]) == (3, 3)


def test_returns_are_recorded_before_scaling():
    _, (d,) = train_clock(RUNNING, rewards=np.full(64, 3, np.float32), terminate_at=4)
    assert (d["return_min"], d["return_max"], d["length_mean"]) == (12, 12, 4)


@pytest.fixture(scope="module")
def pair():
    """The values of A and B after training."""
    config = SMALL.replace(num_envs=7, num_steps=11, num_minibatches=1, anneal_lr=False, total_timesteps=250 * 77)
    config = config.replace(gamma=0.6, learning_rate=5e-3)
    state, _ = jax.jit(lambda key: ppo.train(config, key, PAIR))(jax.random.key(0))
    return jax.jit(jax.vmap(ppo.make(config, PAIR).value, (None, 0)))(state, jnp.arange(2))


def test_a_terminated_episode_is_worth_its_reward(pair):
    assert pair[0] == pytest.approx(1, abs=0.1)


def test_a_truncated_episode_is_worth_its_reward_and_what_its_last_observation_promises(pair):
    assert pair[1] == pytest.approx(1.6, abs=0.1)


@pytest.fixture(scope="module")
def reached():
    """A rollout with Box actions, which the environment shows as its observations."""
    agent = ppo.make(SMALL.replace(init_log_std=0.5), toy_envs.Reach())
    task = task_of(agent)
    state = jax.jit(agent.init)(jax.random.key(0))
    return jax.jit(partial(ppo.collect, task))(state, jax.random.key(1))[1]


def test_box_actions_are_clipped_for_the_environment(reached):
    received = np.array(reached.final_obs)
    assert received.shape == (8, 3, 2, 1)
    np.testing.assert_array_equal(received[..., 0], np.clip(reached.action, -0.5, 0.5))


def test_box_actions_are_stored_unclipped(reached):
    assert reached.action.shape == (8, 3, 2)
    assert np.abs(reached.action).max() > 1
    want = scipy.stats.norm.logpdf(reached.action, reached.policy.mean, np.exp(0.5)).sum(axis=-1)
    np.testing.assert_allclose(reached.log_prob, want, rtol=1e-4)


def test_box_policy_has_a_mean_and_a_std_per_dimension():
    agent = ppo.make(SMALL.replace(init_log_std=0.5), toy_envs.Reach())
    mean, std = jax.jit(agent.policy)(jax.jit(agent.init)(jax.random.key(0)), jnp.zeros((2, 1)))
    assert mean.shape == (2,)
    np.testing.assert_allclose(std, np.exp([0.5, 0.5]), rtol=1e-6)


def shapes(env, config=SMALL):
    agent = ppo.make(config, env)
    state = jax.eval_shape(agent.init, jax.random.key(0))
    after, _ = jax.eval_shape(agent.update, state, jnp.int32(0))
    assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == jax.tree.map(lambda x: (x.shape, x.dtype), state)
    kernels = [layer["kernel"] for layer in state.params["params"].values() if hasattr(layer, "keys")]
    return sorted((math.prod(kernel.shape[:-1]), kernel.shape[-1]) for kernel in kernels)


def test_images_share_one_convolutional_torso():
    # 9 x 9 x 2 -> 4 x 4 x 6 -> 3 x 3 x 5 -> 8 -> 4 logits and a value
    env = toy_envs.Still(spaces.Box(0, 255, (9, 9, 2), jnp.uint8), spaces.Discrete(4))
    got = shapes(env, SMALL.replace(conv_layers=((6, 3, 2), (5, 2, 1))))
    assert got == sorted([(3 * 3 * 2, 6), (2 * 2 * 6, 5), (3 * 3 * 5, 8), (8, 4), (8, 1)])


def test_flat_observations_have_two_networks():
    # 6 -> 8 -> 5 -> the mean of one action, and 6 -> 8 -> 5 -> a value
    env = toy_envs.Still(spaces.Box(0, 1, (3, 2)), spaces.Box(-1, 1, ()))
    got = shapes(env, SMALL.replace(hidden_sizes=(8, 5)))
    assert got == sorted([(6, 8), (8, 5), (6, 8), (8, 5), (5, 1), (5, 1)])


@pytest.fixture(scope="module")
def painter():
    """An agent for images, and its state: 7 x 6, for rows and columns must not be swapped, and a stride of 2."""
    env = toy_envs.Still(spaces.Box(0, 255, (7, 6, 2), jnp.uint8), spaces.Discrete(3))
    agent = ppo.make(SMALL.replace(conv_layers=((4, 3, 2),), activation="relu"), env)
    return agent, jax.jit(agent.init)(jax.random.key(0))


def test_convolution_equals_a_loop_over_positions(painter):
    agent, state = painter
    image = np.array(jax.random.normal(jax.random.key(1), (2, 7, 6, 2)))
    _, aux = task_of(agent).network.apply(state.params, jnp.array(image), 0.0, mutable=["intermediates"])
    layer = state.params["params"]["torso_conv_0"]
    kernel = np.array(layer["kernel"]).reshape(3, 3, 2, 4)
    want = np.zeros((2, 3, 2, 4))
    for i in range(3):
        for j in range(2):
            patch = image[:, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3]
            want[:, i, j] = np.maximum(np.einsum("brcx,rcxf->bf", patch, kernel) + layer["bias"], 0)
    np.testing.assert_allclose(jax.tree.leaves(aux)[0], want, atol=1e-5)


def test_first_policy_is_nearly_uniform(painter):
    agent, state = painter
    probabilities = jax.jit(agent.policy)(state, jnp.full((7, 6, 2), 200, jnp.uint8))
    assert probabilities.shape == (3,)
    assert probabilities.sum() == pytest.approx(1)
    assert 1e-5 < np.abs(probabilities - 1 / 3).max() < 0.02


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"total_timesteps": 0}, "total_timesteps is 0; it must be int in"),
        ({"num_envs": 0}, r"num_envs is 0; it must be int in \[1, inf\)"),
        ({"num_envs": 2.0}, "num_envs is 2.0; it must be int in"),
        ({"num_envs": True}, "num_envs is True; it must be int in"),
        ({"num_steps": -1}, "num_steps is -1"),
        ({"num_minibatches": 0}, "num_minibatches is 0"),
        ({"update_epochs": 0}, "update_epochs is 0"),
        ({"num_minibatches": 5}, r"num_minibatches is 5; it must be a divisor of .* = 24, such as \[3, 4, 6\]"),
        ({"total_timesteps": 23}, "total_timesteps is 23; it must be at least one update's .* = 24"),
        ({"activation": "gelu"}, r"activation is 'gelu'; it must be Literal\['tanh', 'relu', 'swish'\]"),
        ({"hidden_sizes": (8, 0)}, r"hidden_sizes is \(8, 0\)"),
        ({"hidden_sizes": (8.5,)}, r"hidden_sizes is \(8.5,\)"),
        ({"hidden_sizes": [8]}, r"hidden_sizes is \[8\]; it must be tuple\[int, ...\] in"),
        ({"conv_layers": ((4, 3, 0),)}, r"conv_layers is \(\(4, 3, 0\),\); it must be tuple\[tuple\[int, int, int\]"),
        ({"conv_layers": ((4, 3),)}, r"conv_layers is \(\(4, 3\),\)"),
        ({"conv_layers": (4, 3, 1)}, r"conv_layers is \(4, 3, 1\)"),
        ({"anneal_lr": 1}, "anneal_lr is 1; it must be bool"),
        ({"norm_adv": None}, "norm_adv is None; it must be bool"),
        ({"clip_vloss": "no"}, "clip_vloss is 'no'; it must be bool"),
        ({"normalize_observations": 0}, "normalize_observations is 0; it must be bool"),
        ({"scale_rewards": 0.5}, "scale_rewards is 0.5; it must be bool"),
        ({"gamma": None}, r"gamma is None; it must be float in \[0, 1\]"),
        ({"gamma": 1.1}, r"gamma is 1.1; it must be float in \[0, 1\]"),
        ({"gamma": -0.1}, "gamma is -0.1"),
        ({"gamma": True}, "gamma is True"),
        ({"num_envs": jnp.int32(2)}, "num_envs is Array"),
        ({"num_envs": np.array([2, 4])}, "num_envs is array"),
        ({"activation": np.array("tanh")}, "activation is array"),
        ({"adam_eps": 1e-50}, "adam_eps is 1e-50; it must be float in"),
        ({"max_grad_norm": 1e-50}, "max_grad_norm is 1e-50"),
        ({"gae_lambda": 2.0}, r"gae_lambda is 2.0; it must be float in \[0, 1\]"),
        ({"learning_rate": -1.0}, "learning_rate is -1.0; it must be float in"),
        ({"learning_rate": np.inf}, "learning_rate is inf; it must be float in"),
        ({"learning_rate": np.nan}, "learning_rate is nan"),
        ({"learning_rate": np.array([1e-3, -1.0])}, "learning_rate is array"),
        ({"learning_rate": "fast"}, "learning_rate is 'fast'; it must be float in"),
        ({"adam_eps": -1e-5}, "adam_eps is -1e-05"),
        ({"adam_eps": 0.0}, r"adam_eps is 0.0; it must be float in \(0, inf\)"),
        ({"clip_coef": -0.2}, "clip_coef is -0.2"),
        ({"ent_coef": -0.01}, "ent_coef is -0.01"),
        ({"vf_coef": np.inf}, "vf_coef is inf"),
        ({"target_kl": -0.1}, "target_kl is -0.1"),
        ({"max_grad_norm": -1.0}, r"max_grad_norm is -1.0; it must be float in \(0, inf\]"),
        ({"max_grad_norm": 0.0}, r"max_grad_norm is 0.0; it must be float in \(0, inf\]"),
        ({"max_grad_norm": np.nan}, "max_grad_norm is nan"),
        ({"init_log_std": np.inf}, "init_log_std is inf; it must be float in"),
    ],
)
def test_bad_settings_are_refused_in_one_line(settings, message):
    with pytest.raises(ValueError, match=message) as error:
        ppo.make(SMALL.replace(**settings), CLOCK)
    assert "\n" not in str(error.value)


def test_an_infinite_gradient_norm_is_allowed():
    ppo.make(SMALL.replace(max_grad_norm=np.inf), CLOCK)


@pytest.mark.parametrize(
    ("obs_space", "action_space", "message"),
    [
        (
            spaces.Dict({"a": spaces.Discrete(2)}),
            spaces.Discrete(2),
            "observation space .* PPO takes Discrete, MultiDiscrete or Box",
        ),
        (
            spaces.Discrete(2),
            spaces.Tuple([spaces.Discrete(2)]),
            "action space .* PPO takes Discrete, MultiDiscrete or Box",
        ),
        (spaces.Box(0, 1, (9, 2, 1)), spaces.Discrete(2), r"conv_layers leave nothing of images: 3 x 3 does not fit"),
    ],
)
def test_bad_spaces_are_refused_in_one_line(obs_space, action_space, message):
    with pytest.raises(ValueError, match=message) as error:
        ppo.make(SMALL, toy_envs.Still(obs_space, action_space)).init(jax.random.key(0))
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_eight_seeds_start_in_a_fresh_process():
    # A batched QR decomposition in the initialisation often deadlocks here; matrices of 64 x 64 would be too small.
    code = """
import jax, jax.numpy as jnp
from rlref import ppo
config = ppo.Config(num_envs=16, num_steps=32, total_timesteps=2 * 16 * 32, hidden_sizes=(256, 256))
config = config.replace(update_epochs=1, num_minibatches=1)
keys = jax.vmap(jax.random.key)(jnp.arange(8))
state, diagnostics = jax.jit(jax.vmap(ppo.train, in_axes=(None, 0)))(config, keys)
print(diagnostics["env_steps"].shape, diagnostics["nonfinite"].max())
"""
    command = [sys.executable, "-W", "error", "-c", code]
    run = subprocess.run(command, env=child_environment(), timeout=300, check=True, capture_output=True, text=True)
    assert run.stdout.split("\n")[0] == "(8, 2) 0.0"


@pytest.mark.slow
def test_the_file_alone_trains(tmp_path):
    source = Path(ppo.__file__).read_text()
    assert source.count("= static(500_000)") == 1
    printed = trains_alone(source.replace("= static(500_000)", "= static(1024)"), tmp_path)
    assert printed["env_steps"] == [1024] * 4
    assert printed["nonfinite"] == [0] * 4
    assert len(set(printed["return_mean"])) > 1


@pytest.mark.slow
def test_settings_can_be_vmapped():
    configs = jax.vmap(lambda x: ONE_STEP.replace(learning_rate=x))(jnp.array([0.0, 0.02]))
    train = jax.jit(jax.vmap(lambda config, key: ppo.train(config, key, CLOCK), in_axes=(0, None)))
    state, diagnostics = train(configs, jax.random.key(0))
    before = flat(init(CLOCK, ONE_STEP, jax.random.key(0)).params)
    still, moved = (flat(jax.tree.map(lambda x, i=i: x[i], state.params)) for i in range(2))
    np.testing.assert_array_equal(still, before)
    alone, _ = train_clock(ONE_STEP.replace(learning_rate=0.02), updates=6, rewards=CLOCK.default_params.rewards)
    np.testing.assert_allclose(moved, flat(alone[6].params), atol=1e-5)
    np.testing.assert_allclose(diagnostics["learning_rate"][1], 0.02 * (1 - np.arange(6) / 6), rtol=1e-5)


def test_qr_decompositions_are_batched_over_seeds_but_on_a_cpu():
    agent, keys = ppo.make(SMALL, CLOCK), jax.random.split(jax.random.key(0), 2)
    traced = jax.jit(jax.vmap(agent.init)).trace(keys)
    for platform, function, rank in (
        ("cpu", "lapack_sgeqrf_ffi", 2),
        ("cuda", "cusolver_geqrf_ffi", 3),
        ("tpu", "Qr", 3),
    ):
        program = traced.lower(lowering_platforms=(platform,)).as_text()
        shapes = re.findall(rf"@{function}\(.*: \(tensor<([\dx]+)xf32>", program)
        # In a loop over seeds where batched ones deadlock; elsewhere a loop is a thousand kernels.
        assert {shape.count("x") + 1 for shape in shapes} == {rank}, platform


def test_vmap_turns_no_branch_into_a_computation_of_both():
    agent = ppo.make(RUNNING.replace(target_kl=0.01), CLOCK)
    states = [jax.eval_shape(jax.vmap(agent.init), jax.random.split(jax.random.key(0), 2))]
    states.append(jax.eval_shape(agent.init, jax.random.key(0)))
    many = jax.make_jaxpr(jax.vmap(agent.update, in_axes=(0, None)))(states[0], 0)
    one = jax.make_jaxpr(agent.update)(states[1], 0)
    assert count_conds(many) == count_conds(one)
