"""`rlref sweep AGENT`: random search, which settings matter, and whether the best can be trusted."""

import argparse
import dataclasses
from typing import Any

from rlref.cli.agent_options import FolderOptions, add_agent_command, agent_and_rest, read_search_options, usage
from rlref.cli.terminal import plain_console, print_tables, progress_of_several


@dataclasses.dataclass(frozen=True)
class SearchOptions(FolderOptions):
    """How to search; the agent's own settings follow: what the search begins from, and is compared with."""

    vary: tuple[str, ...] = ()
    """what to search: NAME=LOW:HIGH, NAME=LOW:HIGH:SCALE (linear, log, complement) or NAME=A,B,C each; none: the usual
    settings of the agent, in the usual ranges"""
    num_settings: int = 64
    """settings to draw"""
    num_seeds: int = 4
    """seeds of each: one half chooses the best, the other reports"""
    confirm_seeds: int = 32
    """fresh seeds of the best, its neighbours and the settings given; 0: do not confirm"""
    seed: int = 0
    """the first seed's id; settings are drawn by it as well"""


def add_to(commands: Any) -> None:
    """Add the command to the parser's."""
    add_agent_command(commands, "sweep", "search settings at random: `rlref sweep AGENT [options]`", run)


def run(given: argparse.Namespace) -> int:
    """`rlref sweep AGENT [options]`."""
    from rlref.contract import name_of
    from rlref.runs import files
    from rlref.runs.folder import new_folder
    from rlref.search import space, sweep

    agent, arguments = agent_and_rest(given.arguments)
    if agent is None:
        return usage("sweep", arguments)
    module, options, config, env_params = read_search_options("sweep", SearchOptions, agent, arguments)
    folder = options.run_dir or new_folder("sweep", name_of(module), config.env_id)
    vary = space.parse(options.vary, module, config) or None
    with progress_of_several(options.json, folder) as display:
        found = sweep.sweep(
            module,
            config,
            vary,
            num_settings=options.num_settings,
            num_seeds=options.num_seeds,
            seed=options.seed,
            confirm_seeds=options.confirm_seeds,
            env_params=env_params,
            folder=folder,
            memory_gb=options.memory_gb,
            display=display,
        )
    code = int(found.too_sensitive)
    if options.json:
        print(files.json_text({"folder": str(folder), **sweep.to_json(found)}))
        return code
    console = plain_console()
    print_tables(console, sweep.tables(found))
    for text in sweep.sentences(found):
        console.print(text, style="bold")
    console.print(f"written to {folder}: trials.csv, sweep.json, settings.png, and the runs")
    return code
