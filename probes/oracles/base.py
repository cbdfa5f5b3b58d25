"""What oracles are made of: the registry, what they ask with, and the tables that several ask on."""

import ast
import dataclasses
import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnax.environments import spaces

from probes.changes import reached
from probes.environments import Tabular, Target, Targets, tables
from rlref.runs import compiling

SEEDS = 64
TRUTH, DEFINITION, LIKENESS = "truth", "definition", "likeness"
"""What a check asks for.

A truth holds for any right agent of its kind, whatever its method. A definition: a function does what its name
promises, and a diagnostic is what rlref/metrics.py says. Likeness: the file does what rlref's own does, where that is a
choice of method; some right edit of scripts/edits.py fails it.
"""


@dataclasses.dataclass(frozen=True)
class Oracle:
    """One check. It raises AssertionError, in one line, if the agent is wrong, and CannotAskError."""

    name: str
    check: Callable[[ModuleType], None]
    kinds: tuple[str, ...]
    isolates: str
    holds: str
    """TRUTH, DEFINITION or LIKENESS"""
    needs: dict[str, tuple[str, ...]]
    """functions and classes of the agent's file that it calls -> the names of their parameters or fields"""
    instead_of: tuple[str, ...] = ()
    """oracles over functions of the file that see the same more precisely: it is asked where one of them cannot be"""
    also: tuple[str, ...] = ()
    """functions that it calls besides, where the file has them"""


class CannotAskError(Exception):
    """The agent has not what an oracle asks about."""


ORACLES: dict[str, Oracle] = {}


