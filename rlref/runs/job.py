"""A job: an agent, its settings, an environment and seeds; and getting it back from a run's folder."""

import dataclasses
import functools
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rlref.contract import load_agent, name_of
from rlref.envs import episodes
from rlref.envs.ids import resolved, type_of
from rlref.envs.params import with_values
from rlref.errors import UsageError, errors_with_line
from rlref.runs.folder import read_about
from rlref.runs.footprint import TracedRow, trace_row
from rlref.runs.leaves import policy_leaves
from rlref.runs.sources import HASHES, code_of, hashes_of
from rlref.settings import LENGTHS, batched_settings, config_of, in_json, settings_of


@dataclasses.dataclass(frozen=True)
class Job:
    """What is trained: all that decides the numbers, and nothing of where or how fast it runs.

    It is trained as rows, one per setting and seed: setting 0 with every seed, setting 1 with every seed, ...
    """

    module: ModuleType
    config: Any
    env: Any
    env_params: Any
    seeds: list[int]
    eval_every: int
    eval_episodes: int
    own_env: bool
    """whether `env` is the caller's object, and not what `config.env_id` names"""

    @functools.cached_property
    def agent(self) -> Any:
        """The agent. Raises UsageError for settings or spaces that cannot train."""
        return agent_of(self.module, self.config, self.env, self.env_params)

    def make(self, config: Any) -> Any:
        """The agent of one setting."""
        return self.module.make(config, self.env, self.env_params)

    @functools.cached_property
    def policy_leaves(self) -> list[str]:
        """The names of those leaves of a state that acting takes. Raises UsageError where that cannot be traced."""
        with errors_with_line(self.name, self.source, named=False):
            return policy_leaves(self.make(self.config_of(0)), self.env, self.env_params)

    @functools.cached_property
    def row(self) -> TracedRow:
        """One row as it is traced, and what it takes. Raises UsageError for an update that cannot be trained with."""
        return trace_row(self.make, self.config_of(0), self.name, self.source)

    @property
    def name(self) -> str:
        return name_of(self.module)

    @functools.cached_property
    def batched(self) -> list[str]:
        """The names of the settings that hold a value per setting."""
        return list(batched_settings(self.config))

    @property
    def num_settings(self) -> int | None:
        """How many settings there are; None if none is batched."""
        return len(getattr(self.config, self.batched[0])) if self.batched else None

    @property
    def num_rows(self) -> int:
        return len(self.seeds) * (self.num_settings or 1)

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows as settings and seeds; seeds alone, if no setting is batched."""
        return (len(self.seeds),) if self.num_settings is None else (self.num_settings, len(self.seeds))

    @property
    def row_seeds(self) -> np.ndarray:
        return np.tile(self.seeds, self.num_settings or 1)

    @property
    def labels(self) -> list[str]:
        """What each row is called."""
        seeds, settings = [f"seed-{seed}" for seed in self.seeds], range(self.num_settings or 0)
        return [f"setting-{i}-{seed}" for i in settings for seed in seeds] or seeds

    @functools.cached_property
    def row_config(self) -> Any:
        """A Config whose leaves hold a value per row; None if no setting is batched."""
        if self.num_settings is None:
            return None
        settings, seeds = self.num_settings, len(self.seeds)
        return jax.tree.map(lambda x: np.repeat(np.broadcast_to(np.float32(x), settings), seeds), self.config)

    def config_of(self, row: int) -> Any:
        """The Config of one row."""
        return self.config if self.row_config is None else jax.tree.map(lambda x: x[row], self.row_config)

    @property
    def settings(self) -> dict[str, Any]:
        """The Config as plain numbers, strings and lists."""
        return settings_of(self.config)

    @property
    def source(self) -> Path | None:
        """The agent's file."""
        return Path(self.module.__file__) if self.module.__file__ else None

    @functools.cached_property
    def code(self) -> dict[str, bytes]:
        """As `code_of` gives it, when the job began: files may be edited while the training runs."""
        return code_of(self.module)

    @functools.cached_property
    def about(self) -> dict[str, Any]:
        """The job as JSON: what two runs must share for one to go on from the other's checkpoint."""
        return {
            "agent": self.name,
            **hashes_of(self.code),
            "config": in_json(self.settings),
            "batched": self.batched,
            "seeds": self.seeds,
            "env": type_of(self.env) if self.own_env else None,
            "env_params": repr(self.env_params),
            "eval_every": self.eval_every,
            "eval_episodes": self.eval_episodes,
        }


