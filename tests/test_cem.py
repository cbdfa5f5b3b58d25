from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy_envs
from gymnax.environments import spaces
from helpers import count_conds, leaves_equal, task_of, trains_alone

import rlref
from rlref import cem, metrics
from rlref.runs.display import Silent
from rlref.runs.job import Job
from rlref.runs.plan import make_plan
from rlref.runs.programs import compile_programs

SMALL = cem.Config(num_generations=4, population_size=10, elite_fraction=0.3, num_rollouts=3, num_eval_rollouts=5)
SMALL = SMALL.replace(max_episode_steps=12)
CLOCK = toy_envs.Clock()
TIMES = np.arange(64, dtype=np.float32)


@partial(jax.jit, static_argnums=0)
def generation(env, config, state, step, env_params):
    return cem.make(config, env, env_params).update(state, step)


@partial(jax.jit, static_argnums=0)
def train_seeds(env, config, env_params, keys):
    return jax.vmap(lambda key: cem.train(config, key, env, env_params))(keys)


def keys(count, first=0):
    return jax.vmap(jax.random.key)(jnp.arange(count) + first)


# Exact checks, on fitness that is a known function of the parameters: D biases, and D weights that nothing depends on.

# Standard deviations of .1, at which tanh and its inverse are exact enough.
LARGE = cem.Config(num_generations=1, population_size=20_000, num_rollouts=1, num_eval_rollouts=1, init_variance=0.01)
LARGE = LARGE.replace(extra_variance=0.0)


def search(num_biases, config, seeds=1, **params):
    """States `[S]` and diagnostics `[S, generation]` of CEM on `Landscape`."""
    env = toy_envs.Landscape(num_biases)
    return train_seeds(env, config, env.default_params.replace(**params), keys(seeds))


def z_of(state, num_biases):
    """Mean and std of the biases, in standard deviations of the start; `[S, D]`."""
    return np.float64(state.mean)[:, num_biases:] / 0.1, np.sqrt(np.float64(state.variance))[:, num_biases:] / 0.1


@pytest.mark.parametrize(
    ("fraction", "shift", "std"), [(0.1, 1.755, 0.411), (0.2, 1.400, 0.468), (0.5, 0.798, 0.603), (0.8, 0.350, 0.764)]
)
def test_one_generation_on_linear_fitness_shifts_by_what_truncation_selection_gives(fraction, shift, std):
    state, _ = search(2, LARGE.replace(elite_fraction=fraction), slope=np.array([0.0, 3.0]))
    mean, spread = z_of(state, 2)
    np.testing.assert_allclose(mean[0], [0, shift], atol=0.05)
    np.testing.assert_allclose(spread[0], [1, std], atol=0.03)


@pytest.mark.slow
def test_a_small_population_shifts_less():
    config = LARGE.replace(population_size=64, elite_fraction=0.2)
    state, _ = search(1, config, seeds=2000, slope=np.ones(1))
    assert z_of(state, 1)[0].mean() == pytest.approx(1.370, abs=0.015)  # of 13 elites


@pytest.mark.slow
def test_without_extra_variance_the_search_stops_on_its_way():
    config = LARGE.replace(num_generations=30, population_size=10_000, elite_fraction=0.2)
    mean, spread = z_of(search(1, config, slope=np.ones(1))[0], 1)
    assert mean[0, 0] == pytest.approx(1.400 / (1 - 0.468), abs=0.05)
    assert spread[0, 0] < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(("extra_variance", "reached"), [(0.0, 2.63), (0.01, 5.0)])
def test_with_extra_variance_it_reaches_an_optimum_5_standard_deviations_away(extra_variance, reached):
    config = LARGE.replace(num_generations=30, population_size=1000, elite_fraction=0.2, extra_variance=extra_variance)
    mean, _ = z_of(search(1, config, seeds=8, curvature=np.ones(1), optimum=np.array([0.5]))[0], 1)
    np.testing.assert_allclose(mean, reached, atol=0.3 if extra_variance == 0 else 0.01)


@pytest.mark.slow
def test_an_anisotropic_bowl_is_searched_to_its_bottom():
    optimum = np.array([0.3, -0.2, 0.1, 0.0, -0.3, 0.2, -0.1])  # 14 parameters, 101 candidates
    curvature = np.array([1.0, 30.0, 3.0, 10.0, 1.0, 3.0, 0.3])
    config = LARGE.replace(num_generations=60, population_size=101, elite_fraction=0.2, extra_variance=0.005)
    state, _ = search(7, config, seeds=8, curvature=curvature, optimum=optimum)
    np.testing.assert_allclose(z_of(state, 7)[0], np.tile(optimum / 0.1, (8, 1)), atol=0.1)


