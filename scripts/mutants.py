"""Bugs to plant in the agents: each is a replacement of text that must occur exactly once in the agent's file.

Most have really been made in public code, or were found by reviewers who changed a line when nothing noticed.
`mutation_score.py` plants them.
"""

from collections.abc import Iterable
from typing import NamedTuple


class Mutant(NamedTuple):
    """One bug."""

    name: str
    old: str
    new: str
    component: str
    """what the bug is in: a key of COMPONENTS"""
    equivalent: str = ""
    """why it is no bug on these probes, and not counted; '' for a bug"""
    declared_later: bool = False
    """whether that was found only when nothing caught it"""
    apart: str = ""
    """why behaviour alone cannot show it, so that it is not counted where all names are others; '' for the rest"""


def plant(name: str, source: str, edits: Iterable[tuple[str, str]]) -> str:
    """`source` with each old text replaced by the new. Raises ValueError unless each occurs exactly once."""
    for old, new in edits:
        if (count := source.count(old)) != 1:
            raise ValueError(f"{name}: the text to be replaced occurs {count} times, not once")
        source = source.replace(old, new)
    return source


# Agent -> component -> the checks that isolate it: those that its bugs should fail first.
COMPONENTS = {
    "ppo": {
        "action distribution": "categorical gaussian known_entropy sampled_actions sampled_odds drawn_spread "
        "gaussian_entropy joint_log_prob continuous_target",
        "action mask": "allowed_actions allowed_entropy allowed",
        "advantages": "advantages known_advantages discount reset_leak reset_temptation delayed_credit "
        "truncation_pair truncation_loop",
        "batch": "learned_batch learned_targets known_rewards known_advantages known_targets traced_targets "
        "exact_batch env_axis",
        "clipping of actions": "clipped_actions cut_actions boxed_transitions fenced_actions drawn_actions boundary",
        "entropy bonus": "entropy_bonus exact_entropy soft_bandit_1 soft_bandit_2",
        "evaluation": "statistics_seen boxed_transitions reported_spread value_units evaluated_as_learned offset_obs "
        "will_to_live",
        "gradient steps": "gradient_steps early_stop first_ratio whole_batches exact_clip stopped_epochs "
        "optimiser_goes_on",
        "learning rate": "schedule learned_targets",
        "metrics": "known_metrics known_rollout known_targets traced_targets known_losses metrics_of_ratios "
        "fraction_clipped metrics_of_steps episode_metrics early_stop gradient_steps means_of_steps explained_variance "
        "summaries dormant_units noise_scale nonfinite_shows",
        "minibatches": "each_sample_once gradient_steps whole_batches fresh_orders learned_targets table",
        "network": "observations_apart convolved_images probabilities curved_value images_of_bytes every_pixel "
        "exclusive_or pixels shown_features every_parameter_moves",
        "observation normalisation": "normalised running_moments normalised_batch statistics_seen seen_observations "
        "offset_obs",
        "policy loss": "policy_loss gradient_steps moving_ratio exact_policy bandit context_bandit",
        "random keys": "keys_used_once fresh_randomness fresh_samples",
        "reward scaling": "reward_scaling running_moments scaled_batch statistics_seen scaled_rewards will_to_live",
        "several choices": "several_choices two_choices",
        "rollout": "transitions boxed_transitions first_ratio known_rollout episode_metrics final_observations "
        "drawn_actions",
        "value loss": "value_loss exact_value constant obs_value",
    },
    "dqn": {
        "action mask": "allowed_actions allowed allowed_next",
        "acting": "collected_steps chosen_actions newest_parameters fresh_actions bandit context_bandit",
        "evaluation": "evaluated evaluated_as_learned evaluated_greedily",
        "exploration": "exploration greedy_policy chosen_actions known_epsilon exploring_steps "
        "collected_steps fresh_actions password",
        "gradient steps": "optimiser semi_gradient adam_steps first_step_size optimiser_goes_on",
        "learning rate": "schedule",
        "loss": "td_loss semi_gradient two_kinds first_step_size constant obs_value",
        "metrics": "collected_steps known_q_metrics known_steps counted_steps negative_maxima known_epsilon "
        "episode_metrics explained_variance summaries "
        "dormant_units target_network nonfinite_shows",
        "network": "convolved_images exclusive_or pixels shown_features dueling_heads evaluated every_parameter_moves "
        "bent_layers covered_pixels scaled_bytes known_duel",
        "next value": "next_state_values bootstrapped_targets best_next_value expected_next_value known_q_targets "
        "newest_targets max_not_mean",
        "random keys": "keys_used_once replay_draws fresh_randomness fresh_actions fresh_replay_draws "
        "fresh_diagnostics",
        "replay": "collected_steps replay_draws replay_slots replay_odds replay_order "
        "storage stored_transitions stored_steps stored_endings whole_returns oldest_overwritten warm_up "
        "first_after_warm_up stored_images phase_flip",
        "returns": "sampled_returns stored_steps known_returns known_n_step_returns discount reset_leak "
        "truncation_pair truncation_loop",
        "target network": "known_target_network target_network target_chain target_loop newest_targets",
        "targets": "bootstrapped_targets learned_rewards known_q_targets constant obs_value",
    },
    "cem": {
        "action mask": "allowed_actions allowed",
        "candidates": "drawn_candidates spread_of_candidates about_the_mean search_distribution far_optimum",
        "environment": "given_parameters",
        "elites": "selection next_gaussian search_distribution best_candidates nan_is_worst number_of_elites "
        "bandit context_bandit table",
        "evaluation": "policy_outputs evaluated_gaussian fresh_rollouts policy_of_the_mean evaluated_mean fresh_elites "
        "played_normalised observations_normalised",
        "extra variance": "extra_variance_schedule next_gaussian search_distribution added_variance "
        "extra_variance_line far_optimum",
        "fitness": "first_episodes known_fitness reset_temptation patience",
        "metrics": "generation_metrics known_c_metrics analysis_of_variance divergences counted_candidates "
        "counted_episodes generation_counts gaussian_metrics floor_of_kl explained_by_candidates",
        "observation normalisation": "normalised rollouts_moments observations_normalised played_normalised "
        "nothing_after_the_end",
        "policy": "shown_features dense_layers policy_outputs actions bounded_actions whole_actions hidden_layers "
        "byte_images squashed_actions curved_target pixels boundary",
        "random keys": "keys_used_once common_numbers common_starts fresh_rollouts searches_apart "
        "search_distribution spread_of_candidates",
        "refit": "selection next_gaussian search_distribution refitted_mean refitted_variance carried_mean",
        "score": "next_gaussian mean_score noisy_bandit",
        "smoothing": "next_gaussian search_distribution smoothed_mean smoothed_away smoothed_variance",
    },
}

