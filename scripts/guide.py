"""What is measured in rlref/GUIDE.md, and rlref/guide.ipynb: `python scripts/guide.py [PART ...]`.

    lines      the numbers of the lines that the page quotes: seconds; fails where ppo.py has such a line no more
    runs       PPO on CartPole-v1 as it is, with a planted bug, with a learning rate 100 x too high: three minutes;
               pictures to scripts/results/guide-*.png, what `rlref diagnose` and `rlref probe` say to the page
    bugs       each bug of BUGS trained for 200,000 steps and diagnosed: two minutes; a table on the page, beside what
               `rlref probe` says of it, by `python scripts/mutation_score.py`
    notebook   execute rlref/guide.ipynb in place: about a minute. Takes nbclient and ipykernel, of the group `test`

Without a part, all of them. `--out FILE` writes the executed notebook to FILE, and leaves rlref/guide.ipynb as it is.
"""

import argparse
import hashlib
import io
import json
import os
import re
import tempfile
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import page
from mutants import PPO, plant

if TYPE_CHECKING:
    import numpy as np

    from rlref.runs.run import Run

ROOT = Path(__file__).resolve().parent.parent
PAGE, NOTEBOOK, AGENT = (ROOT / "rlref" / name for name in ("GUIDE.md", "guide.ipynb", "ppo.py"))
RESULTS = ROOT / "scripts" / "results"
PARTS = ("lines", "runs", "bugs", "notebook")

PICTURES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {  # name -> runs, metrics
    "policy": (("right",), ("return_mean", "entropy", "kl")),
    "critic": (("right",), ("value_mean", "explained_variance", "advantage_std")),
    "steps": (("right",), ("learning_rate", "grad_norm", "update_ratio")),
    "truncation": (("right", "truncation as death"), ("return_mean", "value_mean", "explained_variance")),
    "learning-rate": (("right", "learning rate x 100"), ("return_mean", "entropy", "update_ratio")),
}
MUTANTS = (  # in the order of ppo.py, after two of data
    "bootstrap from the reset observation",
    "all epochs in the same order",
    "log-prob of another sample",
    "no bootstrap at truncation",
    "bootstrap through termination",
    "trace not cut at the end of an episode",
    "gamma missing",
    "targets without values",
    "observations and advantages shuffled apart",
    "learning-rate schedule inverted",
    "gradient clip removed",
    "advantage sign",
    "old log-prob recomputed",
    "max for min in the clip",
    "advantage normalisation removed",
    "(N, 1) - (N) in the value loss",
    "entropy sign",
)
BUGS = {one.name: (one.old, one.new) for name in MUTANTS for one in PPO if one.name == name}


def place_of(quoted: str, source: Sequence[str]) -> tuple[int, int]:
    """First and last line, from 1, of the one place in `source` that reads like `quoted`, whatever its indentation.

    Raises ValueError unless there is exactly one.
    """
    count = len(quoted.splitlines())
    starts = range(len(source) - count + 1)
    found = [i + 1 for i in starts if textwrap.dedent("\n".join(source[i : i + count])) == quoted]
    if len(found) != 1:
        raise ValueError(f"ppo.py has {len(found)} places, not one, that read: {quoted}")
    return found[0], found[0] + count - 1


def with_line_numbers(text: str, source: Sequence[str]) -> str:
    """`text` with the numbers of the lines that it quotes, and of the functions and classes that it names.

    A quotation is a link to ppo.py with a block of Python under it; a name is a link on the name itself.
    """

    def quotation(found: re.Match[str]) -> str:
        first, last = place_of(found["quoted"], source)
        several = last > first
        link = f"[`ppo.py`, line{f's {first} to {last}' if several else f' {first}'}]"
        return f"{link}(ppo.py#L{first}{f'-L{last}' * several}){found['between']}{found['quoted']}\n```"

    def name(found: re.Match[str]) -> str:
        (line,) = [i for i, x in enumerate(source, 1) if re.match(rf" *(def|class) {found['name']}\b", x)]
        return f"[`{found['name']}`, line {line}](ppo.py#L{line})"

    text = re.sub(
        r"\[`ppo\.py`, lines? [^\]]*\]\(ppo\.py#[^)]*\)(?P<between>.?\n\n```python\n)(?P<quoted>.*?)\n```",
        quotation,
        text,
        flags=re.DOTALL,
    )
    return re.sub(r"\[`(?P<name>\w+)`, line [^\]]*\]\(ppo\.py#[^)]*\)", name, text)


