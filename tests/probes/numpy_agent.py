"""Q-learning with a table, in NumPy alone: `python -m probes --gymnasium numpy_agent:train`."""

import gymnasium
import numpy as np

STEPS = 12_000


def train(env_id, seed):
    """Tabular Q-learning; returns (policy, value), functions of ONE observation: the greedy action, and Q `[A]`."""
    env = gymnasium.make(env_id)
    gamma, num_actions = env.unwrapped.gamma, env.action_space.n
    rng, q, visits = np.random.default_rng(seed), {}, {}
    obs, _ = env.reset(seed=seed)
    for _ in range(STEPS):
        known = q.setdefault(obs.tobytes(), np.zeros(num_actions))
        action = int(rng.integers(num_actions) if rng.random() < 0.5 else known.argmax())
        final, reward, terminated, truncated, _ = env.step(action)
        # A time limit does not end the value: only termination does.
        ahead = 0.0 if terminated else q.setdefault(final.tobytes(), np.zeros(num_actions)).max()
        visits[obs.tobytes(), action] = count = visits.get((obs.tobytes(), action), 0) + 1
        known[action] += max(0.006, 1 / count) * (reward + gamma * ahead - known[action])
        obs = env.reset()[0] if terminated or truncated else final
    zeros = np.zeros(num_actions)
    return lambda obs: q.get(obs.tobytes(), zeros).argmax(), lambda obs: q.get(obs.tobytes(), zeros)
