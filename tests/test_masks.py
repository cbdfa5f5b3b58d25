"""Actions that are not always all allowed, and several choices at a time."""

import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnax.environments import environment, spaces
from helpers import task_of

import rlref
from rlref import cem, dqn, ppo, ppo_rnn
from rlref.envs.episodes import chosen
from rlref.envs.gymnax_envs import describe
from rlref.envs.interface import check_interface
from rlref.envs.spaces import Masked, MultiDiscrete
from rlref.errors import UsageError
from rlref.inspection.inspect import inspect
from rlref.runs import playing

MASKS = jnp.array([[1, 1, 0], [0, 1, 1], [1, 0, 0]], bool)  # by state; the best action of each is forbidden but in 2
PAYS = jnp.array([[1.0, 0.0, 5.0], [5.0, 0.0, 1.0], [2.0, 5.0, 5.0]])
FORBIDDEN_PAYS = -1000.0
SMALL = {
    "ppo": ppo.Config(
        total_timesteps=40_960, num_envs=16, num_steps=32, learning_rate=5e-3, gamma=0.0, ent_coef=0.0,
        hidden_sizes=(16,),
    ),
    "dqn": dqn.Config(
        total_timesteps=20_000, num_envs=10, learning_starts=100, buffer_size=1_000, learning_rate=3e-3, gamma=0.0,
        hidden_sizes=(16,), start_e=1.0, end_e=0.5, exploration_fraction=1.0,
    ),
    "cem": cem.Config(num_generations=20, population_size=32, num_rollouts=8, num_eval_rollouts=4),
}  # fmt: skip


class Allowed(environment.Environment):
    """One step in one of three states; what is forbidden pays a thousand less than nothing."""

    pays = jnp.where(MASKS, PAYS, FORBIDDEN_PAYS)

    @property
    def default_params(self):
        return environment.EnvParams(max_steps_in_episode=1)

    def reset_env(self, key, params):
        state = environment.EnvState(jax.random.randint(key, (), 0, 3))
        return self.shown(state), state

    def step_env(self, key, state, action, params):
        return self.shown(state), state, self.pays[state.time, action], jnp.bool(True), {}

    def is_truncated(self, state, params):
        return jnp.bool(False)

    def shown(self, state):
        space = self.observation_space()
        return space.row(jax.nn.one_hot(state.time, 3), MASKS[state.time])

    def action_space(self, params=None):
        return spaces.Discrete(3)

    def observation_space(self, params=None):
        return Masked(spaces.Box(-10.0, 10.0, (3,)), 3)


class Locks(Allowed):
    """Three choices of 2, 3 and 4 options; each that is the right one for the state pays 1."""

    sizes = (2, 3, 4)
    keys = jnp.array([[0, 2, 1], [1, 0, 3], [1, 1, 0]])

    def step_env(self, key, state, action, params):
        return self.shown(state), state, (action == self.keys[state.time]).sum() * 1.0, jnp.bool(True), {}

    def shown(self, state):
        return jax.nn.one_hot(state.time, 3)

    def action_space(self, params=None):
        return MultiDiscrete(self.sizes)

    def observation_space(self, params=None):
        return spaces.Box(-10.0, 10.0, (3,))


def rows(masks=MASKS):
    """What `Allowed` shows in each state, with other masks if given."""
    space = Allowed().observation_space()
    return jnp.stack([space.row(x, mask) for x, mask in zip(jnp.eye(3), masks, strict=True)])


def agent_and_state(name, env=None, **settings):
    module, env = getattr(rlref, name), Allowed() if env is None else env
    agent = module.make(SMALL[name].replace(**settings), env, env.default_params)
    return module, agent, jax.jit(agent.init)(jax.random.key(0))


def test_a_masked_observation_is_one_row_and_its_space_says_which_numbers_are_the_mask():
    space = Masked(spaces.Box(0, 255, (2, 2, 1), jnp.uint8), 3)
    row = space.row(jnp.full((2, 2, 1), 7), jnp.array([True, False, True]))
    assert (space.shape, space.action_mask, space.inner.shape) == ((7,), 3, (2, 2, 1))
    assert (row.dtype, row.tolist()) == (jnp.uint8, [7, 7, 7, 7, 1, 0, 1])
    assert space.low.tolist() == [0] * 7
    assert space.high.tolist() == [255] * 4 + [1] * 3
    assert describe(space) == "Box 2x2x1 uint8, action mask 3"
    assert describe(Masked(spaces.Discrete(5), 2)) == "Discrete 5, action mask 2"
    check_interface(Allowed(), Allowed().default_params, "allowed")


