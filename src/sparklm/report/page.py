"""report.html: a run, or several beside each other, in one file that needs no network.

The file holds Plotly, the figures as JSON, and the page's own style and script. Its content security policy names the
two scripts by their hashes and allows no request at all, so nothing that a model wrote can run or call home.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from importlib.resources import files

import jinja2
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from sparklm import __version__
from sparklm.report.axes import PageAxes, axis_choices, page_axes
from sparklm.report.charts import Plot
from sparklm.report.comparison import comparison_sections, run_names
from sparklm.report.facts import RunFacts, gather_facts
from sparklm.report.parts import Section
from sparklm.report.sections import head_facts, key_figures, run_sections
from sparklm.storage import Folder
from sparklm.training.run import REPORT


def write_report(run: Folder) -> str:
    """Write a run's report into its folder; returns its address."""
    run.write_text(REPORT, report_page([run]))
    return run.address(REPORT)


def report_page(runs: Sequence[Folder]) -> str:
    """The page of a run, finished or not; of several, a comparison."""
    return page_of([gather_facts(run) for run in runs])


def page_of(all_facts: Sequence[RunFacts]) -> str:
    """The page, from what was read already."""
    names = run_names([facts.run for facts in all_facts])
    if len(all_facts) == 1:
        facts = all_facts[0]
        return _render(
            title=f"Run {names[0]}",
            state=facts.state,
            is_finished=facts.is_finished,
            figures=key_figures(facts),
            facts=head_facts(facts),
            sections=run_sections(facts),
            axes=page_axes(all_facts),
            first_axis="step",
        )
    return _render(
        title=f"{len(all_facts)} runs compared",
        state="",
        is_finished=False,
        figures=[],
        facts=[(name, facts.run.url) for name, facts in zip(names, all_facts, strict=True)],
        sections=comparison_sections(all_facts),
        axes=page_axes(all_facts),
        first_axis="tokens",  # the scale on which runs with other batches compare
    )


def _render(*, sections: Sequence[Section], axes: PageAxes, first_axis: str, **head: object) -> str:
    plots = [part for section in sections for part in section.parts if isinstance(part, Plot)]
    scripts = [get_plotlyjs().replace("\r", "") if plots else "", _resource("page.js")]
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    template = environment.from_string(_resource("page.html"))
    return template.render(
        **head,
        sections=sections,
        groups=_grouped(sections),
        choices=axis_choices(axes, first_axis),
        version=__version__,
        style=Markup(_resource("page.css")),
        scripts=[Markup(script) for script in scripts],
        policy=" ".join(f"'sha256-{_digest(script)}'" for script in scripts),
        plot_data=inert_json(
            {"figures": {plot.name: json.loads(plot.figure.to_json()) for plot in plots}, "axes": asdict(axes)}
        ),
    )


def _grouped(sections: Sequence[Section]) -> list[tuple[bool, Sequence[Section]]]:
    """Cut the sections in three: the choice of axes stands over those from the first to the last that it changes."""
    places = [place for place, section in enumerate(sections) if section.is_over_steps]
    if not places:
        return [(False, sections)]
    first, after = places[0], places[-1] + 1
    return [(False, sections[:first]), (True, sections[first:after]), (False, sections[after:])]


def _resource(name: str) -> str:
    return files("sparklm.report").joinpath(name).read_text("utf-8")


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def inert_json(value: object) -> Markup:
    """Write JSON in which no text can end the element that it stands in, or begin another."""
    text = json.dumps(value, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))
