//! Imports go in one direction: between crates, between the folders of the trainer, and almost everywhere between files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The crates. A crate depends only on crates of lines above its own.
const CRATES: &[&[&str]] =
    &[&["common"], &["device"], &["graph-manager", "parallel", "data", "launch"], &["engine"], &["trainer"]];

/// The modules at the top of the trainer. Each imports only from those before it.
const TRAINER: &[&str] = &[
    "error",
    "process_group",
    "families",
    "config",
    "checkpoint",
    "hf",
    "report",
    "run",
    "page",
    "predict",
    "profile",
    "commands",
    "main",
];

/// The most files of a crate that may import each other in a circle.
const LARGEST_CIRCLE: usize = 3;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

#[test]
fn crates_depend_in_one_direction() {
    for (level, crates) in CRATES.iter().enumerate() {
        for name in *crates {
            let text = std::fs::read_to_string(root().join(name).join("Cargo.toml")).unwrap();
            let manifest: toml::Table = text.parse().unwrap();
            let dependencies = manifest["dependencies"].as_table().unwrap();
            for other in CRATES[level..].iter().copied().flatten() {
                assert!(!dependencies.contains_key(*other), "{name} depends on {other}, which is not below it");
            }
        }
    }
}

#[test]
fn the_folders_of_the_trainer_import_in_one_direction() {
    let place = |module: &str| TRAINER.iter().position(|name| *name == module);
    for (module, file) in Files::of("trainer").0 {
        let Some(top) = module.first() else { continue }; // lib.rs, which only names the modules
        let own = place(top).unwrap_or_else(|| panic!("{top} has no place among the modules of the trainer"));
        for Import { path: import, .. } in imports(&module, &file) {
            let Some(other) = import.first().and_then(|top| place(top)) else { continue };
            assert!(other <= own, "{} imports {}, which is above it", module.join("::"), import.join("::"));
        }
    }
}

#[test]
fn few_files_import_each_other() {
    for name in CRATES.iter().copied().flatten() {
        for circle in Files::of(name).circles() {
            let files = circle.iter().map(|module| module.join("::")).collect::<Vec<_>>().join(", ");
            assert!(circle.len() <= LARGEST_CIRCLE, "{name}: {} files import each other: {files}", circle.len());
        }
    }
}

/// A module's path, such as `config::layers`; empty for the root of a crate.
type Module = Vec<String>;

/// The source files of a crate by their modules: each file's text, without its unit tests.
struct Files(BTreeMap<Module, String>);

impl Files {
    fn of(name: &str) -> Files {
        let source = root().join(name).join("src");
        let mut files = BTreeMap::new();
        let mut folders = vec![source.clone()];
        while let Some(folder) = folders.pop() {
            for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|end| end == "rs") {
                    let text = std::fs::read_to_string(&path).unwrap();
                    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
                    files.insert(module_of(&path, &source), code.to_string());
                }
            }
        }
        Files(files)
    }

    /// The module whose file defines what a path names, through any number of re-exports.
    fn defining(&self, path: &[String]) -> Option<Module> {
        let module = (0..=path.len()).rev().map(|end| path[..end].to_vec()).find(|path| self.0.contains_key(path))?;
        let rest = &path[module.len()..];
        let exported = rest.first().and_then(|name| {
            let mut named = imports(&module, &self.0[&module]).into_iter().map(|import| import.path);
            let found = named.find(|found| found.last() == Some(name) && *found != path[..=module.len()]);
            found.map(|found| [&found, &rest[1..]].concat())
        });
        exported.map_or(Some(module), |path| self.defining(&path))
    }

    /// The groups of files that import each other, directly or through others.
    fn circles(&self) -> BTreeSet<Vec<Module>> {
        let direct = |module: &Module| -> BTreeSet<Module> {
            let used = imports(module, &self.0[module]).into_iter().filter(|import| !import.is_reexport);
            used.filter_map(|import| self.defining(&import.path)).collect()
        };
        let direct: BTreeMap<&Module, BTreeSet<Module>> =
            self.0.keys().map(|module| (module, direct(module))).collect();
        let reached = |from: &Module| {
            let (mut seen, mut next) = (BTreeSet::new(), vec![from.clone()]);
            while let Some(module) = next.pop() {
                next.extend(direct[&module].iter().filter(|to| seen.insert((*to).clone())).cloned());
            }
            seen
        };
        let reached: BTreeMap<&Module, BTreeSet<Module>> =
            self.0.keys().map(|module| (module, reached(module))).collect();
        let circle = |module: &&Module| -> Vec<Module> {
            reached[module].iter().filter(|other| reached[other].contains(*module)).cloned().collect()
        };
        self.0.keys().map(|module| circle(&module)).filter(|circle| circle.len() > 1).collect()
    }
}

