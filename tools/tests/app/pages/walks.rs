//! docs/slurm.md and docs/kubernetes.md are followed line by line. The programs of the clusters are played by scripts.
//! They run the jobs on this machine.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::documents::{fenced, root};
use crate::harness::{Folder, Running, expect, output_of, printed, set_mpi, signal, wait_for};
use crate::ranks::job::{noted, path_of, play, read_manifests};

/// A folder with texts and a trainer, as the pages begin.
fn begin(name: &str) -> Folder {
    let folder = Folder::new(name);
    std::fs::create_dir_all(folder.path("texts")).unwrap();
    let text: String = (0..3000).map(|number| format!("{number} ")).collect();
    std::fs::write(folder.path("texts/numbers.txt"), text).unwrap();
    play(&folder.0, "trainer", &format!("exec {} \"$@\"", env!("CARGO_BIN_EXE_trainer")));
    folder
}

/// A command of this machine, run in `folder` with played programs. More ranks than cores may start.
fn command(folder: &Path, program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    set_mpi(&mut command, folder);
    command.args(arguments).current_dir(folder).env("PATH", path_of(folder));
    command.env("OMPI_MCA_rmaps_base_oversubscribe", "1");
    command
}

/// Runs a line of a page.
fn follow(folder: &Path, line: &str) -> String {
    let output = command(folder, "bash", &["-c", line]).output().unwrap();
    assert!(output.status.success(), "{line}: {}", printed(&output));
    String::from_utf8(output.stdout).unwrap()
}

fn lines(page: &str) -> Vec<String> {
    fenced(page, "sh").lines().filter(|line| !line.trim().is_empty()).map(String::from).collect()
}

/// Waits for a file or folder.
fn appears(path: &Path) {
    wait_for(&format!("{} does not appear", path.display()), || path.exists().then_some(()));
}

#[test]
fn the_page_about_slurm_leads_to_a_job_that_is_stopped_continued_and_done() {
    let folder = begin("walk-slurm");
    let start = "SLURM_JOB_ID=17 bash job.sh >>trainer-17.log 2>&1 </dev/null & echo $! >job";
    for (program, script) in [
        ("srun", ""),
        ("module", ""),
        ("squeue", ""),
        ("sbatch", start),
        ("scontrol", start),
        ("scancel", "kill -USR1 $(cat job)"),
    ] {
        play(&folder.0, program, script);
    }
    let log = || std::fs::read_to_string(folder.path("trainer-17.log")).unwrap_or_default();
    let mut followed = Vec::new();
    for line in lines("docs/slurm.md") {
        let program = line.split(' ').next().unwrap().to_string();
        match program.as_str() {
            "tail" => wait_for("no step is in the log", || log().contains("step  20/200").then_some(())),
            "scancel" => appears(&folder.path("ckpt/step-00000020")),
            "trainer" if line.contains(" checkpoint list ") => {
                wait_for("the job is not done", || done_after_continuing(&log()).then_some(()))
            }
            _ => {}
        }
        let printed = follow(&folder.0, &line);
        match program.as_str() {
            "tail" => assert!(printed.contains("step  20/200  loss "), "{printed}"),
            "trainer" if line.contains(" checkpoint list ") => assert!(printed.contains("step-00000200"), "{printed}"),
            "trainer" if line.contains(" sample ") => assert!(printed.starts_with("The "), "{printed}"),
            _ => {}
        }
        followed.push(program);
    }
    assert_eq!(followed.join(" "), "srun trainer sbatch squeue tail scancel trainer trainer");
    assert_eq!(noted(&folder.0, "module"), ["load", "openmpi", "load", "openmpi"]);
    assert_eq!(noted(&folder.0, "scontrol"), ["requeue", "17"], "it was in the queue again once");
    expect_in_order(&log(), &["asked to end: stops after step", "continues ckpt/step-000000", "done: loss"]);
}

/// Fails unless the parts are in the text, each after those before it.
fn expect_in_order(text: &str, parts: &[&str]) {
    let mut rest = text;
    for part in parts {
        rest = rest.split_once(part).unwrap_or_else(|| panic!("{part} is not in its place: {text}")).1;
    }
}

/// Whether a log has the end of a run that was continued.
fn done_after_continuing(log: &str) -> bool {
    log.find("continues ckpt/").is_some_and(|at| log[at..].contains("done: loss"))
}

/// Starts the command of an MPIJob's launcher pod, with `storage` at the place of the mount.
fn launcher(folder: &Path, manifest: &Value, storage: &Path) -> Running {
    let container = &manifest["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0];
    let storage = storage.to_str().unwrap();
    let words = container["command"].as_array().unwrap().iter();
    let words: Vec<String> = words.map(|word| word.as_str().unwrap().replace("/data", storage)).collect();
    let arguments: Vec<&str> = words[1..].iter().map(String::as_str).collect();
    let mut command = command(folder, env!("CARGO_BIN_EXE_trainer"), &arguments);
    assert_eq!((words[0].as_str(), &container["workingDir"]), ("trainer", &"/data".into()));
    command.current_dir(storage).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap().into()
}

#[test]
fn the_page_about_kubernetes_leads_to_a_job_that_is_stopped_continued_and_done() {
    let folder = begin("walk-kubernetes");
    std::os::unix::fs::symlink(root().join("container"), folder.path("container")).unwrap();
    // They fail on a file that is not there.
    for program in ["kubectl", "podman"] {
        play(
            &folder.0,
            program,
            "for word; do case $word in *.yaml | */Containerfile) [ -f $word ] || exit 1;; esac; done",
        );
    }
    std::fs::write(folder.path("storage.yaml"), fenced("docs/kubernetes.md", "yaml")).unwrap();
    let all = lines("docs/kubernetes.md");
    assert!(all.len() > 10, "{all:?}");
    all.iter().for_each(|line| drop(follow(&folder.0, line)));
    let storage = read_manifests(&folder.0, "storage.yaml");
    let job = &read_manifests(&folder.0, "job.yaml")[0];
    // The pods of the job mount the page's claim. The job's data were copied to it.
    assert_eq!(
        (&storage[0]["kind"], &storage[0]["metadata"]["name"]),
        (&"PersistentVolumeClaim".into(), &"disk".into())
    );
    assert_eq!(storage[0]["spec"]["accessModes"][0], "ReadWriteMany");
    let shell = &storage[1]["spec"];
    for role in ["Launcher", "Worker"] {
        let pod = &job["spec"]["mpiReplicaSpecs"][role]["template"]["spec"];
        assert_eq!(pod["volumes"][0], shell["volumes"][0]);
        let [container, of_shell] = [pod, shell].map(|pod| &pod["containers"][0]);
        assert_eq!(container["volumeMounts"][0], of_shell["volumeMounts"][0]);
        assert_eq!(container["image"], of_shell["image"]);
    }
    let copied = noted(&folder.0, "kubectl").join(" ");
    assert!(copied.contains("cp texts shell:/data/texts"), "{copied}");
    // The launcher's command, with this machine's folders and ranks.
    let data = folder.path("storage");
    std::fs::create_dir(&data).unwrap();
    std::fs::rename(folder.path("texts"), data.join("texts")).unwrap();
    let child = launcher(&folder.0, job, &data);
    appears(&data.join("ckpt/step-00000020"));
    signal(child.id(), "TERM");
    expect(&output_of(child), 75, &["4 ranks", "asked to end: stops after step"]);
    expect(&output_of(launcher(&folder.0, job, &data)), 0, &["continues ", "done: loss"]);
    assert!(data.join("ckpt/step-00000200").exists() && data.join("runs/last/run.log").exists());
}