@pytest.mark.slow
def test_on_noise_alone_kl_and_entropy_change_as_chance_has_it():
    # 8 elites and 10 parameters: digamma by simulation gave 1.416.
    config = LARGE.replace(population_size=64, elite_fraction=0.125, num_rollouts=3, num_eval_rollouts=4)
    state, diagnostics = search(5, config, seeds=4000, noise=1.0)
    got = {name: np.float64(x)[:, 0] for name, x in diagnostics.items()}
    np.testing.assert_allclose(got["kl_floor"], 1.416, atol=1e-3)
    assert got["kl_refit"].mean() == pytest.approx(1.416, abs=0.03)
    assert got["kl_excess"].mean() == pytest.approx(0, abs=0.03)
    after = 0.5 * np.log(2 * np.pi * np.e * np.float64(state.variance)).sum(axis=1)
    assert (got["entropy"] - after).mean() == pytest.approx(1.416, abs=0.03)
    # Var / (MS / K) has an F distribution with 63 degrees of freedom above, whose inverse has the mean 63 / 61.
    assert got["explained_variance"].mean() == pytest.approx(-2 / 61, abs=0.015)


@pytest.mark.slow
def test_an_optimum_on_the_edge_of_the_box_is_reached():
    config = cem.Config(num_generations=20, population_size=64, num_rollouts=1, num_eval_rollouts=1)

    class Edge(toy_envs.Landscape):
        def step_env(self, key, state, action, params):
            return jnp.zeros(1), state, action.sum(), jnp.bool(True), {}

    env = Edge(2)
    state, diagnostics = train_seeds(env, config, env.default_params, keys(4))
    agent = cem.make(config, env)
    action, std = jax.vmap(agent.policy, (0, None))(state, jnp.zeros(1))
    np.testing.assert_allclose(action, np.ones((4, 2)), atol=0.01)
    np.testing.assert_array_equal(std, np.zeros((4, 2)))
    assert (diagnostics["mean_policy_return"][:, -1] > 1.98).all()


@pytest.mark.slow
def test_selection_bias_is_what_choosing_by_noise_gains():
    config = LARGE.replace(population_size=2000, elite_fraction=0.2, num_eval_rollouts=50)
    _, diagnostics = search(1, config, seeds=64, noise=1.0)
    assert diagnostics["selection_bias"].mean() == pytest.approx(1.400, abs=0.06)
    assert diagnostics["mean_policy_return"].mean() == pytest.approx(0, abs=0.06)
    assert diagnostics["mean_policy_return"].std() == pytest.approx(50**-0.5, rel=0.3)


# One generation against NumPy.