def oracle(
    kinds: tuple[str, ...], isolates: str, holds: str = TRUTH, instead_of: str = "", also: str = "", **needs: str
) -> Callable[[Callable[[ModuleType], None]], Callable[[ModuleType], None]]:
    """Add the decorated function to the oracles."""

    def add(check: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
        required = {name: tuple(parameters.split()) for name, parameters in needs.items()}
        name, others = check.__name__, tuple(instead_of.split())
        ORACLES[name] = Oracle(name, check, kinds, isolates, holds, required, others, tuple(also.split()))
        return check

    return add


def missing(wanted: Oracle, module: ModuleType) -> str:
    """Why an oracle cannot be asked about an agent's file; '' if it can."""
    for name, parameters in wanted.needs.items():
        found = getattr(module, name, None)
        if found is None:
            return f"it has no {name}"
        if name not in used(module):
            return f"its make does not use {name}"
        if not callable(found) or not called_with(found, parameters):
            return f"its {name} does not take ({', '.join(parameters)})"
    return ""


def called_with(function: Any, parameters: tuple[str, ...]) -> bool:
    """Whether it takes these parameters, in this order; what it takes besides has to have a default."""
    taken = inspect.signature(function).parameters
    others = [*taken.values()][len(parameters) :]
    return tuple(taken)[: len(parameters)] == parameters and all(x.default is not x.empty for x in others)


@functools.cache
def used(module: ModuleType) -> set[str]:
    """Which names of the file `make` refers to, directly or through others; all where there is no file to read."""
    try:
        tree = ast.parse(Path(str(module.__file__)).read_text())
    except (OSError, SyntaxError):
        return {*dir(module)}
    within: dict[str, set[str]] = {}
    for node in tree.body:
        names = [x for x in ast.walk(node) if isinstance(x, ast.Name)]
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined = {node.name}
        else:
            defined = {x.id for x in names if isinstance(x.ctx, ast.Store)}
        for name in defined:
            within.setdefault(name, set()).update(x.id for x in names)
    return reached(within, {"make"})


def knows_masks(module: ModuleType) -> bool:
    """Whether an agent's file says anything of a space's `action_mask`; without it all actions are allowed to it."""
    return module.__file__ is not None and "action_mask" in Path(module.__file__).read_text()


def settings_in(module: ModuleType) -> set[str]:
    """Names of the settings that the agent's Config has."""
    return {f.name for f in dataclasses.fields(module.Config)}


def need(module: ModuleType, *settings: str) -> None:
    """Raise CannotAskError unless the agent's Config has these settings."""
    if lacking := [name for name in settings if name not in settings_in(module)]:
        raise CannotAskError(f"its Config lacks {', '.join(lacking)}")


def configure(module: ModuleType, **settings: Any) -> Any:
    """A Config with these settings. Raises CannotAskError if it lacks one."""
    need(module, *settings)
    return module.Config(**settings)


def takes(module: ModuleType, **settings: Any) -> bool:
    """Whether the agent's `make` accepts these settings, as far as its Config has them."""
    fields = settings_in(module)
    params = tables(obs=[[0.0, 0.0]], reward=[[0.0, 0.0]], next=[0])
    try:
        module.make(module.Config(**{k: v for k, v in settings.items() if k in fields}), Tabular(params), params)
    except ValueError:
        return False
    return True


def task_of(module: ModuleType, config: Any, env: Any, env_params: Any) -> Any:
    """What the functions of the agent's file take first. Raises CannotAskError unless `make` binds it to `init`."""
    try:
        init = module.make(config, env, env_params).init
    except ValueError as error:
        raise CannotAskError(f"its make refuses the settings: {error}") from error
    if not isinstance(init, functools.partial) or len(init.args) != 1:
        raise CannotAskError("its make does not bind a task to init, as partial(init, task)")
    return init.args[0]


@functools.cache
def quickly() -> dict[str, Any] | None:
    """Compiler options for programs with which little is computed: their compilation takes most of the time."""
    options = compiling.options(compiling.ONCE)
    if options is None:
        return None
    quicker = options | {"xla_cpu_use_fusion_emitters": False}  # a third of the time
    try:
        jax.jit(lambda: 0, compiler_options=quicker)()
    except jax.errors.JaxRuntimeError:  # an XLA without this option
        return options
    return quicker


def compiled(f: Callable[..., Any]) -> Any:
    """`f` under `jit`, compiled quickly."""
    return jax.jit(f, compiler_options=quickly())


def first_state(module: ModuleType, task: Any, seed: int = 0) -> Any:
    """What the file's `init` gives, as one program: eagerly it is hundreds of small ones, each compiled by itself."""
    return compiled(functools.partial(module.init, task))(jax.random.key(seed))


def close(what: str, got: Any, wanted: Any, tolerance: float = 1e-4) -> None:
    """Raise AssertionError, in one line, unless `got` is `wanted`."""
    got, wanted = np.asarray(got, np.float64), np.asarray(wanted, np.float64)
    if got.shape != wanted.shape:
        raise AssertionError(f"{what} has the shape {got.shape}, not {wanted.shape}")
    wrong = ~(np.abs(got - wanted) <= tolerance * np.maximum(1, np.abs(wanted))) & ~(np.isnan(got) & np.isnan(wanted))
    if wrong.any():
        at = tuple(np.argwhere(wrong)[0])
        where = f" at {[int(i) for i in at]}" if at else ""
        raise AssertionError(f"{what} is {got[at]:.5g}{where}, and should be {wanted[at]:.5g}")


def rows_apart(forward: Callable[[jax.Array], Any], obs: jax.Array) -> None:
    """Raise AssertionError unless what a network says of an observation is the same whatever others are beside it."""
    together, alone = forward(obs), [forward(obs[i : i + 1]) for i in range(len(obs))]
    for x, *each in zip(*map(jax.tree.leaves, (together, *alone)), strict=True):
        close("what the network says of observations, each of which it is shown alone", x, np.concatenate(each), 1e-3)


# Functions of the agent's file.


SHAPES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
    "swish": lambda x: x / (1 + np.exp(-x)),
}
"""Activations written out."""


# Episodes of two steps that terminate, then of two that are cut, and so on: whatever is done, it is known what comes.
CYCLE = tables(
    obs=np.eye(4) - 0.2,
    reward=[[1.0, 1.0], [-2.0, -2.0], [0.5, 0.5], [3.0, 3.0]],
    next=[1, 2, 3, 0],
    terminated=[0, 1, 0, 0],
    truncated=[0, 0, 0, 1],
    after=[-1, 2, -1, 0],
)


# Rewards by action alone: +1 or -1, the same in both tables but for the action.
COIN = tables(obs=np.zeros((4, 4)), reward=[[1.0, -1.0]] * 4, next=[0] * 4, terminated=True)


SECOND = tables(obs=np.zeros((4, 4)), reward=[[-1.0, 1.0]] * 4, next=[0] * 4, terminated=True)


