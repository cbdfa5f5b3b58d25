"""Oracles over the contract: they run for every agent of their kind, on a few updates of it."""

import functools
import math
import re
from dataclasses import replace
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from probes.environments import Tables, Tabular, Targets, tables
from probes.oracles.base import (
    COIN,
    COUNT,
    CYCLE,
    DEFINITION,
    LIKENESS,
    NOISE,
    SECOND,
    SEEDS,
    CannotAskError,
    Unknown,
    close,
    compiled,
    emitted,
    knows_masks,
    need,
    oracle,
    part,
    settings_in,
)
from probes.ways import answered, has_memory, of_three_actions, ways
from rlref.contract import ALL, CEM, GRADIENT, PPO
from rlref.errors import line_of

UPDATES = 20


def env_for(params: Any) -> Tabular:
    """The environment of tables; where there is one of their shape, with other tables as its default."""
    return Tabular(COUNT if params.obs.shape == COUNT.obs.shape else params)


@functools.cache
def programs(module: ModuleType, env: Any = None) -> Any:
    """(config, tables, keys) -> states, and (config, tables, ways, states, step) -> states, metrics, answers.

    `env` is that of the tables, if None; answers are values and policies of the tables' states, before and after.
    """

    def env_of(params: Any) -> Any:
        return env_for(params) if env is None else env

    def agent_of(config: Any, params: Any) -> Any:
        return module.make(config, env_of(params), params)

    def init(config: Any, params: Any, key: jax.Array) -> Any:
        return agent_of(config, params).init(key)

    def update(config: Any, params: Any, led: Any, state: Any, step: jax.Array) -> Any:
        agent = agent_of(config, params)
        new, metrics = agent.update(state, step)
        both = [answered(agent, s, env_of(params), params, led) for s in (state, new)]
        answers = [x for value_and_policy in both for x in value_and_policy if x is not None]
        return new, metrics, answers

    over_seeds = jax.vmap(update, (None, None, None, 0, None))
    return compiled(jax.vmap(init, (None, None, 0))), compiled(over_seeds)


class Trial:
    """A few updates of an agent on a small task, `S` seeds side by side; a setting its Config lacks stays unset.

    `env` is the environment, if it is not one of tables; `state` is where to begin, of a trial of the same shapes.
    Raises CannotAskError if its `make` refuses the settings.
    """

    def __init__(
        self,
        module: ModuleType,
        params: Tables | Targets,
        learning_rate: float = 1e-2,
        epsilon: float = 0.5,
        end_e: float | None = None,
        tau: float = 1.0,
        cycles: int = 1,
        env: Any = None,
        state: Any = None,
        **settings: Any,
    ):
        fields = settings_in(module)
        wanted = {
            "num_envs": 7,
            "num_steps": 11,
            "num_minibatches": 7,
            "hidden_sizes": (16, 16),
            "learning_rate": learning_rate,
            "anneal_lr": True,
            "normalize_observations": False,
            "scale_rewards": False,
            "total_timesteps": 77 * UPDATES * cycles,
            # A gradient step every 77 steps, on a buffer that holds just these; a sync at every second one.
            "train_frequency": 77,
            "cycles_per_update": cycles,
            "learning_starts": 77,
            "buffer_size": 77,
            "batch_size": 31,
            "target_network_frequency": 154,
            "tau": tau,
            "buffer_dtype": "same",
            "n_step": 1,
            "target": "double",
            "loss": "squared",
            "start_e": epsilon,
            "end_e": epsilon if end_e is None else end_e,
            "exploration_fraction": 0.5,
            # A tenth of the candidates is 7.
            "num_generations": UPDATES,
            "population_size": 67,
            "elite_fraction": 0.1,
            "num_rollouts": 5,
            "num_eval_rollouts": 11,
            "max_episode_steps": None,
            "init_variance": 1.0,
            "extra_variance": 0.0,
            "extra_variance_fraction": 0.5,
            "smoothing": 0.0,
            # An agent with a memory is asked along ways, whatever is done on them, and learns from whole rollouts.
            "last_inputs": False,
            "sequence_length": None,
            "memory_size": 16,
            **settings,
        }
        if "num_generations" in fields:  # a linear policy, whose parameters' meaning is known
            wanted["hidden_sizes"] = ()
        self.config = module.Config(**{k: v for k, v in wanted.items() if k in fields})
        self.env = env_for(params) if env is None else env
        try:
            agent = module.make(self.config, self.env, params)
        except ValueError as error:
            raise CannotAskError(f"its make refuses the trial's settings: {error}") from error
        self.agent, self.num_updates, steps = agent, agent.num_updates, agent.steps_per_update
        own = "num_generations" not in fields and steps != wanted["num_envs"] * wanted["num_steps"] * cycles
        self.why = f"one update of it takes {steps} steps, whatever is set" if own else ""
        init, self.program = programs(module, env)
        self.params = params
        self.led = ways(params) if has_memory(module) else None
        self.state = init(self.config, params, jax.vmap(jax.random.key)(jnp.arange(SEEDS))) if state is None else state

    def update(self, state: Any, step: int) -> tuple[Any, dict[str, np.ndarray], list[np.ndarray]]:
        """The new state, metrics `[S]`, and [value, policy before, value, policy after] `[S, n, ...]`.

        Of an agent without values, the policies alone. Raises CannotAskError after the last of its updates.
        """
        if step >= self.num_updates:
            raise CannotAskError(f"its training is of {self.num_updates} update{'s' * (self.num_updates > 1)}")
        state, metrics, answers = self.program(self.config, self.params, self.led, state, np.int32(step))
        return state, Unknown(self.why) if self.why else jax.device_get(metrics), jax.device_get(answers)

    def run(self, updates: int) -> dict[str, np.ndarray]:
        """Metrics `[updates, S]`."""
        metrics = []
        for step in range(updates):
            self.state, found, _ = self.update(self.state, step)
            metrics.append(found)
        return metrics[0] and {name: np.stack([m[name] for m in metrics]) for name in metrics[0]}


