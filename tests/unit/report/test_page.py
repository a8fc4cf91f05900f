"""The page of a report, as far as it needs no browser."""

from __future__ import annotations

import json
import re
import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from sparklm.config import Config, DataConfig
from sparklm.errors import UserError
from sparklm.redaction import HIDDEN
from sparklm.report.charts import MOST_POINTS, line_style, smoothed, thinned
from sparklm.report.comparison import comparison_text, comparison_warnings, run_names
from sparklm.report.facts import Missing, gather_facts
from sparklm.report.page import inert_json, page_of, report_page, write_report
from sparklm.report.redaction import shown_settings
from sparklm.report.sections import head_facts, run_sections
from sparklm.report.text import report_text
from sparklm.report.timeline import MOST_BARS, kind_of, place_in_rows, timeline, worth_showing
from sparklm.report.vocabulary import (
    TokenCounts,
    count_tokens,
    frequent_tokens,
    in_plane,
    readable_tokens,
    share_in_plane,
)
from sparklm.storage import Folder
from sparklm.training.metrics import COLUMNS, Column, read_metrics, write_metrics
from sparklm.training.records import EVALUATIONS, SAMPLES, STEPS, TASKS, write_lines
from tests.conftest import run_job, tiny_config
from tests.run_history import (
    HOSTILE,
    add_evaluations,
    add_history,
    epoch_record,
    evaluation_record,
    evaluation_sample,
    steps_of,
    tasks_of,
)

SECTIONS = [
    "Loss",
    "Learning rate",
    "Gradients",
    "Throughput",
    "Phases",
    "Spark tasks",
    "Memory and CPU",
    "Samples",
    "Tokens",
    "Embedding neighbourhood",
    "Epochs",
    "Statistics",
    "Settings",
]


@pytest.fixture
def run(finished_run: Path, tmp_path: Path) -> Folder:
    """A copy of a run without Spark, to add to and take from."""
    shutil.copytree(finished_run, tmp_path / "run")
    return Folder(str(tmp_path / "run"))


def without_scripts(page: str) -> str:
    return re.sub(r"<(script|style).*?</\1>", "", page, flags=re.DOTALL)


