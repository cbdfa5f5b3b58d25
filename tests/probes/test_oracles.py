"""Oracles and checks of an agent's file: right agents pass, and every check finds a planted fault."""

import re
from pathlib import Path

import jax
import pytest

from probes import check, oracles, verdict
from probes.ladder import LADDER
from rlref import cem, dqn, ppo
from rlref.errors import UsageError

FINGERPRINTS = [name for name, probe in LADDER.items() if probe.fingerprints]
SOURCE = Path(ppo.__file__).read_text()


def edited(tmp_path, agent, *changes):
    """A copy of an agent's file with these pairs of an old and a new text."""
    source = Path(agent.__file__).read_text()
    for old, new in changes:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    path = tmp_path / "planted.py"
    path.write_text(source)
    return str(path)


def planted(tmp_path, old, new, agent=ppo):
    """A copy of an agent's file with a fault."""
    return edited(tmp_path, agent, (old, new))


# Each oracle with a fault that it is to find: alone, or of those that share one program, all at once.
FAULTS = {ppo: [
    ("optimiser_goes_on", "state.opt_state, jnp.bool(True)", "optimizer.init(params), jnp.bool(True)"),
    ("advantages", "jnp.where(terminated, 0.0, next_value)", "jnp.where(terminated | truncated, 0.0, next_value)"),
    ("categorical", "return -jnp.sum(jnp.exp(self.log_probs)", "return -jnp.mean(jnp.exp(self.log_probs)"),
    ("several_choices", "return jnp.stack(each).sum(axis=0)", "return each[0]"),
    ("allowed_actions", "jnp.where(mask, policy.log_probs, FORBIDDEN)", "policy.log_probs"),
    ("allowed_entropy", "(self.log_probs > FORBIDDEN / 2).sum(axis=-1)", "(self.log_probs <= 0).sum(axis=-1)"),
    ("gaussian", "return jnp.sum(-0.5 * z**2", "return jnp.mean(-0.5 * z**2"),
    ("each_sample_once", "order = jnp.sort(", "order = ("),
    ("running_moments", "+ delta**2 * share * (1 - share)", ""),
    ("normalised", "(x - moments.mean) / jnp.sqrt", "x / jnp.sqrt"),
    ("reward_scaling", "return jnp.where(x[1], 0.0, total), total", "return total, total"),
    ("explained_variance", "1 - (target - value).var() / variance", "1 - (target - value).var() / value.var()"),
    ("shown_features", "(255 if obs.dtype == jnp.uint8 else 1)", "1"),
    ("dormant_units", "score <= tau * score.mean()", "score <= tau"),
    ("noise_scale", "(1 - 0.9 ** adam[0].count)", "1.0"),
    ("summaries", "mean = x.sum(where=where) / count", "mean = x.mean()"),
    ("policy_loss", "-jnp.minimum(ratio", "-jnp.maximum(ratio"),
    ("value_loss", "error = (value - batch.target) ** 2", "error = (value[:, None] - batch.target) ** 2"),
    ("entropy_bonus", "policy.entropy().mean()\n    return total", "batch.policy.entropy().mean()\n    return total"),
    ("gradient_steps", "optax.clip_by_global_norm(config.max_grad_norm)", "optax.identity()"),
    ("transitions", 'info["final_observation"], terminated', "next_obs, terminated"),
    ("cut_actions", "space.low, space.high).astype(space.dtype)", "space.low, 0.9 * space.high).astype(space.dtype)"),
    ("clipped_actions", "space.low, space.high).astype(space.dtype)", "-1.0, 1.0).astype(space.dtype)"),
    ("boxed_transitions", "return distribution.mean[0], jnp.exp(", "return distribution.mean[0], (2 * "),
    ("convolved_images", "row[:, :, c : c + stride * width : stride]", "row[:, :, c : c + width]"),
    ("evaluated_as_learned", "value = forward(task, state.params, state.obs_moments, obs[None])",
     "value = forward(task, jax.tree.map(jnp.zeros_like, state.params), state.obs_moments, obs[None])"),
    ("observations_apart", "jax.nn.log_softmax(outputs)", "jax.nn.log_softmax(outputs, axis=0)"),
    ("means_of_steps", "x.mean(where=applied > 0)", "x.mean()"),
    ("learned_batch", "rollout.log_prob, value, advantage, target))", "rollout.log_prob.T, value, advantage, target))"),
    ("learned_targets", "rollout.log_prob, value, advantage, target))",
     "rollout.log_prob, value, advantage.T, target))"),
    ("normalised_batch", "state.obs_moments, flat(rollout.obs))", "None, flat(rollout.obs))"),
    ("early_stop", "new = jax.tree.map(partial(jnp.where, going), new, (params, opt_state))",
     "new = jax.tree.map(partial(jnp.where, going), new[0], params), new[1]"),
    ("scaled_batch", "jnp.clip(reward / reward_scale(moments)", "jnp.clip(reward / moments.variance"),
    ("statistics_seen", "rollout.obs[1:], state.obs[None]", "rollout.obs[:1], state.obs[None]"),
    ("keys_used_once", "collect(task, replace(state, key=key), key_collect)", "collect(task, state, key_collect)"),
    ("given_parameters", "env.default_params if env_params is None else env_params", "env.default_params"),
    ("probabilities", "jnp.exp(distribution.log_probs[0])", "jnp.exp(1.1 * distribution.log_probs[0])"),
    ("sampled_actions", "jnp.argmax(self.log_probs + noise, axis=-1)", "jnp.argmax(self.log_probs, axis=-1)"),
    ("moving_ratio", "policy.log_prob(batch.action) - batch.log_prob",
     "policy.log_prob(batch.action) - jax.lax.stop_gradient(policy.log_prob(batch.action))"),
    ("stopped_epochs", "new = jax.tree.map(partial(jnp.where, going), new, (params, opt_state))",
     "new = jnp.where(going, new[0], params), new[1]"),
    ("stopped_epochs", 'aux["approx_kl"].mean() <= target_kl', 'aux["approx_kl"].mean() > target_kl'),
    ("metrics_of_steps", "x.mean(where=applied > 0)", "x.mean()"),
    ("fraction_clipped", "(jnp.abs(ratio - 1) > config.clip_coef)", "((ratio - 1) > config.clip_coef)"),
    ("metrics_of_ratios", "(ratio - 1 - log_ratio).mean()", "(0.5 * log_ratio**2).mean()"),
    ("whole_batches", "jax.tree.map(lambda x: x[index], batch)", "jax.tree.map(lambda x: x[index[1:]], batch)"),
    ("exact_policy", "-jnp.minimum(ratio", "-jnp.maximum(ratio"),
    ("exact_value", "squared_error = jnp.maximum", "squared_error = jnp.minimum"),
    ("exact_entropy", "config.ent_coef * policy.entropy().mean()", "config.ent_coef * batch.policy.entropy().mean()"),
    ("exact_clip", "optax.clip_by_global_norm(config.max_grad_norm)", "optax.identity()"),
    ("exact_batch", "rollout.log_prob, value, advantage, target))", "rollout.log_prob, value, advantage.T, target))"),
    ("fresh_orders", "jax.random.bits(key, (epochs, batch_size))",
     "jnp.tile(jax.random.bits(key, (1, batch_size)), (epochs, 1))"),
    ("sampled_odds", "jnp.argmax(self.log_probs + noise, axis=-1)", "jnp.argmax(self.log_probs - noise, axis=-1)"),
    ("fenced_actions", "space.low, space.high).astype(space.dtype)", "-1.0, 1.0).astype(space.dtype)"),
    ("drawn_spread", "self.mean + jnp.exp(self.log_std) * noise", "self.mean + self.log_std * noise"),
    ("reported_spread", "jnp.exp(distribution.log_std[0])", "jnp.exp(2 * distribution.log_std[0])"),
    ("gaussian_entropy", "return jnp.sum(self.log_std + 0.5", "return jnp.mean(self.log_std + 0.5"),
    ("joint_log_prob", "return jnp.sum(-0.5 * z**2", "return jnp.mean(-0.5 * z**2"),
    ("drawn_actions", "action = policy.sample(noise)", "action = env_action(task, policy.sample(noise))"),
    ("images_of_bytes", "(255 if obs.dtype == jnp.uint8 else 1)", "1"),
    ("every_pixel", "row[:, :, c : c + stride * width : stride]", "row[:, :, 0 : stride * width : stride]"),
    ("named_activation", "getattr(nn, self.activation), orth", "nn.tanh, orth"),
    ("named_activation", "(x) if self.layer_norm else x)", '(x) if self.layer_norm and name != "actor" else x)'),
    ("named_activation", "(x) if self.layer_norm else x)", "(x) if self.layer_norm and i == 0 else x)"),
    ("convolved_images", "(x) if self.layer_norm else x)", '(x) if self.layer_norm and name != "torso" else x)'),
    ("scaled_rewards", "state.return_moments.merge(Moments.of(totals.reshape(-1)))", "Moments.of(totals.reshape(-1))"),
    ("seen_observations", "+ delta**2 * share * (1 - share)", ""),
    ("value_units", "else value[0] * reward_scale(state.return_moments)", "else value[0]"),
], dqn: [
    ("allowed_actions", "random_action if mask is None else random_allowed(mask, random_action)",
     "(random_action % task.num_actions).astype(jnp.int32)"),
    ("named_activation", "activation = getattr(nn, self.activation)", "activation = nn.tanh"),
    ("explained_variance", "1 - (target - value).var() / variance", "1 - (target - value).var() / value.var()"),
    ("shown_features", "jax.nn.one_hot(obs, space.n)", "jax.nn.one_hot(obs + 1, space.n)"),
    ("dormant_units", "score <= tau * score.mean()", "score < tau * 0"),
    ("summaries", "jnp.sqrt(((x - mean) ** 2).sum(where=where) / count)", "jnp.sqrt(((x - mean) ** 2).mean())"),
    ("next_state_values", "taken(target_q, online_q.argmax(axis=-1))", "taken(online_q, target_q.argmax(axis=-1))"),
    ("greedy_policy", "(1 - epsilon) * jax.nn.one_hot", "jax.nn.one_hot"),
    ("exploration", "progress * (config.end_e - config.start_e)", "progress * config.end_e"),
    ("replay_slots", "(row + k) % capacity", "jnp.minimum(row + k, capacity - 1)"),
    ("replay_odds", "start = (bits % starts.astype(jnp.uint32))",
     "start = jnp.minimum(bits % starts.astype(jnp.uint32), (bits >> 8) % starts.astype(jnp.uint32))"),
    ("replay_draws", "jax.random.bits(key_replay, (cycles + 1, config.batch_size))",
     "jnp.repeat(jax.random.bits(key_replay, (1, config.batch_size)), cycles + 1, axis=0)"),
    ("sampled_returns", "jnp.where(end.terminated", "jnp.where(end.truncated"),
    ("sampled_returns", "counted &= ~(step.terminated | step.truncated)", "counted &= ~step.terminated"),
    ("td_loss", "return error.mean(), q", "return error.sum(), q"),
    ("storage", "jnp.packbits(obs.reshape(obs.shape[0], -1) != 0, axis=-1)",
     "jnp.packbits(obs.reshape(obs.shape[0], -1) != 0, axis=-1, bitorder='little')"),
    ("bootstrapped_targets", "batch.reward + batch.discount * next_values", "batch.reward + next_values"),
    ("exploring_steps", "jnp.arange(shape[1])) * num_envs)", "jnp.arange(shape[1])))"),
    ("convolved_images", "(n - kernel) // stride + 1 for n in x.shape[1:3]", "n - kernel + 1 for n in x.shape[1:3]"),
    ("dueling_heads", "- outputs.mean(axis=-1, keepdims=True)", ""),
    ("evaluated", "epsilon_greedy(value(state, obs), 0.0)", "epsilon_greedy(value(state, obs), 0.1)"),
    ("collected_steps", "Steps(action, reward, ended, episode.total", "Steps(action, reward, ended, reward"),
    ("chosen_actions", "jnp.where(uniform < epsilon, random_action,", "jnp.where(uniform > epsilon, random_action,"),
    ("optimiser", "optax.clip_by_global_norm(config.max_grad_norm)", "optax.identity()"),
    ("stored_transitions", 'final_obs, dtype = info["final_observation"]', "final_obs, dtype = next_obs"),
    ("keys_used_once", "jax.random.split(key_env, shape)", "jax.random.split(jax.random.key(0), shape)"),
    ("newest_parameters", "collect(task, state, unravel(params)", "collect(task, state, state.params"),
    ("newest_targets", "targets(task, state.target_params, unravel(params)",
     "targets(task, state.target_params, state.params"),
    ("negative_maxima", "initial=-jnp.inf", "initial=0.0"),
    ("evaluated_as_learned", "return forward(task, state.params, obs[None])[0]",
     "return forward(task, state.target_params, obs[None])[0]"),
    ("evaluated_greedily", "epsilon_greedy(value(state, obs), 0.0)", "epsilon_greedy(value(state, obs), 0.1)"),
    ("learned_rewards", "    target = targets(task, state.target_params,",
     "    batch = batch._replace(reward=2 * batch.reward)\n    target = targets(task, state.target_params,"),
    ("learned_rewards", "    target = targets(task, state.target_params,",
     "    batch = batch._replace(reward=batch.reward - batch.reward.mean())\n"
     "    target = targets(task, state.target_params,"),
    ("stored_steps", "Buffer(encode(obs, dtype), action, reward, terminated",
     "Buffer(encode(obs, dtype), action, jnp.roll(reward, 1), terminated"),
    ("stored_endings", 'final_obs, dtype = info["final_observation"]', "final_obs, dtype = next_obs"),
    ("best_next_value", "taken(target_q, online_q.argmax(axis=-1))", "target_q.mean(axis=-1)"),
    ("counted_steps", "gradient_steps = learning.sum()", "gradient_steps = learning.sum() + 1"),
    ("known_returns", "discount = jnp.where(end.terminated, 0.0, discount)", "discount = discount * 1.0"),
    ("whole_returns", "stored = jnp.minimum(rows, capacity)", "stored = jnp.asarray(capacity)"),
    ("oldest_overwritten", "Cycle(cycle * shape[1] % capacity, learning",
     "Cycle(jnp.minimum(cycle * shape[1], capacity - shape[1]), learning"),
    ("known_n_step_returns", "counted &= ~(step.terminated | step.truncated)", "counted &= True"),
    ("warm_up", "learning = done >= config.learning_starts", "learning = done >= 0"),
    ("fresh_replay_draws", "bits = jax.random.bits(key_replay, (cycles + 1, config.batch_size))",
     "bits = jnp.repeat(jax.random.bits(key_replay, (1, config.batch_size)), cycles + 1, axis=0)"),
    ("fresh_diagnostics", "replay_indices(bits[:-1], rows", "replay_indices(bits[1:], rows"),
    ("adam_steps", "optax.clip_by_global_norm(config.max_grad_norm)", "optax.identity()"),
    ("first_after_warm_up", "new, (params, state.opt_state))", "new, (params, opt_state))"),
    ("two_kinds", "return error.mean(), q", "return 0.5 * (q - target).mean() ** 2, q"),
    ("bent_layers",
     'x = activation(nn.Dense(size, name=f"hidden_{i}")(x))', 'x = nn.Dense(size, name=f"hidden_{i}")(x)'),
    ("covered_pixels", "r : r + stride * height : stride", "r : r + height : stride"),
    ("scaled_bytes", "(255 if obs.dtype == jnp.uint8 else 1)", "1"),
    ("stored_images", "return stored.reshape(-1, *like.shape[1:]).astype(like.dtype)",
     "return stored.reshape(-1, *like.shape[1:])"),
    ("known_duel", "outputs.mean(axis=-1, keepdims=True)", "outputs.mean(keepdims=True)"),
    ("known_duel", " - outputs.mean(axis=-1, keepdims=True)", ""),
    ("expected_next_value", "epsilon_greedy(target_q, epsilon) * target_q", "epsilon_greedy(target_q, 0.0) * target_q"),
    ("known_target_network", "synced = jnp.where(sync, mixed, old)", "synced = old"),
    ("known_target_network", "config.tau * new + (1 - config.tau) * old", "config.tau * old + (1 - config.tau) * new"),
    ("known_q_targets", "taken(target_q, online_q.argmax(axis=-1))", "taken(online_q, target_q.argmax(axis=-1))"),
    ("given_parameters", "env.default_params if env_params is None else env_params", "env.default_params"),
], cem: [
    ("allowed_actions", "outputs if mask is None else jnp.where(mask, outputs, -jnp.inf)", "outputs"),
    ("selection", "jnp.zeros(len(score), bool).at[order].set(jnp.arange(len(score)) < num_elites)",
     "score >= score[order[jnp.int32(num_elites) - 1]]"),
    ("extra_variance_schedule", "jnp.maximum(1 - generation / last, 0.0)", "1.0"),
    ("analysis_of_variance", "residual = returns - of_candidate - of_key + returns.mean()",
     "residual = returns - of_candidate"),
    ("divergences", "digamma((num_elites - 1) / 2)", "digamma(num_elites / 2)"),
    ("common_numbers", "obs, env_state = jax.vmap(lambda _: start)(candidates)",
     "obs, env_state = jax.vmap(lambda k: jax.vmap(task.env.reset, (0, None))(jax.random.split(jax.random.fold_in("
     "keys[0], k), len(keys)), task.env_params))(jnp.arange(len(candidates)))"),
    ("first_episodes", "alive & ~(terminated | truncated)", "alive & ~terminated"),
    ("normalised", "(x - moments.mean) / jnp.sqrt", "x / jnp.sqrt"),
    ("rollouts_moments", "alive.reshape(-1)))\n", "jnp.ones_like(alive).reshape(-1)))\n"),
    ("nothing_after_the_end", "alive.reshape(-1)))\n", "jnp.ones_like(alive).reshape(-1)))\n"),
    ("observations_normalised", "/ jnp.sqrt(moments.variance + 1e-8), -10", "/ (moments.variance + 1e-8), -10"),
    ("observations_normalised", "state.seen.merge(seen)", "seen"),
    ("played_normalised", "obs[None], state.obs_moments)[0]", "obs[None])[0]"),
    ("actions", "(high + low) / 2 + (high - low) / 2 * squashed", "squashed"),
    ("shown_features", "scale = 255 if", "scale = 127 if"),
    ("given_parameters", "env.default_params if env_params is None else env_params", "env.default_params"),
    ("dense_layers", "return x @ kernel + bias", "return x @ kernel"),
    ("policy_outputs", "x = activation(dense(x, kernel, bias))", "x = dense(x, kernel, bias)"),
    ("drawn_candidates", "jnp.sqrt(state.variance) * noise", "2 * jnp.sqrt(state.variance) * noise"),
    ("next_gaussian", "score = returns.mean(axis=1)\n    num", "score = returns.mean(axis=1, where=ended)\n    num"),
    ("evaluated_gaussian", "concatenate([mean[None]", "concatenate([state.mean[None]"),
    ("generation_metrics", '"kl_excess": refit_kl - floor', '"kl_excess": of_mean + of_variance - floor'),
    ("keys_used_once", "jax.random.normal(key_noise,", "jax.random.normal(key_rollout,"),
    ("known_fitness", "alive & ~(terminated | truncated)", "alive & ~terminated"),
    ("fresh_rollouts", "    key, key_noise, key_rollout, key_elite, key_eval = jax.random.split(state.key, 5)\n",
     "    key, own = state.key, jax.random.fold_in(state.key, step % 8)\n"
     "    key_noise, key_rollout, key_elite, key_eval = jax.random.split(own, 4)\n"),
    ("counted_candidates", 'summary("return", score)', 'summary("return", returns.mean(axis=0))'),
    ("counted_candidates", "state.env_steps + lengths.sum()",
     "(state.env_steps + lengths.sum()).astype(jnp.int16).astype(jnp.int32)"),
    ("bounded_actions", "(high + low) / 2 + (high - low) / 2 * squashed", "squashed"),
    ("bounded_actions", "dense(x, *head), task", "dense(x, head[0], 0 * head[1]), task"),
    ("whole_actions", "(high - low + 1) / 2 * (squashed + 1)", "(high - low) / 2 * (squashed + 1)"),
    ("hidden_layers", "x = activation(dense(x, kernel, bias))", "x = dense(x, kernel, bias)"),
    ("hidden_layers", "(num_inputs, *config.hidden_sizes, num", "(num_inputs, *config.hidden_sizes[:1], num"),
    ("byte_images", "scale = 255 if", "scale = 1 if"),
    ("policy_of_the_mean", "act(task, state.mean, obs[None], state",
     "act(task, state.mean + jnp.sqrt(state.variance), obs[None], state"),
    ("evaluated_mean", "return action, jnp.zeros_like(action)", "return action, jnp.ones_like(action)"),
    ("evaluated_mean", "concatenate([mean[None]", "concatenate([candidates[:1]"),
    ("spread_of_candidates", "jnp.sqrt(state.variance) * noise", "state.variance * noise"),
    ("spread_of_candidates", "(config.population_size, task.num_params))", "(config.population_size, 1))"),
    ("squashed_actions", "jnp.tanh(outputs)", "outputs"),
    ("best_candidates", "jnp.argsort(-score)", "jnp.argsort(score)"),
    ("nan_is_worst", "jnp.argsort(-score)", "jnp.argsort(score)[::-1]"),
    ("mean_score", "score = returns.mean(axis=1)\n    num", "score = jnp.median(returns, axis=1)\n    num"),
    ("smoothed_mean", "config.smoothing * old + (1 - config.smoothing) * new",
     "(1 - config.smoothing) * old + config.smoothing * new"),
    ("smoothed_away", "zip((state.mean, state.variance), fitted,", "zip((0 * state.mean, state.variance), fitted,"),
    ("counted_episodes", '"episodes": ended.sum()', '"episodes": ended.sum() + 5'),
    ("generation_counts", "state.env_steps + lengths.sum()", "state.env_steps + lengths.sum() + 5"),
    ("floor_of_kl", "kl_floor(elite.sum(), num_params)", "kl_floor(len(elite), num_params)"),
    ("refitted_mean", "mean = candidates.mean(axis=0, where=elite[:, None])", "mean = candidates.mean(axis=0)"),
    ("about_the_mean", "candidates = state.mean + jnp.sqrt", "candidates = jnp.sqrt"),
    ("carried_mean", "State(mean, variance + extra_variance, key,",
     "State(mean.astype(jnp.bfloat16).astype(jnp.float32), variance + extra_variance, key,"),
    ("added_variance", "State(mean, variance + extra_variance, key,", "State(mean, variance, key,"),
    ("extra_variance_line", "last = config.extra_variance_fraction * config.num", "last = config.num"),
    ("smoothed_variance", "zip((state.mean, state.variance), fitted,",
     "zip((state.mean, jnp.full_like(state.variance, config.init_variance)), fitted,"),
    ("number_of_elites", "jnp.round(config.elite_fraction", "jnp.floor(config.elite_fraction"),
    ("refitted_variance", "((candidates - mean) ** 2).mean(axis=0, where=elite[:, None])",
     "((candidates - mean) ** 2).sum(axis=0, where=elite[:, None]) / (elite.sum() - 1)"),
    ("gaussian_metrics", "gaussian_kl(new.mean, new.variance, old.mean, old.variance)",
     "gaussian_kl(old.mean, old.variance, new.mean, new.variance)"),
    ("explained_by_candidates", "returns - of_candidate - of_key + returns.mean()", "returns - of_candidate"),
    ("fresh_elites", "(score[some] - jnp.stack(of_elites))", "(jnp.stack(of_elites) - score[some])"),
]}  # fmt: skip
TOGETHER = {ppo: [
    ("fresh_randomness", "jax.random.split(key_env, shape)",
     "jnp.broadcast_to(jax.random.split(key_env, (1, shape[1])), shape)"),
    ("fresh_samples", "distribution.noise(key_act, (*shape, task.num_outputs))",
     "jnp.repeat(distribution.noise(key_act, (shape[0], 1, task.num_outputs)), shape[1], axis=1)"),
    ("episode_metrics", "jnp.where(ended, 0.0, total)", "total"),
    ("known_metrics", '"kl": part.policy.kl(policy).mean()', '"kl": policy.kl(part.policy).mean()'),
    ("known_rewards", 'summary("reward", reward)', 'summary("reward", reward) | {"reward_max": 2 * reward.max()}'),
    ("known_entropy", '"entropy": entropy,', '"entropy": 0.9 * entropy,'),
    ("known_advantages", '**summary("advantage", batch.advantage)', '**summary("advantage", 2 * batch.advantage)'),
    ("curved_value", "x = activation(nn.LayerNorm(", "x = (nn.LayerNorm("),
    ("final_observations", 'info["final_observation"], terminated', "obs, terminated"),
    ("known_losses", '"value_loss": value_loss,', '"value_loss": 2 * value_loss,'),
    ("known_targets", '"value_bias": (batch.target - batch.value).mean()', '"value_bias": batch.target.mean()'),
    ("traced_targets", "target = advantage + value", "target = 0.9 * advantage + value"),
    ("known_rollout", '**summary("value", batch.value)', '**summary("value", batch.target)'),
    ("first_ratio", "_replace(log_prob=rollout", "_replace(log_prob=0.9 * rollout"),
    ("schedule", "(1 - step / num_updates)", "(step / num_updates)"),
    ("nonfinite_shows", "~jnp.isfinite(jnp.stack([*means", "~jnp.isinf(jnp.stack([*means"),
], dqn: [
    ("fresh_randomness", "jax.random.split(key_env, shape)", "jax.random.split(jax.random.key(0), shape)"),
    ("episode_metrics", "jnp.where(ended, new, x), new_episodes", "jnp.where(False, new, x), new_episodes"),
    ("schedule", "(1 - step / num_updates)", "(step / num_updates)"),
    ("fresh_actions", "jax.random.bits(key_replay,", "jax.random.bits(jax.random.key(0),"),
    ("optimiser_goes_on", "update(gradient, state.opt_state,", "update(gradient, optimizer.init(params),"),
    ("replay_order", "cycle * shape[1] % capacity", "cycle * shape[1] % (capacity + 1)"),
    ("target_network", "mixed = jnp.where(config.tau == 1, new,", "mixed = jnp.where(config.tau == 1, old,"),
    ("semi_gradient", "lambda p: loss(unravel(p), task, batch, target)",
     "lambda p: loss(unravel(p), task, batch, targets(task, unravel(p), unravel(p), batch, 0.0))"),
    ("known_steps", "jnp.where(truncated & ~terminated, q_taken, reward)", "reward"),
    ("first_step_size", "optax.adam(learning_rate, eps=config.adam_eps)", "optax.adam(learning_rate)"),
    ("known_epsilon", "progress * (config.end_e - config.start_e)", "progress * config.end_e"),
    ("known_q_metrics", "jnp.sum(old * jnp.log(old / new)", "jnp.sum(old * jnp.log(new / old)"),
    ("nonfinite_shows", "~jnp.isfinite(jnp.stack([steps.reward.sum(), *sums.values()]))",
     "~jnp.isfinite(jnp.zeros_like(steps.reward[:1]))"),
], cem: [
    ("fresh_rollouts", "jax.random.split(key_eval,", "jax.random.split(key_rollout,"),
    ("common_starts", "obs, env_state = jax.vmap(lambda _: start)(candidates)",
     "obs, env_state = jax.vmap(lambda k: jax.vmap(task.env.reset, (0, None))(jax.random.split(jax.random.fold_in("
     "keys[0], k), len(keys)), task.env_params))(jnp.arange(len(candidates)))"),
    ("search_distribution", "fitted = refit(candidates, elite)",
     "fitted = refit(candidates, elite)[0], ((candidates - state.mean) ** 2).mean(axis=0, where=elite[:, None])"),
    ("known_c_metrics", "concatenate([mean[None]", "concatenate([state.mean[None]"),
    ("nonfinite_shows", "~jnp.isfinite(jnp.stack([returns.sum(),", "~jnp.isfinite(jnp.stack([jnp.float32(0),"),
    ("searches_apart", "State(jnp.zeros(task.num_params), variance, key,",
     "State(jnp.zeros(task.num_params), variance, jax.random.key(0),"),
]}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("agent", FAULTS, ids=lambda agent: agent.__name__)
def test_agents_pass_every_oracle(agent):
    kind = check.kind_of(agent)
    own = [name for name, oracle in oracles.ORACLES.items() if kind in oracle.kinds]
    first = [name for name in own if not oracles.ORACLES[name].instead_of]
    report = check.run(agent, only=own)
    assert [(c.oracle.name, c.fault, c.why) for c in report.oracles] == [(name, "", "") for name in first]
    # Two have tests of their own below.
    faulty = {name for name, *_ in FAULTS[agent] + TOGETHER[agent]}
    assert set(own) - {"every_parameter_moves", "seeds_apart"} <= faulty


