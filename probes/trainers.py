"""Any trainer on the gymnasium form of the probes: `python -m probes --gymnasium my_module:train`.

    train(env_id, seed) -> (policy, value)

trains on `gymnasium.make(env_id)`, discounted by its `unwrapped.gamma`, and gives two functions of ONE observation:
policy -> the action's index, probabilities `[A]`, or for a Box the mean action `[D]`; value -> V, or Q `[A]`; a value
of None where there is none. A trainer with a third parameter, `settings`, gets those that the probe is about, by the
names of rlref's agents, such as {"ent_coef": 1.0}; without, probes that are about one are not checked.
"""

import argparse
import importlib
import importlib.util
import inspect
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from probes import check, lacking, verdict
from probes.environments import Tables
from probes.ladder import LADDER, Case, Probe
from probes.registration import register_variant
from rlref.errors import UsageError, errors_with_line, in_a_line, nearest

Trainer = Callable[..., tuple[Callable[[np.ndarray], Any], Callable[[np.ndarray], Any] | None]]
TUNING = (*lacking.WAYS, "num_steps", "norm_adv", "end_e", "population_size")
"""settings of probes that only say how to train: each trainer has its own"""


def main(arguments: Sequence[str]) -> int:
    """The command line; returns the exit code: that of the verdict, or 2 for a trainer that cannot be used."""
    parser = argparse.ArgumentParser("python -m probes", description="Without options: the tables of probes/checks.md.")
    helped = "a function train(env_id, seed) -> (policy, value), as my_module:train or my_file.py:train"
    parser.add_argument("--gymnasium", required=True, metavar="MODULE:TRAIN", help=helped)
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="this probe; may be repeated")
    parser.add_argument("--num-seeds", type=int, default=3, help="seeds per probe (default: 3)")
    parser.add_argument("--json", action="store_true", help="print JSON, and nothing else")
    options = parser.parse_args(arguments)
    try:
        if options.num_seeds < 1:
            raise UsageError(f"--num-seeds is {options.num_seeds}; it must be at least 1")
        train, source = load(options.gymnasium)
        tell = lambda doing: None if options.json else print(doing, file=sys.stderr, flush=True)  # noqa: E731
        report = run(train, options.gymnasium, source, only=options.only, num_seeds=options.num_seeds, watch=tell)
    except UsageError as error:
        print(f"probes: error: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(verdict.to_json(report), indent=1))
    else:
        from rich.console import Console

        from rlref.cli.probe import COLOURS, probe_table

        console = Console(highlight=False)
        console.print(probe_table(report.oracles, report.rungs))
        console.print(verdict.verdict(report), style=COLOURS[verdict.word(report)], soft_wrap=True, markup=False)
    return verdict.EXIT_CODES[verdict.word(report)]


def load(name: str) -> tuple[Trainer, str]:
    """The function that `module:function` or `file.py:function` names, and its file.

    Raises UsageError, in one line, if there is none, or what it stands in cannot be imported.
    """
    place, _, function = name.rpartition(":")
    if not place or not function:
        raise UsageError(f"--gymnasium takes module:function, not {name!r}")
    path = Path(place)
    if path.suffix == ".py":
        if not path.is_file():
            raise UsageError(f"there is no file {place}")
        sys.path.insert(0, str(path.parent.resolve()))
        place = path.stem
    elif os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        spec = importlib.util.find_spec(place)
    except (ImportError, ValueError) as error:
        raise UsageError(f"{name}: {in_a_line(error)}") from error
    if spec is None:
        raise UsageError(f"there is no module {place!r}")
    with errors_with_line(place, spec.origin, named=False, anywhere=True):
        module = importlib.import_module(place)
    train = getattr(module, function, None)
    if not callable(train):
        raise UsageError(f"{place} has no function {function!r}.{nearest(function, vars(module))}")
    return train, inspect.getsourcefile(inspect.unwrap(train)) or str(module.__file__)


def is_plain(probe: Probe) -> bool:
    """Whether any agent takes its actions: gymnasium has no convention for masks, and MultiDiscrete is for some."""
    params = probe.case(0).params
    return not (isinstance(params, Tables) and (params.action_mask or params.choices))


def run(
    train: Trainer,
    name: str,
    source: str | None = None,
    *,
    only: Sequence[str] = (),
    num_seeds: int = 3,
    watch: Callable[[str], None] = lambda doing: None,
) -> check.Report:
    """Train on the ladder, `num_seeds` times on every rung, and judge; the kind of agent follows from its value.

    Args:
      train: as this module's docstring says.
      name: what it is called in the report.
      source: its file, for the place of what it raises.
      only: names of probes; without, all that are for this kind of agent, but those with masks or several choices.
      num_seeds: seeds of each probe, which draw its signs and best arms too.
      watch: told what is being done.

    Raises UsageError, in one line, for a probe that does not exist, and a trainer that raises or gives other shapes.
    """
    for wanted in only:
        if wanted not in LADDER:
            raise UsageError(f"the probe {wanted!r} does not exist.{nearest(wanted, LADDER)}")
    chosen = [one for one in LADDER.values() if (one.name in only if only else is_plain(one))]
    settled = "settings" in inspect.signature(train).parameters

    def answers(one: Probe, kind: str, seed: int) -> tuple[Case, np.ndarray | None, np.ndarray]:
        env_id = register_variant(one.name, seed, kind)
        watch(f"training on {env_id}, seed {seed}")
        with errors_with_line(name, source, named=False, anywhere=True):
            more = {"settings": dict(one.settings.get(kind, {}))} if settled else {}
            pair = train(env_id, seed, **more)
            if not isinstance(pair, tuple) or len(pair) != 2 or not callable(pair[0]):
                raise UsageError(f"{name} must return a pair of functions: policy, and value or None")
            case = one.case(seed, kind)
            policy = np.stack([policy_of(name, case, pair[0](obs.copy())) for obs in case.params.obs])
            if pair[1] is None:
                return case, None, policy
            values = [np.asarray(pair[1](obs.copy()), np.float64) for obs in case.params.obs]
        return case, np.stack(values), policy

    first = chosen[0]
    kind = "ppo" if "ppo" in first.kinds else first.kinds[0]
    begun = answers(first, kind, 0)
    found = kind_of(name, begun[1], begun[0])
    kept = {(first.name, 0): begun} if (found == "cem") == (kind == "cem") else {}
    for one in chosen:
        if only and found not in one.kinds:
            own = [x.name for x in LADDER.values() if found in x.kinds]
            raise UsageError(f"the probe {one.name!r} is not for this kind of agent. There are: {', '.join(own)}")
    seeds = range(num_seeds)
    rungs: list[check.RungResult | check.Skipped] = []
    for one in (x for x in chosen if found in x.kinds):
        about = [x for x in one.settings.get(found, {}) if x not in TUNING]
        if about and not settled:
            rungs.append(check.Skipped(one, f"it sets {', '.join(about)}: train(env_id, seed, settings) can take them"))
            continue
        each = [kept.get((one.name, seed)) or answers(one, found, seed) for seed in seeds]
        outcome = check.Outcome(valued(name, found, [(case, value) for case, value, _ in each]),
                                np.stack([policy for _, _, policy in each]))  # fmt: skip
        rungs.append(check.judge(one, found, seeds, [case for case, _, _ in each], outcome, outcome))
    return check.Report(name, found, [], rungs, not only)


def kind_of(name: str, value: np.ndarray | None, case: Case) -> str:
    """ "ppo", "dqn" or "cem", by what the values `[n]` or `[n, A]` of a case are. Raises UsageError for others."""
    if value is None:
        return "cem"
    if value.ndim == 1:
        return "ppo"
    if not isinstance(case.params, Tables) or value.shape[1:] != case.params.reward.shape[1:]:
        raise UsageError(f"the value of {name} gives shape {value.shape[1:]}; V is a number, Q has one per action")
    return "dqn"


def valued(name: str, kind: str, each: Sequence[tuple[Case, np.ndarray | None]]) -> np.ndarray | None:
    """Values `[S, n]` or `[S, n, A]` of all seeds; None for agents without. Raises UsageError for two kinds."""
    kinds = {kind_of(name, value, case) for case, value in each}
    if kinds != {kind}:
        raise UsageError(f"the value of {name} is of two kinds: {', '.join(sorted(kinds | {kind}))}")
    return None if kind == "cem" else np.stack([value for _, value in each if value is not None])


def policy_of(name: str, case: Case, given: Any) -> np.ndarray:
    """Probabilities `[A]`, or the mean action `[D]`, of what a policy gives. Raises UsageError for another shape."""
    x = np.asarray(given, np.float64)
    params = case.params
    if not isinstance(params, Tables):
        shape = params.optimum.shape[1:]
        if x.size != np.prod(shape):
            raise UsageError(f"the policy of {name} gives shape {x.shape}; the mean action is {shape}")
        return x.reshape(shape).clip(-1, 1)
    actions = params.reward.shape[1]
    if x.size == 1 and x.shape != (actions,) and 0 <= x.item() < actions and x.item() == int(x.item()):
        return np.eye(actions)[int(x.item())]
    if x.shape != (actions,):
        raise UsageError(f"the policy of {name} gives {given!r:.60}; it must be an action below {actions}, or "
                         f"probabilities ({actions},)")  # fmt: skip
    return x
