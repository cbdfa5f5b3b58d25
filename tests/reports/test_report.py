"""The report: what is in the page, that it holds together, and that nothing in a run breaks it."""

import contextlib
import html
import itertools
import os
import re
import subprocess
import sys
import types
from html.parser import HTMLParser
from pathlib import Path

import jax
import numpy as np
import pytest
from healthy import healthy
from toy_envs import Clock, ClockParams

from rlref import cem, ppo, stats
from rlref.errors import UsageError
from rlref.health import findings
from rlref.health.checks import CHECKS
from rlref.health.engine import Diagnosis
from rlref.health.series import Series, UnknownError
from rlref.reports import compare, plots, visits
from rlref.reports.captions import distinct, number, scores_in_words
from rlref.reports.card import card
from rlref.reports.curve_statistics import POINTS, drawn_updates, evenly, extremes, interval_along, iqm_along
from rlref.reports.facts import provenance_html, status_of, times_html
from rlref.reports.figure_data import Group, Mark
from rlref.reports.figure_parts import MARK, VARIABLES, canvas, draw_marks
from rlref.reports.markup import GENERATOR
from rlref.reports.methods import Method
from rlref.reports.report import write, write_comparison
from rlref.reports.run_page import groups_of, page_of_run
from rlref.reports.svg import inline
from rlref.reports.verdicts import metric_of, plot_key
from rlref.reports.visits import MAP_EPISODES, played, visits_of
from rlref.runs import files
from rlref.runs.job import Job
from rlref.runs.leaves import named_leaves
from rlref.runs.run import Run, summarise
from rlref.runs.trained import Trained

VOID = ("meta", "br")


FEW = ("env_steps", "return", "kl", "target", "nonfinite", "mean_policy_return")  # what most tests draw


def few(kind="ppo"):
    return {name: x for name, x in healthy(kind)[0].items() if name.startswith(FEW)}


def made(metrics=None, kind="ppo", **changed):
    """A healthy run of 8 seeds and 100 updates with few metrics, some of them other `metrics`."""
    ours, config = few(kind), healthy(kind)[1]
    ours |= {name: np.float32(x) for name, x in (metrics or {}).items()}
    seeds, updates = next(iter(ours.values())).shape[-2:]
    run = Run(kind, dict(config), list(range(seeds)), ours, {}, num_updates=updates)
    for name, x in changed.items():
        setattr(run, name, x)
    run.summary = summarise(run) | {"status": "finished"} | run.summary
    return run


def written(run, tmp_path):
    return write(run, tmp_path / "report.html").read_text()


class Page(HTMLParser):
    """A page's elements: raises where tags do not match, ids are not unique, or something is loaded from elsewhere."""

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.links, self.labels, self.words = [], [], [], [], ""
        self.feed(text)
        assert not self.open
        assert len(self.ids) == len(set(self.ids))
        assert set(self.links) <= set(self.ids)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        assert tag not in ("script", "link", "iframe", "object")
        assert "src" not in attributes
        self.ids += [attributes["id"]] if "id" in attributes else []
        self.labels += [attributes["aria-label"]] if "aria-label" in attributes else []
        if "href" in attributes and tag != "image":
            assert attributes["href"].startswith("#")
            self.links.append(attributes["href"][1:])
        if "href" in attributes and tag == "image":
            assert attributes["href"].startswith("data:image/png;base64,")
        self.open += [tag] if tag not in VOID else []

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words += data if self.open[-1:] != ["style"] else ""


@pytest.mark.parametrize("kind", ["ppo", "dqn", "cem"])
def test_page_of_a_healthy_run_holds_together_and_loads_nothing(kind, tmp_path):
    run = made(healthy(kind)[0], kind)
    text = written(run, tmp_path)
    page = Page(text)
    assert "http" not in text
    assert not set(re.findall("#[0-9a-f]{6}", text[text.index("</style>") :])) & set(VARIABLES)
    assert "Healthy." in page.words
    score = f"plot-{run.score}"
    assert {score, "final-scores", "plot-entropy", "spread-return", "settings"} <= set(page.ids)
    assert all(re.search(r"\d|constant|All", label) for label in page.labels)
    rises = next(label for label in page.labels if label.startswith(f"IQM of {run.score}"))
    first, final = run.metrics[run.score][0, [0, -1]]
    assert f"rises from {first:.4g} at" in rises
    assert f"seeds end between {final:.4g} and {final:.4g}" in rises


