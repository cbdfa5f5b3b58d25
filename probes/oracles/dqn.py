"""Oracles over the functions of DQN's file."""

import collections
import dataclasses
import functools
import inspect
import itertools
import math
from collections.abc import Iterator
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from probes.environments import Tabular, tables
from probes.oracles.base import (
    DEFINITION,
    IDS,
    LIKENESS,
    CannotAskError,
    close,
    compiled,
    configure,
    first_state,
    follows_ids,
    need,
    oracle,
    part,
    rows_apart,
    same,
    so_far,
    takes,
    task_of,
)
from rlref.contract import DQN

BUFFER = "obs action reward terminated truncated next_obs"


@oracle(DQN, "the value of the next state", DEFINITION, next_values="kind target_q online_q epsilon")
def next_state_values(module: ModuleType) -> None:
    """Double Q, the maximum and expected SARSA on two fixed tables."""
    target_q, online_q = jnp.array([[1.0, 3.0, -1.0], [2.0, 0.0, 0.5]]), jnp.array([[5.0, 4.0, 0.0], [1.0, 2.0, 3.0]])
    for kind, wanted in (("double", [1.0, 0.5]), ("max", [3.0, 2.0]), ("expected_sarsa", [2.4, 1.65])):
        # .7 of the best and .3 of the mean: .7 x 3 + .3 x 1 and .7 x 2 + .3 x .8333.
        if takes(module, target=kind):
            close(f"next_values of {kind!r}", module.next_values(kind, target_q, online_q, 0.3), wanted)


@oracle(DQN, "the schedule of exploration", LIKENESS, epsilon_at="config env_steps")
def exploration(module: ModuleType) -> None:
    """Epsilon falls linearly from start_e to end_e over its share of the training."""
    config = configure(module, total_timesteps=100_000, start_e=0.9, end_e=0.1, exploration_fraction=0.5)
    for steps, wanted in ((0, 0.9), (12_500, 0.7), (25_000, 0.5), (50_000, 0.1), (90_000, 0.1)):
        close(f"epsilon after {steps} of 100000 steps", module.epsilon_at(config, jnp.float32(steps)), wanted)


@oracle(DQN, "the policy that explores", DEFINITION, epsilon_greedy="q epsilon")
def greedy_policy(module: ModuleType) -> None:
    """It gives every action epsilon / A, and the best one the rest."""
    policy = module.epsilon_greedy(jnp.array([[0.0, 2.0, 1.0], [3.0, 2.0, 1.0]]), 0.3)
    close("epsilon_greedy at epsilon .3", policy, [[0.1, 0.8, 0.1], [0.8, 0.1, 0.1]])


SLOTS = {"replay_indices": "bits rows capacity num_envs n_step", "write": "buffer block row num_envs"}


@oracle(DQN, "which transitions are sampled", **SLOTS)
def replay_slots(module: ModuleType) -> None:
    """Slots are of written steps, n consecutive ones of one environment, round the end too, and none is left out."""
    for case, found, whole in sampled_slots(module):
        if wrong := set(found) - whole:
            raise AssertionError(f"{case}, the slots {next(iter(wrong))} are sampled: unwritten, or no such sequence")
        if not whole <= set(found):
            raise AssertionError(f"{case}, the slots {next(iter(whole - set(found)))} are never sampled")


@oracle(DQN, "how often each transition is sampled", LIKENESS, **SLOTS)
def replay_odds(module: ModuleType) -> None:
    """All equally often."""
    for case, found, whole in sampled_slots(module):
        if not 0.7 < min(found[x] for x in whole) * len(whole) / found.total() <= 1:
            raise AssertionError(f"{case}, some are sampled less often than others, or never")


