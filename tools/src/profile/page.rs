//! A profile as a page.

use std::time::SystemTime;

use maud::html;

use super::result::Profile;
use super::table::{Cells, histograms, launches, memory, op_memory, operations, scopes};
use crate::page::document::{Section, plain_document};
use crate::page::html::{paragraph, table};

/// The profile as an HTML page that loads nothing.
pub fn page(profile: &Profile, now: SystemTime) -> String {
    let part = |id: &'static str, name: &'static str, text: &str, cells: &Cells| {
        let head: Vec<&str> = cells[0].iter().map(String::as_str).collect();
        Section::new(name, id, html! { (paragraph(text)) (table("", &head, &cells[1..])) })
    };
    let sections = [
        Section::new("Verdict", "verdict", paragraph(&profile.verdict)),
        part(
            "scopes",
            "Scopes",
            "A step without graphs and in each scope. What was expected follows from the first column alone.",
            &scopes(profile),
        ),
        part("memory", "Memory", "Device memory of a rank, by what it holds.", &memory(profile)),
        part(
            "times",
            "Times",
            "How many kernels take how long, and how long the device waits between them.",
            &histograms(profile),
        ),
        part(
            "operations",
            "Operations",
            "The operations of a step without graphs: the device's time, and the host's to submit one. The limit is the data \
             sheet's: FLOPs or bytes, whichever takes longer.",
            &operations(profile),
        ),
        part(
            "op-memory",
            "Memory of operations",
            "Operations without graphs, those first that run while most of the planned memory is in use.",
            &op_memory(profile),
        ),
        part(
            "launches",
            "Launches",
            "The graphs of each scope whose launches take most of the host's time.",
            &launches(profile),
        ),
    ];
    plain_document(&format!("Profile of {} on {}", profile.model, profile.device), "Measured", now, &sections)
}