def figures(page: str) -> dict[str, dict[str, list[dict[str, object]]]]:
    found = re.search(r'<script type="application/json" id="plot-data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found[1])["figures"]


def reasons(page: str) -> list[str]:
    return re.findall(r'class="missing">Not shown, because (.*?)\.</p>', page)


def test_every_section_is_there_in_order_and_every_chart_has_points(run: Folder) -> None:
    add_history(run, on_spark=True)
    page = report_page([run])
    assert re.findall(r"<h2 .*?>(.*?)</h2>", page) == SECTIONS
    assert reasons(page) == []
    drawn = figures(page)
    assert len(drawn) == 12
    assert all(trace["x"] and trace["y"] for figure in drawn.values() for trace in figure["data"])
    assert f">{gather_facts(run).record.run_id}<" in page


def test_the_report_lies_in_the_run_and_is_the_same_each_time(run: Folder) -> None:
    assert write_report(run) == run.address("report.html")
    first = run.read_bytes("report.html")
    assert first == report_page([run]).encode()


def test_a_run_without_spark_says_so_and_shows_the_rest(run: Folder) -> None:
    add_history(run, on_spark=False)
    page = report_page([run])
    assert re.findall(r"<h2 .*?>(.*?)</h2>", page) == SECTIONS
    assert len(reasons(page)) == 2
    assert all("this run used no Spark" in reason for reason in reasons(page))
    assert "timeline" not in figures(page)
    assert len(figures(page)) == 11


def test_a_run_under_way_says_what_is_not_there_and_why(run: Folder) -> None:
    for name in ("model.zip", "stats.json", "stats.txt", "sample.txt", STEPS):
        run.remove(name)
    page = report_page([run])
    facts = gather_facts(run)
    assert f'class="state under-way">at step {facts.step} of {facts.total_steps}<' in page
    assert "model.zip is not there: it is written when training ends" in reasons(page)
    assert "stats.json is not there: it is written when training ends" in reasons(page)
    assert "steps.jsonl is not there: it was not kept when this run was trained" in reasons(page)
    assert {"loss", "throughput", "frequent-tokens"} <= figures(page).keys()


def test_a_run_of_which_only_the_settings_are_left_has_a_page(run: Folder) -> None:
    for name in run.names():
        if name != "config.json":
            run.remove(name)
    page = report_page([run])
    assert figures(page) == {}
    assert "metrics.csv is not there: no epoch is done yet" in reasons(page)
    assert "at step 0 of an unknown number" in page
    assert "data.window_size" in page


def test_damaged_files_are_named_and_spoil_nothing_else(run: Folder) -> None:
    add_history(run, on_spark=True)
    run.write_text(STEPS, "not a step\n")
    run.write_text("stats.json", "{")
    run.write_bytes("model.zip", b"no zip")
    page = report_page([run])
    reason = "\n".join(reasons(page))
    assert "steps.jsonl, line 1, is damaged" in reason
    assert "stats.json is not valid JSON" in reason
    assert "model.zip is not a model zip" in reason
    assert {"loss", "timeline", "phases"} <= figures(page).keys()


def test_the_head_names_the_validation_text_and_the_baseline(run: Folder) -> None:
    shown = dict(head_facts(gather_facts(run)))
    assert shown["validation text"].startswith("the last 10 % of the text")
    assert re.fullmatch(r"guessing by token frequency: loss \d\.\d{4}, accuracy 0\.\d{4}", shown["baseline"])
    statistics = run.read_json("stats.json")
    for baseline, expected in (
        (statistics["baseline"] | {"loss": 0.1}, r".*loss 0\.1000, .*; the model does no better"),
        ("none: there is no validation text", "none: there is no validation text"),
    ):
        run.write_json("stats.json", statistics | {"baseline": baseline})
        assert re.fullmatch(expected, dict(head_facts(gather_facts(run)))["baseline"])
    del statistics["baseline"]
    run.write_json("stats.json", statistics)
    assert dict(head_facts(gather_facts(run)))["baseline"] == "not measured when this run was trained"
    run.remove("stats.json")
    assert dict(head_facts(gather_facts(run)))["baseline"] == "it is written when training ends"


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a run"):
        report_page([Folder(str(tmp_path))])


def test_nothing_that_a_model_or_a_task_says_becomes_part_of_the_page(run: Folder) -> None:
    add_history(run, on_spark=True)
    page = report_page([run])
    assert "document.title='owned'" in json.dumps(figures(page))  # the error of a task, as data
    assert page.count("<script") == 3
    assert page.count("</script") == 3
    assert "<img" not in without_scripts(page)
    assert "&lt;/script&gt;&lt;script&gt;" in without_scripts(page)


def test_no_text_ends_the_element_that_holds_the_figures() -> None:
    written = inert_json({HOSTILE: [HOSTILE, "<!--"]})
    assert not set("<>&") & set(written)
    assert json.loads(written) == {HOSTILE: [HOSTILE, "<!--"]}


def test_a_hostile_token_is_only_shown() -> None:
    class Hostile:
        def token_text(self, token: int) -> str:
            return f"{HOSTILE}{token}"

    counted = TokenCounts(tokenizer=Hostile(), counts=np.array([1, 2]), num_counted=3, num_tokens=3)  # type: ignore[arg-type]
    assert "<" not in "".join(frequent_tokens(counted).figure.layout.yaxis.ticktext)


def test_the_policy_allows_the_two_scripts_and_no_request(run: Folder) -> None:
    page = report_page([run])
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    text = policy[1].replace("&#39;", "'")
    assert text.startswith("default-src 'none'; script-src 'sha256-")
    assert text.count("sha256-") == 2
    assert "unsafe-eval" not in text
    assert not re.search(r'(src|href)="(?!#)', without_scripts(page))


def test_secrets_of_spark_are_not_handed_on() -> None:
    config = tiny_config(None, "spark.properties.spark.hadoop.fs.s3a.secret.key=hush", "spark.properties.spark.cores=2")
    values = shown_settings(config)
    assert "hush" not in json.dumps(values)
    assert HIDDEN in values.values()
    assert values["data.tokenizer"] == "byte"


def test_secrets_in_any_of_several_addresses_are_not_shown() -> None:
    config = Config(data=DataConfig(corpus=["s3://me:hush@a/b", "c.txt"]))
    assert shown_settings(config)["data.corpus"] == ["s3://(hidden)@a/b", "c.txt"]


def test_runs_are_compared_by_their_figures_and_by_the_settings_that_differ(
    run: Folder, corpus_file: Path, tmp_path: Path
) -> None:
    run_job(tiny_config(corpus_file, "training.epochs=1"), tmp_path / "short")
    runs = [run, Folder(str(tmp_path / "short"))]
    text = comparison_text([gather_facts(one) for one in runs])
    assert re.search(r"^run +finished .*^short +finished ", text, re.MULTILINE | re.DOTALL)
    assert re.search(r"^training\.epochs +2 +1$", text, re.MULTILINE)
    assert "data.tokenizer" not in text
    page = report_page(runs)
    assert {len(figure["data"]) for figure in figures(page).values()} == {2}
    assert figures(page).keys() == {"validation", "training", "throughput"}
    assert '<th scope="row">training.epochs</th><td>2</td><td>1</td>' in page
    assert "Careful" not in text
    assert 'class="caution"' not in page


def test_runs_with_other_tokenizers_are_compared_by_bits_per_byte_with_a_warning(
    run: Folder, corpus_file: Path, tmp_path: Path
) -> None:
    run_job(tiny_config(corpus_file, "data.tokenizer=char", "training.epochs=1"), tmp_path / "char")
    for folder in (run, Folder(str(tmp_path / "char"))):
        folder.remove(EVALUATIONS)  # as old runs are
    all_facts = [gather_facts(run), gather_facts(Folder(str(tmp_path / "char")))]
    (warning,) = comparison_warnings(all_facts)
    assert warning.startswith("The runs have different tokenizers")
    text, page = comparison_text(all_facts), page_of(all_facts)
    assert text.startswith(f"Careful: {warning}\n")
    assert re.search(r"epochs +bits per byte +mean training loss", text)
    assert page.count('class="caution"') == 1
    assert re.findall(r"<h2 .*?>(.*?)</h2>", page)[1] == "Bits per byte"
    lines = figures(page)["validation"]["data"]
    assert lines[0]["y"] == [pytest.approx(epoch.BitsPerByte, rel=1e-5) for epoch in all_facts[0].epochs]


def test_evaluations_of_runs_with_other_tokenizers_are_in_bits_per_byte(
    run: Folder, corpus_file: Path, tmp_path: Path
) -> None:
    char = Folder(str(tmp_path / "char"))
    run_job(tiny_config(corpus_file, "data.tokenizer=char", "training.epochs=1"), tmp_path / "char")
    for folder in (run, char):
        add_evaluations(folder, 5, 10)
    lines = figures(report_page([run, char]))["validation"]["data"]
    for line, folder in zip(lines, (run, char), strict=True):
        epoch = read_metrics(folder)[0]
        assert epoch.ValidationLoss is not None
        bits = [evaluation_record(step).loss * epoch.BitsPerByte / epoch.ValidationLoss for step in (5, 10)]
        assert (line["x"], line["y"]) == ([5, 10], [pytest.approx(value, rel=1e-5) for value in bits])


def test_runs_validated_on_other_texts_are_compared_with_a_warning(
    run: Folder, corpus_file: Path, tmp_path: Path
) -> None:
    for name, tokenizer in (("same", "byte"), ("other", "char")):
        settings = (f"data.tokenizer={tokenizer}", "data.validation_fraction=0.3", "training.epochs=1")
        run_job(tiny_config(corpus_file, *settings), tmp_path / name)
        warnings = comparison_warnings([gather_facts(run), gather_facts(Folder(str(tmp_path / name)))])
        assert warnings[-1].startswith("The runs are validated on different texts"), name
        assert len(warnings) == (1 if tokenizer == "byte" else 2)


def test_what_cannot_be_told_of_a_run_without_its_dataset_is_said(run: Folder, finished_run: Path) -> None:
    (run / "dataset").remove()
    (warning,) = comparison_warnings([gather_facts(run), gather_facts(Folder(str(finished_run)))])
    assert "same tokenizer and validation text as the others is not known" in warning


def test_evaluations_are_a_line_and_epochs_points_over_it(run: Folder) -> None:
    add_history(run, on_spark=False)
    add_evaluations(run, 60, 120, 180, 240)
    traces = {trace["name"]: trace for trace in figures(report_page([run]))["loss"]["data"]}
    assert traces["validation, a fixed part"]["x"] == [60, 120, 180, 240]
    assert traces["validation, all of it"]["mode"] == "markers"
    assert len(traces["validation, all of it"]["y"]) == 2


def test_evaluations_are_shown_before_an_epoch_is_done(run: Folder) -> None:
    for name in ("metrics.csv", "model.zip", "stats.json", STEPS):
        run.remove(name)
    add_evaluations(run, 5)
    assert [trace["name"] for trace in figures(report_page([run]))["loss"]["data"]] == ["validation, a fixed part"]


def test_damaged_evaluations_are_named(run: Folder) -> None:
    run.write_text(EVALUATIONS, "no evaluation\n")
    page = report_page([run])
    assert any("evaluations.jsonl, line 1, is damaged" in reason for reason in reasons(page))
    assert "validation" in [trace["name"] for trace in figures(page)["loss"]["data"]]


def test_the_baseline_and_the_clip_threshold_are_lines(run: Folder) -> None:
    baseline = {"loss": 5.25, "guess": "<b>frequency", "accuracy": 0.1}
    run.write_json("stats.json", run.read_json("stats.json") | {"baseline": baseline})
    drawn = figures(report_page([run]))
    baseline, clip = drawn["loss"]["data"][-1], drawn["step-gradients"]["data"][-1]
    assert (baseline["name"], set(baseline["y"])) == ("baseline: &lt;b&gt;frequency", {5.25})
    assert (clip["name"], set(clip["y"])) == ("clipped at 1", {1})


def test_each_replica_has_a_line_where_there_are_several(run: Folder) -> None:
    assert "replica-loss" not in figures(report_page([run]))
    steps = [step.model_copy(update={"replica_losses": (1.5, 2.5)}) for step in gather_facts(run).steps]
    write_lines(run, STEPS, steps)
    lines = figures(report_page([run]))["replica-loss"]["data"]
    assert [(line["name"], set(line["y"])) for line in lines] == [("replica 0", {1.5}), ("replica 1", {2.5})]


def test_six_samples_are_side_by_side_and_the_others_folded_away(run: Folder) -> None:
    add_evaluations(run, *range(10, 160, 10))
    page = report_page([run])
    before, _, after = page.partition("The other 9 samples")
    cards = r'<figure class="card">\s*<figcaption>step (\d+), epoch \d+<span>validation loss ([\d.]+)</span>'
    assert [step for step, _ in re.findall(cards, before)] == ["10", "30", "60", "90", "120", "150"]
    assert len(re.findall(cards, after)) == 9
    assert re.findall(cards, before)[0][1] == f"{evaluation_record(10).loss:.4f}"
    assert page.count('<b class="prompt">') == 1
    assert " quick\n&lt;b&gt;fox&lt;/b&gt; of step 10<" in page


def test_samples_with_different_prompts_show_each_its_own(run: Folder) -> None:
    samples = [evaluation_sample(10), evaluation_sample(20).model_copy(update={"prompt": "The quick"})]
    write_lines(run, SAMPLES, samples)
    assert re.findall(r'<b class="prompt">(.*?)</b>', report_page([run])) == ["The", "The quick"]


def test_captions_say_what_is_shown_and_what_the_plane_hides(run: Folder) -> None:
    captions = re.findall(r'<p class="caption">(.*?)</p>', report_page([run]))
    counted = count_tokens(gather_facts(run))
    assert not isinstance(counted, Missing)
    assert f"of the {len(counted.ranked)} tokens that occur" in captions[0]
    assert re.search(r"The plane keeps \d+ % of their variance and hides the rest", captions[-1])


def test_the_share_of_the_plane_is_that_of_its_two_directions() -> None:
    vectors = np.array([[3, 0, 0], [-3, 0, 0], [0, 2, 0], [0, -2, 0], [0, 0, 1], [0, 0, -1]], dtype=np.float32)
    assert share_in_plane(vectors) == pytest.approx((9 + 4) / (9 + 4 + 1))
    assert share_in_plane(np.ones((4, 3), dtype=np.float32)) == 1.0


def test_the_choice_of_axes_stands_over_the_charts_that_it_changes(run: Folder) -> None:
    page = report_page([run])
    choice = page.index('<div class="axes"')
    assert page.index("<nav") < choice < page.index('<section id="loss"')
    assert re.findall(r'name="x" value="(\w+)"', page) == ["step", "tokens", "time"]
    over_steps = {name for name, figure in figures(page).items() if figure["layout"].get("meta") == {"over": "steps"}}
    assert over_steps == {"loss", "learning-rate", "step-gradients", "throughput"}


def test_a_run_without_any_known_step_has_no_axes_to_choose(run: Folder) -> None:
    for name in (STEPS, EVALUATIONS, "dataset"):
        run.remove(name)
    page = report_page([run])
    assert '<div class="axes"' not in page
    assert figures(page)["loss"]["layout"]["xaxis"]["title"]["text"] == "epoch"


def test_runs_of_the_same_name_are_told_apart() -> None:
    assert run_names([Folder("a/one"), Folder("a/two/")]) == ["one", "two"]
    assert run_names([Folder("a/run"), Folder("b/run")]) == ["a/run", "b/run"]


def test_a_long_row_of_points_is_thinned_without_losing_its_spikes() -> None:
    values = np.sin(np.arange(100_000) / 500)
    values[61_803] = 9.0
    kept = thinned(values)
    assert len(kept) <= MOST_POINTS
    assert {0, 61_803, 99_999} <= set(kept.tolist())


def test_a_long_run_makes_a_page_of_bounded_size(run: Folder) -> None:
    add_history(run, on_spark=True, steps_per_epoch=20_000)
    drawn = figures(report_page([run]))
    assert max(len(trace["x"]) for name in ("loss", "throughput") for trace in drawn[name]["data"]) <= MOST_POINTS


def test_a_moving_mean_keeps_a_straight_line_where_it_is() -> None:
    line = np.arange(1000, dtype=np.float64)
    assert np.allclose(smoothed(line)[10:-10], line[10:-10])


def test_attempts_that_overlap_are_in_different_rows() -> None:
    bars, rows = place_in_rows(tasks_of(num_epochs=2))
    assert rows[0].startswith("executor 0")
    for row in range(len(rows)):
        times = sorted((bar.task.launched, bar.task.launched + bar.seconds) for bar in bars if bar.row == row)
        assert all(end <= start for (_, end), (start, _) in pairwise(times))


def test_lost_attempts_are_marked_by_colour_pattern_and_shape(run: Folder) -> None:
    add_history(run, on_spark=True)
    plot = timeline(gather_facts(run))
    traces = {(trace.name, trace.type): trace for trace in plot.figure.data}
    assert {"training", "evaluation", "other", "failed", "killed"} == {name for name, _ in traces}
    colors = [traces[name, "bar"].marker.color for name in ("training", "evaluation", "other", "failed", "killed")]
    assert len(set(colors)) == 5
    assert traces["failed", "bar"].marker.pattern.shape != traces["killed", "bar"].marker.pattern.shape
    assert traces["failed", "scatter"].marker.symbol != traces["killed", "scatter"].marker.symbol
    assert "ExecutorLostFailure" in traces["failed", "scatter"].text[0]


def test_of_very_many_attempts_the_lost_and_the_longest_are_drawn() -> None:
    tasks = tasks_of(num_epochs=300)
    bars, _ = place_in_rows(tasks)
    kept = worth_showing(bars)
    assert len(bars) > len(kept) == MOST_BARS
    assert sum(kind_of(bar.task) in ("failed", "killed") for bar in kept) == 2


def test_tasks_without_an_end_reach_to_the_last_moment_that_is_known(run: Folder) -> None:
    tasks = [task.model_copy(update={"seconds": None}) for task in tasks_of(num_epochs=1)[:1]]
    write_lines(run, TASKS, [*tasks, *tasks_of(num_epochs=1)[1:2]])
    bars, _ = place_in_rows(gather_facts(run).tasks)
    assert bars[0].seconds == pytest.approx(bars[1].task.launched + bars[1].seconds - bars[0].task.launched)


def test_words_are_preferred_to_pieces_of_words(run: Folder) -> None:
    class Words:
        def token_text(self, token: int) -> str:
            return f" word{chr(97 + token)}" if token < 25 else f"piece{chr(72 + token)}"

    counted = TokenCounts(tokenizer=Words(), counts=np.ones(50, dtype=np.int64), num_counted=50, num_tokens=50)  # type: ignore[arg-type]
    assert readable_tokens(counted) == list(range(25))


def test_the_plane_keeps_the_two_directions_that_vary_most() -> None:
    vectors = np.random.default_rng(0).normal(size=(300, 5)).astype(np.float32) * np.array(
        [1, 30, 1, 10, 1], np.float32
    )
    places = in_plane(vectors)
    assert places.var(axis=0) == pytest.approx(vectors[:, [1, 3]].var(axis=0), rel=0.05)


def test_the_time_of_a_run_is_that_of_its_steps(run: Folder) -> None:
    run.remove(STEPS)
    assert gather_facts(run).when == "not recorded"
    epochs = gather_facts(run).epochs
    write_lines(run, STEPS, steps_of(epochs, 10))
    assert gather_facts(run).when == "2023-11-14 22:13 to 22:13 UTC"


def test_a_new_column_is_shown_wherever_its_declaration_says(
    corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = Column(
        label="toy", unit="MB", form=",d", group="memory", in_summary=True, join=lambda facts: 7000 + facts.epoch
    )
    monkeypatch.setitem(COLUMNS, "ToyMB", toy)
    run = Folder(str(tmp_path / "run"))
    run_job(tiny_config(corpus_file, "output.tensorboard=true"), tmp_path / "run", report=True)
    assert [epoch.figure("ToyMB") for epoch in read_metrics(run)] == [7000, 7001]
    page = run.read_text("report.html")
    lines = figures(page)["memory"]["data"]
    assert [line["y"] for line in lines if line["name"] == "toy"] == [[7000, 7001]]
    assert len({line["line"]["color"] for line in lines}) == len(lines)
    assert '<th scope="row">toy, MB</th><td>7,000</td><td>7,001</td>' in page
    for text in (report_text(run).partition("stats.txt")[0], run.read_text("stats.txt")):
        assert re.search(r" toy, MB\n.* 7,000\n.* 7,001$", text.rstrip())
    assert [epoch["toy, MB"] for epoch in run.read_json("stats.json")["each epoch"]] == [7000, 7001]
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    assert [event.value for event in events.Scalars("epoch/ToyMB")] == [7000, 7001]


@pytest.mark.parametrize(("group", "chart"), [("phases", "phases"), ("cpu", "cpu"), ("gradients", "epoch-gradients")])
def test_a_new_column_is_in_the_chart_of_its_group(
    group: str, chart: str, run: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(COLUMNS, "Toy", Column(label="toy", group=group, join=lambda facts: 50 * facts.epoch + 50))
    write_metrics(run, [epoch_record(1), epoch_record(2)])
    assert "toy" in [trace["name"] for trace in figures(report_page([run]))[chart]["data"]]


def test_a_new_final_figure_heads_the_page_and_the_comparison(run: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(COLUMNS, "Toy", Column(label="toy score", form=".1f", group="final", join=lambda facts: 0.25))
    write_metrics(run, [epoch_record(1), epoch_record(2)])
    assert "<dt>toy score</dt><dd>0.2</dd>" in report_page([run])
    assert "toy score" in comparison_text([gather_facts(run), gather_facts(run)])


def test_a_section_is_a_line_in_the_list(run: Folder) -> None:
    assert [section.title for section in run_sections(gather_facts(run))] == SECTIONS


def test_lines_of_a_chart_differ_by_more_than_colour() -> None:
    assert len({(style["color"], style["symbol"]) for style in map(line_style, range(30))}) == 30
