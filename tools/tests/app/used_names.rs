//! The names that a source file uses of its own crate: the imports of its `use` items, and the paths in its code.

use std::collections::BTreeSet;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// A module's path, such as `config::sources`; empty for the root of a crate.
pub type Module = Vec<String>;

/// A name that a file uses, from the crate's root.
pub struct Used {
    pub path: Module,
    /// The form of the use.
    pub by: By,
}

/// How a file uses a name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// A `use` item.
    Import,
    /// A `pub use` item: it is there for others, and no use by itself.
    Reexport,
    /// A path in the code.
    Path,
}

/// The names of its crate that the file of `module` uses, outside of code compiled for tests only. `modules` are all of
/// the crate.
pub fn used_names(text: &str, module: &Module, modules: &BTreeSet<Module>) -> Vec<Used> {
    let tokens: TokenStream = text.parse().unwrap_or_else(|error| panic!("{}: {error}", module.join("::")));
    let mut found = Vec::new();
    find(&tokens.into_iter().collect::<Vec<_>>(), &mut found);
    let imports: Vec<Module> = (found.iter().filter(|(_, by)| *by != By::Path))
        .filter_map(|(path, _)| absolute(path, module, modules, &[]))
        .collect();
    let used = found.iter().filter_map(|(path, by)| {
        let imports = if *by == By::Path { imports.as_slice() } else { &[] };
        Some(Used { path: absolute(path, module, modules, imports)?, by: *by })
    });
    used.collect()
}

/// The names of the items that a source file defines outside of braces.
pub fn defined_names(text: &str) -> BTreeSet<String> {
    let tokens: Vec<TokenTree> = text.parse::<TokenStream>().map(|all| all.into_iter().collect()).unwrap_or_default();
    let words = ["const", "enum", "fn", "macro_rules", "static", "struct", "trait", "type", "union"];
    let named = |pair: &[TokenTree]| words.iter().any(|word| is_word(&pair[0], word)).then(|| pair[1].to_string());
    let items = tokens.iter().filter(|token| !is_punct(token, '!')).cloned().collect::<Vec<_>>();
    items.windows(2).filter_map(named).collect()
}

/// A path as seen from the crate's root, unless it leads out of the crate. Without `crate`, `self` or `super` it begins
/// with a module inside this one, or with an imported name.
fn absolute(path: &[String], module: &Module, modules: &BTreeSet<Module>, imports: &[Module]) -> Option<Module> {
    let inside = [module.as_slice(), &path[..1]].concat();
    match path[0].as_str() {
        "crate" => Some(path[1..].to_vec()),
        "self" => Some([module, &path[1..]].concat()),
        "super" => {
            let up = path.iter().take_while(|part| *part == "super").count();
            Some([&module[..module.len().checked_sub(up)?], &path[up..]].concat())
        }
        _ if modules.contains(&inside) => Some([inside.as_slice(), &path[1..]].concat()),
        head => {
            let import = imports.iter().find(|import| import.last().is_some_and(|last| last == head))?;
            Some([import, &path[1..]].concat())
        }
    }
}

/// Finds all paths in tokens, also those within macros.
fn find(tokens: &[TokenTree], found: &mut Vec<(Vec<String>, By)>) {
    let mut at = 0;
    while at < tokens.len() {
        if is_test(&tokens[at..]) {
            // The item ends with its braces, or with a semicolon.
            let ends = |token: &TokenTree| {
                is_punct(token, ';')
                    || matches!(token, TokenTree::Group(group) if group.delimiter() == Delimiter::Brace)
            };
            at += tokens[at..].iter().position(ends).map_or(tokens.len(), |end| end + 1);
        } else if is_word(&tokens[at], "use") {
            let item = tokens[at..].split(|token| is_punct(token, ';')).next().unwrap_or_default();
            // `pub use`, and `pub(crate) use`.
            let is_public = tokens[at.saturating_sub(2)..at].iter().any(|token| is_word(token, "pub"));
            let by = if is_public { By::Reexport } else { By::Import };
            expand(&[], &item[1..], &mut |path| found.push((path, by)));
            at += item.len();
        } else if let Some((path, length)) = path_at(&tokens[at..]).filter(|_| !follows_a_path(tokens, at)) {
            found.push((path, By::Path));
            at += length;
        } else {
            if let TokenTree::Group(group) = &tokens[at] {
                find(&group.stream().into_iter().collect::<Vec<_>>(), found);
            }
            at += 1;
        }
    }
}