def by_hand(config, state, step, reward):
    """The next mean and variance, and what diagnostics follow from scores; `reward` is of one candidate's biases."""
    noise = jax.random.normal(jax.random.split(state.key, 5)[1], (config.population_size, len(state.mean)))
    old_mean, old_variance = np.float64(state.mean), np.float64(state.variance)
    candidates = [old_mean + np.sqrt(old_variance) * row for row in np.float64(noise)]
    scores = [reward(x[len(x) // 2 :]) for x in candidates]
    order = sorted(range(len(scores)), key=lambda i: -scores[i])[: round(config.elite_fraction * len(scores))]
    elite = np.array([candidates[i] for i in order])
    mean = sum(elite) / len(elite)
    variance = sum((x - mean) ** 2 for x in elite) / len(elite)
    keep = config.smoothing
    last = config.extra_variance_fraction * config.num_generations
    new_variance = keep * old_variance + (1 - keep) * variance + config.extra_variance * max(1 - step / last, 0)
    new_mean = keep * old_mean + (1 - keep) * mean
    kl = 0.0
    for m, v, m0, v0 in zip(new_mean, new_variance, old_mean, old_variance, strict=True):
        kl += 0.5 * (v / v0 + (m - m0) ** 2 / v0 - 1 - np.log(v / v0))
    kl_refit = 0.0
    for m, v, m0, v0 in zip(mean, variance, old_mean, old_variance, strict=True):
        kl_refit += 0.5 * (v / v0 + (m - m0) ** 2 / v0 - 1 - np.log(v / v0))
    chosen = [scores[i] for i in order]
    wanted = {
        "kl": kl, "kl_refit": kl_refit, "elite_threshold": min(chosen), "elite_mean": np.mean(chosen),
        "return_mean": np.mean(scores), "return_std": np.std(scores), "return_min": min(scores),
        "return_max": max(scores), "return_count": len(scores), "std_min": np.sqrt(old_variance).min(),
        "std_mean": np.sqrt(old_variance).mean(), "entropy": 0.5 * np.log(2 * np.pi * np.e * old_variance).sum(),
    }  # fmt: skip
    return new_mean, new_variance, wanted


def test_generations_equal_those_of_numpy():
    config = cem.Config(num_generations=8, population_size=23, elite_fraction=0.22, num_rollouts=1, num_eval_rollouts=2)
    config = config.replace(init_variance=0.01, extra_variance=0.02, extra_variance_fraction=0.5, smoothing=0.3)
    slope, curvature, optimum = np.array([0.5, -1.0, 0.2]), np.array([3.0, 0.5, 1.0]), np.array([0.1, 0.2, -0.3])
    env = toy_envs.Landscape(3)
    params = env.default_params.replace(slope=slope, curvature=curvature, optimum=optimum)
    state = cem.make(config, env, params).init(jax.random.key(4))
    for step in range(6):
        mean, variance, wanted = by_hand(
            config, state, step, lambda z: (slope * z - curvature * (z - optimum) ** 2 / 2).sum()
        )
        state, got = generation(env, config, state, step, params)
        np.testing.assert_allclose(state.mean, mean, atol=2e-5)
        np.testing.assert_allclose(state.variance, variance, rtol=1e-3)
        for name, x in wanted.items():
            assert float(got[name]) == pytest.approx(x, rel=2e-3, abs=1e-4), name
        assert float(got["mean_policy_return"]) == pytest.approx(
            (slope * mean[3:] - curvature * (mean[3:] - optimum) ** 2 / 2).sum(), abs=1e-4
        )
        assert float(got["selection_bias"]) == pytest.approx(0, abs=1e-5)  # the same return on every key


# Explained variance.


@pytest.mark.parametrize(("rollouts", "wanted"), [(2, 18 / 19), (10, 90 / 91)])
def test_explained_variance_of_planted_effects(rollouts, wanted):
    rng = np.random.default_rng(1)
    candidate, key = 3 * rng.normal(size=(10_000, 1)), 5 * rng.normal(size=(1, rollouts))
    returns = candidate + key + rng.normal(size=(10_000, rollouts))
    assert float(cem.explained_variance(jnp.asarray(returns, jnp.float32))) == pytest.approx(wanted, abs=0.003)


def test_explained_variance_by_hand():
    # Means 1, 3, 8 (variance 13), of keys 3 and 5: residuals of 0, 0; 1, -1; -1, 1. MS 4 / (2 x 1) = 2.
    returns = jnp.array([[0.0, 2.0], [3.0, 3.0], [6.0, 10.0]])
    assert float(cem.explained_variance(returns)) == pytest.approx(1 - 2 / 2 / 13)


def test_explained_variance_may_be_negative():
    # Equal but for the interaction, and a trace of variance between candidates.
    assert cem.explained_variance(jnp.array([[1.0, -1.0], [-1.0, 1.01]])) < -100


@pytest.mark.parametrize("returns", [np.ones((5, 3)), np.arange(5.0)[:, None], np.full((4, 2), np.nan)])
def test_explained_variance_that_is_undefined(returns):
    assert np.isnan(cem.explained_variance(jnp.asarray(returns)))


# Elites.


def test_nan_is_the_worst_score_and_infinity_counts():
    score = jnp.array([jnp.nan, 1.0, -jnp.inf, jnp.inf, 0.0, jnp.nan])
    np.testing.assert_array_equal(cem.elites(score, 2), [0, 1, 0, 1, 0, 0])
    assert int(cem.elites(jnp.array([jnp.nan, jnp.nan, 1.0]), 2).sum()) == 2


# Rollouts.


def rollout(env, config, env_params, num_candidates=4, num_keys=3, seed=0):
    """Returns, lengths and whether they ended, `[P, K]`, of random linear policies."""
    task = task_of(cem.make(config, env, env_params))
    candidates = jax.random.normal(jax.random.key(9), (num_candidates, task.num_params))
    run = jax.jit(lambda candidates, keys: cem.rollout(task, candidates, keys)[:3])
    return [np.asarray(x) for x in run(candidates, jax.random.split(jax.random.key(seed), num_keys))]


def test_fitness_is_the_undiscounted_return_up_to_the_first_ending():
    # Episodes from 0 or 1 on: 4 + 5 + ... would follow from a reset.
    params = CLOCK.default_params.replace(rewards=1 + TIMES, terminate_at=3, spread=2)
    total, length, ended = rollout(CLOCK, SMALL, params, num_keys=8)
    assert set(length.ravel()) == {2, 3}
    np.testing.assert_array_equal(total, np.where(length == 3, 1 + 2 + 3, 2 + 3))
    assert ended.all()


def test_a_time_limit_ends_an_episode_too():
    params = CLOCK.default_params.replace(rewards=1 + TIMES, max_steps_in_episode=4)
    total, length, ended = rollout(CLOCK, SMALL, params)
    assert (total == 10).all()
    assert (length == 4).all()
    assert ended.all()


def test_an_episode_without_an_ending_is_cut():
    total, length, ended = rollout(CLOCK, SMALL, CLOCK.default_params.replace(rewards=1 + TIMES))
    assert (total == 12 * 13 / 2).all()
    assert (length == 12).all()
    assert not ended.any()


def test_rewards_after_the_ending_do_not_spoil_it():
    # NaN at time 0: in the first episode it counts, after the reset it is masked, not multiplied by 0.
    rewards = np.where(np.arange(64) == 0, np.nan, 1.0).astype(np.float32)
    params = CLOCK.default_params.replace(rewards=rewards, terminate_at=3, spread=3)
    total, length, _ = rollout(CLOCK, SMALL, params, num_keys=40)
    np.testing.assert_array_equal(np.isnan(total), length == 3)


class Counted(toy_envs.Clock):
    """Reports each step that is computed."""

    steps = 0

    def step_env(self, key, state, action, params):
        jax.debug.callback(self.count)
        return super().step_env(key, state, action, params)

    def count(self):
        self.steps += 1


@pytest.mark.cpus
def test_the_loop_ends_with_the_last_episode():
    env = Counted()
    config = SMALL.replace(max_episode_steps=1000)
    _, length, _ = rollout(env, config, env.default_params.replace(terminate_at=5, spread=3))
    jax.effects_barrier()
    assert env.steps == length.max()  # all rollouts at once


def test_seeds_whose_episodes_last_longer_change_nothing_for_the_others():
    ends = jnp.array([2, 11, 5])

    @jax.jit
    def run(end):
        params = CLOCK.default_params.replace(rewards=1 + TIMES, terminate_at=end)
        task = task_of(cem.make(SMALL, CLOCK, params))
        return cem.rollout(task, jnp.ones((4, task.num_params)), keys(3))[:3]

    total, length, ended = jax.vmap(run)(ends)
    for i, end in enumerate(ends.tolist()):
        assert (total[i] == end * (end + 1) / 2).all()
        assert (length[i] == end).all()
    assert ended.all()


class Dice(toy_envs.Clock):
    """Pays random numbers: of the reset, and of every step."""

    def step_env(self, key, state, action, params):
        obs, state, _, terminated, info = super().step_env(key, state, action, params)
        return obs, state, jax.random.normal(key), terminated, info


def test_candidates_meet_the_same_random_numbers_and_rollouts_and_steps_others():
    env = Dice()
    total, _, _ = rollout(env, SMALL, env.default_params.replace(terminate_at=1), num_keys=6)
    np.testing.assert_array_equal(total, np.tile(total[0], (4, 1)))
    assert len(np.unique(total[0])) == 6
    longer, _, _ = rollout(env, SMALL, env.default_params.replace(terminate_at=2), num_keys=6)
    assert (np.abs(longer - 2 * total) > 1e-3).all()


def test_env_steps_are_those_of_the_candidates_alone():
    params = CLOCK.default_params.replace(terminate_at=7, spread=3)
    state = cem.make(SMALL, CLOCK, params).init(jax.random.key(1))
    for step in range(3):
        before = int(state.env_steps)
        state, got = generation(CLOCK, SMALL, state, step, params)
        assert int(state.env_steps) - before == pytest.approx(30 * float(got["length_mean"]), abs=1e-3)
        assert float(got["env_steps"]) == int(state.env_steps)
        assert float(got["episodes"]) == 30


# The policy.


def make_policy(env, **settings):
    """The agent on `env`, a state with random parameters, and its task."""
    agent = cem.make(SMALL.replace(**settings), env)
    state = agent.init(jax.random.key(0))
    return agent, state.replace(mean=jax.random.normal(jax.random.key(5), state.mean.shape)), task_of(agent)


def outputs(task, state, x, hidden):
    """The policy's outputs by a loop over layers and units in NumPy; parameters lie kernel by bias, layer by layer."""
    flat, at = np.float64(state.mean), 0
    sizes = [len(x), *hidden, -1]
    for i, n in enumerate(sizes[:-1]):
        m = sizes[i + 1] if sizes[i + 1] > 0 else (len(flat) - at) // (n + 1)
        kernel = flat[at : at + n * m].reshape(n, m)
        bias = flat[at + n * m : at + n * m + m]
        at += n * m + m
        x = [sum(x[a] * kernel[a, b] for a in range(n)) + bias[b] for b in range(m)]
        if i < len(hidden):
            x = [np.tanh(y) if task.config.activation == "tanh" else max(y, 0) for y in x]
    assert at == len(flat)
    return np.array(x)


@pytest.mark.parametrize(
    ("width", "hidden", "activation"), [(3, (), "tanh"), (40, (), "tanh"), (3, (5, 4), "tanh"), (40, (35,), "relu")]
)
def test_a_discrete_policy_takes_the_largest_output_of_its_network(width, hidden, activation):
    env = toy_envs.Still(spaces.Box(-1, 1, (width,)), spaces.Discrete(7))
    agent, state, task = make_policy(env, hidden_sizes=hidden, activation=activation)
    for seed in range(5):
        obs = np.random.default_rng(seed).normal(size=width).astype(np.float32)
        wanted = outputs(task, state, obs, hidden)
        np.testing.assert_array_equal(agent.policy(state, jnp.asarray(obs)), np.eye(7)[wanted.argmax()])


def test_a_box_policy_is_squashed_to_bounds_that_differ_and_are_not_centred():
    low, high = np.array([[-1.0], [2.0]], np.float32), np.array([[3.0], [2.5]], np.float32)
    env = toy_envs.Still(spaces.Box(-1, 1, (3,)), spaces.Box(low, high, (2, 1)))
    agent, state, task = make_policy(env)
    obs = np.array([0.3, -0.2, 0.9], np.float32)
    mean, std = agent.policy(state, jnp.asarray(obs))
    x = outputs(task, state, obs, ())
    np.testing.assert_allclose(mean, [1 + 2 * np.tanh(x[0]), 2.25 + 0.25 * np.tanh(x[1])], rtol=1e-5)
    np.testing.assert_array_equal(std, [0, 0])
    assert cem.act(task, state.mean, jnp.asarray(obs)[None]).shape == (1, 2, 1)
    for sign, bound in ((100, high), (-100, low)):  # as far as it goes, and no further
        far = state.replace(mean=jnp.full_like(state.mean, sign))
        np.testing.assert_array_equal(agent.policy(far, jnp.ones(3))[0], bound.ravel())


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-3, 2)])
def test_whole_actions_have_equal_shares(low, high):
    env = toy_envs.Still(spaces.Box(-1, 1, (1,)), spaces.Box(low, high, (), jnp.int32))
    _, _, task = make_policy(env)
    squashed = np.linspace(-1, 1, 6001)
    bias = jnp.asarray(np.arctanh(squashed.clip(-0.99999, 0.99999)), jnp.float32)
    params = jnp.stack([jnp.zeros_like(bias), bias], axis=1)
    actions = np.asarray(jax.vmap(lambda p: cem.act(task, p, jnp.zeros((1, 1))))(params))
    assert actions.dtype == np.int32
    values, counts = np.unique(actions, return_counts=True)
    np.testing.assert_array_equal(values, np.arange(low, high + 1))
    np.testing.assert_allclose(counts / 6001, 1 / (high - low + 1), atol=1e-3)