@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_mask_of_another_size_than_the_actions_is_refused(size):
    class Wrong(Allowed):
        def observation_space(self, params=None):
            return Masked(spaces.Box(-10.0, 10.0, (3,)), size)

        def shown(self, state):
            return self.observation_space().row(jax.nn.one_hot(state.time, 3), jnp.ones(size, bool))

    said = f"the action_mask has {size} numbers, for the 3 options of Discrete"
    with pytest.raises(UsageError, match=said):
        rlref.train("ppo", env=Wrong(), num_seeds=1)
    assert said in inspect("wrong", env=Wrong(), episodes=5).findings[0].title
    for agent in (ppo, ppo_rnn, dqn, cem):  # and in a file that stands alone
        with pytest.raises(ValueError, match=f"^the action_mask has {size} numbers; it must have one for each action"):
            agent.make(agent.Config(), Wrong(), Wrong().default_params)


def test_a_multi_discrete_space_has_a_choice_and_options_for_each():
    for sizes in ((), (2, 0)):
        with pytest.raises(ValueError, match=r"nvec is .*; it must be at least one number"):
            MultiDiscrete(sizes)


@pytest.mark.parametrize("sizes", [(2, 0), ((2, 3), (2, 3)), (2.0, 3.0)])
def test_anyone_s_multi_discrete_space_must_have_options(sizes):
    class Wrong(Locks):
        def action_space(self, params=None):
            space = super().action_space()
            space.nvec = np.array(sizes)
            return space

    said = "nvec is .*; it must be one row of whole numbers, each of them 1 or more"
    with pytest.raises(UsageError, match=said):
        rlref.train("ppo", env=Wrong(), num_seeds=1)
    assert re.search(said, inspect("wrong", env=Wrong(), episodes=5).findings[0].title)


def test_anyone_s_multi_discrete_space_is_taken():
    class Array(Locks):
        def action_space(self, params=None):
            space = super().action_space()
            space.nvec = np.array(space.nvec)
            return space

    _, agent, state = agent_and_state("ppo", Array())
    assert agent.policy(state, jnp.ones(3)).shape == (9,)
    assert chosen(jnp.ones(9) / 9, Array().action_space(), jax.random.key(0)).shape == (3,)


def test_a_multi_discrete_space_samples_each_choice_from_all_its_options():
    space = MultiDiscrete((2, 3))
    drawn = np.asarray(jax.vmap(space.sample)(jax.random.split(jax.random.key(0), 200)))
    assert {*map(tuple, drawn)} == {*itertools.product(range(2), range(3))}
    assert describe(space) == "MultiDiscrete 2 3"
    assert bool(space.contains(jnp.array([1, 2])))
    assert not bool(space.contains(jnp.array([2, 2])))


@pytest.mark.parametrize("name", SMALL)
def test_no_agent_takes_what_is_forbidden_and_each_learns_the_best_of_the_rest(name):
    module, agent, _ = agent_and_state(name)
    state, metrics = jax.jit(module.train, static_argnums=2)(SMALL[name], jax.random.key(1), Allowed())
    assert float(metrics["return_min"].min()) >= 0  # over all episodes of all candidates, explored or not
    chosen = [int(playing.choose(agent.policy(state, x), spaces.Discrete(3), None)) for x in rows()]
    assert chosen == [0, 2, 0]
    assert not np.asarray(metrics["nonfinite"]).any()
    if name == "ppo":
        values = [float(agent.value(state, x)) for x in rows()]
        assert values == pytest.approx([1, 1, 2], abs=0.3)
        probabilities = np.stack([agent.policy(state, x) for x in rows()])
        assert (probabilities[~np.asarray(MASKS)] == 0).all()
    if name == "dqn":
        q = np.stack([agent.value(state, x) for x in rows()])
        assert q[np.asarray(MASKS)] == pytest.approx([1, 0, 0, 1, 2], abs=0.1)


