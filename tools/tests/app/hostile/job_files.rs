//! Arguments of `trainer job` with characters that its file cannot hold.

use super::refused;
use crate::harness::Folder;

/// They became others in the file, such as `\u{7}`, and the job looked for another path.
#[test]
fn a_control_character_in_what_goes_into_a_job_file_is_refused() {
    let folder = Folder::new("hostile-job-files");
    let run = ["--device", "host", "--steps", "2", "--save"];
    let hosts = ["job", "hosts", "--hosts", "localhost"];
    let kubernetes = ["job", "kubernetes", "--claim", "c", "--image"];
    for character in ["\u{7}", "\n", "\t", "\r", "\u{1b}[2J", "\u{7f}", "\u{9b}", "\u{202e}", "\u{2028}"] {
        let bad = format!("/data/a{character}b");
        let mounts = format!("/data,/x{character}");
        let says = ["has a control character", &*bad.escape_debug().to_string()];
        let cases: [(&str, Vec<&str>); 7] = [
            ("slurm", [&["job", "slurm", "--"][..], &run, &[&bad]].concat()),
            ("hosts", [&hosts[..], &["--"], &run, &[&bad]].concat()),
            ("kubernetes", [&kubernetes[..], &["i", "--"], &run, &[&bad]].concat()),
            ("image", [&kubernetes[..], &[&bad, "--"], &run, &["/data/saved"]].concat()),
            ("mount", [&kubernetes[..], &["i", "--mount", &bad, "--"], &run, &["/data/saved"]].concat()),
            ("apptainer", [&["job", "slurm", "--apptainer", &bad, "--"][..], &run, &["saved"]].concat()),
            ("mounts", [&["job", "slurm", "--container-mounts", &mounts, "--"][..], &run, &["saved"]].concat()),
        ];
        for (name, arguments) in cases {
            refused(name, &folder.0, &arguments, if name == "mounts" { &says[..1] } else { &says });
        }
    }
}
