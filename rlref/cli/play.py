"""`rlref play RUN --seed N`: what a trained seed does, greedy and sampled."""

import argparse
from pathlib import Path
from typing import Any

from rlref.errors import UsageError


def add_to(commands: Any) -> None:
    """Add the command to the parser's."""
    parser = commands.add_parser("play", help="play whole episodes with a trained seed, greedy and sampled")
    what = "the run's folder, or a file that `rlref export` wrote"
    parser.add_argument("run", type=Path, help=what)
    parser.add_argument("--seed", type=int, help="which seed (default: the first)")
    parser.add_argument("--setting", type=int, default=0, help="which setting, of a sweep (default: 0)")
    parser.add_argument("--json", action="store_true", help="print JSON, and nothing else")
    parser.add_argument("--episodes", type=int, default=100, help="how many (default: 100)")
    parser.add_argument("--episode-seed", type=int, default=0, help="which random numbers they meet (default: 0)")
    parser.add_argument("--gif", type=Path, help="draw the first greedy episode to this file")
    parser.add_argument("--html", type=Path, help="write it as a page that can be turned, of brax's environments")
    parser.add_argument("--agent", help="of an exported file: your own agent's file")
    parser.set_defaults(call=run)


def run(options: argparse.Namespace) -> int:
    """`rlref play RUN`."""
    from rlref.runs import files, trained

    if options.episodes < 1:
        raise UsageError(f"--episodes is {options.episodes}; it must be at least 1")
    if options.gif is not None and options.gif.suffix.lower() != ".gif":
        raise UsageError(f"--gif is {options.gif}; it must end in .gif")
    read = trained.of_file if options.run.is_file() else trained.of_folder
    one = read(options.run, options.agent)
    seed = one.job.seeds[0] if options.seed is None else options.seed
    row = one.row(seed, options.setting)
    played = one.play(row, options.episodes, options.episode_seed)
    if options.gif is not None:
        one.draw(row, options.episode_seed, options.gif)
    if options.html is not None:
        one.page(row, options.episode_seed, options.html)
    if options.json:
        print(files.json_text({how: {"returns": a.tolist(), "lengths": b.tolist()} for how, (a, b) in played.items()}))
        return 0
    from rich.console import Console
    from rich.table import Table

    table = Table("", "mean return", "std", "min", "max", "mean length", box=None)
    for how, (total, length) in played.items():
        numbers = (total.mean(), total.std(), total.min(), total.max(), length.mean())
        table.add_row(how, *(f"{x:.4g}" for x in numbers))
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"{one.job.name} on {one.job.config.env_id}, seed {seed}: {options.episodes} episodes")
    console.print(table)
    for path in (options.gif, options.html):
        if path is not None:
            console.print(f"drawn to {path}")
    return 0