def sampled_slots(module: ModuleType) -> Iterator[tuple[str, collections.Counter[tuple[int, ...]], set[Any]]]:
    """Each case in words, how often each sequence of slots is drawn of 20,000, and the sequences that there are."""
    bits, capacity, num_envs = jnp.arange(20_000, dtype=jnp.uint32) * jnp.uint32(2_654_435_761), 13, 3
    slot = slots_of(module, capacity, num_envs)
    for rows, n in itertools.product((4, 13, 18, 40), (1, 3)):
        slots, _ = (np.asarray(x) for x in module.replay_indices(bits, jnp.int32(rows), capacity, num_envs, n))
        case = f"with {rows} rows written of {capacity}, and {n}-step returns"
        if slots.shape != (len(bits), n):  # one more is for the observation after, where each is stored once
            raise CannotAskError(f"{case}, its slots are of shape {slots.shape}, in rlref's {(len(bits), n)}")
        written = range(max(0, rows - capacity), rows)
        whole = {tuple(slot[(row + k) % capacity, env] for k in range(n))
                 for row in written[: len(written) - n + 1] for env in range(num_envs)}  # fmt: skip
        yield case, collections.Counter(map(tuple, slots.tolist())), whole


def slots_of(module: ModuleType, capacity: int, num_envs: int) -> np.ndarray:
    """`[capacity, N]`, the slot to which `write` brings each step: how the memory is laid out is the file's own."""
    buffer = jnp.zeros((capacity * num_envs, 1))
    for row in range(capacity):
        buffer = module.write(
            buffer, 1.0 + row * num_envs + jnp.arange(num_envs, dtype=jnp.float32)[:, None], row, num_envs
        )
    found = np.asarray(buffer)[:, 0].astype(int) - 1
    if sorted(found) != [*range(capacity * num_envs)]:
        raise AssertionError(
            f"of {capacity * num_envs} steps written to as many slots {len({*found} - {-1})} are there"
        )
    return found.argsort().reshape(capacity, num_envs)


def asked_by_update(module: ModuleType, name: str, parameters: str) -> list[Any]:
    """What update 3 of 20 gives these parameters of a function: 5 cycles of 2 steps in 7 environments.

    Raises CannotAskError if it does not call it.
    """
    settings = {"num_envs": 7, "train_frequency": 14, "cycles_per_update": 5, "hidden_sizes": (16,), "batch_size": 31,
                "buffer_size": 280, "learning_starts": 70, "target_network_frequency": 70, "n_step": 1,
                "total_timesteps": 1400}  # fmt: skip
    task = task_of(module, configure(module, **settings), Tabular(IDS), IDS)
    original, asked = getattr(module, name), []

    def spy(*arguments: Any, **named: Any) -> Any:
        taken = inspect.signature(original).bind(*arguments, **named).arguments  # a file's own may take more
        asked.append([taken[parameter] for parameter in parameters.split()])
        return original(*arguments, **named)

    @compiled
    def watched(state: Any) -> Any:  # without what follows: only what is asked for is computed
        module.update(task, 20, state, jnp.int32(3))
        return asked

    with mock.patch.object(module, name, spy):
        found: list[Any] = jax.device_get(watched(first_state(module, task)))
    if not found:
        raise CannotAskError(f"its update does not call {name}")
    return found


WATCHED = {"init": "task key", "update": "task num_updates state step"}


@oracle(DQN, "which transitions are sampled", **SLOTS, **WATCHED)
def replay_draws(module: ModuleType) -> None:
    """Each gradient step draws anew, from the rows written by its own end."""
    asked = asked_by_update(module, "replay_indices", SLOTS["replay_indices"])
    bits, rows, *rest = asked[0]
    if bits.shape != (5, 31) or rest != [40, 7, 1]:
        raise CannotAskError("it draws in another way")
    close("rows written by the end of each cycle", np.broadcast_to(rows, (5, 1))[:, 0], 30 + 2 * np.arange(1, 6))
    drawn = np.concatenate([np.ravel(other) for other, *_ in asked])  # for the diagnostics too
    if len(np.unique(drawn)) < drawn.size - 1:
        raise AssertionError("gradient steps, or the diagnostics, of one update draw the same random numbers")


@oracle(DQN, "the schedule of exploration", epsilon_at="config env_steps", **WATCHED)
def exploring_steps(module: ModuleType) -> None:
    """Epsilon is that of the environment steps done before each step of all environments."""
    (steps,) = asked_by_update(module, "epsilon_at", "env_steps")[0]
    close("the steps that epsilon follows", np.reshape(steps, -1), 210 + 7 * np.arange(10))