def test_the_same_run_gives_the_same_bytes(tmp_path):
    assert written(made(), tmp_path) == written(made(), tmp_path)


@pytest.mark.slow
def test_another_process_whose_sets_are_in_another_order_gives_the_same_bytes(tmp_path):
    code = (
        "import sys, test_report; print(test_report.written(test_report.made(), test_report.Path(sys.argv[1])), end='')"
    )
    path = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[1])])
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], env=os.environ | {"PYTHONHASHSEED": "1", "PYTHONPATH": path},
        capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    assert done.stdout == written(made(), tmp_path)


def test_words_of_the_user_are_escaped(tmp_path):
    evil = '<script>alert("&")</script>'
    run = made({f"{evil}_own": healthy("ppo")[0]["kl"] * np.arange(100)}, path=tmp_path, agent=evil)
    run.config |= {"env_id": evil, evil: evil}
    about = {"config": {}, "env_params_values": {}, "note": evil, "command": [evil]}
    (tmp_path / "source").mkdir()
    files.write_json(tmp_path / "config.json", about)
    files.write_json(tmp_path / "source" / "config.json", about)
    files.write_json(tmp_path / "environment.json", {"versions": {evil: evil}, "devices": [evil]})
    page = Page(write(run).read_text())
    assert page.words.count(evil) >= 8  # title, heading, note, metric and its axis, setting, command, versions, devices
    assert f"IQM of {evil}_own" in " ".join(page.labels)


def test_a_finding_is_told_and_its_onset_is_marked_in_its_plot(tmp_path):
    kl = np.full((8, 100), 0.005)
    kl[3, 40:] = 0.5
    run = made({"kl": kl})
    page = Page(written(run, tmp_path))
    finding = run.diagnose().findings[0]
    assert finding.check == "kl_high"
    for told in ("▲ WARN", finding.title, finding.meaning, finding.tries, finding.source, "1 of 8 seeds (3)"):
        assert told in page.words
    told = [finding, *finding.follows]
    assert page.links.count("plot-kl") == sum(plot_key(f, run) == ("plot", "kl") for f in told)
    assert f"1 {finding.title}, update 40" in " ".join(page.words.split())


def test_a_mark_is_at_the_environment_steps_of_its_update():
    group = Group("a", made().metrics, list(range(8)))
    picture = plots.curve("kl", [group], [Mark("1", 40, "KL high")])
    marked = [line for line in picture.figure.axes[0].lines if line.get_color() == MARK]
    assert [set(line.get_xdata()) for line in marked] == [{512 * 41}]


def test_every_check_is_marked_in_a_figure_of_what_it_reads():
    looked = set()
    for check in CHECKS.values():
        for kind in check.kinds:
            metrics, config = healthy(kind)
            series = Series(metrics, config | {"gamma": 1.0}, 100, True)
            with np.errstate(all="ignore"), contextlib.suppress(UnknownError):
                check.measure(series)
                looked.add(check.name)
                finding = findings.Finding(check.name, "WARN", "", "", "", "", what=check.what)
                name = metric_of(finding, metrics, made(kind=kind).score)
                figure = {name, *(f"{name.rpartition('_')[0]}_{part}" for part in plots.PARTS)}
                assert figure & series.read, (check.name, kind)
    assert len(looked) > 0.8 * len(CHECKS)


def test_iqm_and_interval_are_those_of_stats():
    x = np.random.default_rng(1).normal(size=(13, 6))
    x[:3, 1], x[:, 2], x[1:, 3] = np.nan, np.nan, np.nan
    low, high = interval_along(x)
    np.testing.assert_allclose(iqm_along(x), [stats.iqm(column) for column in x.T])
    for i, column in enumerate(x.T):
        wanted = stats.iqm_interval(column)
        np.testing.assert_allclose((low[i], high[i]), wanted, atol=0.15)


