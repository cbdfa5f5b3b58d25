"""What can be told of programs for GPUs and TPUs by lowering them, which needs jax alone; and fitting their memory."""

import functools
import json
import math
import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType

import rlref
from rlref import cem, dqn, ppo
from rlref.envs.ids import make_env
from rlref.errors import UsageError
from rlref.runs import compiling, training
from rlref.runs.display import Silent
from rlref.runs.job import Job
from rlref.runs.plan import Plan
from rlref.runs.programs import compile_programs, compile_to_fit, lower_programs

PLATFORMS = ("tpu", "cuda")
# Of PPO's orthogonal initialisation: the decomposition and the product of its reflections, of either platform.
KNOWN = {"Qr", "ProductOfElementaryHouseholderReflectors", "cusolver_geqrf_ffi", "cusolver_orgqr_ffi"}
CONFIGS = {
    "ppo": (ppo, ppo.Config(num_steps=4, total_timesteps=64, scale_rewards=True, normalize_observations=True)),
    "ppo-images": (ppo, ppo.Config(env_id="Breakout-MinAtar", num_steps=4, total_timesteps=64)),
    "ppo-box": (ppo, ppo.Config(env_id="Pendulum-v1", num_steps=4, total_timesteps=64)),
    "dqn": (dqn, dqn.Config(total_timesteps=20_000, n_step=3)),
    "dqn-images": (dqn, dqn.Config(env_id="Breakout-MinAtar", total_timesteps=20_000, buffer_dtype="bool")),
    "cem": (cem, cem.Config(population_size=16, hidden_sizes=(4,))),
    "cem-box": (cem, cem.Config(env_id="Pendulum-v1", population_size=16)),
}


def programs_of(module, config, eval_every=0):
    """The text of the programs that train 8 seeds of an agent on four devices that are not there."""
    mesh = AbstractMesh((4,), ("seed",), axis_types=(AxisType.Auto,))
    job = Job(module, config, *make_env(config.env_id), list(range(8)), eval_every, 1, False)
    return {name: lowered.as_text() for name, lowered in lower_programs(job, Plan(mesh, 8, 8), PLATFORMS)}


def faults(text):
    """What must not be in a program for an accelerator."""
    calls = set(re.findall(r"custom_call @([\w.]+)", text)) - KNOWN
    collectives = set(re.findall(r"stablehlo\.(all_\w+|reduce_scatter|collective_\w+|send|recv)", text))
    return calls | collectives | set(re.findall(r"\b(f64|infeed|outfeed)\b", re.sub(r"x(?=f64)", " ", text)))


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_programs_lower_for_accelerators_with_nothing_that_waits_or_is_missing_there(name):
    module, config = CONFIGS[name]
    programs = programs_of(module, config, eval_every=1)
    assert set(programs) == {"chunk", "init", "evaluate"}
    assert not set().union(*map(faults, programs.values()))
    found = set(re.findall(r"custom_call @([\w.]+)", programs["init"]))
    assert found == (KNOWN if module is ppo else set())  # the names are those of this version of jax


def changed(change, of_policy=False):
    """PPO, which does something to one of its metrics as well, or to the probabilities of its policy."""

    def make(config, env=None, env_params=None):
        agent = ppo.make(config, env, env_params)

        def update(state, step):
            state, metrics = agent.update(state, step)
            return state, metrics | {"kl": change(metrics["kl"])}

        if of_policy:
            return agent._replace(policy=lambda state, obs: change(agent.policy(state, obs)))
        return agent._replace(update=update)

    return types.SimpleNamespace(**(vars(ppo) | {"make": make}))


def test_a_planted_decomposition_is_found():
    program = programs_of(changed(lambda x: jnp.linalg.svd(x * jnp.ones((3, 3)))[1][0]), CONFIGS["ppo"][1])["chunk"]
    assert any(re.search("Svd|Eigh|gesvd|syevd", x) for x in faults(program))


@pytest.mark.slow
def test_a_planted_mean_over_devices_is_found():
    # Only in an evaluation: an update is traced without knowing of devices, so that one in there is an error at once.
    mean = changed(lambda x: jax.lax.pmean(x, "seed"), of_policy=True)
    assert faults(programs_of(mean, CONFIGS["ppo"][1], eval_every=1)["evaluate"]) == {"all_reduce"}
    with pytest.raises(NameError, match="axis name: seed"):
        programs_of(changed(lambda x: jax.lax.pmean(x, "seed")), CONFIGS["ppo"][1])


def test_a_planted_callback_does_not_lower():
    shape = jax.ShapeDtypeStruct((), jnp.float32)
    change = changed(lambda x: jax.pure_callback(np.sin, shape, x, vmap_method="sequential"))
    with pytest.raises(ValueError, match="require devices to be present"):
        programs_of(change, CONFIGS["ppo"][1])


def test_a_planted_decomposition_that_only_cpus_have_does_not_lower():
    change = changed(lambda x: jnp.linalg.eig(x * jnp.ones((3, 3)))[0][0].real)
    with pytest.raises(NotImplementedError, match="eig"):
        programs_of(change, CONFIGS["ppo"][1])


