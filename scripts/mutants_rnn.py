"""Bugs to plant in ppo_rnn.py: those of PPO whose text it shares, and bugs of its memory.

Of the latter most are of public code: Mava, JaxMARL, PureJaxRL and CleanRL have had resets a step off, memory that
outlives an episode, sequences that are shuffled or begin with another's memory, final observations after a reset.
"""

from pathlib import Path

from mutants import COMPONENTS, PPO, Mutant

FILE = Path(__file__).resolve().parent.parent / "rlref" / "ppo_rnn.py"

# As mutants.COMPONENTS, with checks that agents with a memory alone are asked.
OWN = {
    "resets": "remembered_values memories_apart first_steps later_steps recall_1 recall_4 remembered_limit",
    "final observations": "remembered_finals final_observations remembered_limit known_advantages",
    "memory carried on": "remembered_values memories_apart recall_1 recall_4 recall_16",
    "sequences": "cut_sequences losses_apart first_ratio recall_cut exact_batch",
    "learning through memories": "first_ratio known_losses cut_sequences losses_apart exact_policy exact_value "
    "exact_batch memory_gradients recall_1 recall_4 recall_16",
    "last action and reward": "last_shown last_taken last_unscaled first_steps t_maze cut_sequences",
    "memory's metrics": "known_memory",
    "memory's cell": "known_cell",
}
COMPONENTS_RNN = COMPONENTS["ppo"] | OWN
COMPONENTS_RNN["evaluation"] += " remembered_values first_steps"
COMPONENTS_RNN["rollout"] += " known_advantages"

RESETS = [
    Mutant("memory never emptied", "jnp.where(reset[:, None], empty(task.config), memory)", "memory", "resets"),
    Mutant(
        "memory emptied before every step",
        "jnp.where(reset[:, None], empty(task.config), memory)",
        "jnp.zeros_like(memory)",
        "resets",
    ),
    Mutant(
        "memory emptied but where an episode begins",
        "jnp.where(reset[:, None], empty(task.config), memory)",
        "jnp.where(reset[:, None], memory, empty(task.config))",
        "resets",
    ),
    Mutant(
        "half of the memory emptied",
        "jnp.where(reset[:, None], empty(task.config), memory)",
        "jnp.where(reset[:, None] & (jnp.arange(memory.shape[1]) < memory.shape[1] // 2), empty(task.config), memory)",
        "resets",
    ),
    Mutant(
        "of an LSTM h alone emptied",
        "jnp.where(reset[:, None], empty(task.config), memory)",
        "jnp.where(reset[:, None] & (jnp.arange(memory.shape[1]) < task.config.memory_size), empty(task.config), "
        "memory)",
        "resets",
    ),
    Mutant(
        "resets go on for ever", "Seen(obs, sent, reward, ended)", "Seen(obs, sent, reward, state.seen.reset)", "resets"
    ),
    Mutant(
        "memory outlives a limit", "Seen(obs, sent, reward, ended)", "Seen(obs, sent, reward, terminated)", "resets"
    ),
    Mutant(
        "memory outlives a termination",
        "Seen(obs, sent, reward, ended)",
        "Seen(obs, sent, reward, truncated)",
        "resets",
    ),
    Mutant(
        "emptied where any environment's episode ends",
        "Seen(obs, sent, reward, ended)",
        "Seen(obs, sent, reward, jnp.broadcast_to(ended.any(), ended.shape))",
        "resets",
    ),
    Mutant(
        "resets of the environment beside it",
        "Seen(obs, sent, reward, ended)",
        "Seen(obs, sent, reward, jnp.roll(ended, 1))",
        "resets",
    ),
]