fn module_of(path: &Path, source: &Path) -> Module {
    let path: PathBuf = path.strip_prefix(source).unwrap().with_extension("");
    let mut module: Module = path.iter().map(|part| part.to_str().unwrap().to_string()).collect();
    if module.last().is_some_and(|last| last == "mod") || module == ["lib"] {
        module.pop();
    }
    module
}

/// A name that a file imports, from the crate's root.
struct Import {
    path: Module,
    /// It is there for others, and no use by itself.
    is_reexport: bool,
}

/// What the `use` lines of a module name. A path that leads out of the crate seems to lead into the module itself.
fn imports(module: &Module, text: &str) -> Vec<Import> {
    let mut imports = Vec::new();
    let mut open: Option<(String, bool)> = None;
    for line in text.lines() {
        let start = line.strip_prefix("use ").map(|rest| (rest, false));
        let reexport = ["pub use ", "pub(crate) use ", "pub(super) use "].iter().find_map(|way| line.strip_prefix(way));
        match (&mut open, start.or(reexport.map(|rest| (rest, true)))) {
            (Some((statement, _)), _) => statement.push_str(line.trim()),
            (None, Some((rest, is_reexport))) => open = Some((rest.to_string(), is_reexport)),
            (None, None) => {}
        }
        if let Some((statement, is_reexport)) = open.take_if(|(statement, _)| statement.ends_with(';')) {
            let mut paths = Vec::new();
            expand("", statement.trim_end_matches(';'), &mut paths);
            let absolute = paths.iter().filter_map(|path| absolute(module, path));
            imports.extend(absolute.map(|path| Import { path, is_reexport }));
        }
    }
    imports
}

/// A path as seen from the crate's root.
fn absolute(module: &Module, path: &str) -> Option<Module> {
    let path = path.split(" as ").next()?.trim_end_matches("::self");
    let path: Module = path.split("::").map(str::to_string).collect();
    match path[0].as_str() {
        "crate" => Some(path[1..].to_vec()),
        "self" => Some([module, &path[1..]].concat()),
        "super" => {
            let up = path.iter().take_while(|part| *part == "super").count();
            Some([&module[..module.len().checked_sub(up)?], &path[up..]].concat())
        }
        _ => Some([module, path.as_slice()].concat()),
    }
}

/// The single paths of a `use` tree, such as `a::{b, c::{d, e}}`.
fn expand(prefix: &str, tree: &str, paths: &mut Vec<String>) {
    let Some((head, inner)) = tree.split_once('{') else {
        return paths.push(format!("{prefix}{}", tree.trim()));
    };
    let (mut depth, mut start) = (0, 0);
    let inner = inner.rsplit_once('}').map_or(inner, |(inner, _)| inner);
    for (at, letter) in inner.char_indices().chain([(inner.len(), ',')]) {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                let item = inner[start..at].trim();
                if !item.is_empty() {
                    expand(&format!("{prefix}{head}"), item, paths);
                }
                start = at + 1;
            }
            _ => {}
        }
    }
}
