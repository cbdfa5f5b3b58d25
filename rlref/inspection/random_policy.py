"""A random policy in many parallel environments, which need to follow gymnax's interface only in part.

Letters: `T` steps, `N` parallel environments, `D` numbers in a flattened observation.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

Array: TypeAlias = np.ndarray

CHUNK = 128  # steps whose results come to the host together
MAX_BYTES = 2**24  # of a chunk's observations, and of those kept
MAX_KEPT = 20_000  # observations
MIN_STARTS = 64  # resets that are compared


class WrappedEnv(NamedTuple):
    """An environment wrapped in one interface, whatever its own is."""

    obs_space: Any
    reset: Callable[[jax.Array], Any]
    """key -> observation, state"""
    sample: Callable[[jax.Array, Any], Any]
    """key, observation -> a random action"""
    step: Callable[..., Any]
    """key, state, action -> observation, state, reward, terminated, truncated, final observation (None if unusable)"""
    step_without_reset: Callable[..., Any] | None
    """key, state, action -> the observation that this step leads to, before any reset; None if it is unknown"""


@dataclasses.dataclass
class Rollout:
    """Steps of a random policy in `N` parallel environments; a row of `obs` is a flattened observation."""

    mean: Array
    """`[D]`, of the finite ones, as are the next three"""
    std: Array
    low: Array
    """`low` and `high` include final observations"""
    high: Array
    nonfinite: int
    """number of non-finite values in observations; all final observations together count once per dimension"""
    obs: Array
    """`[n, D]`, a random sample of the observations"""
    distinct: int
    """different observations"""
    steps: dict[str, Array]
    """`[T, N]`: reward, terminated, truncated, and what `_stepper` compares"""
    first: Array
    """`[t, D]`: the first environment's first episode, at most 1,000 steps of it"""

    @property
    def num_steps(self) -> int:
        return self.steps["reward"].size

    @property
    def ended(self) -> Array:
        return self.steps["terminated"] | self.steps["truncated"]

    def episodes(self, per_env: int) -> list[tuple[int, int, int]]:
        """(environment, first step, step after the last) of the first `per_env` episodes of each environment.

        The same number from each, as the first episodes to end, whatever their environment, are mostly short ones: all
        are cut to the environment with the fewest. If one has ended none, those that did end are taken, biased or not.
        """
        stops = [np.flatnonzero(column) + 1 for column in self.ended.T]
        least = min(len(x) for x in stops)
        out = []
        for i in range(min(least, per_env) or per_env):
            out += [(n, int(x[i - 1]) if i else 0, int(x[i])) for n, x in enumerate(stops) if i < len(x)]
        return out

    def returns_and_lengths(self, episodes: Sequence[tuple[int, int, int]]) -> tuple[Array, Array]:
        returns = [self.steps["reward"][a:b, n].sum(dtype=np.float64) for n, a, b in episodes]
        return np.array(returns), np.array([b - a for _, a, b in episodes])


def flat(obs: Any) -> jax.Array:
    """`[D]`: all numbers of an observation, as float32."""
    return jnp.concatenate([jnp.ravel(x).astype(jnp.float32) for x in jax.tree.leaves(obs)])


def _stepper(subject: WrappedEnv) -> Callable[..., Any]:
    """One step of one environment, for `lax.scan`; `near` is the range `[D]` of the observations after resets.

    Each step yields what the policy saw, reward, terminated, truncated, and whether the next observation is the final
    one (`same`), lies outside `near` (`stray`), or is what this step led to (`own_next`; the final one: `own_final`).
    """

    def close(a: jax.Array, b: jax.Array) -> jax.Array:
        return (jnp.abs(a - b) <= 1e-5 * (1 + jnp.abs(b))).all()

    def step(repeat: jax.Array, near: tuple[jax.Array, jax.Array], carry: Any, key: jax.Array) -> Any:
        obs, state, held, age, low, high = carry
        key_act, key_env = jax.random.split(key)
        # What is allowed now need not be later: where there is a mask, no action is held.
        drawn = (age % repeat == 0) | hasattr(subject.obs_space, "action_mask")
        action = jax.tree.map(lambda x, y: jnp.where(drawn, x, y), subject.sample(key_act, obs), held)
        next_obs, next_state, reward, terminated, truncated, final = subject.step(key_env, state, action)
        ended = terminated | truncated
        shown = flat(next_obs)
        last = shown if final is None else flat(final)
        alone = None if subject.step_without_reset is None else flat(subject.step_without_reset(key_env, state, action))
        slack = 0.05 * (near[1] - near[0]) + 1e-5
        seen = {"obs": flat(obs), "reward": reward, "terminated": terminated, "truncated": truncated}
        seen["same"] = jnp.bool(False) if final is None else close(last, shown)
        seen["stray"] = ((shown < near[0] - slack) | (shown > near[1] + slack)).any()
        seen["own_next"] = jnp.bool(False) if alone is None else close(shown, alone)
        seen["own_final"] = jnp.bool(True) if alone is None or final is None else close(last, alone)
        low, high = (jnp.where(ended, f(a, last), a) for f, a in ((jnp.minimum, low), (jnp.maximum, high)))
        return (next_obs, next_state, action, jnp.where(ended, 0, age + 1), low, high), seen

    return step


