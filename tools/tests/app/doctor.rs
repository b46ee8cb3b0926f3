//! `trainer doctor` on the host device. `tools/src/commands/doctor/table.rs` tests its other forms of output.

use std::process::Command;

use device::cuda::gpu_count;

use crate::harness::{Folder, set_mpi};
use crate::output::terminal::on_terminal;
use crate::pages::documents::read;

#[test]
fn what_passes_is_a_line_a_group_on_the_terminal_and_why_no_gpu_is_used_is_said_with_a_fix() {
    // Pages have the words. Their numbers are those of the day on which they were written.
    let (line, right) = ("launch -n 2 -- doctor --quick", " are right, eagerly and in a graph");
    assert!(read("docs/performance.md").contains("doctor --quick") && read("docs/performance.md").contains(right));
    assert!(read("docs/several-gpus.md").contains(&format!("trainer {line}\n")));
    let folder = Folder::new("doctor");
    let mut command = Command::new(env!("CARGO_BIN_EXE_trainer"));
    set_mpi(&mut command, &folder.0);
    command.args(line.split(' '));
    let shown = on_terminal(command, "xterm");
    let text = shown.text().split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(shown.widest <= 80, "{text}");
    let count = text.split_once(right).unwrap().0.rsplit(' ').next().unwrap();
    let passed = format!("ok operation {count} of {count}{right}");
    assert!(count.parse::<usize>().unwrap() > 1000, "{text}");
    for part in ["ok machine ", "MPI: ", "ok ranks ", &passed, " checks passed"] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
    // A line of each group is wrapped where it is too long, below its words.
    let begun = shown.lines.iter().filter(|line| !line.starts_with(' ')).count();
    assert_eq!(begun, if gpu_count() == 0 { 5 } else { 4 }, "{}", shown.text());
    assert!(
        gpu_count() > 0 || text.contains("lacks machine GPU: none is used: ") && text.contains(". Fix: "),
        "{text}"
    );
}
