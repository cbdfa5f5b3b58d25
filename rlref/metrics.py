"""What each metric is called, means, is measured in, and comes from: one table for code, README and TensorBoard.

`python -m rlref.metrics` prints it as Markdown, as it stands in rlref/metrics.md.
"""

from typing import NamedTuple

from rlref.contract import ALL, CEM, DQN, GRADIENT, PPO, RECURRENT


class Metric(NamedTuple):
    """One metric. NaN means "undefined in this update": no episode has ended yet, zero variance, DQN's warm-up.
    In a seed that has become non-finite other metrics are NaN as well; `nonfinite` says which."""

    name: str
    definition: str
    unit: str
    source: str
    agents: tuple[str, ...] = ("ppo", "dqn", "cem")
    """kinds of agents; what PPO reports ppo_rnn does as well"""
    cleanrl: str = ""
    """CleanRL's TensorBoard tag, '' where it has none"""
    sb3: str = ""
    """Stable-Baselines3's name, '' where it has none"""

    @property
    def tag(self) -> str:
        """The TensorBoard tag."""
        return self.cleanrl or f"diag/{self.name}"


def _spread(
    name: str, what: str, unit: str, source: str, agents: tuple[str, ...] = GRADIENT, **mean_tags: str
) -> list[Metric]:
    """`name`_mean, _std, _min and _max; other projects' tags go to the mean."""
    words = {"mean": "mean", "std": "standard deviation", "min": "minimum", "max": "maximum"}
    return [
        Metric(f"{name}_{key}", f"{word} of {what}", unit, source, agents, **(mean_tags if key == "mean" else {}))
        for key, word in words.items()
    ]


_OWN = "rlref"
_SCHULMAN = "Schulman 2016, Nuts and Bolts"
_JONES = "Jones 2021, Debugging RL"