def test_a_bound_for_each_dimension_on_one_side_alone():
    env = toy_envs.Still(spaces.Box(-1, 1, (1,)), spaces.Box(np.array([-1.0, -2.0], np.float32), 1.0, (2,)))
    agent, state, _ = make_policy(env)
    far = state.replace(mean=jnp.full_like(state.mean, -100))
    np.testing.assert_array_equal(agent.policy(far, jnp.ones(1))[0], [-1, -2])


def test_images_are_flattened_and_bytes_become_numbers_from_0_to_1():
    image = jnp.full((2, 5, 4, 3), 51, jnp.uint8)
    got = cem.features(image, spaces.Box(0, 255, (5, 4, 3), jnp.uint8))
    assert (got.shape, got.dtype) == ((2, 60), jnp.float32)
    np.testing.assert_allclose(got, 0.2, rtol=1e-6)
    np.testing.assert_array_equal(cem.features(jnp.full((2, 5), 51, jnp.uint8), spaces.Box(0, 255, (5,))), 51)


def test_parameters_survive_the_way_to_layers_and_back():
    _, state, task = make_policy(toy_envs.Still(spaces.Box(-1, 1, (3,)), spaces.Discrete(7)), hidden_sizes=(5, 4))
    layers = task.unflatten(state.mean)
    assert [(kernel.shape, bias.shape) for kernel, bias in layers] == [((3, 5), (5,)), ((5, 4), (4,)), ((4, 7), (7,))]
    back = np.concatenate([np.concatenate([kernel.ravel(), bias]) for kernel, bias in layers])
    np.testing.assert_array_equal(back, state.mean)


