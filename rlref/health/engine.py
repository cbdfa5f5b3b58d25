"""Running all health checks on a run's metrics, and grouping their findings by cause.

Each check compares one quantity per seed and update, `[S, U]`, with a limit; it fires where the quantity is beyond the
limit in a given share of a window's updates. NaN means "undefined", and never fires. Findings that another one explains
are listed under it, so that an unhealthy run gets one leading sentence.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlref.errors import in_a_line
from rlref.health.checks import CHECKS
from rlref.health.findings import SEVERITIES, Finding
from rlref.health.registry import Check, Measurement
from rlref.health.series import Series, UnknownError, rolling_sum

PRECISION = "jax_default_matmul_precision"


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """The results of all checks on a run."""

    findings: list[Finding]
    """the most important first; those that another one explains are in its `follows`"""
    checked: list[str]
    unchecked: dict[str, str]
    """check -> what it lacked"""

    @property
    def above_info(self) -> list[Finding]:
        """The findings that are more than worth knowing, or that explain one that is."""
        return [f for f in self.findings if f.worst != "INFO"]


def diagnose(
    metrics: Mapping[str, np.ndarray],
    config: Mapping[str, Any],
    *,
    num_updates: int = 0,
    seeds: Sequence[int] | None = None,
    exact: bool = True,
    kind: str = "",
) -> Diagnosis:
    """Run all checks on a finished run, or on its updates so far.

    Args:
      metrics: `[S, U]` each, with the names of rlref.metrics; NaN means undefined.
      config: the settings; checks that need a missing one are skipped.
      num_updates: updates of the whole planned training, if more than `U`.
      seeds: the seeds' ids; by default 0 to S - 1.
      exact: whether matrix products have full float32 precision; if not, thresholds on rounding errors are wider.
      kind: "ppo", "dqn" or "cem"; by default inferred from the metrics.
    """
    m = Series(metrics, config, num_updates, exact)
    if kind:
        m.kind = kind
    ids = list(range(m.shape[0])) if seeds is None else list(seeds)
    findings, checked, unchecked = [], [], {}
    with np.errstate(all="ignore"):
        for one in CHECKS.values():
            if m.kind and not {m.kind, *m.more_kinds} & {*one.kinds}:
                continue
            if (window := m.window(one.window)) > m.shape[1]:
                unchecked[one.name] = f"{m.shape[1]} updates, of the {window} that it takes"
                continue
            m.read.clear()
            try:
                measured = one.measure(m)
            except UnknownError as lacking:
                unchecked[one.name] = str(lacking)
                continue
            except Exception as error:  # a custom agent's metrics and settings can be anything
                unchecked[one.name] = f"metrics and settings that it can read ({in_a_line(error)})"
                continue
            if m.read and all(np.isnan(metrics[name]).all() for name in m.read):
                unchecked[one.name] = "any defined value"
                continue
            checked.append(one.name)
            if found := finding_of(one, m, measured, window, ids):
                findings.append(found)
    return Diagnosis(nest_by_cause(findings, m.window(0.1)), checked, unchecked)


def full_precision(devices: Sequence[str] | None = None, precision: str | None = None) -> bool:
    """Whether matrix products have full float32 precision; on GPUs and TPUs they do not by default.

    `devices` are device kinds; without them, the devices and the precision of this process count.
    """
    if devices is None:
        import jax

        devices = [device.device_kind for device in jax.devices()]
        precision = jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]
    return precision in ("highest", "float32") or all(device == "cpu" for device in devices)


def with_setting(finding: Finding, setting: int) -> Finding:
    """`finding` and those under it, marked with the index of their setting."""
    follows = tuple(with_setting(f, setting) for f in finding.follows)
    return dataclasses.replace(finding, setting=setting, follows=follows)


def finding_of(one: Check, m: Series, measured: Measurement, window: int, ids: Sequence[int]) -> Finding | None:
    """The finding of a check; None if its quantity is never beyond the limit for long enough."""
    value, limit = (np.broadcast_to(x, m.shape).astype(np.float64) for x in (measured.value, measured.limit))
    defined = ~np.isnan(value)
    bad = (value > limit) if measured.above else (value < limit)
    if not bad.any():
        return None
    counted = rolling_sum(defined, window)
    enough = (counted >= max(window / 2, 1)) & (np.arange(m.shape[1]) >= window - 1)
    lasts = enough & (rolling_sum(bad, window) >= one.share * counted - 1e-9)
    if not (lasts & bad).any():
        return None
    # All bad updates of a window that fires count, so that the onset is the first of them.
    reach = np.flip(rolling_sum(np.flip(lasts, -1), window), -1) > 0
    bad &= reach
    rows, updates = np.nonzero(bad)
    affected = np.unique(rows)
    medians = [np.median(value[row][bad[row]]) for row in affected]
    limits = np.median(limit[bad])
    return Finding(
        check=one.name,
        severity=one.severity,
        title=one.title,
        meaning=one.meaning,
        tries=one.tries + settings_in_words(one.turns, m.config),
        source=one.source,
        value=float(np.median(medians)),
        threshold=float(limits),
        what=one.what,
        onset=int(updates.min()),
        last=int(updates.max()),
        seeds=() if one.shared_by_seeds else tuple(ids[row] for row in affected),
        num_seeds=len(ids),
    )


def settings_in_words(names: Sequence[str], config: Mapping[str, Any]) -> str:
    """What the settings of these names are, such as " (now learning_rate 0.07, no target_kl)"; '' if none is known."""
    said = []
    for name in names:
        match config.get(name, ...):
            case None | False:
                said.append(f"no {name}")
            case True:
                said.append(f"with {name}")
            case float() as value:
                said.append(f"{name} {value:g}")
            case int() | str() | tuple() | list() as value:
                said.append(f"{name} {value}")
    return f" (now {', '.join(said)})" if said else ""


def nest_by_cause(findings: Sequence[Finding], slack: int = 0) -> list[Finding]:
    """Nest findings under those that explain them, and sort: the worst first, then those in half of the seeds or more.

    A finding that begins more than `slack` updates after another has ended is not explained by it.
    """
    order = {name: i for i, name in enumerate(CHECKS)}

    def explains(cause: Finding, other: Finding) -> bool:
        if other.check not in CHECKS[cause.check].explains or (cause.severity == "INFO" != other.severity):
            return False
        if cause.check in CHECKS[other.check].explains:  # each can explain the other: take the earlier one
            return (cause.onset, order[cause.check]) < (other.onset, order[other.check])
        return True

    def meet(cause: Finding, other: Finding) -> bool:
        shared = len(set(cause.seeds) & set(other.seeds))
        assert cause.onset is not None
        assert cause.last is not None
        assert other.onset is not None
        assert other.last is not None
        in_time = cause.onset <= other.last and other.onset <= cause.last + slack
        return in_time and (not cause.seeds or 2 * shared >= max(len(other.seeds), 1))

    left = sorted(findings, key=lambda f: order[f.check])
    out = []
    while left:
        # A finding that no other explains; the first one, if they explain each other in a cycle.
        root = next((f for f in left if not any(explains(g, f) and meet(g, f) for g in left if g is not f)), left[0])
        left.remove(root)
        under, causes = [], [root]
        while causes:
            cause = causes.pop()
            new = [f for f in left if explains(cause, f) and meet(cause, f) and meet(root, f)]
            left = [f for f in left if f not in new]
            under += new
            causes += new
        out.append(dataclasses.replace(root, follows=tuple(sorted(under, key=lambda f: order[f.check]))))

    def rank(f: Finding) -> tuple[Any, ...]:
        few = 0 < 2 * len(f.seeds) < f.num_seeds
        return SEVERITIES.index(f.worst), SEVERITIES.index(f.severity), few, order[f.check]

    return sorted(out, key=rank)
