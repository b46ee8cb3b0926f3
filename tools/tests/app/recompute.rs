//! Recompute as users set it.

use std::process::Command;

/// Bytes of activations as the plan tells them, or the error.
fn planned(flags: &str) -> Result<f64, String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trainer"));
    let output =
        command.args(["--dry-run", "--layers", "8", "--threads", "1"]).args(flags.split(' ')).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let Some(row) = text.lines().find_map(|line| line.split_once("activations")) else {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    };
    let mut words = row.1.split_whitespace();
    let number: f64 = words.next().unwrap().parse().unwrap();
    Ok(number * if words.next().unwrap().starts_with("MiB") { 1024.0 } else { 1.0 })
}

#[test]
fn a_dry_run_tells_the_memory() {
    let kept = planned("--recompute-granularity none").unwrap();
    let selective = planned("--recompute-granularity selective").unwrap();
    let megatron = "--recompute-granularity full --recompute-method uniform --recompute-num-layers";
    let (full, fours) = (planned(&format!("{megatron} 1")).unwrap(), planned(&format!("{megatron} 4")).unwrap());
    assert!(full < selective && selective < kept && fours < kept, "{kept}, {selective}, {full}, {fours} KiB");
    let but_attention = planned(&format!("{megatron} 1 --recompute-keep-attention")).unwrap();
    assert!(full < but_attention && but_attention < kept, "{kept}, {full}, {but_attention} KiB");
    let half = planned(&format!("{megatron} 1 --recompute-blocks 4")).unwrap();
    assert!(full < half && half < kept, "{kept}, {full}, {half} KiB");
    // Megatron's name is another name for the tiles.
    let of_tiles = |flag: &str| planned(&format!("{megatron} 1 --seq-length 512 --ffn 4096 {flag} 8")).unwrap();
    let (tiled, whole) =
        (of_tiles("--mlp-tiles"), planned(&format!("{megatron} 1 --seq-length 512 --ffn 4096")).unwrap());
    assert!(tiled < whole && tiled == of_tiles("--mlp-chunks-for-training"), "{whole}, {tiled} KiB");
}