# On a GPU, in blocks of steps.


@pytest.mark.slow
@pytest.mark.parametrize("limit", [1, 5, 12, 30])
def test_blocks_of_steps_give_the_same_bits(limit, monkeypatch):  # of 5 steps, if there are more
    def trained():
        return jax.jit(jax.vmap(lambda key: cem.train(config, key, CLOCK, longer)))(keys(2))

    def on_a_gpu(carry, *, cuda, rocm, default):
        taken.append(cuda is rocm)
        return cuda(carry)

    config, longer, taken = SMALL.replace(max_episode_steps=limit), PARAMS.replace(terminate_at=20), []
    expected = trained()
    monkeypatch.setattr(cem, "BLOCK", 5)
    monkeypatch.setattr(jax.lax, "platform_dependent", on_a_gpu)
    assert leaves_equal(trained(), expected)
    assert set(taken) == {True}


# The program.


def temporary_bytes(population, rollouts, steps):
    config = SMALL.replace(population_size=population, num_rollouts=rollouts, max_episode_steps=steps)
    agent = cem.make(config, CLOCK)
    state = jax.eval_shape(agent.init, jax.random.key(0))
    return jax.jit(agent.update).lower(state, 0).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.slow
def test_memory_grows_with_population_and_rollouts_and_not_with_the_length_of_episodes():
    small = temporary_bytes(32, 8, 10)
    assert temporary_bytes(32, 8, 100_000) == small
    assert 50 < temporary_bytes(320, 80, 10) / small < 110


