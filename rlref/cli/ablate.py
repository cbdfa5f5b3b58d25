"""`rlref ablate AGENT`: each option switched off, or on, and which of them matter."""

import argparse
import dataclasses
from typing import Any

from rlref.cli.agent_options import FolderOptions, add_agent_command, agent_and_rest, read_search_options, usage
from rlref.cli.terminal import plain_console, print_tables, print_warnings, progress_of_several
from rlref.errors import UsageError


@dataclasses.dataclass(frozen=True)
class AblateOptions(FolderOptions):
    """What to switch; the agent's own settings follow: what everything is compared with."""

    only: tuple[str, ...] = ()
    """the options to switch; none: all"""
    also: tuple[str, ...] = ()
    """more to try, each as NAME=A,B,C"""
    num_seeds: int = 16
    """seeds of every variant"""
    seed: int = 0
    """the first seed's id"""


def add_to(commands: Any) -> None:
    """Add the command to the parser's."""
    add_agent_command(commands, "ablate", "switch each option off, or on: `rlref ablate AGENT [options]`", run)


def run(given: argparse.Namespace) -> int:
    """`rlref ablate AGENT [options]`."""
    from rlref.contract import name_of
    from rlref.runs import files
    from rlref.runs.folder import new_folder
    from rlref.search import ablate, space

    agent, arguments = agent_and_rest(given.arguments)
    if agent is None:
        return usage("ablate", arguments)
    module, options, config, env_params = read_search_options("ablate", AblateOptions, agent, arguments)
    folder = options.run_dir or new_folder("ablate", name_of(module), config.env_id)
    also = space.parse(options.also, module, config)
    if ranges := [name for name, x in also.items() if isinstance(x, space.Range)]:
        raise UsageError(f"--also takes values to try, as {ranges[0]}=A,B,C, not a range")
    with progress_of_several(options.json, folder) as display:
        found = ablate.ablate(
            module,
            config,
            only=options.only,
            also=also,
            num_seeds=options.num_seeds,
            seed=options.seed,
            env_params=env_params,
            folder=folder,
            memory_gb=options.memory_gb,
            display=display,
        )
    if options.json:
        print(files.json_text({"folder": str(folder), **ablate.to_json(found)}))
        return 0
    console = plain_console()
    print_tables(console, ablate.tables(found))
    print_warnings(console, found.comparison.warnings)
    for label, why in found.not_tried.items():
        console.print(f"not tried: {label}: {why}", style="dim")
    for text in ablate.sentences(found):
        console.print(text, style="bold")
    console.print(f"written to {folder}")
    return 0
