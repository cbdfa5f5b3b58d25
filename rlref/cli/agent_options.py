"""The options of commands that take an agent: their own, and all settings of the agent's Config.

tyro makes the options from the dataclasses; argparse only looks ahead for the few that decide what the others are.
"""

import argparse
import contextlib
import dataclasses
import inspect
import io
import itertools
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from rlref.errors import UsageError

# What tyro says of a value that an option does not take, and how it is said here.
SAID_OF_VALUES = {
    r"Error parsing (\S+): no type matching (.+) could be instantiated from \[(.*?)\].*": r"\1 takes \2, not \3",
    r"Error parsing (\S+): invalid literal for int\(\) with base 10: (.*)": r"\1 takes a whole number, not \2",
    r"Error parsing (\S+): could not convert string to float: (.*)": r"\1 takes a number, not \2",
    r"Error parsing (\S+): Could not find valid parse for arguments: \[(.*)\]": r"\1 does not take \2",
}


@dataclasses.dataclass(frozen=True)
class FolderOptions:
    """Where, and in what environment, a command trains."""

    run_dir: Path | None = None
    """folder of the runs; the same command with the same folder goes on; None: a new one under runs/"""
    env_params: tuple[str, ...] = ()
    """parameters of the environment, each as name=value"""
    memory_gb: float | None = None
    """memory that training may take, in 1e9 bytes; None: 80 % of what is free"""
    json: bool = False
    """print JSON, and nothing else"""


@dataclasses.dataclass(frozen=True)
class Budget:
    """In environment steps, for agents whose own setting is a number of generations."""

    total_timesteps: int = 0
    """environment steps of one seed's candidates, at most: as many whole generations, instead of num_generations; 0:
    num_generations counts"""


def add_agent_command(commands: Any, name: str, what: str, call: Callable[[argparse.Namespace], int]) -> None:
    """Add a command that takes an agent. tyro reads its arguments when the agent, and so its settings, are known."""
    parser = commands.add_parser(name, help=what, add_help=False, allow_abbrev=False)
    parser.set_defaults(call=call, takes_agent=True)


def agent_and_rest(arguments: Sequence[str]) -> tuple[str | None, Sequence[str]]:
    """The agent, and what follows it: it is the first word, or none, as elsewhere a word is some option's value."""
    if arguments and not arguments[0].startswith("-"):
        return arguments[0], arguments[1:]
    return None, arguments


def usage(command: str, arguments: Sequence[str]) -> int:
    """What a command takes that was given no agent; returns the exit code."""
    from rlref.contract import AGENTS

    wants_help = any(a in ("-h", "--help") for a in arguments)
    print(
        f"usage: rlref {command} AGENT [options]\n\nAGENT is {', '.join(AGENTS)}, or your own file such as "
        f"./my_ppo.py; `rlref {command} {AGENTS[0]} --help` shows all options",
        file=sys.stdout if wants_help else sys.stderr,
    )
    return 0 if wants_help else 2


def look_ahead(arguments: Sequence[str]) -> argparse.Namespace:
    """Those options that decide what the others are, or start from, as text: `read_options` reads them with all others.

    None for what is not given; True for a flag, and for an option whose value is missing.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in ("resume", "distributed", "coordinator", "num-processes", "process-id", "env-id", "defaults"):
        parser.add_argument(f"--{name}", f"--{name.replace('-', '_')}", nargs="?", const=True)
    parser.add_argument("--no-defaults", dest="defaults", nargs="?", const=None)
    return parser.parse_known_args(arguments)[0]


def is_rule(line: str) -> bool:
    """Whether a line is drawn across, in place of text."""
    return re.fullmatch("[─-]{3,}", line) is not None


def first_paragraph(module: ModuleType) -> str:
    """What an agent's file says it is; what follows in its docstring is for who reads the file. '' without one."""
    lines = inspect.cleandoc(module.__doc__ or "").splitlines()
    return " ".join(line.strip() for line in itertools.takewhile(str.strip, lines))


def as_written(module: ModuleType) -> str:
    """An agent as it is given on the command line: its name, or its file."""
    if module.__file__ is None or module.__name__.startswith("rlref."):
        return module.__name__.rpartition(".")[2]
    path = Path(module.__file__).resolve()
    here = Path.cwd()
    return f"./{path.relative_to(here)}" if path.is_relative_to(here) else str(path)