@pytest.mark.parametrize("name", SMALL)
def test_networks_do_not_see_the_mask(name):
    _, agent, state = agent_and_state(name)
    if name == "cem":
        assert task_of(agent).num_params == 3 * 3 + 3
        return
    some, others = rows(), rows(jnp.ones((3, 3), bool))
    if name == "ppo":
        assert [*map(float, map(agent.value, [state] * 3, some))] == [
            *map(float, map(agent.value, [state] * 3, others))
        ]
        return
    free, masked = (np.stack([agent.value(state, x) for x in each]) for each in (others, some))
    assert (free[np.asarray(MASKS)] == masked[np.asarray(MASKS)]).all()
    assert (masked[~np.asarray(MASKS)] == dqn.FORBIDDEN).all()


def test_the_masked_policy_is_the_network_s_among_what_is_allowed():
    module, agent, state = agent_and_state("ppo")
    task = task_of(agent)
    free, _ = module.forward(task, state.params, None, rows(jnp.ones((3, 3), bool)))
    policy, _ = module.forward(task, state.params, None, rows())
    p = np.where(MASKS, np.exp(np.asarray(free.log_probs, np.float64)), 0)
    p /= p.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(np.exp(policy.log_probs), p, atol=1e-6)
    entropy = [-sum(x * np.log(x) for x in row if x) for row in p]
    np.testing.assert_allclose(policy.entropy(), entropy, atol=1e-6)
    np.testing.assert_allclose(policy.kl(policy), 0, atol=1e-6)
    np.testing.assert_allclose(policy.highest_entropy(), np.log([2, 2, 1]), atol=1e-6)
    drawn = np.asarray(policy.sample(jax.random.gumbel(jax.random.key(0), (10_000, 3, 3))))
    np.testing.assert_allclose((drawn[..., None] == np.arange(3)).mean(axis=0), p, atol=0.02)


def test_what_is_forbidden_has_no_gradient():
    def entropy_and_more(x):
        policy = ppo.restrict(task_of(agent), ppo.Categorical(jax.nn.log_softmax(x)), rows())
        return (policy.entropy() + policy.log_prob(jnp.array([0, 1, 0]))).sum()

    _, agent, _ = agent_and_state("ppo")
    gradient = np.asarray(jax.grad(entropy_and_more)(jax.random.normal(jax.random.key(0), (3, 3))))
    assert np.isfinite(gradient).all()
    assert gradient[:2][~np.asarray(MASKS)[:2]] == pytest.approx(0, abs=1e-7)
    assert np.abs(gradient[:2][np.asarray(MASKS)[:2]]).min() > 1e-4


def test_a_state_in_which_nothing_is_allowed_gives_numbers():
    nothing = rows(jnp.zeros((3, 3), bool))
    _, agent, state = agent_and_state("ppo")
    policy, _ = ppo.forward(task_of(agent), state.params, None, nothing)
    assert np.isfinite(np.asarray(policy.entropy())).all()
    _, agent, state = agent_and_state("dqn")
    batch = dqn.Batch(nothing, jnp.zeros(3, int), jnp.ones(3), jnp.zeros(3), nothing)  # terminated
    for target in ("double", "max", "expected_sarsa"):
        task = task_of(agent)._replace(config=SMALL["dqn"].replace(target=target))
        assert dqn.targets(task, state.params, state.params, batch, 0.5).tolist() == [1, 1, 1]
        # Not terminated, as in a dead end that ends a step later: as if all were allowed.
        q = [np.asarray(dqn.forward(task, state.params, rows(jnp.full((3, 3), x)))) for x in (False, True)]
        np.testing.assert_array_equal(*q)
        assert (
            np.abs(dqn.targets(task, state.params, state.params, batch._replace(discount=jnp.ones(3)), 0.5)).max() < 9
        )


