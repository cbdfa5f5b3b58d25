"""Oracles over the contract of agents with a memory: when they forget, what they are shown, what they learn through.

Values at a learning rate of 0 follow from the agent's own `value`, led along the same steps. Where they do not, they
are compared with those of agents that forget at other times, and what fits is said.
"""

import functools
import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any, get_args, get_type_hints

import jax
import jax.numpy as jnp
import numpy as np
from gymnax.environments import spaces
from scipy.special import expit

from probes.environments import Tables, Tabular, tables
from probes.oracles.base import (
    DEFINITION,
    LIKENESS,
    SEEDS,
    TRUTH,
    CannotAskError,
    Oracle,
    close,
    compiled,
    emitted,
    need,
)
from probes.oracles.contract import KNOWN, Trial, apart, shown_nothing_else, traced
from probes.oracles.exact_ppo import (
    LINE,
    ON_LINE,
    actions_on_line,
    as_predicted,
    differentiated,
    exact_policy,
    exact_trial,
    floats_of,
    on_line,
    predicted_by,
    rows,
    update_on_line,
)
from rlref.contract import PPO

MEMORY_ORACLES: dict[str, Oracle] = {}


def five(actions: int) -> Tables:
    """Three steps to a termination, then two to a time limit: whatever is done, it is known what comes."""
    return apart(
        tables(
            obs=np.eye(5) - 0.2,
            reward=np.tile([[1.0], [-2.0], [0.5], [3.0], [-1.0]], actions),
            next=[1, 2, 3, 4, 0],
            terminated=[0, 0, 1, 0, 0],
            truncated=[0, 0, 0, 0, 1],
            after=[-1, -1, 3, -1, 0],
        )
    )


class Narrow(Tabular):
    """The same, whatever is done, in a Box so narrow that what was done is all but 0, as the environment takes it."""

    def action_space(self, params: Tables | None = None) -> spaces.Box:
        return spaces.Box(-1e-4, 1e-4, (1,))

    def combined(self, action: Any) -> Any:
        return jnp.int32(0)


LSTM = {"cell": "lstm"}  # whose memory is h, and then c: c is not bounded, and h is not all of it
FIVE, ONE = five(2), five(1)  # of one action it is also known what was done last
ON_FIVE, ON_ONE, ON_NARROW = Tabular(FIVE), Tabular(ONE), Narrow(ONE)
STEPS = 11
AT = np.arange(3 * STEPS) % 5  # the states of three updates
BEGINS = (AT == 0) | (AT == 3)
PAID = ONE.reward[(AT - 1) % 5, 0]  # by the step before
FORGETTING: dict[str, np.ndarray] = {
    "is not emptied where an episode ends": np.arange(3 * STEPS) == 0,
    "outlives a termination": AT == 0,
    "outlives a time limit": (AT == 3) | (np.arange(3 * STEPS) == 0),
    "is emptied before every step": np.ones(3 * STEPS, bool),
    "is emptied a step after an episode has begun": np.roll(BEGINS, 1),
    "is emptied before an episode's last step": np.roll(BEGINS, -1),
    "is emptied where a rollout begins": BEGINS | (np.arange(3 * STEPS) % STEPS == 0),
    "is emptied where a rollout begins, and there alone": np.arange(3 * STEPS) % STEPS == 0,
}