def agent_of(module: ModuleType, config: Any, env: Any, env_params: Any) -> Any:
    """The agent of a Config. Raises UsageError for settings or spaces that cannot train."""
    if hasattr(config, "num_generations") and getattr(env, "pooled", False):
        raise UsageError(f"{name_of(module)} begins all its episodes anew, where a pool of start states only costs")
    try:
        agent = module.make(config, env, env_params)
    except ValueError as error:
        raise UsageError(str(error)) from error
    if len(getattr(env.observation_space(env_params), "shape", ())) == 3:
        # Whether convolutions leave anything of an image is found where the network is made.
        name, file = name_of(module), module.__file__
        with errors_with_line(name, Path(file) if file else None, named=False):
            jax.eval_shape(agent.init, jax.random.key(0))
    check_storage(config, env, env_params)
    return agent


def check_storage(config: Any, env: Any, env_params: Any) -> None:
    """Raise UsageError if `config.buffer_dtype` cannot hold what the environment shows random actions, or ever may.

    What it shows later an agent tells of itself, as the metric `unstorable_fraction`.
    """
    dtype, space = getattr(config, "buffer_dtype", "same"), env.observation_space(env_params)
    if dtype not in ("uint8", "bool"):
        return
    if hasattr(space, "n") and space.n > {"uint8": 256, "bool": 2}[dtype]:
        raise UsageError(f"buffer_dtype is {dtype!r}, and {config.env_id} has {space.n} observations")
    obs = some_observations(env, env_params, 64)
    stored = obs != 0 if dtype == "bool" else obs.astype(jnp.uint8)
    error = np.abs(np.asarray(obs, np.float64) - np.asarray(stored, np.float64)).max()
    if not error == 0:
        raise UsageError(
            f"buffer_dtype is {dtype!r}, which changes observations of {config.env_id} by up to "
            f"{error:.3g}; it must be 'same', or 'uint8' for whole numbers to 255, or 'bool' for 0 and 1"
        )


@functools.partial(jax.jit, static_argnums=(0, 2))
def some_observations(env: Any, env_params: Any, steps: int) -> jax.Array:
    """What random actions meet in 16 environments, and the final observations, all in one row `[...]`."""
    act = episodes.random_act(env, env_params)

    def step(episode: episodes.Episode, _: Any) -> Any:  # on and on, past resets
        after, info = episodes.step(env, env_params, act, episode)
        return after, jnp.stack([after.obs, info["final_observation"]])

    def one(key: jax.Array) -> jax.Array:
        return jax.lax.scan(step, episodes.begin(env, env_params, key), length=steps)[1]

    obs = jax.vmap(one)(jax.random.split(jax.random.key(0), 16))
    return obs.reshape(-1, *obs.shape[3:])


def job_of_folder(path: Path, agent: Any = None, env: Any = None, env_params: Any = None) -> Job:
    """The job of a run, from its folder; with `agent`, `env` and `env_params` where it needs them from the caller.

    Raises UsageError where something is missing, or is not what was run.
    """
    about = read_about(path, strict=True)
    files = sorted((path / "source").glob("*.py"))
    if len(files) > 1:  # modules beside it
        files = [file for file in files if file.stem == about["agent"]]
    if agent is None and len(files) != 1:
        raise UsageError(f"{path / 'source'} does not hold the agent's file; it takes that to rebuild the run")
    module = load_agent(files[0] if agent is None else agent)
    if not is_same_agent(module, about):
        beside = ", ".join(about.get("modules_sha256", ()))
        file = f"{module.__file__} (or what it imports: {beside})" if beside else module.__file__
        raise UsageError(f"{file} is not what {path} was trained with: another agent, or changed since")
    return rebuilt_job(path, module, about, env, env_params)


