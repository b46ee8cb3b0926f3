//! Pieces of SVG. Colours come from the page's style, by class, so that a drawing follows light and dark.

use std::fmt::Write;

use super::html::escape;

/// Width of all drawings, in units of the drawing.
pub(crate) const WIDTH: f64 = 1000.0;

/// Room for labels at the left.
pub(crate) const LEFT: f64 = 126.0;

/// A drawing under way.
pub(crate) struct Drawing {
    svg: String,
}

impl Drawing {
    pub(crate) fn new() -> Drawing {
        Drawing { svg: String::new() }
    }

    /// A box with a class, and a text shown under the pointer.
    pub(crate) fn mark(&mut self, [x, y, width, height]: [f64; 4], class: &str, title: &str) {
        let _ = writeln!(
            self.svg,
            "<rect class=\"mark {class}\" x=\"{x:.2}\" y=\"{y:.2}\" width=\"{width:.2}\" height=\"{height:.2}\"><title>{}</title></rect>",
            escape(title)
        );
    }

    /// A box that only separates.
    pub(crate) fn frame(&mut self, [x, y, width, height]: [f64; 4]) {
        let _ = writeln!(
            self.svg,
            "<rect class=\"frame\" x=\"{x:.2}\" y=\"{y:.2}\" width=\"{width:.2}\" height=\"{height:.2}\"/>"
        );
    }

    /// Text with the anchor `start`, `middle` or `end`.
    pub(crate) fn text(&mut self, (x, y): (f64, f64), anchor: &str, class: &str, text: &str) {
        let text = escape(text);
        let _ = writeln!(
            self.svg,
            "<text class=\"{class}\" x=\"{x:.2}\" y=\"{y:.2}\" text-anchor=\"{anchor}\">{text}</text>"
        );
    }

    /// Five marks of a scale from 0 to `end`, at the right of [`LEFT`], each with its value.
    pub(crate) fn scale(&mut self, y: f64, end: f64, label: impl Fn(f64) -> String) {
        for part in 0..=4 {
            let share = f64::from(part) / 4.0;
            let x = LEFT + share * (WIDTH - LEFT);
            let anchor = if part == 4 { "end" } else { "start" };
            let _ = writeln!(self.svg, "<path class=\"tick\" d=\"M{x:.2} {:.2}v5\"/>", y - 5.0);
            self.text((x, y + 13.0), anchor, "small", &label(share * end));
        }
    }

    /// The whole drawing. The keyboard can walk through it. `label` describes it.
    pub(crate) fn finish(self, height: f64, label: &str) -> String {
        format!(
            "<div class=\"wide\"><svg class=\"marks\" viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" tabindex=\"0\" \
             aria-label=\"{}\">\n{}</svg></div>\n",
            escape(label),
            self.svg
        )
    }
}

/// A line with the meaning of the classes: each class with its words.
pub(crate) fn legend(entries: &[(&str, &str)]) -> String {
    let entry = |(class, words): &(&str, &str)| format!("<span><i class=\"key {class}\"></i>{}</span>", escape(words));
    format!("<p class=\"legend\">{}</p>\n", entries.iter().map(entry).collect::<String>())
}