def shown_nothing_else(module: ModuleType) -> None:
    """Raise CannotAskError if what was done last, and paid, changes what the agent says, and no setting ends that."""
    if "last_inputs" not in settings_in(module) and sees_last(module):
        raise CannotAskError("its network is shown last actions and rewards, and its Config lacks last_inputs")


@functools.cache
def sees_last(module: ModuleType) -> bool:
    """Whether last action and reward change the value of an agent with a memory, at its own settings."""
    agent = of_three_actions(module)

    def say(action: Any, reward: Any) -> Any:
        seen = agent.memory0, jnp.zeros(1), action, reward, jnp.bool(False)
        return agent.value(agent.init(jax.random.key(0)), *seen)[0]

    ask = compiled(say)
    first, *others = (float(ask(jnp.int32(i), jnp.float32(x))) for i, x in ((0, 0), (1, 0), (0, 5)))
    return any(abs(x - first) > 1e-6 for x in others)


@oracle(ALL, "random keys: one is used twice, or comes from a constant")
def keys_used_once(module: ModuleType) -> None:
    """JAX's checker of key reuse, on the program of two updates in a row; and every key comes from the one given."""
    trial = Trial(module, COUNT)
    agent = module.make(trial.config, Tabular(COUNT), COUNT)

    def two_updates(key: jax.Array) -> Any:
        return agent.update(agent.update(agent.init(key), jnp.int32(0))[0], jnp.int32(1))

    try:
        with jax.debug_key_reuse(True):
            program = jax.jit(two_updates).trace(jax.random.key(0))
    except jax.errors.KeyReuseError as error:
        where = line_of(error, module.__file__)
        raise AssertionError(
            f"{'' if where is None else f'line {where}: '}a random key is used a second time"
        ) from error
    if "random_seed" in str(program.jaxpr):
        raise AssertionError("a random key is made from a number within init or update: it is the same every time")


# Nothing pays anything.
IDLE = tables(obs=np.zeros((4, 4)), reward=np.zeros((4, 2)), next=[0] * 4, terminated=True)


@oracle(ALL, "the environment's parameters: those given to `make` are not used")
def given_parameters(module: ModuleType) -> None:
    """Where nothing pays anything, no episode returns 6 or 7, nor a step 3 or more, as by the environment's default.

    Less than that may have another cause, which others find.
    """
    for name, x in emitted(Trial(module, IDLE).run(1), "return_max", "reward_max").items():
        if (x[-1] > 2.5).any():
            raise AssertionError(f"{name} where all rewards are 0 is {x[-1].max():.3g}")


@oracle(GRADIENT, "random keys: used twice over environments, steps, updates or seeds")
def fresh_randomness(module: ModuleType) -> None:
    """Rewards of +1 and -1 are drawn anew each time: the variance of their mean over 77 is 1 / 77."""
    reward = emitted(Trial(module, NOISE).run(4), "reward_mean")["reward_mean"]
    if np.abs(reward).max() < 1e-6:
        raise CannotAskError("its mean reward is always 0")
    if (reward[1:] == reward[:-1]).mean() > 0.5:
        raise AssertionError("updates repeat the same rewards: the key is not advanced")
    if (reward[:, 1:] == reward[:, :-1]).mean() > 0.5:
        raise AssertionError("seeds repeat the same rewards: the key is not theirs")
    ratio = 77 * float(np.mean(reward**2))  # 256 means: within .35 of 1 but once in 10,000
    if not 0.65 < ratio < 1.35:
        raise AssertionError(f"mean rewards vary {ratio:.1f} x as much as independent draws: keys are shared, or stuck")


