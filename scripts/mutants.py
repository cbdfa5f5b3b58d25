"""Do the probes catch planted bugs, and name the right component?

    python scripts/mutants.py              every bug; about 40 minutes on two cores
    python scripts/mutants.py dqn          those of one agent, into the same table
    python scripts/mutants.py ppo gamma    of these, those whose name contains one of the words

Plants each bug, one at a time, in a copy of the agent's file, asks the oracles and trains the ladder with 16 seeds,
until the first program with a failing rung. Writes scripts/results/mutants.json and mutants.md. The bugs are of a kind
that public code has really had; each is a replacement of text that must occur exactly once.

"Localised" means that the first failing check is one of those that belong to the component which the bug is in.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
AGENTS = HERE.parent / "rlref"
SEEDS = 16
TIME_LIMIT = 400


class Mutant(NamedTuple):
    """One bug."""

    name: str
    old: str
    new: str
    belongs: str
    """the checks of the component it is in, oracles and rungs"""
    equivalent: bool = False
    """whether it is no bug on these probes, declared beforehand and not counted"""


VALUES = "constant obs_value"
POLICY = "bandit context_bandit table surrogate"
PPO = [
    Mutant("advantage sign", "    advantage = batch.advantage\n", "    advantage = -batch.advantage\n", POLICY),
    Mutant("policy loss not negated", "policy_loss = -jnp.minimum", "policy_loss = jnp.minimum", POLICY),
    Mutant(
        "ratio exp(old - new)",
        "log_ratio = policy.log_prob(batch.action) - batch.log_prob",
        "log_ratio = batch.log_prob - policy.log_prob(batch.action)",
        POLICY,
    ),
    Mutant(
        "old log-prob recomputed",
        "log_ratio = policy.log_prob(batch.action) - batch.log_prob",
        "log_ratio = policy.log_prob(batch.action) - jax.lax.stop_gradient(policy.log_prob(batch.action))",
        "first_ratio " + POLICY,
    ),
    Mutant(
        "log-prob of another sample",
        "log_prob = policy.log_prob(action)\n",
        "log_prob = policy.log_prob(jnp.roll(action, 1, axis=0))\n",
        "first_ratio " + POLICY,
    ),
    Mutant(
        "Gaussian log-prob not summed over dimensions",
        "return jnp.sum(-0.5 * z**2",
        "return jnp.mean(-0.5 * z**2",
        "gaussian continuous_target",
    ),
    Mutant(
        "(N, 1) - (N) in the value loss",
        "squared_error = (value - batch.target) ** 2",
        "squared_error = (value[:, None] - batch.target) ** 2",
        "surrogate " + VALUES,
    ),
    Mutant(
        "(N, 1) - (N) in the policy loss",
        "jnp.minimum(ratio * advantage, clipped_ratio * advantage)",
        "jnp.minimum(ratio[:, None] * advantage, clipped_ratio[:, None] * advantage)",
        POLICY,
    ),
    Mutant("max for min in the clip", "-jnp.minimum(ratio", "-jnp.maximum(ratio", "surrogate"),
    Mutant("min for max in the value clip", "squared_error = jnp.maximum", "squared_error = jnp.minimum", "surrogate"),
    Mutant("entropy sign", "- config.ent_coef *", "+ config.ent_coef *", "surrogate soft_bandit_1 soft_bandit_2"),
    Mutant("entropy bonus missing", "- config.ent_coef *", "- 0.0 *", "surrogate soft_bandit_1 soft_bandit_2"),
    Mutant(
        "entropy over the wrong axis",
        "return -jnp.sum(jnp.exp(self.log_probs) * self.log_probs, axis=-1)",
        "return -jnp.sum(jnp.exp(self.log_probs) * self.log_probs, axis=0)",
        "categorical soft_bandit_1 soft_bandit_2",
    ),
    Mutant(
        "bootstrap through termination",
        "gamma * jnp.where(terminated, 0.0, next_value)",
        "gamma * next_value",
        "advantages discount reset_leak truncation_pair constant obs_value",
    ),
    Mutant(
        "no bootstrap at truncation",
        "gamma * jnp.where(terminated, 0.0, next_value)",
        "gamma * jnp.where(terminated | truncated, 0.0, next_value)",
        "advantages truncation_pair truncation_loop",
    ),
    Mutant(
        "bootstrap from the reset observation",
        'info["final_observation"], terminated | truncated',
        "next_obs, terminated | truncated",
        "truncation_pair truncation_loop",
    ),
    Mutant("gamma missing", "delta = reward + gamma *", "delta = reward +", "advantages discount"),
    Mutant("gamma twice", "delta = reward + gamma *", "delta = reward + gamma**2 *", "advantages discount"),
    Mutant("lambda 0", "trace = gamma * gae_lambda *", "trace = gamma * 0.0 *", "advantages delayed_credit"),
    Mutant(
        "trace not cut at the end of an episode",
        "jnp.where(terminated | truncated, 0.0, 1.0)",
        "jnp.ones_like(delta)",
        "advantages reset_leak reset_temptation",
    ),
    Mutant(
        "last value 0 at the rollout's end",
        "    advantage = gae(reward, value, next_value,",
        "    advantage = gae(reward, value, next_value.at[-1].set(0.0),",
        "discount truncation_pair truncation_loop known_metrics",
    ),
    Mutant("targets without values", "target = advantage + value", "target = advantage", VALUES + " known_metrics"),
    Mutant(
        "stop-gradient missing on targets",
        "squared_error = (value - batch.target) ** 2",
        "squared_error = (value - (batch.advantage + value)) ** 2",
        "surrogate every_parameter_moves " + VALUES,
    ),
    Mutant(
        "advantage normalised over the wrong axis",
        "    batch = flat(Batch(rollout.obs",
        "    advantage = (advantage - advantage.mean(1, keepdims=True)) / (advantage.std(1, keepdims=True) + 1e-8)\n"
        "    batch = flat(Batch(rollout.obs",
        "known_metrics delayed_credit large_rewards soft_bandit_1 soft_bandit_2",
    ),
    Mutant(
        "time and environment axes swapped for advantages",
        "rollout.log_prob, value, advantage, target))",
        "rollout.log_prob, value, advantage.T, target))",
        "table env_axis " + POLICY,
    ),
    Mutant(
        "time and environment axes swapped for targets",
        "rollout.log_prob, value, advantage, target))",
        "rollout.log_prob, value, advantage, target.T))",
        "env_axis " + VALUES,
    ),
    Mutant(
        "observations and advantages shuffled apart",
        "minibatch = jax.tree.map(lambda x: x[index], batch)",
        "minibatch = jax.tree.map(lambda x: x[index], batch)._replace(obs=batch.obs[jnp.roll(index, 1)])",
        "first_ratio obs_value context_bandit table",
    ),
    Mutant("learning-rate schedule inverted", "(1 - step / num_updates)", "(step / num_updates)", "schedule"),
    Mutant(
        "observation statistics not applied at evaluation",
        "distribution, _ = forward(task, state.params, state.obs_moments, obs[None])",
        "distribution, _ = forward(task, state.params, None, obs[None])",
        "offset_obs",
    ),
    Mutant("variance taken for the mean", "(x - moments.mean)", "(x - moments.variance)", "offset_obs"),
    Mutant(
        "rewards shifted by their mean",
        "reward, ended = rollout.reward, rollout",
        "reward, ended = rollout.reward - rollout.reward.mean(), rollout",
        "known_metrics will_to_live " + VALUES,
    ),
    Mutant(
        "scaled rewards shifted by their mean",
        "reward = jnp.clip(reward / reward_scale(moments)",
        "reward = jnp.clip((reward - reward.mean()) / reward_scale(moments)",
        "will_to_live",
    ),
    Mutant(
        "value left in scaled units",
        "return value[0] * reward_scale(state.return_moments)",
        "return value[0]",
        "will_to_live",
    ),
    Mutant(
        "actions reach the environment unclipped",
        "return jnp.clip(action.reshape(action.shape[0], *space.shape), space.low, space.high).astype(space.dtype)",
        "return action.reshape(action.shape[0], *space.shape).astype(space.dtype)",
        "boundary",
    ),
    Mutant(
        "key reused across environments",
        "jax.random.split(key_env, shape)",
        "jnp.broadcast_to(jax.random.split(key_env, (shape[0], 1)), shape)",
        "fresh_randomness",
    ),
    Mutant(
        "key not advanced in the scan",
        "jax.random.split(key_env, shape)",
        "jnp.broadcast_to(jax.random.split(key_env, (1, shape[1])), shape)",
        "fresh_randomness",
    ),
    Mutant(
        "key not advanced between updates",
        "collect(task, replace(state, key=key), key_collect)",
        "collect(task, state, key_collect)",
        "fresh_randomness",
    ),
    Mutant("episode return not reset", "jnp.where(ended, 0.0, total)", "total", "episode_metrics"),
    Mutant(
        "metric averaged over the wrong axis",
        '"kl": part.policy.kl(policy).mean()',
        '"kl": part.policy.kl(policy).sum()',
        "known_metrics",
    ),
    Mutant("gradient clip removed", "optax.clip_by_global_norm(config.max_grad_norm)", "optax.identity()", "", True),
    Mutant("advantage normalisation removed", "    if config.norm_adv:\n", "    if False:\n", "", True),
    Mutant("Adam's epsilon", "eps=config.adam_eps", "eps=1e-8", "", True),
]

RETURNS = "sampled_returns stored_transitions"
DQN = [
    Mutant(
        "target never synced", "synced = jnp.where(sync, mixed, old)", "synced = old", "target_network target_chain"
    ),
    Mutant(
        "target aliases online",
        "target = targets(task, state.target_params, unravel(params), batch, epsilon[-1])",
        "target = targets(task, unravel(params), unravel(params), batch, epsilon[-1])",
        "target_network newest_parameters",
    ),
    Mutant(
        "Polyak average swapped",
        "config.tau * new + (1 - config.tau) * old",
        "config.tau * old + (1 - config.tau) * new",
        "target_network",
    ),
    Mutant("target synced in every cycle", "inner = min(period, cycles)", "period = inner = 1", "target_network"),
    Mutant(
        "done mask dropped",
        "discount = jnp.where(buffer.terminated[last], 0.0, discount)",
        "discount = discount * 1.0",
        RETURNS + " discount reset_leak truncation_pair constant obs_value",
    ),
    Mutant(
        "done mask inverted",
        "jnp.where(buffer.terminated[last], 0.0, discount)",
        "jnp.where(buffer.terminated[last], discount, 0.0)",
        RETURNS + " discount reset_leak truncation_pair constant obs_value",
    ),
    Mutant(
        "truncation as termination",
        "jnp.where(buffer.terminated[last], 0.0, discount)",
        "jnp.where((buffer.terminated | buffer.truncated)[last], 0.0, discount)",
        RETURNS + " truncation_pair truncation_loop",
    ),
    Mutant(
        "bootstrap from the reset observation",
        'final_obs = encoded(info["final_observation"])',
        "final_obs = encoded(next_obs)",
        RETURNS + " truncation_pair truncation_loop",
    ),
    Mutant(
        "returns summed across an ending",
        "counted &= ~ended[:, k]",
        "counted &= True",
        RETURNS,
    ),
    Mutant(
        "mean for max",
        "taken(target_q, online_q.argmax(axis=-1))",
        "target_q.mean(axis=-1)",
        "next_state_values max_not_mean",
    ),
    Mutant(
        "min for max",
        "taken(target_q, online_q.argmax(axis=-1))",
        "target_q.min(axis=-1)",
        "next_state_values max_not_mean",
    ),
    Mutant(
        "double Q swapped",
        "taken(target_q, online_q.argmax(axis=-1))",
        "taken(online_q, target_q.argmax(axis=-1))",
        "next_state_values",
    ),
    Mutant(
        "gradient through the target",
        "lambda p: loss(unravel(p), task, batch, target)",
        "lambda p: loss(unravel(p), task, batch, targets(task, unravel(p), unravel(p), batch, 0.0))",
        "semi_gradient target_network",
    ),
    Mutant(
        "the target network acts",
        "collect(task, state, unravel(params)",
        "collect(task, state, state.target_params",
        "newest_parameters known_q_metrics",
    ),
    Mutant(
        "parameters of the update's start act",
        "collect(task, state, unravel(params)",
        "collect(task, state, state.params",
        "newest_parameters",
    ),
    Mutant(
        "double Q chooses with parameters of the update's start",
        "targets(task, state.target_params, unravel(params)",
        "targets(task, state.target_params, state.params",
        "newest_parameters next_state_values",
    ),
    Mutant(
        "gather with the wrong action",
        "q = taken(forward(task, params, batch.obs), batch.action)",
        "q = forward(task, params, batch.obs).max(axis=-1)",
        "td_loss table bandit context_bandit",
    ),
    Mutant(
        "(N, 1) - (N)",
        "optax.l2_loss(q, target)",
        "0.5 * (q[:, None] - target[None]) ** 2",
        "td_loss obs_value",
    ),
    Mutant(
        "loss of the mean",
        "return error.mean(), q",
        "return 0.5 * (q - target).mean() ** 2, q",
        "td_loss obs_value",
    ),
    Mutant(
        "obs and next_obs swapped",
        "Buffer(encoded(obs), action, reward, terminated, truncated, final_obs)",
        "Buffer(final_obs, action, reward, terminated, truncated, encoded(obs))",
        RETURNS + " discount obs_value",
    ),
    Mutant("gamma missing", "discount * config.gamma, discount", "discount, discount", RETURNS + " discount"),
    Mutant(
        "gamma squared",
        "discount * config.gamma, discount",
        "discount * config.gamma**2, discount",
        RETURNS + " discount",
    ),
    Mutant(
        "reward from another index",
        "discount * buffer.reward[index[:, k]]",
        "discount * buffer.reward[index[:, k] - 1]",
        RETURNS + " obs_value bandit context_bandit",
    ),
    Mutant(
        "reward stored a step late",
        "Buffer(encoded(obs), action, reward, terminated",
        "Buffer(encoded(obs), action, jnp.roll(reward, 1), terminated",
        RETURNS + " obs_value bandit context_bandit",
    ),
    Mutant(
        "time and environment axes swapped for rewards",
        "    block = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), block)",
        "    block = replace(block, reward=block.reward.T)\n"
        "    block = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), block)",
        RETURNS + " obs_value env_axis",
    ),
    Mutant(
        "write index stuck",
        "cycle * shape[1] % capacity, num_envs)",
        "cycle * 0, num_envs)",
        "stored_transitions phase_flip",
    ),
    Mutant(
        "buffer stops when it is full",
        "cycle * shape[1] % capacity, num_envs)",
        "jnp.minimum(cycle * shape[1], capacity - shape[1]), num_envs)",
        "stored_transitions phase_flip",
    ),
    Mutant(
        "sampling beyond the fill",
        "stored = jnp.minimum(rows, capacity)",
        "stored = jnp.asarray(capacity)",
        "replay_slots",
    ),
    Mutant(
        "an extra transition from the reset",
        "Buffer(encoded(obs), action, reward, terminated, truncated, final_obs)",
        "Buffer(encoded(obs), action, reward, terminated & False, truncated & False, encoded(next_obs))",
        RETURNS + " constant discount reset_leak truncation_pair",
    ),
    Mutant("epsilon never decays", "config.start_e + progress *", "config.start_e + 0 * progress *", "exploration"),
    Mutant(
        "epsilon inverted",
        "jnp.where(uniform < epsilon, random_action,",
        "jnp.where(uniform > epsilon, random_action,",
        "fresh_actions known_q_metrics",
    ),
    Mutant(
        "greedy action is the worst",
        "random_action, q.argmax(axis=-1).astype(jnp.int32))",
        "random_action, q.argmin(axis=-1).astype(jnp.int32))",
        "known_q_metrics semi_gradient",
    ),
    Mutant(
        "key reset to a constant",
        "jax.random.split(state.key, 5)",
        "jax.random.split(jax.random.key(0), 5)",
        "fresh_randomness fresh_actions",
    ),
    Mutant(
        "key reused across environments",
        "jax.random.split(key_env, shape)",
        "jnp.broadcast_to(jax.random.split(key_env, (shape[0], shape[1], 1)), shape)",
        "fresh_randomness",
    ),
    Mutant(
        "key not advanced in the scan",
        "jax.random.split(key_env, shape)",
        "jnp.broadcast_to(jax.random.split(key_env, (1, 1, shape[2])), shape)",
        "fresh_randomness",
    ),
    Mutant(
        "exploration shared by environments",
        "draws = jax.random.uniform(key_explore, shape), random_action",
        "draws = jax.random.uniform(key_explore, shape), jnp.broadcast_to(random_action[..., :1], shape)",
        "fresh_actions",
    ),
    Mutant(
        "rewards shifted by their mean",
        "target = targets(task, state.target_params,",
        "batch = batch._replace(reward=batch.reward - batch.reward.mean())\n"
        "        target = targets(task, state.target_params,",
        "constant obs_value",
    ),
    Mutant("learning-rate schedule inverted", "(1 - step / num_updates)", "(step / num_updates)", "schedule"),
    Mutant(
        "episode return not reset",
        "jnp.where(ended, new, x), new_episodes",
        "jnp.where(False, new, x), new_episodes",
        "episode_metrics",
    ),
    Mutant(
        "metric averaged over the wrong axis",
        '"kl": jnp.sum(old * jnp.log(old / new), axis=-1).mean()',
        '"kl": jnp.sum(old * jnp.log(old / new), axis=0).mean()',
        "known_q_metrics",
    ),
    Mutant(
        "explained variance with its arguments swapped",
        "explained_variance(old_target, old_value)",
        "explained_variance(old_value, old_target)",
        "known_q_metrics",
    ),
    Mutant(
        "replay key reset to a constant",
        "jax.random.bits(key_replay,",
        "jax.random.bits(jax.random.key(0),",
        "fresh_actions replay_slots",
    ),
    Mutant(
        "random action from the draw that decided on it",
        "(uniform < epsilon, random_action,",
        "(uniform < epsilon, (uniform * q.shape[-1]).astype(jnp.int32),",
        "fresh_actions",
    ),
    Mutant(
        "warm-up ignored", "learning = done >= config.learning_starts", "learning = done >= 0", "stored_transitions"
    ),
    Mutant(
        "optimiser starts anew in every update",
        "task.optimizer.update(gradient, state.opt_state)",
        "task.optimizer.update(gradient, task.optimizer.init(params))",
        "every_parameter_moves",
    ),
    Mutant(
        "epsilon counts the steps of one environment",
        "jnp.arange(shape[1])) * num_envs)",
        "jnp.arange(shape[1])))",
        "exploration known_q_metrics",
    ),
    Mutant("Adam's epsilon", "eps=config.adam_eps", "eps=1e-5", "", True),
    Mutant(
        "Huber's loss for the squared one", "optax.l2_loss(q, target)", "optax.huber_loss(q, target)", "td_loss", True
    ),
]
CHOICE = "selection bandit context_bandit table"
FITNESS = "first_episodes reset_temptation patience will_to_live"
SEARCH = "search_distribution far_optimum"
CEM = [
    Mutant("lowest scores as elites", "jnp.argsort(-score)", "jnp.argsort(score)", CHOICE),
    Mutant(
        "elite fraction inverted",
        "jnp.round(config.elite_fraction",
        "jnp.round((1 - config.elite_fraction)",
        f"{CHOICE} {SEARCH}",
    ),
    Mutant(
        "argsort used as values",
        "jnp.zeros(len(score), bool).at[order].set(jnp.arange(len(score)) < num_elites)",
        "order < num_elites",
        CHOICE,
    ),
    Mutant(
        "scores permuted against candidates",
        "elite = elites(score, num_elites)",
        "elite = elites(score[::-1], num_elites)",
        CHOICE,
    ),
    Mutant(
        "scores of the first rollout alone",
        "score = returns.mean(axis=1)\n    num",
        "score = returns[:, 0]\n    num",
        f"noisy_bandit {CHOICE}",
    ),
    Mutant(
        "one variance for all parameters",
        "variance = ((candidates - mean) ** 2).mean(axis=0, where=elite[:, None])",
        "variance = ((candidates - mean) ** 2).mean(where=elite[:, None]) * jnp.ones_like(mean)",
        f"selection {SEARCH}",
    ),
    Mutant(
        "variance of the whole population",
        "variance = ((candidates - mean) ** 2).mean(axis=0, where=elite[:, None])",
        "variance = ((candidates - mean) ** 2).mean(axis=0)",
        f"selection {SEARCH}",
    ),
    Mutant(
        "mean of the whole population",
        "mean = candidates.mean(axis=0, where=elite[:, None])",
        "mean = candidates.mean(axis=0)",
        f"selection {CHOICE}",
    ),
    Mutant(
        "refit gives the std for the variance",
        "variance = ((candidates - mean) ** 2).mean(axis=0, where=elite[:, None])",
        "variance = jnp.sqrt(((candidates - mean) ** 2).mean(axis=0, where=elite[:, None]))",
        f"selection {SEARCH}",
    ),
    Mutant("variance used as std", "jnp.sqrt(state.variance) * noise", "state.variance * noise", SEARCH),
    Mutant(
        "variance taken for the mean",
        "zip((state.mean, state.variance), fitted,",
        "zip((state.mean, state.variance), fitted[::-1],",
        f"{SEARCH} bandit",
    ),
    Mutant(
        "the start's std taken for its variance",
        "jnp.full(task.num_params, task.config.init_variance,",
        "jnp.full(task.num_params, task.config.init_variance**0.5,",
        SEARCH,
    ),
    Mutant("no extra variance", "State(mean, variance + extra_variance, key,", "State(mean, variance, key,", SEARCH),
    Mutant(
        "extra variance that never decays",
        "jnp.maximum(1 - generation / last, 0.0)",
        "1.0",
        f"extra_variance_schedule {SEARCH}",
    ),
    Mutant(
        "extra variance that decays by parameter, not by generation",
        "extra_variance_at(config, step)",
        "extra_variance_at(config, jnp.arange(task.num_params)).mean()",
        SEARCH,
    ),
    Mutant(
        "extra variance that falls below 0",
        "jnp.maximum(1 - generation / last, 0.0)",
        "(1 - generation / last)",
        f"extra_variance_schedule {SEARCH}",
    ),
    Mutant(
        "one noise vector for all candidates",
        "jax.random.normal(key_noise, (config.population_size, task.num_params))",
        "jnp.ones((config.population_size, 1)) * jax.random.normal(key_noise, (task.num_params,))",
        SEARCH,
    ),
    Mutant(
        "one noise for all parameters",
        "jax.random.normal(key_noise, (config.population_size, task.num_params))",
        "jnp.ones(task.num_params) * jax.random.normal(key_noise, (config.population_size, 1))",
        SEARCH,
    ),
    Mutant("same key each generation", "jax.random.normal(key_noise,", "jax.random.normal(jax.random.key(0),", SEARCH),
    Mutant(
        "smoothing inverted",
        "config.smoothing * old + (1 - config.smoothing) * new",
        "(1 - config.smoothing) * old + config.smoothing * new",
        SEARCH,
    ),
    Mutant(
        "fitness summed past the first end of episode",
        "jnp.where(alive, reward.astype(jnp.float32), 0.0)",
        "reward.astype(jnp.float32)",
        FITNESS,
    ),
    Mutant(
        "fitness with discount",
        "jnp.where(alive, reward.astype(jnp.float32), 0.0)",
        "jnp.where(alive, 0.99**t * reward.astype(jnp.float32), 0.0)",
        FITNESS,
    ),
    Mutant(
        "fitness of the first reward alone", "jnp.where(alive, reward", "jnp.where(alive & (t == 0), reward", FITNESS
    ),
    Mutant(
        "an extra transition from the reset",
        "alive & ~(terminated | truncated), total, length + alive",
        "(length < 1) | (alive & ~(terminated | truncated)), total, length + alive",
        FITNESS,
    ),
    Mutant(
        "a time limit does not end the episode", "alive & ~(terminated | truncated)", "alive & ~terminated", FITNESS
    ),
    Mutant("termination does not end the episode", "alive & ~(terminated | truncated)", "alive & ~truncated", FITNESS),
    Mutant(
        "rewards shifted by their mean",
        "jnp.where(alive, reward.astype(jnp.float32), 0.0)",
        "jnp.where(alive, reward - reward.mean(), 0.0)",
        FITNESS,
    ),
    Mutant(
        "key reused across rollouts",
        "jax.random.split(key_rollout, config.num_rollouts)",
        "jnp.stack([key_rollout] * config.num_rollouts)",
        "fresh_rollouts first_episodes",
    ),
    Mutant("key not advanced in the loop", "env_step(key_of(keys, t)", "env_step(key_of(keys, 0)", "fresh_rollouts"),
    Mutant(
        "key of the environments reset to a constant",
        "jax.random.split(key_rollout, config.num_rollouts)",
        "jax.random.split(jax.random.key(0), config.num_rollouts)",
        "fresh_rollouts",
    ),
    Mutant(
        "key not carried on",
        "State(mean, variance + extra_variance, key,",
        "State(mean, variance + extra_variance, state.key,",
        "fresh_rollouts search_distribution",
    ),
    Mutant(
        "evaluation on the keys of the selection",
        "jax.random.split(key_eval,",
        "jax.random.split(key_rollout,",
        "fresh_rollouts",
    ),
    Mutant(
        "evaluation of the old mean",
        "concatenate([mean[None]",
        "concatenate([state.mean[None]",
        "known_c_metrics",
    ),
    Mutant(
        "evaluation of a candidate",
        "concatenate([mean[None]",
        "concatenate([candidates[:1]",
        "known_c_metrics",
    ),
    Mutant("actions of a Box without bounds", "jnp.tanh(outputs)", "outputs", "actions boundary"),
    Mutant("the last layer without bias", "dense(x, *head), task", "dense(x, head[0], 0 * head[1]), task", "actions"),
    Mutant(
        "metric averaged over the wrong axis",
        'summary("return", score)',
        'summary("return", returns.mean(axis=0))',
        "known_c_metrics",
    ),
    Mutant(
        "KL(old, new)",
        "gaussian_kl(new.mean, new.variance, old.mean, old.variance)",
        "gaussian_kl(old.mean, old.variance, new.mean, new.variance)",
        "divergences known_c_metrics",
    ),
    Mutant(
        "one-way analysis of variance",
        "returns - of_candidate - of_key + returns.mean()",
        "returns - of_candidate",
        "analysis_of_variance",
    ),
    Mutant(
        "env_steps count cut episodes in full",
        "state.env_steps + lengths.sum()",
        "state.env_steps + lengths.size * task.max_steps",
        "known_c_metrics",
    ),
    # Bugs that a reviewer found uncaught, or blamed on the wrong component.
    Mutant(
        "variance about the old mean",
        "fitted = refit(candidates, elite)",
        "fitted = refit(candidates, elite)[0], ((candidates - state.mean) ** 2).mean(axis=0, where=elite[:, None])",
        f"selection {SEARCH}",
    ),
    Mutant(
        "number of elites rounded down",
        "jnp.round(config.elite_fraction * config.population_size)",
        "jnp.floor(config.elite_fraction * config.population_size)",
        SEARCH,
    ),
    Mutant(
        "extra variance inside the smoothing",
        "fitted = refit(candidates, elite)",
        "fitted = refit(candidates, elite)\n    fitted = fitted[0], fitted[1] - config.smoothing * "
        "extra_variance_at(config, step) / (1 - config.smoothing)",
        SEARCH,
    ),
    Mutant(
        "smoothing of the std",
        "    new = State(mean,",
        "    s = config.smoothing\n"
        "    variance = (s * jnp.sqrt(state.variance) + (1 - s) * jnp.sqrt(fitted[1])) ** 2\n"
        "    new = State(mean,",
        SEARCH,
    ),
    Mutant(
        "key of the evaluation constant",
        "jax.random.split(key_eval,",
        "jax.random.split(jax.random.key(0),",
        "fresh_rollouts",
    ),
    Mutant(
        "sign of the selection bias",
        "(score[some] - jnp.stack(of_elites))",
        "(jnp.stack(of_elites) - score[some])",
        "fresh_rollouts",
    ),
    Mutant(
        "hidden layers without activation",
        "x = activation(dense(x, kernel, bias))",
        "x = dense(x, kernel, bias)",
        "curved_target",
    ),
    Mutant("bounds of a Box ignored", "(high + low) / 2 + (high - low) / 2 * squashed", "squashed", "actions"),
    Mutant(
        "a cut step pays nothing",
        "jnp.where(alive, reward.astype",
        "jnp.where(alive & ~truncated, reward.astype",
        FITNESS,
    ),
    Mutant(
        "median over rollouts for the mean",
        "score = returns.mean(axis=1)\n    num",
        "score = jnp.median(returns, axis=1)\n    num",
        f"noisy_bandit {CHOICE}",
    ),
    Mutant(
        "ties are all elites",
        "jnp.zeros(len(score), bool).at[order].set(jnp.arange(len(score)) < num_elites)",
        "score >= score[order[jnp.int32(num_elites) - 1]]",
        CHOICE,
    ),
    Mutant("smallest output as the action", "outputs.argmax(axis=-1)", "outputs.argmin(axis=-1)", "", True),
]
MUTANTS = {"ppo": PPO, "dqn": DQN, "cem": CEM}


def worker(path: str) -> dict[str, Any]:
    """What the checks say of a file: the first oracle and the first rung that fail, and how each is explained."""
    from probes import check
    from probes.ladder import LADDER
    from probes.oracles import ORACLES
    from rlref.agents import load_agent

    kind = check.kind_of(load_agent(path))
    report = check.run(path, only=[name for name, oracle in ORACLES.items() if kind in oracle.kinds], num_seeds=SEEDS)
    found: dict[str, Any] = {"oracles": [c.oracle.name for c in report.oracles if c.fault]}
    found |= {"oracle_says": next((c.fault for c in report.oracles if c.fault), ""), "rungs": [], "cause": ""}
    groups, _ = check.groups_of([p for p in LADDER.values() if kind in p.kinds], kind, load_agent(path))
    done: list[Any] = []
    for group in groups:
        trained = check.run(path, only=[p.name for p in group], num_seeds=SEEDS)
        done += trained.rungs
        if trained.failures:
            so_far = check.Report(path, kind, [], done)
            found["rungs"] = [r.probe.name for r in trained.rungs if isinstance(r, check.Result) and not r.ok]
            first = trained.failures[0]
            assert isinstance(first, check.Result)
            found["cause"] = check.cause(so_far, first)
            break
    return found


def run(agent: str, mutant: Mutant, folder: Path) -> dict[str, Any]:
    source = (AGENTS / f"{agent}.py").read_text()
    assert source.count(mutant.old) == 1, f"{mutant.name}: its text occurs {source.count(mutant.old)} times"
    path = folder / "planted.py"
    path.write_text(source.replace(mutant.old, mutant.new))
    command = [sys.executable, str(Path(__file__).resolve()), "--worker", str(path)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT, check=False)
        last = done.stdout.strip().splitlines()[-1:]
        found = json.loads(last[0]) if last else {}
        if done.returncode:
            found = {"oracles": ["(it does not run)"], "oracle_says": done.stderr.strip().splitlines()[-1], "rungs": []}
    except subprocess.TimeoutExpired:
        found = {"oracles": ["(it hangs)"], "oracle_says": "", "rungs": []}
    belongs = set(mutant.belongs.split())
    first = (found["oracles"] or found["rungs"] or [""])[0]
    first_rung = (found["rungs"] or [""])[0]
    return {
        "agent": agent,
        "bug": mutant.name,
        "equivalent": mutant.equivalent,
        **found,
        "first": first,
        "localised": first in belongs,
        "first_rung": first_rung,
        "rung_localised": first_rung in belongs,
    }


def table(results: list[dict[str, Any]]) -> str:
    lines = [
        "| agent | bug | first failing check | component | first failing rung | component | cause it names |",
        "|---|---|---|---|---|---|---|",
    ]
    for r in results:
        name = r["bug"] + (" (equivalent here, not counted)" if r["equivalent"] else "")
        marks = [
            ("yes" if r[k] else "no") if r[f] else ""
            for f, k in (("first", "localised"), ("first_rung", "rung_localised"))
        ]
        first, rung = r["first"] or "not caught", r["first_rung"] or "not caught"
        cells = (r["agent"].upper(), name, first, marks[0], rung, marks[1], r.get("cause", ""))
        lines.append(f"| {' | '.join(cells)} |")
    for agent in dict.fromkeys(r["agent"] for r in results):
        counted = [r for r in results if r["agent"] == agent and not r["equivalent"]]
        caught = [r for r in counted if r["first"]]
        rungs = [r for r in counted if r["first_rung"]]
        lines += [
            "",
            f"{agent.upper()}: caught {len(caught)} of {len(counted)}, of these localised "
            f"{sum(r['localised'] for r in caught)}; by oracles {sum(bool(r['oracles']) for r in counted)}, by trained "
            f"rungs {len(rungs)}, of these localised {sum(r['rung_localised'] for r in rungs)}.",
        ]
    return "\n".join(lines) + "\n"


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        print(json.dumps(worker(sys.argv[2])))
        return
    agents = [word for word in sys.argv[1:] if word in MUTANTS]
    words = [word for word in sys.argv[1:] if word not in MUTANTS]
    path = HERE / "results" / "mutants.json"
    results = {(r["agent"], r["bug"]): r for r in json.loads(path.read_text())} if path.exists() else {}
    every = [(agent, mutant) for agent, mutants in MUTANTS.items() for mutant in mutants]
    with tempfile.TemporaryDirectory() as folder:
        for agent, mutant in every:
            if agent in (agents or MUTANTS) and (not words or any(word in mutant.name for word in words)):
                found = results[agent, mutant.name] = run(agent, mutant, Path(folder))
                print(
                    f"{agent}, {mutant.name}: {found['first'] or 'not caught'}; rung {found['first_rung']}", flush=True
                )
                ordered = [results[a, m.name] for a, m in every if (a, m.name) in results]
                path.write_text(json.dumps(ordered, indent=1) + "\n")
                path.with_suffix(".md").write_text(table(ordered))
    print(path.with_suffix(".md").read_text())


if __name__ == "__main__":
    main()
