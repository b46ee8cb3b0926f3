//! Files of other trainers that grow when they are read, or nest without end.

use tempfile::TempDir;

use super::refused;

#[test]
fn files_that_grow_or_nest_end_soon() {
    let folder = TempDir::new().unwrap();
    let many = |line: &str| line.repeat((1 << 20) / line.len() - 8);
    let list = many("A+=(${A[@]} ${A[@]} x)\n");
    let text = String::from("A=xxxxxxxx\n") + &many("A=$A$A$A$A\n");
    for (name, content, needle) in [
        ("list.sh", list, "no arguments of Megatron"),
        ("text.sh", text, "no arguments of Megatron"),
        ("defaults.sh", String::from("A=") + &many("${A:-"), "no arguments of Megatron"),
        ("outputs.sh", many("$($(("), "no arguments of Megatron"),
        ("here.sh", many("<<A\n"), "no arguments of Megatron"),
        ("flags.sh", many("--lr 1 "), "a run has at most"),
        ("large.sh", "# ".repeat(1 << 20), "cannot be read"),
        ("deep.json", many("["), "deep.json"),
        ("deep.toml", String::from("a = ") + &many("["), "not TOML"),
    ] {
        std::fs::write(folder.path().join(name), content).unwrap();
        refused(name, folder.path(), &["import", name], &[needle]);
    }
}