PPO = [
    Mutant("advantage sign", "    advantage = batch.advantage\n", "    advantage = -batch.advantage\n", "policy loss"),
    Mutant("policy loss not negated", "policy_loss = -jnp.minimum", "policy_loss = jnp.minimum", "policy loss"),
    Mutant(
        "ratio exp(old - new)",
        "log_ratio = policy.log_prob(batch.action) - batch.log_prob",
        "log_ratio = batch.log_prob - policy.log_prob(batch.action)",
        "policy loss",
    ),
    Mutant(
        "old log-prob recomputed",
        "log_ratio = policy.log_prob(batch.action) - batch.log_prob",
        "log_ratio = policy.log_prob(batch.action) - jax.lax.stop_gradient(policy.log_prob(batch.action))",
        "policy loss",
    ),
    Mutant(
        "what is kept of a step, a step late",
        "jax.vmap(unravel)(rows)",
        "jax.vmap(unravel)(jnp.roll(rows, 1, axis=0))",
        "rollout",
    ),
    Mutant(
        "log-prob of another sample",
        "rollout.policy.log_prob(rollout.action)",
        "rollout.policy.log_prob(jnp.roll(rollout.action, 1, axis=1))",
        "rollout",
    ),
    Mutant(
        "Gaussian log-prob not summed over dimensions",
        "return jnp.sum(-0.5 * z**2",
        "return jnp.mean(-0.5 * z**2",
        "action distribution",
    ),
    Mutant(
        "(N, 1) - (N) in the value loss",
        "squared_error = (value - batch.target) ** 2",
        "squared_error = (value[:, None] - batch.target) ** 2",
        "value loss",
    ),
    Mutant(
        "(N, 1) - (N) in the policy loss",
        "jnp.minimum(ratio * advantage, clipped_ratio * advantage)",
        "jnp.minimum(ratio[:, None] * advantage, clipped_ratio[:, None] * advantage)",
        "policy loss",
    ),
    Mutant("max for min in the clip", "-jnp.minimum(ratio", "-jnp.maximum(ratio", "policy loss"),
    Mutant("min for max in the value clip", "squared_error = jnp.maximum", "squared_error = jnp.minimum", "value loss"),
    Mutant("entropy sign", "- config.ent_coef *", "+ config.ent_coef *", "entropy bonus"),
    Mutant("entropy bonus missing", "- config.ent_coef *", "- 0.0 *", "entropy bonus"),
    Mutant(
        "entropy over the wrong axis",
        "return -jnp.sum(jnp.exp(self.log_probs) * self.log_probs, axis=-1)",
        "return -jnp.sum(jnp.exp(self.log_probs) * self.log_probs, axis=0)",
        "action distribution",
    ),
    Mutant(
        "bootstrap through termination",
        "gamma * jnp.where(terminated, 0.0, next_value)",
        "gamma * next_value",
        "advantages",
    ),
    Mutant(
        "no bootstrap at truncation",
        "gamma * jnp.where(terminated, 0.0, next_value)",
        "gamma * jnp.where(terminated | truncated, 0.0, next_value)",
        "advantages",
    ),
    Mutant(
        "bootstrap from the reset observation",
        'info["final_observation"], terminated | truncated',
        "obs, terminated | truncated",
        "rollout",
    ),
    Mutant("gamma missing", "delta = reward + gamma *", "delta = reward +", "advantages"),
    Mutant("gamma twice", "delta = reward + gamma *", "delta = reward + gamma**2 *", "advantages"),
    Mutant("lambda 0", "trace = gamma * gae_lambda *", "trace = gamma * 0.0 *", "advantages"),
    Mutant(
        "trace not cut at the end of an episode",
        "jnp.where(terminated | truncated, 0.0, 1.0)",
        "jnp.ones_like(delta)",
        "advantages",
    ),
    Mutant(
        "last value 0 at the rollout's end",
        "    advantage = gae(reward, value, next_value,",
        "    advantage = gae(reward, value, next_value.at[-1].set(0.0),",
        "batch",
    ),
    Mutant("targets without values", "target = advantage + value", "target = advantage", "batch"),
    Mutant(
        "stop-gradient missing on targets",
        "squared_error = (value - batch.target) ** 2",
        "squared_error = (value - (batch.advantage + value)) ** 2",
        "value loss",
    ),
    Mutant(
        "advantage normalised over the wrong axis",
        "    batch = flat(Batch(rollout.obs",
        "    advantage = (advantage - advantage.mean(1, keepdims=True)) / (advantage.std(1, keepdims=True) "
        "+ 1e-8)\n    batch = flat(Batch(rollout.obs",
        "batch",
    ),
    Mutant(
        "time and environment axes swapped for advantages",
        "rollout.log_prob, value, advantage, target))",
        "rollout.log_prob, value, advantage.T, target))",
        "batch",
    ),
    Mutant(
        "time and environment axes swapped for targets",
        "rollout.log_prob, value, advantage, target))",
        "rollout.log_prob, value, advantage, target.T))",
        "batch",
    ),
    Mutant(
        "observations and advantages shuffled apart",
        "minibatch = jax.tree.map(lambda x: x[index], batch)",
        "minibatch = jax.tree.map(lambda x: x[index], batch)._replace(obs=batch.obs[jnp.roll(index, 1)])",
        "gradient steps",
    ),
    Mutant("learning-rate schedule inverted", "(1 - step / num_updates)", "(step / num_updates)", "learning rate"),
    Mutant(
        "observation statistics not applied at evaluation",
        "distribution, _ = forward(task, state.params, state.obs_moments, obs[None])",
        "distribution, _ = forward(task, state.params, None, obs[None])",
        "evaluation",
    ),
    Mutant("variance taken for the mean", "(x - moments.mean)", "(x - moments.variance)", "observation normalisation"),
    Mutant(
        "rewards shifted by their mean",
        "reward, ended = rollout.reward, rollout",
        "reward, ended = rollout.reward - rollout.reward.mean(), rollout",
        "batch",
    ),
    Mutant(
        "scaled rewards shifted by their mean",
        "reward = jnp.clip(reward / reward_scale(moments)",
        "reward = jnp.clip((reward - reward.mean()) / reward_scale(moments)",
        "reward scaling",
    ),
    Mutant(
        "value left in scaled units",
        "else value[0] * reward_scale(state.return_moments)",
        "else value[0]",
        "evaluation",
    ),
    Mutant(
        "actions reach the environment unclipped",
        "return jnp.clip(action.reshape(action.shape[0], *space.shape), space.low, space.high).astype(space.dtype)",
        "return action.reshape(action.shape[0], *space.shape).astype(space.dtype)",
        "clipping of actions",
    ),
    Mutant(
        "key reused across environments",
        "jax.random.split(key_env, shape)",
        "jnp.broadcast_to(jax.random.split(key_env, (shape[0], 1)), shape)",
        "random keys",
    ),
    Mutant(
        "key not advanced in the scan",
        "jax.random.split(key_env, shape)",
        "jnp.broadcast_to(jax.random.split(key_env, (1, shape[1])), shape)",
        "random keys",
    ),
    Mutant(
        "key not advanced between updates",
        "collect(task, replace(state, key=key), key_collect)",
        "collect(task, state, key_collect)",
        "random keys",
    ),
    Mutant("episode return not reset", "jnp.where(ended, 0.0, total)", "total", "rollout"),
    Mutant(
        "metric averaged over the wrong axis",
        '"kl": part.policy.kl(policy).mean()',
        '"kl": part.policy.kl(policy).sum()',
        "metrics",
    ),
    Mutant(
        "gradient clip removed",
        "optax.clip_by_global_norm(config.max_grad_norm)",
        "optax.identity()",
        "gradient steps",
    ),
    Mutant(
        "advantage normalisation removed",
        "    if config.norm_adv:\n",
        "    if False:\n",
        "policy loss",
    ),
    Mutant(
        "Adam's epsilon", "eps=config.adam_eps", "eps=1e-8", "gradient steps", "changes how fast it learns, not what"
    ),
    Mutant("advantages summed forwards in time", "(delta, trace), reverse=True,", "(delta, trace),", "advantages"),
    Mutant(
        "ratio clipped on one side alone",
        "jnp.clip(ratio, 1 - config.clip_coef, 1 + config.clip_coef)",
        "jnp.clip(ratio, 1 - config.clip_coef, jnp.inf)",
        "policy loss",
    ),
    Mutant(
        "advantages centred, not divided",
        "(advantage - advantage.mean()) / (advantage.std() + 1e-8)",
        "advantage - advantage.mean()",
        "policy loss",
    ),
    Mutant("weight of the value loss missing", "config.vf_coef * value_loss", "value_loss", "value loss"),
    Mutant(
        "half of the value loss missing",
        "value_loss = 0.5 * squared_error.mean()",
        "value_loss = squared_error.mean()",
        "value loss",
    ),
    Mutant(
        "entropy of the old policy",
        "config.ent_coef * policy.entropy().mean()",
        "config.ent_coef * batch.policy.entropy().mean()",
        "entropy bonus",
    ),
    Mutant(
        "all epochs in the same order",
        "jax.random.bits(key, (epochs, batch_size))",
        "jnp.tile(jax.random.bits(key, (1, batch_size)), (epochs, 1))",
        "minibatches",
    ),
    Mutant(
        "a sample of each minibatch left out",
        "minibatch = jax.tree.map(lambda x: x[index], batch)",
        "minibatch = jax.tree.map(lambda x: x[index[1:]], batch)",
        "gradient steps",
    ),
    Mutant(
        "gradient clipped after Adam",
        "optax.clip_by_global_norm(config.max_grad_norm), optax.adam(learning_rate, eps=config.adam_eps)",
        "optax.scale_by_adam(eps=config.adam_eps), optax.clip_by_global_norm(config.max_grad_norm), "
        "optax.scale_by_learning_rate(learning_rate)",
        "gradient steps",
    ),
    Mutant(
        "log-std taken for the std in sampling",
        "self.mean + jnp.exp(self.log_std) * noise",
        "self.mean + self.log_std * noise",
        "action distribution",
    ),
    Mutant(
        "Gumbel noise with the wrong sign",
        "jnp.argmax(self.log_probs + noise, axis=-1)",
        "jnp.argmax(self.log_probs - noise, axis=-1)",
        "action distribution",
    ),
    Mutant(
        "greedy actions in training",
        "jnp.argmax(self.log_probs + noise, axis=-1)",
        "jnp.argmax(self.log_probs, axis=-1)",
        "action distribution",
    ),
    Mutant("logits not normalised", "Categorical(jax.nn.log_softmax(outputs))", "Categorical(outputs)", "network"),
    Mutant("softmax over the batch", "jax.nn.log_softmax(outputs))", "jax.nn.log_softmax(outputs, axis=0))", "network"),
    Mutant(
        "Gaussian entropy averaged over dimensions",
        "return jnp.sum(self.log_std + 0.5",
        "return jnp.mean(self.log_std + 0.5",
        "action distribution",
    ),
    Mutant(
        "log-prob of the clipped action",
        "action = policy.sample(noise)\n",
        "action = policy.sample(noise) if task.network.discrete else env_action(task, policy.sample(noise))\n",
        "clipping of actions",
    ),
    Mutant(
        "hidden layers without activation",
        'x = activation(nn.LayerNorm(name=f"{name}_norm_{i}")(x) if self.layer_norm else x)',
        'x = nn.LayerNorm(name=f"{name}_norm_{i}")(x) if self.layer_norm else x',
        "network",
    ),
    Mutant(
        "images cut at the first patch",
        "row[:, :, c : c + stride * width : stride]",
        "row[:, :, 0 : stride * width : stride]",
        "network",
    ),
    Mutant(
        "images not scaled",
        "obs.astype(jnp.float32) / (255 if obs.dtype == jnp.uint8 else 1)",
        "obs.astype(jnp.float32)",
        "network",
    ),
    Mutant(
        "observations divided, not centred",
        "jnp.clip((x - moments.mean) / jnp",
        "jnp.clip(x / jnp",
        "observation normalisation",
    ),
    Mutant(
        "observation statistics of the last batch alone",
        "obs_moments=state.obs_moments.merge(Moments.of(features(seen, task.obs_space)))",
        "obs_moments=Moments.of(features(seen, task.obs_space))",
        "observation normalisation",
    ),
    Mutant(
        "observation statistics merged without the shift of the mean",
        " + delta**2 * share * (1 - share)",
        "",
        "observation normalisation",
    ),
    Mutant(
        "discounted sum of rewards not begun anew",
        "return jnp.where(x[1], 0.0, total), total",
        "return total, total",
        "reward scaling",
    ),
    Mutant(
        "rewards divided by their variance",
        "jnp.sqrt(moments.variance), 1.0)",
        "moments.variance, 1.0)",
        "reward scaling",
    ),
    Mutant(
        "reward statistics forgotten",
        "moments = state.return_moments.merge(Moments.of(totals.reshape(-1)))",
        "moments = Moments.of(totals.reshape(-1))",
        "reward scaling",
    ),
    Mutant(
        "next values of the same observations",
        "flat(rollout.final_obs)",
        "flat(rollout.obs)",
        "batch",
    ),
    Mutant(
        "all environments begin alike",
        "jax.vmap(task.env.reset, in_axes=(0, None))(jax.random.split(key_env, num_envs), task.env_params)",
        "jax.vmap(task.env.reset, in_axes=(0, None))(jnp.stack([key_env] * num_envs), task.env_params)",
        "random keys",
    ),
    Mutant(
        "all seeds have the same network",
        "task.network.init(key_net,",
        "task.network.init(jax.random.key(0),",
        "random keys",
    ),
    Mutant(
        "shuffling on the key of the rollout",
        "minibatch_indices(key_shuffle,",
        "minibatch_indices(key_collect,",
        "random keys",
    ),
    Mutant(
        "learning rate never lowered",
        "((1 - step / num_updates) if config.anneal_lr else jnp.float32(1))",
        "jnp.float32(1)",
        "learning rate",
    ),
    Mutant(
        "target_kl inverted",
        'aux["approx_kl"].mean() <= target_kl',
        'aux["approx_kl"].mean() > target_kl',
        "gradient steps",
    ),
    Mutant("KL(new, old)", '"kl": part.policy.kl(policy).mean()', '"kl": policy.kl(part.policy).mean()', "metrics"),
    Mutant(
        "explained variance of the values alone",
        "1 - (target - value).var() / variance",
        "value.var() / variance",
        "metrics",
    ),
    Mutant(
        "clip fraction of one side",
        "(jnp.abs(ratio - 1) > config.clip_coef)",
        "((ratio - 1) > config.clip_coef)",
        "metrics",
    ),
    Mutant(
        "ring of episodes overwritten from its start",
        "(state.num_episodes + rank - 1) % RING",
        "(rank - 1) % RING",
        "metrics",
    ),
    Mutant(
        "actions clipped at 1 whatever the Box",
        "space.low, space.high).astype",
        "-1.0, 1.0).astype",
        "clipping of actions",
    ),
    Mutant(
        "clipped actions are learned from",
        "action = policy.sample(noise)",
        "action = env_action(task, policy.sample(noise))",
        "rollout",
    ),
    Mutant(
        "Adam's moments go on after target_kl",
        "new = jax.tree.map(partial(jnp.where, going), new, (params, opt_state))",
        "new = jnp.where(going, new[0], params), new[1]",
        "gradient steps",
    ),
    Mutant("metrics count the steps that target_kl left out", "x.mean(where=applied > 0)", "x.mean()", "metrics"),
    Mutant(
        "variance reported as the std of the policy",
        "return distribution.mean[0], jnp.exp(distribution.log_std[0])",
        "return distribution.mean[0], jnp.exp(2 * distribution.log_std[0])",
        "evaluation",
    ),
    Mutant(
        "sampling noise shared by environments",
        "distribution.noise(key_act, (*shape, task.num_outputs))",
        "distribution.noise(key_act, (shape[0], 1, task.num_outputs))",
        "random keys",
    ),
    Mutant(
        "log-std begins at the std",
        "jnp.full((self.num_outputs,), init_log_std, jnp.float32)",
        "jnp.full((self.num_outputs,), jnp.exp(init_log_std), jnp.float32)",
        "action distribution",
    ),
    # State that is carried wrongly from update to update.
    Mutant(
        "Adam's moments begin anew in every update",
        "(params, state.opt_state, jnp.bool(True)), indices)",
        "(params, optimizer.init(params), jnp.bool(True)), indices)",
        "gradient steps",
    ),
    Mutant(
        "discounted sum of rewards begins anew in every update",
        "discounted_returns(state.discounted_return, reward",
        "discounted_returns(jnp.zeros_like(state.discounted_return), reward",
        "reward scaling",
    ),
    Mutant(
        "sums over the episode begin anew in every update",
        "    state, rollout = scan(step, state,",
        "    state = replace(state, episode_return=0 * state.episode_return, episode_length=0 * state.episode_length)\n"
        "    state, rollout = scan(step, state,",
        "rollout",
    ),
    Mutant(
        "first observation of the update before",
        "    return state, rollout._replace(",
        "    return replace(state, obs=rollout.obs[0]), rollout._replace(",
        "rollout",
    ),
    Mutant(
        "ring of episodes wraps one late",
        "(state.num_episodes + rank - 1) % RING, RING)",
        "(state.num_episodes + rank - 1) % (RING + 1), RING)",
        "metrics",
    ),
    Mutant(
        "observations between two updates counted twice",
        "seen = flat(jnp.concatenate([rollout.obs[1:], state.obs[None]]))",
        "seen = flat(jnp.concatenate([rollout.obs, state.obs[None]]))",
        "observation normalisation",
    ),
    Mutant(
        "mask ignored",
        "x = policy.log_probs if mask is None else jnp.where(mask, policy.log_probs, FORBIDDEN)",
        "x = policy.log_probs",
        "action mask",
    ),
    Mutant(
        "probabilities of allowed actions not normalised",
        "[jax.nn.log_softmax(y) for y in policy.each(x)]",
        "[y for y in policy.each(x)]",
        "action mask",
    ),
    Mutant(
        "relative entropy of all actions where some are forbidden",
        "jnp.log((self.log_probs > FORBIDDEN / 2).sum(axis=-1))",
        "jnp.full(self.log_probs.shape[:-1], jnp.log(self.log_probs.shape[-1]))",
        "action mask",
    ),
    Mutant(
        "log-prob of the first of several choices alone",
        "return jnp.stack(each).sum(axis=0)",
        "return each[0]",
        "several choices",
    ),
]
DQN = [
    Mutant(
        "the ring wraps one row late",
        "plan = Cycle(cycle * shape[1] % capacity,",
        "plan = Cycle(cycle * shape[1] % (capacity + 1),",
        "replay",
    ),
    Mutant("target never synced", "synced = jnp.where(sync, mixed, old)", "synced = old", "target network"),
    Mutant(
        "target aliases online",
        "target = targets(task, state.target_params, unravel(params), batch, cycle.epsilon[-1])",
        "target = targets(task, unravel(params), unravel(params), batch, cycle.epsilon[-1])",
        "target network",
    ),
    Mutant(
        "Polyak average swapped",
        "config.tau * new + (1 - config.tau) * old",
        "config.tau * old + (1 - config.tau) * new",
        "target network",
    ),
    Mutant("target synced in every cycle", "inner = min(period, cycles)", "period = inner = 1", "target network"),
    Mutant(
        "done mask dropped",
        "discount = jnp.where(end.terminated, 0.0, discount)",
        "discount = discount * 1.0",
        "returns",
    ),
    Mutant(
        "done mask inverted",
        "jnp.where(end.terminated, 0.0, discount)",
        "jnp.where(end.terminated, discount, 0.0)",
        "returns",
    ),
    Mutant(
        "truncation as termination",
        "jnp.where(end.terminated, 0.0, discount)",
        "jnp.where(end.terminated | end.truncated, 0.0, discount)",
        "returns",
    ),
    Mutant(
        "bootstrap from the reset observation",
        'final_obs, dtype = info["final_observation"], config',
        "final_obs, dtype = next_obs, config",
        "replay",
    ),
    Mutant(
        "returns summed across an ending",
        "counted &= ~(step.terminated | step.truncated)",
        "counted &= True",
        "returns",
    ),
    Mutant("mean for max", "taken(target_q, online_q.argmax(axis=-1))", "target_q.mean(axis=-1)", "next value"),
    Mutant("min for max", "taken(target_q, online_q.argmax(axis=-1))", "target_q.min(axis=-1)", "next value"),
    Mutant(
        "double Q swapped",
        "taken(target_q, online_q.argmax(axis=-1))",
        "taken(online_q, target_q.argmax(axis=-1))",
        "next value",
    ),
    Mutant(
        "gradient through the target",
        "lambda p: loss(unravel(p), task, batch, target)",
        "lambda p: loss(unravel(p), task, batch, targets(task, unravel(p), unravel(p), batch, 0.0))",
        "loss",
    ),
    Mutant(
        "the target network acts",
        "collect(task, state, unravel(params)",
        "collect(task, state, state.target_params",
        "acting",
    ),
    Mutant(
        "parameters of the update's start act",
        "collect(task, state, unravel(params)",
        "collect(task, state, state.params",
        "acting",
    ),
    Mutant(
        "double Q chooses with parameters of the update's start",
        "targets(task, state.target_params, unravel(params)",
        "targets(task, state.target_params, state.params",
        "next value",
    ),
    Mutant(
        "gather with the wrong action",
        "q = taken(forward(task, params, batch.obs), batch.action)",
        "q = forward(task, params, batch.obs).max(axis=-1)",
        "loss",
    ),
    Mutant("(N, 1) - (N)", "optax.l2_loss(q, target)", "0.5 * (q[:, None] - target[None]) ** 2", "loss"),
    Mutant("loss of the mean", "return error.mean(), q", "return 0.5 * (q - target).mean() ** 2, q", "loss"),
    Mutant(
        "obs and next_obs swapped",
        "Buffer(encode(obs, dtype), action, reward, terminated, truncated, encode(final_obs, dtype))",
        "Buffer(encode(final_obs, dtype), action, reward, terminated, truncated, encode(obs, dtype))",
        "replay",
    ),
    Mutant("gamma missing", "discount * config.gamma, discount", "discount, discount", "returns"),
    Mutant("gamma squared", "discount * config.gamma, discount", "discount * config.gamma**2, discount", "returns"),
    Mutant(
        "reward from another index",
        "discount * step.reward",
        "discount * unpack(buffer[slot - 1], stored).reward",
        "returns",
    ),
    Mutant(
        "endings swapped in the memory",
        "[x.action, x.reward, x.terminated, x.truncated]",
        "[x.action, x.reward, x.truncated, x.terminated]",
        "replay",
    ),
    Mutant(
        "observations swapped in the memory",
        "for obs in (x.obs, x.next_obs)",
        "for obs in (x.next_obs, x.obs)",
        "replay",
    ),
    Mutant(
        "reward stored a step late",
        "Buffer(encode(obs, dtype), action, reward, terminated",
        "Buffer(encode(obs, dtype), action, jnp.roll(reward, 1), terminated",
        "replay",
    ),
    Mutant(
        "time and environment axes swapped for rewards",
        "    block = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), block)",
        "    block = replace(block, reward=block.reward.T)\n"
        "    block = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), block)",
        "replay",
    ),
    Mutant(
        "write index stuck",
        "Cycle(cycle * shape[1] % capacity, learning",
        "Cycle(cycle * 0, learning",
        "replay",
    ),
    Mutant(
        "buffer stops when it is full",
        "Cycle(cycle * shape[1] % capacity, learning",
        "Cycle(jnp.minimum(cycle * shape[1], capacity - shape[1]), learning",
        "replay",
    ),
    Mutant(
        "sampling beyond the fill", "stored = jnp.minimum(rows, capacity)", "stored = jnp.asarray(capacity)", "replay"
    ),
    Mutant(
        "an extra transition from the reset",
        "Buffer(encode(obs, dtype), action, reward, terminated, truncated, encode(final_obs, dtype))",
        "Buffer(encode(obs, dtype), action, reward, terminated & False, truncated & False, encode(next_obs, dtype))",
        "replay",
    ),
    Mutant("epsilon never decays", "config.start_e + progress *", "config.start_e + 0 * progress *", "exploration"),
    Mutant(
        "epsilon inverted",
        "jnp.where(uniform < epsilon, random_action,",
        "jnp.where(uniform > epsilon, random_action,",
        "exploration",
    ),
    Mutant(
        "greedy action is the worst",
        "random_action, q.argmax(axis=-1).astype(jnp.int32))",
        "random_action, q.argmin(axis=-1).astype(jnp.int32))",
        "acting",
    ),
    Mutant(
        "key reset to a constant",
        "jax.random.split(state.key, 5)",
        "jax.random.split(jax.random.key(0), 5)",
        "random keys",
    ),
    Mutant(
        "key reused across environments",
        "jax.random.split(key_env, shape)",
        "jnp.broadcast_to(jax.random.split(key_env, (shape[0], shape[1], 1)), shape)",
        "random keys",
    ),
    Mutant(
        "key not advanced in the scan",
        "jax.random.split(key_env, shape)",
        "jnp.broadcast_to(jax.random.split(key_env, (1, 1, shape[2])), shape)",
        "random keys",
    ),
    Mutant(
        "exploration shared by environments",
        "draws = jax.random.uniform(key_explore, shape), random_action",
        "draws = jax.random.uniform(key_explore, shape), jnp.broadcast_to(random_action[..., :1], shape)",
        "random keys",
    ),
    Mutant(
        "rewards shifted by their mean",
        "target = targets(task, state.target_params,",
        "batch = batch._replace(reward=batch.reward - batch.reward.mean())\n"
        "    target = targets(task, state.target_params,",
        "targets",
    ),
    Mutant("learning-rate schedule inverted", "(1 - step / num_updates)", "(step / num_updates)", "learning rate"),
    Mutant(
        "episode return not reset",
        "jnp.where(ended, new, x), new_episodes",
        "jnp.where(False, new, x), new_episodes",
        "metrics",
    ),
    Mutant(
        "metric averaged over the wrong axis",
        '"kl": jnp.sum(old * jnp.log(old / new), axis=-1).mean()',
        '"kl": jnp.sum(old * jnp.log(old / new), axis=0).mean()',
        "metrics",
    ),
    Mutant(
        "explained variance with its arguments swapped",
        "explained_variance(old_target, old_value)",
        "explained_variance(old_value, old_target)",
        "metrics",
    ),
    Mutant(
        "replay key reset to a constant",
        "jax.random.bits(key_replay,",
        "jax.random.bits(jax.random.key(0),",
        "random keys",
    ),
    Mutant(
        "random action from the draw that decided on it",
        "(uniform < epsilon, random_action,",
        "(uniform < epsilon, (uniform * q.shape[-1]).astype(jnp.int32),",
        "exploration",
    ),
    Mutant("warm-up ignored", "learning = done >= config.learning_starts", "learning = done >= 0", "replay"),
    Mutant(
        "optimiser starts anew in every update",
        "optimizer.update(gradient, state.opt_state, params)",
        "optimizer.update(gradient, optimizer.init(params), params)",
        "gradient steps",
    ),
    Mutant(
        "epsilon counts the steps of one environment",
        "jnp.arange(shape[1])) * num_envs)",
        "jnp.arange(shape[1])))",
        "exploration",
    ),
    Mutant(
        "Adam's epsilon", "eps=config.adam_eps", "eps=1e-5", "gradient steps", "changes how fast it learns, not what"
    ),
    Mutant(
        "Huber's loss for the squared one",
        "optax.l2_loss(q, target)",
        "optax.huber_loss(q, target)",
        "loss",
    ),
    Mutant(
        "bootstrap discounted once for n steps",
        "discount = jnp.where(counted, discount * config.gamma, discount)",
        "discount = jnp.full_like(discount, config.gamma)",
        "returns",
    ),
    Mutant(
        "reward of the last of n steps alone", "reward += jnp.where(counted,", "reward = jnp.where(counted,", "returns"
    ),
    Mutant(
        "next observation of the first of n steps",
        "reward, discount, decoded(end.next_obs)",
        "reward, discount, decoded(steps[0].next_obs)",
        "returns",
    ),
    Mutant(
        "discount counted twice in the return",
        "discount * step.reward",
        "discount**2 * step.reward",
        "returns",
    ),
    Mutant(
        "all gradient steps of an update draw alike",
        "bits = jax.random.bits(key_replay, (cycles + 1, config.batch_size))",
        "bits = jnp.broadcast_to(jax.random.bits(key_replay, (1, config.batch_size)), (cycles + 1, config.batch_size))",
        "random keys",
    ),
    Mutant(
        "target network starts with other parameters",
        "target_params=jax.tree.map(jnp.copy, params),",
        "target_params=jax.tree.map(lambda x: 0.5 * x, params),",
        "target network",
    ),
    Mutant(
        "last action never taken at random",
        "jax.random.randint(key_action, shape, 0, num_actions)",
        "jax.random.randint(key_action, shape, 0, num_actions - 1)",
        "exploration",
    ),
    Mutant(
        "epsilon falls over the whole training",
        "config.exploration_fraction * config.total_timesteps",
        "1.0 * config.total_timesteps",
        "exploration",
    ),
    Mutant(
        "a policy with exploration is evaluated",
        "epsilon_greedy(value(state, obs), 0.0)",
        "epsilon_greedy(value(state, obs), 0.1)",
        "evaluation",
    ),
    Mutant(
        "the target network is evaluated",
        "return forward(task, state.params, obs[None])[0]",
        "return forward(task, state.target_params, obs[None])[0]",
        "evaluation",
    ),
    Mutant(
        "learning rate missing",
        "optax.adam(learning_rate, eps",
        "optax.adam(1e-3, eps",
        "gradient steps",
    ),
    Mutant(
        "gradient ascent",
        "optax.adam(learning_rate, eps",
        "optax.adam(-learning_rate, eps",
        "gradient steps",
    ),
    Mutant(
        "clip of the gradient's norm missing",
        "optax.clip_by_global_norm(config.max_grad_norm)",
        "optax.identity()",
        "gradient steps",
    ),
    Mutant("sum of the errors for their mean", "return error.mean(), q", "return error.sum(), q", "loss"),
    Mutant(
        "dueling heads without the mean",
        'outputs += nn.Dense(1, name="value_head")(x) - outputs.mean(axis=-1, keepdims=True)',
        'outputs += nn.Dense(1, name="value_head")(x)',
        "network",
    ),
    Mutant(
        "hidden layers without activation",
        'x = activation(nn.Dense(size, name=f"hidden_{i}")(x))',
        'x = nn.Dense(size, name=f"hidden_{i}")(x)',
        "network",
    ),
    Mutant(
        "images not scaled",
        "obs.astype(jnp.float32) / (255 if obs.dtype == jnp.uint8 else 1)",
        "obs.astype(jnp.float32)",
        "network",
    ),
    Mutant(
        "observations stored as bytes are signed",
        "return obs.astype(jnp.uint8)",
        "return obs.astype(jnp.int8)",
        "replay",
    ),
    Mutant(
        "newest steps without a whole return are sampled",
        "jnp.maximum(stored - (n_step - 1), 1) * num_envs",
        "stored * num_envs",
        "replay",
    ),
    Mutant(
        "expected SARSA with the greedy policy",
        "epsilon_greedy(target_q, epsilon) * target_q",
        "epsilon_greedy(target_q, 0.0) * target_q",
        "next value",
    ),
    Mutant(
        "all environments begin alike",
        "(jax.random.split(key_env, num_envs), task.env_params)",
        "(jnp.stack([key_env] * num_envs), task.env_params)",
        "random keys",
    ),
    Mutant(
        "truncation taken for the end in the metric of overestimation",
        "jnp.where(truncated & ~terminated, q_taken, reward)",
        "reward",
        "metrics",
    ),
    Mutant(
        "replay on the key of the actions", "jax.random.bits(key_replay,", "jax.random.bits(key_action,", "random keys"
    ),
    Mutant(
        "replayed observations keep the dtype of storage",
        "return stored.reshape(-1, *like.shape[1:]).astype(like.dtype)",
        "return stored.reshape(-1, *like.shape[1:])",
        "replay",
    ),
    Mutant(
        "target network of the update's start",
        "    (state, params), (steps, learned, moved) = scan(cycles_until_sync, (state, params), (sync, plan))\n",
        "    right = targets\n"
        "    globals()[right.__name__] = lambda task, _, *others: right(task, before.target_params, *others)\n"
        "    (state, params), (steps, learned, moved) = scan(cycles_until_sync, (state, params), (sync, plan))"
        "\n    globals()[right.__name__] = right\n",
        "target network",
    ),
    Mutant(
        "Adam's moments move in the warm-up",
        "new, (params, state.opt_state))",
        "new, (params, opt_state))",
        "replay",
    ),
    Mutant(
        "convolution windows without their stride",
        "r : r + stride * height : stride",
        "r : r + height : stride",
        "network",
    ),
    Mutant(
        "dueling heads with the mean over the batch",
        "outputs.mean(axis=-1, keepdims=True)",
        "outputs.mean(keepdims=True)",
        "network",
    ),
    Mutant(
        "diagnostics on the minibatch last learned from",
        "replay_indices(bits[:-1], rows",
        "replay_indices(bits[1:], rows",
        "random keys",
    ),
    Mutant("maxima of metrics begin at 0", "initial=-jnp.inf", "initial=0.0", "metrics"),
    Mutant(
        "gradient at the update's start",
        "gradient = gradient_of(params)",
        "gradient = gradient_of(ravel_pytree(state.params)[0])",
        "acting",
    ),
    Mutant(
        "double Q chooses at the observation before",
        "forward(task, params, batch.next_obs) if task",
        "forward(task, params, batch.obs) if task",
        "next value",
    ),
    # State that is carried wrongly from update to update.
    Mutant(
        "syncs counted from the update's start",
        "sync = ((cycle + 1) % period == 0) & learning",
        "sync = ((jnp.arange(cycles) + 1) % period == 0) & learning",
        "target network",
    ),
    Mutant(
        "rows counted from the update's start",
        "rows = (cycle + 1) * shape[1]\n",
        "rows = (jnp.arange(cycles) + 1) * shape[1]\n",
        "replay",
    ),
    Mutant(
        "epsilon counts from the update's start",
        "epsilon = epsilon_at(config, (cycle[:, None]",
        "epsilon = epsilon_at(config, (jnp.arange(cycles)[:, None]",
        "exploration",
    ),
    Mutant(
        "warm-up counted from the update's start",
        "learning = done >= config.learning_starts",
        "learning = (jnp.arange(cycles) + 1) * config.train_frequency >= config.learning_starts",
        "replay",
    ),
    Mutant(
        "sums over the episode begin anew in every cycle",
        "carry = state.env_state, state.obs, state.episode\n",
        "carry = state.env_state, state.obs, new_episodes(config.num_envs)\n",
        "metrics",
    ),
    Mutant(
        "n steps run over the newest row of a full ring",
        "row = rows - stored + start // num_envs",
        "row = start // num_envs",
        "replay",
    ),
    Mutant(
        "ring of episodes wraps one late",
        "(state.num_episodes + rank - 1) % RING, RING)",
        "(state.num_episodes + rank - 1) % (RING + 1), RING)",
        "metrics",
    ),
    Mutant(
        "first observation of the cycle before",
        "return replace(state, env_state=carry[0], obs=carry[1], episode=carry[2])",
        "return replace(state, env_state=carry[0], episode=carry[2])",
        "replay",
    ),
    Mutant(
        "one row more is sampled than is stored",
        "stored = jnp.minimum(rows, capacity)\n    starts",
        "stored = jnp.minimum(rows, capacity + 1)\n    starts",
        "replay",
    ),
    Mutant(
        "random actions drawn from all, forbidden ones too",
        "random_action if mask is None else random_allowed(mask, random_action)",
        "random_action if mask is None else (random_action % task.num_actions).astype(jnp.int32)",
        "action mask",
    ),
    Mutant(
        "mask ignored in the target",
        "forward(task, params, batch.next_obs) if task",
        "task.network.apply(params, features(batch.next_obs, task.obs_space)) if task",
        "action mask",
    ),
    Mutant(
        "mask ignored",
        "q = jnp.where(mask, q, FORBIDDEN)",
        "q = jnp.where(mask, q, q)",
        "action mask",
    ),
]
CEM = [
    Mutant("lowest scores as elites", "jnp.argsort(-score)", "jnp.argsort(score)", "elites"),
    Mutant(
        "elite fraction inverted", "jnp.round(config.elite_fraction", "jnp.round((1 - config.elite_fraction)", "elites"
    ),
    Mutant(
        "argsort used as values",
        "jnp.zeros(len(score), bool).at[order].set(jnp.arange(len(score)) < num_elites)",
        "order < num_elites",
        "elites",
    ),
    Mutant(
        "scores permuted against candidates",
        "elite = elites(score, num_elites)",
        "elite = elites(score[::-1], num_elites)",
        "elites",
    ),
    Mutant(
        "scores of the first rollout alone",
        "score = returns.mean(axis=1)\n    num",
        "score = returns[:, 0]\n    num",
        "score",
    ),
    Mutant(
        "one variance for all parameters",
        "variance = ((candidates - mean) ** 2).mean(axis=0, where=elite[:, None])",
        "variance = ((candidates - mean) ** 2).mean(where=elite[:, None]) * jnp.ones_like(mean)",
        "refit",
    ),
    Mutant(
        "variance of the whole population",
        "variance = ((candidates - mean) ** 2).mean(axis=0, where=elite[:, None])",
        "variance = ((candidates - mean) ** 2).mean(axis=0)",
        "refit",
    ),
    Mutant(
        "mean of the whole population",
        "mean = candidates.mean(axis=0, where=elite[:, None])",
        "mean = candidates.mean(axis=0)",
        "refit",
    ),
    Mutant(
        "refit gives the std for the variance",
        "variance = ((candidates - mean) ** 2).mean(axis=0, where=elite[:, None])",
        "variance = jnp.sqrt(((candidates - mean) ** 2).mean(axis=0, where=elite[:, None]))",
        "refit",
    ),
    Mutant("variance used as std", "jnp.sqrt(state.variance) * noise", "state.variance * noise", "candidates"),
    Mutant(
        "variance taken for the mean",
        "zip((state.mean, state.variance), fitted,",
        "zip((state.mean, state.variance), fitted[::-1],",
        "refit",
    ),
    Mutant(
        "the start's std taken for its variance",
        "jnp.full(task.num_params, task.config.init_variance,",
        "jnp.full(task.num_params, task.config.init_variance**0.5,",
        "candidates",
    ),
    Mutant(
        "no extra variance",
        "State(mean, variance + extra_variance, key,",
        "State(mean, variance, key,",
        "extra variance",
    ),
    Mutant("extra variance that never decays", "jnp.maximum(1 - generation / last, 0.0)", "1.0", "extra variance"),
    Mutant(
        "extra variance that decays by parameter, not by generation",
        "extra_variance_at(config, step)",
        "extra_variance_at(config, jnp.arange(task.num_params)).mean()",
        "extra variance",
    ),
    Mutant(
        "extra variance that falls below 0",
        "jnp.maximum(1 - generation / last, 0.0)",
        "(1 - generation / last)",
        "extra variance",
    ),
    Mutant(
        "one noise vector for all candidates",
        "jax.random.normal(key_noise, (config.population_size, task.num_params))",
        "jnp.ones((config.population_size, 1)) * jax.random.normal(key_noise, (task.num_params,))",
        "candidates",
    ),
    Mutant(
        "one noise for all parameters",
        "jax.random.normal(key_noise, (config.population_size, task.num_params))",
        "jnp.ones(task.num_params) * jax.random.normal(key_noise, (config.population_size, 1))",
        "candidates",
    ),
    Mutant(
        "same key each generation",
        "jax.random.normal(key_noise,",
        "jax.random.normal(jax.random.key(0),",
        "random keys",
    ),
    Mutant(
        "smoothing inverted",
        "config.smoothing * old + (1 - config.smoothing) * new",
        "(1 - config.smoothing) * old + config.smoothing * new",
        "smoothing",
    ),
    Mutant(
        "fitness summed past the first end of episode",
        "jnp.where(alive, reward.astype(jnp.float32), 0.0)",
        "reward.astype(jnp.float32)",
        "fitness",
    ),
    Mutant(
        "fitness with discount",
        "jnp.where(alive, reward.astype(jnp.float32), 0.0)",
        "jnp.where(alive, 0.99**t * reward.astype(jnp.float32), 0.0)",
        "fitness",
    ),
    Mutant(
        "fitness of the first reward alone", "jnp.where(alive, reward", "jnp.where(alive & (t == 0), reward", "fitness"
    ),
    Mutant(
        "an extra transition from the reset",
        "alive & ~(terminated | truncated), total, length + alive",
        "(length < 1) | (alive & ~(terminated | truncated)), total, length + alive",
        "fitness",
    ),
    Mutant(
        "a time limit does not end the episode", "alive & ~(terminated | truncated)", "alive & ~terminated", "fitness"
    ),
    Mutant(
        "termination does not end the episode", "alive & ~(terminated | truncated)", "alive & ~truncated", "fitness"
    ),
    Mutant(
        "rewards shifted by their mean",
        "jnp.where(alive, reward.astype(jnp.float32), 0.0)",
        "jnp.where(alive, reward - reward.mean(), 0.0)",
        "fitness",
    ),
    Mutant(
        "key reused across rollouts",
        "jax.random.split(key_rollout, config.num_rollouts)",
        "jnp.stack([key_rollout] * config.num_rollouts)",
        "random keys",
    ),
    Mutant("key not advanced in the loop", "env_step(key_of(keys, t)", "env_step(key_of(keys, 0)", "random keys"),
    Mutant(
        "key of the environments reset to a constant",
        "jax.random.split(key_rollout, config.num_rollouts)",
        "jax.random.split(jax.random.key(0), config.num_rollouts)",
        "random keys",
    ),
    Mutant(
        "key not carried on",
        "State(mean, variance + extra_variance, key,",
        "State(mean, variance + extra_variance, state.key,",
        "random keys",
    ),
    Mutant(
        "evaluation on the keys of the selection",
        "jax.random.split(key_eval,",
        "jax.random.split(key_rollout,",
        "random keys",
    ),
    Mutant("evaluation of the old mean", "concatenate([mean[None]", "concatenate([state.mean[None]", "evaluation"),
    Mutant("evaluation of a candidate", "concatenate([mean[None]", "concatenate([candidates[:1]", "evaluation"),
    Mutant("actions of a Box without bounds", "jnp.tanh(outputs)", "outputs", "policy"),
    Mutant("the last layer without bias", "dense(x, *head), task", "dense(x, head[0], 0 * head[1]), task", "policy"),
    Mutant(
        "metric averaged over the wrong axis",
        'summary("return", score)',
        'summary("return", returns.mean(axis=0))',
        "metrics",
    ),
    Mutant(
        "KL(old, new)",
        "gaussian_kl(new.mean, new.variance, old.mean, old.variance)",
        "gaussian_kl(old.mean, old.variance, new.mean, new.variance)",
        "metrics",
    ),
    Mutant(
        "one-way analysis of variance",
        "returns - of_candidate - of_key + returns.mean()",
        "returns - of_candidate",
        "metrics",
    ),
    Mutant(
        "env_steps count cut episodes in full",
        "state.env_steps + lengths.sum()",
        "state.env_steps + lengths.size * task.max_steps",
        "metrics",
    ),
    Mutant(
        "variance about the old mean",
        "fitted = refit(candidates, elite)",
        "fitted = refit(candidates, elite)[0], ((candidates - state.mean) ** 2).mean(axis=0, where=elite[:, None])",
        "refit",
    ),
    Mutant(
        "number of elites rounded down",
        "jnp.round(config.elite_fraction * config.population_size)",
        "jnp.floor(config.elite_fraction * config.population_size)",
        "elites",
    ),
    Mutant(
        "extra variance inside the smoothing",
        "fitted = refit(candidates, elite)",
        "fitted = refit(candidates, elite)\n"
        "    fitted = fitted[0], fitted[1] - config.smoothing * extra_variance_at(config, step)"
        " / (1 - config.smoothing)",
        "smoothing",
    ),
    Mutant(
        "smoothing of the std",
        "    new = State(mean,",
        "    s = config.smoothing\n"
        "    variance = (s * jnp.sqrt(state.variance) + (1 - s) * jnp.sqrt(fitted[1])) ** 2\n    new = State(mean,",
        "smoothing",
    ),
    Mutant(
        "key of the evaluation constant",
        "jax.random.split(key_eval,",
        "jax.random.split(jax.random.key(0),",
        "random keys",
    ),
    Mutant(
        "sign of the selection bias",
        "(score[some] - jnp.stack(of_elites))",
        "(jnp.stack(of_elites) - score[some])",
        "evaluation",
    ),
    Mutant(
        "hidden layers without activation",
        "x = activation(dense(x, kernel, bias))",
        "x = dense(x, kernel, bias)",
        "policy",
    ),
    Mutant("bounds of a Box ignored", "(high + low) / 2 + (high - low) / 2 * squashed", "squashed", "policy"),
    Mutant(
        "a cut step pays nothing",
        "jnp.where(alive, reward.astype",
        "jnp.where(alive & ~truncated, reward.astype",
        "fitness",
    ),
    Mutant(
        "median over rollouts for the mean",
        "score = returns.mean(axis=1)\n    num",
        "score = jnp.median(returns, axis=1)\n    num",
        "score",
    ),
    Mutant(
        "ties are all elites",
        "jnp.zeros(len(score), bool).at[order].set(jnp.arange(len(score)) < num_elites)",
        "score >= score[order[jnp.int32(num_elites) - 1]]",
        "elites",
    ),
    Mutant(
        "smallest output as the action",
        "outputs.argmax(axis=-1)",
        "outputs.argmin(axis=-1)",
        "policy",
        "the same policies, each with other parameters",
    ),
    Mutant(
        "noise on the key of the rollouts",
        "jax.random.normal(key_noise,",
        "jax.random.normal(key_rollout,",
        "random keys",
    ),
    Mutant(
        "candidates about 0, not about the mean",
        "candidates = state.mean + jnp.sqrt(state.variance) * noise",
        "candidates = jnp.sqrt(state.variance) * noise",
        "candidates",
    ),
    Mutant(
        "best of the rollouts for their mean",
        "score = returns.mean(axis=1)\n    num",
        "score = returns.max(axis=1)\n    num",
        "score",
    ),
    Mutant(
        "length for return", "score = returns.mean(axis=1)\n    num", "score = lengths.mean(axis=1)\n    num", "score"
    ),
    Mutant(
        "sum of squares over k - 1",
        "variance = ((candidates - mean) ** 2).mean(axis=0, where=elite[:, None])",
        "variance = ((candidates - mean) ** 2).sum(axis=0, where=elite[:, None]) / (elite.sum() - 1)",
        "refit",
    ),
    Mutant("NaN scores highest", "order = jnp.argsort(-score)", "order = jnp.argsort(score)[::-1]", "elites"),
    Mutant(
        "extra variance taken for the whole",
        "State(mean, variance + extra_variance, key,",
        "State(mean, extra_variance + 0 * variance, key,",
        "extra variance",
    ),
    Mutant(
        "extra variance added to the std",
        "State(mean, variance + extra_variance, key,",
        "State(mean, (jnp.sqrt(variance) + extra_variance) ** 2, key,",
        "extra variance",
    ),
    Mutant(
        "extra variance falls over all generations",
        "last = config.extra_variance_fraction * config.num_generations",
        "last = 1.0 * config.num_generations",
        "extra variance",
    ),
    Mutant(
        "a cut after max_episode_steps comes a step late",
        "(carry[0] < task.max_steps)",
        "(carry[0] <= task.max_steps)",
        "fitness",
    ),
    Mutant(
        "whole numbers of a Box rounded down",
        "(high - low + 1) / 2 * (squashed + 1)",
        "(high - low) / 2 * (squashed + 1)",
        "policy",
    ),
    Mutant(
        "images not scaled",
        "scale = 255 if obs.dtype == jnp.uint8 and len(space.shape) == 3 else 1",
        "scale = 1",
        "policy",
    ),
    Mutant(
        "the last candidate is the policy",
        "act(task, state.mean, obs[None], state",
        "act(task, state.mean + jnp.sqrt(state.variance), obs[None], state",
        "evaluation",
    ),
    Mutant(
        "KL without its term of the means",
        "return 0.5 * ((mean - old_mean) ** 2 / old_variance).sum(), ",
        "return 0 * ((mean - old_mean) ** 2 / old_variance).sum(), ",
        "metrics",
    ),
    Mutant(
        "entropy of the std for that of the variance",
        "0.5 * jnp.log(2 * math.pi * math.e * variance).sum()",
        "0.5 * jnp.log(2 * math.pi * math.e * jnp.sqrt(variance)).sum()",
        "metrics",
    ),
    Mutant(
        "scores of episodes that ended alone",
        "score = returns.mean(axis=1)",
        "score = returns.mean(axis=1, where=ended)",
        "score",
    ),
    Mutant(
        "only the first hidden layer is built",
        "sizes = (num_inputs, *config.hidden_sizes, num_outputs)",
        "sizes = (num_inputs, *config.hidden_sizes[:1], num_outputs)",
        "policy",
    ),
    Mutant(
        "a deviation reported that actions do not have",
        "return action, jnp.zeros_like(action)",
        "return action, jnp.ones_like(action)",
        "evaluation",
    ),
    Mutant(
        "given parameters of the environment ignored",
        "env_params = env.default_params if env_params is None else env_params",
        "env_params = env.default_params",
        "environment",
    ),
    Mutant(
        "reset on the key of the first step",
        "keys_reset = key_of(keys, task.max_steps)  # a number that no step has",
        "keys_reset = key_of(keys, 0)",
        "random keys",
        "an environment splits the key of a step before it draws, so that nothing is drawn twice",
        True,
    ),
    Mutant(
        "random numbers that come again after 8 generations",
        "    key, key_noise, key_rollout, key_elite, key_eval = jax.random.split(state.key, 5)\n",
        "    key, key_own = state.key, jax.random.fold_in(state.key, step % 8)\n"
        "    key_noise, key_rollout, key_elite, key_eval = jax.random.split(key_own, 4)\n",
        "random keys",
    ),
    Mutant(
        "smoothing that keeps the start's Gaussian",
        "zip((state.mean, state.variance), fitted,",
        "zip((0 * state.mean, jnp.full_like(state.variance, config.init_variance)), fitted,",
        "smoothing",
    ),
    Mutant(
        "mean carried on with 8 bits",
        "State(mean, variance + extra_variance, key,",
        "State(mean.astype(jnp.bfloat16).astype(jnp.float32), variance + extra_variance, key,",
        "refit",
    ),
    Mutant(
        "env_steps counted with 16 bits",
        "state.env_steps + lengths.sum()",
        "(state.env_steps + lengths.sum()).astype(jnp.int16).astype(jnp.int32)",
        "metrics",
    ),
    Mutant(
        "mask ignored",
        "outputs if mask is None else jnp.where(mask, outputs, -jnp.inf)",
        "outputs",
        "action mask",
    ),
    Mutant(
        "moments of observations after an episode's end as well",
        "alive.reshape(-1)))\n",
        "jnp.ones_like(alive).reshape(-1)))\n",
        "observation normalisation",
    ),
    Mutant(
        "moments of the last generation alone",
        "state.seen.merge(seen)",
        "seen",
        "observation normalisation",
    ),
    Mutant(
        "the policy's observations not normalised",
        "obs[None], state.obs_moments)[0]",
        "obs[None])[0]",
        "evaluation",
    ),
    Mutant(
        "the mean played with moments that it was not fitted by",
        "rollout(task, tried, keys_eval, new.obs_moments)",
        "rollout(task, tried, keys_eval, new.seen)",
        "evaluation",
    ),
    Mutant(
        "candidates' observations not normalised",
        "partial(act, task, obs_moments=obs_moments)",
        "partial(act, task)",
        "observation normalisation",
    ),
    Mutant(
        "divided by the variance",
        "/ jnp.sqrt(moments.variance + 1e-8), -10",
        "/ (moments.variance + 1e-8), -10",
        "observation normalisation",
    ),
]