@pytest.mark.parametrize("target", ["double", "max", "expected_sarsa"])
def test_targets_are_of_what_is_allowed(target):
    _, agent, state = agent_and_state("dqn", target=target)
    other = jax.tree.map(lambda x: -x, state.params)
    free, online = (
        np.asarray(dqn.forward(task_of(agent), p, rows(jnp.ones((3, 3), bool)))) for p in (other, state.params)
    )
    mask = np.asarray(MASKS)
    best = {"double": np.where(mask, online, -np.inf), "max": np.where(mask, free, -np.inf)}.get(target)
    if best is None:
        odds = 0.3 * mask / mask.sum(axis=1, keepdims=True)
        odds[np.arange(3), np.where(mask, free, -np.inf).argmax(axis=1)] += 0.7
        wanted = (odds * free).sum(axis=1)
    else:
        wanted = free[np.arange(3), best.argmax(axis=1)]
    batch = dqn.Batch(rows(), jnp.zeros(3, int), jnp.zeros(3), jnp.full(3, 0.5), rows())
    got = dqn.targets(task_of(agent), other, state.params, batch, 0.3)
    np.testing.assert_allclose(got, 0.5 * wanted, atol=1e-6)


def test_random_actions_are_drawn_from_all_that_are_allowed_alike():
    bits = jax.random.bits(jax.random.key(0), (9_000, 3))
    drawn = np.asarray(jax.vmap(dqn.random_allowed, in_axes=(None, 0))(MASKS, bits))
    shares = (drawn[..., None] == np.arange(3)).mean(axis=0)
    np.testing.assert_allclose(shares, [[0.5, 0.5, 0], [0, 0.5, 0.5], [1, 0, 0]], atol=0.02)


def test_dqn_s_entropy_is_of_what_is_allowed():
    _, agent, state = agent_and_state("dqn", start_e=1.0, end_e=1.0)
    _, metrics = jax.jit(agent.update)(state, jnp.int32(0))
    assert float(metrics["entropy"]) == pytest.approx(np.log(2) * 2 / 3, abs=0.05)  # a third of states has one action
    assert float(metrics["relative_entropy"]) == pytest.approx(1, abs=1e-5)


def test_several_choices_at_a_time_are_a_product_of_policies():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 5, 9))
    each_x, each_y = (
        [np.exp(a) / np.exp(a).sum(1, keepdims=True) for a in np.split(z, [2, 5], axis=1)] for z in (x, y)
    )
    both = []
    for each in (each_x, each_y):
        log_probs = jnp.concatenate([jnp.log(jnp.asarray(p, jnp.float32)) for p in each], axis=1)
        both.append(ppo.Categoricals(log_probs, Locks.sizes))
    policy, other = both
    joint_x, joint_y = (np.einsum("ni,nj,nk->nijk", *each).reshape(5, -1) for each in (each_x, each_y))
    action = np.stack([rng.integers(n, size=5) for n in Locks.sizes], axis=1)
    flat = np.ravel_multi_index(tuple(action.T), Locks.sizes)
    np.testing.assert_allclose(policy.log_prob(jnp.asarray(action)), np.log(joint_x[np.arange(5), flat]), atol=1e-5)
    np.testing.assert_allclose(policy.entropy(), -(joint_x * np.log(joint_x)).sum(1), atol=1e-5)
    np.testing.assert_allclose(policy.kl(other), (joint_x * np.log(joint_x / joint_y)).sum(1), atol=1e-5)
    np.testing.assert_allclose(policy.highest_entropy(), np.log(24), atol=1e-5)
    drawn = np.asarray(policy.sample(jax.random.gumbel(jax.random.key(0), (20_000, 5, 9))))
    for i, p in enumerate(each_x):
        np.testing.assert_allclose((drawn[..., i, None] == np.arange(p.shape[1])).mean(0), p, atol=0.02)


def test_ppo_learns_each_of_several_choices_and_others_say_that_they_do_not():
    env, config = Locks(), SMALL["ppo"]
    run = rlref.train("ppo", config, num_seeds=2, env=env)
    assert run.metrics["return_mean"][:, -1] == pytest.approx([3, 3], abs=0.3)
    assert run.metrics["relative_entropy"][:, 0] == pytest.approx([1, 1], abs=0.05)
    for state, obs in enumerate(np.eye(3, dtype=np.float32)):
        assert run.policy(0)(obs).tolist() == Locks.keys[state].tolist()
        assert run.policy(0)(obs, jax.random.key(0)).shape == (3,)
    with pytest.raises(ValueError, match=r"action space MultiDiscrete\(\[2, 3, 4\]\); DQN takes Discrete"):
        dqn.make(SMALL["dqn"], env)
    with pytest.raises(ValueError, match=r"action space MultiDiscrete\(\[2, 3, 4\]\); CEM takes Discrete or Box"):
        cem.make(SMALL["cem"], env)