CARRIED = [
    Mutant(
        "first observation of the update before",
        "    return state, rollout._replace(log_prob",
        "    seen = jax.tree.map(lambda x: x[0], rollout.seen)\n"
        "    return replace(state, seen=seen), rollout._replace(log_prob",
        "rollout",
    ),
    Mutant(
        "rollouts begin with an empty memory",
        "    state, rollout = jax.lax.scan(step, state, (noise",
        "    state = replace(state, memory=jnp.zeros_like(state.memory))\n"
        "    state, rollout = jax.lax.scan(step, state, (noise",
        "memory carried on",
    ),
    Mutant(
        "rollouts begin, and are learned, with an empty memory",
        "    start = state.memory\n",
        "    state = replace(state, memory=jnp.zeros_like(state.memory))\n    start = state.memory\n",
        "memory carried on",
    ),
    Mutant(
        "memory never carried on", "seen=seen, memory=memory)", "seen=seen, memory=state.memory)", "memory carried on"
    ),
    Mutant(
        "memory of the environment beside it",
        "seen=seen, memory=memory)",
        "seen=seen, memory=jnp.roll(memory, 1, axis=0))",
        "memory carried on",
    ),
    Mutant(
        "policy by the memory before the step",
        "    memory = remember(task, params, memory, encode(task, params, obs_moments, seen), seen.reset)\n"
        "    return *decide(task, params, memory, seen.obs), memory\n",
        "    new = remember(task, params, memory, encode(task, params, obs_moments, seen), seen.reset)\n"
        "    return *decide(task, params, memory, seen.obs), new\n",
        "memory carried on",
    ),
    Mutant(
        "memory kept with 8 bits",
        "seen=seen, memory=memory)",
        "seen=seen, memory=memory.astype(jnp.bfloat16).astype(jnp.float32))",
        "memory carried on",
    ),
]

FINALS = [
    Mutant(
        "final observation with the memory after the reset",
        "reward, jnp.zeros_like(ended))",
        "reward, ended)",
        "final observations",
    ),
    Mutant(
        "final observation is the reset's",
        'final = Seen(info["final_observation"]',
        "final = Seen(obs",
        "final observations",
    ),
    Mutant(
        "final observation is the reset's, with the memory after it",
        'final = Seen(info["final_observation"], sent, reward, jnp.zeros_like(ended))',
        "final = Seen(obs, sent, reward, ended)",
        "final observations",
    ),
    Mutant(
        "next values with an empty memory",
        "next_value = forward(task, state.params, state.obs_moments, memory, final)",
        "next_value = forward(task, state.params, state.obs_moments, jnp.zeros_like(memory), final)",
        "final observations",
    ),
    Mutant(
        "next values with the memory before the step",
        "next_value = forward(task, state.params, state.obs_moments, memory, final)",
        "next_value = forward(task, state.params, state.obs_moments, "
        "flat(jnp.concatenate([start[None], rollout.memory[:-1]])), final)",
        "final observations",
    ),
    Mutant(
        "next values by a memory that has not seen what the step led to",
        "next_value = forward(task, state.params, state.obs_moments, memory, final)[1]",
        "next_value = decide(task, state.params, memory, final.obs)[1]",
        "final observations",
    ),
    Mutant(
        "next values with the memory of the rollout's end",
        "next_value = forward(task, state.params, state.obs_moments, memory, final)",
        "next_value = forward(task, state.params, state.obs_moments, "
        "jnp.tile(state.memory, (config.num_steps, 1)), final)",
        "final observations",
    ),
    Mutant(
        "what a step led to, with the action before",
        'final = Seen(info["final_observation"], sent,',
        'final = Seen(info["final_observation"], state.seen.last_action,',
        "last action and reward",
    ),
    Mutant(
        "values of the next step's memory",
        "value = decide(task, state.params, memory, seen.obs)[1]",
        "value = decide(task, state.params, jnp.roll(memory, -config.num_envs, axis=0), seen.obs)[1]",
        "batch",
    ),
]