def train(name: str, folder: Path) -> "Run":
    """One of the page's runs, kept in `folder`."""
    import rlref
    from rlref import ppo

    agent, rate = "ppo", ppo.Config().learning_rate
    if name == "truncation as death":
        agent = str(folder.parent / "my_ppo.py")
        Path(agent).write_text(plant(name, AGENT.read_text(), [BUGS["no bootstrap at truncation"]]))
    if name == "learning rate x 100":
        rate *= 100
    return rlref.train(agent, ppo.Config(learning_rate=rate), num_seeds=8, run_dir=folder, sinks=())


def picture(name: str, runs: "dict[str, Run]") -> str:
    """Draw one of PICTURES to its file; returns it as Markdown, with a table of how several runs end."""
    import numpy as np
    from matplotlib.figure import Figure
    from matplotlib.patheffects import withStroke
    from PIL import Image

    from rlref.reports import plots
    from rlref.reports.curve_statistics import drawn_updates, iqm_along
    from rlref.reports.figure_data import Group
    from rlref.reports.figure_parts import PAPER, colour, label_axes, line, set_y_scale, style

    of, metrics = PICTURES[name]
    groups = [Group(run, runs[run].metrics, runs[run].seeds) for run in of]
    with style():
        figure = Figure((9.6, 2.9), layout="constrained")
        handles: list[Any] = []
        for axes, metric in zip(figure.subplots(1, len(metrics)), metrics, strict=True):
            for i, group in enumerate(groups):
                x = group.values(metric)
                updates = drawn_updates(x)
                plots.thin_lines(axes, group, x, updates)
                axes.lines[-1].set(color=colour(i), alpha=0.4, linewidth=0.6)
                handles += axes.plot(group.mean_steps[updates], iqm_along(x[:, updates]), **line(i, len(updates)))
                handles[-1].set_path_effects([withStroke(linewidth=3, foreground=PAPER)])
            set_y_scale(axes, metric, np.concatenate([group.values(metric).ravel() for group in groups]))
            label_axes(axes, metric, groups[0])
        if len(groups) > 1:
            figure.legend(handles[: len(groups)], of, loc="outside lower center", ncols=len(groups))
        file = io.BytesIO()
        figure.savefig(file, dpi=110, facecolor="white")
    path = RESULTS / f"guide-{name}.png"
    Image.open(file).convert("RGB").quantize(64).save(path, optimize=True)
    shown = f"{', '.join(metrics)} over environment steps: {' and '.join(of)}; every seed thin, the IQM thick"
    drawn = f"![{shown}](../scripts/results/{path.name})\n"
    if len(of) == 1:
        return drawn
    rows = [[f"| `{metric}`", *(at_the_end(group.values(metric)) for group in groups)] for metric in metrics]
    head = f"| at the end, IQM (lowest to highest seed) | {' | '.join(of)} |\n|{'---|' * (1 + len(of))}\n"
    return f"{drawn}\n{head}" + "".join(f"{' | '.join(row)} |\n" for row in rows)


def at_the_end(x: "np.ndarray") -> str:
    """The last update of a metric `[S, U]`."""
    from rlref import stats

    ends = stats.last(x)
    return f"{stats.iqm(ends):.3g} ({ends.min():.3g} to {ends.max():.3g})"