@oracle(PPO, "the probabilities that the network gives: the normalisation of its outputs")
def probabilities(module: ModuleType) -> None:
    """Those of all actions add up to 1, and none is below 0."""
    trial = Trial(module, COUNT)
    for _, policy in asked_twice(trial):
        close("the sum of the probabilities of all actions", policy.sum(-1), np.ones(policy.shape[:2]), 1e-3)
        close("what of a probability is below 0", np.minimum(policy, 0), np.zeros(policy.shape))


@oracle(PPO, "the hidden layers: they have no activation")
def curved_value(module: ModuleType) -> None:
    """A network with hidden layers is no linear function of what it is shown."""
    need(module, "hidden_sizes")
    values = [value for value, _ in asked_twice(Trial(module, SUMS))]
    told = [x for x in values if np.ptp(x, axis=1).max() > 1e-3 * np.abs(x).max()]  # a head may begin at zero
    if not told:
        raise CannotAskError("its value hardly depends on what is shown, neither at first nor after an update")
    for value in told:
        bend = np.abs(value[:, 3] + value[:, 0] - value[:, 1] - value[:, 2])
        if bend.max() < 1e-4 * np.abs(value).max():
            raise AssertionError("V(x + y) + V(0) is V(x) + V(y) in every seed: the network is linear")


# Nothing, x, y and x + y are shown.
SUMS = tables(
    obs=np.array([[0, 0, 0, 0], [1, -1, 2, 0], [0, 1, 1, -2], [1, 0, 3, -2]]), reward=[[0.0, 0.0]] * 4, next=[0] * 4
)


def asked_twice(trial: Trial) -> list[tuple[np.ndarray, np.ndarray]]:
    """Values `[S, n]` and policies `[S, n, A]` before a trial's first update, and after it."""
    _, _, (value, policy, new_value, new_policy) = trial.update(trial.state, 0)
    return [(value, policy), (new_value, new_policy)]


@oracle(PPO, "the rewards that are learned from", DEFINITION)
def known_rewards(module: ModuleType) -> None:
    """Without scaling they are the environment's."""
    need(module, "num_envs", "num_steps")
    compare_rollouts(module, "reward")


def excess_of_first(module: ModuleType) -> tuple[np.ndarray, np.ndarray]:
    """How much more often than by the policy the first of two actions is taken, in standard deviations of 77 draws, in
    four updates that learn nothing, `[4, S]`; and the policy's probability of it.

    Raises CannotAskError if that becomes NaN.
    """
    trial, excess, odds = Trial(module, COIN, learning_rate=0.0), [], []
    for step in range(4):
        trial.state, metrics, (_, policy, *_) = trial.update(trial.state, step)
        reward = emitted(metrics, "reward_mean")["reward_mean"]
        mean = 2.0 * policy[:, 0, 0] - 1
        excess.append((reward - mean) / np.sqrt((1 - mean**2) / 77))
        odds.append(policy[:, 0, 0])
    if np.isnan(odds).any():  # whatever the reason is, it is not how actions are drawn
        raise CannotAskError("its policy becomes NaN, at a learning rate of 0")
    return np.stack(excess), np.stack(odds)


@oracle(PPO, "the sampling of actions: not by the policy's probabilities, but greedily")
def sampled_actions(module: ModuleType) -> None:
    """The likelier of two actions is taken as often as the policy says."""
    excess, odds = excess_of_first(module)
    mean = float(np.mean(excess * np.where(odds < 0.5, -1, 1)))
    if not abs(mean) < 0.7:  # 5 standard deviations of 256 means are .31; those of draws shared by 7 environments, .83
        raise AssertionError(
            f"the likelier of two actions is taken {abs(mean):.1f} standard deviations "
            f"{'more' if mean > 0 else 'less'} often than the policy says"
        )


@oracle(PPO, "the sampling of actions: a draw shared by environments, steps or seeds, or not the policy's odds")
def fresh_samples(module: ModuleType) -> None:
    """Actions that pay +1 and -1 vary about the policy's mean as independent draws do, p (1 - p)."""
    off, _ = excess_of_first(module)
    ratio = float(np.mean(off**2))
    if not 0.65 < ratio < 1.35:  # 256 means, as in fresh_randomness
        raise AssertionError(f"mean actions vary {ratio:.1f} x as much as independent draws from the policy")
    for what, pairs in (("updates", off[1:] * off[:-1]), ("seeds", off[:, 1:] * off[:, :-1])):
        if not abs(pairs.mean()) < 0.35:  # 5 standard deviations of 192 products
            raise AssertionError(f"actions are drawn alike in all {what}")


