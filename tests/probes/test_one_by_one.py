"""QR decompositions under vmap, in a loop: a batched one hangs on few cores."""

import re
import subprocess
import sys
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import child_environment

from probes import check, one_by_one, verdict
from rlref import ppo

pytestmark = pytest.mark.cpus


def matrix(key):
    return nn.initializers.orthogonal(2.0)(key, (5, 3), jnp.float32)


def ranks(lowered):
    """How many axes each matrix has that LAPACK gets."""
    shapes = re.findall(r"@lapack_sgeqrf_ffi\(.*: \(tensor<([\dx]+)xf32>", lowered.as_text())
    assert shapes
    return {shape.count("x") + 1 for shape in shapes}


@pytest.mark.parametrize("depth", [1, 2])
def test_vmap_loops_over_the_decompositions_of_flaxs_initialiser(depth):
    keys = jax.random.split(jax.random.key(0), (4, 2)[:depth])
    wanted = [matrix(key) for key in keys.ravel()]
    program = lambda key: matrix(key)  # noqa: E731
    for _ in range(depth):
        program = jax.vmap(program)
    with one_by_one.qr() as met:
        lowered = jax.jit(program).lower(keys)
        one_by_one.look(lowered)
        found = lowered.compile()(keys)
    assert ranks(lowered) == {2}
    assert met.lowered
    np.testing.assert_allclose(found.reshape(-1, 5, 3), wanted, atol=1e-5)
    np.testing.assert_allclose(np.einsum("nij,nik->njk", found.reshape(-1, 5, 3), found.reshape(-1, 5, 3)),
                               np.tile(4 * np.eye(3), (len(wanted), 1, 1)), atol=1e-5)  # fmt: skip


def test_afterwards_they_are_batched_again():
    with one_by_one.qr():
        pass
    lowered = jax.jit(jax.vmap(lambda x: jnp.linalg.qr(x)[0])).lower(jnp.ones((2, 4, 4)))
    assert ranks(lowered) == {3}


def test_jaxs_own_function_and_a_loop_are_covered_and_other_programs_are_not_meant():
    with one_by_one.qr() as met:
        lowered = jax.jit(jax.vmap(lambda x: jax.lax.map(jnp.linalg.qr, x))).lower(jnp.ones((2, 3, 4, 4)))
        assert ranks(lowered) == {2}
        one_by_one.look(jax.jit(jnp.sin).lower(1.0))
        assert not met.lowered
        one_by_one.look(lowered)
        assert met.lowered


def batched(tmp_path):
    """A copy of PPO whose initialiser is flax's."""
    source = Path(ppo.__file__).read_text()
    assert source.count("kernel_init=orthogonal(") == 2
    source = source.replace("kernel_init=orthogonal(", "kernel_init=nn.initializers.orthogonal(")
    source = source.replace(", init = getattr(nn, self.activation), orthogonal(",
                            ", init = getattr(nn, self.activation), nn.initializers.orthogonal(")  # fmt: skip
    (tmp_path / "batched.py").write_text(source)
    return str(tmp_path / "batched.py")


@pytest.mark.slow
def test_an_agent_of_such_an_initialiser_is_probed_and_told(tmp_path):
    report = check.run(batched(tmp_path), only=["constant"], num_seeds=2)
    assert report.ok
    assert report.notes == (one_by_one.NOTE,)
    assert verdict.to_json(report)["notes"] == [one_by_one.NOTE]


def test_rlrefs_own_initialiser_is_not_noted():
    config = ppo.Config(num_envs=2, num_steps=2, total_timesteps=4, hidden_sizes=(8,))
    with one_by_one.qr() as met:
        one_by_one.look(jax.jit(jax.vmap(ppo.make(config).init)).lower(jax.random.split(jax.random.key(0), 2)))
    assert not met.lowered


def test_linear_algebra_is_found_wherever_it_stands():
    found = one_by_one.linear_algebra_in(jax.make_jaxpr(jax.vmap(matrix))(jax.random.split(jax.random.key(0), 2)))
    assert found == {"qr"}
    assert one_by_one.linear_algebra_in(jax.make_jaxpr(jnp.sin)(1.0)) == set()
    either = lambda x: jax.lax.cond(x[0, 0] > 0, jnp.linalg.cholesky, jnp.sin, x)  # noqa: E731
    assert one_by_one.linear_algebra_in(jax.make_jaxpr(either)(jnp.eye(2))) == {"cholesky"}


@pytest.mark.slow
def test_what_hangs_without_trains_in_a_fresh_process(tmp_path):
    batched(tmp_path)
    code = """
import jax, jax.numpy as jnp
import batched
from probes import one_by_one
config = batched.Config(num_envs=16, num_steps=32, total_timesteps=2 * 16 * 32, hidden_sizes=(256, 256))
config = config.replace(update_epochs=1, num_minibatches=1)
keys = jax.vmap(jax.random.key)(jnp.arange(8))
with one_by_one.qr():
    state, diagnostics = jax.jit(jax.vmap(batched.train, in_axes=(None, 0)))(config, keys)
print(diagnostics["env_steps"].shape)
"""
    command, environment = [sys.executable, "-c", code], child_environment() | {"PYTHONPATH": str(tmp_path)}
    run = subprocess.run(command, env=environment, timeout=300, check=True, capture_output=True, text=True)
    assert run.stdout == "(8, 2)\n"
