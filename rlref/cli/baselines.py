"""`rlref baselines ENV`: a random policy, CEM, DQN and PPO on one environment."""

import argparse
from pathlib import Path
from typing import Any

from rlref.cli.terminal import (
    plain_console,
    print_tables,
    print_warnings,
    progress_of_several,
)


def add_to(commands: Any) -> None:
    """Add the command to the parser's."""
    parser = commands.add_parser("baselines", help="a random policy, CEM, DQN and PPO on one environment")
    parser.add_argument("env", help="an id, as `rlref envs` lists them, or package.module:make_env")
    parser.add_argument("--total-timesteps", type=int, default=500_000, help="of one seed (default: 500000)")
    parser.add_argument("--num-seeds", type=int, default=8, help="of every agent (default: 8)")
    parser.add_argument("--seed", type=int, default=0, help="the first seed's id (default: 0)")
    parser.add_argument(
        "--env-params", nargs="+", default=[], metavar="NAME=VALUE", help="parameters of the environment"
    )
    parser.add_argument("--run-dir", type=Path, help="folder of the runs (default: a new one under runs/)")
    parser.add_argument("--memory-gb", type=float, help="memory to train in (default: 80 %% of what is free)")
    parser.add_argument("--json", action="store_true", help="print JSON, and nothing else")
    parser.set_defaults(call=run)


def run(options: argparse.Namespace) -> int:
    """`rlref baselines ENV`."""
    from rlref.envs.ids import make_env
    from rlref.envs.params import with_params
    from rlref.reports.tables import comparison_to_json
    from rlref.runs import files
    from rlref.runs.folder import new_folder
    from rlref.search import baselines

    _, params = make_env(options.env)
    folder = options.run_dir or new_folder("baselines", options.env)
    with progress_of_several(options.json, folder) as display:
        found = baselines.baselines(
            options.env,
            total_timesteps=options.total_timesteps,
            num_seeds=options.num_seeds,
            seed=options.seed,
            env_params=with_params(params, options.env_params),
            folder=folder,
            memory_gb=options.memory_gb,
            display=display,
        )
    if options.json:
        value = {"folder": str(folder), "unfit": found.unfit, "verdict": found.verdict}
        print(files.json_text(value | {"comparison": comparison_to_json(found.comparison)}))
        return 0
    console = plain_console()
    print_tables(console, [baselines.table(found)])
    print_warnings(console, found.comparison.warnings)
    for name, why in found.unfit.items():
        console.print(f"{name} cannot be trained here: {why}")
    console.print(found.verdict, style="bold")
    console.print(f"written to {folder}")
    return 0
