//! The doctor's output: JSON, or one line for the checks of a group that passed, and every other check in full.

use super::DoctorRequest;
use super::finding::{Finding, Verdict};

/// The groups of checks, in order: the subject of their findings.
const GROUPS: [&str; 4] = ["machine", "operation", "ranks", "rate"];

/// The findings as the request has it: JSON, or the lines of the table.
pub(super) fn shown(findings: &[Finding], request: &DoctorRequest) -> Vec<String> {
    match serde_json::to_string_pretty(findings) {
        Ok(json) if request.json => vec![json],
        _ => lines(findings, request.verbose),
    }
}

/// The lines of the table. With `verbose` every check has its own.
fn lines(findings: &[Finding], verbose: bool) -> Vec<String> {
    let mut lines = Vec::new();
    for about in GROUPS {
        let group = || findings.iter().filter(move |finding| finding.about == about);
        let (passed, others): (Vec<&Finding>, Vec<&Finding>) =
            group().partition(|of| of.verdict == Verdict::Ok && !verbose);
        lines.extend(folded(about, &passed, group().count()));
        lines.extend(others.into_iter().map(|finding| line(finding.verdict, about, &alone(finding))));
    }
    let lacks = findings.iter().filter(|finding| finding.verdict == Verdict::Lacks).count();
    let passed = findings.iter().filter(|finding| finding.verdict == Verdict::Ok).count();
    let lacking =
        if lacks == 0 { String::new() } else { format!(", {lacks} lacks something that training can do without") };
    lines.push(format!("{passed} of {} checks passed{lacking}", findings.len()));
    lines
}

/// One line for the checks of a group that passed.
fn folded(about: &str, passed: &[&Finding], all: usize) -> Option<String> {
    let values = || passed.iter().map(|finding| alone(finding)).collect::<Vec<String>>().join("; ");
    let text = match (about, passed.len()) {
        (_, 0) => return None,
        ("operation", count) => format!("{count} of {all} are right, eagerly and in a graph"),
        _ => values(),
    };
    Some(line(Verdict::Ok, about, &text))
}

fn alone(finding: &Finding) -> String {
    format!("{}: {}", finding.name, finding.value)
}

fn line(verdict: Verdict, about: &str, text: &str) -> String {
    let mark = match verdict {
        Verdict::Ok => "ok",
        Verdict::Lacks => "lacks",
        Verdict::Fail => "FAIL",
    };
    format!("{mark:<5}  {about:<9}  {text}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::cli::{Request, parse};

    fn finding(about: &'static str, name: &str, value: &str, verdict: Verdict) -> Finding {
        Finding { about, name: name.into(), value: value.into(), verdict }
    }

    fn shown_by(flag: &str, findings: &[Finding]) -> Vec<String> {
        let Request::Doctor(request) = parse(["trainer", "doctor", flag].map(Into::into)).unwrap() else {
            panic!("{flag}")
        };
        shown(findings, &request)
    }

    #[test]
    fn what_passed_is_a_line_a_group_and_the_rest_is_in_full() {
        let findings = [
            finding("machine", "GPU", "a card", Verdict::Ok),
            finding("machine", "cuDNN", "not found", Verdict::Lacks),
            finding("machine", "memory", "80 GiB", Verdict::Ok),
            finding("operation", "gemm, f32", "relative error 0.0e0", Verdict::Ok),
            finding("operation", "gemm, bf16", "relative error 1.0e0", Verdict::Fail),
            finding("operation", "norm, f32", "relative error 0.0e0", Verdict::Ok),
        ];
        assert_eq!(
            shown_by("--quick", &findings),
            [
                "ok     machine    GPU: a card; memory: 80 GiB",
                "lacks  machine    cuDNN: not found",
                "ok     operation  2 of 3 are right, eagerly and in a graph",
                "FAIL   operation  gemm, bf16: relative error 1.0e0",
                "4 of 6 checks passed, 1 lacks something that training can do without",
            ]
        );
        let all = shown_by("--verbose", &findings);
        assert_eq!(all.len(), 7);
        assert_eq!(all[2], "ok     machine    memory: 80 GiB");
        let json: serde_json::Value = serde_json::from_str(&shown_by("--json", &findings).concat()).unwrap();
        let cudnn = serde_json::json!({"about": "machine", "name": "cuDNN", "value": "not found", "verdict": "lacks"});
        assert_eq!((&json[1], json.as_array().unwrap().len()), (&cudnn, 6));
    }
}
