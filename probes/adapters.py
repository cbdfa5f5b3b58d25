"""Agents in another shape than rlref's contract, made to keep it: `make_train(config)` -> `train(key)` -> a dictionary.

    from my_ppo import CONFIG, Network, make_train
    from probes.adapters import closure

    Config, make, Agent, train = closure(make_train, CONFIG, policy=..., value=...)

in a file of its own, and `rlref probe` takes that file. probes/other_shapes.md has complete examples.
"""

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import flax
import gymnax
import jax
import jax.numpy as jnp

from probes.check import SETTINGS
from rlref.errors import UsageError, errors_with_line, in_a_line, nearest

PUREJAXRL = {
    "LR": "learning_rate",
    "NUM_ENVS": "num_envs",
    "NUM_STEPS": "num_steps",
    "TOTAL_TIMESTEPS": "total_timesteps",
    "UPDATE_EPOCHS": "update_epochs",
    "NUM_MINIBATCHES": "num_minibatches",
    "GAMMA": "gamma",
    "GAE_LAMBDA": "gae_lambda",
    "CLIP_EPS": "clip_coef",
    "ENT_COEF": "ent_coef",
    "VF_COEF": "vf_coef",
    "MAX_GRAD_NORM": "max_grad_norm",
    "ACTIVATION": "activation",
    "ANNEAL_LR": "anneal_lr",
    "LR_LINEAR_DECAY": "anneal_lr",
    "BUFFER_SIZE": "buffer_size",
    "BUFFER_BATCH_SIZE": "batch_size",
    "EPSILON_START": "start_e",
    "EPSILON_FINISH": "end_e",
    "TARGET_UPDATE_INTERVAL": "target_network_frequency",
    "LEARNING_STARTS": "learning_starts",
    "TAU": "tau",
}
"""PureJaxRL's names of settings -> rlref's"""


@flax.struct.dataclass
class State:
    """A closure's training: not begun, or over."""

    params: Any
    key: jax.Array


class Agent(NamedTuple):
    """A closure as rlref's contract has it: its one update is the whole training."""

    init: Callable[[jax.Array], State]
    update: Callable[[State, Any], tuple[State, dict[str, jax.Array]]]
    policy: Callable[[State, jax.Array], Any]
    value: Callable[[State, jax.Array], jax.Array] | None
    num_updates: int
    steps_per_update: int


def trained_params(out: Any) -> Any:
    """The parameters that PureJaxRL's `train` ends at: those of the train state, the first of its runner state."""
    return out["runner_state"][0].params


