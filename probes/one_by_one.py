"""QR decompositions one after the other under `vmap`, for agents whose orthogonal initialisation is batched over seeds.

On a CPU of few cores XLA's batched QR decomposition can wait for itself for ever: each of its tasks holds a thread, and
waits for other tasks, which need one. flax's and jax's `orthogonal` initialisers are such, once seeds are vmapped.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import batching

NOTE = (
    "its QR decompositions (orthogonal initialisation) were done one seed after the other here; where you vmap its "
    "training yourself, they can hang for ever on a CPU of few cores: wrap the initialiser in "
    "jax.custom_batching.sequential_vmap, as `orthogonal` in rlref/ppo.py does"
)
LINEAR_ALGEBRA = ("qr", "geqrf", "householder_product", "svd", "eigh", "eig", "lu", "cholesky", "triangular_solve")
"""primitives of jax that XLA hands to LAPACK on a CPU"""


class Met:
    """Whether a program that was lowered inside of `qr` has a QR decomposition that would have been batched."""

    def __init__(self) -> None:
        self.traced = False  # in some branch of some program; it may be one of another platform than the CPU
        self.lowered = False


_current: list[Met] = []


@contextlib.contextmanager
def qr() -> Iterator[Met]:
    """On a CPU: what is traced inside loops over its QR decompositions where `vmap` would batch them."""
    met, rules = Met(), getattr(batching, "fancy_primitive_batchers", {})
    primitives = (jax.lax.linalg.qr_p, jax.lax.linalg.householder_product_p)
    # jax promises no such dictionary: without it agents are probed as they are, under the command's time limit.
    loops = jax.default_backend() == "cpu" and all(p in rules for p in primitives)
    before = {primitive: rules[primitive] for primitive in primitives} if loops else {}
    rules.update({primitive: _in_a_loop(primitive, met) for primitive in before})
    _current.append(met)
    try:
        yield met
    finally:
        _current.pop()
        rules.update(before)


def look(lowered: jax.stages.Lowered) -> None:
    """Look for such a decomposition in a program: branches for other platforms are no longer in there."""
    for met in _current[-1:]:
        met.lowered |= met.traced and "_qr_of_one_seed" in lowered.as_text()


def noted(run: Callable[..., Any]) -> Callable[..., Any]:
    """`run`, which returns a report, inside of `qr`; the report's notes say if there was one."""

    @functools.wraps(run)
    def noting(*arguments: Any, **named: Any) -> Any:
        with qr() as met:
            report = run(*arguments, **named)
        return dataclasses.replace(report, notes=(*report.notes, NOTE)) if met.lowered else report

    return noting


def _in_a_loop(primitive: Any, met: Met) -> Any:
    """The rule by which `vmap` treats the primitive: `jax.lax.map`, again inside of which is one more `vmap`'s."""

    def rule(axis_data: Any, values: Any, axes: Any, **params: Any) -> Any:
        met.traced = True

        def _qr_of_one_seed(values: Any) -> Any:  # `look` knows it by its name
            return primitive.bind(*values, **params)

        rows = [
            jnp.broadcast_to(x, (axis_data.size, *x.shape)) if axis is None else jnp.moveaxis(x, axis, 0)
            for x, axis in zip(values, axes, strict=True)
        ]
        out = jax.lax.map(jax.jit(_qr_of_one_seed), rows)
        return out, [0] * len(out) if primitive.multiple_results else 0

    return rule


def linear_algebra_in(jaxpr: Any) -> set[str]:
    """Those of LINEAR_ALGEBRA that occur in a jaxpr, or in those inside of it."""
    found = set()
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        found |= {equation.primitive.name} & set(LINEAR_ALGEBRA)
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
            if hasattr(inner, "eqns") or hasattr(getattr(inner, "jaxpr", None), "eqns"):
                found |= linear_algebra_in(inner)
    return found
