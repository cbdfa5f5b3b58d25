"""Functions lifted out of the agents' files: the table of what comes along, and that nothing else is needed."""

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers import run_alone

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import components  # noqa: E402

LOG2 = math.log(2)
EVERY = {
    "is_discrete": ("is_discrete(thing(n=2))", True),
    "features": ("features(jnp.array([1]), thing(n=2))", [[0, 1]]),
    "without_mask": ("without_mask(jnp.array([[7.0, 1, 0]]), thing(action_mask=2, inner=thing(shape=(1,))))[2]",
                     [[True, False]]),
}  # fmt: skip
NETS = {
    "make_optimizer": ("len(make_optimizer(thing(max_grad_norm=1.0, adam_eps=1e-5), 0.1).init(jnp.zeros(2)))", 2),
    "patches": ("patches(jnp.arange(4.0).reshape(1, 2, 2, 1), 2, 1)", [[[[0, 1, 2, 3]]]]),
    "summary": ("summary('x', jnp.array([1.0, 3.0]))['x_std']", 1),
    "explained_variance": ("explained_variance(jnp.array([0.0, 2.0]), jnp.array([0.0, 1.0]))", 0.75),
    "dormant_fraction": ("dormant_fraction([jnp.array([[0.0, 1.0]])])", 0.5),
    "record_episodes": (
        "record_episodes(thing(ring_return=jnp.zeros(RING), ring_length=jnp.zeros(RING), num_episodes=jnp.int32(0)), "
        "jnp.array([[True]]), jnp.array([[7.0]]), jnp.array([[5]])).ring_return[:2]", [7, 0]),
}  # fmt: skip
SCANNED = "jnp.array(scan(lambda c, x: (c + x, (c, x**2)), 0, jnp.array([1, 2]))[1]).T"
STEPS = (
    "thing(obs=jnp.zeros((2, 1)), next_obs=jnp.ones((2, 1)), action=jnp.array([1, 0]), reward=jnp.array([1.0, 2.0]), "
    "terminated=jnp.zeros(2, bool), truncated=jnp.array([True, False]))"
)
CALLS = {
    "ppo": EVERY | NETS | {
        "env_action": ("env_action(thing(action_space=thing(shape=(1,), low=-1.0, high=1.0, dtype=jnp.float32)), "
                       "jnp.array([[3.0], [0.5]]))", [[1], [0.5]]),
        "scan": (SCANNED, [[0, 1], [1, 4]]),
        "gae": ("gae(jnp.ones(2), jnp.zeros(2), jnp.zeros(2), jnp.array([False, True]), jnp.zeros(2, bool), 0.5, 1.0)",
                [1.5, 1]),
        "minibatch_indices": ("jnp.sort(minibatch_indices(jax.random.key(0), 1, 4, 2).ravel())", [0, 1, 2, 3]),
        "Categorical": ("Categorical(jnp.log(jnp.full(2, 0.5))).entropy()", LOG2),
        "Categoricals": ("Categoricals(jnp.log(jnp.full(4, 0.5)), (2, 2)).entropy()", 2 * LOG2),
        "choices": ("jnp.array(choices(thing(nvec=(2, 3))))", [2, 3]),
        "restrict": ("restrict(thing(action_space=thing(nvec=(2,)), obs_space=thing()), "
                     "Categorical(jnp.zeros((1, 2))), jnp.zeros((1, 1))).entropy()", [LOG2]),
        "DiagonalGaussian": ("DiagonalGaussian(jnp.zeros(1), jnp.zeros(1)).log_prob(jnp.zeros(1))",
                             -0.5 * math.log(2 * math.pi)),
        "Network": ("Network(2, True, (3,), 'tanh', True, ()).init_with_output(jax.random.key(0), jnp.ones((4, 5)), 0.)"
                    "[0][1].shape", [4]),
        "orthogonal": ("orthogonal(2.0)(jax.random.key(0), (1, 1), jnp.float32) ** 2", [[4]]),
        "Moments": ("Moments.of(jnp.zeros(1)).merge(Moments.of(jnp.full(1, 2.0))).variance", 1),
        "normalize": ("normalize(jnp.array(3.0), thing(mean=1.0, variance=4.0))", 1),
        "discounted_returns": ("discounted_returns(jnp.zeros(()), jnp.ones(2), jnp.zeros(2, bool), 0.5)[1]", [1, 1.5]),
        "reward_scale": ("reward_scale(thing(mean=0.0, variance=jnp.array(4.0)))", 2),
        "gradient_noise_scale": ("gradient_noise_scale((), 4)", math.nan),
    },
    "dqn": EVERY | NETS | {
        "random_allowed": ("random_allowed(jnp.array([[False, True]]), jnp.array([5], jnp.uint32))", [1]),
        "new_episodes": ("new_episodes(2).weight", [1, 1]),
        "scan": (SCANNED, [[0, 1], [1, 4]]),
        "pack": (f"pack({STEPS})[:, :4].view(jnp.float32)", [[1, 1, 0, 1], [0, 2, 0, 0]]),
        "unpack": ("unpack(jnp.array([[1.0, 2, 0, 1, 7, 8]]).view(jnp.uint32), jnp.zeros((1, 1))).next_obs", [[8]]),
        "write": ("write(jnp.zeros((4, 1)), jnp.ones((2, 1)), 1, 2)[:, 0]", [0, 0, 1, 1]),
        "replay_indices": ("replay_indices(jnp.array([5], jnp.uint32), jnp.array([2]), 4, 2, 1)[0]", [[1]]),
        "sample": ("sample(thing(config=thing(gamma=0.5, buffer_dtype='same')), "
                   "jnp.array([[0.0, 1, 0, 0, 0, 0], [0, 2, 0, 0, 0, 0]]).view(jnp.uint32), jnp.array([[0, 1]]), "
                   "jnp.zeros((1, 1))).reward", [2]),
        "next_values": ("next_values('double', jnp.array([[1.0, 2.0]]), jnp.array([[1.0, 0.0]]), 0.0)", [1]),
        "taken": ("taken(jnp.array([[1.0, 2.0]]), jnp.array([1]))", [2]),
        "epsilon_at": ("epsilon_at(thing(start_e=1.0, end_e=0.0, exploration_fraction=0.5, total_timesteps=100), 25)",
                       0.5),
        "epsilon_greedy": ("epsilon_greedy(jnp.array([0.0, 1.0]), 0.5)", [0.25, 0.75]),
        "Network": ("Network(2, True, (3,), 'relu', ()).init_with_output(jax.random.key(0), jnp.ones((4, 5)))[0].shape",
                    [4, 2]),
        "encode": ("encode(jnp.array([[1.0, 0.0]]), 'bool')", [[128]]),
        "decode": ("decode(jnp.array([[128]], jnp.uint8), 'bool', jnp.zeros((1, 2)))", [[1, 0]]),
        "storable": ("storable(jnp.array([[300.0]]), 'uint8')", [False]),
        "policy_entropy": ("policy_entropy(jnp.array(1.0), 2)", LOG2),
    },
    "cem": EVERY | {
        "init": ("init(thing(config=thing(init_variance=2.0, normalize_observations=True), num_params=2, "
                 "num_inputs=1), jax.random.key(0)).variance", [2, 2]),
        "Moments": ("Moments.of_nothing(1).merge(Moments.of(jnp.array([[0.0], [2.0], [9.0]]), "
                    "jnp.array([True, True, False]))).variance", [1]),
        "normalize": ("normalize(jnp.array(3.0), thing(mean=1.0, variance=4.0))", 1),
        "elites": ("elites(jnp.array([1.0, 3.0, 2.0]), 1)", [False, True, False]),
        "refit": ("refit(jnp.array([[1.0], [3.0], [9.0]]), jnp.array([True, True, False]))[1]", [1]),
        "extra_variance_at": ("extra_variance_at(thing(extra_variance=2.0, extra_variance_fraction=1.0, "
                              "num_generations=4), 1)", 1.5),
        "act": ("act(thing(config=thing(activation='tanh'), obs_space=thing(shape=(1,)), action_space=thing(n=2), "
                "unflatten=lambda x: [(x[None], jnp.zeros(2))]), jnp.array([0.0, 1.0]), jnp.ones((1, 1)))", [1]),
        "dense": ("dense(jnp.ones((1, 2)), jnp.ones((2, 1)), 1.0)", [[3]]),
        "diagnose": ("diagnose(*[thing(mean=jnp.zeros(1), variance=jnp.ones(1))] * 2, (jnp.zeros(1), jnp.ones(1)), "
                     "*[jnp.array([[1.0, 1.0], [2.0, 2.0]])] * 2, jnp.ones(2, bool))['elite_mean']", 1.5),
        "summary": ("summary('x', jnp.array([1.0, 3.0]))['x_std']", 1),
        "gaussian_entropy": ("gaussian_entropy(jnp.ones(1))", 0.5 * math.log(2 * math.pi * math.e)),
        "gaussian_kl": ("gaussian_kl(jnp.ones(1), jnp.ones(1), jnp.zeros(1), jnp.ones(1))[0]", 0.5),
        "kl_floor": ("kl_floor(3.0, 2)", 0.5772157 + math.log(1.5)),
        "explained_variance": ("explained_variance(jnp.array([[0.0, 0.0], [2.0, 2.0]]))", 1),
    },
}  # fmt: skip
"""A call of each, and what it gives."""