def test_the_program_has_no_branch():
    agent = cem.make(SMALL, CLOCK)
    state = jax.eval_shape(agent.init, jax.random.key(0))
    assert count_conds(jax.make_jaxpr(agent.update)(state, 0)) == 0


@pytest.mark.slow
def test_training_over_devices_has_no_collective():
    # A loop's end that all devices have to agree on would be one, at every step of the environment.
    plan = make_plan(8, 1, 1.0, Silent())
    job = Job(cem, SMALL, CLOCK, CLOCK.default_params, list(range(8)), 2, 1, True)
    programs = compile_programs(job, plan, Silent())
    assert plan.mesh.devices.size == 4
    for program in (programs.init, programs.chunk, programs.evaluate):
        for collective in ("all-reduce", "all-gather", "all-to-all", "collective-permute", "reduce-scatter"):
            assert collective not in program.as_text()


PARAMS = CLOCK.default_params.replace(rewards=TIMES, terminate_at=9, spread=3)


def test_a_rerun_is_bitwise_equal_and_seeds_differ():
    first, again = train_seeds(CLOCK, SMALL, PARAMS, keys(5)), train_seeds(CLOCK, SMALL, PARAMS, keys(5))
    assert leaves_equal(first, again)
    assert len(np.unique(np.asarray(first[0].mean), axis=0)) == 5


def test_a_seed_alone_equals_that_seed_among_others():
    among = jax.tree.map(lambda x: x[3], train_seeds(CLOCK, SMALL, PARAMS, keys(5)))
    alone = jax.tree.map(lambda x: x[0], train_seeds(CLOCK, SMALL, PARAMS, keys(1, first=3)))
    np.testing.assert_allclose(among[0].mean, alone[0].mean, atol=1e-5)
    assert int(among[0].env_steps) == int(alone[0].env_steps)
    np.testing.assert_array_equal(among[1]["return_max"], alone[1]["return_max"])


