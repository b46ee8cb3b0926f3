//! The whole page.

use std::time::SystemTime;

use common::time::rfc3339;
use serde_json::json;

use super::html::escape;
use super::run::Run;
use super::{curves, experts, graphs, history, memory, operations, overview, samples, timeline};

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");
const PLOTS: &str = include_str!("../../assets/uplot/uPlot.iife.min.js");
const PLOTS_STYLE: &str = include_str!("../../assets/uplot/uPlot.min.css");
const PLOTS_LICENCE: &str = include_str!("../../assets/uplot/LICENSE");

/// The page loads nothing, whatever a run's files hold.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'";

/// The sections: the heading in the page's contents, and the id. Those of experts and samples may be left out.
const CONTENTS: [(&str, &str); 10] = [
    ("Runs", "overview"),
    ("Options", "options"),
    ("Curves", "curves"),
    ("Experts", "experts"),
    ("Samples", "samples"),
    ("Graphs", "graphs"),
    ("Memory plan", "memory-plan"),
    ("Timeline", "timeline"),
    ("Operations", "operations"),
    ("Events", "events"),
];

/// A page of sections without figures.
pub(crate) struct Page {
    pub(crate) title: String,
    /// The word before the page's time: `Measured`.
    pub(crate) made: &'static str,
    /// Heading, id and HTML of each.
    pub(crate) sections: Vec<(String, String, String)>,
}

/// A page that has no script.
pub(crate) fn plain_document(page: &Page, now: SystemTime) -> String {
    let (title, time) = (escape(&page.title), in_words(now));
    let links: String =
        page.sections.iter().map(|(name, id, _)| format!("<li><a href=\"#{id}\">{}</a></li>", escape(name))).collect();
    let sections: String = page.sections.iter().map(|(_, _, html)| html.as_str()).collect();
    let first = page.sections.first().map_or("", |(_, id, _)| id.as_str());
    format!(
        "{}<style>\n{STYLE}</style>\n</head>\n<body>\n<a class=\"skip\" href=\"#{first}\">To the content</a>\n\
         <header><h1>{title}</h1>\n<p>{} at {time}.</p>\n</header>\n\
         <nav aria-label=\"Contents\"><ul>{links}</ul></nav>\n<main>\n{sections}</main>\n</body>\n</html>\n",
        head(&title),
        page.made
    )
}

/// The beginning of every page. The title is escaped.
fn head(title: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\n<title>{title}</title>\n"
    )
}

fn in_words(time: SystemTime) -> String {
    rfc3339(time).replace('T', " ").replace('Z', " UTC")
}

/// The page about these runs, as it was at `now`. With `reload` the browser loads it again every so many seconds.
pub fn document(runs: &[Run], now: SystemTime, reload: Option<u64>) -> String {
    let names: Vec<&str> = runs.iter().map(|run| run.name.as_str()).collect();
    let title = escape(&format!("Report of {}", names.join(", ")));
    let time = in_words(now);
    let experts = experts::experts(runs);
    let samples = samples::samples(runs);
    let left_out = |id: &str| (id == "experts" && experts.is_none()) || (id == "samples" && samples.is_none());
    let contents = CONTENTS.iter().filter(|(_, id)| !left_out(id));
    let links: String = contents.map(|(name, id)| format!("<li><a href=\"#{id}\">{name}</a></li>")).collect();
    let sections = [
        overview::overview(runs),
        overview::options(runs),
        curves::curves(runs),
        experts.unwrap_or_default(),
        samples.unwrap_or_default(),
        graphs::graphs(runs),
        memory::memory(runs),
        timeline::timelines(runs),
        operations::operations(runs),
        history::history(runs),
    ];
    let mut data = curves::data(runs);
    data["reload"] = json!(reload);
    // Within a script only "<" could end it.
    let data = data.to_string().replace('<', "\\u003c");
    format!(
        "{}<style>\n{PLOTS_STYLE}\n{STYLE}</style>\n</head>\n<body>\n<a class=\"skip\" href=\"#overview\">To the content</a>\n\
         <header><h1>{title}</h1>\n<p>Made from the runs' files at {time}.</p>\n</header>\n\
         <nav aria-label=\"Contents\"><ul>{links}</ul></nav>\n<main>\n{}</main>\n\
         <script type=\"application/json\" id=\"data\">{data}</script>\n\
         <script>\n/*!\n{PLOTS_LICENCE}*/\n{PLOTS}\n</script>\n<script>\n{SCRIPT}</script>\n</body>\n</html>\n",
        head(&title),
        sections.concat()
    )
}