METRICS: tuple[Metric, ...] = (
    Metric(
        "env_steps",
        "environment steps of this seed so far; CEM: of its candidates, not of the fresh rollouts that evaluate",
        "steps",
        "CleanRL",
        sb3="time/total_timesteps",
    ),
    Metric(
        "episodes",
        "episodes that ended in this update; CEM: of candidates, without those that max_episode_steps cut",
        "episodes",
        _OWN,
    ),
    *_spread(
        "return",
        "the undiscounted, unscaled returns of the last 100 finished episodes; CEM: of candidates' means over rollouts",
        "reward",
        "Henderson et al. 2018",
        ALL,
        cleanrl="charts/episodic_return",
        sb3="rollout/ep_rew_mean",
    ),
    Metric(
        "return_count",
        "how many finished episodes return_* and length_* rest on, at most 100; CEM: candidates",
        "episodes",
        _OWN,
    ),
    *_spread(
        "length",
        "the lengths of the last 100 finished episodes; CEM: of candidates' mean lengths",
        "steps",
        _JONES,
        ALL,
        cleanrl="charts/episodic_length",
        sb3="rollout/ep_len_mean",
    ),
    Metric(
        "entropy",
        "mean entropy of the policy over the rollout, in closed form; DQN: of the epsilon-greedy one, by epsilon and A"
        "; CEM: differential entropy of the Gaussian that the candidates were drawn from",
        "nats",
        _SCHULMAN,
        cleanrl="losses/entropy",
        sb3="-train/entropy_loss",
    ),
    Metric(
        "relative_entropy",
        "Discrete: entropy / log A, A allowed actions (mean of log A). Box: change since the start, per action "
        "dimension. CEM: entropy per parameter",
        "1; Box, CEM: nats",
        _JONES,
    ),
    Metric(
        "action_entropy",
        "of the actions taken, pooled over the update: low for a policy that is stuck",
        "nats",
        _OWN,
        DQN,
    ),
    Metric(
        "kl",
        "exact KL(old, new) over all epochs, on a random minibatch of the rollout; DQN: of the epsilon-greedy policies "
        "at the update's start and end, epsilon at least .01, on a replay minibatch; CEM: exact KL(new, old) of the "
        "Gaussians, as the sum of the next two",
        "nats",
        _SCHULMAN,
    ),
    Metric("kl_mean_term", "the part of kl that the change of the mean causes", "nats", _OWN, CEM),
    Metric("kl_variance_term", "the part of kl that the change of the variance causes", "nats", _OWN, CEM),
    Metric("kl_refit", "KL(refit, old): of the elites alone, before smoothing and extra variance", "nats", _OWN, CEM),
    Metric(
        "kl_floor",
        "what kl_refit is on average if elites are chosen at random: -(D / 2) (digamma((k - 1) / 2) + log(2 / k))",
        "nats",
        _OWN,
        CEM,
    ),
    Metric("kl_excess", "kl_refit minus kl_floor: on average 0 where nothing is learned", "nats", _OWN, CEM),
    Metric(
        "churn",
        "share of a replay minibatch whose greedy action changed over the update",
        "1",
        "Schaul et al. 2022",
        DQN,
    ),
    Metric(
        "approx_kl",
        "mean of (ratio - 1) - log ratio over all minibatches",
        "nats",
        "Schulman 2020, Approximating KL Divergence",
        PPO,
        cleanrl="losses/approx_kl",
        sb3="train/approx_kl",
    ),
    Metric(
        "explained_variance",
        "1 - Var[G - V] / Var[G], G the lambda-return, V as collected; DQN: G the target and V the taken action's Q, "
        "by the networks at the update's start, on a replay minibatch; CEM: share of the variance between candidates' "
        "means that is not of their K rollouts, by two-way analysis of variance; NaN for K = 1",
        "1",
        _SCHULMAN,
        cleanrl="losses/explained_variance",
        sb3="train/explained_variance",
    ),
    Metric(
        "value_bias",
        "mean of that G minus mean of that V: explained variance is blind to it",
        "learned reward",
        _OWN,
        GRADIENT,
    ),
    Metric(
        "clip_fraction",
        "share of samples whose ratio is outside 1 +- clip_coef",
        "1",
        "37 details, core 12",
        PPO,
        cleanrl="losses/clipfrac",
        sb3="train/clip_fraction",
    ),
    Metric(
        "first_ratio_error", "maximum of |ratio - 1| in the first minibatch: must be about 0", "1", "37 details", PPO
    ),
    Metric("loss", "the whole objective", "1", "CleanRL", PPO, sb3="train/loss"),
    Metric(
        "policy_loss",
        "the clipped surrogate, negated",
        "1",
        "Schulman et al. 2017, eq. 7",
        PPO,
        cleanrl="losses/policy_loss",
        sb3="train/policy_gradient_loss",
    ),
    Metric(
        "value_loss",
        "half the squared error of V, clipped if clip_vloss",
        "learned reward^2",
        "Schulman et al. 2017, eq. 9",
        PPO,
        cleanrl="losses/value_loss",
        sb3="train/value_loss",
    ),
    Metric(
        "td_loss",
        "half the squared error of Q, or its Huber form",
        "reward^2",
        "Mnih et al. 2015",
        DQN,
        cleanrl="losses/td_loss",
        sb3="train/loss",
    ),
    *_spread(
        "td_error", "target minus Q of the action taken, over all gradient steps", "reward", "Mnih et al. 2015", DQN
    ),
    *_spread("advantage", "the advantages before normalisation", "learned reward", _JONES, PPO),
    *_spread(
        "target",
        "the lambda-returns that V is fitted to; DQN: what Q is, over all gradient steps",
        "learned reward",
        _JONES,
    ),
    *_spread(
        "value",
        "V at the rollout's observations, as collected; DQN: Q of the actions taken, over all gradient steps",
        "learned reward",
        _JONES,
    ),
    *_spread(
        "reward",
        "the rewards learned from: scaled and clipped if scale_rewards; DQN: as collected",
        "learned reward",
        _JONES,
    ),
    Metric(
        "overestimation",
        "mean Q of the actions taken, when they were taken, minus mean discounted return that followed, over the steps "
        "of the episodes that ended; at a time limit the last action's own Q stands for its reward and all after it",
        "reward",
        "van Hasselt et al. 2016",
        DQN,
    ),
    Metric(
        "epsilon", "mean probability of a random action", "1", "Mnih et al. 2015", DQN, sb3="rollout/exploration_rate"
    ),
    Metric(
        "mean_policy_return",
        "mean return of the new mean's policy over num_eval_rollouts episodes on fresh keys: the score of a run of CEM",
        "reward",
        "Szita & Lorincz 2006",
        CEM,
    ),
    Metric(
        "selection_bias",
        "score of four random elites minus their mean return over num_eval_rollouts episodes on fresh keys: how "
        "far they were chosen for their luck; the luck of the keys is in it too, so read it over generations",
        "reward",
        _OWN,
        CEM,
    ),
    Metric("elite_threshold", "lowest score of an elite", "reward", "de Boer et al. 2005", CEM),
    Metric("elite_mean", "mean score of the elites", "reward", _OWN, CEM),
    Metric("std_min", "smallest standard deviation of a parameter, as the candidates were drawn", "1", _OWN, CEM),
    Metric("std_mean", "mean of those standard deviations", "1", _OWN, CEM),
    Metric(
        "extra_variance",
        "variance added to every parameter after refit and smoothing",
        "1",
        "Szita & Lorincz 2006",
        CEM,
    ),
    Metric("target_distance", "|online - target parameters| just before a sync, mean over syncs", "1", _OWN, DQN),
    Metric("target_step", "|change of the target parameters| at a sync, mean over syncs", "1", _OWN, DQN),
    Metric("buffer_fill", "share of the replay buffer that is filled", "1", _OWN, DQN),
    Metric(
        "unstorable_fraction",
        "share of the steps whose observation, or final one, the replay buffer changes, as buffer_dtype cannot hold it",
        "1",
        _OWN,
        DQN,
    ),
    Metric("sample_age", "mean age of the transitions learned from", "steps", "Fedus et al. 2020", DQN),
    Metric(
        "learning_rate",
        "Adam's step size in this update",
        "1",
        "CleanRL",
        GRADIENT,
        cleanrl="charts/learning_rate",
        sb3="train/learning_rate",
    ),
    Metric(
        "gradient_steps",
        "optimiser steps taken in this update: fewer only if target_kl stopped it, or in DQN's warm-up",
        "steps",
        _OWN,
        GRADIENT,
    ),
    Metric(
        "grad_norm",
        "global norm of the gradient before clipping, mean over minibatches",
        "1",
        "Rahtz 2018",
        GRADIENT,
    ),
    Metric(
        "update_ratio",
        "|optimiser step|, mean over those of the update, / |parameters| at its start",
        "1",
        "CS231n",
        GRADIENT,
    ),
    Metric(
        "gradient_noise_scale",
        "tr(Sigma) / |G|^2, from Adam's moments: B (sum v - sum m^2) / sum m^2; below 0 while gradients grow fast",
        "samples",
        "McCandlish et al. 2018",
        PPO,
    ),
    Metric(
        "dormant_fraction",
        "share of hidden units whose mean |activation| is at most .025 of their layer's, at the update's end, on a "
        "part of its data; DQN: on a minibatch drawn then",
        "1",
        "Sokar et al. 2023",
        GRADIENT,
    ),
    Metric(
        "memory_norm",
        "root mean square of the memory's units (of an LSTM h) after each step, after the update, on a random "
        "minibatch of sequences, as the next four",
        "1",
        _OWN,
        RECURRENT,
    ),
    Metric(
        "memory_saturation",
        "share of the memory's units beyond +-.95 (of an LSTM tanh c)",
        "1",
        "Karpathy et al. 2016",
        RECURRENT,
    ),
    Metric(
        "memory_kl",
        "KL(policy, the policy whose memory is emptied before every step): 0 where the memory is not used",
        "nats",
        _OWN,
        RECURRENT,
    ),
    Metric(
        "memory_staleness",
        "distance of the memory at the end of sequences, as it was when acting, from that of the parameters after the "
        "update, recomputed from the memory that the sequence began with when acting; by the latter's norm",
        "1",
        "Kapturowski et al. 2019",
        RECURRENT,
    ),
    Metric(
        "memory_gradient",
        "factor by which the norm of a gradient changes on its way back through the memory by one step: geometric mean "
        "over steps that begin no episode, of a unit vector sent back through each sequence, renormalised at each step "
        "and begun anew where an episode begins",
        "1",
        "Pascanu et al. 2013",
        RECURRENT,
    ),
    Metric(
        "nonfinite",
        "1 if a loss, gradient or parameter step of this update is not finite, else 0 (PPO: or a return of reward "
        "scaling; DQN: or a reward, Q or target); CEM: if a return, or the new mean or variance is not",
        "0 or 1",
        _OWN,
    ),
    Metric(
        "steps_per_second",
        "environment steps of all seeds per second of wall-clock time, evaluations included",
        "steps/s",
        "CleanRL",
        agents=("runner",),
        cleanrl="charts/SPS",
        sb3="time/fps",
    ),
    *(
        Metric(
            f"eval_{what}_{how}",
            f"mean {what} of the evaluation's episodes with {how} actions; only at updates that "
            f"are evaluated{'; not for DQN, and of CEM the same' * (how == 'sampled')}",
            {"return": "reward", "length": "steps"}[what],
            "Henderson et al. 2018",
            agents=("runner",),
            sb3={"return": "eval/mean_reward", "length": "eval/mean_ep_length"}[what] if how == "greedy" else "",
        )
        for what in ("return", "length")
        for how in ("greedy", "sampled")
    ),
)
BY_NAME = {metric.name: metric for metric in METRICS}


def markdown() -> str:
    """The table as it stands in rlref/metrics.md."""
    lines = ["| metric | what it is | unit | source | of | CleanRL | SB3 |", "|---|---|---|---|---|---|---|"]
    for m in METRICS:
        tags = (f"`{tag}`" if tag else "" for tag in (m.cleanrl, m.sb3))
        definition = m.definition.replace("|", "\\|")  # a bare | would end the table's cell
        agents = ", ".join(x.upper() if x != "runner" else x for x in m.agents)
        lines.append(f"| `{m.name}` | {definition} | {m.unit} | {m.source} | {agents} | {' | '.join(tags)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(markdown())
