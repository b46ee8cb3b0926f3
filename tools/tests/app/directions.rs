//! Names are used in one direction: between crates, between the folders of a crate, and almost everywhere between files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::used_names::{By, Module, Used, used_names};

/// The crates. A crate depends only on crates of lines above its own.
const CRATES: &[&[&str]] = &[
    &["common", "trainer-mpi"],
    &["device"],
    &["graph-manager", "parallel", "data", "launch"],
    &["engine"],
    &["trainer"],
    &["tools"],
];

/// The folders at the top of each crate, and some files next to them. Those of a line use only those of their own line
/// and of lines above it.
const FOLDERS: &[(&str, &[&[&str]])] = &[
    ("common", &[&["terminal"]]),
    (
        "device",
        &[
            &["cuda", "gpu_types", "host", "host_memory", "ops", "tensor", "timeline"],
            &["dispatch"],
            &["capture", "device", "graph", "stream"],
            &["trials"],
        ],
    ),
    (
        "graph-manager",
        &[
            &["program"],
            &["memory"],
            &["manager"],
            &["code", "passes"],
            &["steps"],
            &["report"],
            &["verify"],
            &["layers"],
        ],
    ),
    ("parallel", &[&["mpi"]]),
    ("data", &[&["formats"], &["sources", "text"]]),
    ("launch", &[&["job"], &["watch"]]),
    (
        "engine",
        &[&["fp8", "model", "params"], &["gradient_sync"], &["optimizer"], &["pipeline"], &["passes"], &["step"]],
    ),
    (
        "trainer",
        &[
            &["error"],
            &["process_group"],
            &["families"],
            &["config"],
            &["checkpoint"],
            &["hf"],
            &["generation"],
            &["report"],
            &["run"],
        ],
    ),
    ("tools", &[&["page"], &["predict"], &["profile"], &["verify"], &["commands"], &["main"]]),
];

/// The most files of a crate that may use each other in a circle.
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
fn the_folders_of_each_crate_use_each_other_in_one_direction() {
    for (name, order) in FOLDERS {
        let place = |module: &str| order.iter().position(|line| line.contains(&module));
        let files = Files::of(name);
        for module in files.0.keys() {
            let own = module.first().and_then(|top| place(top));
            assert!(own.is_some() || module.len() < 2, "{} is in no folder of {name}'s order", module.join("::"));
            let Some(own) = own else { continue };
            for used in files.direct(module) {
                let Some(other) = used.first().and_then(|top| place(top)) else { continue };
                let (module, used) = (module.join("::"), used.join("::"));
                assert!(other <= own, "{name}: {module} uses {used}, which is above it");
            }
        }
    }
}

#[test]
fn few_files_use_each_other() {
    for (name, _) in FOLDERS {
        for circle in Files::of(name).circles() {
            let files = circle.iter().map(|module| module.join("::")).collect::<Vec<_>>().join(", ");
            assert!(circle.len() <= LARGEST_CIRCLE, "{name}: {} files use each other: {files}", circle.len());
        }
    }
}

/// The source files of a crate by their modules, and the names that each uses.
struct Files(BTreeMap<Module, Vec<Used>>);

impl Files {
    fn of(name: &str) -> Files {
        let source = root().join(name).join("src");
        let mut texts = BTreeMap::new();
        let mut folders = vec![source.clone()];
        while let Some(folder) = folders.pop() {
            for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|end| end == "rs") {
                    texts.insert(module_of(&path, &source), std::fs::read_to_string(&path).unwrap());
                }
            }
        }
        let modules: BTreeSet<Module> = texts.keys().cloned().collect();
        let used = texts.into_iter().map(|(module, text)| {
            let used = used_names(&text, &module, &modules);
            (module, used)
        });
        Files(used.collect())
    }

    /// The module with the file that defines the item of a path, through any number of re-exports.
    fn defining(&self, path: &[String]) -> Option<Module> {
        let module = (0..=path.len()).rev().map(|end| path[..end].to_vec()).find(|path| self.0.contains_key(path))?;
        let rest = &path[module.len()..];
        let exported = rest.first().and_then(|name| {
            let mut imports = self.0[&module].iter().filter(|used| used.by != By::Path).map(|used| &used.path);
            let found = imports.find(|found| found.last() == Some(name) && found[..] != path[..=module.len()]);
            found.map(|found| [found, &rest[1..]].concat())
        });
        // `pub use module::*` has the module alone.
        let all_of = || self.0[&module].iter().find(|used| used.by == By::Reexport && self.0.contains_key(&used.path));
        let exported = exported.or_else(|| all_of().map(|all| [&all.path, rest].concat()));
        exported.map_or(Some(module), |path| self.defining(&path))
    }

    /// The files that the file of a module uses, other than itself.
    fn direct(&self, module: &Module) -> BTreeSet<Module> {
        let used = self.0[module].iter().filter(|used| used.by != By::Reexport);
        used.filter_map(|used| self.defining(&used.path)).filter(|other| other != module).collect()
    }

    /// The groups of files that use each other, directly or through others.
    fn circles(&self) -> BTreeSet<Vec<Module>> {
        let direct: BTreeMap<&Module, BTreeSet<Module>> =
            self.0.keys().map(|module| (module, self.direct(module))).collect();
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
