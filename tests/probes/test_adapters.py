"""Closures made agents: the example of probes/README.md, right and with planted bugs."""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from probes import adapters, check, verdict
from probes.environments import Tabular
from probes.ladder import LADDER
from probes.oracles import ORACLES
from rlref.contract import load_agent
from rlref.errors import UsageError

HERE = Path(__file__).parent
TIME_LIMITS = ["discount", "truncation_pair"]


@pytest.fixture
def adapter(tmp_path, monkeypatch):
    """A function of (old, new) pairs to replace in closure_ppo.py, then in its adapter: the path of the adapter."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "closure_ppo", raising=False)

    def write(agent=(), adapter=()):
        for name, pairs in (("closure_ppo.py", agent), ("closure_adapter.py", adapter)):
            source = (HERE / name).read_text()
            for old, new in pairs:
                assert source.count(old) >= 1
                source = source.replace(old, new)
            (tmp_path / name).write_text(source)
        return str(tmp_path / "closure_adapter.py")

    yield write
    sys.modules.pop("closure_ppo", None)


@pytest.mark.parametrize("name", ["closure_adapter.py", "numpy_agent.py"])
def test_the_page_shows_the_examples_as_they_are(name):
    lines = (HERE / name).read_text().split('"""', 2)[2].strip()
    assert lines in (Path(adapters.__file__).parent / "other_shapes.md").read_text()
    assert name != "closure_adapter.py" or len([line for line in lines.splitlines() if line]) <= 15


@pytest.mark.slow
def test_a_closure_passes_and_its_note_says_how_it_can_hang(adapter):
    report = check.run(adapter(), only=TIME_LIMITS, num_seeds=4)
    assert [rung.ok for rung in report.rungs] == [True, True]
    assert "sequential_vmap" in report.notes[0]


@pytest.mark.study
def test_a_closure_passes_every_oracle_that_it_can_be_asked():
    sys.modules.pop("closure_ppo", None)
    oracles = [name for name, oracle in ORACLES.items() if "ppo" in oracle.kinds]
    refused = ["will_to_live", "offset_obs", "continuous_target", "boundary"]
    report = check.run(str(HERE / "closure_adapter.py"), only=[*oracles, *refused], num_seeds=1)
    assert report.ok
    why = {rung.probe.name: rung.why for rung in report.rungs if isinstance(rung, check.Skipped)}
    assert list(why) == refused
    assert "'Box' object has no attribute 'n'" in why["boundary"]
    assert {x.oracle.name for x in report.oracles if x.fault == ""} == {
        "evaluated_as_learned",
        "keys_used_once",
        "probabilities",
        "seeds_apart",
    }


@pytest.mark.slow
def test_truncation_as_termination_fails_and_is_named(adapter):
    path = adapter([("jnp.where(step.terminated, 0.0", "jnp.where(step.ended, 0.0")])
    report = check.run(path, only=TIME_LIMITS, num_seeds=4)
    assert [rung.ok for rung in report.rungs] == [True, False]
    assert "truncation is treated as termination" in verdict.verdict(report)


OLD = [
    ("next_obs, env_state, reward, terminated, truncated, info =", "next_obs, env_state, reward, done, info ="),
    ('info["final_observation"]', "next_obs"),
    ("reward, terminated, terminated | truncated)", "reward, done, done)"),
]


@pytest.mark.slow
def test_a_closure_for_older_gymnax_runs_and_cannot_know_a_time_limit(adapter):
    report = check.run(
        adapter(OLD, [("    CONFIG,\n", "    CONFIG,\n    old_gymnax=True,\n")]), only=TIME_LIMITS, num_seeds=4
    )
    assert [rung.ok for rung in report.rungs] == [True, False]
    assert "truncation is treated as termination" in verdict.verdict(report)


def test_older_gymnax_gave_five_values():
    params = LADDER["truncation_pair"].case(0).params
    env = adapters.FiveValues(Tabular(params))
    _, state = env.reset(jax.random.key(0))
    values = env.step(jax.random.key(0), state, 0)
    assert len(values) == 5
    assert values[3]  # one of the two terminates, the other is cut: either way it is over
    assert values[4]["discount"] == 0
    assert env.num_actions == 1