@pytest.mark.slow
def test_layer_norm_may_be_the_default(tmp_path):
    path = planted(tmp_path, "layer_norm: bool = static(False)", "layer_norm: bool = static(True)")
    report = check.run(path, only=["convolved_images", "named_activation"], bisect=False)
    assert [c.fault for c in report.oracles] == ["", ""]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ppo", "dqn", "cem"])
def test_agents_pass_every_oracle_that_stands_in_for_others(kind):
    rest = [name for name, oracle in oracles.ORACLES.items() if kind in oracle.kinds and oracle.instead_of]
    report = check.run(kind, only=rest)
    assert [(c.oracle.name, c.fault, c.why) for c in report.oracles] == [(name, "", "") for name in rest]


@pytest.mark.slow
def test_what_functions_of_the_file_say_is_not_asked_again_but_where_make_does_not_use_them(tmp_path):
    names = ["actions", "whole_actions"]
    assert [(c.oracle.name, c.fault) for c in check.run("cem", only=names).oracles] == [("actions", "")]
    assert [(c.oracle.name, c.fault) for c in check.run("cem", only=names[1:]).oracles] == [("whole_actions", "")]
    source = Path(cem.__file__).read_text()
    function = source[source.index("def act(") :].split("\n\n\n")[0]
    path = tmp_path / "cem.py"
    path.write_text(re.sub(r"\bact\b(?=[(,])", "my_act", source) + "\n\n" + function + "\n")
    unused, stands_in = check.run(str(path), only=names).oracles
    assert (unused.fault, unused.why) == (None, "its make does not use act")
    assert stands_in.fault == ""


