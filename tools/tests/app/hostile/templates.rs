//! Chat templates that loop, recurse, or make more than memory holds.

use crate::harness::Folder;
use crate::hostile::refused;

/// A text `x` of 2 MB: it costs a third of the size that a rendering may make.
const TEXT: &str = "{% set x = 'ab' * 1000000 %}";
/// The end of a template that is too small for a limit.
const DONE: &str = "{{ raise_exception('done') }}";
/// A list `x` that has itself twice at each of 40 levels.
const TREE: &str = "{% set ns = namespace(x=['a']) %}{% for i in range(40) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{% set x = ns.x %}";
/// Another tree `y` with the same items as `x`.
const TWO_TREES: &str =
    "{% set n = namespace(x=['a']) %}{% for i in range(40) %}{% set n.x = [n.x, n.x] %}{% endfor %}{% set y = n.x %}";
/// A variable that is nested ten times as deep as there are turns.
fn deep(variable: &str, turns: usize) -> String {
    let nested = format!("{}n.x{}", "[".repeat(10), "]".repeat(10));
    format!(
        "{{% set n = namespace(x=['a']) %}}{{% for i in range({turns}) %}}{{% set n.x = {nested} %}}{{% endfor %}}{{% set {variable} = n.x %}}"
    )
}

/// Each runs for hours, or asks for more than memory has, if nothing bounds it.
fn templates() -> Vec<(&'static str, String)> {
    let with = |begin: &str, end: &str| format!("{begin}{end}");
    let trees = |end: &str| format!("{TREE}{TWO_TREES}{end}");
    let deeply = |end: &str| format!("{}{end}{DONE}", deep("x", 3_500));
    let loops = |depth: usize, body: &str| {
        format!("{}{body}{}", "{% for i in range(99999) %}".repeat(depth), "{% endfor %}".repeat(depth))
    };
    vec![
        ("nested loops", loops(2, "")),
        ("nested loops that write", loops(2, "x")),
        ("ten nested loops", loops(10, "")),
        ("a loop over a repeated list", "{% for i in [1] * 100000000 %}{% endfor %}".into()),
        ("a loop over the characters of a text", with(TEXT, "{% for c in x %}{% for d in x %}{% endfor %}{% endfor %}")),
        ("a loop that calls itself", "{% for i in [1, 2] recursive %}{{ loop([1, 2]) }}{% endfor %}".into()),
        ("a range without end", "{% for i in range(9000000000000000000) %}{% endfor %}".into()),
        ("a range of many", "{{ range(10000000000) | list | length }}".into()),
        ("a macro that calls itself", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}".into()),
        ("a macro that calls itself twice", "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}".into()),
        ("two macros that call each other", "{% macro f() %}{{ g() }}{% endmacro %}{% macro g() %}{{ f() }}{% endmacro %}{{ f() }}".into()),
        ("a call block that calls itself", "{% macro f() %}{% call f() %}{{ caller() }}{% endcall %}{% endmacro %}{{ f() }}".into()),
        ("a template that includes itself", "{% include 'chat' %}".into()),
        ("a template that includes itself twice", "{% include 'chat' %}{% include 'chat' %}".into()),
        ("a template that extends itself", "{% extends 'chat' %}".into()),
        ("a template that imports itself", "{% import 'chat' as c %}{{ c }}".into()),
        ("a block that is itself", "{% block b %}{{ self.b() }}{% endblock %}".into()),
        ("a text times a number", "{{ 'x' * 10000000000 }}".into()),
        ("a text times a number that is just allowed", "{{ ('x' * 100000000) | length }}".into()),
        ("a list times a number", "{{ ([1] * 10000000000) | length }}".into()),
        ("a list of many", "{{ ([1] * 100000000) | list | length }}".into()),
        ("a tuple times a number", "{{ ((1, 2) * 50000000) | length }}".into()),
        ("a text that doubles", "{% set n = namespace(x='ab') %}{% for i in range(50) %}{% set n.x = n.x + n.x %}{% endfor %}".into()),
        ("a text that doubles by ~", "{% set n = namespace(x='ab') %}{% for i in range(50) %}{% set n.x = n.x ~ n.x %}{% endfor %}".into()),
        ("a block that doubles", "{% set n = namespace(x='ab') %}{% for i in range(50) %}{% set n.x %}{{ n.x }}{{ n.x }}{% endset %}{% endfor %}".into()),
        ("a list of long texts, joined", with(TEXT, "{{ ([x] * 100000) | join }}")),
        ("a list, joined by a long text", with(TEXT, "{{ ([1] * 100000) | join(x) }}")),
        ("a list, joined by a method", with(TEXT, "{{ ''.join([x] * 100000) }}")),
        ("short texts, joined by a method", "{{ ''.join(['abcdefgh'] * 100000000) }}".into()),
        ("a list of long texts, as text", with(TEXT, "{{ ([x] * 100000) | string | length }}")),
        ("a list of long texts, written", with(TEXT, "{{ [x] * 100000 }}")),
        ("a list of long texts, by ~", with(TEXT, "{{ ([x] * 100000) ~ '' }}")),
        ("a list of long texts as JSON", with(TEXT, "{{ ([x] * 100000) | tojson }}")),
        ("a sum of texts", with(TEXT, "{{ ([x] * 100000) | sum(start='') }}")),
        ("a long text, counted", "{% set x = 'ab' * 500000 %}{% set y = 'ab' * 500000 %}{{ ([x] * 100000000).count(y) }}".into()),
        ("a text that starts with many", "{% set x = 'ab' * 500000 %}{{ x.startswith([x + 'a'] * 100000000) }}".into()),
        ("a text, stripped of many characters", "{% set x = 'a' * 1000000 %}{% set y = 'b' * 1000000 %}{{ x.strip(y + 'a') }}".into()),
        ("a text, trimmed of many characters", "{% set x = 'a' * 1000000 %}{% set y = 'b' * 1000000 %}{{ x | trim(y + 'a') }}".into()),
        ("each character replaced by a long text", with(TEXT, "{{ x | replace('a', x) | length }}")),
        ("each character replaced by a method", with(TEXT, "{{ x.replace('a', x) | length }}")),
        ("a wide format", "{{ '%9999999999d' | format(1) }}".into()),
        ("a precise format", "{{ '%.9999999999f' | format(1.5) }}".into()),
        ("a format as wide as its argument", "{{ '%*d' | format(9999999999, 1) }}".into()),
        ("a wide format by a method", "{{ '{:>9999999999}'.format(1) }}".into()),
        ("a precise format by a method", "{{ '{:.9999999999f}'.format(1.5) }}".into()),
        ("the widest format by a method", "{{ '{:>18446744073709551615}'.format(1) }}".into()),
        ("the most precise format by a method", "{{ '{:.18446744073709551615f}'.format(1.5) }}".into()),
        ("a number with more digits than the library takes", "{{ '{:.70000f}'.format(1) }}".into()),
        ("the widest indentation of JSON", "{{ 1 | tojson(indent=18446744073709551615) }}".into()),
        ("a wide indentation", "{{ 'a\\nb' | indent(10000000000) }}".into()),
        ("an indentation of many lines", "{{ ('a\\n' * 50000) | indent(50000) | length }}".into()),
        ("a wide indentation of JSON", "{{ [[1]] | tojson(indent=10000000000) }}".into()),
        ("a slice of many", "{{ [1] | slice(10000000000) | list }}".into()),
        ("a batch of many", "{{ [1] | batch(10000000000, 0) | list }}".into()),
        (
            "long texts, compared",
            with(TEXT, "{% set y = 'ab' * 1000000 %}{% for i in range(9999) %}{% if x == y and x <= y %}{% endif %}{% endfor %}"),
        ),
        ("long tags", "{% generation %}".repeat(45_000)),
        ("an open tag of blanks", format!("{{%{}", " ".repeat(250_000))),
        ("many open tags", "{%- ".repeat(60_000)),
        ("a tree as text", with(TREE, "{{ x }}")),
        ("a tree as text by ~", with(TREE, "{{ x ~ '' }}")),
        ("a tree in capitals", with(TREE, "{{ x | upper }}")),
        ("a tree as JSON", with(TREE, "{{ x | tojson }}")),
        ("two trees, compared", trees("{{ x == y }}")),
        ("two trees, ordered", trees("{{ x < y }}")),
        ("a tree in a list", trees("{{ x in [y] }}")),
        ("two trees, sorted", trees("{{ [x, y] | sort | length }}")),
        ("two trees, made unique", trees("{{ [x, y] | unique | list | length }}")),
        ("a tree as a key", with(TREE, "{{ {x: 1} | length }}")),
        ("a tree, raised", with(TREE, "{{ raise_exception(x) }}")),
        ("a deep list, written", deeply("{{ x }}")),
        ("a deep list by ~", deeply("{{ x ~ '' }}")),
        ("a deep list as JSON", deeply("{{ x | tojson }}")),
        ("a deep list, compared", format!("{}{}{{{{ x == y }}}}{DONE}", deep("x", 1_700), deep("y", 1_700))),
        ("a deep list, dropped", deeply("")),
        ("a deep list as a key", deeply("{{ {x: 1} }}")),
        ("nested brackets", format!("{{{{ {}1{} }}}}", "[".repeat(50_000), "]".repeat(50_000))),
        ("nested parentheses", format!("{{{{ {}1{} }}}}", "(".repeat(50_000), ")".repeat(50_000))),
        ("nested conditions", format!("{}{}", "{% if 1 %}".repeat(9_000), "{% endif %}".repeat(9_000))),
        ("nested braces", format!("{{{{ {}1{} }}}}", "{1:".repeat(50_000), "}".repeat(50_000))),
        ("many signs", format!("{{{{ {}1 }}}}{DONE}", "-".repeat(200_000))),
        ("many negations", format!("{{{{ {}1 }}}}{DONE}", "not ".repeat(60_000))),
        ("a chain of attributes", format!("{{{{ a{} }}}}", ".b".repeat(130_000))),
        ("a chain of sums", format!("{{{{ 1{} + a.b.c }}}}", "+a".repeat(130_000))),
        ("a chain of filters", format!("{{{{ a{} }}}}", "|d".repeat(130_000))),
        ("a chain of conditions", format!("{{% if raise_exception('a') %}}{}{{% endif %}}", "{%elif a%}".repeat(26_000))),
        ("a chain of choices", format!("{{{{ {} raise_exception('a') }}}}", "1 if a else ".repeat(21_000))),
        ("a long template", "words ".repeat(50_000)),
        ("the inside of the library", "{{ debug() }}".into()),
        ("a huge power", "{{ 9 ** 9 ** 9 ** 9 }}".into()),
    ]
}

#[test]
fn a_chat_template_takes_bounded_time_and_memory() {
    let folder = Folder::new("hostile-templates");
    let line = r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}"#;
    std::fs::write(folder.path("chats.jsonl"), line).unwrap();
    for (name, template) in templates() {
        std::fs::write(folder.path("template.jinja"), template).unwrap();
        let arguments = ["data", "inspect", "--sft", "--chat-template", "template.jinja", "chats.jsonl"];
        refused(name, &folder.0, &arguments, &["chat template"]);
    }
}