def raw_key_data(x: jax.Array) -> jax.Array:
    """The raw data of PRNG keys; anything else unchanged."""
    return jax.random.key_data(x) if jnp.issubdtype(jnp.asarray(x).dtype, jax.dtypes.prng_key) else x


class Collector:
    """Runs a random policy in `num_envs` environments, copying steps to the host in chunks; compiled once."""

    def __init__(self, subject: WrappedEnv, num_envs: int) -> None:
        step = _stepper(subject)
        key = jax.random.key(0)
        self.num_envs, self.size = num_envs, jax.eval_shape(lambda: flat(subject.reset(key)[0])).size
        length = self.length = int(np.clip(MAX_BYTES // (4 * self.size * num_envs), 1, CHUNK))
        bound = np.full((num_envs, self.size), np.inf, np.float32)

        @jax.jit
        def start(key: jax.Array) -> Any:
            keys = jax.random.split(key, num_envs)
            obs, state = jax.vmap(subject.reset)(keys)
            carry = obs, state, jax.vmap(subject.sample)(keys, obs), jnp.zeros(num_envs, jnp.int32), bound, -bound
            # Weak types here would become strong after a step, and `chunk` would be compiled twice.
            carry = jax.tree.map(lambda x: jax.lax.convert_element_type(x, x.dtype), carry)
            return carry, jax.vmap(flat)(obs), jax.tree.map(raw_key_data, (obs, state))

        starts = [start(key)[1:] for key in jax.random.split(key, -(-MIN_STARTS // num_envs))]
        firsts, leaves = (jax.tree.map(lambda *x: np.concatenate(x), *part) for part in zip(*starts, strict=True))
        self.num_starts = len(firsts)
        self.near = firsts.min(axis=0), firsts.max(axis=0)
        self.varied = bool((self.near[0] != self.near[1]).any())
        """whether resets show different observations"""
        self.alike = all((x == x[:1]).all() for x in jax.tree.leaves(leaves))
        """whether all resets give the same observation and state"""

        @jax.jit
        def chunk(carry: Any, key: jax.Array, repeat: jax.Array, near: Any) -> Any:
            def steps(carry: Any, key: jax.Array) -> Any:
                return jax.vmap(step, (None, None, 0, 0))(repeat, near, carry, jax.random.split(key, num_envs))

            return jax.lax.scan(steps, carry, jax.random.split(key, length))

        self.start, self.chunk = start, chunk

    def collect(self, key: jax.Array, repeat: int, per_env: int, max_steps: int) -> Rollout:
        """Run until each environment has ended `per_env` episodes, or all together have made `max_steps` steps."""
        rng, share, t = np.random.default_rng(0), 1.0, 0
        key, key_start = jax.random.split(key)
        carry, size = self.start(key_start)[0], self.size
        count, mean, square = np.zeros(size), np.zeros(size), np.zeros(size)
        low, high, nonfinite = np.full(size, np.inf), np.full(size, -np.inf), 0
        parts, firsts, kept = [], [], np.zeros((0, size), np.float32)
        distinct: set[int] = set()
        ends, open_first = np.zeros(self.num_envs), True
        while ends.min() < per_env and (t == 0 or (t + self.length) * self.num_envs <= max_steps):
            key, key_chunk = jax.random.split(key)
            carry, seen = self.chunk(carry, key_chunk, repeat, self.near)
            seen = jax.device_get(seen)
            obs = seen.pop("obs")
            parts.append(seen)
            ended = seen["terminated"] | seen["truncated"]
            ends += ended.sum(axis=0)
            if open_first and t < 1000:
                open_first = not ended[:, 0].any()
                firsts.append(obs[: None if open_first else ended[:, 0].argmax() + 1, 0])
            t += self.length
            rows = obs.reshape(-1, size)
            distinct.update(hash(row.tobytes()) for row in rows)
            good = np.isfinite(rows)
            nonfinite += int((~good).sum())
            low, high = (
                np.minimum(low, rows.min(0, initial=np.inf, where=good)),
                np.maximum(high, rows.max(0, initial=-np.inf, where=good)),
            )
            # Chan et al. 1983: moments of a union.
            n = good.sum(axis=0)
            part = rows.sum(axis=0, dtype=np.float64, where=good) / np.maximum(n, 1)
            delta, count = part - mean, count + n
            square += ((rows - part) ** 2).sum(axis=0, where=good) + delta**2 * (count - n) * n / np.maximum(count, 1)
            mean += delta * n / np.maximum(count, 1)
            kept = np.concatenate([kept, rows[rng.random(len(rows)) < share]])
            while len(kept) > min(MAX_BYTES // (4 * size), MAX_KEPT):
                kept, share = kept[rng.random(len(kept)) < 0.5], share / 2
        final_low, final_high = np.asarray(carry[-2]).min(axis=0), np.asarray(carry[-1]).max(axis=0)
        if ends.any():
            good = np.isfinite(final_low) & np.isfinite(final_high)
            nonfinite += int((~good).sum())
            low, high = (
                np.where(good, np.minimum(low, final_low), low),
                np.where(good, np.maximum(high, final_high), high),
            )
        steps = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        std = np.sqrt(square / np.maximum(count, 1))
        return Rollout(mean, std, low, high, nonfinite, kept, len(distinct), steps, np.concatenate(firsts)[:1000])