def test_thin_lines_go_through_every_extreme_and_keep_gaps():
    x = np.random.default_rng(2).normal(size=(3, 1000))
    x[1, 400:500] = np.nan
    drawn = np.take_along_axis(x, extremes(x), axis=1)
    np.testing.assert_array_equal(np.nanmax(drawn, axis=1), np.nanmax(x, axis=1))
    np.testing.assert_array_equal(np.nanmin(drawn, axis=1), np.nanmin(x, axis=1))
    assert np.isnan(drawn[1, 80:100]).all()
    assert np.isfinite(np.delete(drawn[1], range(80, 100))).all()
    assert (np.diff(extremes(x), axis=1) >= 0).all()


def test_a_spike_between_the_drawn_updates_is_seen():
    x = np.zeros((3, 1000))
    x[1, 503] = 9.0  # the IQM does not see it, nor is it at one of the updates at which that is drawn
    group = Group("a", {"env_steps": np.tile(np.arange(1000.0), (3, 1)), "kl": x}, [0, 1, 2])
    thin, thick = plots.curve("kl", [group]).figure.axes[0].lines
    assert thin.get_xdata()[np.nanargmax(thin.get_ydata())] == 503
    assert np.nanmax(thin.get_ydata()) == 9
    assert len(thick.get_xdata()) == POINTS


def test_an_evaluation_is_drawn_where_it_was_made():
    x = np.full((2, 100), np.nan)
    x[:, 9::10] = 1.0
    assert drawn_updates(x).tolist() == list(range(9, 100, 10))
    assert len(drawn_updates(np.ones((2, 1000)))) == POINTS


def cut(metrics, seeds=8, updates=100):
    return {name: x[:seeds, :updates] for name, x in metrics.items()}


ODD = {
    "one seed": lambda m: cut(m, seeds=1),
    "one update": lambda m: cut(m, updates=1),
    "one of both": lambda m: cut(m, 1, 1),
    "all undefined": lambda m: {name: x * np.nan for name, x in m.items()},
    "a metric undefined": lambda m: m | {"kl": m["kl"] * np.nan, "target_mean": m["kl"] * np.nan},
    "infinite": lambda m: m | {name: np.where(np.arange(100) > 50, -np.inf, m[name]) for name in ("kl", "return_mean")},
    "huge": lambda m: m | {"kl": m["kl"] * np.float32(-1e38), "target_max": m["target_max"] * 1e300},
    "no returns": lambda m: {name: x for name, x in m.items() if not name.startswith("return")},
    "no steps": lambda m: {name: x for name, x in m.items() if name != "env_steps"},
    "its own alone": lambda m: {"env_steps": m["env_steps"], "my $metric_": m["kl"] * np.arange(100)},
    "rows never begun": lambda m: {name: np.where(np.arange(8)[:, None] > 4, np.nan, x) for name, x in m.items()},
}


@pytest.mark.parametrize("case", ODD)
def test_odd_runs_give_a_page_without_a_warning(case, tmp_path):
    metrics = ODD[case]({name: np.float64(x) for name, x in few().items()})
    run = made()
    run.metrics, run.num_updates, run.seeds = metrics, 976, run.seeds[: len(next(iter(metrics.values())))]
    page = Page(written(run, tmp_path))
    assert f"{next(iter(metrics.values())).shape[1]} of 976" in page.words
    if case in ("all undefined", "no returns"):
        assert "IQM undefined" in page.words
    if case == "rows never begun":
        assert "3 of 8 seeds undefined" in page.words
        assert "undefined: seeds 5-7." in page.words
    if case == "a metric undefined":
        assert "Undefined at every update: target, kl." in page.words or "kl, target." in page.words


def test_batched_settings_have_a_curve_and_a_line_each(tmp_path):
    many = {name: np.stack([x, 2 * x] if name == "return_mean" else [x, x]) for name, x in few().items()}
    run = made(many, batched=["learning_rate"])
    run.config["learning_rate"] = [1e-4, 1e-3]
    run.summary = summarise(run)
    page = Page(written(run, tmp_path))
    assert "learning_rate 0.0001: IQM of return_mean rises from 20.8 at 512 to 100 at" in " ".join(page.labels)
    assert "learning_rate 0.001: IQM of return_mean rises from 41.6 at 512 to 200 at" in " ".join(page.labels)
    assert "200 [200, 200]" in page.words


