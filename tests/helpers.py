"""What the tests of several agents use."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

import rlref
from rlref import cem, dqn, ppo, ppo_rnn

# Trainings of 20 updates.
SMALL = {
    "ppo": ppo.Config(
        total_timesteps=20 * 12,
        num_envs=3,
        num_steps=4,
        num_minibatches=1,
        update_epochs=1,
        hidden_sizes=(8,),
        anneal_lr=False,
        normalize_observations=True,
        scale_rewards=True,
    ),
    "ppo_rnn": ppo_rnn.Config(
        total_timesteps=20 * 12,
        num_envs=3,
        num_steps=4,
        num_minibatches=1,
        update_epochs=1,
        hidden_sizes=(8,),
        memory_size=4,
        anneal_lr=False,
    ),
    "dqn": dqn.Config(
        total_timesteps=20 * 16,
        num_envs=2,
        train_frequency=4,
        cycles_per_update=4,
        learning_starts=32,
        buffer_size=100,
        batch_size=16,
        target_network_frequency=8,
        hidden_sizes=(8,),
    ),
    "cem": cem.Config(num_generations=20, population_size=8, elite_fraction=0.25, num_rollouts=1, hidden_sizes=(4,)),
}


def task_of(agent):
    return agent.init.args[0]  # `make` binds it there: the one place to get at the network it built


def leaves_equal(a, b):
    a, b = (jax.tree.map(lambda x: jax.random.key_data(x) if is_key(x) else x, tree) for tree in (a, b))
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.array_equal(x, y, equal_nan=True) for x, y in pairs)


def is_key(x):
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def adam_of(state):
    """Adam's moments in an agent's state, wherever its optimiser keeps them."""
    ((_, adam),) = optax.tree.get_all_with_path(state.opt_state, "ScaleByAdamState")
    return adam


def flat(params):
    return np.float64(ravel_pytree(params)[0])


SUITES_INSTALLED = os.environ.get("SUITES_INSTALLED", "").split()
"""packages that have to be there, as in .ci/suites: what takes them is not skipped"""


def child_environment():
    """The variables of a fresh process that finds this rlref, and the machine's devices as they are."""
    kept = {name: x for name, x in os.environ.items() if name not in ("JAX_NUM_CPU_DEVICES", "PYTHONPATH")}
    return kept | {"PYTHONPATH": str(Path(rlref.__file__).parents[1])}


def trains_alone(source, folder):
    """What an agent's `source` prints where there is no rlref, a line per metric: name -> numbers, one per seed."""
    (folder / "agent.py").write_text(source)
    printed = run_alone('runpy.run_path("agent.py", run_name="__main__")', folder)
    return {line.split()[0]: [float(x) for x in line.split()[1:]] for line in printed.splitlines()}


def run_alone(code, folder):
    """What `code` prints in a process that has no rlref, in a folder."""
    # rlref may be installed in this environment: hide it from every finder.
    hidden = """
import importlib.util, runpy, sys
class Without:
    def __init__(self, finder):
        self.finder = finder
    def __getattr__(self, name):
        return getattr(self.finder, name)
    def find_spec(self, name, *rest):
        return None if name.partition(".")[0] == "rlref" else self.finder.find_spec(name, *rest)
sys.meta_path[:] = map(Without, sys.meta_path)
assert importlib.util.find_spec("rlref") is None
"""
    command = [sys.executable, "-I", "-W", "error", "-c", hidden + code]
    settings = {"cwd": folder, "env": child_environment(), "timeout": 300, "capture_output": True, "text": True}
    return subprocess.run(command, check=True, **settings).stdout


def equations(jaxpr):
    """All operations of a traced program, those of inner functions too."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jax.tree.leaves(tuple(equation.params.values()), is_leaf=lambda x: hasattr(x, "jaxpr")):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                yield from equations(inner)


def count_conds(program):
    # But for a choice that is made when the program is compiled, by the kind of device.
    conds = [e for e in equations(program.jaxpr) if e.primitive.name == "cond"]
    return sum(e.params.get("branches_platforms") is None for e in conds)