def planted_faults():
    """Agents with a fault; those of oracles that take a whole update to stand in for others are a study."""
    for agent, faults in FAULTS.items():
        for fault in faults:
            mark = pytest.mark.study if oracles.ORACLES[fault[0]].instead_of else pytest.mark.slow
            yield pytest.param(agent, *fault, marks=mark)


@pytest.mark.parametrize(("agent", "name", "old", "new"), list(planted_faults()))
def test_each_oracle_fails_on_a_planted_fault(agent, name, old, new, tmp_path):
    report = check.run(planted(tmp_path, old, new, agent), only=[name], bisect=False)
    assert [c.oracle.name for c in report.failures] == [name]
    assert f" at {name}: " in verdict.verdict(report)


@pytest.mark.slow
@pytest.mark.parametrize("agent", TOGETHER, ids=lambda agent: agent.__name__)
def test_oracles_of_one_program_fail_on_faults_planted_together(agent, tmp_path):
    source = Path(agent.__file__).read_text()
    for _, old, new in TOGETHER[agent]:
        assert source.count(old) == 1
        source = source.replace(old, new)
    (tmp_path / "planted.py").write_text(source)
    names = [name for name, *_ in TOGETHER[agent]]
    report = check.run(str(tmp_path / "planted.py"), only=names, bisect=False)
    assert sorted(c.oracle.name for c in report.failures) == sorted(names)


