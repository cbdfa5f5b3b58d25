"""Agents under other names: the same numbers, the contract kept, and nothing left that an oracle knows by its name."""

import ast
import functools
import sys
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from probes import check
from probes.environments import Tabular
from probes.oracles import ORACLES, missing
from probes.oracles.base import COUNT
from rlref import cem, dqn, ppo
from rlref.contract import check_contract

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))

import mutants  # noqa: E402
import mutation_score  # noqa: E402
from renamed import renamed  # noqa: E402

SETTINGS = {
    "ppo": {"total_timesteps": 77 * 3, "num_envs": 7, "num_steps": 11, "num_minibatches": 7, "hidden_sizes": (8,)},
    "dqn": {"total_timesteps": 77 * 3, "num_envs": 7, "train_frequency": 77, "cycles_per_update": 1, "batch_size": 31,
            "learning_starts": 77, "buffer_size": 154, "target_network_frequency": 77, "hidden_sizes": (8,)},
    "cem": {"num_generations": 3, "population_size": 11, "elite_fraction": 0.3, "num_rollouts": 2},
}  # fmt: skip
ALL_PARTS = {
    "ppo": {"normalize_observations": True, "scale_rewards": True, "target_kl": 0.1},
    "dqn": {"dueling": True, "target": "expected_sarsa", "loss": "huber", "n_step": 3, "tau": 0.5},
    "cem": {"hidden_sizes": (3,), "smoothing": 0.5},
}
AGENTS = {"ppo": ppo, "dqn": dqn, "cem": cem}


def module_of(name, source):
    module = types.ModuleType(name)
    module.__file__ = f"{name}.py"
    sys.modules[name] = module  # dataclasses look their module up by name
    exec(compile(source, module.__file__, "exec"), module.__dict__)
    return module


@functools.cache
def other(agent):
    return module_of(f"other_{agent}", renamed(Path(AGENTS[agent].__file__).read_text()))


def trained(module, settings):
    run = jax.jit(lambda key: module.train(module.Config(**settings), key, Tabular(COUNT), COUNT))
    return jax.device_get(run(jax.random.key(0)))


@pytest.mark.slow
@pytest.mark.parametrize("agent", AGENTS)
def test_an_agent_under_other_names_trains_bit_for_bit_as_it_did(agent):
    for settings in (SETTINGS[agent], SETTINGS[agent] | ALL_PARTS[agent]):
        (state, metrics), (other_state, found) = (trained(x, settings) for x in (AGENTS[agent], other(agent)))
        assert metrics.keys() == found.keys()
        for name, x in metrics.items():
            assert np.array_equal(x, found[name], equal_nan=True), name
        for x, y in zip(*map(jax.tree.leaves, (state, other_state)), strict=True):
            assert jnp.array_equal(x, y)


@pytest.mark.parametrize("agent", [*(pytest.param(x, marks=pytest.mark.slow) for x in ("ppo", "dqn")), "cem"])
def test_nothing_is_left_that_an_oracle_knows_by_its_name(agent):
    module = other(agent)
    check_contract(module, agent)
    known = [x.name for x in ORACLES.values() if agent in x.kinds and x.needs and not missing(x, module)]
    assert known == []
    kept = {*module.Config.__dataclass_fields__, *module.Agent._fields, "Config", "Agent", "make", "train"}
    state = jax.eval_shape(module.make(module.Config()).init, jax.random.key(0))
    assert all(name.startswith("my_") for name in state.__dataclass_fields__)
    old = ast.parse(Path(AGENTS[agent].__file__).read_text())
    given = {x.name for x in ast.walk(old) if isinstance(x, ast.FunctionDef | ast.ClassDef) and x.name[0] != "_"}
    assert not (given - kept) & {*vars(module)}
    if agent != "cem":
        assert check.ask(ORACLES["every_parameter_moves"], module).why == "its state has no params"
    if agent == "dqn":
        assert check.ask(ORACLES["target_network"], module).why == "its state has no target_params"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("agent", "names"),
    [
        ("ppo", ("known_targets", "obs_value")),
        ("dqn", ("known_q_metrics", "obs_value")),
        ("cem", ("fresh_rollouts", "bandit")),
    ],
)
def test_an_agent_under_other_names_passes_checks_over_the_contract(agent, names):
    report = check.run(other(agent), only=names, num_seeds=4)
    assert report.ok, check.verdict(report)
    assert [x.fault for x in report.oracles] == [""]
    assert [x.passed.all() for x in report.rungs] == [True]


def test_what_keeps_its_name():
    source = """
from typing import NamedTuple
import flax

@flax.struct.dataclass
class Config:
    loss: str = 'squared'

class Batch(NamedTuple):
    '''What loss reads.'''
    loss: float
    mean: float

class Agent(NamedTuple):
    init: object

def make(config, env=None):
    return Agent(init)

def init(task, batch, **options):
    total = batch.loss + batch.mean + task.config.loss + task.x.mean(axis=0) + sum(options['loss'])
    return replace(batch, loss=total), batch._replace(mean=f'{total:.3f} loss'), task.env.loss, flax.loss(loss=batch)
"""
    wanted = """
from typing import NamedTuple
import flax

@flax.struct.dataclass
class Config:
    loss: str = 'squared'

class MyBatch(NamedTuple):
    my_loss: float
    my_mean: float

class Agent(NamedTuple):
    init: object

def make(config, env=None):
    return Agent(my_init)

def my_init(my_task, my_batch, **my_options):
    my_total = my_batch.my_loss + my_batch.my_mean + my_task.config.loss + my_task.x.mean(axis=0) + sum(my_options['loss'])
    return (replace(my_batch, my_loss=my_total), my_batch._replace(my_mean=f'{my_total:.3f} loss'), my_task.env.loss, flax.loss(loss=my_batch))
"""  # noqa: E501
    assert renamed(source).split() == wanted.split()
    with pytest.raises(ValueError, match="my_x are taken"):
        renamed("x = my_x = 1")
    with pytest.raises(ValueError, match="line 3: whose are the keywords x"):
        renamed("x = 1\nf = partial(print, x)\nf(x=1)")


@pytest.mark.parametrize(
    "every",
    [pytest.param(34, marks=pytest.mark.slow), pytest.param(1, marks=[pytest.mark.study, pytest.mark.timeout(3000)])],
)
def test_planted_bugs_are_the_same_programs_under_other_names(every):
    def programs(module, agent):
        for settings in (SETTINGS[agent], SETTINGS[agent] | ALL_PARTS[agent]):
            made = module.make(module.Config(**settings), Tabular(COUNT), COUNT)
            state, obs = jax.eval_shape(made.init, jax.random.key(0)), jnp.zeros(4)
            for f, x in (made.init, (jax.random.key(0),)), (made.update, (state, 0)), (made.policy, (state, obs)):
                yield str(jax.make_jaxpr(f)(*x))

    def told(module, agent):
        try:
            return [plain(x) for x in programs(module, agent)]
        except Exception as error:  # some bugs do not run
            return type(error)

    def plain(program):  # without the names of functions, and where they are in memory
        words = [x for x in program.replace("my_", "").split() if "name=" not in x and "0x" not in x]
        return " ".join(words)

    for agent, bugs in mutants.MUTANTS.items():
        for number, bug in enumerate(bugs[::every]):
            source = mutation_score.planted(agent, bug)
            one, two = module_of(f"{agent}_{number}", source), module_of(f"other_{agent}_{number}", renamed(source))
            assert told(one, agent) == told(two, agent), bug.name