def closure(
    make_train: Callable[[dict[str, Any]], Callable[[jax.Array], Any]],
    config: Mapping[str, Any],
    *,
    policy: Callable[[Any, Any, jax.Array], Any],
    value: Callable[[Any, Any, jax.Array], Any] | None,
    network: Callable[[dict[str, Any], Any, Any], Any] = lambda config, env, env_params: None,
    names: Mapping[str, str] = PUREJAXRL,
    params: Callable[[Any], Any] = trained_params,
    init: Callable[[Any, jax.Array, jax.Array], Any] | None = None,
    static: Sequence[str] = (),
    old_gymnax: bool = False,
) -> tuple[Any, Callable[..., Agent], Any, Callable[..., Any]]:
    """`Config, make, Agent, train` of a closure, as rlref's contract (rlref/contract.py) has them.

    Its environment is handed over as `config["ENV"]` and `config["ENV_PARAMS"]`, and as what `gymnax.make` gives while
    `make_train` and `train` run, whatever name that is asked for.

    Args:
      make_train: config -> train; train: key -> anything. It must be traceable, for it is vmapped over seeds.
      config: its settings with their defaults; each call of `make_train` gets a copy.
      policy: (network, params, ONE raw observation) -> probabilities `[A]`; for a Box the mean `[D]` and the std `[D]`.
      value: (network, params, ONE raw observation) -> V, or Q `[A]`; None for an agent without values.
      network: (config, env, env_params) -> what `policy` and `value` get, such as a flax module.
      names: its settings -> rlref's, as in the Config of rlref/ppo.py or rlref/dqn.py; those not in `config` are
        ignored. What has no name keeps the value that it has in `config`.
      params: what `train` gives -> the trained parameters.
      init: (network, key, ONE raw observation) -> fresh parameters; without, untrained ones are zeros.
      static: those of its settings, floats, that it branches on in Python: they are not traced, and probes with
        different ones train in programs of their own.
      old_gymnax: whether it was written for gymnax < 1, whose `step` gives five values. Such an agent cannot know a
        time limit from an end, and fails the rungs that ask for it, rightly.

    Raises UsageError where none of the names is one of `config`, two are given to one setting, or a `static` is none.
    """
    config, source = dict(config), inspect.getsourcefile(inspect.unwrap(make_train)) or ""
    ours = {theirs: name for theirs, name in names.items() if theirs in config}
    if not ours:
        raise UsageError(f"config has none of the settings {', '.join(names)}; say in `names` what its own are called")
    if twice := [name for name in ours.values() if list(ours.values()).count(name) > 1]:
        both = " and ".join(theirs for theirs, name in ours.items() if name == twice[0])
        raise UsageError(f"`names` calls both {both} {twice[0]}")
    for name in static:
        if name not in config:
            raise UsageError(f"`static` has {name!r}, which is no setting of config.{nearest(name, config)}")

    def settings_for(own: Any, env: Any, env_params: Any) -> dict[str, Any]:
        found = {**config, **{theirs: getattr(own, name) for theirs, name in ours.items()}}
        return found if env is None else {**found, "ENV": env, "ENV_PARAMS": env_params}

    def make(own: Any, env: Any = None, env_params: Any = None) -> Agent:
        """The agent for an environment of gymnax >= 1.0, or for the one that its settings name."""
        given = None
        if env is not None:
            env_params = env.default_params if env_params is None else env_params
            env = FiveValues(env) if old_gymnax else env
            given = env, env_params
        elif "ENV" in config:
            env, env_params = config["ENV"], config.get("ENV_PARAMS", config["ENV"].default_params)
        elif "ENV_NAME" in config:
            env, env_params = gymnax.make(config["ENV_NAME"])
        settings = settings_for(own, env if given else None, env_params)

        def run(key: jax.Array) -> Any:
            with _handed_over(given, make_train), errors_with_line(Path(source).name, source, named=False):
                return params(make_train(dict(settings))(key))

        try:
            net = network(dict(settings), env, env_params)
            if given and _is_unusual(env, env_params):
                jax.eval_shape(run, jax.random.key(0))
        except Exception as error:
            if not given or not _is_unusual(env, env_params):
                raise
            said = str(error) if isinstance(error, UsageError) else in_a_line(error)
            raise ValueError(f"it does not take the spaces: {said}") from error

        def fresh(key: jax.Array) -> State:
            key, key_net, key_reset = jax.random.split(key, 3)
            if init is not None and env is not None:
                return State(init(net, key_net, env.reset(key_reset, env_params)[0]), key)
            return State(jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(run, key)), key)

        def update(state: State, step: Any) -> tuple[State, dict[str, jax.Array]]:
            key, key_run = jax.random.split(state.key)
            return State(run(key_run), key), {"env_steps": (step + 1.0) * jnp.float32(steps)}

        steps = int(settings.get("TOTAL_TIMESTEPS", getattr(own, "total_timesteps", 1)))
        of_value = None if value is None else lambda state, obs: value(net, state.params, obs)
        return Agent(fresh, update, lambda state, obs: policy(net, state.params, obs), of_value, 1, steps)

    def train(own: Any, key: jax.Array, env: Any = None, env_params: Any = None) -> Any:
        """Train one seed; returns its state, and diagnostics `[1]`."""
        agent = make(own, env, env_params)
        return jax.lax.scan(agent.update, agent.init(key), jnp.arange(1))

    return _config_class({name: _setting(name, config[theirs]) for theirs, name in ours.items()},
                         {ours.get(theirs, theirs) for theirs in static}), make, Agent, train  # fmt: skip


def _is_unusual(env: Any, env_params: Any) -> bool:
    """Whether an environment has images, or actions that are no numbers of a choice: not every agent takes them."""
    return len(env.observation_space(env_params).shape) > 1 or not hasattr(env.action_space(env_params), "n")


def _setting(name: str, default: Any) -> Any:
    """A setting's default: a whole number where rlref's is one (5e5 steps); -1 or 0 for on and off are left alone."""
    counts = {n for each in SETTINGS.values() for n, x in each.items() if type(x) is int} | {"total_timesteps"}
    return int(default) if name in counts and isinstance(default, float) and default.is_integer() else default


def _config_class(defaults: dict[str, Any], static: set[str]) -> Any:
    """A frozen flax dataclass: floats are leaves, anything else, and what is `static`, shapes the program."""
    fields = {
        name: flax.struct.field(pytree_node=isinstance(x, float) and name not in static, default=x)
        for name, x in defaults.items()
    }
    annotations = {name: type(x) for name, x in defaults.items()}
    return flax.struct.dataclass(type("Config", (), {"__annotations__": annotations, "__module__": __name__, **fields}))


class FiveValues:
    """An environment of gymnax >= 1.0 with the `step` of older ones: obs, state, reward, done, info."""

    def __init__(self, env: Any):
        self._env = env

    def __getattr__(self, name: str) -> Any:
        if name == "_env":  # while it is copied, before it has one
            raise AttributeError(name)
        return getattr(self._env, name)

    def step(self, key: jax.Array, state: Any, action: Any, params: Any = None) -> tuple[Any, Any, Any, Any, Any]:
        obs, state, reward, terminated, truncated, info = self._env.step(key, state, action, params)
        done = terminated | truncated
        return obs, state, reward, done, {**info, "discount": jnp.where(done, 0.0, 1.0)}


@contextlib.contextmanager
def _handed_over(given: Any, make_train: Any) -> Iterator[None]:
    """While it lasts, `gymnax.make` gives the environment, also where `make_train`'s file imported it by name."""
    if given is None:
        yield
        return
    real = gymnax.make
    scopes = [vars(gymnax), getattr(make_train, "__globals__", {})]
    places = [(scope, name) for scope in scopes for name, x in list(scope.items()) if x is real]
    for scope, name in places:
        scope[name] = lambda *_, **__: given
    try:
        yield
    finally:
        for scope, name in places:
            scope[name] = real
