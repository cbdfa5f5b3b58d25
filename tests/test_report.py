"""The report: what is in the page, that it holds together, and that nothing in a run breaks it."""

import contextlib
import re
from html.parser import HTMLParser

import jax
import numpy as np
import pytest
from test_verdicts import healthy
from toy_envs import Clock, ClockParams

from rlref import cem, compare, evaluation, ppo, report, report_figures, runs, stats, verdicts
from rlref.compare import Method
from rlref.errors import UsageError
from rlref.findings import Finding
from rlref.jobs import Job
from rlref.report_figures import Group, Mark
from rlref.runs import Run
from rlref.trained import Trained

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
    run.summary = runs.summarise(run) | {"status": "finished"} | run.summary
    return run


def written(run, tmp_path):
    return report.write(run, tmp_path / "report.html").read_text()


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
    assert not set(re.findall("#[0-9a-f]{6}", text[text.index("</style>") :])) & set(report_figures.VARIABLES)
    assert "Healthy." in page.words
    score = f"plot-{run.score}"
    assert {score, "plot-scores", "plot-entropy", "plot-return", "settings"} <= set(page.ids)
    assert all(re.search(r"\d|constant|All", label) for label in page.labels)
    rises = next(label for label in page.labels if label.startswith(f"IQM of {run.score}"))
    first, final = run.metrics[run.score][0, [0, -1]]
    assert f"rises from {first:.4g} at" in rises
    assert f"seeds end between {final:.4g} and {final:.4g}" in rises


def test_the_same_run_gives_the_same_bytes(tmp_path):
    assert written(made(), tmp_path) == written(made(), tmp_path)


def test_words_of_the_user_are_escaped(tmp_path):
    evil = '<script>alert("&")</script>'
    run = made({f"{evil}_own": healthy("ppo")[0]["kl"] * np.arange(100)}, path=tmp_path, agent=evil)
    run.config |= {"env_id": evil, evil: evil}
    about = {"config": {}, "env_params_values": {}, "note": evil, "command": [evil]}
    (tmp_path / "source").mkdir()
    runs.write_json(tmp_path / "config.json", about)
    runs.write_json(tmp_path / "source" / "config.json", about)
    runs.write_json(tmp_path / "environment.json", {"versions": {evil: evil}, "devices": [evil]})
    page = Page(report.write(run).read_text())
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
    assert page.links.count("plot-kl") == sum(report.plot_key(f, run) == "kl" for f in told)
    assert f"1 {finding.title}, update 40" in " ".join(page.words.split())


def test_a_mark_is_at_the_environment_steps_of_its_update():
    group = Group("a", made().metrics, list(range(8)))
    picture = report_figures.curve("kl", [group], [Mark("1", 40, "KL high")])
    marked = [line for line in picture.figure.axes[0].lines if line.get_color() == report_figures.MARK]
    assert [set(line.get_xdata()) for line in marked] == [{512 * 41}]


def test_every_check_is_marked_in_a_figure_of_what_it_reads():
    looked = set()
    for check in verdicts.CHECKS.values():
        for kind in check.kinds:
            metrics, config = healthy(kind)
            series = verdicts.Series(metrics, config | {"gamma": 1.0}, 100, True)
            with np.errstate(all="ignore"), contextlib.suppress(verdicts.UnknownError):
                check.look(series)
                looked.add(check.name)
                finding = Finding(check.name, "WARN", "", "", "", "", what=check.what)
                name = report.metric_of(finding, metrics, made(kind=kind).score)
                figure = {name, *(f"{name.rpartition('_')[0]}_{part}" for part in report_figures.PARTS)}
                assert figure & series.read, (check.name, kind)
    assert len(looked) > 0.8 * len(verdicts.CHECKS)


def test_iqm_and_interval_are_those_of_stats():
    x = np.random.default_rng(1).normal(size=(13, 6))
    x[:3, 1], x[:, 2], x[1:, 3] = np.nan, np.nan, np.nan
    low, high = report_figures.interval_along(x)
    np.testing.assert_allclose(report_figures.iqm_along(x), [stats.iqm(column) for column in x.T])
    for i, column in enumerate(x.T):
        wanted = stats.iqm_interval(column)
        np.testing.assert_allclose((low[i], high[i]), wanted, atol=0.15)


def test_thin_lines_go_through_every_extreme_and_keep_gaps():
    x = np.random.default_rng(2).normal(size=(3, 1000))
    x[1, 400:500] = np.nan
    drawn = np.take_along_axis(x, report_figures.extremes(x), axis=1)
    np.testing.assert_array_equal(np.nanmax(drawn, axis=1), np.nanmax(x, axis=1))
    np.testing.assert_array_equal(np.nanmin(drawn, axis=1), np.nanmin(x, axis=1))
    assert np.isnan(drawn[1, 80:100]).all()
    assert np.isfinite(np.delete(drawn[1], range(80, 100))).all()
    assert (np.diff(report_figures.extremes(x), axis=1) >= 0).all()


def test_a_spike_between_the_drawn_updates_is_seen():
    x = np.zeros((3, 1000))
    x[1, 503] = 9.0  # the IQM does not see it, nor is it at one of the updates at which that is drawn
    group = Group("a", {"env_steps": np.tile(np.arange(1000.0), (3, 1)), "kl": x}, [0, 1, 2])
    thin, thick = report_figures.curve("kl", [group]).figure.axes[0].lines
    assert thin.get_xdata()[np.nanargmax(thin.get_ydata())] == 503
    assert np.nanmax(thin.get_ydata()) == 9
    assert len(thick.get_xdata()) == report_figures.POINTS


