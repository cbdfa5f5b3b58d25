"""A PPO as many write it in JAX: `make_train(config)` closes over everything, and `train(key)` is one program.

It knows nothing of rlref; tests/probes/closure_adapter.py makes an agent of it. Written for gymnax >= 1.0.
"""

from typing import Any, NamedTuple

import flax.linen as nn
import gymnax
import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState

CONFIG = {
    "ENV_NAME": "CartPole-v1",
    "LR": 2.5e-4,
    "NUM_ENVS": 4,
    "NUM_STEPS": 128,
    "TOTAL_TIMESTEPS": 5e5,
    "UPDATE_EPOCHS": 4,
    "NUM_MINIBATCHES": 4,
    "GAMMA": 0.99,
    "GAE_LAMBDA": 0.95,
    "CLIP_EPS": 0.2,
    "ENT_COEF": 0.01,
    "VF_COEF": 0.5,
    "MAX_GRAD_NORM": 0.5,
    "NORMALIZE_ADVANTAGES": True,
    "ACTIVATION": "tanh",
    "ANNEAL_LR": True,
}


class ActorCritic(nn.Module):
    """Logits `[..., A]` and V `[...]` of flat observations `[..., F]`."""

    num_actions: int
    activation: str

    @nn.compact
    def __call__(self, x):
        activation, init = getattr(nn, self.activation), nn.initializers.orthogonal
        actor = critic = x
        for _ in range(2):
            actor = activation(nn.Dense(32, kernel_init=init(2**0.5))(actor))
            critic = activation(nn.Dense(32, kernel_init=init(2**0.5))(critic))
        logits = nn.Dense(self.num_actions, kernel_init=init(0.01))(actor)
        return logits, nn.Dense(1, kernel_init=init(1.0))(critic)[..., 0]


class Step(NamedTuple):
    """What is kept of a step, `[T, N, ...]`."""

    obs: Any
    action: Any
    log_prob: Any
    value: Any
    next_value: Any
    reward: Any
    terminated: Any
    ended: Any


def make_train(config: dict[str, Any]) -> Any:
    batch_size = config["NUM_ENVS"] * config["NUM_STEPS"]
    config["NUM_UPDATES"] = int(config["TOTAL_TIMESTEPS"]) // batch_size
    env, env_params = gymnax.make(config["ENV_NAME"])
    network = ActorCritic(env.action_space(env_params).n, config["ACTIVATION"])
    gradient_steps = config["NUM_UPDATES"] * config["UPDATE_EPOCHS"] * config["NUM_MINIBATCHES"]
    learning_rate = optax.linear_schedule(config["LR"], 0.0, gradient_steps) if config["ANNEAL_LR"] else config["LR"]
    optimizer = optax.chain(optax.clip_by_global_norm(config["MAX_GRAD_NORM"]), optax.adam(learning_rate, eps=1e-5))

    def flat(obs):
        return obs.reshape(config["NUM_ENVS"], -1).astype(jnp.float32)

    def train(key):
        key, key_net, key_env = jax.random.split(key, 3)
        obs, env_state = jax.vmap(env.reset, (0, None))(jax.random.split(key_env, config["NUM_ENVS"]), env_params)
        params = network.init(key_net, flat(obs))
        train_state = TrainState.create(apply_fn=network.apply, params=params, tx=optimizer)

        def env_step(runner_state, _):
            train_state, env_state, obs, key = runner_state
            key, key_act, key_env = jax.random.split(key, 3)
            logits, value = network.apply(train_state.params, flat(obs))
            action = jax.random.categorical(key_act, logits)
            keys = jax.random.split(key_env, config["NUM_ENVS"])
            next_obs, env_state, reward, terminated, truncated, info = jax.vmap(env.step, (0, 0, 0, None))(
                keys, env_state, action, env_params
            )
            # What the step led to: after an ending, `next_obs` belongs to the next episode.
            _, next_value = network.apply(train_state.params, flat(info["final_observation"]))
            log_prob = jnp.take_along_axis(jax.nn.log_softmax(logits), action[:, None], -1)[:, 0]
            step = Step(flat(obs), action, log_prob, value, next_value, reward, terminated, terminated | truncated)
            return (train_state, env_state, next_obs, key), step

        def backwards(advantage, step):
            # A time limit does not end the value; either ending cuts the trace.
            target = step.reward + config["GAMMA"] * jnp.where(step.terminated, 0.0, step.next_value)
            ahead = config["GAMMA"] * config["GAE_LAMBDA"] * jnp.where(step.ended, 0.0, advantage)
            advantage = target - step.value + ahead
            return advantage, advantage

        def loss(params, batch):
            step, advantage, target = batch
            logits, value = network.apply(params, step.obs)
            log_probs = jax.nn.log_softmax(logits)
            log_prob = jnp.take_along_axis(log_probs, step.action[:, None], -1)[:, 0]
            ratio = jnp.exp(log_prob - step.log_prob)
            if config["NORMALIZE_ADVANTAGES"]:
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            clipped = jnp.clip(ratio, 1 - config["CLIP_EPS"], 1 + config["CLIP_EPS"])
            policy_loss = -jnp.minimum(ratio * advantage, clipped * advantage).mean()
            entropy = -(jnp.exp(log_probs) * log_probs).sum(-1).mean()
            value_loss = 0.5 * ((value - target) ** 2).mean()
            return policy_loss + config["VF_COEF"] * value_loss - config["ENT_COEF"] * entropy

        def minibatch_step(train_state, batch):
            return train_state.apply_gradients(grads=jax.grad(loss)(train_state.params, batch)), None

        def update_step(runner_state, _):
            (train_state, env_state, obs, key), steps = jax.lax.scan(env_step, runner_state, None, config["NUM_STEPS"])
            _, advantage = jax.lax.scan(backwards, jnp.zeros(config["NUM_ENVS"]), steps, reverse=True)
            batch = jax.tree.map(
                lambda x: x.reshape(batch_size, *x.shape[2:]), (steps, advantage, advantage + steps.value)
            )

            def epoch(train_state, key):
                order = jax.random.permutation(key, batch_size).reshape(config["NUM_MINIBATCHES"], -1)
                return jax.lax.scan(minibatch_step, train_state, jax.tree.map(lambda x: x[order], batch))

            key, key_epochs = jax.random.split(key)
            train_state, _ = jax.lax.scan(epoch, train_state, jax.random.split(key_epochs, config["UPDATE_EPOCHS"]))
            return (train_state, env_state, obs, key), {"reward": steps.reward.mean()}

        key, key_run = jax.random.split(key)
        runner_state = (train_state, env_state, obs, key_run)
        runner_state, metrics = jax.lax.scan(update_step, runner_state, None, config["NUM_UPDATES"])
        return {"runner_state": runner_state, "metrics": metrics}

    return train