@oracle(GRADIENT, "the recording of episodes, or the averaging of metrics", DEFINITION)
def episode_metrics(module: ModuleType) -> None:
    """Episodes return 6 in three steps or 7 in two: return and length add up to 9."""
    last = {name: x[-1] for name, x in Trial(module, COUNT).run(3).items()}
    known = {"return_min": 6, "return_max": 7, "length_min": 2, "length_max": 3, "env_steps": 231}
    for name, x in emitted(last, *known).items():
        close(name, x, np.full(SEEDS, known[name]))
    if {"return_mean", "length_mean"} <= last.keys():
        close("return_mean + length_mean", last["return_mean"] + last["length_mean"], np.full(SEEDS, 9))


KNOWN: dict[str, Any] = {"gamma": 0.9, "gae_lambda": 0.7}


def traced(reward: Any, value: Any, after: Any, terminated: np.ndarray, ended: np.ndarray) -> np.ndarray:
    """Generalised advantages `[..., T]` of rollouts, with `KNOWN`; `after` is what each step led to is worth."""
    gamma, gae_lambda = KNOWN.values()
    advantage = np.asarray(reward + gamma * ~terminated * after - value)
    for t in range(advantage.shape[-1] - 2, -1, -1):
        advantage[..., t] += gamma * gae_lambda * ~ended[..., t] * advantage[..., t + 1]
    return advantage


@oracle(PPO, "the recording of a rollout's values and episodes", DEFINITION)
def known_rollout(module: ModuleType) -> None:
    """Where each step is known beforehand, what is reported of it is too; where nothing is learned, nothing moves."""
    need(module, "num_envs", "num_steps")
    compare_rollouts(module, "value", "return", "length", "episodes")
    _, got = without_learning(module)
    for name in ("approx_kl", "kl", "clip_fraction", "update_ratio"):
        if name in got:
            close(f"{name} at a learning rate of 0", got[name], np.zeros(SEEDS), 1e-3)


@oracle(PPO, "the entropy of the policy", DEFINITION)
def known_entropy(module: ModuleType) -> None:
    """It is that of the probabilities before the update, at the states visited."""
    need(module, "num_envs", "num_steps")
    compare_rollouts(module, "entropy")


@oracle(PPO, "advantages: discounting, lambda, endings, or the values of what steps led to", DEFINITION)
def known_advantages(module: ModuleType) -> None:
    """Where each step is known beforehand, advantages follow from the values before the update."""
    need(module, *KNOWN, "num_envs", "num_steps")
    compare_rollouts(module, "advantage")


TARGETS = ("target", "value_bias", "explained_variance")


@oracle(PPO, "targets, or what is said of them beside the values", DEFINITION)
def known_targets(module: ModuleType) -> None:
    """Where each step is an episode, values are fitted to its reward and the value of what it led to, if it is cut."""
    need(module, *KNOWN, "num_envs", "num_steps")
    compare_rollouts(module, *TARGETS, params=replace(CYCLE, truncated=~CYCLE.terminated, after=CYCLE.next))


@oracle(PPO, "targets over several steps: lambda, or what is said of them beside the values", LIKENESS)
def traced_targets(module: ModuleType) -> None:
    """Where each step is known beforehand, what values are fitted to are the values and their advantages."""
    need(module, *KNOWN, "num_envs", "num_steps")
    compare_rollouts(module, *TARGETS)


# One step for ever, cut by the time limit; what it leads to shows something else than the reset does.
CUT = tables(obs=np.eye(4) - 0.5, reward=[[0.0, 0.0]] * 4, next=[1] * 4, truncated=True, after=0)


@oracle(PPO, "what a rollout keeps as the observation that a step led to: it is that of the reset")
def final_observations(module: ModuleType) -> None:
    """After a time limit the value of what the last step led to counts, not of what the next episode begins with."""
    need(module, "gamma")
    trial = Trial(module, CUT, gamma=0.9)
    _, got, (value, *_) = trial.update(trial.state, 0)
    found = emitted(got, "target_mean", "target_min", "target_max")
    for name, x in found.items():
        close(f"{name} of steps that pay 0 and are cut", x, 0.9 * value[:, 1], 1e-3)


def apart(params: Tables) -> Tables:
    """The same, but what ends an episode or leads back leads to a new state, which shows something else.

    So there is one way to each state.
    """
    n = len(params.obs)
    leads_back = params.next[:, 0] <= np.arange(n)
    leave = np.flatnonzero((params.terminated | params.truncated)[:, 0] | leads_back)
    new = n + np.arange(len(leave))
    obs = np.random.default_rng(3).normal(size=(len(leave), *params.obs.shape[1:])).astype(np.float32)

    def more(x: np.ndarray, fill: Any) -> np.ndarray:
        return np.concatenate([x, np.full((len(leave), *x.shape[1:]), fill, x.dtype)])

    following = more(params.next, 0)
    following[leave], following[new] = new[:, None], new[:, None]
    return replace(
        params,
        obs=np.concatenate([params.obs, obs]),
        start=more(params.start, 0),
        reward=more(params.reward, 0),
        next=following,
        terminated=more(params.terminated, False),
        truncated=more(params.truncated, False),
        after=more(params.after, -1),
    )