def is_same_agent(module: ModuleType, about: dict[str, Any]) -> bool:
    """Whether a module's file, and those that it imports beside it, are those that `about` tells of."""
    return hashes_of(code_of(module)) == {name: about[name] for name in HASHES if name in about}


def rebuilt_job(path: Path, module: ModuleType, about: dict[str, Any], env: Any, env_params: Any) -> Job:
    """The job that `about` tells of, which stands in `path`."""
    try:
        config = config_of(module, about["config"], about["batched"])
    except TypeError as error:
        raise UsageError(f"{path}: its settings do not fit its agent: {error}") from error
    if env is None and about["env"] is not None:
        raise UsageError(
            f"{path} was trained on an environment given from Python, {about['env']}: give it again, from Python, as "
            "in rlref.resume(path, env=my_env)"
        )
    own_env = env is not None
    env, default_params = resolved(config.env_id, env)
    env_params = with_values(default_params, about["env_params_values"]) if env_params is None else env_params
    if repr(env_params) != about["env_params"]:
        raise UsageError(
            f"{path} was trained with the environment parameters {about['env_params']}, not {env_params!r}; from "
            "Python they can be given as env_params"
        )
    evaluated = about.get("eval_every", 0), about.get("eval_episodes", 1)
    return Job(module, config, env, env_params, about["seeds"], *evaluated, own_env)


def lengthened(job: Job, total_timesteps: int) -> Job:
    """`job` with another number of environment steps of one seed. Raises UsageError if it has more already."""
    config = job.config
    if "num_generations" in job.settings and "total_timesteps" not in job.settings:
        longer = generations_within(total_timesteps, job.module, config, job.env, job.env_params)
    else:
        longer = dataclasses.replace(config, total_timesteps=total_timesteps)
    longer_job = dataclasses.replace(job, config=longer)
    if longer_job.agent.num_updates < job.agent.num_updates:
        raise UsageError(
            f"total_timesteps {total_timesteps} gives {longer_job.agent.num_updates} updates, fewer than the "
            f"{job.agent.num_updates} of this run; it can only be extended"
        )
    return longer_job


def generations_within(budget: int, module: ModuleType, config: Any, env: Any, env_params: Any) -> Any:
    """`config` with as many generations as the environment steps `budget` allow. Raises UsageError if that is none."""
    most = agent_of(module, dataclasses.replace(config, num_generations=1), env, env_params).steps_per_update
    if budget < most:
        raise UsageError(f"--total-timesteps is {budget}; one generation takes up to {most} environment steps")
    return dataclasses.replace(config, num_generations=budget // most)


def check_same(job: Job, about: dict[str, Any], path: Path) -> Job:
    """The job of a checkpoint of `about`: `job`, or a shorter one. Raises UsageError if anything else is different."""
    now = json.loads(json.dumps(job.about))
    flat = [
        {**x, **{f"config.{name}": y for name, y in x["config"].items()}, **x.get("modules_sha256", {})}
        | {"config": None, "modules_sha256": None}
        for x in (about, now)
    ]
    names = sorted(flat[0].keys() | flat[1].keys())
    differ = {name: (flat[0].get(name), flat[1].get(name)) for name in names if flat[0].get(name) != flat[1].get(name)}
    for name in LENGTHS:
        if list(differ) == [f"config.{name}"] and about["config"][name] < now["config"][name]:
            return dataclasses.replace(job, config=dataclasses.replace(job.config, **{name: about["config"][name]}))
    if differ:
        listed = [f"{name.removeprefix('config.')} was {then} and is {x}" for name, (then, x) in differ.items()]
        raise UsageError(f"{path} cannot go on with settings other than those of its checkpoints: {', '.join(listed)}")
    return job
