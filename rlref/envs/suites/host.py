"""Environments that live on the host, in Python: one call per step for all environments and seeds of a device.

What an episode is, is its reset's seed and its actions so far; a `token` is a hash of these. An environment's state
within jax holds this token, and here an environment that has come that far waits under it. So a step of a state finds
the environment that it belongs to, however often, from whichever thread and in which order jax calls. Where none waits,
after a resume or where one state is stepped twice, the environment is brought there from what the state keeps, if it is
one that can be (MuJoCo); else the episode is given up: truncated, with another begun in its place.
"""

import collections
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from rlref.envs.suites.words import Words
from rlref.errors import in_a_line

PAIRS = ("token", "next_token", "seed", "next_seed")
SPARE = 4  # times the largest batch of each device: so many environments are kept at most


class Played(Protocol):
    """One environment on the host."""

    def reset(self, seed: int) -> np.ndarray:
        """Begin the episode of a seed; its first observation."""

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, float]]:
        """Observation, reward, terminated, truncated, and the metrics."""

    def picture(self) -> np.ndarray:
        """`[height, width, 3]` uint8."""

    def save(self) -> np.ndarray | None:
        """All that a step depends on, as words `[n]`; None where that cannot be had."""

    def restore(self, saved: np.ndarray) -> None:
        """Bring it to what `save` gave."""


class Host:
    """The environments of one `make`, and what jax calls: `reset` and `step`, rows of words in, rows of words out."""

    def __init__(
        self,
        name: str,
        make: Callable[[], Played],
        asked: Words,
        given: Words,
        metrics: tuple[str, ...],
        devices: int = 1,
    ):
        self.name, self.make, self.asked, self.given, self.metrics = name, make, asked, given, metrics
        self.devices = devices
        """that call at a time, each for its own environments"""
        self.waiting: collections.OrderedDict[int, list[Played]] = collections.OrderedDict()
        self.spare: list[Played] = []
        self.number, self.largest = 0, 0
        self.lock = threading.Lock()
        self.failure: str | None = None
        """what went wrong in an environment's own code, in a line"""
        self.given_up = 0
        """episodes that could not go on where they were"""

    def reset(self, rows: np.ndarray) -> np.ndarray:
        """Rows with seeds -> rows with observations."""
        return self._called(rows, self._reset_one)

    def step(self, rows: np.ndarray) -> np.ndarray:
        """Rows as `asked` has them -> rows as `given` has them."""
        return self._called(rows, self._step_one)

    def there(self, token: np.ndarray) -> Played:
        """The environment that has come so far. Raises LookupError if none has."""
        with self.lock:
            return self.waiting[numbers(token[None])[0]][-1]

    def _called(self, rows: np.ndarray, one: Callable[..., None]) -> np.ndarray:
        rows = np.ascontiguousarray(rows)
        flat = rows.reshape(-1, self.asked.size)
        out = np.zeros((len(flat), self.given.size), np.uint32)
        given = self.given.views(out)
        if self.failure is None:
            asked: dict[str, Any] = self.asked.views(flat)
            asked |= {name: numbers(asked[name]) for name in PAIRS}
            self.largest = max(self.largest, len(flat))
            try:
                for i in range(len(flat)):
                    one(i, asked, given)
            except Exception as error:  # the environment's own code: anything can come; jax would log all of it
                self.failure = f"{self.name}: {with_place(error)}"
        if self.failure is not None:  # nobody who does not ask should take what comes for returns
            given["reward"][:] = np.nan
        return out.reshape(*rows.shape[:-1], self.given.size)

    def _reset_one(self, i: int, asked: dict[str, Any], given: dict[str, np.ndarray]) -> None:
        env = self._any()
        given["obs"][i] = env.reset(seed_of(asked["next_seed"][i]))
        self._put(asked["next_seed"][i], env)

    def _step_one(self, i: int, asked: dict[str, Any], given: dict[str, np.ndarray]) -> None:
        env = self._at(asked["token"][i]) or self._brought(i, asked)
        terminated, truncated = False, env is None
        if env is None:
            env, obs = self._any(), asked["obs"][i]
            self.given_up += 1
        else:
            if (saved := env.save()) is not None:
                given["saved"][i] = saved
            obs, given["reward"][i], terminated, truncated, info = env.step(asked["action"][i])
            if self.metrics:
                given["metrics"][i] = [info.get(name, 0.0) for name in self.metrics]
        given["final_obs"][i], given["terminated"][i], given["truncated"][i] = obs, terminated, truncated
        token = asked["next_token"][i]
        if terminated or truncated or asked["cut"][i]:
            token = asked["next_seed"][i]
            obs = env.reset(seed_of(token))
        given["obs"][i] = obs
        self._put(token, env)

    def _at(self, token: int) -> Played | None:
        """The environment that has come so far, if one has."""
        with self.lock:
            envs = self.waiting.get(token)
            if envs is None:
                return None
            if len(envs) == 1:
                del self.waiting[token]
            return envs.pop()

    def _brought(self, i: int, asked: dict[str, Any]) -> Played | None:
        """An environment that was brought where a state is: its last step is made once more."""
        env = self._any()
        if asked["time"][i] > 0 and env.save() is None:
            with self.lock:
                self.spare.append(env)
            return None
        env.reset(seed_of(asked["seed"][i]))
        if asked["time"][i] > 0:
            env.restore(asked["saved"][i])
            env.step(asked["last_action"][i])
        return env

    def _any(self) -> Played:
        """An environment to begin with: a new one, or of many the one that has waited longest."""
        with self.lock:
            if not self.spare and self.number >= SPARE * self.largest * self.devices and self.waiting:
                self.spare += self.waiting.popitem(last=False)[1]
            if self.spare:
                return self.spare.pop()
            self.number += 1
        return self.make()

    def _put(self, token: int, env: Played) -> None:
        with self.lock:
            self.waiting.setdefault(token, []).append(env)


def with_place(error: BaseException) -> str:
    """An error in a line, with the file and the line that raised it."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{in_a_line(error)} ({Path(last.filename).name}, line {last.lineno})"


def numbers(pairs: np.ndarray) -> list[int]:
    """Pairs of words `[n, 2]` as one number each."""
    return np.ascontiguousarray(pairs).view(np.uint64)[:, 0].tolist()


def seed_of(number: int) -> int:
    """Two words as a seed of 31 bits, the most that all generators take."""
    return (number ^ number >> 32) & 0x7FFFFFFF