MUTANTS = {"ppo": PPO, "dqn": DQN, "cem": CEM}

# Bugs of which only likeness says something, so that the verdict is DIFFERS -> the method in which the line is right.
METHODS: dict[str, str] = {
    # PPO
    "min for max in the value clip": "a value loss clipped the other way round: its minimum is the same V",
    "entropy sign": "an entropy penalty, for a policy that is to become deterministic",
    "entropy bonus missing": "PPO without an entropy bonus, as on MuJoCo in Schulman et al. 2017",
    "entropy of the old policy": "PPO without an entropy bonus: of the old policy it is a constant",
    "advantage normalisation removed": "PPO as Schulman et al. 2017 write it, without normalisation",
    "advantages centred, not divided": "a baseline alone, as in Dr. GRPO (Liu et al. 2025)",
    "ratio clipped on one side alone": "the clip-higher of DAPO (Yu et al. 2025) at its end",
    "learning-rate schedule inverted": "a warm-up (Goyal et al. 2017) as long as the training",
    "weight of the value loss missing": "PPO with vf_coef 1",
    "half of the value loss missing": "PPO with the mean squared error, as Stable-Baselines3 has it",
    "all epochs in the same order": "PPO that shuffles once in an update, as RSL-RL does",
    "learning rate never lowered": "PPO at a constant learning rate, as Schulman et al. 2017 on MuJoCo",
    "Adam's moments begin anew in every update": "PPO with Adam-MR (Ellis et al. 2024)",
    # DQN
    "optimiser starts anew in every update": "descent by the gradient's signs (Bernstein et al. 2018)",
    "target aliases online": "Q-learning without a target network (Mnih et al. 2013; PQN, Gallici et al. 2024)",
    "double Q chooses with parameters of the update's start": "Double Q-learning whose choice is of an older network",
    "target network of the update's start": "a target network that is synced between updates alone",
    "epsilon never decays": "epsilon-greedy with a constant epsilon",
    "epsilon falls over the whole training": "an exploration_fraction of 1",
    "Huber's loss for the squared one": "DQN with Huber's loss, the clipped error of Mnih et al. 2015",
    "learning rate missing": "DQN with Adam at 1e-3, whatever the setting says",
    "clip of the gradient's norm missing": "DQN without clipping, as Mnih et al. 2015",
    "sum of the errors for their mean": "a loss summed over the batch, as Mnih et al. 2015",
    "convolution windows without their stride": "a network that looks at the upper left of an image alone",
    # CEM
    "number of elites rounded down": "CEM whose number of elites is int(elite_fraction * population_size)",
    "only the first hidden layer is built": "CEM over a policy with one hidden layer",
    "hidden layers without activation": "CEM over linear policies, as Szita and Lorincz 2006",
    "actions of a Box without bounds": "a policy whose outputs are its actions, for an environment that clips them",
    "whole numbers of a Box rounded down": "a policy that gives whole numbers other shares, the highest none",
    "extra variance falls over all generations": "an extra_variance_fraction of 1",
    "variance about the old mean": "CEM-RL's refit (Pourchot & Sigaud 2019), as CMA-ES has it (Hansen 2016)",
}