@pytest.mark.slow
def test_float_settings_are_a_sweep():
    env = toy_envs.Landscape(2)
    params = env.default_params.replace(slope=np.ones(2))
    config = SMALL.replace(max_episode_steps=None)
    base = {"elite_fraction": 0.3, "init_variance": 0.01, "extra_variance": 0.01, "smoothing": 0.0}
    other = {"elite_fraction": 0.8, "init_variance": 0.04, "extra_variance": 0.02, "smoothing": 0.5}
    base["extra_variance_fraction"], other["extra_variance_fraction"] = 0.5, 1.0
    rows = [base, *(base | {name: x} for name, x in other.items())]
    configs = jax.vmap(lambda settings: config.replace(**settings))(
        {name: jnp.array([row[name] for row in rows]) for name in base}
    )
    train = jax.jit(lambda config, key: cem.train(config, key, env, params))
    state, _ = jax.vmap(train, in_axes=(0, None))(configs, jax.random.key(0))
    for i, row in enumerate(rows):
        alone, _ = train(config.replace(**row), jax.random.key(0))
        np.testing.assert_allclose(state.variance[i], alone.variance, rtol=1e-4)
        np.testing.assert_allclose(state.mean[i], alone.mean, atol=1e-5)
        assert i == 0 or np.abs(state.variance[i] - state.variance[0]).max() > 1e-4


def test_a_bad_reward_is_flagged_and_its_candidate_not_chosen():
    class Bad(toy_envs.Landscape):
        def step_env(self, key, state, action, params):
            bad = jnp.where(action.sum() > 0, jnp.nan, action.sum())
            return jnp.zeros(1), state, bad, jnp.bool(True), {}

    env, config = Bad(1), SMALL.replace(population_size=40)
    state = cem.make(config, env).init(jax.random.key(0))
    new, got = generation(env, config, state, 0, env.default_params)
    assert float(got["nonfinite"]) == 1
    assert np.isfinite(new.mean).all()
    assert new.mean[1] < 0
    _, fine = generation(CLOCK, SMALL, cem.make(SMALL, CLOCK).init(jax.random.key(0)), 0, PARAMS)
    assert float(fine["nonfinite"]) == 0


@pytest.mark.slow
def test_a_search_that_has_collapsed_keeps_its_numbers():
    config = cem.Config(num_generations=300, population_size=8, elite_fraction=0.25, num_rollouts=1,
                        num_eval_rollouts=1, extra_variance=0.0, init_variance=1e-4)  # fmt: skip
    state, diagnostics = search(1, config, slope=np.ones(1))
    assert np.isfinite(diagnostics["kl"]).all()
    assert (np.float64(state.variance) >= 0.999e-12).all()
    assert float(diagnostics["nonfinite"].max()) == 0


# Settings, spaces and episodes that cannot train.


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"elite_fraction": 0.01}, "elite_fraction is 0.01; it must be enough for 2 elites of"),
        ({"elite_fraction": 0.0}, r"elite_fraction is 0.0; it must be float in \(0, 1\]"),
        ({"elite_fraction": 1.5}, r"elite_fraction is 1.5; it must be float in \(0, 1\]"),
        ({"elite_fraction": np.array([0.3, 0.01])}, "elite_fraction .* such as 0.2"),
        ({"population_size": 1, "elite_fraction": 1.0}, r"population_size is 1; it must be int in \[2, inf\)"),
        ({"num_rollouts": 0}, r"num_rollouts is 0; it must be int in \[1, inf\)"),
        ({"num_eval_rollouts": 0}, "num_eval_rollouts is 0"),
        ({"num_generations": 2.5}, "num_generations is 2.5; it must be int in"),
        ({"max_episode_steps": 0}, r"max_episode_steps is 0; it must be int \| None in \[1, inf\)"),
        ({"init_variance": -1.0}, r"init_variance is -1.0; it must be float in \[1e-12, inf\)"),
        ({"init_variance": 0.0}, "init_variance is 0.0"),
        ({"init_variance": float("nan")}, "init_variance is nan"),
        ({"extra_variance": -0.1}, r"extra_variance is -0.1; it must be float in \[0, inf\)"),
        ({"extra_variance_fraction": 0.0}, r"extra_variance_fraction is 0.0; it must be float in \(0, 1\]"),
        ({"smoothing": 1.0}, r"smoothing is 1.0; it must be float in \[0, 1\)"),
        ({"smoothing": "much"}, "smoothing is 'much'"),
        ({"hidden_sizes": (0,)}, r"hidden_sizes is .* tuple\[int, ...\] in \[1, inf\)"),
        ({"hidden_sizes": 8}, "hidden_sizes is 8"),
        ({"smoothing": 1 - 1e-12}, "smoothing is 0.99"),
        ({"activation": "gelu"}, r"activation is 'gelu'; it must be Literal\['tanh', 'relu'\]"),
        ({"num_generations": 10**7, "max_episode_steps": 10**3}, r"10000000 .* 1000 steps .* must be below 2\^31"),
    ],
)  # fmt: skip
def test_bad_settings_are_refused_in_one_line(settings, message):
    with pytest.raises(ValueError, match=message) as error:
        cem.make(SMALL.replace(**settings), CLOCK)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("obs_space", "action_space", "message"),
    [
        (spaces.Dict({"a": spaces.Discrete(2)}), spaces.Discrete(2), "observation space .* CEM takes Discrete or Box"),
        (spaces.Discrete(2), spaces.Dict({"a": spaces.Discrete(2)}), "action space .* CEM takes Discrete or Box"),
        (spaces.Discrete(2), spaces.Box(-np.inf, np.inf, (2,)), "actions without usable bounds"),
        (spaces.Discrete(2), spaces.Box(0.0, np.inf, (2,)), "actions without usable bounds"),
        (spaces.Discrete(2), spaces.Box(-3e38, 3e38, (2,)), "actions without usable bounds"),
    ],
)
def test_bad_spaces_are_refused_in_one_line(obs_space, action_space, message):
    with pytest.raises(ValueError, match=message) as error:
        cem.make(SMALL, toy_envs.Still(obs_space, action_space))
    assert "\n" not in str(error.value)