def batched(scores):
    """A run whose settings end at `scores`, in each of its seeds."""
    run = made({name: np.stack([x] * len(scores)) for name, x in few().items()}, batched=["learning_rate"])
    run.metrics["return_mean"] = np.broadcast_to(np.float32(scores)[:, None, None], (len(scores), 8, 100))
    run.config["learning_rate"] = np.geomspace(1e-5, 1, len(scores)).tolist()
    return run


def test_settings_without_a_score_are_not_chosen_to_be_drawn():
    run = batched([np.nan, *range(18), np.nan])
    groups, said = groups_of(run)
    assert [g.scores[0] for g in groups] == [0, 3, 6, 8, 11, 14, 17]
    assert "7 of 20 settings, evenly from the worst to the best; 2 without a score are left out." in said
    assert evenly(np.array([np.nan, 1.0, np.inf, 0.0]), 2).tolist() == [1, 3]
    assert evenly(np.full(9, np.nan), 2).tolist() == [0, 8]


def test_one_setting_of_several_is_played_as_that_one(tmp_path, monkeypatch):
    whole = batched([1, 2, 3])
    whole.path = tmp_path
    one = whole.of_setting(2)
    space = types.SimpleNamespace(shape=(2,))
    job = types.SimpleNamespace(env=types.SimpleNamespace(observation_space=lambda _: space), env_params=None)
    one.trained = types.SimpleNamespace(row=lambda seed, setting: (seed, setting))
    rows = []
    monkeypatch.setattr(visits, "played", lambda _, row, seed: rows.append(row) or (np.ones((3, 2)), None, ""))
    assert "setting 2, seed 3, the median one" in visits_of(one, job)[0]
    assert rows == [(3, 2)]
    one.trained = None
    out = write(one)
    assert out == tmp_path / "report-setting-2.html"
    page = Page(out.read_text())
    assert f"setting 2 of the run in {tmp_path}" in page.words


def finding_of(what):
    return findings.Finding("mine", "WARN", "", "", "", "", what=what)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("target_step", ("plot", "target_step")),
        ("target_max", ("spread", "target")),
        ("target_mean", ("spread", "target")),
        ("return_mean", ("plot", "return_mean")),
    ],
)
def test_a_finding_is_marked_where_its_metric_is_drawn(name, key):
    run = made({"target_step": healthy("ppo")[0]["kl"]})
    assert plot_key(finding_of(name), run) == key


def test_figures_of_metrics_with_names_like_others_are_told_apart(tmp_path):
    x = healthy("ppo")[0]["kl"] * np.arange(100)
    names = ("scores", "loss", "loss_mean", "loss_std", "loss_min", "loss_max", "final-scores", "spread-loss")
    run = made(dict.fromkeys(names, x))
    _, body, pictures = page_of_run(run)
    assert {"plot-loss", "spread-loss", "plot-scores", "final-scores"} <= set(Page(body).ids)
    assert len({p.name for p in pictures}) == len(pictures)


def test_folders_whose_names_are_no_unicode(tmp_path):
    evil = "a\udcff"
    out = write(made(agent=evil), tmp_path / "report.html")
    assert "a\\udcff" in out.read_text()
    methods = [Method(label, m.runs) for label, m in zip((evil, "b\udcff"), two(), strict=True)]
    out = write_comparison(methods, tmp_path / "both.html", tmp_path / "pictures")
    assert ">a\\udcff</text>" in out.read_text()


def test_the_page_is_written_before_its_pictures(tmp_path):
    (tmp_path / "pictures").write_text("no folder")
    with pytest.raises(UsageError, match="pictures cannot be written"):
        write(made(), tmp_path / "report.html", tmp_path / "pictures")
    assert (tmp_path / "report.html").exists()


