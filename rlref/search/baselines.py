"""A random policy, CEM, DQN and PPO on one environment: the first thing to run on a new problem.

    found = baselines.baselines("Acrobot-v1")               or: rlref baselines Acrobot-v1

Which simple methods work, and how well, is the first question about a new problem (Schulman 2016, "Nuts and Bolts").
Agents have their default settings, which were chosen for CartPole-v1; tuned settings may reach more.
"""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from rlref import stats
from rlref.contract import NAMES, load_agent
from rlref.envs.ids import resolved
from rlref.envs.interface import check_interface
from rlref.errors import UsageError
from rlref.reports import compare, reference
from rlref.reports.comparison_result import Comparison
from rlref.reports.methods import Method
from rlref.reports.tables import Table, with_interval
from rlref.runs.display import Display, default
from rlref.runs.job import agent_of
from rlref.runs.run import Run
from rlref.search import variants
from rlref.settings import settings_of

EPISODES = 100  # of the random policy, per seed: an agent's score is a mean over as many


@dataclasses.dataclass(frozen=True)
class Baselines:
    """The result of training all agents."""

    env_id: str
    runs: dict[str, Run]
    """by agent, the random policy first"""
    unfit: dict[str, str]
    """agents that cannot be trained there, and why"""
    comparison: Comparison
    """of every agent with the random policy"""

    @property
    def verdict(self) -> str:
        """The conclusion, in a sentence."""
        result = self.comparison.results[0]
        better = {c.method for c in result.contrasts if c.verdict == "better"}
        if all(c.verdict == "undecidable" for c in result.contrasts):
            return f"nothing can be decided: {result.contrasts[0].sentence.partition(': ')[2]}"
        ranked = sorted((s for s in result.summaries if s.method in better), key=lambda s: -s.iqm)
        if not ranked:
            return (
                "no agent is shown to be better than a random policy: look at the environment first "
                f"(rlref inspect {self.env_id}), then train longer"
            )
        best = ranked[0]
        return (
            f"{best.method} reaches most: IQM {best.iqm:.4g} [{best.low:.4g}, {best.high:.4g}]; better than a random "
            f"policy: {', '.join(s.method for s in ranked)}"
        )


def baselines(
    env_id: str,
    *,
    total_timesteps: int = 500_000,
    num_seeds: int = 8,
    seed: int = 0,
    env: Any = None,
    env_params: Any = None,
    folder: Path | None = None,
    memory_gb: float | None = None,
    display: Display | None = None,
) -> Baselines:
    """Train every agent with its defaults, and compare them with a random policy.

    Args:
      env_id: the environment; its name in the results if `env` is given.
      total_timesteps: environment steps of one seed. Those of a CEM generation depend on the length of its episodes:
        CEM trains its default number of generations, or more if they fit in any case, and its score is that of the
        last generation within these steps.
      num_seeds, seed: the seeds of every agent.
      env, env_params, memory_gb, display: as in `rlref.train`.
      folder: where the runs' folders go; the same runs that are there already are not trained again.

    Raises UsageError if no agent can be trained, `errors.Stopped` if a signal stops it.
    """
    display = display or default()
    if total_timesteps < 1 or num_seeds < 1:
        raise UsageError(f"total_timesteps is {total_timesteps} and num_seeds {num_seeds}; they must be at least 1")
    if folder is not None:
        variants.refuse_others(folder, *NAMES)
    made, params = resolved(env_id, env, env_params)
    check_interface(made, params, env_id)
    trained = {"random": random_run(env_id, made, params, range(seed, seed + num_seeds), total_timesteps)}
    unfit = {}
    for name in reversed(NAMES):
        module: Any = load_agent(name)
        config = module.Config(env_id=env_id)
        try:
            if "num_generations" in settings_of(config):
                fit = total_timesteps // agent_of(module, config, made, params).steps_per_update
                config = dataclasses.replace(config, num_generations=max(fit, config.num_generations))
            else:
                config = dataclasses.replace(config, total_timesteps=total_timesteps)
                agent_of(module, config, made, params)
        except UsageError as error:
            unfit[name] = str(error)
            continue
        display.say(f"{name}:")
        (run,) = variants.train(
            module,
            config,
            {name: {}},
            num_seeds=num_seeds,
            seed=seed,
            env=env,
            env_params=env_params,
            folder=folder and folder / name,
            memory_gb=memory_gb,
            display=display,
        ).values()
        trained[name] = cut_to_budget(run, total_timesteps)
    if len(trained) == 1:
        raise UsageError(f"no agent can be trained: {'; '.join(f'{name}: {why}' for name, why in unfit.items())}")
    methods = [Method(name, {env_id: run}) for name, run in trained.items()]
    return Baselines(env_id, trained, unfit, compare.compare(methods))


def cut_to_budget(run: Run, total_timesteps: int) -> Run:
    """A run cut, for each seed, after its last update within `total_timesteps` environment steps."""
    inside = run.metrics["env_steps"] <= total_timesteps
    inside[:, 0] = True
    return dataclasses.replace(run, metrics={name: np.where(inside, x, np.nan) for name, x in run.metrics.items()})


def random_run(env_id: str, env: Any, env_params: Any, seeds: range, total_timesteps: int) -> Run:
    """A run of the random policy: two updates, both with each seed's mean return over 100 episodes."""
    scores = reference.random_returns(env, env_params, EPISODES, seeds).mean(axis=1)
    metrics = {
        "env_steps": np.tile(np.array([1, total_timesteps], np.float32), (len(seeds), 1)),
        "return_mean": np.repeat(scores[:, None], 2, axis=1).astype(np.float32),
    }
    return Run("random", {"env_id": env_id}, list(seeds), metrics, {"status": "finished"}, num_updates=2)


def table(found: Baselines) -> Table:
    """Every agent in one table, against the random policy."""
    result = found.comparison.results[0]
    contrasts = {c.method: c for c in result.contrasts}
    rows = []
    for s in result.summaries:
        steps = stats.last(found.runs[s.method].metrics["env_steps"]).mean()
        c = contrasts.get(s.method)
        rows.append(
            {
                "policy": s.method,
                "steps": "0" if c is None else f"{steps:,.0f}",
                "IQM [95 % interval]": with_interval(s.iqm, s.low, s.high),
                "worst": f"{s.min:.4g}",
                "best": f"{s.max:.4g}",
                "P(beats random)": "" if c is None else f"{c.probability:.2g}",
                "p (Holm)": "" if c is None else f"{c.p_holm:.2g}",
                "than random": "" if c is None else c.verdict,
            }
        )
    return Table(f"{found.env_id}, {result.summaries[0].num_seeds} seeds each, default settings", rows)
