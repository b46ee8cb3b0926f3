//! `trainer profile`, and `cuda_graph.scope = "auto"`.

use std::process::Command;

use serde_json::Value;

use crate::harness::{Folder, bits, expect, mpirun, printed, run};

const TRAINER: &str = env!("CARGO_BIN_EXE_trainer");

const SMALL: &str = "--device host --layers 2 --hidden 32 --heads 2 --seq-length 32 --steps 3 --threads 1";

#[test]
fn a_profile_has_every_scope_its_memory_and_the_operations_with_their_shapes() {
    let folder = Folder::new("profile");
    let flags = ["profile", "--json", "--html", "profile.html"];
    let output = Command::new(TRAINER).args(flags).args(SMALL.split(' ')).current_dir(&folder.0).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", printed(&output));
    let profile: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rank = &profile["ranks"][0];
    let scopes = rank["scopes"].as_array().unwrap();
    let names: Vec<&str> = scopes.iter().map(|scope| scope["scope"].as_str().unwrap()).collect();
    assert_eq!(names, ["off", "per_layer", "per_chunk", "full_iteration"]);
    let kernels = |scope: &Value| scope["activity"]["kernels"].as_f64().unwrap();
    assert!(kernels(&scopes[0]) > 50.0, "{}", scopes[0]);
    assert!(scopes.iter().all(|scope| kernels(scope) == kernels(&scopes[0])), "graphs run the same operations");
    assert!(scopes.iter().all(|scope| scope["memory"]["activations"].as_u64().unwrap() > 0));
    let operations = rank["operations"].as_array().unwrap();
    let gemm = operations.iter().find(|operation| operation["name"] == "gemm").unwrap();
    assert!(gemm["shape"].as_str().unwrap().matches(" x ").count() == 2 && gemm["type"] == "f32", "{gemm}");
    let host_ms = |operation: &Value| operation["host_ms"].as_f64().unwrap();
    assert!(operations.iter().all(|of| host_ms(of) == of["total_ms"].as_f64().unwrap()), "the host is the device");
    let launches: Vec<f64> = scopes.iter().map(|scope| scope["launches"].as_f64().unwrap()).collect();
    assert!(launches[0] == 0.0 && launches[1] > launches[2] && launches[2] > 1.0 && launches[3] == 1.0, "{launches:?}");
    for scope in scopes {
        let graphs = scope["graphs"].as_array().unwrap();
        assert!(graphs.iter().all(|graph| graph["host_ms"].as_f64().unwrap() > 0.0), "{scope}");
    }
    let shares: f64 = operations.iter().map(|operation| operation["share"].as_f64().unwrap()).sum();
    assert!((shares - 1.0).abs() < 1e-6, "{shares}");
    assert!(profile["verdict"].as_str().unwrap().contains("host device"), "{}", profile["verdict"]);
    let page = std::fs::read_to_string(folder.path("profile.html")).unwrap();
    assert!(page.contains("default-src 'none'") && page.contains("full_iteration") && page.contains("Verdict"));
    assert!(page.contains("host us each") && page.contains(" other graphs"), "launches by graph");
    assert!(!page.contains("<script"), "a page of tables needs no script");
}

#[test]
fn a_profile_of_two_ranks_names_the_slowest_and_what_they_transfer() {
    let folder = Folder::new("profile-ranks");
    let flags: Vec<&str> = ["profile"].into_iter().chain(SMALL.split(' ')).collect();
    let output = mpirun(2, &folder.0, &flags);
    let said = printed(&output);
    let launches = said.lines().find(|line| line.starts_with("graph launches")).unwrap_or_else(|| panic!("{said}"));
    assert_eq!(launches.split_whitespace().nth(2), Some("0"), "without graphs: {said}");
    let parts = ["2 ranks; rank ", "transfers, ms", "of them exposed", "slowest less fastest rank", "all_reduce"];
    expect(&output, 0, &parts);
    assert_eq!(printed(&output).matches("gradients").count(), 1, "one rank prints");
}

#[test]
fn the_scope_that_auto_chooses_changes_no_bit() {
    let folder = Folder::new("auto");
    let trained = |name: &str, graphs: &str| {
        let path = folder.path(name);
        std::fs::create_dir(&path).unwrap();
        let output = run(1, &path, &format!("{SMALL} {graphs}"));
        expect(&output, 0, &["done"]);
        (bits(&path, 3), printed(&output))
    };
    let (plain, _) = trained("plain", "");
    let (auto, said) = trained("auto", "--enable-cuda-graph --cuda-graph-scope auto");
    assert_eq!(auto, plain);
    let line =
        said.lines().find(|line| line.starts_with("cuda_graph.scope = auto: ")).unwrap_or_else(|| panic!("{said}"));
    let takes = |scope: &str| line.contains(&format!("{scope} takes "));
    assert!(takes("full_iteration") && takes("per_chunk") && takes("per_layer"), "{line}");
}

#[test]
fn auto_goes_around_what_is_printed_and_says_why() {
    let folder = Folder::new("auto-printed");
    let trained = |name: &str, graphs: &str| {
        let path = folder.path(name);
        std::fs::create_dir(&path).unwrap();
        let output = run(1, &path, &format!("{SMALL} --log-interval 2 {graphs}"));
        expect(&output, 0, &["done"]);
        (bits(&path, 3), printed(&output))
    };
    let (plain, _) = trained("plain", "");
    let names = "--print-activations h.0.attention h.1 --enable-cuda-graph";
    let (auto, said) = trained("auto", &format!("{names} --cuda-graph-scope auto"));
    assert_eq!(auto, plain);
    for scope in ["per_chunk", "full_iteration"] {
        let words = format!("{scope} is out: logging.print_activations = [\"h.0.attention\", \"h.1\"]");
        assert!(said.contains(&words), "{said}");
    }
    assert!(said.contains("the host waits for what is printed"), "{said}");
    let (modules, said) = trained("modules", names);
    assert_eq!(modules, plain);
    assert!(said.contains("hook (the host waits for what it prints)"), "{said}");
    // A microbatch in each of the steps 1, 2 and 3. They all have a line; none while steps are tried.
    for name in ["h.0.attention", "h.1"] {
        let line = format!("{name}, microbatch 0: mean ");
        assert_eq!(said.matches(&line).count(), 3, "{said}");
    }
}
