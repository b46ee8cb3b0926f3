//! A timeline as Chrome's trace events, for Perfetto (ui.perfetto.dev) and chrome://tracing.
//!
//! The format: Google, "Trace Event Format". Times are in microseconds from `baseTimeNanoseconds` since 1970. This
//! field is Perfetto's addition.

use std::io::{self, Write};

use serde_json::{Map, Value, json};

use super::{Span, Timeline};

impl Timeline {
    /// Writes the timeline as JSON. `process` names the process that made it. `rank` distinguishes it from the
    /// timelines of other ranks when several are shown together.
    ///
    /// # Errors
    /// The writer's.
    pub fn write_chrome(&self, rank: usize, process: &str, mut to: impl Write) -> io::Result<()> {
        let rows = self.rows();
        let named = |kind: &str, row: usize, name: &str| json!({"ph": "M", "name": kind, "pid": rank, "tid": row, "args": {"name": name}});
        let mut first = named("process_name", 0, process).to_string();
        let began = self.began_ns;
        writeln!(to, "{{\"displayTimeUnit\": \"ms\", \"baseTimeNanoseconds\": {began}, \"traceEvents\": [")?;
        for (at, row) in rows.iter().enumerate() {
            let order =
                json!({"ph": "M", "name": "thread_sort_index", "pid": rank, "tid": at, "args": {"sort_index": at}});
            writeln!(to, "{first},\n{},", named("thread_name", at, row))?;
            first = order.to_string();
        }
        write!(to, "{first}")?;
        for span in &self.spans {
            let row = rows.iter().position(|row| *row == span.row).unwrap_or_default();
            write!(to, ",\n{}", event(span, rank, row))?;
        }
        to.write_all(b"\n]}\n")?;
        to.flush()
    }

    /// The names of the rows: the host's first, then the streams as they come.
    fn rows(&self) -> Vec<&str> {
        let mut rows: Vec<&str> = Vec::new();
        for span in &self.spans {
            if !rows.contains(&span.row.as_str()) {
                rows.push(&span.row);
            }
        }
        rows.sort_by_key(|row| !row.starts_with("host"));
        rows
    }
}

fn event(span: &Span, rank: usize, row: usize) -> Value {
    let details: Map<String, Value> =
        span.details.iter().map(|(name, value)| ((*name).into(), Value::from(value.as_str()))).collect();
    json!({
        "ph": "X", "name": span.name, "cat": span.category, "pid": rank, "tid": row,
        "ts": span.start_ns as f64 / 1e3, "dur": span.duration_ns as f64 / 1e3, "args": details,
    })
}
