"use strict";

// Draws the curves, and lets pointer and keyboard read every figure. Sets `data-drawn` of the document to the ids of the figures
// that show something, and `data-errors` to what failed.
(() => {
    const root = document.documentElement;
    addEventListener("error", (event) => (root.dataset.errors = `${root.dataset.errors || ""}${event.message}\n`));

    const data = JSON.parse(document.getElementById("data").textContent);
    const drawn = [];
    const HEIGHT = 250;

    // Runs differ in colour and in dashes. With more runs than colours the pairs differ.
    const COLOURS = 6;
    const DASHES = [[], [9, 5], [2, 4], [14, 4, 3, 4], [5, 3], [16, 7]];
    const BORDERS = ["solid", "dashed", "dotted", "double", "dashed", "dashed"];
    const dash = (run) => (run + Math.floor(run / COLOURS)) % DASHES.length;
    const style = (name) => getComputedStyle(root).getPropertyValue(name).trim();

    function words(value) {
        const size = Math.abs(value);
        if (value === null || value === undefined) return "–";
        if (size !== 0 && size < 1e-3) return value.toExponential(3);
        if (size >= 1e3) return value.toLocaleString("en", { notation: "compact", maximumSignificantDigits: 5 });
        return value.toLocaleString("en", { maximumSignificantDigits: 5 });
    }

    function outputAfter(element) {
        const output = document.createElement("output");
        element.after(output);
        return output;
    }

    // What the curves are drawn along: the place of its numbers in the data, its unit, and the size of that.
    const along = document.getElementById("along");
    const smooth = document.getElementById("smooth");
    const log = document.getElementById("log");
    const longest = Math.max(0, ...Object.values(data.curves).flat().map((table) => table[3]?.at(-1) ?? 0));
    const hours = longest >= 3 * 3600;
    const AXES = {
        step: { at: 0, unit: "step", size: 1 },
        tokens: { at: 2, unit: "tokens", size: 1 },
        time: { at: 3, unit: hours ? "hours" : "minutes", size: hours ? 3600 : 60 },
    };

    // The mean of the values so far, each worth `weight` of the next one.
    function smoothed(values, weight) {
        let sum = 0;
        let worth = 0;
        return values.map((value) => {
            if (value === null || weight === 0) return value;
            sum = weight * sum + value;
            worth = weight * worth + 1;
            return sum / worth;
        });
    }

    // A run's curve: places from the lowest on, the values, and if there is a weight the smoothed ones. Steps whose place is
    // not known are left out.
    function table([steps, values, tokens, seconds], { at, size }, weight) {
        const places = [steps, values, tokens, seconds][at];
        const known = places.map((place, index) => index).filter((index) => places[index] !== null && !(places[index] <= places[index - 1]));
        const drawn = weight > 0 ? [values, smoothed(values, weight)] : [values];
        return [known.map((index) => places[index] / size), ...drawn.map((all) => known.map((index) => all[index]))];
    }

    function curve(box) {
        const axisOf = AXES[along.value];
        // Few values, as those of evaluations, are never smoothed.
        const weight = "sparse" in box.dataset ? 0 : Number(smooth.value);
        const tables = data.curves[box.dataset.curve].map((of) => table(of, axisOf, weight));
        // Of each run the values, drawn first, and then what the legend is about.
        const raw = weight > 0 ? data.runs.length : 0;
        const behind = tables.map(([places, values]) => [places, values]).slice(0, raw);
        const joined = uPlot.join([...behind, ...tables.map((all) => [all[0], all.at(-1)])]);
        const isAbove0 = joined.slice(1).every((values) => values.every((value) => value === null || value === undefined || value > 0));
        const output = box.nextElementSibling?.matches("output") ? box.nextElementSibling : outputAfter(box);
        if (joined.slice(1).every((values) => values.every((value) => value === null || value === undefined))) {
            output.textContent = "The runs have no such numbers yet.";
            box.style.minHeight = 0;
            return null;
        }
        const axis = { stroke: style("--text"), grid: { stroke: style("--line"), width: 1 }, ticks: { stroke: style("--line") } };
        const series = data.runs.map((name, run) => ({
            label: name,
            stroke: style(`--series-${run % COLOURS}`),
            width: 2,
            dash: DASHES[dash(run)],
            value: (_, value) => words(value),
        }));
        const faint = series.slice(0, raw).map((line) => ({ ...line, class: "raw", width: 1, dash: [], alpha: 0.3 }));
        const plot = new uPlot(
            {
                width: box.clientWidth,
                height: HEIGHT,
                scales: { x: { time: false }, y: { distr: log.checked && isAbove0 ? 3 : 1 } },
                // A run that the legend hides is hidden with its values.
                hooks: { setSeries: [(plot, at, { show }) => at > raw && raw > 0 && show !== undefined && plot.setSeries(at - raw, { show })] },
                axes: [
                    {
                        ...axis,
                        incrs: [1, 2, 5].flatMap((n) => [...Array(16).keys()].map((p) => n * 10 ** (along.value === "time" ? p - 3 : p))).sort((a, b) => a - b),
                        values: (_, splits) => splits.map((value) => (along.value === "step" ? value : words(value))),
                    },
                    { ...axis, size: 62, values: (_, splits) => splits.map((value) => (value === null ? "" : words(value)).replace(/\.?0+e/, "e")) },
                ],
                series: [{ label: axisOf.unit, value: (_, value) => (along.value === "step" && value !== null ? `${value}` : words(value)) }, ...faint, ...series],
                cursor: { sync: { key: "steps", setSeries: false, scales: ["x", null] } },
                legend: { markers: { dash: (_, line) => BORDERS[dash((line - 1) % data.runs.length)], width: 3 } },
            },
            joined,
            box,
        );
        drawn.push(box.dataset.curve);
        return { box, plot, places: joined[0], joined, first: 1 + raw, output, unit: axisOf.unit };
    }

    function walk({ box, plot, places, joined, first, output, unit }) {
        let at = -1;
        box.onkeydown = (event) => {
            const jump = event.shiftKey ? Math.max(1, Math.round(places.length / 20)) : 1;
            if (event.key === "ArrowRight") at = Math.min(at + jump, places.length - 1);
            else if (event.key === "ArrowLeft") at = Math.max(at < 0 ? places.length - 1 : at - jump, 0);
            else if (event.key === "Home") at = 0;
            else if (event.key === "End") at = places.length - 1;
            else if (event.key === "Escape") return plot.setData(joined);
            else return;
            event.preventDefault();
            plot.setCursor({ left: plot.valToPos(places[at], "x"), top: plot.over.clientHeight / 2 });
            const values = data.runs.map((name, run) => `${name} ${words(joined[first + run][at])}`);
            const place = unit === "step" ? places[at] : words(places[at]);
            output.textContent = `${unit === "step" ? `step ${place}` : `${place} ${unit}`}: ${values.join(", ")}`;
        };
    }

    let curves = [];
    function drawCurves() {
        curves.forEach(({ plot }) => plot.destroy());
        curves = [...document.querySelectorAll(".curve")].map(curve).filter((made) => made);
        curves.forEach(walk);
    }
    drawCurves();
    for (const control of [along, smooth, log]) control.addEventListener("input", drawCurves);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawCurves);
    addEventListener("resize", () => curves.forEach(({ box, plot }) => plot.setSize({ width: box.clientWidth, height: HEIGHT })));

    // A mark of a drawing is what has a title. The text below the drawing tells the title of the current one.
    for (const svg of document.querySelectorAll("figure svg:not(.loads)")) {
        const marks = [...svg.querySelectorAll("title")].map((title) => title.parentNode);
        const output = outputAfter(svg.parentNode);
        let at = -1;
        const show = (next) => {
            marks[at]?.classList.remove("current");
            at = next;
            marks[at].classList.add("current");
            output.textContent = marks[at].querySelector("title").textContent;
        };
        svg.tabIndex = 0;
        svg.onkeydown = (event) => {
            const jump = event.shiftKey ? Math.max(1, Math.round(marks.length / 20)) : 1;
            const keys = {
                ArrowRight: Math.min(at + jump, marks.length - 1),
                ArrowLeft: Math.max(at - jump, 0),
                Home: 0,
                End: marks.length - 1,
            };
            if (!(event.key in keys) || marks.length === 0) return;
            event.preventDefault();
            show(keys[event.key]);
            marks[at].scrollIntoView({ block: "nearest", inline: "nearest" });
        };
        svg.onpointerover = (event) => {
            const next = marks.indexOf(event.target.closest(".mark, g"));
            if (next >= 0) show(next);
        };
        if (marks.length > 0 && svg.getBoundingClientRect().width > 0) drawn.push(svg.closest("figure").id);
    }

    // A page that is written again and again loads itself again, unless the reader asks it not to.
    if (data.reload) {
        const label = document.createElement("label");
        label.innerHTML = '<input type="checkbox"> ';
        label.append(`Load the page again every ${data.reload} s`);
        label.className = "reload";
        document.querySelector("header").append(label);
        const box = label.querySelector("input");
        box.checked = location.hash !== "#paused";
        box.onchange = () => {
            location.hash = box.checked ? "" : "paused";
        };
        setInterval(() => box.checked && location.reload(), data.reload * 1000);
    }

    root.dataset.drawn = drawn.join(" ");
})();