def scored(scores, label="a", metric="return_mean"):
    return Group(label, {metric: np.float64(scores)[:, None]}, list(range(len(scores))))


@pytest.mark.parametrize(
    ("scores", "told"),
    [
        ([500, 492.25, 500], "Worst seed 1 (492.2), best 500."),
        ([4, 3, 1, 2], "Worst seed 2 (1), seed 3 (2), seed 1 (3), best 4."),
        ([5, 5], "All 2 seeds at 5."),
        ([np.nan, 5], "Seed 1 (5); undefined: seeds 0."),
    ],
)
def test_worst_seeds_are_below_the_best(scores, told):
    assert scores_in_words(scored(scores), "") == told


def test_zero_has_no_sign():
    assert number(-0.0) == "0"


@pytest.mark.parametrize("wanted", [["dqn"], ["cem"], ["ppo"], ["ppo", "cem"], ["dqn", "cem"], ["ppo", "dqn", "cem"]])
def test_a_metric_is_defined_for_the_agents_that_are_drawn(wanted):
    groups = [Group(kind, healthy(kind)[0], list(range(8))) for kind in wanted]
    words = plots.curve("entropy", groups).caption
    assert [kind for kind in ("dqn", "cem") if f"; {kind.upper()}: " in words] == [k for k in wanted if k != "ppo"]


def test_final_scores_are_named_by_what_they_are():
    same = plots.final_scores([scored([1, 2]), scored([3, 4], "b")])
    assert same.figure.axes[0].get_xlabel() == "return_mean"
    differ = plots.final_scores([scored([1, 2]), scored([3, 4], "b", "mean_policy_return")])
    assert differ.figure.axes[0].get_xlabel() == "score"
    assert "b (mean_policy_return): worst seed 0 (3), best 4." in differ.caption


def test_labels_of_final_scores_are_whole_or_told_apart_and_do_not_overlap():
    names = ["ppo-cartpole-v1", "ppo-acrobot-v1", *(f"a-long-name-of-a-sweep-rate-{i}-and-its-end" for i in range(8))]
    axes = plots.final_scores([scored([1, 2], name) for name in names]).figure.axes[0]
    labels = axes.get_yticklabels()
    assert len({label.get_text() for label in labels}) == len(names)
    boxes = [label.get_window_extent() for label in labels]
    assert all(high.y0 > low.y1 for high, low in itertools.pairwise(boxes))
    assert all(box.x0 >= 0 for box in boxes)
    assert distinct(names[:3], 24) == [*names[:2], "a-long-name…and-its-end"]


def test_marks_at_one_place_are_counted():
    axes = canvas()[1]
    axes.set_xlim(0, 100)
    at = {10: ["1", "1.4", "1.5", "1.6"], 90: ["2", "2.1", "2.2", "2.3", "2.4"]}
    marks = [Mark(n, update, "") for update, numbers in at.items() for n in numbers]
    draw_marks(axes, marks, np.arange(100.0))
    assert [text.get_text() for text in axes.texts] == ["1, 1.4, 1.5, 1.6", "2 and 4 more"]


def test_an_interrupted_run_and_its_settings_say_so():
    run = made(summary={"status": "interrupted", "stopped_by": "SIGINT"})
    assert status_of(run) == "interrupted by SIGINT"
    run.summary.pop("stopped_by")  # as of one of several settings
    assert status_of(run) == "interrupted"
    run.summary |= {"status": "finished", "stopped_by": "SIGINT"}
    assert status_of(run) == "finished"


def test_time_of_a_resumed_run_is_said_to_be_of_its_last_part(tmp_path):
    run = made(summary={"seconds": {"training": 3.0}}, path=tmp_path)
    about = {"config": {}, "env_params_values": {}}
    (tmp_path / "source").mkdir()
    files.write_json(tmp_path / "config.json", about)
    files.write_json(tmp_path / "source" / "config.json", about)
    files.write_json(tmp_path / "environment.json", {})
    assert "3.0 s in all" in provenance_html(run)
    files.write_json(tmp_path / "environment.json", {"resumed": [{"date": "today"}]})
    assert "3.0 s since it was last resumed" in provenance_html(run)