SEQUENCES = [
    Mutant(
        "time shuffled",
        ".swapaxes(0, 1).reshape(length, -1, *x.shape[2:])",
        ".reshape(length, -1, *x.shape[2:])",
        "sequences",
    ),
    Mutant(
        "sequences begin with an empty memory",
        "ends = jnp.stack([before,",
        "ends = jnp.stack([0 * before,",
        "sequences",
    ),
    Mutant(
        "sequences begin without an LSTM's c",
        "ends = jnp.stack([before,",
        "ends = jnp.stack([before.at[:, config.memory_size :].set(0.0),",
        "sequences",
    ),
    Mutant(
        "sequences begin with the memory after their first step",
        "before = sequences(config, jnp.concatenate([start[None], rollout.memory[:-1]]))[0]",
        "before = sequences(config, rollout.memory)[0]",
        "sequences",
    ),
    Mutant(
        "sequences begin with the memory that the rollout began with",
        "before = sequences(config, jnp.concatenate([start[None], rollout.memory[:-1]]))[0]",
        "before = sequences(config, jnp.broadcast_to(start, rollout.memory.shape))[0]",
        "sequences",
    ),
    Mutant(
        "sequences begin with the memory of the rollout's end",
        "    start = state.memory\n    state, rollout = collect(task, replace(state, key=key), key_collect)\n",
        "    state, rollout = collect(task, replace(state, key=key), key_collect)\n    start = state.memory\n",
        "sequences",
    ),
    Mutant(
        "sequences begin with another's memory",
        "ends = jnp.stack([before,",
        "ends = jnp.stack([jnp.roll(before, 1, axis=0),",
        "sequences",
    ),
    Mutant(
        "memories and steps shuffled apart",
        "minibatch = jax.tree.map(lambda x: x[:, index], batch)",
        "minibatch = jax.tree.map(lambda x: x[:, index], batch)._replace(memory=batch.memory[:, jnp.sort(index)])",
        "sequences",
    ),
    Mutant(
        "advantages and steps shuffled apart",
        "minibatch = jax.tree.map(lambda x: x[:, index], batch)",
        "minibatch = jax.tree.map(lambda x: x[:, index], batch)._replace("
        "advantage=batch.advantage[:, jnp.roll(index, 1)])",
        "gradient steps",
    ),
    Mutant(
        "sequences in the reverse order of time",
        "batch = Batch(ends, *jax.tree.map(partial(sequences, config), steps))",
        "batch = Batch(ends, *jax.tree.map(lambda x: sequences(config, x)[::-1], steps))",
        "sequences",
    ),
]

LEARNING = [
    Mutant(
        "learning ignores resets",
        "memory = remember(task, params, memory, *x)",
        "memory = remember(task, params, memory, x[0], jnp.zeros_like(x[1]))",
        "learning through memories",
    ),
    Mutant(
        "learning's resets a step late",
        "memory = unroll(task, params, batch.memory[0], new, batch.seen.reset)",
        "memory = unroll(task, params, batch.memory[0], new, jnp.roll(batch.seen.reset, 1, axis=0))",
        "learning through memories",
    ),
    Mutant(
        "learning's resets a step early",
        "memory = unroll(task, params, batch.memory[0], new, batch.seen.reset)",
        "memory = unroll(task, params, batch.memory[0], new, jnp.roll(batch.seen.reset, -1, axis=0))",
        "learning through memories",
    ),
    Mutant(
        "no gradient through time",
        "memory = remember(task, params, memory, *x)",
        "memory = remember(task, params, jax.lax.stop_gradient(memory), *x)",
        "learning through memories",
    ),
    Mutant(
        "memories a step late in learning",
        "batch = flat(batch._replace(memory=memory))",
        "batch = flat(batch._replace(memory=jnp.concatenate([batch.memory[:1], memory[:-1]])))",
        "learning through memories",
    ),
    Mutant(
        "memories are learned as constants",
        "batch = flat(batch._replace(memory=memory))",
        "batch = flat(batch._replace(memory=jax.lax.stop_gradient(memory)))",
        "learning through memories",
    ),
    Mutant(
        "gradient through a sequence's last half alone",
        "memory = unroll(task, params, batch.memory[0], new, batch.seen.reset)",
        "memory = unroll(task, params, batch.memory[0], new, batch.seen.reset)\n"
        "    memory = jnp.where(jnp.arange(len(memory))[:, None, None] < len(memory) // 2, "
        "jax.lax.stop_gradient(memory), memory)",
        "learning through memories",
    ),
    Mutant(
        "learned from a sequence's last step alone",
        "policy_loss = -jnp.minimum(ratio * advantage, clipped_ratio * advantage).mean()",
        "policy_loss = -jnp.minimum(ratio * advantage, clipped_ratio * advantage)[-memory.shape[1]:].mean()",
        "policy loss",
    ),
    Mutant(
        "no gradient through what a GRU keeps",
        "return keep * memory +",
        "return keep * jax.lax.stop_gradient(memory) +",
        "learning through memories",
    ),
    Mutant(
        "no gradient through an LSTM's c",
        "c = nn.sigmoid(forget + 1) * c +",
        "c = nn.sigmoid(forget + 1) * jax.lax.stop_gradient(c) +",
        "learning through memories",
    ),
    Mutant(
        "an LSTM's c learned as a constant",
        "memory = remember(task, params, memory, *x)",
        "memory = jnp.where(jnp.arange(memory.shape[1]) < task.config.memory_size, memory, "
        "jax.lax.stop_gradient(memory))\n        memory = remember(task, params, memory, *x)",
        "learning through memories",
    ),
]

