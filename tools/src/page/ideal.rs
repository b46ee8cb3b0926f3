//! How a pipeline's step would run if no transfer took time and each task took as long as usual.

use std::collections::HashMap;

use parallel::{Schedule, Task};

/// How long the tasks of a stage take, any unit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct TaskTimes {
    pub(crate) forward: f64,
    pub(crate) backward: f64,
    pub(crate) weights: f64,
}

/// A task and the task's time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Timed {
    pub(crate) task: Task,
    pub(crate) start: f64,
    pub(crate) end: f64,
}

/// The tasks of each stage. A task begins when the stage's task before it is done and its input is there. `None` if the
/// schedule does not take so many microbatches.
///
/// # Panics
/// If there are not as many times as stages.
pub(crate) fn ideal(schedule: Schedule, microbatches: usize, times: &[TaskTimes]) -> Option<Vec<Vec<Timed>>> {
    let placement = schedule.placement();
    let stages = placement.stages();
    assert_eq!(times.len(), stages, "times of {} stages", times.len());
    let orders: Vec<Vec<Task>> = (0..stages).map(|stage| schedule.tasks(stage, microbatches)).collect::<Option<_>>()?;
    let mut done: Vec<Vec<Timed>> = vec![Vec::new(); stages];
    // When the result of a part's forward, backward or weight gradients for a microbatch is there.
    let mut ends: HashMap<Done, f64> = HashMap::new();
    let mut progress = true;
    while std::mem::take(&mut progress) {
        for stage in 0..stages {
            while let Some(&task) = orders[stage].get(done[stage].len()) {
                let part = placement.virtual_stage(stage, task.chunk());
                let needed = needed(task, part, placement.virtual_stages());
                let Some(ready) = needed.map_or(Some(0.0), |needed| ends.get(&needed).copied()) else { break };
                let start = done[stage].last().map_or(0.0, |last| last.end).max(ready);
                let length = match task {
                    Task::Forward { .. } => times[stage].forward,
                    Task::Backward { .. } => times[stage].backward,
                    Task::Weights { .. } => times[stage].weights,
                };
                ends.insert(result(task, part), start + length);
                done[stage].push(Timed { task, start, end: start + length });
                progress = true;
            }
        }
    }
    Some(done)
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Done {
    Forward { part: usize, microbatch: usize },
    Backward { part: usize, microbatch: usize },
    Weights { part: usize, microbatch: usize },
}

fn result(task: Task, part: usize) -> Done {
    match task {
        Task::Forward { microbatch, .. } => Done::Forward { part, microbatch },
        Task::Backward { microbatch, .. } => Done::Backward { part, microbatch },
        Task::Weights { microbatch, .. } => Done::Weights { part, microbatch },
    }
}

/// The task with the output that a task of a part reads.
fn needed(task: Task, part: usize, parts: usize) -> Option<Done> {
    match task {
        Task::Forward { microbatch, .. } => part.checked_sub(1).map(|part| Done::Forward { part, microbatch }),
        Task::Backward { microbatch, .. } if part + 1 < parts => Some(Done::Backward { part: part + 1, microbatch }),
        Task::Backward { microbatch, .. } => Some(Done::Forward { part, microbatch }),
        Task::Weights { microbatch, .. } => Some(Done::Backward { part, microbatch }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn length(schedule: Schedule, microbatches: usize, times: TaskTimes) -> f64 {
        let stages = schedule.placement().stages();
        let step = ideal(schedule, microbatches, &vec![times; stages]).unwrap();
        for (stage, tasks) in step.iter().enumerate() {
            assert_eq!(
                tasks.len(),
                schedule.tasks(stage, microbatches).unwrap().len(),
                "every task of stage {stage} runs"
            );
        }
        step.iter().flatten().map(|task| task.end).fold(0.0, f64::max)
    }

    #[test]
    fn a_step_has_the_length_that_the_schedules_papers_give() {
        let (forward, backward, weights) = (2.0, 3.0, 1.0);
        let split = TaskTimes { forward, backward, weights };
        let whole = TaskTimes { forward, backward: backward + weights, weights: 0.0 };
        for (stages, microbatches) in [(2, 8), (4, 8), (4, 4)] {
            let (p, m) = (stages as f64, microbatches as f64);
            let work = m * (forward + backward + weights);
            let idle = (p - 1.0) * (forward + backward + weights);
            assert_eq!(length(Schedule::one_f_one_b(stages), microbatches, whole), work + idle);
            let idle = (p - 1.0) * (forward + backward - weights);
            assert_eq!(length(Schedule::zero_bubble(stages), microbatches, split), work + idle);
            // Two chunks: each task is half of the stage's, and the idle time is halved.
            let half = TaskTimes { forward: forward / 2.0, backward: (backward + weights) / 2.0, weights: 0.0 };
            let idle = (p - 1.0) * (forward + backward + weights) / 2.0;
            assert_eq!(length(Schedule::interleaved(stages, 2, stages), microbatches, half), work + idle);
        }
        assert!(ideal(Schedule::interleaved(4, 2, 4), 3, &[whole; 4]).is_none());
    }
}