def toy(config):
    """`train` that learns nothing, and notes in its parameters what it was given."""
    import gymnax

    env, env_params = gymnax.make(config["ENV_NAME"])
    config["DERIVED"] = config["TOTAL_TIMESTEPS"] // config["NUM_ENVS"]

    def train(key):
        obs, _ = env.reset(key, env_params)
        return {"params": {"lr": jnp.float32(config["LR"]) + 0 * obs.sum(), "steps": jnp.int32(config["DERIVED"])}}

    return train


TOY = {"ENV_NAME": "Nowhere-v0", "LR": 1e-3, "TOTAL_TIMESTEPS": 1e5, "NUM_ENVS": 4, "SCALE": 2.0, "ANNEAL_LR": False}


def of_toy(**named):
    return adapters.closure(
        toy, TOY, policy=lambda net, params, obs: jnp.ones(2) / 2, value=lambda net, params, obs: params["lr"],
        params=lambda out: out["params"], **named,
    )  # fmt: skip


def test_settings_have_rlrefs_names_and_the_closures_defaults():
    config_class, make, agent_class, train = of_toy()
    config = config_class()
    assert (config.learning_rate, config.total_timesteps, config.num_envs) == (1e-3, 100_000, 4)
    assert type(config.total_timesteps) is int
    assert jax.tree.leaves(config) == [1e-3]  # what shapes the program is no leaf
    params = LADDER["bandit"].case(0).params
    agent = make(config.replace(learning_rate=0.5, total_timesteps=12), Tabular(params), params)
    assert isinstance(agent, agent_class)
    assert (agent.num_updates, agent.steps_per_update) == (1, 12)
    state = agent.init(jax.random.key(0))
    assert state.params == {"lr": 0, "steps": 0}
    state, diagnostics = agent.update(state, 0)
    assert (float(state.params["lr"]), int(state.params["steps"])) == (0.5, 3)
    assert diagnostics == {"env_steps": 12}
    assert agent.value(state, jnp.zeros(1)) == 0.5
    assert TOY["TOTAL_TIMESTEPS"] == 1e5
    assert "DERIVED" not in TOY
    state, diagnostics = train(config, jax.random.key(0), Tabular(params), params)
    assert diagnostics["env_steps"].shape == (1,)


def test_fresh_parameters_can_be_given_and_static_settings_are_no_leaves():
    config_class, make, _, _ = of_toy(
        init=lambda net, key, obs: {"lr": obs.sum() + 7, "steps": jnp.int32(0)}, static=["LR"]
    )
    assert jax.tree.leaves(config_class()) == []
    params = LADDER["bandit"].case(0).params
    assert make(config_class(), Tabular(params), params).init(jax.random.key(0)).params["lr"] == 7


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({"names": {"GAMA": "gamma"}}, "config has none of the settings GAMA"),
        ({"names": {"LR": "learning_rate", "SCALE": "learning_rate"}}, "calls both LR and SCALE learning_rate"),
        ({"static": ["SCALES"]}, "Did you mean 'SCALE'"),
    ],
)
def test_wrong_use_is_told_in_one_line(named, message):
    with pytest.raises(UsageError, match=message) as error:
        of_toy(**named)
    assert "\n" not in str(error.value)


def test_what_the_closure_raises_is_told_with_its_own_file_and_line(adapter):
    bad = "        params = network.init(key_net, flat(obs))\n"
    path = adapter([(bad, bad + "        params = params + 1\n")])
    with pytest.raises(UsageError) as error:
        check.run(path, only=["constant"], num_seeds=2)
    source = Path(path).with_name("closure_ppo.py").read_text()
    line = source[: source.index("params = params + 1")].count("\n") + 1
    assert f"closure_ppo.py, line {line}: TypeError" in str(error.value)


def test_a_file_finds_the_modules_beside_it(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "beside_it.py").write_text("from rlref.cem import *\n")
    (tmp_path / "mine.py").write_text("from beside_it import Agent, Config, make, train\n")
    assert load_agent(str(tmp_path / "mine.py")).make