@pytest.mark.slow
def test_fail_fast_stops_at_the_first_fault(tmp_path):
    path = planted(tmp_path, "gamma * jnp.where(terminated, 0.0, next_value)", "gamma * next_value")
    report = check.run(path, fail_fast=True, bisect=False)
    assert [(c.oracle.name, bool(c.fault)) for c in report.oracles] == [("advantages", True)]
    assert report.rungs == []
    # constant and pixels train in different programs.
    report = check.run(path, only=["constant", "pixels"], num_seeds=3, fail_fast=True, bisect=False)
    assert [r.probe.name for r in report.failures] == ["constant"]
    assert [r.probe.name for r in report.rungs] == ["constant"]
    # A few seeds first, and all if they pass.
    report = check.run(path, only=["constant"], num_seeds=16, fail_fast=True, bisect=False)
    assert len(report.rungs[0].passed) == check.FEW
    report = check.run("ppo", only=["constant"], num_seeds=16, fail_fast=True)
    assert (len(report.rungs[0].passed), report.ok) == (16, True)


def test_an_agent_without_a_setting_is_not_asked_about_it(tmp_path):
    source = Path(dqn.__file__).read_text().replace('"loss": ("squared", "huber"),', "")
    source = source.replace('    loss: Literal["squared", "huber"] = static("squared")', "    half: float = 1.0")
    source = source.replace('if task.config.loss == "huber" ', "if False ")
    (tmp_path / "no_huber.py").write_text(source)
    (asked,) = check.run(str(tmp_path / "no_huber.py"), only=["td_loss"]).oracles
    assert (asked.fault, asked.why) == (None, "its Config lacks loss")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("agent", "name", "why"),
    [
        (ppo, "every_pixel", "its first values are the same whatever the image"),
        (dqn, "covered_pixels", "its first values are the same whatever the image"),
        (dqn, "known_returns", "its first values are all 0, so that targets are rewards alone"),
    ],
)
def test_a_head_that_begins_at_zero_is_blind_to_nothing(agent, name, why, tmp_path):
    source = Path(agent.__file__).read_text().replace("kernel_init=orthogonal(1.0), ", "")
    source = re.sub(r'(name="(value_)?head")', r"kernel_init=nn.initializers.zeros, \1", source)
    (tmp_path / "zeros.py").write_text(source)
    (asked,) = check.run(str(tmp_path / "zeros.py"), only=[name], bisect=False).oracles
    assert (asked.fault, asked.why) == (None, why)


