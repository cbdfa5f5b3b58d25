"""The observations that a trained seed visits, and its values there: episodes played for the maps of a page."""

from typing import TYPE_CHECKING, Any

import numpy as np

from rlref import stats
from rlref.reports import plots
from rlref.reports.facts import setting_name, setting_of
from rlref.runs.run import Run

if TYPE_CHECKING:
    from rlref.runs.job import Job
    from rlref.runs.trained import Trained

MAP_DIMENSIONS, MAP_EPISODES, MAP_STEPS = 3, 20, 1000


def rebuilt(run: Run) -> "Job | str":
    """The job of a run, rebuilt; the reason, if it cannot be rebuilt."""
    from rlref.runs.job import job_of_folder

    if run.trained is not None:
        return run.trained.job
    if run.path is None:
        return "it was not kept in a folder"
    try:
        return job_of_folder(run.path, **run.given)
    except Exception as error:  # a custom agent or environment can raise anything
        return str(error) or type(error).__name__


def visits_of(run: Run, job: "Job") -> tuple[str, plots.Visits] | str:
    """A sentence on what was played, and the visits; only a sentence if there is nothing to draw."""
    scores = run.scores if run.batched else run.scores[None]
    defined = np.isfinite(scores)
    best = int(np.nanargmax([stats.iqm(x) for x in scores])) if defined.any() else 0
    order = np.argsort(scores[best], kind="stable")  # undefined ones last
    seed = run.seeds[order[max(defined[best].sum() - 1, 0) // 2]]
    setting = best if run.batched else run.setting or 0
    try:
        space = job.env.observation_space(job.env_params)
        dimensions = 1 if hasattr(space, "n") else int(np.prod(space.shape))
        if dimensions > MAP_DIMENSIONS:
            return f"Maps are drawn of observations of at most {MAP_DIMENSIONS} numbers; these have {dimensions}."
        if run.trained is None:
            from rlref.runs import trained

            assert run.path is not None
            run.trained = trained.of_folder(run.path, **run.given)
        obs, value, name = played(run.trained, run.trained.row(seed, setting), seed)
    except Exception as error:  # as above
        return f"Not drawn: {str(error) or type(error).__name__}."
    finite = np.isfinite(obs).all(axis=1) & (True if value is None else np.isfinite(value))
    if not finite.any():
        return f"Not drawn: what seed {seed} sees, or its values, are not finite."
    which = f"setting {setting} ({setting_name(run, setting)})" if run.batched else setting_of(run)
    whose = f"{which}, seed {seed}" if which else f"seed {seed}"
    median = ", the median one by score," if defined[best].any() else ""
    sentence = (
        f"{MAP_EPISODES} episodes of at most {MAP_STEPS} steps with greedy actions of {whose}{median} as trained."
    )
    return sentence, plots.Visits(obs[finite], None if value is None else value[finite], hasattr(space, "n"), name)


def played(trained: "Trained", row: int, seed: int) -> tuple[np.ndarray, np.ndarray | None, str]:
    """Play greedy episodes of a row with the key of `seed`: observations `[N, D]`, V or max Q `[N]`, and its name.

    None and '' in place of the values and their name for an agent without values.
    """
    import jax

    from rlref.envs import episodes
    from rlref.runs import playing

    job = trained.job
    space = job.env.action_space(job.env_params)
    steps = min(int(playing.episode_limit(job.env_params)), MAP_STEPS)

    def play(config: Any, leaves: dict[str, Any], key: Any) -> dict[str, Any]:
        agent = job.make(config)
        state, memory = trained.state(config, leaves), playing.memory_of(agent)
        act = playing.acting(agent, state, space)

        def step(episode: episodes.Episode, _: Any) -> Any:
            seen = {"alive": ~episode.over, "obs": episode.obs}
            if agent.value is not None:
                seen["value"], _ = playing.asked(agent, "value", state, episode)
            after, _ = episodes.step(job.env, job.env_params, act, episode)
            return after._replace(over=episode.over | after.over), seen

        def one(key: Any) -> Any:
            return jax.lax.scan(step, episodes.begin(job.env, job.env_params, key, memory), length=steps)[1]

        return jax.vmap(one)(jax.random.split(key, MAP_EPISODES))

    seen = jax.device_get(jax.jit(play)(job.config_of(row), trained.of_row(row), jax.random.key(seed)))
    alive = seen["alive"]  # `[episodes, steps]`
    obs = np.asarray(seen["obs"][alive], np.float64).reshape(alive.sum(), -1)
    if "value" not in seen:
        return obs, None, ""
    value = np.asarray(seen["value"][alive], np.float64)
    return (obs, value, "V") if value.ndim == 1 else (obs, value.max(axis=1), "max Q")