fn is_word(token: &TokenTree, word: &str) -> bool {
    matches!(token, TokenTree::Ident(ident) if ident == word)
}

fn is_punct(token: &TokenTree, letter: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == letter)
}

/// Whether tokens begin with `#[cfg(test)]`.
fn is_test(tokens: &[TokenTree]) -> bool {
    let [hash, TokenTree::Group(group), ..] = tokens else { return false };
    is_punct(hash, '#') && group.stream().to_string().replace(' ', "") == "cfg(test)"
}

fn begins_with_colons(tokens: &[TokenTree]) -> bool {
    matches!(tokens, [first, second, ..] if is_punct(first, ':') && is_punct(second, ':'))
}

/// Whether the token at `at` belongs to a path or a value before it, such as the method in `<T>::new` or `x.new`.
fn follows_a_path(tokens: &[TokenTree], at: usize) -> bool {
    at >= 2 && begins_with_colons(&tokens[at - 2..]) || at >= 1 && is_punct(&tokens[at - 1], '.')
}

/// The path of at least two names that tokens begin with, and its length in tokens.
fn path_at(tokens: &[TokenTree]) -> Option<(Vec<String>, usize)> {
    let mut path = Vec::new();
    let mut length = 0;
    while let Some(TokenTree::Ident(name)) = tokens.get(length) {
        path.push(name.to_string());
        length += 1;
        if !begins_with_colons(&tokens[length..]) || !matches!(tokens.get(length + 2), Some(TokenTree::Ident(_))) {
            break;
        }
        length += 2;
    }
    (path.len() > 1).then_some((path, length))
}

/// Calls `found` with the single paths of a `use` tree, such as `a::{b, c::{d, e}}`.
fn expand(prefix: &[String], tree: &[TokenTree], found: &mut impl FnMut(Vec<String>)) {
    let mut path = prefix.to_vec();
    for token in tree {
        match token {
            TokenTree::Ident(name) if name == "as" => break,
            TokenTree::Ident(name) if name == "self" && !path.is_empty() => {}
            TokenTree::Ident(name) => path.push(name.to_string()),
            TokenTree::Group(group) => {
                let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                let items = inner.split(|token| is_punct(token, ',')).filter(|item| !item.is_empty());
                return items.for_each(|item| expand(&path, item, &mut *found));
            }
            _ => {}
        }
    }
    if !path.is_empty() {
        found(path);
    }
}

#[test]
fn names_are_found_in_imports_paths_and_macros_and_not_in_tests() {
    let module = |path: &str| path.split("::").map(String::from).collect::<Module>();
    let modules = ["a", "a::inner", "b", "c"].map(module).into();
    let text = r#"
        #[cfg(test)]
        mod only_tested;
        use std::fmt::{self, Display};
        use crate::{b, c::{self, One as Two}};
        pub(crate) use inner::Exported;
        fn work() -> fmt::Result {
            assert!(inner::is_good(crate::b::VALUE) && b::deep::call(), "super::text is no path");
            super::c::call().b::<u8>();
        }
        #[cfg(test)]
        mod tests {
            use crate::d::Tested;
        }
        fn after() { crate::e::call() }
    "#;
    let used = used_names(text, &module("a"), &modules);
    let by =
        |by: By| -> Vec<String> { used.iter().filter(|used| used.by == by).map(|used| used.path.join("::")).collect() };
    assert_eq!(by(By::Import), ["b", "c", "c::One"]);
    assert_eq!(by(By::Reexport), ["a::inner::Exported"]);
    assert_eq!(by(By::Path), ["a::inner::is_good", "b::VALUE", "b::deep::call", "c::call", "e::call"]);
    assert_eq!(defined_names(text), ["after", "work"].map(String::from).into());
}