@pytest.mark.slow
def test_a_parameter_that_stays_fails(tmp_path):
    # The critic learns from nothing: its gradient is zero.
    path = planted(tmp_path, "config.vf_coef * value_loss", "0.0 * value_loss")
    report = check.run(path, only=["every_parameter_moves"], bisect=False)
    assert "critic_0" in report.failures[0].fault


@pytest.mark.slow
def test_seeds_that_share_something_fail(tmp_path):
    path = planted(
        tmp_path, "key, key_env, key_net = jax.random.split(key, 3)", "key = key_env = key_net = jax.random.key(0)"
    )
    report = check.run(path, only=["seeds_apart"], bisect=False)
    assert "different values" in report.failures[0].fault


@pytest.mark.slow
def test_a_fault_in_training_is_found_and_named(tmp_path):
    path = planted(
        tmp_path, "jnp.where(terminated, 0.0, next_value)", "jnp.where(terminated | truncated, 0.0, next_value)"
    )
    report = check.run(path, only=FINGERPRINTS, num_seeds=5)
    assert [r.probe.name for r in report.failures] == ["truncation_pair", "truncation_loop"]
    said = verdict.verdict(report)
    assert (
        "WRONG at truncation_pair: look at truncation against termination. 0 of 5 seeds pass; expected V (1, 1.6)"
        in said
    )
    assert "That is what comes out if truncation is treated as termination." in said
    assert re.search(r"Undo line \d+, in `gae`, and truncation_pair passes.$", said)