@oracle(
    DQN,
    "the return, the discount, or the next observation of a sampled transition",
    DEFINITION,
    also="pack",
    Buffer=BUFFER,
    sample="task buffer index like",
)
def sampled_returns(module: ModuleType) -> None:
    """Rewards are summed up to n, never over an ending; only termination ends the value; the last step's next_obs."""
    rng = np.random.default_rng(0)
    size, gamma = 24, 0.8
    reward, obs, next_obs = rng.normal(size=size), rng.normal(size=(size, 2)), rng.normal(size=(size, 2))
    action, (terminated, truncated) = rng.integers(2, size=size), rng.random((2, size)) < 0.3
    params = tables(obs=[[0.0, 0.0]], reward=[[0.0, 0.0]], next=[0])
    floats = (jnp.asarray(x, jnp.float32) for x in (obs, reward, next_obs))
    stored_obs, stored_reward, stored_next = floats
    ends = jnp.asarray(terminated), jnp.asarray(truncated)
    steps = module.Buffer(stored_obs, jnp.asarray(action, jnp.int32), stored_reward, *ends, stored_next)
    buffer = module.pack(steps) if hasattr(module, "pack") else steps
    for n in (1, 3):
        task = task_of(module, configure(module, gamma=gamma, n_step=n, buffer_dtype="same"), Tabular(params), params)
        index = np.arange(size - n)[:, None] + np.arange(n)
        got = module.sample(task, buffer, jnp.asarray(index), jnp.zeros((1, 2)))
        total, discount, last = np.zeros(len(index)), np.zeros(len(index)), index[:, 0].copy()
        for i, slots in enumerate(index):
            for k, slot in enumerate(slots):
                total[i] += gamma**k * reward[slot]
                discount[i], last[i] = 0.0 if terminated[slot] else gamma ** (k + 1), slot
                if terminated[slot] or truncated[slot]:
                    break
        close(f"the {n}-step reward", got.reward, total)
        close(f"the discount of the next value after {n} steps", got.discount, discount)
        close(f"the next observation after {n} steps", got.next_obs, next_obs[last])
        close("the observation", got.obs, obs[index[:, 0]])
        close("the action", got.action, action[index[:, 0]])


@oracle(DQN, "how observations are stored", DEFINITION, encode="obs buffer_dtype", decode="stored buffer_dtype like")
def storage(module: ModuleType) -> None:
    """Numbers stored as they come, whole ones to 255 as bytes, and 0 and 1 as bits come back as they were."""
    rng = np.random.default_rng(0)
    shape = (5, 3, 7)  # 21 bits do not fill their bytes
    images = {
        "same": rng.normal(size=shape),
        "uint8": rng.integers(256, size=shape),
        "bool": rng.integers(2, size=shape),
    }
    for buffer_dtype, image in images.items():
        if not takes(module, buffer_dtype=buffer_dtype):
            continue
        obs = jnp.asarray(image, jnp.float32)
        restored = module.decode(module.encode(obs, buffer_dtype), buffer_dtype, obs)
        close(f"an observation stored as {buffer_dtype!r}", restored, obs)
        if restored.dtype != obs.dtype:
            raise AssertionError(f"an observation stored as {buffer_dtype!r} comes back as {restored.dtype}")


@oracle(
    DQN,
    "the target: the reward, and the discounted value of the next state",
    LIKENESS,
    init="task key",
    forward="task params obs options",
    targets="task target_params params batch epsilon",
    Batch="obs action reward discount next_obs",
)
def bootstrapped_targets(module: ModuleType) -> None:
    """Reward and discount times the target network's value of the next observation, where the online one is best."""
    rng = np.random.default_rng(0)
    params = tables(obs=[[0.0, 0.0]], reward=[[0.0, 0.0, 0.0]], next=[0])
    task = task_of(module, configure(module, target="double", hidden_sizes=(16,)), Tabular(params), params)
    online, target = (first_state(module, task, seed).params for seed in range(2))
    obs, next_obs = jnp.asarray(rng.normal(size=(2, 40, 2)), jnp.float32)
    reward, discount = jnp.asarray(rng.normal(size=(2, 40)), jnp.float32)
    batch = module.Batch(obs, jnp.asarray(rng.integers(3, size=40)), reward, discount, next_obs)
    best = np.asarray(module.forward(task, online, next_obs)).argmax(-1)
    value = np.asarray(module.forward(task, target, next_obs))[np.arange(40), best]
    got = module.targets(task, target, online, batch, 0.0)
    close("the target", got, np.asarray(reward) + np.asarray(discount) * value, 1e-3)