class Endless(toy_envs.Clock):
    @property
    def default_params(self):
        return self.Params()

    class Params:
        pass


@pytest.mark.parametrize("limit", [None, np.inf, np.nan, 0, np.array([5, 5])])
def test_episodes_without_an_end_are_refused(limit):
    params = Endless.Params()
    for limited in ([params] if limit is None else []) + [CLOCK.default_params.replace(max_steps_in_episode=limit)]:
        with pytest.raises(ValueError, match=r"max_steps_in_episode is .*; give max_episode_steps") as error:
            cem.make(SMALL.replace(max_episode_steps=None), Endless(), limited)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("limit", [5, 5.0, np.int64(5), jnp.array(5)])
def test_an_end_may_be_any_number(limit):
    params = CLOCK.default_params.replace(max_steps_in_episode=limit)
    config = SMALL.replace(max_episode_steps=None)
    steps = jax.jit(lambda: cem.make(config, CLOCK, params).steps_per_update)()
    assert steps == 10 * 3 * 5


def test_an_episode_end_that_is_traced_has_to_be_given():
    def steps(limit, config):
        params = CLOCK.default_params.replace(max_steps_in_episode=limit)
        return cem.make(config, CLOCK, params).steps_per_update + limit

    with pytest.raises(ValueError, match="give max_episode_steps"):
        jax.jit(steps, static_argnums=1)(5, SMALL.replace(max_episode_steps=None))
    assert jax.jit(steps, static_argnums=1)(5, SMALL) == 10 * 3 * 12 + 5


# From outside.


@pytest.mark.slow
def test_runs_report_true_steps_and_evaluate_greedily(tmp_path):
    run = rlref.train(
        "cem", SMALL, num_seeds=3, env=CLOCK, env_params=PARAMS, eval_every=2, eval_episodes=4, run_dir=tmp_path / "run"
    )
    assert run.score == "mean_policy_return"
    np.testing.assert_array_equal(run.scores, run.metrics["mean_policy_return"][:, -1])
    np.testing.assert_array_equal(run.metrics["eval_return_sampled"], run.metrics["eval_return_greedy"])
    assert run.summary["env_steps"] == run.metrics["env_steps"][:, -1].sum()
    assert run.metrics["env_steps"][0, -1] < 4 * 10 * 3 * 9
    assert run.metrics["steps_per_second"].shape == (3, 4)
    assert int(run.policy(0)(jnp.zeros(2))) in (0, 1)
    again = rlref.load(tmp_path / "run")
    np.testing.assert_array_equal(again.scores, run.scores)
    assert set(run.metrics) <= set(metrics.BY_NAME)


@pytest.mark.slow
def test_the_file_alone_trains(tmp_path):
    source = Path(cem.__file__).read_text()
    assert source.count("= static(15)") == 1
    printed = trains_alone(source.replace("= static(15)", "= static(4)"), tmp_path)
    assert printed["return_count"] == [64] * 4
    assert printed["nonfinite"] == [0] * 4
    assert min(printed["return_mean"]) > 50