def test_functions_that_a_file_lacks_are_reported_as_not_checked(tmp_path):
    path = tmp_path / "renamed.py"
    path.write_text(SOURCE.replace("gae(", "advantages_of("))
    report = check.run(str(path), only=["advantages"])
    assert verdict.word(report) == "NOT ENOUGH"
    assert verdict.verdict(report) == "NOT ENOUGH: none of the checks that were asked for could run: it has no gae."
    report = check.run(str(path), only=["advantages", "categorical"])
    assert report.ok
    assert (report.oracles[0].fault, report.oracles[0].why) == (None, "it has no gae")
    assert verdict.verdict(report).endswith("answers every check right; 1 not checked; the others were not asked for.")


@pytest.mark.slow
def test_fields_under_another_name_are_reported_as_not_checked(tmp_path):
    path = tmp_path / "renamed.py"
    path.write_text(re.sub(r"\bfinal_obs\b", "led_to", SOURCE))
    report = check.run(str(path), only=["transitions", "learned_batch"])
    assert report.ok
    assert [c.fault for c in report.oracles] == [None, None]
    assert "has no attribute 'final_obs'" in report.oracles[0].why


@pytest.mark.slow
def test_an_update_that_calls_other_functions_is_reported_as_not_checked(tmp_path):
    path = tmp_path / "inlined.py"
    path.write_text(
        SOURCE.replace("state, aux = learn(task, state,", "state, aux = (lambda *x: learn(*x))(task, state,")
    )
    assert check.run(str(path), only=["learned_batch"]).ok
    path.write_text(
        SOURCE.replace("state, aux = learn(task, state,", "state, aux = learning(task, state,")
        + """

learning = learn
"""
    )
    assert check.run(str(path), only=["learned_batch"]).oracles[0].why == "its update does not call collect and learn"