def without_learning(module: ModuleType) -> tuple[Trial, dict[str, np.ndarray]]:
    """A trial on CYCLE at a learning rate of 0, and the metrics of its first update."""
    need(module, "learning_rate")
    trial = Trial(module, CYCLE, learning_rate=0.0, **KNOWN)
    return trial, trial.update(trial.state, 0)[1]


def of(wanted: dict[str, Any], asked: tuple[str, ...]) -> list[str]:
    """The metrics of `wanted` that are `asked` by their name, or by that of what they sum up."""
    return [name for name in wanted if name in asked or re.sub("_(mean|std|min|max)$", "", name) in asked]


def compare_rollouts(module: ModuleType, *asked: str, params: Tables = CYCLE) -> None:
    """Raise AssertionError unless three updates report, of the metrics that are `asked`, what follows.

    `params` go round four states as CYCLE does; returns and lengths are known on CYCLE alone. What an agent has
    remembered before an update is of parameters that are gone: while it learns, its rollouts begin with an episode.
    """
    if has_memory(module):
        compare_three(module, asked, apart(params), 12, 3e-2)
        compare_three(module, asked, apart(params), 11, 0.0)
    else:
        compare_three(module, asked, params, 11, 3e-2)


def compare_three(
    module: ModuleType, asked: tuple[str, ...], params: Tables, num_steps: int, learning_rate: float
) -> None:
    """The same, of rollouts of some length."""
    trial = Trial(module, params, learning_rate=learning_rate, num_steps=num_steps, **KNOWN)
    next_state, reward = params.next[:, 0], params.reward[:, 0].astype(np.float64)
    terminated, ended = params.terminated[:, 0], (params.terminated | params.truncated)[:, 0]
    returns, lengths = [], []
    for step in range(3):
        trial.state, got, (value, policy, *_) = trial.update(trial.state, step)
        at = (num_steps * step + np.arange(num_steps)) % 4
        v = value.astype(np.float64)[:, at]  # [S, T]
        advantage = traced(reward[at], v, value[:, next_state[at]], terminated[at], ended[at])
        target = advantage + v
        finished = int(ended[at].sum())
        returns += [{1: -1.0, 3: 3.5}.get(int(s), math.nan) for s in at if ended[s] for _ in range(7)]  # on CYCLE
        lengths += [2] * 7 * finished
        wanted = {"episodes": np.full(SEEDS, 7 * finished), "value_bias": advantage.mean(1)}
        wanted["explained_variance"] = 1 - advantage.var(1) / target.var(1)
        wanted["entropy"] = -(policy * np.log(policy)).sum(-1)[:, at].mean(1)
        last = np.array(returns[-100:])
        for name, x in (
            ("value", v),
            ("advantage", advantage),
            ("target", target),
            ("reward", np.tile(reward[at], (SEEDS, 1))),
            ("return", np.tile(last, (SEEDS, 1))),
            ("length", np.full((SEEDS, 1), 2.0)),
        ):
            wanted |= {f"{name}_{how}": getattr(x, how)(1) for how in ("mean", "std", "min", "max")}
        for name, x in emitted(got, *of(wanted, asked)).items():
            close(f"{name} in update {step}", x, wanted[name], 1e-3)


@oracle(PPO, "a metric, or the rewards that are learned from", DEFINITION)
def known_metrics(module: ModuleType) -> None:
    """On one observation whose reward is +1 or -1, each metric follows from V and the policy before and after."""
    trial = Trial(module, NOISE, learning_rate=3e-2)
    trial.run(2)  # away from the initial policy
    _, got, (value, before, _, after) = trial.update(trial.state, 2)
    v, before, after = value[:, 0], before[:, 0].astype(np.float64), after[:, 0].astype(np.float64)
    reward = got.get("reward_mean", np.full(SEEDS, np.nan))
    entropy = -(before * np.log(before)).sum(-1)
    wanted = {
        "entropy": entropy,
        "relative_entropy": entropy / math.log(2),
        "kl": (before * np.log(before / after)).sum(-1),
        "value_mean": v,
        "value_std": np.zeros(SEEDS),
        "target_mean": reward,
        "advantage_mean": reward - v,
        "value_bias": reward - v,
        "explained_variance": np.zeros(SEEDS),
        "reward_min": np.full(SEEDS, -1),
        "reward_max": np.full(SEEDS, 1),
        "episodes": np.full(SEEDS, 77),
        "nonfinite": np.zeros(SEEDS),
    }
    for name, x in emitted(got, *wanted).items():
        close(name, x, wanted[name], 1e-3)
    if "kl" in got:  # of two distributions that are near each other: which way round shows in its last digits
        large = wanted["kl"] > 1e-3
        close("kl, to what it should be", (got["kl"] / wanted["kl"])[large], np.ones(large.sum()), 0.03)


