"""Statistics of a random policy's observations, rewards and episode ends, and findings about them."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlref.envs.episodes import bounds_of
from rlref.health.findings import Finding, ranges
from rlref.inspection.catalogue import found
from rlref.inspection.random_policy import Array, Rollout
from rlref.inspection.result import Samples

EPISODES_PER_ENV = 4
MAX_DIMENSIONS = 12  # most dimensions of an observation that are shown one by one


def _summary(x: Array) -> dict[str, float]:
    if not len(x):
        return {}
    return {"mean": float(x.mean()), "std": float(x.std()), "min": float(x.min()), "max": float(x.max())}


def is_image(shape: tuple[int, ...]) -> bool:
    """Whether an observation has rows and columns, and too many numbers to be shown one by one."""
    return len(shape) in (2, 3) and math.prod(shape) > MAX_DIMENSIONS


def statistics_of(samples: Samples, whole: Sequence[tuple[int, int, int]], gamma: float) -> dict[str, Any]:
    r = samples.rollout
    out: dict[str, Any] = {}
    reward, ended = r.steps["reward"], r.ended
    out["steps"], out["environments"], out["episodes"] = reward.size, reward.shape[1], len(whole)
    std = float(np.sqrt((r.std**2).mean() + r.mean.var()))
    out["observation"] = {
        "mean": float(r.mean.mean()),
        "std": std,
        "min": float(r.low.min()),
        "max": float(r.high.max()),
    }
    out["observation"] |= {"dimensions": len(r.mean), "constant": int((r.low == r.high).sum()), "distinct": r.distinct}
    if 1 < len(r.mean) <= 64:
        per = {"mean": r.mean, "std": r.std, "min": r.low, "max": r.high}
        out["observation"]["per_dimension"] = {name: x.tolist() for name, x in per.items()}
    finite = reward[np.isfinite(reward)].astype(np.float64)
    values, counts = np.unique(finite, return_counts=True)
    out["reward"] = _summary(finite) | {"nonzero": float((reward != 0).mean()), "distinct": len(values)}
    out["return"], out["length"] = _summary(samples.returns), _summary(samples.lengths)
    if ended.any():
        for name in ("terminated", "truncated"):
            out[name] = float(r.steps[name][ended].mean())
    if whole and len(values):
        usual = values[counts.argmax()]
        out["episodes_with_unusual_reward"] = float(np.mean([(reward[a:b, n] != usual).any() for n, a, b in whole]))
        furthest = float(np.abs(samples.targets).max())
        out["value_target"] = _summary(samples.targets)
        out["value_target"]["reward_multiplier"] = 3 / furthest if furthest else None
    out["gamma"], out["horizon"] = gamma, 1 / (1 - gamma) if gamma < 1 else math.inf
    out["action_repeat"] = {}
    for n, x in samples.explored.items():
        returns, lengths = x.returns_and_lengths(x.episodes(1))
        out["action_repeat"][str(n)] = {
            "return": _summary(returns),
            "length": _summary(lengths),
            "distinct": x.distinct,
        }
    return out


def about_endings(rollout: Rollout, *, varied: bool, has_step_env: bool) -> list[Finding]:
    """Whether ends are followed by resets, and final_observation is right. `varied`: whether resets differ."""
    ended = rollout.ended
    out: list[Finding] = []
    num_ends = int(ended.sum())
    if not num_ends:
        return out
    after = np.cumsum(ended, axis=0) - ended > 0
    firsts = np.where(ended.any(axis=0), ended.argmax(axis=0) + 1, len(ended))
    for_ever = after.sum() >= 8 and ended[after].all() and firsts.mean() > 1
    has_step_env = has_step_env and bool((~ended).any()) and bool(rollout.steps["own_next"][~ended].all())
    same, own = (bool(rollout.steps[name][ended].all()) for name in ("same", "own_next"))
    stays = own if has_step_env else same
    if for_ever or (stays and (rollout.steps["stray"][ended].mean() > 0.5 or (has_step_env and varied))):
        how = "every step after the first end ends too" if for_ever else "the episode after an end goes on from there"
        return [found("no_auto_reset", how)]
    if rollout.nonfinite:
        pass  # NaN equals nothing, so observations cannot be compared
    elif has_step_env and rollout.steps["own_final"][ended].mean() < 0.5:
        out.append(found("final_observation_wrong", "at an end it is not what step_env gives"))
    elif same and varied and num_ends >= 8:
        out.append(found("final_observation_wrong", "at every end it is the next episode's first observation"))
    _, lengths = rollout.returns_and_lengths(rollout.episodes(EPISODES_PER_ENV))
    both = rollout.steps["terminated"] & rollout.steps["truncated"]
    if both[ended].all():
        # If all lengths are equal, the task itself may end at its time limit.
        severity = "INFO" if len(set(lengths)) == 1 else ""
        out.append(found("always_both", "every end is both terminated and truncated", severity))
    elif (limits := rollout.steps["truncated"][ended]).sum() >= 8 and both[ended][limits].all():
        out.append(found("always_both", "every end at the time limit is terminated as well"))
    if ended.shape[1] > 1 and num_ends < ended.size and (ended.any(axis=1) == ended.all(axis=1)).all():
        out.append(found("resets_in_step", f"every episode has {firsts[0]} steps"))
    return out


def about_observations(r: Rollout, space: Any) -> list[Finding]:
    out = []
    if r.nonfinite:
        out.append(found("nonfinite", f"{r.nonfinite:,} numbers of observations are NaN or infinite"))
    shape = tuple(getattr(space, "shape", r.mean.shape))
    if (hasattr(space, "n") or hasattr(space, "low")) and math.prod(shape) == len(r.mean):
        bounds = (np.zeros(1), np.array([space.n - 1.0])) if hasattr(space, "n") else bounds_of(space)
        low, high = (x.ravel() for x in bounds)
        excess = np.maximum(low - r.low - 1e-5 * (1 + abs(low)), r.high - high - 1e-5 * (1 + abs(high)))
        if (excess > 0).any():
            i = int(excess.argmax())
            title = (
                f"{_dimensions(excess > 0)} out of observation_space: {i} is within [{r.low[i]:.4g}, {r.high[i]:.4g}]"
            )
            out.append(found("out_of_bounds", f"{title}, declared [{low[i]:.4g}, {high[i]:.4g}]"))
    constant = r.low == r.high
    if is_image(shape) and len(shape) == 3 and not constant.all():
        channels = constant.reshape(-1, shape[-1]).all(axis=0)
        if channels.any():
            out.append(found("constant_observation", f"channels {ranges(np.flatnonzero(channels))} never change"))
    elif constant.any() and (constant.all() or not is_image(shape)):
        severity = "WARN" if constant.all() and not r.ended.all() else ""
        out.append(found("constant_observation", f"{_dimensions(constant)} never change", severity))
    finite = np.isfinite(r.low) & np.isfinite(r.high)
    pixels = is_image(shape) and np.dtype(space.dtype) == np.uint8  # agents divide by 255
    if not hasattr(space, "n") and not pixels:
        furthest = np.where(finite, np.maximum(abs(r.low), abs(r.high)), 1)
        small = (furthest < 0.1) & ~constant
        for which, size, limit, worst in (
            (furthest > 10, "large", 10, furthest.argmax()),
            (small, "tiny", 0.1, np.where(small, furthest, 1).argmin()),
        ):
            if which.any():
                measured = {"value": float(furthest[worst]), "threshold": limit, "what": f"max |observation {worst}|"}
                out.append(found("observation_scale", f"{_dimensions(which)} {size}", "", **measured))
    return out


def _dimensions(which: Array) -> str:
    few = f" ({ranges(np.flatnonzero(which))})" if len(which) > 1 and which.sum() <= MAX_DIMENSIONS else ""
    return f"{which.sum()} of {len(which)} observation dimensions{few}"


def about_rewards(samples: Samples, statistics: Mapping[str, Any], gamma: float) -> list[Finding]:
    r, out = samples.rollout, []
    reward, ended, returns = r.steps["reward"], r.ended, samples.returns
    if bad := int((~np.isfinite(reward)).sum()):
        return [found("nonfinite", f"{bad:,} of {reward.size:,} rewards are NaN or infinite")]
    if len(returns) > 1:
        values, counts = np.unique(np.round(returns, 6), return_counts=True)
        others = 1 - counts.max() / len(returns)
        if others == 0:
            out.append(found("no_signal", f"all {len(returns)} episodes return {returns[0]:.4g}"))
        elif others < 0.1:
            usual = values[counts.argmax()]
            out.append(found("rare_signal", f"{others:.0%} of episodes return anything but {usual:.4g}"))
    sizes = np.abs(reward[reward != 0])
    if len(sizes) and sizes.max() > 100 * np.median(sizes):
        measured: dict[str, Any] = {
            "value": float(sizes.max()),
            "what": "max |reward|",
            "threshold": float(100 * np.median(sizes)),
        }
        out.append(found("reward_outliers", "the largest reward is far from the usual ones", **measured))
    if len(samples.targets) and (furthest := float(np.abs(samples.targets).max())):
        measured = {"value": furthest, "what": "max |value target|", "threshold": 10 if furthest > 10 else 0.1}
        multiplier = f"a reward multiplier of {3 / furthest:.2g}"
        if furthest > 10:
            out.append(
                found(
                    "value_targets",
                    f"large: {multiplier} brings them into [-3, 3]",
                    "WARN" if furthest > 100 else "",
                    **measured,
                )
            )
        elif furthest < 0.1:
            out.append(
                found("value_targets", f"tiny: {multiplier}, if a better policy gets no larger ones", **measured)
            )
    if gamma == 1 and not r.steps["terminated"].any():
        out.append(found("undiscounted", "gamma is 1, and no episode is terminated"))
    elif len(returns) and gamma < 1:
        horizon, length = 1 / (1 - gamma), float(samples.lengths.mean())
        measured = {"value": horizon, "what": "1 / (1 - gamma)"}
        if horizon * 5.001 < length:
            # If there is less than one reward per horizon, most steps see none.
            severity = "WARN" if statistics["reward"]["nonzero"] * horizon < 1 else ""
            title = f"discounting reaches {horizon:.4g} steps ahead, a mean episode has {length:.4g}"
            out.append(found("short_horizon", title, severity, threshold=length / 5, **measured))
        elif horizon > 50 * length and not ended.all():
            out.append(
                found("long_horizon", f"a mean episode has {length:.4g} steps", threshold=50 * length, **measured)
            )
    return out