CELL = [
    Mutant(
        "an LSTM's gate forgets h, and c is lost",
        "c = nn.sigmoid(forget + 1) * c +",
        "c = nn.sigmoid(forget + 1) * h +",
        "memory's cell",
    ),
    Mutant(
        "what an LSTM holds back is read",
        "h = memory[:, : self.config.memory_size]",
        "h = memory[:, -self.config.memory_size :]",
        "memory's cell",
    ),
]

LAST = [
    Mutant(
        "last action and reward of another episode",
        "jnp.where(seen.reset[:, None], 0.0, jnp.concatenate([x, seen.last_reward[:, None]], axis=-1))",
        "jnp.concatenate([x, seen.last_reward[:, None]], axis=-1)",
        "last action and reward",
    ),
    Mutant(
        "the last action never taken over",
        "seen = Seen(obs, sent,",
        "seen = Seen(obs, state.seen.last_action,",
        "last action and reward",
    ),
    Mutant(
        "the last reward never taken over",
        "seen = Seen(obs, sent, reward, ended)",
        "seen = Seen(obs, sent, state.seen.last_reward, ended)",
        "last action and reward",
    ),
    Mutant(
        "last reward not shown",
        "[x, seen.last_reward[:, None]]",
        "[x, 0 * seen.last_reward[:, None]]",
        "last action and reward",
        equivalent="a network that is shown the last action alone, and says so",
    ),
    Mutant(
        "an action as sampled, not as the environment took it",
        "seen = Seen(obs, sent,",
        "seen = Seen(obs, action.reshape(sent.shape).astype(sent.dtype),",
        "last action and reward",
    ),
    Mutant(
        "learning sees the last action a step late",
        "new = encode(task, params, obs_moments, flat(batch.seen))",
        "new = encode(task, params, obs_moments, "
        "flat(batch.seen._replace(last_action=jnp.roll(batch.seen.last_action, 1, axis=0))))",
        "last action and reward",
    ),
    Mutant(
        "learning sees this step's reward",
        "new = encode(task, params, obs_moments, flat(batch.seen))",
        "new = encode(task, params, obs_moments, "
        "flat(batch.seen._replace(last_reward=jnp.roll(batch.seen.last_reward, -1, axis=0))))",
        "last action and reward",
    ),
    Mutant(
        "what a step led to, with the reward before",
        'Seen(info["final_observation"], sent, reward, jnp.zeros_like(ended))',
        'Seen(info["final_observation"], sent, state.seen.last_reward, jnp.zeros_like(ended))',
        "last action and reward",
    ),
    Mutant(
        "the last reward scaled in training, and not when playing",  # VecNormalize, and the reward as an input
        "        seen = Seen(obs, sent, reward, ended)  # `ended` is the next step's reset\n"
        '        final = Seen(info["final_observation"], sent, reward, jnp.zeros_like(ended))\n',
        "        shown = reward if state.return_moments is None else reward / reward_scale(state.return_moments)\n"
        "        seen = Seen(obs, sent, shown, ended)  # `ended` is the next step's reset\n"
        '        final = Seen(info["final_observation"], sent, shown, jnp.zeros_like(ended))\n',
        "last action and reward",
    ),
    Mutant(
        "the first step shows action 0",
        "jnp.zeros(num_envs), jnp.ones(num_envs, bool))",
        "jnp.zeros(num_envs), jnp.zeros(num_envs, bool))",
        "last action and reward",
    ),
]