@oracle(PPO, "the stored log-probability, or what a minibatch has beside it")
def first_ratio(module: ModuleType) -> None:
    """Before its first gradient step the policy is the one that acted: every ratio is 1."""
    error = emitted(Trial(module, COUNT).run(3), "first_ratio_error")["first_ratio_error"]
    if not error.max() < 1e-4:
        raise AssertionError(
            f"the first ratio is off by {error.max():.2g}: not the probability the action was taken with"
        )


@oracle(PPO, "the policy's loss: the old log-probability in its ratio")
def moving_ratio(module: ModuleType) -> None:
    """After some gradient steps the policy is another than the one that acted: ratios are not 1."""
    metrics = Trial(module, COUNT).run(3)
    moved, seen = (emitted(metrics, name)[name] for name in ("kl", "approx_kl"))
    if moved.max() > 1e-5 and not seen.max() > 1e-7:
        raise AssertionError("the policy changes, but its ratio to the old one stays 1: the old one is computed anew")


@oracle(GRADIENT, "`value`: whose it is")
def evaluated_as_learned(module: ModuleType) -> None:
    """An update that learns moves the value that is asked for."""
    trial = Trial(module, COUNT)
    middle = min(UPDATES, trial.num_updates) // 2  # however the learning rate goes, it is not 0 there
    _, _, (before, _, after, _) = trial.update(trial.state, middle)
    if (before == after).all():
        raise AssertionError(f"update {middle} does not move the value: it is not of what learns")