def test_figures_are_written_as_files(tmp_path):
    write(made(), tmp_path / "a.html", tmp_path / "pictures")
    files = {file.name for file in (tmp_path / "pictures").iterdir()}
    assert {"plot-return_mean.png", "plot-return_mean.svg", "final-scores.png"} <= files
    assert (tmp_path / "pictures" / "plot-kl.svg").read_text().startswith("<?xml")
    assert "var(" not in (tmp_path / "pictures" / "plot-kl.svg").read_text()


def test_only_a_report_is_overwritten(tmp_path):
    out = tmp_path / "report.html"
    write(made(), out)
    write(made(), out)
    out.write_text("<html>thesis</html>")
    with pytest.raises(UsageError, match="no report"):
        write(made(), out)
    assert out.read_text() == "<html>thesis</html>"
    out.write_text(f"<!doctype html><html><head><title>thesis</title>{GENERATOR}")
    with pytest.raises(UsageError, match="no report"):
        write(made(), out)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="no regular file"):
        write(made(), tmp_path / "pipe")
    with pytest.raises(UsageError, match="is a folder"):
        write(made(), tmp_path)
    with pytest.raises(UsageError, match="no folder"):
        write(made(), tmp_path / "missing" / "report.html")
    with pytest.raises(UsageError, match="not kept"):
        write(made())


def test_settings_that_are_not_the_defaults_come_first(tmp_path):
    text = written(with_policy(ppo, learning_rate=0.5), tmp_path)
    rows = re.findall(r"<td>(.*?)</td><td>(.*?)</td><td>(.*?)</td>", text[text.index('id="settings"') :])
    bold = [[re.sub("<.*?>", "", x) for x in row] for row in rows if row[0].startswith("<strong>")]
    assert ["learning_rate", "0.5", "0.00025"] in bold
    assert rows[len(bold)][0] == "env_id"
    assert "gamma" not in {row[0] for row in bold}


def with_policy(module, **settings):
    """A run of one seed whose policy is an untrained one, on an environment with two observations."""
    env, env_params = Clock(), ClockParams(max_steps_in_episode=20, terminate_at=7, rewards=np.zeros(64, np.float32))
    job = Job(module, module.Config(**settings), env, env_params, [4], 0, 1, True)
    leaves = named_leaves(job.agent.init(jax.random.key(4)))
    seeds = Trained(job, {name: np.asarray(leaves[name])[None] for name in job.policy_leaves})
    kind = module.__name__.rpartition(".")[2]
    metrics = {name: x[:1] for name, x in few(kind).items()}
    run = made(kind=kind, trained=seeds, config=job.settings)
    run.metrics, run.seeds = metrics, [4]
    return run


@pytest.mark.slow
def test_maps_show_where_the_policy_goes_and_its_values(tmp_path):
    run = with_policy(ppo)
    obs, value, name = played(run.trained, 0, 4)
    wanted = np.tile([[0.1 * t, 1 - 0.05 * t] for t in range(7)], (MAP_EPISODES, 1))  # it ends after step 7
    np.testing.assert_allclose(obs, wanted, atol=1e-6)
    agent = run.trained.job.agent
    state = agent.init(jax.random.key(4))
    np.testing.assert_allclose(value[:7], [agent.value(state, np.float32(x)) for x in wanted[:7]], atol=1e-5)
    assert name == "V"
    page = Page(written(run, tmp_path))
    assert {"map-visits-0-1", "map-value-0-1"} <= set(page.ids)
    assert any("observation 0 from 0 to 0.6" in label for label in page.labels)


def test_maps_of_an_agent_without_values_are_of_visits_alone(tmp_path):
    page = Page(written(with_policy(cem), tmp_path))
    assert "map-visits-0-1" in page.ids
    assert "map-value-0-1" not in page.ids


@pytest.mark.parametrize(("dims", "discrete", "figures"), [(1, True, 1), (1, False, 1), (2, False, 2), (3, False, 6)])
def test_maps_of_few_dimensions(dims, discrete, figures):
    obs = np.random.default_rng(0).integers(0, 4, (50, dims)).astype(float)
    visits = plots.Visits(obs, obs.sum(axis=1), discrete, "V")
    pictures = plots.maps(visits)
    assert len(pictures) == figures
    for picture in pictures:
        Page(inline(picture))