def of_memory(isolates: str, holds: str = TRUTH, **needs: str) -> Callable[[Callable[[ModuleType], None]], Any]:
    """Add the decorated function to the oracles that agents with a memory alone are asked; `needs` as in `oracle`."""

    def add(check: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
        required = {name: tuple(parameters.split()) for name, parameters in needs.items()}
        MEMORY_ORACLES[check.__name__] = Oracle(check.__name__, check, PPO, isolates, holds, required)
        return check

    return add


def shown(env: Any, params: Any, index: Any, action: Any, *others: Any) -> Any:
    """What an agent is shown in a state of the table, beside its memory."""
    space = env.action_space(params)
    return jnp.asarray(params.obs)[index], jnp.broadcast_to(jnp.asarray(action, space.dtype), space.shape), *others


def for_seeds(at: Any, *others: Any) -> list[np.ndarray]:
    """States, last actions and rewards, and resets, each as `[S, T]`."""
    kinds = np.int32, np.int32, np.float32, bool
    shape = SEEDS, np.shape(at)[-1]
    return [np.broadcast_to(np.asarray(x, kind), shape) for x, kind in zip((at, *others), kinds, strict=True)]


@functools.cache
def led(module: ModuleType, env: Any) -> Any:
    """(config, tables, states, states of the table `[S, T]`, actions, rewards, resets) -> values, policies, memories.

    Those of the agent, `[S, T, ...]`; actions and rewards are the last ones of each step.
    """

    def of_seed(config: Any, params: Any, state: Any, at: Any, action: Any, reward: Any, reset: Any) -> Any:
        agent = module.make(config, env, params)

        def step(memory: Any, x: Any) -> Any:
            seen = memory, *shown(env, params, *x)
            (policy, memory), (value, _) = agent.policy(state, *seen), agent.value(state, *seen)
            return memory, (value, policy, memory)

        return jax.lax.scan(step, agent.memory0, (at, action, reward, reset))[1]

    return compiled(jax.vmap(of_seed, (None, None, 0, 0, 0, 0, 0)))


def along(module: ModuleType, trial: Trial, at: Any, reset: Any, action: Any = 0, reward: Any = 0.0) -> Any:
    """What the agent of a trial says at its state along steps `[T]` or `[S, T]`; see `led`."""
    given = for_seeds(at, action, reward, reset)
    return jax.device_get(led(module, trial.env)(trial.config, trial.params, trial.state, *given))


@functools.cache
def leading_on(module: ModuleType, env: Any) -> Any:
    """(config, tables, states, memories `[S, T, ...]`, states of the table `[S, T]`, and what `led` takes) -> values.

    Those of states that a step led to, by the memory after that step.
    """

    def of_seed(config: Any, params: Any, state: Any, *steps: Any) -> Any:
        agent = module.make(config, env, params)

        def say(memory: Any, *x: Any) -> Any:
            return agent.value(state, memory, *shown(env, params, *x))[0]

        return jax.vmap(say)(*steps)

    return compiled(jax.vmap(of_seed, (None, None, 0, 0, 0, 0, 0, 0)))


def led_to(
    module: ModuleType, trial: Trial, memory: Any, to: Any, reset: Any = False, action: Any = 0, reward: Any = 0.0
) -> np.ndarray:
    """Values `[S, T]` of states `to` `[T]` by memories `[S, T, ...]`; see `leading_on`."""
    given = for_seeds(to, action, reward, reset)
    return np.asarray(leading_on(module, trial.env)(trial.config, trial.params, trial.state, memory, *given))


@functools.cache
def cells(module: ModuleType) -> list[dict[str, Any]]:
    """Settings that choose a kind of memory, for each that works; the first is the one where none is asked for."""
    names = [x for x in get_args(get_type_hints(module.Config).get("cell")) if isinstance(x, str)]

    def works(name: str) -> bool:
        try:
            jax.eval_shape(module.make(module.Config(cell=name), ON_FIVE, FIVE).init, jax.random.key(0))
        except Exception:  # an edit that does without it
            return False
        return True

    return [{"cell": x} for x in names[:1] + [x for x in names[1:] if works(x)]] or [{}]


@functools.cache
def updates(module: ModuleType, number: int = 0) -> tuple[Trial, dict[str, np.ndarray]]:
    """Three updates on ONE at a learning rate of 0, of one of the `cells`: the trial, and metrics `[3, S]`."""
    need(module, "num_envs", "num_steps", "learning_rate")
    cell = cells(module)[number]
    trial = Trial(module, ONE, learning_rate=0.0, env=ON_ONE, num_steps=STEPS, **KNOWN, **cell)
    return trial, trial.run(3)


def differ(found: dict[str, np.ndarray], name: str, wanted: np.ndarray, tolerance: float = 1e-3) -> str:
    """How what updates report of `name` differs from `wanted` `[S, all their steps]`; '' if it does not.

    `found` are their metrics `[updates, S]`, at a learning rate of 0.
    """
    for metric, got in emitted(found, *(f"{name}_{how}" for how in ("mean", "std", "min", "max"))).items():
        how = metric.removeprefix(f"{name}_")
        for step, x in enumerate(np.split(np.float64(wanted), len(got), axis=1)):
            try:
                close(f"{metric} of update {step}, at a learning rate of 0,", got[step], getattr(x, how)(1), tolerance)
            except AssertionError as error:
                return str(error)
    return ""


def cause_of(causes: Mapping[str, Callable[[], str]]) -> str:
    """The first cause that leaves nothing to be said; '' if none does."""
    return next((f": as where {cause}" for cause, says in causes.items() if not says()), "")


@of_memory("the memory: when it is emptied, or carried on")
def remembered_values(module: ModuleType) -> None:
    """Values are those of the episode under way: the memory is emptied by either ending, and by nothing else."""
    for number, cell in enumerate(cells(module)):
        trial, found = updates(module, number)

        def says(resets: np.ndarray, trial: Trial = trial, found: Any = found) -> str:
            return differ(found, "value", along(module, trial, AT, resets, reward=PAID)[0])

        if said := says(BEGINS):
            causes = {f"the memory {how}": partial(says, resets) for how, resets in FORGETTING.items()}
            raise AssertionError((f"with {cell}, " if number else "") + said + cause_of(causes))


@of_memory("the memory: that of another environment, or emptied where another's episode ends")
def memories_apart(module: ModuleType) -> None:
    """Values of two environments whose episodes end at different times are those of each one's own steps."""
    need(module, "num_envs", "num_steps", "num_minibatches", "learning_rate")
    starts = replace(ONE, start=np.isin(np.arange(len(ONE.obs)), (0, 3)).astype(np.float32) / 2)
    trial = Trial(module, starts, 0.0, env=ON_ONE, num_envs=2, num_steps=4, num_minibatches=1)
    found = trial.run(3)
    ways = [(first + np.arange(12)) % 5 for first in (0, 3)]
    paid = np.mean([ONE.reward[at[:4], 0] for at in ways])
    differently = np.abs(emitted(found, "reward_mean")["reward_mean"][0] - paid) < 1e-4
    if differently.sum() < 8:
        raise CannotAskError("its environments hardly ever begin in different states")
    values = [
        along(module, trial, at, (at == 0) | (at == 3), reward=ONE.reward[(at - 1) % 5, 0])[0].reshape(SEEDS, 3, 4)
        for at in ways
    ]
    wanted = np.concatenate(values, axis=2).reshape(SEEDS, 24)[differently]
    if said := differ({name: x[:, differently] for name, x in found.items()}, "value", wanted):
        raise AssertionError(f"in two environments, {said}")


@of_memory("what of another episode is not forgotten where one begins")
def first_steps(module: ModuleType) -> None:
    """In an episode's first step neither memory nor last action and reward change what the agent says."""
    for cell in cells(module):
        chosen = {"last_inputs": True, **cell}
        trial = Trial(module, FIVE, learning_rate=3e-2, env=ON_FIVE, **chosen)
        state, *_ = trial.update(trial.state, 0)

        def of_seed(state: Any, memory: Any, action: Any, reward: Any, agent: Any = trial.agent) -> Any:
            seen = memory, jnp.asarray(FIVE.obs)[2], action, reward, jnp.bool(True)
            return *agent.policy(state, *seen), *agent.value(state, *seen)

        say = compiled(jax.vmap(of_seed, (0, None, None, None)))
        memory, zero = trial.agent.memory0, (jnp.int32(0), jnp.float32(0))
        fresh = say(state, memory, *zero)
        for what, given in (
            ("memory", (jax.tree.map(lambda x: x + 0.7, memory), *zero)),
            ("last action", (memory, jnp.int32(1), zero[1])),
            ("last reward", (memory, zero[0], jnp.float32(5))),
        ):
            names = "policy", "memory after it", "value", "memory after it"
            for name, got, wanted in zip(names, say(state, *given), fresh, strict=True):
                for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
                    close(f"the {name} of an episode's first step, with a {what} of another episode,", x, y, 1e-5)


@of_memory("the memory: nothing comes of what was before")
def later_steps(module: ModuleType) -> None:
    """In later steps the memory changes what the agent says."""
    trial = Trial(module, FIVE, learning_rate=3e-2, env=ON_FIVE)
    state, *_ = trial.update(trial.state, 0)

    def of_seed(state: Any, memory: Any) -> Any:
        seen = memory, jnp.asarray(FIVE.obs)[1], jnp.int32(0), jnp.float32(0), jnp.bool(False)
        return trial.agent.value(state, *seen)[0]

    say = compiled(jax.vmap(of_seed, (0, None)))
    memory = trial.agent.memory0
    other = jax.tree.map(lambda x: x + 0.7, memory)
    if np.abs(np.asarray(say(state, other)) - np.asarray(say(state, memory))).max() < 1e-6:
        raise AssertionError("the value of a second step is the same whatever the memory")


@of_memory("the memory with which a final observation is valued")
def remembered_finals(module: ModuleType) -> None:
    """What a step led to is valued with the memory of its episode, before any reset."""
    need(module, *KNOWN)
    trial, found = updates(module)
    value, _, memory = along(module, trial, AT, BEGINS, reward=PAID)
    if differ(found, "value", value):
        raise CannotAskError("its values are not those that it says")
    reward, leads_to = ONE.reward[AT, 0], ONE.next[AT, 0]
    ended = (ONE.terminated | ONE.truncated)[AT, 0]
    first = np.where(ended, ONE.after[AT, 0], leads_to)
    empty = jax.tree.map(lambda x, start: np.broadcast_to(start, x.shape), memory, trial.agent.memory0)
    old = jax.tree.map(lambda x, start: np.concatenate([start[:, :1], x[:, :-1]], axis=1), memory, empty)
    before = jax.tree.map(lambda x, start: np.where(BEGINS.reshape(-1, *[1] * (x.ndim - 2)), start, x), old, empty)

    def valued(memory: Any, to: np.ndarray, reset: Any = False) -> np.ndarray:
        return led_to(module, trial, memory, to, reset, reward=reward)

    def says(after: np.ndarray) -> str:
        rollouts = (x.reshape(*x.shape[:-1], 3, STEPS) for x in (reward, value, after, ONE.terminated[AT, 0], ended))
        return differ(found, "advantage", traced(*rollouts).reshape(SEEDS, -1))

    if said := says(valued(memory, leads_to)):
        next_first = "a final observation's value is that of the next episode's first"
        others = {
            "a final observation is valued with the memory after the reset": valued(memory, leads_to, ended),
            "what a step leads to is valued with an empty memory": valued(empty, leads_to),
            "what a step leads to is valued with the memory before that step": valued(before, leads_to),
            "what a step leads to is valued with the memory before it, be it another episode's": valued(old, leads_to),
            "what a step leads to is valued as if it had not been seen": value,
            next_first: valued(memory, first, ended),
            f"{next_first}, with the old memory": valued(memory, first),
        }
        if not (cause := cause_of({cause: partial(says, after) for cause, after in others.items()})):
            raise CannotAskError("its advantages are its own")
        raise AssertionError(said + cause)


@of_memory("the last action and the last reward, which the network is shown")
def last_shown(module: ModuleType) -> None:
    """Values are those of a network that is shown what was done last and what it paid, or nothing in a first step."""
    trial = exact_trial(module, LINE, ON_LINE, learning_rate=0.0, last_inputs=True)
    found = trial.run(1)
    action = actions_on_line(emitted(found, "reward_mean")["reward_mean"][0])
    at, reward = np.arange(7), np.take_along_axis(LINE.reward[None, :7], action[..., None], -1)[..., 0]
    begins = np.isin(at, (0, 3, 5))

    def late(x: np.ndarray, steps: int = 1) -> np.ndarray:
        return np.concatenate([np.zeros((SEEDS, steps), x.dtype), x[:, :-steps]], axis=1)

    def wrong(action: Any, reward: Any) -> str:
        return differ(found, "value", along(module, trial, at, begins, action, reward)[0], 1e-4)

    if said := wrong(late(action), late(reward)):
        others: dict[str, tuple[Any, Any]] = {
            "the network is not shown the last action": (0, late(reward)),
            "the network is not shown the last reward": (late(action), 0.0),
            "the network is shown neither the last action nor the last reward": (0, 0.0),
            "the network is shown the action before the last one": (late(action, 2), late(reward)),
            "the network is shown the reward before the last one": (late(action), late(reward, 2)),
            "the network is shown actions and rewards a step late": (late(action, 2), late(reward, 2)),
        }
        raise AssertionError(said + cause_of({cause: partial(wrong, *given) for cause, given in others.items()}))

    value, _, memory = along(module, trial, at, begins, late(action), late(reward))

    line: Any = trial.params
    leads_to, terminated, truncated = (x[at, 0] for x in (line.next, line.terminated, line.truncated))

    def advantages(action: Any, reward_shown: Any) -> str:
        after = led_to(module, trial, memory, leads_to, action=action, reward=reward_shown)
        return differ(found, "advantage", traced(reward, value, after, terminated, terminated | truncated), 1e-4)

    if said := advantages(action, reward):
        with_last = "what a step leads to is valued with the"
        others = {
            f"{with_last} action before": (late(action), reward),
            f"{with_last} reward before": (action, late(reward)),
            f"{with_last} action and the reward before": (late(action), late(reward)),
            "what a step leads to is valued without the last action": (0, reward),
            "what a step leads to is valued without the last reward": (action, 0.0),
            "what a step leads to is valued without last action and reward": (0, 0.0),
        }
        if not (cause := cause_of({cause: partial(advantages, *given) for cause, given in others.items()})):
            raise CannotAskError("its advantages are its own")
        raise AssertionError(said + cause)


@of_memory("the last action: not as the environment took it, but as it was sampled")
def last_taken(module: ModuleType) -> None:
    """Where a Box is so narrow that all actions are cut to nearly 0, values are those of such actions."""
    need(module, "last_inputs", "num_envs", "num_steps", "learning_rate")
    trial = Trial(module, ONE, learning_rate=0.0, env=ON_NARROW, num_steps=STEPS, last_inputs=True)
    if said := differ(trial.run(3), "value", along(module, trial, AT, BEGINS, reward=PAID)[0]):
        raise AssertionError(f"where actions are cut to nearly 0, {said}")


@of_memory("the last reward, in units that playing does not know")
def last_unscaled(module: ModuleType) -> None:
    """What is learned with scaled rewards follows from last rewards in the environment's units, but for one factor."""
    need(module, "scale_rewards", "last_inputs", "num_envs", "num_steps", "learning_rate")
    settings: dict[str, Any] = {"num_steps": STEPS, "last_inputs": True, "scale_rewards": True}
    trial = Trial(module, replace(ONE, reward=20 * ONE.reward), learning_rate=0.0, env=ON_ONE, **settings)
    trial.run(2)
    value = along(module, trial, AT, BEGINS, reward=20 * PAID)[0][:, 2 * STEPS :]  # of the state that they follow from
    found = emitted(trial.update(trial.state, 2)[1], "value_mean", "value_std", "value_min", "value_max")
    wanted = {name: getattr(value, name.removeprefix("value_"))(1) for name in found}
    first, *others = found
    for name in others:  # values are in the environment's units, and those of metrics are scaled
        got = found[name] / np.abs(found[first])
        close(f"{name} to {first}, where rewards are scaled,", got, wanted[name] / np.abs(wanted[first]), 1e-3)


@of_memory("what learning sees of a sequence: the memory that it begins with, its resets, the order of its steps")
def cut_sequences(module: ModuleType) -> None:
    """Where nothing is learned, ratios are 1 however rollouts are cut into sequences."""
    for number in range(len(cells(module))):
        for length, metrics in losses_of_sequences(module, number).items():
            for name, x in emitted(metrics, "first_ratio_error", "approx_kl").items():
                if not np.abs(x).max() < 1e-4:
                    raise AssertionError(f"{name} is {x.max():.2g} in {of_length(length)}, where nothing is learned")


@of_memory("what is learned from of a sequence, or the memory that it begins with", LIKENESS)
def losses_apart(module: ModuleType) -> None:
    """Where nothing is learned, losses are the same however rollouts are cut into sequences."""
    whole, *others = losses_of_sequences(module).items()
    for length, metrics in others:
        for name, x in emitted(metrics, "value_loss", "policy_loss", "loss").items():
            close(f"{name} in {of_length(length)}, where nothing is learned,", x, whole[1][name], 1e-4)


def of_length(length: int | None) -> str:
    """What rollouts of 12 steps are cut into, in words."""
    return f"sequences of {length} of 12 steps" if length else "sequences of all 12 steps"


@functools.cache
def losses_of_sequences(module: ModuleType, number: int = 0) -> dict[Any, dict[str, np.ndarray]]:
    """Metrics `[S]` of an update at a learning rate of 0, by the length of its sequences; with one of the `cells`.

    The network is shown what was done last, and what it paid, as nothing here has to be known.
    """
    need(module, "sequence_length", "num_envs", "num_steps", "learning_rate", "norm_adv")
    cell = cells(module)[number]
    settings: dict[str, Any] = {"num_steps": 12, "norm_adv": False, "env": ON_FIVE, "last_inputs": True, **cell}
    begun = Trial(module, FIVE, learning_rate=3e-2, **settings)
    begun.run(3)
    found = {}
    for length in (4,) if number else (None, 4, 1):
        trial = Trial(module, FIVE, learning_rate=0.0, state=begun.state, sequence_length=length, **settings)
        found[length] = trial.update(trial.state, 3)[1]
    return found


@of_memory("the memory: how it takes up what is new", LIKENESS, Network="num_outputs discrete config")
def known_cell(module: ModuleType) -> None:
    """Memories follow from those before as of a GRU (Cho et al. 2014, as in cuDNN) or LSTM (Gers et al. 2000)."""
    need(module, "cell", "memory_size")
    rng = np.random.default_rng(0)
    for cell in cells(module):
        config = module.Config(memory_size=3, **cell)
        agent = module.make(config, ON_FIVE, FIVE)
        lstm = config.cell == "lstm"
        if np.shape(agent.memory0) != (size := 6 if lstm else 3,):
            raise CannotAskError("its memory is not one array of memory_size numbers, of an LSTM twice as many: h, c")
        params = jax.device_get(compiled(agent.init)(jax.random.key(0)).params)
        network = module.Network(2, True, config)
        among = f"{config.cell}: the memory after a step"
        memory, new = rng.uniform(-0.9, 0.9, (8, size)), rng.normal(0, 1, (8, 12 if lstm else 9))
        old, weights = memory[:, :3], params["params"]["recurrent"]
        recurrent = old @ np.float64(weights["kernel"]) + np.float64(weights["bias"])
        if lstm:
            write, forget, output, news = np.split(new + recurrent, 4, axis=1)
            c = expit(forget + 1) * memory[:, 3:] + expit(write) * np.tanh(news)
            wanted = np.concatenate([expit(output) * np.tanh(c), c], axis=1)
        else:
            (xr, xz, xn), (hr, hz, hn) = np.split(new, 3, axis=1), np.split(recurrent, 3, axis=1)
            keep = expit(xz + hz)
            wanted = keep * old + (1 - keep) * np.tanh(xn + expit(xr + hr) * hn)
        close(among, network.apply(params, jnp.float32(memory), jnp.float32(new), method="remember"), wanted)
        if lstm:  # only its h is shown to what follows
            said, beside = (
                jax.tree.leaves(network.apply(params, jnp.float32(x), method="decide"))
                for x in (memory, np.concatenate([old, -memory[:, 3:]], axis=1))
            )
            for x, y in zip(said, beside, strict=True):
                close("lstm: what is decided with another c, and the same h,", y, x)


@of_memory("gradients: on their way through the network and back in time, something stops them", LIKENESS)
def memory_gradients(module: ModuleType) -> None:
    """Gradients of values and policies, through all that is remembered, are what small changes of parameters do.

    Then gradient steps with a memory of another kind than the first lead where Adam does; see exact_policy.
    """
    for number, cell in enumerate(cells(module)):
        among = f"with {cell}, " if number else ""
        trial = exact_trial(module, LINE, ON_LINE, **cell)
        trial.state, metrics, answers = trial.update(trial.state, 0)
        batch = on_line(trial.params, metrics, answers)
        (floats, put), state = floats_of(trial.state), batch.state[0]
        direction = [np.random.default_rng(i).normal(0, 1e-3, np.shape(x)) for i, x in enumerate(floats)]

        def moved(by: int, trial: Trial = trial, floats: Any = floats, put: Any = put, to: Any = direction) -> Any:
            changed = [jnp.asarray(x + by * d, jnp.float32) for x, d in zip(floats, to, strict=True)]
            value, policy = trial.update(put(changed), 1)[2][:2]
            return np.float64(value), np.log(np.float64(policy))

        gradients = differentiated(module, trial, floats, batch)[1:]
        for what, gradient, up, down in zip(("values", "policies"), gradients, moved(1), moved(-1), strict=True):
            change = (up - down)[:, state].reshape(SEEDS, -1)
            change = change @ np.arange(1.0, 1 + change.shape[1]) / 2  # as `gradients` weighs them
            off = np.linalg.norm((rows(gradient) * rows(direction)).sum(1) - change) / np.linalg.norm(change)
            if not off < 0.02:
                raise AssertionError(
                    f"{among}gradients of {what} are {off:.1%} beside what small changes of the parameters do: "
                    "something stops them"
                )
        if number:
            predicted_by(module, exact_policy)
            try:
                as_predicted(update_on_line(module, **cell))
            except AssertionError as error:
                raise AssertionError(f"{among}{error}") from error


@of_memory("a metric of the memory", DEFINITION)
def known_memory(module: ModuleType) -> None:
    """Its metrics are those of the agent after the update, led along a rollout that is known beforehand."""
    need(module, "num_envs", "num_steps")
    shown_nothing_else(module)
    at, begins = AT[:10], BEGINS[:10]
    for cell, larger in itertools.product(cells(module), (False, True)):
        settings: Any = {"env": ON_FIVE, "num_steps": 10, "learning_rate": 3e-2, **cell}
        if larger:  # what is shown is so large that units saturate
            one = Trial(module, replace(FIVE, obs=30 * FIVE.obs), hidden_sizes=(), **settings)
        else:
            one = Trial(module, FIVE, **settings)
        size = getattr(one.config, "memory_size", None)
        if np.shape(one.agent.memory0) != (size * (1 + (cell == LSTM)) if size else None,):
            raise CannotAskError("its memory is not one array of memory_size numbers, of an LSTM twice as many: h, c")
        _, _, memory_before = along(module, one, at, begins)
        one.state, metrics, _ = one.update(one.state, 0)
        _, policy, memory = (np.asarray(x, np.float64) for x in along(module, one, at, begins))
        bounded = np.tanh(memory[..., size:]) if cell == LSTM else memory
        _, without, _ = along(module, one, at, np.ones(10, bool))
        last, old = memory[:, -1], memory_before[:, -1]
        wanted = {
            "memory_norm": np.sqrt((memory[..., :size] ** 2).mean((1, 2))),
            "memory_saturation": (np.abs(bounded) > 0.95).mean((1, 2)),
            "memory_kl": (policy * np.log(policy / np.maximum(without, 1e-30))).sum(-1).mean(1),
            "memory_staleness": np.linalg.norm(last - old, axis=1) / np.linalg.norm(last, axis=1),
            "memory_gradient": backward(module, one, memory),
        }
        among = "" if cell == cells(module)[0] else f"with {cell}, "
        for name, x in emitted(metrics, *wanted).items():
            close(f"{among}{name}", x, wanted[name], 2e-3)
            large = wanted[name] > 1e-4  # which way round a divergence is shows in its last digits
            close(f"{among}{name}, to what it should be,", x[large] / wanted[name][large], np.ones(large.sum()), 0.01)


def backward(module: ModuleType, trial: Trial, memory: np.ndarray) -> np.ndarray:
    """By what a gradient's norm changes in a step back along the first ten of FIVE, whose memories are known; `[S]`."""

    def of_seed(state: Any, memory: Any) -> Any:
        unit = gradient = jnp.full(memory.shape[1], memory.shape[1] ** -0.5)
        logs = []
        for t in range(9, -1, -1):

            def step(before: Any, t: int = t) -> Any:
                seen = jnp.asarray(trial.params.obs)[AT[t]], jnp.int32(0), jnp.float32(0), jnp.bool(False)
                return trial.agent.policy(state, before, *seen)[1]

            before = memory[t - 1] if t else jnp.zeros_like(memory[0])
            (gradient,) = jax.vjp(step, before)[1](gradient)
            norm = jnp.linalg.norm(gradient)
            gradient = unit if BEGINS[t] else gradient / norm
            logs += [] if BEGINS[t] else [jnp.log(norm)]
        return jnp.exp(jnp.stack(logs).mean())

    return np.asarray(compiled(jax.vmap(of_seed))(trial.state, jnp.asarray(memory, jnp.float32)))