def said_by(command: str, folder: Path) -> str:
    """A command and what it prints, as a block for the page; without findings that are INFO alone."""
    said = re.sub(r"\nINFO .*", "\n[...]", page.printed(command, folder).rstrip(), flags=re.DOTALL)
    return f"```text\n{said}\n```\n"


def runs() -> None:
    """Train the page's runs; draw, diagnose and probe them."""
    from rlref.reports.facts import interval_in_words

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        named = {"right": "right", "truncation as death": "truncation", "learning rate x 100": "rate"}
        trained = {what: train(what, folder / short) for what, short in named.items()}
        for one in PICTURES:
            page.put(PAGE, f"picture {one}", picture(one, trained))
        for short in ("truncation", "rate"):
            page.put(PAGE, f"diagnose {short}", said_by(f"rlref diagnose {short}", folder))
        checks = "--only advantages --only truncation_pair --only truncation_loop"
        page.put(PAGE, "probe truncation", said_by(f"rlref probe ./my_ppo.py {checks}", folder))
        rows = [f"| {what} | {interval_in_words(run.scores)} |" for what, run in trained.items()]
        head = "| run | `return_mean` at the end, IQM over 8 seeds [95 % interval] |\n|---|---|"
        page.put(PAGE, "scores", "\n".join([head, *rows]) + "\n")


def bugs() -> None:
    """Train and diagnose BUGS; a table of what each comes to, beside what probes call it."""
    import rlref
    from rlref import ppo
    from rlref.reports.facts import interval_in_words

    rows = [
        "| bug | `return_mean` after 200,000 steps | `rlref diagnose` | `rlref probe` names |",
        "|---|---|---|---|",
    ]
    probed = json.loads((RESULTS / "mutation_score.json").read_text())
    with tempfile.TemporaryDirectory() as folder:
        for name, edit in {"none": None, **BUGS}.items():
            file = Path(folder) / "my_ppo.py"
            file.write_text(AGENT.read_text() if edit is None else plant(name, AGENT.read_text(), [edit]))
            run = rlref.train(file, ppo.Config(total_timesteps=200_000), num_seeds=8)
            worst = run.diagnose().above_info
            seen = ", ".join(f"{f.severity} `{f.check}`" for f in worst) or "healthy"
            check = "not probed here"  # all checks of a right file take minutes
            if edit:
                failed = re.search(r"^(?:WRONG|DIFFERS) at (\w+)", probed[f"full/ppo/{name}"]["verdict"])
                check = f"`{failed[1]}`" if failed else "none"
            rows.append(f"| {name} | {interval_in_words(run.scores)} | {seen} | {check} |")
            print(rows[-1], flush=True)
    (RESULTS / "guide-bugs.md").write_text("\n".join(rows) + "\n")
    page.put(PAGE, "bugs", "\n".join(rows) + "\n")


def code_digest(notebook: Any) -> str:
    """SHA-256 of the notebook's code: kept with the outputs, it tells whether they are this code's."""
    cells = ("".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code")
    return hashlib.sha256("\n".join(cells).encode()).hexdigest()


def execute(out: Path) -> None:
    """Run all cells of the notebook in an empty folder, and write it with what they print and draw."""
    import nbformat
    from nbclient import NotebookClient

    os.environ["PYTHONPATH"] = str(ROOT)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        resources = {"metadata": {"path": folder}}
        NotebookClient(notebook, timeout=600, kernel_name="python3", resources=resources, record_timing=False).execute()
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook.metadata = {"kernelspec": kernel, "executed": {"code_sha256": code_digest(notebook)}}
    nbformat.write(notebook, out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; default: all")
    parser.add_argument("--out", type=Path, default=NOTEBOOK, help="where the executed notebook goes")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    parts = options.parts or PARTS
    if "runs" in parts:
        runs()
    if "bugs" in parts:
        bugs()
    if "lines" in parts:
        PAGE.write_text(with_line_numbers(PAGE.read_text(), AGENT.read_text().splitlines()))
    if "notebook" in parts:
        execute(options.out)


if __name__ == "__main__":
    main()
