//! Pieces of HTML. Text from files also has no character that changes the direction of the text around it.

use common::escape::visible;
use maud::{Markup, html};

use super::run::Run;

/// A table. A row's first cell names the row.
pub(crate) fn table(caption: &str, head: &[&str], rows: &[Vec<String>]) -> Markup {
    html! {
        div class="wide" tabindex="0" {
            table {
                caption { (visible(caption)) }
                thead { tr { @for cell in head { th scope="col" { (visible(cell)) } } } }
                tbody {
                    @for row in rows {
                        tr {
                            @for (at, cell) in row.iter().enumerate() {
                                @if at == 0 { th scope="row" { (visible(cell)) } } @else { td { (visible(cell)) } }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// A figure: a drawing, its caption, and its numbers for people who do not see the drawing.
pub(crate) fn figure(id: &str, drawing: &Markup, caption: &str, instead: &Markup) -> Markup {
    html! {
        figure id=(id) {
            (drawing)
            figcaption { (visible(caption)) }
            details { summary { "The same in numbers" } (instead) }
        }
    }
}

/// A paragraph of text. Words between backquotes are code.
pub(crate) fn paragraph(text: &str) -> Markup {
    html! {
        p {
            @for (at, part) in visible(text).split('`').enumerate() {
                @if at % 2 == 0 { (part) } @else { code { (part) } }
            }
        }
    }
}

/// The parts of a section about each of the runs: HTML, or the sentences that say why there is none. Runs with the same
/// sentences share a paragraph. With a single run the page says its name at the top.
pub(crate) fn of_runs<'r>(
    runs: impl IntoIterator<Item = &'r Run>,
    part: impl Fn(usize, &'r Run) -> Result<Markup, &'r str>,
) -> Markup {
    parts(runs.into_iter().enumerate().map(|(at, run)| (run.name.as_str(), part(at, run))).collect())
}

fn parts(parts: Vec<(&str, Result<Markup, &str>)>) -> Markup {
    if let [(_, part)] = &parts[..] {
        return part.clone().unwrap_or_else(paragraph);
    }
    let mut without: Vec<(&str, Vec<&str>)> = Vec::new();
    for (name, part) in &parts {
        let Err(why) = part else { continue };
        match without.iter_mut().find(|(same, _)| same == why) {
            Some((_, names)) => names.push(name),
            None => without.push((why, vec![name])),
        }
    }
    html! {
        @for (name, part) in &parts {
            @if let Ok(part) = part { h3 { (visible(name)) } (part) }
        }
        @for (why, names) in &without { (paragraph(&format!("{}: {why}", names.join(", ")))) }
    }
}

/// A number with four digits or more.
pub(crate) fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        1e5.. => format!("{value:.0}"),
        1e2.. => format!("{value:.1}"),
        1e1.. => format!("{value:.2}"),
        1e0.. => format!("{value:.4}"),
        size @ 1e-3.. => format!("{value:.*}", 3 + (-size.log10()).ceil() as usize),
        _ => format!("{value:.3e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_files_is_never_a_tag() {
        let bad = "<img src=x onerror=alert(1)>\u{202e}";
        let rows = [vec![bad.to_string(), bad.to_string()]];
        let all = [
            table(bad, &[bad], &rows),
            figure("id", &html! {}, bad, &html! {}),
            paragraph(&format!("{bad} `{bad}`")),
            parts(vec![(bad, Ok(html! {})), (bad, Err(bad))]),
        ];
        for html in all.map(Markup::into_string) {
            assert!(!html.contains("<img") && html.contains("&lt;img") && !html.contains('\u{202e}'), "{html}");
        }
    }

    #[test]
    fn runs_that_lack_the_same_share_a_paragraph_and_a_single_run_needs_no_name() {
        let all = vec![("a", Err("None.")), ("b", Ok(html! { i { "b" } })), ("c", Err("None."))];
        assert_eq!(parts(all[..1].to_vec()).0, "<p>None.</p>");
        assert_eq!(parts(all).0, "<h3>b</h3><i>b</i><p>a, c: None.</p>");
    }

    #[test]
    fn numbers_have_four_digits_or_more() {
        let shown = [0.0, 1234567.8, 136.5171, 28.3643, 2.34567, 0.54321, 0.01234567, -0.00123, -0.00012].map(number);
        let expected = ["0", "1234568", "136.5", "28.36", "2.3457", "0.5432", "0.01235", "-0.001230", "-1.200e-4"];
        assert_eq!(shown, expected);
    }
}
