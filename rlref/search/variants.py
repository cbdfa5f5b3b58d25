"""Training variants of one agent: as many as possible in one program.

    runs = variants.train("ppo", ppo.Config(), {"defaults": {}, "no bonus": {"ent_coef": 0.0}}, num_seeds=16)

Variants that differ only in traced settings are rows of one program; every combination of the other settings is a
program of its own, with its own run folder. `rlref sweep`, `ablate` and `baselines` train with it.
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from rlref.contract import load_agent, name_of
from rlref.envs.ids import resolved, type_of
from rlref.errors import Stopped, UsageError, nearest
from rlref.runs import files, training
from rlref.runs.display import Display, default
from rlref.runs.folder import read_summary
from rlref.runs.job import agent_of
from rlref.runs.run import Run, load
from rlref.runs.sources import code_of, hashes_of
from rlref.settings import in_json, settings_of, traced_settings

Changes = Mapping[str, Any]  # setting -> the value it has instead of the base Config's


def train(
    agent: Any,
    config: Any,
    variants: Mapping[str, Changes],
    *,
    num_seeds: int,
    seed: int = 0,
    env: Any = None,
    env_params: Any = None,
    folder: Path | None = None,
    eval_every: int = 0,
    memory_gb: float | None = None,
    display: Display | None = None,
) -> dict[str, Run]:
    """Train every variant of `config` with the same seeds; returns a Run per variant, by its label.

    Args:
      agent, num_seeds, seed, env, env_params, eval_every, memory_gb, display: as in `rlref.train`.
      config: the Config that all variants start from.
      variants: label -> what is changed.
      folder: where the runs' folders go; runs of these variants that are there already are resumed, or loaded if they
        are finished.

    Raises UsageError for a setting that the agent does not have, or a folder of other variants; Stopped if a signal
    stops it.
    """
    module = load_agent(agent)
    display = display or default()
    training.check_numbers(num_seeds=num_seeds, seed=seed)
    everyone = {label: changed(module, config, changes) for label, changes in variants.items()}
    first = {repr(settings_of(config)): label for label, config in reversed(everyone.items())}
    configs = {label: config for label, config in everyone.items() if label in first.values()}  # none is trained twice
    groups = [(labels, batch_configs([configs[label] for label in labels])) for labels in programs_of(configs)]
    made, params = resolved(config.env_id, env, env_params)
    for labels, _ in groups:
        agent_of(module, configs[labels[0]], made, params)  # raises for what cannot be trained before anything is
    if folder is not None:
        about = description_of(module, everyone, range(seed, seed + num_seeds), env, env_params)
        claim_folder(folder, about | ({"eval_every": eval_every} if eval_every else {}))
    results: dict[str, Run] = {}
    for number, (labels, config_of_all) in enumerate(groups):
        if len(groups) > 1:
            shown = ", ".join(labels[:3]) + (f" and {len(labels) - 3} more" if len(labels) > 3 else "")
            display.say(f"program {number + 1} of {len(groups)}: {shown}")
        path = None if folder is None else folder / f"{number:03d}"
        given = {"env": env, "env_params": env_params, "memory_gb": memory_gb, "display": display}
        if path is None or not path.exists():
            run = training.train(
                module,
                config_of_all,
                num_seeds=num_seeds,
                seed=seed,
                eval_every=eval_every,
                run_dir=path,
                sinks=(),
                **given,
            )
        elif (read_summary(path) or {}).get("status", "interrupted") == "interrupted":
            run = training.resume(path, agent=module, **given)
        else:
            run = load(path, agent=module, env=env, env_params=env_params)
            run.summary.pop("stopped_by", None)  # of the command before
        if by := run.summary.get("stopped_by"):
            raise Stopped(by)
        for i, label in enumerate(labels):
            results[label] = run.of_setting(i) if run.batched else run
    return {label: results[first[repr(settings_of(config))]] for label, config in everyone.items()}


def changed(module: ModuleType, config: Any, changes: Changes) -> Any:
    """`config` with changes. Raises UsageError for a setting that the agent does not have."""
    known = [f.name for f in dataclasses.fields(module.Config)]
    for name in changes:
        if name not in known:
            agent = name_of(module)
            raise UsageError(f"{agent} has no setting {name!r}.{nearest(name, known)} It has {', '.join(known)}")
    return dataclasses.replace(config, **changes)


def programs_of(configs: Mapping[str, Any]) -> list[list[str]]:
    """The labels, grouped by the Configs that one program can train together."""
    groups: dict[str, list[str]] = {}
    for label, config in configs.items():
        # None in place of a traced setting shapes the program, too.
        fixed = settings_of(config) | {name: x is None for name, x in traced_settings(config).items()}
        groups.setdefault(repr(fixed), []).append(label)
    return list(groups.values())


def batch_configs(configs: list[Any]) -> Any:
    """One Config for several that `programs_of` put together; a setting that differs is an array, a value for each."""
    values = {name: [getattr(c, name) for c in configs] for name in traced_settings(configs[0])}
    differ = {name: np.asarray(x, np.float64) for name, x in values.items() if any(y != x[0] for y in x)}
    return dataclasses.replace(configs[0], **differ)


def description_of(
    module: ModuleType, configs: Mapping[str, Any], seeds: range, env: Any, env_params: Any
) -> dict[str, Any]:
    """All that decides what is trained, as JSON."""
    return {
        **hashes_of(code_of(module)),
        "variants": {label: in_json(settings_of(config)) for label, config in configs.items()},
        "seeds": list(seeds),
        "env": None if env is None else type_of(env),
        "env_params": None if env_params is None else repr(env_params),
    }


def claim_folder(folder: Path, about: dict[str, Any]) -> None:
    """Write to a new folder what is trained there. Raises UsageError if an existing folder describes something else."""
    file = folder / "variants.json"
    if not file.exists():
        refuse_others(folder)
        with files.writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            files.write_json(file, about)
        return
    there = files.read_json(file)
    if other := [name for name, x in json.loads(files.json_text(about)).items() if there.get(name) != x]:
        raise UsageError(f"{folder} was begun with other {other[0]}; give another --run-dir, or the same command again")


def refuse_others(folder: Path, *parts: str) -> None:
    """Raise UsageError if a folder is not empty, and none of its subfolders `parts` holds variants."""
    holds = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    if holds and not any((folder / part / "variants.json").exists() for part in parts):
        raise UsageError(f"{folder} exists already and is never overwritten; give another --run-dir")
