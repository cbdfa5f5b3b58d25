"""What a learner's values converge to on a table, exactly: for a right learner, and for each well-known wrong one.

NumPy in float64, no sampling, no network. The values are the fixed point of one-step bootstrapping under the visits
that a policy makes of each state; longer traces (lambda > 0) have the same one wherever a state's successors do not
depend on how it was reached.
"""

from typing import NamedTuple

import numpy as np

from probes.environments import Tables


class Learner(NamedTuple):
    """How a learner bootstraps: `reward + gamma^power * V(source)` unless masked. The defaults are right."""

    mask_terminated: bool = True
    mask_truncated: bool = False
    terminated_source: str = "final"  # "final" observation, "reset" observation, or the state "itself"
    truncated_source: str = "final"
    going_source: str = "final"
    gamma_power: float = 1
    discount_reward: bool = False


RIGHT = Learner()
WRONG = {
    "truncation is treated as termination": Learner(mask_truncated=True),
    "both endings are ignored, and it bootstraps from the observation after the reset": Learner(
        mask_terminated=False, terminated_source="reset", truncated_source="reset"
    ),
    "at truncation it bootstraps from the observation after the reset, not from the final one": Learner(
        truncated_source="reset"
    ),
    "termination is ignored: it bootstraps from the final observation": Learner(mask_terminated=False),
    "gamma is missing": Learner(gamma_power=0),
    "gamma is applied twice": Learner(gamma_power=2),
    "it bootstraps from V(s_t), not from the next state": Learner(
        terminated_source="itself", truncated_source="itself", going_source="itself"
    ),
    "the reward is discounted too": Learner(discount_reward=True),
}


def state_values(tables: Tables, policy: np.ndarray, gamma: float, learner: Learner = RIGHT) -> np.ndarray | None:
    """Values `[n]` that `learner` gives the states under `policy` `[n, A]`; None if its values diverge.

    States that show the same observation share one value: the mean over their visits.
    """
    n = len(tables.obs)
    ended = tables.terminated | tables.truncated
    fresh = np.where(
        (tables.after >= 0)[..., None], np.eye(n)[tables.after], tables.start
    )  # [n, A, n], the reset's state
    to = np.eye(n)[tables.next]
    visits = _visits(np.einsum("sa,sat->st", policy, np.where(ended[..., None], fresh, to)), tables.start)

    sources = {"final": to, "reset": fresh, "itself": np.broadcast_to(np.eye(n)[:, None], to.shape)}
    source = np.where(tables.terminated[..., None], sources[learner.terminated_source], sources[learner.going_source])
    only_truncated = tables.truncated & ~tables.terminated
    source = np.where(only_truncated[..., None], sources[learner.truncated_source], source)
    masked = (tables.terminated & learner.mask_terminated) | (tables.truncated & learner.mask_truncated)
    discount = gamma**learner.gamma_power
    bootstrap = np.einsum("sa,sat->st", policy, np.where(masked[..., None], 0.0, discount * source))
    reward = np.einsum("sa,sa->s", policy, tables.reward.astype(np.float64)) * (gamma if learner.discount_reward else 1)

    # From states to what can be told apart: rows averaged by visits, columns summed.
    _, group = np.unique(tables.obs.reshape(n, -1), axis=0, return_inverse=True)
    member = np.eye(group.max() + 1)[group.ravel()]  # [n, groups]
    share = (member * visits[:, None]) / np.maximum((member * visits[:, None]).sum(0), 1e-300)
    bootstrap, reward = share.T @ bootstrap @ member, share.T @ reward
    if np.abs(np.linalg.eigvals(bootstrap)).max() >= 1 - 1e-9:
        return None
    return member @ np.linalg.solve(np.eye(len(reward)) - bootstrap, reward)


def diverges(tables: Tables, gamma: float, learner: Learner) -> bool:
    """Whether a learner's values grow without bound, under the uniform policy."""
    return state_values(tables, np.full(tables.reward.shape, 1 / tables.reward.shape[1]), gamma, learner) is None


def _visits(chain: np.ndarray, start: np.ndarray) -> np.ndarray:
    """How often each state is visited in the long run, for a chain `[n, n]` begun at `start`; periodic ones too."""
    n, steps = len(start), 2520  # a multiple of every period up to 10
    block = np.block([[chain, np.eye(n)], [np.zeros((n, n)), np.eye(n)]])  # its power has the sum of chain's powers
    return start @ np.linalg.matrix_power(block, steps)[:n, n:] / steps


def action_values(tables: Tables, value: np.ndarray, gamma: float) -> np.ndarray:
    """Q `[n, A]`: one step, then `value` `[n]`."""
    return tables.reward + gamma * np.where(tables.terminated, 0.0, value[tables.next])


def best_values(tables: Tables, gamma: float) -> np.ndarray:
    """Values `[n]` of the best policy of a table whose states can be told apart, by value iteration."""
    value = np.zeros(len(tables.obs))
    for _ in range(10_000):
        new = action_values(tables, value, gamma).max(axis=1)
        if np.abs(new - value).max() < 1e-13:
            break
        value = new
    return value