@oracle(GRADIENT, "the learning rate's schedule", LIKENESS)
def schedule(module: ModuleType) -> None:
    """With anneal_lr the first, the middle and the last of 20 updates move the value by 1 : .5 : .05."""
    need(module, "anneal_lr", "total_timesteps", "learning_rate")
    if "train_frequency" in settings_in(module):
        need(module, "start_e", "end_e")  # else updates may act differently, and move the value elsewhere
    moved = []
    for step, rate in ((0, 1e-4), (UPDATES // 2, 1e-4), (UPDATES - 1, 1e-4), (UPDATES // 2, 2e-4)):
        trial = Trial(module, COUNT, learning_rate=rate)
        _, _, (before, _, after, _) = trial.update(trial.state, step)
        moved.append(np.abs(after - before).mean())
    if not max(moved) > 0:
        raise CannotAskError("no update of it moves the value")
    if not moved[0] > 0:
        raise AssertionError("the first update does not move the value")
    if moved[3] < 1.5 * moved[1]:
        raise CannotAskError("its steps do not grow with learning_rate")
    close("how far the middle update moves the value, to the first", moved[1] / moved[0], 0.5, 0.05)
    close("how far the last update moves the value, to the first", moved[2] / moved[0], 1 / UPDATES, 0.02)


@oracle(GRADIENT, "batching over seeds")
def seeds_apart(module: ModuleType) -> None:
    """What a seed learns does not depend on the seeds beside it, and no two learn the same."""
    trial = Trial(module, COUNT)
    _, _, (_, _, values, policies) = trial.update(trial.state, 0)
    _, _, (_, _, alike, _) = trial.update(jax.tree.map(lambda x: x[jnp.full(SEEDS, 3)], trial.state), 0)
    close("the value of a seed among copies of itself", alike[3], values[3], 1e-5)
    # Where one update is the whole training, values may end at the truth, to the last bit.
    distinct = len({x.tobytes() + (y.tobytes() if trial.num_updates == 1 else b"")
                    for x, y in zip(values, policies, strict=True)})  # fmt: skip
    if distinct < SEEDS:
        raise AssertionError(f"{SEEDS} seeds give {distinct} different values")


def two_updates(module: ModuleType) -> list[Any]:
    """The state at the start, after one update, and after two."""
    trial = Trial(module, COUNT)
    states = [trial.state]
    for step in range(2):
        states.append(trial.update(states[-1], step)[0])
    return states


@oracle(GRADIENT, "the gradient's path to a parameter")
def every_parameter_moves(module: ModuleType) -> None:
    """Two updates change every array of parameters."""
    start, _, end = two_updates(module)
    before, after = (jax.tree_util.tree_leaves_with_path(getattr(s, "params", None)) for s in (start, end))
    if not before:
        raise CannotAskError("its state has no params")
    for (path, old), (_, x) in zip(before, after, strict=True):
        if (np.asarray(old) == np.asarray(x)).all():
            raise AssertionError(f"the parameter {jax.tree_util.keystr(path)} does not move")


@oracle(GRADIENT, "the optimiser's state: it starts anew", LIKENESS)
def optimiser_goes_on(module: ModuleType) -> None:
    """The optimiser's counters of steps go on in a second update."""
    counters = [[x for x in jax.tree.leaves(getattr(s, "opt_state", ())) if np.asarray(x).dtype.kind == "i"]
                for s in two_updates(module)[1:]]  # fmt: skip
    if not counters[0]:
        raise CannotAskError("its state has no opt_state that counts steps")
    if any((np.asarray(a) >= np.asarray(b)).any() for a, b in zip(*counters, strict=True)):
        raise AssertionError("the optimiser starts anew in the second update")


# Contract-level checks of agents of a policy alone. They read `mean` and `variance` of the state.


@oracle(
    CEM, "the candidates: their number, spread or key; the refit's mean, the smoothing, or the extra variance", LIKENESS
)
def search_distribution(module: ModuleType) -> None:
    """Where scores are equal, the mean's steps vary by variance / k, and the variance keeps 1 - 1 / k, k elites."""
    need(module, "population_size", "elite_fraction", "init_variance", "smoothing", "extra_variance")
    start = 4.0
    # Of 67 candidates all; 4, which 3.7 is rounded to.
    for k, smoothing, extra in ((67, 0.0, 0.0), (67, 0.75, 0.0), (67, 0.75, 2.0), (4, 0.0, 0.0), (4, 0.75, 0.0)):
        fraction = 1.0 if k == 67 else 0.055
        trial = Trial(module, COUNT, elite_fraction=fraction, init_variance=start, smoothing=smoothing,
                      extra_variance=extra)  # fmt: skip
        close("the variance at the start", part(trial.state, "variance"), np.full((SEEDS, 10), start))
        close("the mean at the start", part(trial.state, "mean"), np.zeros((SEEDS, 10)))
        steps, case = [], f"with {k} elites, smoothing {smoothing} and extra variance {extra}"
        for step in range(4):
            old, (trial.state, _, _) = trial.state, trial.update(trial.state, step)
            (mean, new_mean), (before, after) = (
                [np.asarray(part(s, name), np.float64) for s in (old, trial.state)] for name in ("mean", "variance")
            )
            wanted = (smoothing + (1 - smoothing) * (1 - 1 / k)) * before.mean() + extra * (1 - step / (UPDATES / 2))
            # A sample's variance varies by 2 / (k - 1) of its square; five standard deviations of the mean of all.
            spread = (1 - smoothing) * (1 - 1 / k) * np.sqrt(2 / (k - 1) * (before**2).sum()) / before.size
            close(f"the variance after generation {step} {case}", after.mean(), wanted, 5 * spread / max(1, wanted))
            steps.append((new_mean - mean) / np.sqrt(before / k) / (1 - smoothing))
        moved = np.stack(steps)  # [4, S, D] standard normal draws
        ratio = float(np.mean(moved**2))
        if not 0.85 < ratio < 1.15:
            raise AssertionError(f"{case} the mean's steps vary {ratio:.2f} x as much as the mean of {k} candidates")
        for what, pairs in (
            ("generations", moved[1:] * moved[:-1]),
            ("seeds", moved[:, 1:] * moved[:, :-1]),
            ("parameters", moved[..., 1:] * moved[..., :-1]),
        ):
            if not abs(pairs.mean()) < 0.15:
                raise AssertionError(f"{case} candidates are drawn alike in all {what}: a key or a draw is shared")


@oracle(CEM, "a metric, or the evaluation of the mean", DEFINITION)
def known_c_metrics(module: ModuleType) -> None:
    """On one observation whose reward is +1 or -1 by the action, and on counted episodes, each metric follows."""
    trial = Trial(module, SECOND, init_variance=4.0)
    for step in range(2):  # at first the mean is 0, whose policy takes the first action
        old, (trial.state, got, answers) = trial.state, trial.update(trial.state, step)
        wanted = known_of_generation(old, trial.state, answers[-1][:, 0], got)
        for name, x in emitted(got, *wanted).items():
            close(f"{name} in generation {step}", x, wanted[name], 1e-3)
    counted = Trial(module, COUNT).run(2)
    if {"return_mean", "length_mean"} <= counted.keys():
        close("return_mean + length_mean", counted["return_mean"] + counted["length_mean"], np.full((2, SEEDS), 9.0))


def known_of_generation(old: Any, new: Any, policy: np.ndarray, got: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What metrics `[S]` of a generation on `SECOND` follow from the states around it and the new `policy` `[S, A]`."""
    (mean, new_mean), (variance, new_variance) = (
        [np.asarray(part(s, name), np.float64) for s in (old, new)] for name in ("mean", "variance")
    )
    ratio, size = new_variance / variance, mean.shape[1]
    of_mean, of_variance = ((new_mean - mean) ** 2 / variance).sum(1) / 2, (ratio - 1 - np.log(ratio)).sum(1) / 2
    entropy = np.log(2 * math.pi * math.e * variance).sum(1) / 2
    ones = np.ones(SEEDS)
    wanted = {
        "entropy": entropy,
        "relative_entropy": entropy / size,
        "kl": of_mean + of_variance,
        "kl_mean_term": of_mean,
        "kl_variance_term": of_variance,
        "kl_refit": of_mean + of_variance,  # without smoothing or extra variance
        "std_min": np.sqrt(variance).min(1),
        "std_mean": np.sqrt(variance).mean(1),
        "mean_policy_return": np.where(policy.argmax(-1) == 1, 1.0, -1.0),
        "selection_bias": 0 * ones,
        "return_min": -ones,
        "return_max": ones,
        "return_count": 67 * ones,
        "elite_mean": ones,
        "elite_threshold": ones,
        "explained_variance": ones,
        "length_mean": ones,
        "length_std": 0 * ones,
        "nonfinite": 0 * ones,
    }
    if "return_mean" in got:  # of +1 and -1
        wanted["return_std"] = np.sqrt(1 - np.float64(got["return_mean"]) ** 2)
        if (np.abs(got["return_mean"]) == 1).any():
            del wanted["return_min"], wanted["explained_variance"]  # a seed whose candidates all do the same
    return wanted


@oracle(CEM, "batching over seeds")
def searches_apart(module: ModuleType) -> None:
    """What a seed finds does not depend on the seeds beside it, and no two find the same."""
    trial = Trial(module, COIN)
    new, _, _ = trial.update(trial.state, 0)
    alike, _, _ = trial.update(jax.tree.map(lambda x: x[jnp.full(SEEDS, 3)], trial.state), 0)
    found = np.asarray(part(new, "mean"))
    close("the mean of a seed among copies of itself", np.asarray(part(alike, "mean"))[3], found[3], 1e-5)
    distinct = len({x.tobytes() for x in found})
    if distinct < SEEDS:
        raise AssertionError(f"{SEEDS} seeds give {distinct} different means")


# What no training survives.
BROKEN = tables(obs=np.zeros((4, 4)), reward=np.full((4, 2), np.nan), next=[0] * 4, terminated=True)


@oracle(ALL, "the metric `nonfinite`", DEFINITION)
def nonfinite_shows(module: ModuleType) -> None:
    """It is 1 where a reward is not a number, and 0 where all is well."""
    for params, wanted in ((COUNT, 0), (BROKEN, 1)):
        found = emitted(Trial(module, params).run(1), "nonfinite")["nonfinite"][-1]
        close(f"nonfinite where rewards are {'' if wanted else 'not '}NaN", found, np.full(SEEDS, wanted))


# Of three actions one is forbidden in each state, and pays what no other does. Each step is an episode.
MAY = ~np.eye(3, dtype=bool)
MASKED = tables(
    obs=np.concatenate([np.eye(3), MAY], axis=1), reward=np.where(MAY, 1.0, -100.0), next=[0, 1, 2], terminated=True,
    start=np.full(3, 1 / 3), action_mask=3,
)  # fmt: skip


def first_masked_update(
    module: ModuleType, params: Tables, **settings: Any
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Metrics `[S]` of one update where not all actions are allowed, and the policy `[S, n, A]` after it."""
    if not knows_masks(module):
        raise CannotAskError("it knows no action_mask")
    trial = Trial(module, params, env=Tabular(params), **settings)
    _, got, answers = trial.update(trial.state, 0)
    return got, np.asarray(answers[-1], np.float64)


@oracle(ALL, "the mask of allowed actions")
def allowed_actions(module: ModuleType) -> None:
    """What is forbidden is never taken, exploring or not, and is no part of the policy."""
    got, policy = first_masked_update(module, MASKED)
    close("the probability of forbidden actions", policy[:, ~MAY], np.zeros((SEEDS, 3)))
    close("the sum of the probabilities of allowed actions", policy.sum(axis=-1), np.ones((SEEDS, 3)), 1e-3)
    for name, x in emitted(got, "reward_min", "return_min").items():
        close(f"{name} where allowed actions pay 1 and forbidden ones -100", x, np.ones(SEEDS))


@oracle(PPO, "the entropy of the policy, where not all actions are allowed", DEFINITION)
def allowed_entropy(module: ModuleType) -> None:
    """It is that of the allowed actions, beside the most that it can be among these."""
    need(module, "learning_rate")
    got, policy = first_masked_update(module, replace(MASKED, start=np.eye(3, dtype=np.float32)[0]), learning_rate=0.0)
    p = policy[:, 0, MAY[0]]
    entropy = -(p * np.log(p)).sum(axis=-1)
    wanted = {"entropy": entropy, "relative_entropy": entropy / math.log(2)}
    for name, x in emitted(got, *wanted).items():
        close(f"{name} where two of three actions are allowed", x, wanted[name], 1e-3)
