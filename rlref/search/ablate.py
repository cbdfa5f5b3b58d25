"""Switching each option of an agent off, or on: which of them matter here?

    found = ablate.ablate("ppo", ppo.Config(), num_seeds=16)
    found.comparison.sentences                              or: rlref ablate ppo

Tricks may substitute for each other, so ablate all the time (Schulman 2016, "Nuts and Bolts"). Only one option is
changed at a time here: if two do the same, neither seems to matter. PPO's `clip_coef` is of ratios and, with
`clip_vloss`, of values: off, it is off for both.
"""

import dataclasses
import math
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from rlref.contract import load_agent, name_of
from rlref.envs.ids import resolved
from rlref.errors import UsageError, nearest
from rlref.reports import compare
from rlref.reports.comparison_result import Comparison
from rlref.reports.methods import Method
from rlref.reports.tables import Table, comparison_to_json, with_interval
from rlref.runs.display import Display
from rlref.runs.job import agent_of
from rlref.search import space, variants

Changes = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Switch:
    """An option that is not simply true or false: the settings that turn it off, and on where it is off."""

    off: Callable[[Any], Changes]
    on: Callable[[Any], Changes]


def _value(name: str, off: Any, on: Any) -> Switch:
    return Switch(lambda config: {name: off}, lambda config: {name: on})


def _target_network(config: Any, gradient_steps: int) -> dict[str, Any]:
    """A target network that is a copy of the online one, made anew every so many gradient steps."""
    copied = {"tau": 1.0} if hasattr(config, "tau") else {}
    return {"target_network_frequency": gradient_steps * config.train_frequency, **copied}


SWITCHES: dict[str, Switch] = {
    "clip_coef": _value("clip_coef", 1000.0, 0.2),  # no ratio comes near it, and it must be finite
    "max_grad_norm": _value("max_grad_norm", math.inf, 0.5),
    "ent_coef": _value("ent_coef", 0.0, 0.01),
    "gae_lambda": _value("gae_lambda", 1.0, 0.95),  # 1: the whole return, without bootstrapping within the rollout
    "target_kl": _value("target_kl", None, 0.02),
    "update_epochs": _value("update_epochs", 1, 4),
    "n_step": _value("n_step", 1, 3),
    "exploration": Switch(
        lambda config: {"start_e": 0.0, "end_e": 0.0}, lambda config: {"start_e": 1.0, "end_e": 0.05}
    ),
    "target_network": Switch(  # off: a copy before every gradient step
        lambda config: _target_network(config, 1),
        lambda config: _target_network(config, 50),
    ),
    "extra_variance": _value("extra_variance", 0.0, 0.25),
    "smoothing": _value("smoothing", 0.0, 0.3),  # de Boer et al. 2005, section 2: alpha between .4 and .9
    "num_rollouts": _value("num_rollouts", 1, 4),
}
"""Options that are recognised by name, in addition to all settings of type bool or Literal."""


@dataclasses.dataclass(frozen=True)
class Ablation:
    """The result of an ablation."""

    agent: str
    env_id: str
    changes: dict[str, Changes]
    """what each variant changes, by its label"""
    not_tried: dict[str, str]
    """options that cannot be switched here, and why"""
    comparison: Comparison
    """of every variant with the settings as given"""

    def with_verdict(self, *verdicts: str) -> list[str]:
        """The variants whose verdict on the final score is one of `verdicts`."""
        return [c.method for c in self.comparison.results[0].contrasts if c.verdict in verdicts]