def test_planted_float64_is_found():
    with jax.enable_x64(True):
        lowered = jax.jit(lambda x: x.astype(jnp.float64) * 2).trace(jnp.float32(1)).lower(lowering_platforms=PLATFORMS)
        assert faults(lowered.as_text()) == {"f64"}


# Groups that fit the memory that compiled programs take.


def compiled_to(bytes_per_row, refused_above=10**9):
    """A stand-in for compiling: what it was asked to compile, and programs that take so many bytes of a device."""
    asked = []

    def compile(job, plan, display):
        asked.append(plan.rows)
        if plan.rows > refused_above:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm")
        return types.SimpleNamespace(bytes=bytes_per_row * plan.padded / plan.mesh.size)

    return compile, asked


def plan_for(rows, budget, fixed=False):
    mesh, padded = compiling.mesh_for(rows)
    return Plan(mesh, rows, padded, budget, fixed)


@pytest.mark.cpus
@pytest.mark.parametrize(
    ("bytes_per_row", "refused_above", "asked"),
    [
        (1e7, 1000, [1000]),  # it fits
        (2e7, 1000, [1000, 500]),  # twice as much as there is
        (1.3e7, 1000, [1000, 500]),  # no third group, so two of 500 and not one of 769
        (1e7, 999, [1000, 500]),  # XLA refuses
        (1e7, 300, [1000, 500, 200]),  # and again: at most 62 on each of four devices
    ],
)
def test_groups_are_made_smaller_until_compiled_programs_fit(bytes_per_row, refused_above, asked):
    compile, found = compiled_to(bytes_per_row, refused_above)
    job = types.SimpleNamespace(num_rows=1000)
    programs, plan = compile_to_fit(job, plan_for(1000, 1e10 / 4), Silent(), compile)
    assert (found, plan.rows) == (asked, asked[-1])
    assert programs.bytes <= plan.budget


@pytest.mark.parametrize(("rows", "fixed", "message"), [(1, False, "one seed takes"), (8, True, "8 seeds, which this")])
def test_what_cannot_be_made_smaller_is_refused_in_a_line(rows, fixed, message):
    compile, asked = compiled_to(2e10)
    with pytest.raises(UsageError, match=message) as refused:
        compile_to_fit(types.SimpleNamespace(num_rows=rows), plan_for(rows, 1e10, fixed), Silent(), compile)
    assert "\n" not in str(refused.value)
    assert asked == [rows]


def test_rows_that_fit_the_devices_together_but_not_each_are_refused():
    compile, asked = compiled_to(3e9)
    with pytest.raises(UsageError, match="one seed takes about 3,000 MB, more than the 1,000 MB there are"):
        compile_to_fit(types.SimpleNamespace(num_rows=1), plan_for(1, 1e9), Silent(), compile)
    assert asked == [1]


def test_a_cpu_that_runs_out_of_memory_says_so():
    compile, _ = compiled_to(1e7, refused_above=0)
    with pytest.raises(jax.errors.JaxRuntimeError, match="RESOURCE_EXHAUSTED"):
        compile_to_fit(types.SimpleNamespace(num_rows=8), plan_for(8, math.inf), Silent(), compile)


@pytest.mark.slow
def test_a_run_that_was_stopped_while_it_was_compiled_may_train_in_smaller_groups(tmp_path, monkeypatch):
    def stopped(job, plan, display):
        raise KeyboardInterrupt

    monkeypatch.setattr(training, "compile_to_fit", functools.partial(compile_to_fit, compile=stopped))
    config = ppo.Config(num_steps=8, total_timesteps=128)
    with pytest.raises(KeyboardInterrupt):
        rlref.train("ppo", config, num_seeds=8, run_dir=tmp_path / "run", sinks=[])
    seen = []

    def fixed(job, plan, display):
        seen.append(plan.fixed)
        return compile_to_fit(job, plan, display)

    monkeypatch.setattr(training, "compile_to_fit", fixed)
    assert rlref.resume(tmp_path / "run").summary["status"] == "finished"
    assert seen == [False]


def test_another_error_of_the_compiler_is_not_one_of_memory():
    def compile(job, plan, display):
        raise jax.errors.JaxRuntimeError("INTERNAL: something else")

    with pytest.raises(jax.errors.JaxRuntimeError, match="something else"):
        compile_to_fit(types.SimpleNamespace(num_rows=8), plan_for(8, 1e10), Silent(), compile)


@pytest.mark.slow
def test_a_run_whose_groups_were_made_smaller_says_so_in_its_folder(tmp_path, monkeypatch):
    config = ppo.Config(num_steps=8, total_timesteps=128)
    asked = []

    def once_too_much(job, plan, display):
        asked.append(plan.rows)
        programs = compile_programs(job, plan, display)
        return programs._replace(bytes=4e12 if len(asked) == 1 else 0)

    monkeypatch.setattr(training, "make_plan", lambda *_: plan_for(8, 2e12))
    monkeypatch.setattr(training, "compile_to_fit", functools.partial(compile_to_fit, compile=once_too_much))
    run = rlref.train("ppo", config, num_seeds=8, run_dir=tmp_path / "run", sinks=[])
    assert asked == [8, 4]  # one on each of four devices
    assert run.metrics["kl"].shape == (8, 4)
    assert json.loads((tmp_path / "run" / "config.json").read_text())["rows_per_group"] == 4
