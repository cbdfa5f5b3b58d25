"""Trained seeds: acting with them, playing episodes, writing one to a file of its own, drawing it."""

import contextlib
import functools
import importlib.util
import json
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rlref.contract import AGENTS, load_agent, remembers
from rlref.envs import episodes as episode_loop
from rlref.envs.ids import name_of
from rlref.envs.interface import check_host
from rlref.envs.params import plain_values
from rlref.errors import UsageError, in_a_line
from rlref.runs import checkpoint, playing
from rlref.runs.folder import read_about
from rlref.runs.job import Job, check_same, is_same_agent, job_of_folder, rebuilt_job
from rlref.runs.leaves import named_leaves, with_leaves
from rlref.runs.sources import HASHES

FRAME_MILLISECONDS = 50
DRAWN_BY_PYGAME = ("Acrobot-v1", "CartPole-v1", "Pendulum-v1", "MountainCar-v0", "MountainCarContinuous-v0")
DRAWABLE = (  # what gymnax's Visualizer knows
    *DRAWN_BY_PYGAME,
    "Catch-bsuite",
    "Asterix-MinAtar",
    "Breakout-MinAtar",
    "Freeway-MinAtar",
    "SpaceInvaders-MinAtar",
    "Pong-misc",
    "PointRobot-misc",
    "MetaMaze-misc",
    "FourRooms-misc",
)


