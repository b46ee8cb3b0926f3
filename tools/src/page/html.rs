//! Pieces of HTML. Parameters described as text are escaped here; those described as HTML are not.

use std::fmt::Write;

pub(crate) use common::escape::html as escape;

/// A table. The cells are text; a row's first cell names the row.
pub(crate) fn table(caption: &str, head: &[&str], rows: &[Vec<String>]) -> String {
    let mut html =
        format!("<div class=\"wide\" tabindex=\"0\"><table><caption>{}</caption>\n<thead><tr>", escape(caption));
    for cell in head {
        let _ = write!(html, "<th scope=\"col\">{}</th>", escape(cell));
    }
    html += "</tr></thead>\n<tbody>\n";
    for row in rows {
        for (at, cell) in row.iter().enumerate() {
            let (open, close) = if at == 0 { ("<tr><th scope=\"row\">", "</th>") } else { ("<td>", "</td>") };
            let _ = write!(html, "{open}{}{close}", escape(cell));
        }
        html += "</tr>\n";
    }
    html + "</tbody></table></div>\n"
}

/// A figure: a drawing as HTML, its caption as text, and its numbers as HTML for people who do not see the drawing.
pub(crate) fn figure(id: &str, drawing: &str, caption: &str, instead: &str) -> String {
    format!(
        "<figure id=\"{id}\">\n{drawing}\n<figcaption>{}</figcaption>\n<details><summary>The same in numbers</summary>\n\
         {instead}</details>\n</figure>\n",
        escape(caption)
    )
}

/// A paragraph of text. Words between backquotes are code.
pub(crate) fn paragraph(text: &str) -> String {
    let parts = text.split('`').enumerate().map(|(at, part)| match at % 2 {
        0 => escape(part),
        _ => format!("<code>{}</code>", escape(part)),
    });
    format!("<p>{}</p>\n", parts.collect::<String>())
}

/// A section with its heading. `id` is that of the page's contents.
pub(crate) fn section(id: &str, heading: &str, html: &str) -> String {
    format!(
        "<section id=\"{id}\" aria-labelledby=\"{id}-heading\">\n<h2 id=\"{id}-heading\">{}</h2>\n{html}</section>\n",
        escape(heading)
    )
}

/// The parts of a section about each of the runs, by name: HTML, or the sentences that say why there is none. Runs with the
/// same sentences share a paragraph. With a single run the page says its name at the top.
pub(crate) fn of_runs<'r>(parts: impl Iterator<Item = (&'r str, Result<String, &'r str>)>) -> String {
    let parts: Vec<(&str, Result<String, &str>)> = parts.collect();
    if let [(_, part)] = &parts[..] {
        return part.clone().unwrap_or_else(paragraph);
    }
    let mut html = String::new();
    let mut without: Vec<(&str, Vec<&str>)> = Vec::new();
    for (name, part) in parts {
        match part {
            Ok(part) => html += &format!("<h3>{}</h3>\n{part}", escape(name)),
            Err(why) => match without.iter_mut().find(|(same, _)| *same == why) {
                Some((_, names)) => names.push(name),
                None => without.push((why, vec![name])),
            },
        }
    }
    html + &without.iter().map(|(why, names)| paragraph(&format!("{}: {why}", names.join(", ")))).collect::<String>()
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
        let bad = "<img src=x onerror=alert(1)>";
        let rows = [vec![bad.to_string(), bad.to_string()]];
        let all = [
            table(bad, &[bad], &rows),
            figure("id", "", bad, ""),
            paragraph(&format!("{bad} `{bad}`")),
            section("id", bad, ""),
            of_runs([(bad, Ok(String::new())), (bad, Err(bad))].into_iter()),
        ];
        assert!(all.iter().all(|html| !html.contains("<img") && html.contains("&lt;img")), "{all:?}");
    }

    #[test]
    fn runs_that_lack_the_same_share_a_paragraph_and_a_single_run_needs_no_name() {
        let parts = [("a", Err("None.")), ("b", Ok("<i>b</i>".to_string())), ("c", Err("None."))];
        assert_eq!(of_runs(parts.clone().into_iter()), "<h3>b</h3>\n<i>b</i><p>a, c: None.</p>\n");
        assert_eq!(of_runs(parts.into_iter().take(1)), "<p>None.</p>\n");
    }

    #[test]
    fn numbers_have_four_digits_or_more() {
        let shown = [0.0, 1234567.8, 136.5171, 28.3643, 2.34567, 0.54321, 0.01234567, -0.00123, -0.00012].map(number);
        let expected = ["0", "1234568", "136.5", "28.36", "2.3457", "0.5432", "0.01235", "-0.001230", "-1.200e-4"];
        assert_eq!(shown, expected);
    }
}