def ablate(
    agent: Any,
    config: Any,
    *,
    only: Sequence[str] = (),
    also: Mapping[str, Sequence[Any]] | None = None,
    num_seeds: int = 16,
    seed: int = 0,
    env: Any = None,
    env_params: Any = None,
    folder: Path | None = None,
    memory_gb: float | None = None,
    display: Display | None = None,
) -> Ablation:
    """Train `config` as it is and with each option switched, and compare.

    Args:
      agent, env, env_params, memory_gb, display: as in `rlref.train`.
      config: the settings to start from.
      only: the options to switch; by default all.
      also: setting -> other values to try.
      num_seeds, seed: the seeds of every variant.
      folder: where the runs' folders go; runs of the same ablation that are there already are not trained again.

    Raises UsageError if nothing can be switched, `errors.Stopped` if a signal stops it.
    """
    module = load_agent(agent)
    made, params = resolved(config.env_id, env, env_params)
    changes = option_switches(module, config)
    if unknown := [name for name in only if name not in changes]:
        near = nearest(unknown[0], changes)
        raise UsageError(f"there is no option {unknown[0]!r} to switch.{near} There are {', '.join(changes)}")
    chosen = {label: change for name in only or changes for label, change in changes[name].items()}
    for name, x in ((name, x) for name, values in (also or {}).items() for x in values):
        variants.changed(module, config, {name: x})
        space.check_value(name, getattr(config, name), x)
    chosen |= {f"{name} {x}": {name: x} for name, values in (also or {}).items() for x in values}
    not_tried = {}
    for label, change in list(chosen.items()):
        try:
            agent_of(module, variants.changed(module, config, change), made, params)
        except UsageError as error:
            not_tried[label] = str(error)
            del chosen[label]
    if not chosen:
        raise UsageError(f"no option can be switched here: {'; '.join(not_tried.values())}")
    return against_given(
        module,
        config,
        chosen,
        not_tried,
        num_seeds=num_seeds,
        seed=seed,
        env=env,
        env_params=env_params,
        folder=folder,
        memory_gb=memory_gb,
        display=display,
    )


def against_given(
    module: ModuleType,
    config: Any,
    changes: dict[str, Changes],
    not_tried: dict[str, str] | None = None,
    **options: Any,
) -> Ablation:
    """Train `config` as it is and with each of `changes`, and compare; `options` are those of `variants.train`."""
    runs = variants.train(module, config, {"as given": {}, **changes}, **options)
    methods = [Method(label, {config.env_id: run}) for label, run in runs.items()]
    return Ablation(name_of(module), config.env_id, changes, not_tried or {}, compare.compare(methods))


def option_switches(module: ModuleType, config: Any) -> dict[str, dict[str, Changes]]:
    """What switching each option of an agent changes: option -> label -> changes."""
    hints = typing.get_type_hints(module.Config)
    found: dict[str, dict[str, Changes]] = {}
    for field in dataclasses.fields(config):
        name, here = field.name, getattr(config, field.name)
        if isinstance(here, bool):
            found[name] = {f"{name} {'off' if here else 'on'}": {name: not here}}
        elif typing.get_origin(hints[name]) is typing.Literal:
            found[name] = {f"{name} {x}": {name: x} for x in typing.get_args(hints[name]) if x != here}
    for name, switch in SWITCHES.items():
        try:
            off, on = switch.off(config), switch.on(config)
        except AttributeError:
            continue
        if all(hasattr(config, setting) for setting in off):
            is_off = all(getattr(config, setting) in (x, None) for setting, x in off.items())
            found[name] = {f"{name} {'on' if is_off else 'off'}": on if is_off else off}
    return found


def tables(found: Ablation) -> list[Table]:
    """Every variant against the settings as given, the one that costs most first."""
    result = found.comparison.results[0]
    summaries = {summary.method: summary for summary in result.summaries}
    rows = []
    for c in sorted(result.contrasts, key=lambda c: c.difference):
        s = summaries[c.method]
        rows.append(
            {
                "change": c.method,
                "IQM [95 % interval]": with_interval(s.iqm, s.low, s.high),
                "worst": f"{s.min:.4g}",
                "difference [95 % interval]": with_interval(c.difference, c.low, c.high),
                "p (Holm)": f"{c.p_holm:.2g}",
                "": {"better": "helps", "worse": "hurts"}.get(c.verdict, c.verdict),
            }
        )
    given = result.summaries[0]
    reached = f"IQM {with_interval(given.iqm, given.low, given.high)}, worst {given.min:.4g}"
    return [Table(f"As given: {reached}; each change alone:", rows)]


def sentences(found: Ablation) -> list[str]:
    """The conclusions: which options help, and which hurt."""
    said = {"worse": "hurts", "better": "helps", "not shown": "makes no difference that these seeds show"}
    said["undecidable"] = "cannot be decided with these seeds"
    named = {text: found.with_verdict(verdict) for verdict, text in said.items()}
    return [f"{text}: {', '.join(labels)}" for text, labels in named.items() if labels]


def to_json(found: Ablation) -> dict[str, Any]:
    """The result as plain dictionaries and lists."""
    value = {f.name: getattr(found, f.name) for f in dataclasses.fields(found)}
    return value | {"comparison": comparison_to_json(found.comparison)}