def test_a_run_that_cannot_be_rebuilt_gets_a_sentence(tmp_path):
    words = Page(written(made(), tmp_path)).words
    assert "Not drawn, as the run cannot be rebuilt: it was not kept in a folder." in words
    assert "What the agent's defaults are is not known here." in words


def test_time_is_shown_by_what_it_was_spent_on():
    run = made(summary={"seconds": {"compiling": 1.0, "training": 3.0}, "compile_seconds": 7.0})
    text = times_html(run)
    assert "training</td><td>3.0 s</td><td>75%<" in text
    assert "7.0" not in text
    assert "compiling</td><td>7.0 s" in times_html(made(summary={"compile_seconds": 7.0, "train_seconds": 1.0}))
    assert "not known" in times_html(made())


def two(**changed):
    better = made({"return_mean": healthy("ppo")[0]["return_mean"] + np.arange(8)[:, None] + 50})
    return [Method("plain", {"A": made(**changed)}), Method("better_", {"A": better})]


def test_several_runs_are_drawn_and_compared(tmp_path):
    methods = two()
    page = Page(write_comparison(methods, tmp_path / "both.html").read_text())
    for sentence in compare.compare(methods).sentences:
        assert sentence in page.words
    assert {"profile-A", "plot-return_mean", "final-scores", "spread-target"} <= set(page.ids)
    labels = " ".join(page.labels)
    assert "plain: IQM of return_mean rises" in labels
    assert "better_: IQM of return_mean rises" in labels


def test_sentences_come_first_and_long_tables_after_the_figures(tmp_path):
    first, second = two()
    first.runs["A"].config["gamma"] = 0.5
    for methods in ([first, second], [first, second, Method("third", second.runs)]):
        text = write_comparison(methods, tmp_path / "all.html").read_text()
        figures = text.index('id="environment-0"')
        assert text.index(compare.compare(methods).sentences[0]) < text.index("<figure") < figures
        assert (text.index("P(better)") < figures) == (len(methods) == 2)
        assert text.index("Settings that differ</h2>") > figures
        # The mean is drawn among the returns.
        assert 'id="spread-return"' not in text


def test_runs_are_told_apart_without_colour():
    groups = [Group(m.label, m.runs["A"].metrics, m.runs["A"].seeds) for m in two()]
    lines = plots.curve("return_mean", groups).figure.axes[0].lines
    assert len({line.get_linestyle() for line in lines}) == 2
    assert [text.get_text() for text in plots.curve("kl", groups).figure.legends[0].texts] == [
        "plain",
        "better_",
    ]


def test_labels_may_hold_any_letters(tmp_path):
    first, second = two()
    named = [Method(r"実験 $x$ \1", first.runs), Method("_ü", second.runs)]
    text = write_comparison(named, tmp_path / "both.html").read_text()
    assert text.count(r">実験 $x$ \1</text>") == text.count(">_ü</text>") > 3


def test_runs_that_cannot_be_compared_are_drawn_and_told_why(tmp_path):
    first, second = two()
    apart = [first, Method("elsewhere", {"B": second.runs["A"]})]
    page = Page(write_comparison(apart, tmp_path / "both.html").read_text())
    assert "They are not compared: plain has no run on B" in page.words
    assert {"environment-0-plot-return_mean", "environment-1-plot-return_mean"} <= set(page.ids)


def test_a_run_with_batched_settings_is_compared_by_one_of_them(tmp_path):
    methods = two()
    methods[0].runs["A"].batched = ["learning_rate"]
    with pytest.raises(UsageError, match="#0"):
        write_comparison(methods, tmp_path / "both.html")


def test_a_card_says_what_the_run_is_its_verdict_and_its_score():
    shown = html.unescape(card(made()))
    assert "<b>PPO on CartPole-v1</b>: finished, 8 seeds, 100 of 100 updates" in shown
    assert "✔ OK</span> Healthy." in shown
    assert "return_mean: IQM 100 [100, 100]" in shown
    assert "IQM of return_mean rises from 20.8 at 512 to 100 at 51,200 steps" in shown
    assert shown.count("data:image/png;base64,") == 1


