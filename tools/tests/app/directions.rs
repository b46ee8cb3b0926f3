//! Names are used in one direction: between crates, between the folders of a crate, and almost everywhere between files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::used_names::{By, Module, Used, defined_names, used_names};

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

/// An operation's value does not know the host device, and knows of GPUs only the words for launches of kernels: the files
/// `host.rs` and `launch.rs` of an operation, and those inside them, know more.
#[test]
fn values_of_operations_do_not_know_their_devices() {
    let files = Files::of("device");
    let devices = ["cuda", "host"];
    for module in files.0.keys().filter(|module| module.first().is_some_and(|top| top == "ops")) {
        // These hand an operation to its device.
        let dispatches = ["collective", "custom", "op"].contains(&module.last().unwrap().as_str());
        if dispatches || module.iter().any(|part| ["host", "launch"].contains(&part.as_str())) {
            continue;
        }
        for used in files.direct(module) {
            let knows = used.first().is_some_and(|top| devices.contains(&top.as_str()));
            assert!(!knows || used == ["cuda", "queue"], "{} uses {}", module.join("::"), used.join("::"));
        }
    }
}

/// The source files of a crate by their modules.
struct Files(BTreeMap<Module, File>);

/// The names that a file uses, and those that it defines.
struct File {
    uses: Vec<Used>,
    defines: BTreeSet<String>,
}

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
        let files = texts.into_iter().map(|(module, text)| {
            let uses = used_names(&text, &module, &modules);
            (module, File { uses, defines: defined_names(&text) })
        });
        Files(files.collect())
    }

    /// The module with the file that defines the item of a path, through any number of re-exports.
    fn defining(&self, path: &[String]) -> Option<Module> {
        self.defining_beyond(path, &mut BTreeSet::new())
    }

    /// As [`Files::defining`]; paths that were followed before lead nowhere.
    fn defining_beyond(&self, path: &[String], followed: &mut BTreeSet<Module>) -> Option<Module> {
        if !followed.insert(path.to_vec()) {
            return None;
        }
        let module = (0..=path.len()).rev().map(|end| path[..end].to_vec()).find(|path| self.0.contains_key(path))?;
        let rest = &path[module.len()..];
        let File { uses, defines } = &self.0[&module];
        let Some(name) = rest.first().filter(|name| !defines.contains(*name)) else { return Some(module) };
        let mut imports = uses.iter().filter(|used| used.by != By::Path).map(|used| &used.path);
        let named = imports.find(|found| found.last() == Some(name) && found[..] != path[..=module.len()]);
        if let Some(found) = named {
            return self.defining_beyond(&[found, &rest[1..]].concat(), followed);
        }
        // `pub use module::*` has the module alone.
        let globs = uses.iter().filter(|used| used.by == By::Reexport && self.0.contains_key(&used.path));
        let mut found = globs.filter_map(|all| self.defining_beyond(&[all.path.as_slice(), rest].concat(), followed));
        found.find(|module| self.0[module].defines.contains(name)).or(Some(module))
    }

    /// The files that the file of a module uses, other than itself.
    fn direct(&self, module: &Module) -> BTreeSet<Module> {
        let used = self.0[module].uses.iter().filter(|used| used.by != By::Reexport);
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
