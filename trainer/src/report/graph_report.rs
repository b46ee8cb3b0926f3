//! The files of `--graph-report`.

use std::path::Path;

use common::files::write_file;
use engine::regions::{Mode, Room, StepKind};
use engine::step::Stage;
use parallel::{Axis, Mesh};

use crate::error::{RunError, file_error};
use crate::process_group::ProcessGroup;
use crate::report::replay_picture::{replay_picture, stage_part};

/// The graphs of one rank.
#[derive(serde::Serialize)]
struct RankReport<'r> {
    rank: usize,
    tensor: usize,
    context: usize,
    pipeline: usize,
    data: usize,
    #[serde(flatten)]
    report: &'r graph_manager::Report,
}

/// Writes the captures of all ranks, on rank 0: as JSON to `path`; beside it rank 0's graphs for Graphviz, ending in
/// `.dot`, on a GPU as the driver runs them; a picture of the order of replays on each stage, ending in `.svg`; and rank
/// 0's lists of operations, ending in `.txt`: of all steps, and of a training step before and after each pass. All ranks
/// call it together.
///
/// # Errors
/// A file that cannot be written; the driver's for drawings.
pub(crate) fn write_graph_report(
    stage: &mut Stage,
    group: &ProcessGroup,
    mesh: &Mesh,
    path: &Path,
) -> Result<(), RunError> {
    let (report, rank) = (stage.graphs().report(), group.rank());
    let [tensor, context, data, pipeline] = Axis::DENSE.map(|axis| mesh.position(rank, axis));
    let failed = |what: &Path| file_error(format!("the graph report, {}", what.display()));
    let of_rank = RankReport { rank, tensor, context, pipeline, data, report: &report };
    let own = serde_json::to_string(&of_rank).map_err(std::io::Error::from).map_err(failed(path))?;
    let part = stage_part(&format!("stage {pipeline}, rank {rank}"), &report);
    let from_all = |text: String| move |rank| group.control.broadcast_text(rank, text.clone());
    let reports: Vec<String> = (0..mesh.ranks()).map(from_all(own)).collect();
    let parts: Vec<String> = mesh.members_along(0, Axis::Pipeline).into_iter().map(from_all(part)).collect();
    if rank != 0 {
        return Ok(());
    }
    let [dot, svg, list] = beside(path);
    write_file(path, format!("{{\"ranks\": [\n{}\n]}}\n", reports.join(",\n"))).map_err(failed(path))?;
    let drawings: String = stage.graphs().dots()?.into_iter().map(|graph| graph.dot).collect();
    write_file(&dot, drawings).map_err(failed(&dot))?;
    write_file(&svg, replay_picture(&parts)).map_err(failed(&svg))?;
    write_file(&list, lists(stage, &report)?).map_err(failed(&list))
}

/// The lists of all steps, and the largest training step's before and after each pass.
fn lists(stage: &mut Stage, report: &graph_manager::Report) -> Result<String, RunError> {
    let mut text = stage.graphs().lists();
    let kinds = [Room::Whole, Room::Budget].map(|room| format!("{:?}", StepKind { room, ..Mode::Train.into() }));
    let trained = report.steps.iter().filter(|step| kinds.contains(&step.mode));
    if let Some(microbatches) = trained.map(|step| step.microbatches).max() {
        text += &format!("\n{}", stage.lists_by_pass(microbatches)?);
    }
    Ok(text)
}

/// The files that are written beside the JSON.
pub fn beside(path: &Path) -> [std::path::PathBuf; 3] {
    ["dot", "svg", "txt"].map(|extension| path.with_extension(extension))
}
