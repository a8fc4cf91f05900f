// Draws the figures of the page, in the colours and on the axes of the reader's choice, and makes the settings
// searchable.
"use strict";
(() => {
  const { figures, axes } = JSON.parse(document.getElementById("plot-data").textContent);
  const divs = [...document.querySelectorAll("[data-plot]")];
  const root = document.documentElement;
  const hasMouse = matchMedia("(hover: hover)").matches;
  const PRINTED_WIDTH = 680; // a sheet of A4 between its margins, in CSS pixels
  const LOG_TICKS = { tickformat: "", exponentformat: "power", nticks: 4 }; // else every digit has its own
  const config = {
    responsive: true,
    displaylogo: false,
    displayModeBar: hasMouse ? "hover" : false,
    showSendToCloud: false, // what is in a report stays in it
    plotlyServerURL: "",
    modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"],
  };

  // Figures name colours as var(--name); Plotly needs values.
  function themed(value, colours) {
    if (typeof value === "string") {
      const name = /^var\((--[\w-]+)\)$/.exec(value);
      return name ? colours.getPropertyValue(name[1]).trim() : value;
    }
    if (Array.isArray(value)) return value.map((item) => themed(item, colours));
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, themed(item, colours)]));
  }

  function template(colours) {
    const axis = {
      gridcolor: "var(--grid)", linecolor: "var(--faint)", tickcolor: "var(--faint)", ticks: "outside", ticklen: 4,
      title: { font: { size: 12, color: "var(--quiet)" }, standoff: 8 },
    };
    return themed({
      layout: {
        paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
        font: { family: colours.getPropertyValue("--sans").trim(), size: 12, color: "var(--ink)" },
        xaxis: axis, yaxis: axis,
        hoverlabel: {
          bgcolor: "var(--raised)", bordercolor: "var(--faint)", align: "left",
          font: { family: colours.getPropertyValue("--sans").trim(), color: "var(--ink)", size: 12 },
        },
        modebar: { bgcolor: "rgba(0,0,0,0)", color: "var(--quiet)", activecolor: "var(--ink)" },
      },
    }, colours);
  }

  // Without a mouse there are no buttons above a chart, and a finger that moves over it must scroll the page.
  function forReader(layout) {
    const top = hasMouse ? layout.margin.t : 34;
    return {
      ...layout,
      margin: { ...layout.margin, t: layout.showlegend ? top : Math.min(top, 34) },
      dragmode: hasMouse ? "zoom" : false,
      width: "printing" in root.dataset ? PRINTED_WIDTH : undefined,
    };
  }

  // Where a step lies on another axis: between the two rows of its table that are around it.
  function placeOf(step, { steps, places }) {
    let low = 0, high = steps.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (steps[middle] <= step) low = middle;
      else high = middle;
    }
    return places[low] + ((places[high] - places[low]) * (step - steps[low])) / (steps[high] - steps[low]);
  }

  const chosen = (name) => document.querySelector(`.axes input[name="${name}"]:checked`).value;

  // A figure over steps, on the axes that are chosen.
  function onChosenAxes({ data, layout }) {
    const x = chosen("x"), type = { x: chosen("x-scale"), y: chosen("y-scale") };
    const moved = (step, run) => (x === "step" ? step : placeOf(step, axes.runs[run][x]));
    const format = { step: ",d", tokens: ",.0f", time: ",.2f" }[x];
    const title = { ...layout.xaxis.title, text: axes.titles[x] };
    return {
      data: data.map((trace) => ({ ...trace, x: trace.x.map((step) => moved(step, trace.meta?.run ?? 0)) })),
      layout: {
        ...layout,
        xaxis: { ...layout.xaxis, title, type: type.x, hoverformat: format },
        yaxis: type.y === "linear" ? layout.yaxis : { ...layout.yaxis, type: type.y, ...LOG_TICKS },
        shapes: layout.shapes?.map((shape) => ({ ...shape, x0: moved(shape.x0, 0), x1: moved(shape.x1, 0) })),
        uirevision: [x, type.x, type.y].join(), // another axis shows all of it
      },
    };
  }

  const isOverSteps = (div) => figures[div.dataset.plot].layout.meta?.over === "steps";

  function draw(some) {
    const colours = getComputedStyle(root);
    const shared = template(colours);
    for (const div of some) {
      const drawn = themed(figures[div.dataset.plot], colours);
      const figure = isOverSteps(div) ? onChosenAxes(drawn) : drawn;
      Plotly.react(div, figure.data, forReader({ ...figure.layout, template: shared }), config);
      if (figure.layout.meta?.labels === "sparse") thinLabels(div);
    }
  }

  // Shows the labels of a scatter plot, the first ones first, that lie on no other label.
  function thinLabels(div) {
    const figure = figures[div.dataset.plot];
    const { x, y, text } = figure.data[0];
    const { xaxis, yaxis, margin } = div.layout;
    const width = div.clientWidth - margin.l - margin.r, height = div.clientHeight - margin.t - margin.b;
    const place = (value, [from, to], length) => ((value - from) / (to - from)) * length;
    const taken = [];
    const kept = text.map((label, i) => {
      const left = place(x[i], xaxis.range, width), top = place(y[i], yaxis.range, height);
      if (left < 0 || left > width || top < 0 || top > height) return "";
      const half = 3.4 * label.length + 3;
      const box = [left - half, left + half, top - 7, top + 9];
      if (taken.some(([l, r, t, b]) => box[0] < r && l < box[1] && box[2] < b && t < box[3])) return "";
      taken.push(box);
      return label;
    });
    Plotly.restyle(div, { text: [kept] }, [0]);
  }

  function search(input) {
    const groups = [...document.querySelectorAll(".settings details")];
    const wanted = input.value.trim().toLowerCase();
    for (const group of groups) {
      let found = 0;
      for (const row of group.querySelectorAll("tbody tr")) {
        row.hidden = !row.textContent.toLowerCase().includes(wanted);
        found += row.hidden ? 0 : 1;
      }
      group.hidden = found === 0;
      group.open = wanted !== "" && found > 0;
    }
  }

  for (const input of document.querySelectorAll(".search")) input.addEventListener("input", () => search(input));
  if (divs.length === 0) return;
  for (const choices of document.querySelectorAll(".axes")) {
    choices.hidden = false;
    choices.addEventListener("change", () => draw(divs.filter(isOverSteps)));
  }
  draw(divs);
  for (const div of divs.filter((div) => figures[div.dataset.plot].layout.meta?.labels === "sparse")) {
    div.on("plotly_relayout", () => thinLabels(div));
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw(divs));
  // Paper is light, and nothing on it can be unfolded.
  addEventListener("beforeprint", () => {
    root.dataset.printing = "";
    for (const details of document.querySelectorAll("details:not([open])")) {
      details.open = true;
      details.dataset.folded = "";
    }
    draw(divs);
  });
  addEventListener("afterprint", () => {
    delete root.dataset.printing;
    for (const details of document.querySelectorAll("details[data-folded]")) {
      details.open = false;
      delete details.dataset.folded;
    }
    draw(divs);
  });
})();