@pytest.mark.slow
def test_metrics_and_settings_that_a_file_lacks_are_reported_as_not_checked(tmp_path):
    path = tmp_path / "renamed.py"
    path.write_text(SOURCE.replace("first_ratio_error", "r").replace('"kl"', '"k"').replace("approx_kl", "a"))
    assert check.run(str(path), only=["first_ratio"]).oracles[0].why == "it emits no first_ratio_error"
    path.write_text(SOURCE.replace("anneal_lr", "anneal"))
    assert check.run(str(path), only=["schedule"]).oracles[0].why == "its Config lacks anneal_lr"


def test_a_probe_whose_setting_the_config_lacks_is_reported_as_not_checked(tmp_path):
    path = tmp_path / "renamed.py"
    path.write_text(SOURCE.replace("ent_coef", "bonus"))
    report = check.run(str(path), only=["soft_bandit_1"], num_seeds=2)
    assert report.rungs[0].why == "its Config lacks ent_coef, which the probe has to set"


def test_spaces_that_an_agent_does_not_take_are_reported_as_not_checked(tmp_path):
    old = '        if not choices(space) and not hasattr(space, "low"):\n'
    path = planted(tmp_path, old, '        if what == "action" and not choices(space):\n')
    report = check.run(path, only=["continuous_target"], num_seeds=2)
    assert "PPO takes Discrete, MultiDiscrete or Box" in report.rungs[0].why


def test_a_file_that_raises_is_reported_with_its_line(tmp_path):
    path = planted(tmp_path, "    target = advantage + value\n", "    target = advantage + value + 1 / 0\n")
    line = SOURCE[: SOURCE.index("    target = advantage + value\n")].count("\n") + 1
    with pytest.raises(UsageError, match=f"line {line}: ZeroDivisionError"):
        check.run(path, only=["discount"], num_seeds=2)


def test_a_function_that_raises_is_at_fault_itself(tmp_path):
    path = planted(tmp_path, "    trace = gamma * gae_lambda *", "    trace = (1 / 0) * gamma * gae_lambda *")
    report = check.run(path, only=["advantages"])
    line = SOURCE[: SOURCE.index("    trace = gamma * gae_lambda *")].count("\n") + 1
    assert report.failures[0].fault == f"line {line}: ZeroDivisionError: division by zero"


def test_a_function_that_takes_other_things_within_an_agent_that_runs_is_not_asked(tmp_path):
    path = planted(
        tmp_path, "    trace = gamma * gae_lambda *", "    reward.reshape(128, 4)\n    trace = gamma * gae_lambda *"
    )
    report = check.run(path, only=["advantages"])
    line = SOURCE[: SOURCE.index("    trace = gamma * gae_lambda *")].count("\n") + 1
    assert not report.failures
    assert report.oracles[0].why.startswith(f"line {line}: TypeError: cannot reshape")