class Trained:
    """The rows of a job, and of each what its policy and value read: `leaves` are `[rows, ...]`, by name."""

    def __init__(self, job: Job, leaves: dict[str, np.ndarray]):
        self.job, self.leaves = job, leaves
        self.env = episode_loop.without_pool(job.env)  # whose states those of single episodes are
        self._act = jax.jit(self._choose)

    def row(self, seed: int, setting: int = 0) -> int:
        """The row of a seed. Raises UsageError if there is none, or none yet."""
        seeds, num_settings = self.job.seeds, self.job.num_settings or 1
        if seed not in seeds:
            raise UsageError(f"the run has no seed {seed}; it has {seeds[0]} to {seeds[-1]}")
        if not 0 <= setting < num_settings:
            raise UsageError(f"the run has no setting {setting}; it has 0 to {num_settings - 1}")
        row = setting * len(seeds) + seeds.index(seed)
        if row >= len(next(iter(self.leaves.values()))):
            raise UsageError("the run was interrupted before this seed began")
        return row

    def of_row(self, row: int) -> dict[str, np.ndarray]:
        """One row's leaves."""
        return {name: x[row] for name, x in self.leaves.items()}

    def state(self, config: Any, leaves: dict[str, Any]) -> Any:
        """A state with these leaves; the others, which acting does not read, are a fresh one's."""
        return with_leaves(self.job.make(config).init(jax.random.key(0)), leaves)

    def _choose(self, config: Any, leaves: dict[str, Any], key: jax.Array | None, *seen: Any) -> tuple[jax.Array, Any]:
        """The action, and of an agent with a memory what it remembers then."""
        agent, state = self.job.make(config), self.state(config, leaves)
        policy = agent.policy(state, *seen)
        policy, memory = policy if remembers(agent) else (policy, ())
        return playing.choose(policy, self.job.env.action_space(self.job.env_params), key), memory

    def policy(self, row: int) -> Callable[..., Any]:
        """(observation, key=None) -> action.

        Of an agent with a memory: (observation, memory=None, last_action=None, last_reward=None, key=None) -> action,
        memory; without a memory it is an episode's first step. Of one observation: `jax.vmap` it for more. Raises
        UsageError if one has another shape, or a memory comes without what was done and paid last.
        """
        job, config, leaves = self.job, self.job.config_of(row), self.of_row(row)
        shape, space = job.env.observation_space(job.env_params).shape, job.env.action_space(job.env_params)

        def checked(what: str, x: Any, shape: tuple[int, ...]) -> jax.Array:
            if np.shape(x) != shape:
                raise UsageError(
                    f"the {what} has the shape {np.shape(x)}; of one step it is {shape}: jax.vmap for more"
                )
            return jnp.asarray(x)

        def act(obs: Any, key: jax.Array | None = None) -> jax.Array:
            return self._act(config, leaves, key, checked("observation", obs, shape))[0]

        def remembering(
            obs: Any, memory: Any = None, last_action: Any = None, last_reward: Any = None, key: jax.Array | None = None
        ) -> tuple[jax.Array, Any]:
            first, start = memory is None, playing.memory_of(job.agent)
            if first:
                memory, last_action, last_reward = start, jnp.zeros(space.shape), 0.0
            elif last_action is None or last_reward is None:
                raise UsageError("with a memory come the action and the reward of the step before: (obs, memory, a, r)")
            memory = jax.tree.map(lambda x, to: checked("memory", x, to.shape), memory, start)
            action = checked("last action", last_action, space.shape).astype(space.dtype)
            seen = memory, checked("observation", obs, shape), action, jnp.float32(last_reward), jnp.bool(first)
            return self._act(config, leaves, key, *seen)

        return remembering if remembers(job.agent) else act

    def play(self, row: int, episodes: int, seed: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Returns and lengths `[episodes]` of whole episodes on the key of `seed`: greedy, and sampled where it can."""
        job = self.job

        def run(config: Any, leaves: dict[str, Any], key: jax.Array) -> Any:
            agent = job.make(config)
            return playing.play(agent, self.state(config, leaves), key, job.env, job.env_params, episodes)

        played = jax.device_get(jax.jit(run)(job.config_of(row), self.of_row(row), jax.random.key(seed)))
        check_host(job.env)
        return played

    def draw(self, row: int, seed: int, path: Path) -> None:
        """Draw the first episode that `play` plays greedily on `seed`, as an animated GIF.

        Raises UsageError where nothing draws the environment, or the file cannot be written.
        """
        name, render = name_of(self.job.env), getattr(self.env, "render", None)
        if name in DRAWABLE:
            draw: Callable[..., None] = self._draw_by_gymnax
        elif render is not None:
            draw = functools.partial(self._draw_by_itself, render)
        else:
            how = "a method render(state) of its own, which gives [height, width, 3] uint8, would do so"
            raise UsageError(f"nothing draws {name}: {how}; gymnax draws {', '.join(DRAWABLE)}")
        if path.exists():
            raise UsageError(f"{path} exists already and is never overwritten; give another --gif")
        try:
            draw(name, row, seed, path)
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror}") from error

    def page(self, row: int, seed: int, path: Path) -> None:
        """Write that episode as a page of HTML. Raises UsageError where the environment makes none, or as `draw`."""
        name, html = self.job.config.env_id, getattr(self.env, "html", None)
        if html is None:
            raise UsageError(f"{name} makes no HTML; brax's environments do")
        try:
            with path.open("x") as file:
                file.write(html([x.state for x in self._episode(row, seed) if not x.over]))
        except FileExistsError:
            raise UsageError(f"{path} exists already and is never overwritten; give another --html") from None
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror}") from error

    def _draw_by_gymnax(self, name: str, row: int, seed: int, path: Path) -> None:
        import matplotlib as mpl

        mpl.use("Agg")
        for what in ("AUDIO", "VIDEO"):  # pygame looks for a sound card and a screen, and complains of each frame
            os.environ.setdefault(f"SDL_{what}DRIVER", "dummy")
        from gymnax.visualize import Visualizer

        if name in DRAWN_BY_PYGAME and importlib.util.find_spec("pygame") is None:
            raise UsageError(f"drawing {name} takes pygame: pip install pygame, or rlref with its extra 'gif'")
        episodes = jax.device_get([*self._episode(row, seed)])
        states, returns = [x.state for x in episodes[:-1]], np.array([x.total for x in episodes[1:]])
        env = self.env
        while hasattr(env, "within"):  # of partial.Around
            env, states = env.inner, [env.within(x) for x in states]
        Visualizer(env, self.job.env_params, states, returns).animate(str(path))

    def _draw_by_itself(self, render: Callable[[Any], Any], name: str, row: int, seed: int, path: Path) -> None:
        from PIL import Image

        try:
            pictures = [Image.fromarray(np.asarray(render(x.state))) for x in self._episode(row, seed) if not x.over]
        except UsageError:
            raise
        except Exception as error:  # the environment's own code, or what it draws with
            raise UsageError(f"{name} cannot be drawn here: {in_a_line(error)}") from error
        pictures[0].save(path, save_all=True, append_images=pictures[1:], duration=FRAME_MILLISECONDS, loop=0)

    def _episode(self, row: int, seed: int) -> Iterator[episode_loop.Episode]:
        """A greedy episode before each of its steps, and after the last.

        Each is given before the step is made: an environment on the host is still there to be drawn.
        """
        env, env_params, config, leaves = self.job.env, self.job.env_params, self.job.config_of(row), self.of_row(row)
        agent, space = self.job.make(config), env.action_space(env_params)

        def one_step(episode: episode_loop.Episode) -> episode_loop.Episode:
            act = playing.acting(agent, self.state(config, leaves), space)
            return episode_loop.step(env, env_params, act, episode)[0]

        step = jax.jit(one_step)
        key = jax.random.split(jax.random.key(seed))[0]
        episode = episode_loop.begin(env, env_params, key, playing.memory_of(agent))
        limit = playing.episode_limit(env_params)
        while not episode.over and episode.steps < limit:
            yield episode
            episode = jax.block_until_ready(step(episode))
            check_host(env)
        yield episode

    def export(self, row: int, path: Path) -> None:
        """Write a row's Config and leaves as a NumPy file, which the `load` of the agent's file reads.

        Its entries: `config` and `about`, JSON; an array per leaf, named as in 'state/params/params/actor_0/kernel'.
        Raises UsageError if it exists already or cannot be written.
        """
        about = self.job.about
        setting, seed = divmod(row, len(self.job.seeds))
        settings = {name: x[setting] if name in self.job.batched else x for name, x in self.job.settings.items()}
        entries = {f"state/{name}": x for name, x in self.of_row(row).items()}
        words = {name: about[name] for name in ("agent", *HASHES, "env", "env_params") if name in about}
        words |= {"seed": self.job.seeds[seed], "env_params_values": plain_values(self.job.env_params)}
        try:
            with path.open("xb") as file:
                np.savez(file, config=json.dumps(settings), about=json.dumps(words), **entries)  # type: ignore[arg-type]
        except FileExistsError:
            raise UsageError(f"{path} exists already and is never overwritten; give another --out") from None
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror}") from error


def of_folder(path: Path, agent: Any = None, env: Any = None, env_params: Any = None) -> Trained:
    """The seeds of a run as of its newest checkpoint; `agent`, `env` and `env_params` as in `job.job_of_folder`.

    Raises UsageError if the run has no checkpoint that can be trusted, or cannot be rebuilt from its folder.
    """
    job = job_of_folder(path, agent, env, env_params)
    rows_per_group = read_about(path, strict=True)["rows_per_group"]
    groups = []
    for first in range(0, job.num_rows, rows_per_group):
        loaded = _newest(job, path, first)
        if loaded is None:
            break
        groups.append(loaded)
    if not groups:
        raise UsageError(f"{path} holds no checkpoint to take the parameters from")
    return Trained(job, {name: np.concatenate([group[name] for group in groups]) for name in groups[0]})


def of_file(path: Path, agent: Any = None, env: Any = None, env_params: Any = None) -> Trained:
    """The seed of a file that `Trained.export` wrote.

    Args:
      path: the file.
      agent: the agent's name or file, where it is not one of rlref's.
      env, env_params: where they were given from Python.

    Raises UsageError if it is no such file, or does not fit the agent or the environment.
    """
    try:
        with path.open("rb") as opened, np.load(opened) as file:
            arrays = dict(file)
        config, about = json.loads(str(arrays.pop("config"))), json.loads(str(arrays.pop("about")))
    except Exception as error:  # whatever file it may be
        raise UsageError(f"{path} is not what `rlref export` writes ({in_a_line(error)})") from error
    if agent is None and about["agent"] not in AGENTS:
        raise UsageError(f"{path} is of the agent {about['agent']}: give its file, as --agent ./{about['agent']}.py")
    module = load_agent(about["agent"] if agent is None else agent)
    if agent is None and not is_same_agent(module, about):
        name = f"{about['agent']}.py"
        raise UsageError(f"{path} was trained with another {name} than rlref's: give it, as --agent ./{name}")
    job = rebuilt_job(
        path, module, about | {"config": config, "batched": [], "seeds": [about["seed"]]}, env, env_params
    )
    leaves = {name.removeprefix("state/"): x for name, x in arrays.items()}
    state = named_leaves(jax.eval_shape(job.agent.init, jax.random.key(0)))
    for name in job.policy_leaves:
        found = f"{leaves[name].dtype} {list(leaves[name].shape)}" if name in leaves else "not there"
        wanted = f"{state[name].dtype} {list(state[name].shape)}"
        if found != wanted:
            raise UsageError(f"{path}: {name} is {found}; this agent takes {wanted}")
    return Trained(job, {name: x[None] for name, x in leaves.items()})


def _newest(job: Job, path: Path, first_row: int) -> dict[str, np.ndarray] | None:
    """What acting takes of a group's rows, from its newest checkpoint that can be trusted; None without one."""
    if not (path / "checkpoints" / f"row{first_row:06d}").is_dir():
        return None
    with contextlib.closing(checkpoint.Checkpoints(path, first_row, writes=False)) as checkpoints:
        for update in checkpoints.updates():
            try:
                record = checkpoints.record(update)
                check_same(job, record.about, path)
                return checkpoints.load(record, job.policy_leaves)
            except checkpoint.DamagedError as error:
                warnings.warn(
                    f"the checkpoint of {path} after update {update} is not used: {error}; resuming repairs the run",
                    stacklevel=2,
                )
    return None
