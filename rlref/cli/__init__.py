"""The command line: `rlref COMMAND`, each command in a file of its name.

Exit codes: 0 good, 1 a failure was found (a verdict or a finding is an ERROR, a seed became non-finite, a probe's check
failed, a run did not come out the same or could not be written, a search's best is too sensitive), 2 wrong usage, 3 a
probed file differs from rlref's in its method, or too little of it could be checked, 130 stopped by Ctrl-C, 143 by
SIGTERM.
"""

import argparse
import contextlib
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from rlref.cli import (
    ablate,
    baselines,
    compare,
    diagnose,
    envs,
    export,
    inspect,
    play,
    probe,
    report,
    reproduce,
    sweep,
    train,
)
from rlref.cli.other_names import suggestion
from rlref.cli.terminal import exit_code
from rlref.errors import Stopped, UsageError, nearest
from rlref.version import VERSION

COMMANDS = (
    train, probe, diagnose, report, compare, baselines, sweep, ablate, inspect, reproduce, play, export, envs,
)  # fmt: skip
"""In the order of the help. Each has `add_to`, which adds its parser, and what it calls."""

CACHE_BYTES = 2e9  # of compiled programs, most of which have less than 1 MB

DESCRIPTION = """\
Reference reinforcement learning in JAX: single-file agents, many seeds, diagnostics.

  rlref train ppo                        CartPole-v1, 8 seeds: the main job
  rlref train dqn --env-id Acrobot-v1    another agent, another environment
  rlref train ./my_ppo.py                your own copy of an agent
  rlref train ppo --help                 every setting
  rlref probe ./my_ppo.py                whether an agent is right, and if not, which part is wrong
  rlref diagnose RUN                     what is wrong with it, in words; also of logs of CleanRL and SB3
  rlref report RUN                       one page that shows it; several runs: side by side
  rlref compare A B                      whether one is better than another, and how surely
  rlref baselines ENV                    a random policy, CEM, DQN and PPO: what to run first on a new problem
  rlref sweep ppo                        random search: which settings matter, and whether the best can be trusted
  rlref ablate ppo                       each option switched off, or on: which of them matter
  rlref inspect ENV                      what to look at before training: interface, scales, a random policy
  rlref train --resume RUN               go on with a run that was stopped or killed
  rlref reproduce RUN                    run it again, and say at which update the metrics part, if any
  rlref play RUN --seed 0                what a trained seed does, greedy and sampled; --gif draws it
  rlref export RUN --seed 0              one seed's parameters as a file of its own
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code. Ctrl-C ends the process."""
    try:
        options = read_command(sys.argv[1:] if arguments is None else arguments)
        if sys.stderr.isatty():  # at once: until jax is there it would be still for a second, or for more
            print(f"rlref {VERSION} {options.command}: loading", file=sys.stderr, flush=True)
        use_compilation_cache()
        return options.call(options)
    except UsageError as error:
        print(f"rlref: error: {error}", file=sys.stderr)
        return 2
    except Stopped as stopped:
        return exit_code(str(stopped))
    except BrokenPipeError:  # `rlref ... | head`: nobody reads on
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.filename is None:
            raise
        print(f"rlref: error: {error.strerror}: {error.filename}", file=sys.stderr)  # it may not be entered or read
        return 2
    except KeyboardInterrupt:
        sys.stdout.flush()
        print("rlref: stopped by Ctrl-C", file=sys.stderr, flush=True)
        os._exit(130)  # at once: a compiler's threads go on, and crash where the interpreter is taken down around them


class Parser(argparse.ArgumentParser):
    """What is wrong is one line, as everywhere."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}. `{self.prog} --help` shows all")


def command_parser() -> tuple[Parser, Mapping[str, argparse.ArgumentParser]]:
    """The parser of the whole command line, and that of each command."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = Parser("rlref", description=DESCRIPTION, formatter_class=raw)
    parser.add_argument("--version", action="version", version=f"rlref {VERSION}")
    parser.set_defaults(takes_agent=False)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add_to(commands)
    return parser, commands.choices


def read_command(arguments: Sequence[str]) -> argparse.Namespace:
    """What is to be called, with its options. Raises UsageError for wrong usage, SystemExit after --help."""
    parser, commands = command_parser()
    if arguments and not arguments[0].startswith("-") and arguments[0] not in commands:
        near = nearest(arguments[0], commands)
        raise UsageError(f"there is no command {arguments[0]!r}.{near} `rlref --help` shows all")
    options, rest = parser.parse_known_args(arguments)
    if rest and not options.takes_agent:
        there = [x.removeprefix("--") for x in option_strings(commands[options.command])]
        option = rest[0].startswith("-")
        what = f"there is no option {rest[0]!r}.{suggestion(rest[0], there)}" if option else f"{rest[0]!r} is too much."
        raise UsageError(f"{what} `rlref {options.command} --help` shows all")
    options.arguments = rest
    return options


def option_strings(parser: argparse.ArgumentParser) -> list[str]:
    """The long options of a command, but for --help."""
    return [x for x in parser._option_string_actions if x.startswith("--") and x != "--help"]


def use_compilation_cache() -> None:
    """Keep compiled programs, so that what has not changed compiles once; jax's own settings come first."""
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # a user without a home
        return
    # By machine: a program compiled for one CPU may hold instructions that another one behind the same home lacks.
    folder = os.environ["JAX_COMPILATION_CACHE_DIR"] = str(cache / "rlref" / platform.node())
    if "jax" in sys.modules and sys.modules["jax"].config.jax_compilation_cache_dir is None:
        sys.modules["jax"].config.update("jax_compilation_cache_dir", folder)
    trim(Path(folder))


def trim(folder: Path, limit: float = CACHE_BYTES) -> None:
    """If a folder's files take more than `limit` bytes, delete those used longest ago until half of that is left.

    jax's own limit looks at every file of the cache whenever it adds one, and fails in a folder that began without it.
    """
    try:
        found = [(max(x.stat().st_atime, x.stat().st_mtime), x.path, x.stat().st_size) for x in os.scandir(folder)]
    except OSError:  # there is none yet, or another process is deleting
        return
    total = sum(size for _, _, size in found)
    if total <= limit:
        return
    for _, path, size in sorted(found):
        if total <= limit / 2:
            break
        with contextlib.suppress(OSError):
            os.unlink(path)
        total -= size
