//! The whole page.

use std::time::SystemTime;

use common::escape::visible;
use common::time::rfc3339;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use serde_json::json;

use super::run::Run;
use super::{curves, experts, graphs, memory, overview, tables, timeline};

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");
const PLOTS: &str = include_str!("../../assets/uplot/uPlot.iife.min.js");
const PLOTS_STYLE: &str = include_str!("../../assets/uplot/uPlot.min.css");
const PLOTS_LICENCE: &str = include_str!("../../assets/uplot/LICENSE");

/// The page loads nothing, whatever a run's files hold.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'";

/// A section of a page.
pub(crate) struct Section {
    /// The name in the page's contents.
    pub(crate) name: &'static str,
    pub(crate) heading: &'static str,
    pub(crate) id: &'static str,
    pub(crate) html: Markup,
}

impl Section {
    /// A section whose heading is the section's name.
    pub(crate) fn new(name: &'static str, id: &'static str, html: Markup) -> Section {
        Section { name, heading: name, id, html }
    }
}

/// A page without a script. `made` is the word before the page's time: `Measured`.
pub(crate) fn plain_document(title: &str, made: &str, now: SystemTime, sections: &[Section]) -> String {
    whole(title, made, now, sections, "", &html! {})
}

fn whole(title: &str, made: &str, now: SystemTime, sections: &[Section], style: &str, scripts: &Markup) -> String {
    let (title, time) = (visible(title), rfc3339(now).replace('T', " ").replace('Z', " UTC"));
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                title { (title) }
                style { (PreEscaped(style)) "\n" (PreEscaped(STYLE)) }
            }
            body {
                @if let Some(first) = sections.first() { a class="skip" href={ "#" (first.id) } { "To the content" } }
                header { h1 { (title) } p { (made) " at " (time) "." } }
                nav aria-label="Contents" {
                    ul { @for section in sections { li { a href={ "#" (section.id) } { (section.name) } } } }
                }
                main {
                    @for Section { heading, id, html, .. } in sections {
                        section id=(id) aria-labelledby={ (id) "-heading" } {
                            h2 id={ (id) "-heading" } { (heading) }
                            (html)
                        }
                    }
                }
                (scripts)
            }
        }
    };
    page.into_string()
}

/// The page about the given runs, as of `now`. With `reload` the browser loads it again every so many seconds.
pub fn document(runs: &[Run], now: SystemTime, reload: Option<u64>) -> String {
    let names: Vec<&str> = runs.iter().map(|run| run.name.as_str()).collect();
    let timelines = timeline::timelines(runs);
    let sections = [
        Some(Section::new("Runs", "overview", overview::overview(runs))),
        Some(Section::new("Options", "options", overview::options(runs))),
        Some(Section::new("Curves", "curves", curves::curves(runs))),
        experts::experts(runs).map(|html| Section::new("Experts", "experts", html)),
        tables::samples(runs).map(|html| Section::new("Samples", "samples", html)),
        Some(Section::new("Graphs", "graphs", graphs::graphs(runs))),
        Some(Section::new("Memory plan", "memory-plan", memory::memory(runs))),
        Some(Section { name: "Timeline", heading: "Timeline of a step", id: "timeline", html: timelines }),
        Some(Section::new("Operations", "operations", tables::operations(runs))),
        Some(Section::new("Events", "events", tables::events(runs))),
    ];
    let sections: Vec<Section> = sections.into_iter().flatten().collect();
    let mut data = curves::data(runs);
    data["reload"] = json!(reload);
    // Within a script only "<" could end it.
    let data = data.to_string().replace('<', "\\u003c");
    let scripts = html! {
        script type="application/json" id="data" { (PreEscaped(data)) }
        script { "/*!\n" (PreEscaped(PLOTS_LICENCE)) "*/\n" (PreEscaped(PLOTS)) }
        script { (PreEscaped(SCRIPT)) }
    };
    let title = format!("Report of {}", names.join(", "));
    whole(&title, "Made from the runs' files", now, &sections, PLOTS_STYLE, &scripts)
}