def option_names(settings: Any) -> list[str]:
    """The options of a dataclass: its fields, as they are written on the command line."""
    return [f.name.replace("_", "-") for f in dataclasses.fields(settings)]


def read_options(
    command: str,
    options_class: Any,
    module: ModuleType,
    arguments: Sequence[str],
    options: Any = None,
    config: Any = None,
) -> tuple[Any, Any, int]:
    """How to run, the Config, and the budget in environment steps (0: the Config says it).

    Args:
      command: the command's name.
      options_class: a dataclass of how to run.
      module: the agent.
      arguments: what follows the agent.
      options, config: what to begin from; without them, the defaults of both classes.

    Raises UsageError for what is no option, or no value of one; SystemExit after --help.
    """
    import tyro

    from rlref.cli.other_names import suggestion
    from rlref.contract import AGENTS, load_agent, name_of

    agent, written = name_of(module), as_written(module)
    config_class: Any = module.Config
    sections: list[Any] = [("run", options_class), ("config", config_class)]
    settings = {f.name for f in dataclasses.fields(config_class)}
    if "num_generations" in settings and "total_timesteps" not in settings:
        sections.append(("budget", Budget))
    flat: Any = tyro.conf.OmitArgPrefixes
    options_and_config: Any = dataclasses.make_dataclass(
        "Options", [(name, flat[section]) for name, section in sections]
    )
    default = {}
    if config is not None:
        budgets = [Budget()] if len(sections) == 3 else []
        default["default"] = options_and_config(options or options_class(), config, *budgets)
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            result, unknown = tyro.cli(
                options_and_config,
                prog=f"rlref {command} {written}",
                args=list(arguments),
                description=first_paragraph(module),
                return_unknown_args=True,
                **default,
            )
    except SystemExit as error:
        if not error.code:
            raise  # --help
        # tyro frames its message under a title, and rules it off from the help below it; in ASCII where it has to.
        framed = [line.strip("│╭╮╰╯ ") for line in said.getvalue().strip().splitlines()[1:]]
        lines = itertools.takewhile(lambda x: not is_rule(x), itertools.dropwhile(is_rule, framed))
        one_line = " ".join(filter(None, lines))
        for said_there, said_here in SAID_OF_VALUES.items():
            one_line = re.sub(said_there, said_here, one_line)
        raise UsageError(f"{one_line.rstrip('.')}. `rlref {command} {written} --help` shows all") from None
    if unknown:
        if not unknown[0].startswith("-"):
            raise UsageError(
                f"{unknown[0]!r} is too much; what is on or off takes no value, but --NAME or --no-NAME. "
                f"`rlref {command} {written} --help` shows all"
            )
        options_there = [option for _, c in sections for option in option_names(c)]
        others = {name: option_names(load_agent(name).Config) for name in AGENTS if name != agent}
        raise UsageError(
            f"there is no option {unknown[0]!r}.{suggestion(unknown[0], options_there, agent, others)} "
            f"`rlref {command} {written} --help` shows all"
        )
    given = {argument.partition("=")[0].replace("_", "-") for argument in arguments}
    if {"--total-timesteps", "--num-generations"} <= given:
        raise UsageError("--total-timesteps and --num-generations say the same; give one of them")
    return result.run, result.config, result.budget.total_timesteps if hasattr(result, "budget") else 0


def read_search_options(
    command: str, options_class: Any, agent: str, arguments: Sequence[str]
) -> tuple[ModuleType, Any, Any, Any]:
    """The agent's module, how to run, the Config, and the environment's parameters, of `rlref sweep` and `ablate`."""
    from rlref.contract import load_agent
    from rlref.envs import make_env, with_params
    from rlref.runs.job import generations_within

    module = load_agent(agent)
    options, config, budget = read_options(command, options_class, module, arguments)
    env, env_params = make_env(config.env_id)
    env_params = with_params(env_params, options.env_params)
    if budget:
        config = generations_within(budget, module, config, env, env_params)
    return module, options, config, env_params
