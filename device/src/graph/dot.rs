//! A graph as a drawing, in Graphviz's language.

use std::fmt::Write;
use std::rc::Rc;

use super::Node;

/// The nodes of a graph as they were captured, each with its stream, and an edge from each node to those that wait for
/// it. `streams` has the names of all streams.
pub(super) fn captured(name: &str, nodes: &[Node], streams: &[Rc<str>]) -> String {
    let name = quoted(name);
    let mut dot = format!("digraph {name} {{\n  label={name};\n  rankdir=LR;\n  node [shape=box];\n");
    for (index, node) in nodes.iter().enumerate() {
        let label = quoted(&format!("{}\nstream {}", node.label, streams[node.stream.index()]));
        let _ = writeln!(dot, "  n{index} [label={label}];");
        for before in &node.dependencies {
            let _ = writeln!(dot, "  n{before} -> n{index};");
        }
    }
    dot + "}\n"
}

/// The driver's print of a graph, after a line with its name.
pub(super) fn named(name: &str, print: &str) -> String {
    format!("// {}\n{print}", name.replace(char::is_control, " "))
}

/// A text as a string of Graphviz.
fn quoted(text: &str) -> String {
    let escaped = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("\"{}\"", escaped.replace(char::is_control, " "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_a_caller_cannot_end_a_string_or_a_comment() {
        assert_eq!(quoted("a \"b\" \\ c\nd\te"), r#""a \"b\" \\ c\nd e""#);
        assert_eq!(named("first\n} graph", "digraph dot {\n}\n"), "// first } graph\ndigraph dot {\n}\n");
    }
}
