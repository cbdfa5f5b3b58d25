"""What is compared: methods, each a label and a run per environment, as a command line names them."""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlref.envs.ids import without_pool
from rlref.errors import UsageError
from rlref.runs.folder import read_about
from rlref.runs.run import Run, load


@dataclasses.dataclass(frozen=True)
class Method:
    """What is compared: a label, and a run of one setting per environment."""

    label: str
    runs: dict[str, Run]
    """by environment"""


def read(arguments: Sequence[str]) -> list[Method]:
    """The methods that a command line names: each "path", or "label=path[,path...]" with a run per environment.

    "path#3" is setting 3 of a run with batched settings. If all runs are on one environment, each run without a label
    is a method, labelled by its folder; on several environments, all such runs of one agent are one method. Raises
    UsageError if a run cannot be read, or a method has two runs on one environment.
    """
    given = [labelled(argument) for argument in arguments]
    loaded = [(label, [(path, run_at(path)) for path in paths]) for label, paths in given]
    single = len({environment_of(run) for _, named in loaded for _, run in named}) == 1
    names = Counter(folder_of(path) for label, named in loaded if label is None for path, _ in named)
    methods: dict[str, dict[str, Run]] = {}
    for label, named in loaded:
        for path, run in named:
            folder = folder_of(path)
            own = label or ((folder if names[folder] == 1 else path) if single else run.agent)
            add(methods.setdefault(own, {}), own, run)
    return [Method(label, by_environment) for label, by_environment in methods.items()]


def folder_of(path: str) -> str:
    """The name of the folder that a path leads to."""
    return Path(path).name if Path(path).name not in ("", "..") else Path(path).resolve().name


def labelled(argument: str) -> tuple[str | None, list[str]]:
    """The label, None without one, and the paths of an argument. A folder whose name holds an "=" is a path."""
    label, equals, paths = argument.partition("=")
    if not equals or folder_and_setting(argument)[0].is_dir():
        return None, [argument]
    if not label or not all(paths.split(",")):
        raise UsageError(f"{argument!r} names no run: a method is PATH, or LABEL=PATH[,PATH...]")
    return label, paths.split(",")


def folder_and_setting(path: str) -> tuple[Path, str | None]:
    """A run's folder, and what stands after "#"; a folder whose own name holds a "#" is a folder."""
    folder, mark, setting = path.rpartition("#")
    return (Path(folder), setting) if mark and not Path(path).is_dir() else (Path(path), None)


def run_at(path: str) -> Run:
    folder, setting = folder_and_setting(path)
    run = load(folder)
    if setting is None:
        return run
    if not setting.isdecimal():
        raise UsageError(f"{path!r} names no setting: that is a number from 0 on, as in {folder}#0")
    return run.of_setting(int(setting))


def add(by_environment: dict[str, Run], label: str, run: Run) -> None:
    environment = environment_of(run)
    if environment in by_environment:
        raise UsageError(
            f"{label} has two runs on {environment}: say what is one method, as LABEL=PATH[,PATH...] for each of them"
        )
    by_environment[environment] = run


def about_of(run: Run) -> dict[str, Any]:
    """The description in the run's folder; empty for a run without a folder."""
    return read_about(run.path) if run.path else {}


def environment_of(run: Run) -> str:
    """The environment's id, without a pool of starts; the name of its class, where it was given from Python."""
    return str(about_of(run).get("env") or without_pool(run.config.get("env_id", "an environment")))