# States that are told apart by what they show, as are rewards by state and action; both endings occur.
IDS = tables(
    obs=np.arange(1.0, 7.0)[:, None],
    reward=[[10.0 * i + a for a in range(2)] for i in range(1, 7)],
    next=[[1, 2], [2, 3], [3, 4], [4, 5], [5, 0], [0, 1]],
    terminated=[0, 0, 1, 0, 0, 0],
    truncated=[0, 0, 0, 0, 1, 0],
    start=np.full(6, 1 / 6),
)


class Lopsided(Target):
    """With bounds that differ between dimensions, and whose middle is not 0."""

    low, high = np.array([-1.0, 0.0, 2.0, -5.0, -0.5], np.float32), np.array([1.0, 3.0, 2.5, -4.0, 8.0], np.float32)

    def action_space(self, params: Targets | None = None) -> spaces.Box:
        return spaces.Box(self.low, self.high, self.low.shape, jnp.float32)


class Plate(Lopsided):
    """With actions of two rows and two columns."""

    low, high = Lopsided.low[:4].reshape(2, 2), Lopsided.high[:4].reshape(2, 2)


# One step; reward +1 or -1 whatever is done. The other states are there for the shape.
NOISE = tables(obs=np.zeros((4, 4)), reward=np.zeros((4, 2)), next=[0] * 4, terminated=True, noise=1.0)


# Episodes of three steps that return 6, or of two that return 7, by where they start.
COUNT = tables(
    obs=np.eye(4),
    reward=[[1.0, 1.0], [2.0, 2.0], [3.0, 3.0], [4.0, 4.0]],
    next=[1, 2, 2, 2],
    terminated=[0, 0, 1, 0],
    start=[0.5, 0, 0, 0.5],
)


def part(state: Any, name: str) -> Any:
    """A field of the state. Raises CannotAskError if it has none of that name."""
    if not hasattr(state, name):
        raise CannotAskError(f"its state has no {name}")
    return getattr(state, name)


def vectors(params: Any) -> np.ndarray:
    """Parameters of `S` seeds as `[S, P]`."""
    return np.concatenate([np.asarray(x, np.float64).reshape(SEEDS, -1) for x in jax.tree.leaves(params)], axis=1)


def same(a: Any, b: Any) -> bool:
    """Whether two trees are equal, bit for bit."""
    return all((np.asarray(x) == np.asarray(y)).all() for x, y in zip(*map(jax.tree.leaves, (a, b)), strict=True))


class Unknown(dict[str, np.ndarray]):
    """Metrics of which nobody knows what they should be, and why; empty."""

    def __init__(self, why: str):
        super().__init__()
        self.why = why


def emitted(metrics: dict[str, np.ndarray], *names: str) -> dict[str, np.ndarray]:
    """Those of the metrics that the agent emits. Raises CannotAskError if it emits none, or they are `Unknown`."""
    if isinstance(metrics, Unknown):
        raise CannotAskError(metrics.why)
    found = {name: metrics[name] for name in names if name in metrics}
    if not found:
        raise CannotAskError(f"it emits no {' or '.join(names[:3])}")
    return found


def follows_ids(kept: Any, final: str, before: Any, last: Any) -> None:
    """Raise AssertionError unless steps `[T, N]` kept on `IDS` are what it does, from `before` on to `last`.

    `final` is the name of the field that holds what a step led to.
    """
    at, ended = kept.obs[..., 0].astype(int) - 1, kept.terminated | kept.truncated
    close("the first observations", kept.obs[0], before)
    if len(np.unique(kept.obs[0])) == 1:
        raise AssertionError("all environments begin in the same of six states")
    leads_to = IDS.obs[IDS.next[at, kept.action]]
    for name, wanted in (
        ("reward", IDS.reward[at, kept.action]),
        ("terminated", IDS.terminated[at, kept.action]),
        ("truncated", IDS.truncated[at, kept.action]),
        (final, leads_to),
    ):
        close(f"{name} beside the observation and the action kept with it", getattr(kept, name), wanted)
    follows = np.concatenate([kept.obs[1:], np.asarray(last)[None]])
    close("the observation after a step that ends nothing", follows[~ended], leads_to[~ended])


def so_far(each: np.ndarray, ended: np.ndarray) -> np.ndarray:
    """Sums over the episode up to each step, this one included; all `[T, N]`."""
    total, totals = np.zeros(each.shape[1]), []
    for x, end in zip(each, ended, strict=True):
        totals.append(total + x)
        total = np.where(end, 0.0, totals[-1])
    return np.stack(totals)
