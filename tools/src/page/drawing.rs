//! Pieces of SVG. Colours come from the page's style, by class, so that a drawing follows light and dark.

use common::escape::visible;
use maud::{Markup, html};

/// Width of all drawings, in units of the drawing.
pub(crate) const WIDTH: f64 = 1000.0;

/// Room for labels at the left.
pub(crate) const LEFT: f64 = 126.0;

/// A drawing under way.
#[derive(Default)]
pub(crate) struct Drawing {
    shapes: Vec<Markup>,
}

impl Drawing {
    /// A box with a class, and a text shown under the pointer.
    pub(crate) fn mark(&mut self, place: [f64; 4], class: &str, title: &str) {
        let [x, y, width, height] = place.map(coordinate);
        self.shapes.push(html! {
            rect class={ "mark " (class) } x=(x) y=(y) width=(width) height=(height) { title { (visible(title)) } }
        });
    }

    /// A box that only separates.
    pub(crate) fn frame(&mut self, place: [f64; 4]) {
        let [x, y, width, height] = place.map(coordinate);
        self.shapes.push(html! { rect class="frame" x=(x) y=(y) width=(width) height=(height) {} });
    }

    /// Text with the anchor `start`, `middle` or `end`.
    pub(crate) fn text(&mut self, (x, y): (f64, f64), anchor: &str, class: &str, text: &str) {
        let [x, y] = [x, y].map(coordinate);
        self.shapes.push(html! { text class=(class) x=(x) y=(y) text-anchor=(anchor) { (visible(text)) } });
    }

    /// Five marks of a scale from 0 to `end`, at the right of [`LEFT`], each with a value.
    pub(crate) fn scale(&mut self, y: f64, end: f64, label: impl Fn(f64) -> String) {
        for part in 0..=4 {
            let share = f64::from(part) / 4.0;
            let x = LEFT + share * (WIDTH - LEFT);
            let anchor = if part == 4 { "end" } else { "start" };
            self.shapes.push(html! { path class="tick" d={ "M" (coordinate(x)) " " (coordinate(y - 5.0)) "v5" } {} });
            self.text((x, y + 13.0), anchor, "small", &label(share * end));
        }
    }

    /// The whole drawing. The keyboard can walk through it. `label` describes it.
    pub(crate) fn finish(self, height: f64, label: &str) -> Markup {
        let size = format!("0 0 {WIDTH} {height:.0}");
        html! {
            div class="wide" {
                svg class="marks" viewBox=(size) role="img" tabindex="0" aria-label=(visible(label)) {
                    @for shape in &self.shapes { (shape) }
                }
            }
        }
    }
}

fn coordinate(value: f64) -> String {
    format!("{value:.2}")
}

/// A line with the meaning of the classes: each class with its words.
pub(crate) fn legend(entries: &[(&str, &str)]) -> Markup {
    html! { p class="legend" { @for (class, words) in entries { span { i class={ "key " (class) } {} (words) } } } }
}