@oracle(
    DQN,
    "the loss, or the gather of the action taken",
    LIKENESS,
    init="task key",
    forward="task params obs options",
    loss="params task batch target",
    Batch="obs action reward discount next_obs",
)
def td_loss(module: ModuleType) -> None:
    """The mean squared error of the taken action's Q, or half of it, or its Huber form."""
    rng = np.random.default_rng(0)
    params = tables(obs=[[0.0, 0.0]], reward=[[0.0, 0.0, 0.0]], next=[0])
    obs, action = jnp.asarray(rng.normal(size=(5, 2)), jnp.float32), jnp.array([2, 0, 1, 1, 0])
    zeros = jnp.zeros(5)
    for kind in (kind for kind in ("squared", "huber") if takes(module, loss=kind)):
        task = task_of(module, configure(module, loss=kind, hidden_sizes=(16, 16)), Tabular(params), params)
        weights = first_state(module, task).params
        q = np.asarray(module.forward(task, weights, obs))[np.arange(5), action]
        error = np.array([0.1, -0.5, 3.0, -2.0, 0.0])
        wanted = 0.5 * error**2 if kind == "squared" else np.array([0.005, 0.125, 2.5, 1.5, 0.0])
        batch = module.Batch(obs, action, zeros, zeros, obs)
        got = float(module.loss(weights, task, batch, jnp.asarray(q + error))[0])
        whole = 2 * wanted.mean()  # Adam does not see the difference
        close(f"the {kind} loss", got, whole if abs(got - whole) < 1e-4 else wanted.mean())


@oracle(
    DQN,
    "the dueling heads",
    DEFINITION,
    init="task key",
    forward="task params obs options",
)
def dueling_heads(module: ModuleType) -> None:
    """What is added to all advantages changes no Q; what is added to the state's value is added to every Q."""
    params = tables(obs=[[0.3, -0.4]], reward=[[0.0, 0.0, 0.0]], next=[0])
    need(module, "dueling")
    if not takes(module, dueling=True):
        raise CannotAskError("its make refuses dueling")
    task = task_of(module, configure(module, dueling=True, hidden_sizes=(16,)), Tabular(params), params)
    weights, obs = first_state(module, task).params, jnp.array([[0.3, -0.4], [1.0, 2.0]])
    before = np.asarray(module.forward(task, weights, obs))
    if "value_head" not in weights["params"] or "head" not in weights["params"]:
        raise CannotAskError("its parameters have no head and value_head")
    for head, moves in (("head", 0.0), ("value_head", 2.0)):
        layer = weights["params"][head]
        if "bias" not in layer:
            raise CannotAskError(f"its {head} has no bias")
        changed = {"params": {**weights["params"], head: {**layer, "bias": layer["bias"] + 2.0}}}
        rows_apart(partial(module.forward, task, changed), obs)
        close(f"how far Q moves if 2 is added to the bias of {head}",
              np.asarray(module.forward(task, changed, obs)) - before, np.full((2, 3), moves))  # fmt: skip