def test_an_evaluation_is_drawn_where_it_was_made():
    x = np.full((2, 100), np.nan)
    x[:, 9::10] = 1.0
    assert report_figures.drawn_updates(x).tolist() == list(range(9, 100, 10))
    assert len(report_figures.drawn_updates(np.ones((2, 1000)))) == report_figures.POINTS


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
    run.summary = runs.summarise(run)
    page = Page(written(run, tmp_path))
    assert "learning_rate 0.0001: IQM of return_mean rises from 20.8 at 512 to 100 at" in " ".join(page.labels)
    assert "learning_rate 0.001: IQM of return_mean rises from 41.6 at 512 to 200 at" in " ".join(page.labels)
    assert "200 [200, 200]" in page.words


def test_figures_are_written_as_files(tmp_path):
    report.write(made(), tmp_path / "a.html", tmp_path / "pictures")
    files = {file.name for file in (tmp_path / "pictures").iterdir()}
    assert {"plot-return_mean.png", "plot-return_mean.svg", "plot-scores.png"} <= files
    assert (tmp_path / "pictures" / "plot-kl.svg").read_text().startswith("<?xml")
    assert "var(" not in (tmp_path / "pictures" / "plot-kl.svg").read_text()


def test_only_a_report_is_overwritten(tmp_path):
    out = tmp_path / "report.html"
    report.write(made(), out)
    report.write(made(), out)
    out.write_text("<html>thesis</html>")
    with pytest.raises(UsageError, match="no report"):
        report.write(made(), out)
    assert out.read_text() == "<html>thesis</html>"
    with pytest.raises(UsageError, match="is a folder"):
        report.write(made(), tmp_path)
    with pytest.raises(UsageError, match="no folder"):
        report.write(made(), tmp_path / "missing" / "report.html")
    with pytest.raises(UsageError, match="not kept"):
        report.write(made())


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
    leaves = evaluation.named_leaves(job.agent.init(jax.random.key(4)))
    trained = Trained(job, {name: np.asarray(leaves[name])[None] for name in job.policy_leaves})
    kind = module.__name__.rpartition(".")[2]
    metrics = {name: x[:1] for name, x in few(kind).items()}
    run = made(kind=kind, trained=trained, config=job.settings)
    run.metrics, run.seeds = metrics, [4]
    return run


def test_maps_show_where_the_policy_goes_and_its_values(tmp_path):
    run = with_policy(ppo)
    obs, value, name = report.played(run.trained, 0, 4)
    wanted = np.tile([[0.1 * t, 1 - 0.05 * t] for t in range(7)], (report.MAP_EPISODES, 1))  # it ends after step 7
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
    visits = report_figures.Visits(obs, obs.sum(axis=1), discrete, "V")
    pictures = report_figures.maps(visits)
    assert len(pictures) == figures
    for picture in pictures:
        Page(report_figures.inline(picture))


def test_a_run_that_cannot_be_rebuilt_gets_a_sentence(tmp_path):
    words = Page(written(made(), tmp_path)).words
    assert "Not drawn, as the run cannot be rebuilt: it was not kept in a folder." in words
    assert "What the agent's defaults are is not known here." in words


def test_time_is_shown_by_what_it_was_spent_on():
    run = made(summary={"seconds": {"compiling": 1.0, "training": 3.0}, "compile_seconds": 7.0})
    text = report.times_html(run)
    assert "training</td><td>3.0 s</td><td>75%<" in text
    assert "7.0" not in text
    assert "compiling</td><td>7.0 s" in report.times_html(made(summary={"compile_seconds": 7.0, "train_seconds": 1.0}))
    assert "not known" in report.times_html(made())


def two(**changed):
    better = made({"return_mean": healthy("ppo")[0]["return_mean"] + np.arange(8)[:, None] + 50})
    return [Method("plain", {"A": made(**changed)}), Method("better_", {"A": better})]


def test_several_runs_are_drawn_and_compared(tmp_path):
    methods = two()
    page = Page(report.write_comparison(methods, tmp_path / "both.html").read_text())
    for sentence in compare.compare(methods).sentences:
        assert sentence in page.words
    assert {"plot-profile-A", "plot-return_mean", "plot-scores", "plot-target"} <= set(page.ids)
    labels = " ".join(page.labels)
    assert "plain: IQM of return_mean rises" in labels
    assert "better_: IQM of return_mean rises" in labels


def test_runs_are_told_apart_without_colour():
    groups = [Group(m.label, m.runs["A"].metrics, m.runs["A"].seeds) for m in two()]
    lines = report_figures.curve("return_mean", groups).figure.axes[0].lines
    assert len({line.get_linestyle() for line in lines}) == 2
    assert [text.get_text() for text in report_figures.curve("kl", groups).figure.legends[0].texts] == [
        "plain",
        "better_",
    ]


def test_labels_may_hold_any_letters(tmp_path):
    first, second = two()
    named = [Method(r"実験 $x$ \1", first.runs), Method("_ü", second.runs)]
    text = report.write_comparison(named, tmp_path / "both.html").read_text()
    assert text.count(r">実験 $x$ \1</text>") == text.count(">_ü</text>") > 3


def test_runs_that_cannot_be_compared_are_drawn_and_told_why(tmp_path):
    first, second = two()
    apart = [first, Method("elsewhere", {"B": second.runs["A"]})]
    page = Page(report.write_comparison(apart, tmp_path / "both.html").read_text())
    assert "They are not compared: plain has no run on B" in page.words
    assert {"environment-0-plot-return_mean", "environment-1-plot-return_mean"} <= set(page.ids)


def test_a_run_with_batched_settings_is_compared_by_one_of_them(tmp_path):
    methods = two()
    methods[0].runs["A"].batched = ["learning_rate"]
    with pytest.raises(UsageError, match="#0"):
        report.write_comparison(methods, tmp_path / "both.html")