TOLD = [
    Mutant(
        "policy tells the memory that it was given",
        "(policy.mean, jnp.exp(policy.log_std)), memory\n",
        "(policy.mean, jnp.exp(policy.log_std)), args[1]\n",
        "evaluation",
    ),
    Mutant(
        "evaluated without resets",
        "seen = Seen(*(jnp.asarray(x)[None] for x in seen))",
        "seen = Seen(*(jnp.asarray(x)[None] for x in seen))._replace(reset=jnp.zeros(1, bool))",
        "evaluation",
    ),
    Mutant(
        "observation statistics not applied at evaluation",
        "forward(task, state.params, state.obs_moments, memory[None], seen)",
        "forward(task, state.params, None, memory[None], seen)",
        "evaluation",
    ),
    Mutant(
        "norm without its root",
        "jnp.sqrt((memory[..., :size] ** 2).mean())",
        "(memory[..., :size] ** 2).mean()",
        "memory's metrics",
    ),
    Mutant("saturation of positive units alone", "(jnp.abs(bounded) > 0.95)", "(bounded > 0.95)", "memory's metrics"),
    Mutant("KL the other way round", "policy.kl(without).mean()", "without.kl(policy).mean()", "memory's metrics"),
    Mutant(
        "KL to a policy that remembers",
        "flat(memory), new, jnp.ones(reset.size, bool))",
        "flat(memory), new, jnp.zeros(reset.size, bool))",
        "memory's metrics",
    ),
    Mutant(
        "staleness of the memory that sequences begin with",
        "memory[-1] - part.memory[1])",
        "memory[-1] - part.memory[0])",
        "memory's metrics",
    ),
    Mutant("gradient over resets as well", "growth.mean(where=~reset)", "growth.mean()", "memory's metrics"),
    Mutant("gradient forward in time", "-1), reset), reverse=True)[1]", "-1), reset))[1]", "memory's metrics"),
    Mutant(
        "gradient of an episode goes on in the one before",
        "jnp.where(reset[:, None], unit, gradient / norm[:, None])",
        "gradient / norm[:, None]",
        "memory's metrics",
    ),
    Mutant("saturation of an LSTM's h", "jnp.tanh(memory[..., size:])", "memory[..., :size]", "memory's metrics"),
]


def of_ppo() -> list[Mutant]:
    """Bugs of PPO whose text ppo_rnn.py has once."""
    own = {one.name for one in MEMORY}
    source = FILE.read_text()
    return [one for one in PPO if source.count(one.old) == 1 and one.name not in own and not one.equivalent]


MEMORY = [*RESETS, *CARRIED, *FINALS, *SEQUENCES, *LEARNING, *CELL, *LAST, *TOLD]
PPO_RNN = [*MEMORY, *of_ppo()]

# As mutants.METHODS.
METHODS_RNN = {
    "gradient through a sequence's last half alone": "truncated backpropagation through time, of half a sequence",
    **dict.fromkeys(
        ("no gradient through an LSTM's c", "an LSTM's c learned as a constant"),
        "truncated backpropagation through time: of one step for c, of the whole sequence for h",
    ),
    "an LSTM's gate forgets h, and c is lost": "a network of gates whose memory is what it puts out, without a cell",
    "what an LSTM holds back is read": "heads that read an LSTM's cell, which its output gate does not close",
    "clip fraction of one side": "a clip of one side, as DAPO's at its end, whose share is of that side alone",
}