def test_a_card_has_the_leading_findings_with_what_to_try():
    kl = np.full((8, 100), 0.005)
    kl[3, 40:] = 0.5
    finding = made({"kl": kl}).diagnose().findings[0]
    shown = html.unescape(card(made({"kl": kl})))
    assert "▲ WARN</span> KL high. The policy moves so fast" in shown
    assert f"<li>{findings.sentence(finding)}. Try: {finding.tries}.</li>" in shown


def test_a_card_tells_the_first_three_findings_and_how_many_more_there_are():
    run = made()
    kl_high = CHECKS["kl_high"]
    one = findings.Finding(kl_high.name, "WARN", kl_high.title, kl_high.meaning, "", "", onset=1)
    run.diagnosis = Diagnosis([one] * 5, ["kl_high"], {})
    assert card(run).count("<li>WARN: KL high (update 1).</li>") == 3
    assert "<p>2 more: run.diagnose().findings</p>" in card(run)


@pytest.mark.parametrize("case", ODD)
def test_odd_runs_have_a_card(case):
    run = made()
    run.metrics = ODD[case]({name: np.float64(x) for name, x in few().items()})
    run.seeds = run.seeds[: len(next(iter(run.metrics.values())))]
    shown = html.unescape(card(run))
    undefined = case in ("all undefined", "no returns", "its own alone")
    assert ("No return_mean is defined: there is no curve." in shown) == undefined
    assert ("<img" in shown) != undefined


def test_a_card_of_batched_settings_has_a_curve_and_a_line_each():
    shown = html.unescape(card(batched([5.0, 7.0])))
    assert "2 settings over learning_rate, 8 seeds" in shown
    assert "learning_rate 1: IQM of return_mean" in shown
    assert "<td>5 [5, 5]</td>" in shown
    assert "7 of 20 settings" in card(batched(range(20)))


def test_words_of_the_user_are_escaped_in_a_card():
    evil = '<script>alert("&")</script>'
    run = made(agent=evil, summary={"status": evil})
    run.config["env_id"] = evil
    assert "<script>" not in card(run)
    assert html.unescape(card(run)).count(evil) == 3


def test_a_card_of_many_noisy_seeds_is_small():
    noise = np.random.default_rng(0).normal(size=(512, 5000)).cumsum(axis=1)
    run = Run("ppo", {}, list(range(512)), {"env_steps": noise * 0 + np.arange(5000), "return_mean": noise}, {})
    assert 10_000 < len(card(run)) < 100_000


def test_a_notebook_is_shown_the_card_or_why_there_is_none():
    run = made()
    assert run._repr_html_() == card(run)
    run.metrics, run.agent = {}, "<b>"
    assert run._repr_html_().startswith(
        "<p>&lt;Run: &lt;b&gt; on CartPole-v1, 8 seeds, 0 updates, finished&gt; cannot "
    )


def test_a_run_is_a_line_in_a_terminal():
    assert repr(made()) == "<Run: ppo on CartPole-v1, 8 seeds, 100 updates, finished>"
    assert repr(batched([1.0, 2.0])) == "<Run: ppo on CartPole-v1, 2 settings, 8 seeds, 100 updates, finished>"
    assert repr(Run("mine", {}, [0], {}, {})) == "<Run: mine on an environment, 1 seed, 0 updates, unknown>"


@pytest.mark.parametrize(("spread", "told"), [(1.0, True), (50.0, False)])
def test_explained_variance_that_says_nothing_is_told_to(spread, told):
    at_end = {"explained_variance": -8.0, "target_std": spread, "target_mean": 100.0, "value_bias": 4.0}
    _, _, pictures = page_of_run(made({name: np.full((8, 100), x) for name, x in at_end.items()}))
    caption = next(x.caption for x in pictures if x.title == "explained_variance")
    said = "It says nothing at the end: value error 5 % of the return (targets hardly vary)."
    assert caption.endswith(said) == told