@pytest.mark.parametrize(
    ("agent", "asked", "changes"),
    [
        (ppo, ["learned_batch", "learned_targets"],
         [("indices: Array, learning_rate: Array)", "indices: Array, learning_rate: Array, again: Any = None)"),
          ("learn(task, state, batch, indices, learning_rate)\n",
           "learn(task, state, batch, indices=indices, learning_rate=learning_rate, again=lambda x: x)\n")]),
        (dqn, ["replay_draws"],
         [("num_envs: int, n_step: int) -> Any:", "num_envs: int, n_step: int, newest: Any = None) -> Any:"),
          ("replay_indices(bits[:-1], rows[:, None], capacity, num_envs, config.n_step)",
           "replay_indices(bits[:-1], rows[:, None], capacity, num_envs, n_step=config.n_step, newest=min)")]),
        (dqn, ["exploring_steps"],
         [("epsilon_at(config: Config, env_steps: Any)", "epsilon_at(config: Config, env_steps: Any, by: Any = None)"),
          ("jnp.arange(shape[1])) * num_envs)", "jnp.arange(shape[1])) * num_envs, by=min)")]),
        (cem, ["drawn_candidates", "next_gaussian"],
         [("obs_moments: Moments | None = None) -> tuple[Any, ...]:\n    \"\"\"One",
           "obs_moments: Moments | None = None, at: Any = None) -> tuple[Any, ...]:\n    \"\"\"One"),
          ("candidates, keys_rollout, state.seen)", "candidates, keys=keys_rollout, obs_moments=state.seen, at=min)")]),
    ],
    ids=["learn", "replay_indices", "epsilon_at", "rollout"],
)  # fmt: skip
def test_a_function_may_take_more_than_it_did_if_that_has_a_default(agent, asked, changes, tmp_path):
    report = check.run(edited(tmp_path, agent, *changes), only=asked)
    assert [x.fault for x in report.oracles] == [""] * len(asked)


def test_a_policy_that_becomes_nan_is_not_said_to_draw_otherwise(tmp_path):
    # Its gradient goes through a standard deviation that is 0.
    path = planted(tmp_path, "    advantage = batch.advantage\n", "    advantage = batch.target - value\n")
    report = check.run(path, only=["sampled_actions", "fresh_samples"])
    assert {x.why for x in report.oracles} == {"its policy becomes NaN, at a learning rate of 0"}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("jnp.exp(distribution.log_probs[0])\n", "distribution.log_probs[0, :2]\n", "it must be their probabilities"),
        ("return value[0] if", "return value if", r"value gives an array of shape \(1,\)"),
        (
            "@flax.struct.dataclass\nclass Config",
            "class Config",
            "lacks a Config that is a frozen flax.struct dataclass;",
        ),
        (
            "@flax.struct.dataclass\nclass Config",
            "import dataclasses\n@dataclasses.dataclass(frozen=True)\nclass Config",
            "lacks a Config that jax sees as a tree",
        ),
        (
            'env_id: str = static("CartPole-v1")',
            "env_id: str",
            "lacks a default of Config.env_id;",
        ),
        (
            "env: Any = None, env_params: Any = None) -> Agent",
            "env: Any = None) -> Agent",
            r"lacks a make that is make\(config, env=None, env_params=None\) -> Agent;",
        ),
    ],
)
def test_a_file_that_breaks_the_contract_is_told_so(old, new, message, tmp_path):
    with pytest.raises(UsageError, match=message) as error:
        check.run(planted(tmp_path, old, new), only=["discount"])
    assert "\n" not in str(error.value)


def renamed(tmp_path, agent, *names):
    source = Path(agent.__file__).read_text()
    for name in names:
        source = re.sub(rf"\b{name}\b", f"my_{name}", source)
    (tmp_path / "renamed.py").write_text(source)
    return str(tmp_path / "renamed.py")


ALL_AT_ONCE = [
    (ppo, "make", "make(config, env=None, env_params=None) -> Agent;"),
    (dqn, "policy train", "train(config, key, env=None, env_params=None) -> (state, diagnostics), Agent.policy;"),
]


@pytest.mark.parametrize(("agent", "names", "lacking"), ALL_AT_ONCE)
def test_all_that_a_file_lacks_is_said_at_once_and_before_anything_is_compiled(
    agent, names, lacking, tmp_path, monkeypatch
):
    monkeypatch.setattr(jax.stages.Lowered, "compile", lambda *_: pytest.fail("compiled"))
    with pytest.raises(UsageError) as error:
        check.run(renamed(tmp_path, agent, *names.split()))
    assert f"renamed.py is no agent: it lacks {lacking}" in str(error.value)
    assert str(error.value).endswith("; see the contract in rlref/README.md")


def test_a_file_that_cannot_be_imported_is_told_what_it_lacks_besides(tmp_path):
    (tmp_path / "script.py").write_text("import no_such_module\nclass Agent: pass\ndef train(): make = 1\n")
    with pytest.raises(UsageError) as error:
        check.run(str(tmp_path / "script.py"))
    assert str(error.value).endswith(
        "ModuleNotFoundError: No module named 'no_such_module'; besides, it defines no Config, make"
    )


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('if __name__ == "__main__":', "if True:\n    raise SystemExit(0)", r"line \d+: SystemExit: 0"),
        (
            "    return Agent(partial(init",
            "    Agent(partial(init",
            r"make gives NoneType; it must give an Agent\(init, ",
        ),
        ("\ndef make_optimizer", "\nConfig = Config()\n\n\ndef make_optimizer", "it lacks a Config that is a frozen"),
    ],
)
def test_what_is_no_agent_ends_in_one_line(tmp_path, old, new, said):
    with pytest.raises(UsageError, match=said):
        check.run(planted(tmp_path, old, new), only=["constant"])


def test_unknown_names_are_refused():
    with pytest.raises(UsageError, match=r"'discont' does not exist\. Did you mean 'discount'"):
        check.run("ppo", only=["discont"])
    with pytest.raises(UsageError, match="'phase_flip' is not for this kind of agent"):
        check.run("ppo", only=["phase_flip"])