@oracle(
    DQN,
    "which parameters are evaluated, or how greedily",
    init="task key",
    forward="task params obs options",
)
def evaluated(module: ModuleType) -> None:
    """The value is of the online parameters, not of the target network's, and the policy is one-hot of its largest."""
    params = tables(obs=[[0.3, -0.4]], reward=[[0.0, 0.0, 0.0]], next=[0])
    config = configure(module, hidden_sizes=(16,))
    task, agent = task_of(module, config, Tabular(params), params), module.make(config, Tabular(params), params)
    first, rng = first_state(module, task), np.random.default_rng(0)
    part(first, "target_params")
    # Moved, as a head may begin at zero.
    moved = (jax.tree.map(lambda x: x + rng.normal(0, 0.3, x.shape), first.params) for _ in range(2))
    state, other = (dataclasses.replace(first, params=x, target_params=x) for x in moved)
    mixed = dataclasses.replace(state, target_params=other.params)
    obs = jnp.array([0.3, -0.4])
    rows_apart(partial(module.forward, task, state.params), jnp.array([[0.3, -0.4], [1.0, 2.0], [-1.0, 0.5]]))
    value = agent.value(mixed, obs)  # in whatever units the network answers
    close("the value as it is evaluated, with another target network", value, agent.value(state, obs))
    if np.abs(np.asarray(value) - agent.value(other, obs)).max() < 1e-6:
        raise AssertionError("the value as it is evaluated does not depend on the parameters that learn")
    close("the policy as it is evaluated", agent.policy(mixed, obs), np.eye(3)[np.asarray(value).argmax()])


COLLECT = {
    "init": "task key",
    "forward": "task params obs options",
    "collect": "task state params epsilon draws",
}


@oracle(DQN, "what is kept of a step, or the episodes under way", **COLLECT)
def collected_steps(module: ModuleType) -> None:
    """Of two cycles in a row, what is kept is what happened."""
    found = two_cycles(module)
    kept, seen, ended = found.kept, found.seen, found.kept.terminated | found.kept.truncated
    follows_ids(kept, "next_obs", found.before, found.last)
    for name, each in (("action", kept.action), ("reward", kept.reward), ("ended", ended)):
        if hasattr(seen, name):
            close(f"{name} of the steps, beside what is stored", getattr(seen, name), each)
    for name, each in (("total", kept.reward), ("length", np.ones_like(kept.reward))):
        if hasattr(seen, name):
            close(f"{name} of the episode so far", getattr(seen, name), so_far(each, ended))


@oracle(DQN, "the action that is taken", LIKENESS, **COLLECT)
def chosen_actions(module: ModuleType) -> None:
    """Random actions where chance says so, and else the best of the parameters that are to act."""
    found = two_cycles(module)
    close("the action, random where the draw is below epsilon and the best elsewhere", found.kept.action, found.chosen)


class Cycles(NamedTuple):
    """Two cycles of 11 steps in 7 environments on IDS, each array `[22, 7, ...]`."""

    kept: Any
    """what is stored of them"""
    seen: Any
    """what is returned beside that"""
    before: Any
    """the observations `[7, ...]` that they begin with"""
    last: Any
    """those that they end with"""
    chosen: np.ndarray
    """the actions that the draws and the values ask for"""


@functools.cache
def two_cycles(module: ModuleType) -> Cycles:
    """Two cycles in a row, epsilon from 0 to 1 in each."""
    settings = {"num_envs": 7, "train_frequency": 77, "cycles_per_update": 1, "hidden_sizes": (16,), "gamma": 0.9,
                "buffer_dtype": "same", "learning_starts": 77, "buffer_size": 154, "batch_size": 31,
                "target_network_frequency": 77, "total_timesteps": 770}  # fmt: skip
    task = task_of(module, configure(module, **settings), Tabular(IDS), IDS)
    first, collect = first_state(module, task), compiled(partial(module.collect, task))
    # Parameters of their own: not those of the state, nor of its target network.
    acting = first_state(module, task, 7).params
    state, epsilon, cycles = first, jnp.linspace(0.0, 1.0, 11), []
    for key in jax.random.split(jax.random.key(1), 2):
        keys = jax.random.split(key, 3)
        chance = jax.random.uniform(keys[0], (11, 7)), jax.random.randint(keys[1], (11, 7), 0, 2)
        state, steps, block = collect(state, acting, epsilon, (*chance, jax.random.split(keys[2], (11, 7))))
        cycles.append((jax.tree.map(lambda x: x.reshape(11, 7, *x.shape[1:]), block), steps, chance))
    kept, seen, (uniform, random) = jax.device_get(jax.tree.map(lambda *x: jnp.concatenate(x), *cycles))
    q = np.asarray(module.forward(task, acting, jnp.asarray(kept.obs.reshape(-1, 1)))).reshape(22, 7, 2)
    chosen = np.where(uniform < np.tile(epsilon, 2)[:, None], random, q.argmax(-1))
    return Cycles(kept, seen, first.obs, state.obs, chosen)