def test_table_in_the_document_is_what_is_computed():
    assert components.table() in (ROOT / "rlref" / "agents.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("agent", components.AGENTS)
def test_every_component_runs_in_an_empty_file(agent, tmp_path):
    names = [one.name for one in components.components(agent)]
    assert set(names) == set(CALLS[agent])
    for name in names:
        (tmp_path / f"{name}.py").write_text(components.lifted(agent, name))
    (tmp_path / "calls.json").write_text(json.dumps({name: CALLS[agent][name][0] for name in names}))
    printed = run_alone(
        """
import dataclasses, json, jax, jax.numpy as jnp, numpy as np
def thing(**fields):
    return dataclasses.make_dataclass("Thing", fields)(**fields)
got = {}
for name, call in json.load(open("calls.json")).items():
    given = {"jax": jax, "jnp": jnp, "thing": thing}
    got[name] = np.asarray(eval(call, given | runpy.run_path(f"{name}.py"))).tolist()
print(json.dumps(got))
""",
        tmp_path,
    )
    for name, got in json.loads(printed).items():
        np.testing.assert_allclose(got, CALLS[agent][name][1], rtol=1e-5, err_msg=name)


def test_what_is_called_comes_along_and_what_only_annotates_does_not():
    assert components.component("dqn", "next_values").along == ("FORBIDDEN", "taken", "epsilon_greedy")
    one = components.component("ppo", "record_episodes")
    assert (one.along, one.imports) == (("RING",), ("replace", "jnp", "Array"))
    assert one.reads == ("State.num_episodes", "State.ring_length", "State.ring_return")


def test_what_needs_the_whole_file_is_left_out():
    names = {one.name for one in components.components("ppo")}
    assert not names & {"train", "make", "init", "update", "collect", "learn", "loss", "forward", "load", "diagnose"}
