"""The report in a real browser: every chart drawn, nothing asked of any host, light and dark, wide and narrow."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sparklm.report.facts import gather_facts
from sparklm.report.page import report_page, write_report
from sparklm.storage import Folder
from sparklm.training.records import TASKS, TaskRecord, read_lines
from tests.conftest import SENTENCES, STRATEGIES, run_job, tiny_config
from tests.harm import harm, kill
from tests.run_history import HOSTILE, add_evaluations

if TYPE_CHECKING:
    from sparklm.spark.placement import OnSpark

pytestmark = pytest.mark.spark
webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
waiting = pytest.importorskip("selenium.webdriver.support.ui")
Keys = webdriver.Keys
WITH_A_MOUSE = "--blink-settings=" + ",".join(
    ("primaryHoverType=2", "availableHoverTypes=2", "primaryPointerType=4", "availablePointerTypes=4")
)
CHARTS = {
    "loss",
    "replica-loss",
    "learning-rate",
    "step-gradients",
    "epoch-gradients",
    "throughput",
    "phases",
    "timeline",
    "memory",
    "cpu",
    "frequent-tokens",
    "rank-frequency",
    "neighbourhood",
}


@pytest.fixture(scope="module")
def reported_run(on_spark: OnSpark, tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """A run on Spark with two replicas, one of which was killed on the way; its prompt means harm."""
    place = tmp_path_factory.mktemp("reported")
    (place / "corpus.txt").write_text(f"{SENTENCES}{HOSTILE}\n" * 30)
    settings = (
        *STRATEGIES["diloco"],
        "data.tokenizer=bpe",
        "data.vocab_size=400",
        "data.stride=2",
        "model.width=64",
        "training.max_steps=120",
        "distributed.diloco_steps=20",
        "distributed.exchange=storage",
        f"generation.prompt={HOSTILE}",
    )
    with harm(place / "run", replica=1, step=20, act=kill) as harmed:
        run_job(tiny_config(place / "corpus.txt", *settings), place / "run", on_spark)
    assert harmed, "nobody was killed"
    return Folder(str(place / "run"))


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("no Chromium with chromedriver on this machine (Debian: apt-get install chromium chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in ("--headless=new", "--disable-dev-shm-usage", "--window-size=1200,900", WITH_A_MOUSE):
        options.add_argument(argument)
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    chrome = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=driver))
    yield chrome
    chrome.quit()


def emulate(browser: webdriver.Chrome, scheme: str = "light", width: int = 1200) -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def open_page(browser: webdriver.Chrome, page: str | Path) -> None:
    for kind in ("browser", "performance"):
        browser.get_log(kind)
    browser.get(f"file://{page}")


@pytest.fixture(scope="module")
def page(reported_run: Folder) -> str:
    return write_report(reported_run)


def drawn(browser: webdriver.Chrome) -> dict[str, dict[str, int]]:
    """For every chart: how many traces, points and visible marks it has."""
    return browser.execute_script("""
        return Object.fromEntries([...document.querySelectorAll(".js-plotly-plot")].map((gd) => [gd.dataset.plot, {
            traces: gd.data.length,
            points: Math.min(...gd.data.map((trace) => Math.max(trace.x?.length ?? 0, trace.y?.length ?? 0))),
            marks: [...gd.querySelectorAll("svg .trace path, svg .trace text")]
                .map((mark) => mark.getBoundingClientRect()).filter((box) => box.width + box.height > 0).length,
        }]));
    """)


def messages(browser: webdriver.Chrome) -> list[str]:
    return [entry["message"] for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]


def requested(browser: webdriver.Chrome) -> list[str]:
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    return [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]


def luminance(color: str) -> float:
    red, green, blue = (int(part) / 255 for part in color.partition("(")[2].rstrip(")").split(",")[:3])
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in (red, green, blue)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first: str, second: str) -> float:
    lighter, darker = sorted((luminance(first), luminance(second)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def colours(browser: webdriver.Chrome) -> dict[str, str]:
    """The colours of the page, of quiet text on it, and of the text in charts."""
    return browser.execute_script("""
        const style = (selector) => getComputedStyle(document.querySelector(selector));
        return {paper: style("body").backgroundColor, ink: style("body").color, quiet: style(".intro").color,
                chart: style("#plot-loss .xtick text").fill, line: style("#plot-loss .scatterlayer path").stroke};
    """)


def test_every_chart_is_drawn_without_a_word_in_the_console(browser: webdriver.Chrome, page: str) -> None:
    emulate(browser)
    open_page(browser, page)
    charts = drawn(browser)
    assert set(charts) == CHARTS
    for name, counts in charts.items():
        assert counts["traces"] > 0, name
        assert counts["points"] > 0, name
        assert counts["marks"] > 0, name
    assert messages(browser) == []


def test_the_lost_task_is_marked_in_the_timeline(browser: webdriver.Chrome, page: str, reported_run: Folder) -> None:
    failed = [task for task in read_lines(reported_run, TASKS, TaskRecord) if task.status == "FAILED"]
    assert failed
    emulate(browser)
    open_page(browser, page)
    traces = browser.execute_script(
        "return document.querySelector('#plot-timeline').data.map((trace) => [trace.name, trace.y?.length ?? 0])"
    )
    assert len(failed) in [count for name, count in traces if "fail" in name.lower()]


def test_nothing_is_asked_of_any_host(browser: webdriver.Chrome, page: str) -> None:
    emulate(browser)
    open_page(browser, page)
    urls = requested(browser)
    assert any(url.startswith("file:") for url in urls)
    assert [url for url in urls if not url.startswith(("file:", "data:", "blob:"))] == []
    titles = "return [...document.querySelectorAll('.modebar-btn')].map((button) => button.dataset.title)"
    offered = set(browser.execute_script(titles))
    assert offered == {"Download plot as a PNG", "Zoom", "Pan", "Zoom in", "Zoom out", "Reset axes"}


def test_what_models_and_tasks_say_is_text_and_nothing_else(browser: webdriver.Chrome, page: str) -> None:
    emulate(browser)
    open_page(browser, page)
    assert browser.title == "Run run – sparklm"
    assert HOSTILE in browser.execute_script("return document.querySelector('#samples .shared').textContent")
    assert browser.execute_script("return document.querySelectorAll('#samples .card').length") >= 1
    assert browser.execute_script("return document.querySelectorAll('img, #samples script').length") == 0
    assert browser.execute_script("return document.scripts.length") == 3


def test_the_page_follows_a_change_from_light_to_dark(browser: webdriver.Chrome, page: str) -> None:
    emulate(browser, "light")
    open_page(browser, page)
    light = colours(browser)
    emulate(browser, "dark")
    waiting.WebDriverWait(browser, 20).until(  # all are drawn anew
        lambda _: colours(browser)["chart"] != light["chart"]
    )
    dark = colours(browser)
    for found in (light, dark):
        assert contrast(found["ink"], found["paper"]) > 7
        assert contrast(found["quiet"], found["paper"]) > 4.5
        assert contrast(found["chart"], found["paper"]) > 7
    assert luminance(light["paper"]) > 0.8
    assert luminance(dark["paper"]) < 0.05
    assert light["line"] != dark["line"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_it_without_scrolling_sideways(browser: webdriver.Chrome, page: str, scheme: str) -> None:
    emulate(browser, scheme, width=390)
    open_page(browser, page)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
    widest = "return Math.max(...[...document.querySelectorAll('.plot svg')].map((svg) => svg.clientWidth))"
    assert 200 < browser.execute_script(widest) <= 390
    assert set(drawn(browser)) == CHARTS


def test_a_word_without_a_label_gets_one_when_the_reader_zooms_in(browser: webdriver.Chrome, page: str) -> None:
    emulate(browser, width=390)
    open_page(browser, page)
    labelled = "return document.querySelector('#plot-neighbourhood').data[0].text.map((text) => text !== '')"
    hidden = browser.execute_script(labelled).index(False)
    zoom = """
        const gd = document.querySelector("#plot-neighbourhood");
        const around = (value) => [value - 1e-4, value + 1e-4];
        const {x, y} = gd.data[0], place = arguments[0];
        Plotly.relayout(gd, {"xaxis.range": around(x[place]), "yaxis.range": around(y[place])});
    """
    browser.execute_script(zoom, hidden)
    assert browser.execute_script(labelled)[hidden]


def axis_of(browser: webdriver.Chrome, chart: str, letter: str = "x") -> dict[str, str]:
    return browser.execute_script(
        "const axis = document.querySelector(arguments[0])._fullLayout[arguments[1]];"
        "return {title: axis.title.text, type: axis.type}",
        f"#plot-{chart}",
        f"{letter}axis",
    )


def last_place(browser: webdriver.Chrome, chart: str) -> float:
    return browser.execute_script("return document.querySelector(arguments[0]).data[0].x.at(-1)", f"#plot-{chart}")


def choose(browser: webdriver.Chrome, name: str, value: str) -> None:
    browser.find_element("css selector", f'.axes input[name="{name}"][value="{value}"]').find_element(
        "xpath", "following-sibling::span"
    ).click()


def test_the_reader_chooses_the_x_axis_of_all_charts_over_steps(
    browser: webdriver.Chrome, page: str, reported_run: Folder
) -> None:
    facts = gather_facts(reported_run)
    assert facts.tokens_per_step is not None
    emulate(browser)
    open_page(browser, page)
    by_epoch = axis_of(browser, "phases")
    for value, title, last in (
        ("tokens", "training tokens", facts.steps[-1].step * facts.tokens_per_step),
        ("time", "seconds of training", facts.seconds),
        ("step", "step", facts.steps[-1].step),
    ):
        choose(browser, "x", value)
        for chart in ("loss", "replica-loss", "learning-rate", "step-gradients", "throughput"):
            assert axis_of(browser, chart)["title"] == title
            assert last_place(browser, chart) == pytest.approx(last, rel=1e-4)
    assert axis_of(browser, "phases") == by_epoch
    assert messages(browser) == []


def test_scales_can_be_logarithmic_and_stay_so_in_the_dark(browser: webdriver.Chrome, page: str) -> None:
    emulate(browser)
    open_page(browser, page)
    choose(browser, "y-scale", "log")
    choose(browser, "x-scale", "log")
    emulate(browser, "dark")
    for chart in ("loss", "learning-rate", "step-gradients", "throughput"):
        assert [axis_of(browser, chart, letter)["type"] for letter in "xy"] == ["log", "log"]
        assert drawn(browser)[chart]["marks"] > 0
    assert axis_of(browser, "phases", "y")["type"] == "linear"
    assert messages(browser) == []


def test_the_axes_can_be_chosen_by_keyboard(browser: webdriver.Chrome, page: str) -> None:
    emulate(browser)
    open_page(browser, page)
    browser.execute_script("document.querySelector('.axes input:checked').focus()")
    browser.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    assert axis_of(browser, "loss")["title"] == "training tokens"
    outline = "return getComputedStyle(document.querySelector('.axes :focus-visible + span')).outlineStyle"
    assert browser.execute_script(outline) == "solid"


@pytest.mark.parametrize(("width", "columns"), [(1200, 3), (390, 1)])
def test_samples_stand_side_by_side_where_there_is_room(
    browser: webdriver.Chrome, reported_run: Folder, tmp_path: Path, width: int, columns: int
) -> None:
    shutil.copytree(reported_run.url, tmp_path / "run")
    add_evaluations(Folder(str(tmp_path / "run")), *range(10, 120, 10))
    emulate(browser, width=width)
    open_page(browser, write_report(Folder(str(tmp_path / "run"))))
    lefts = "return [...document.querySelectorAll('#samples > .cards .card')].map((card) => card.offsetLeft)"
    assert len(set(browser.execute_script(lefts))) == columns
    assert len(browser.execute_script(lefts)) == 6
    browser.find_element("css selector", "#samples summary").send_keys(Keys.ENTER)
    assert browser.find_elements("css selector", "#samples details .card")[-1].is_displayed()
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert messages(browser) == []


def test_the_settings_can_be_searched(browser: webdriver.Chrome, page: str) -> None:
    emulate(browser)
    open_page(browser, page)
    browser.find_element("css selector", ".search").send_keys("Early_Stopping_Patience")
    rows = browser.find_elements("css selector", ".settings tbody tr")
    assert [row.text.split()[0] for row in rows if row.is_displayed()] == ["training.early_stopping_patience"]


def test_several_runs_are_one_page(browser: webdriver.Chrome, reported_run: Folder, tmp_path: Path) -> None:
    page = tmp_path / "comparison.html"
    page.write_text(report_page([reported_run, reported_run]))
    emulate(browser)
    open_page(browser, page)
    charts = drawn(browser)
    assert set(charts) == {"validation", "training", "throughput"}
    assert axis_of(browser, "validation") == {"title": "training tokens", "type": "linear"}
    assert all(counts["traces"] == 2 and counts["marks"] > 0 for counts in charts.values())
    assert messages(browser) == []