@oracle(DQN, "the optimiser, or its clip of the gradient's norm", LIKENESS, make_optimizer="config learning_rate")
def optimiser(module: ModuleType) -> None:
    """Two steps of Adam, written out, without a clip and with one."""
    need(module, "max_grad_norm", "adam_eps")
    gradient, rate = np.array([3.0, -4.0, 0.5]), 0.03
    for bound in (None, 0.7):
        optimizer = module.make_optimizer(configure(module, max_grad_norm=bound, adam_eps=0.1), jnp.float32(rate))
        state, mean, square = optimizer.init(jnp.zeros(3)), np.zeros(3), np.zeros(3)
        for step, g in ((1, gradient), (2, 0.1 * gradient)):
            got, state = optimizer.update(jnp.asarray(g, jnp.float32), state, jnp.zeros(3))
            g = g * min(1.0, (math.inf if bound is None else bound) / float(np.linalg.norm(g)))
            mean, square = 0.9 * mean + 0.1 * g, 0.999 * square + 0.001 * g**2
            wanted = -rate * (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.999**step)) + 0.1)
            what = f"step {step} of the optimiser, in learning rates, with max_grad_norm {bound}"
            close(what, np.asarray(got) / rate, wanted / rate, 1e-3)


@oracle(DQN, "the replay buffer, or the warm-up", also="init update pack unpack", Buffer=BUFFER)
def stored_transitions(module: ModuleType) -> None:
    """What the buffer holds after its first round is what the environment did, endings and final observations too."""
    settings = {"num_envs": 7, "train_frequency": 14, "cycles_per_update": 2, "target_network_frequency": 28,
                "total_timesteps": 112, "buffer_size": 42, "batch_size": 31, "learning_starts": 42, "n_step": 1,
              "buffer_dtype": "same", "hidden_sizes": (16,)}  # fmt: skip
    agent = module.make(configure(module, **settings), Tabular(IDS), IDS)
    state, update = compiled(agent.init)(jax.random.key(0)), compiled(agent.update)
    seen = []
    for step in range(4):  # 4 rows at a time: the buffer's 6 are overwritten twice
        before, (state, _) = state, update(state, jnp.int32(step))
        if step == 0 and hasattr(state, "params") and not same(before.params, state.params):
            raise AssertionError("it learns before learning_starts")
        if step == 0 and hasattr(state, "opt_state") and not same(before.opt_state, state.opt_state):
            raise AssertionError("its optimiser's state moves before learning_starts")
        buffer = part(state, "buffer")
        stored = jax.device_get(module.unpack(buffer, state.obs) if hasattr(module, "unpack") else buffer)
        if len(stored.reward) != 42:
            raise CannotAskError(f"its buffer has {len(stored.reward)} slots for a buffer_size of 42")
        seen.append(stored.reward.copy())
        written = stored.obs[:, 0] > 0
        if int(written.sum()) != min(28 * (step + 1), 42):
            raise AssertionError(f"{int(written.sum())} slots are filled after {28 * (step + 1)} steps, of 42")
        row, action = stored.obs[written, 0].astype(int) - 1, stored.action[written]
        for name, wanted in (
            ("reward", IDS.reward[row, action]),
            ("terminated", IDS.terminated[row, action]),
            ("truncated", IDS.truncated[row, action]),
            ("next_obs", IDS.obs[IDS.next[row, action]]),
        ):
            close(
                f"{name} beside the observation and the action stored with it", getattr(stored, name)[written], wanted
            )
    if (seen[-1] == seen[-2]).all():
        raise AssertionError("the buffer does not change any more once it is full")


# The contract. All trials of an agent share one compiled program: its settings and the tables are arguments.
