//! Whether a region's code would now do something else than its graph.

use common::format::counted;
use device::Node;

/// The first difference between the operations of a graph and those that the code now submits.
pub(crate) fn difference(captured: &[Node], now: &[Node]) -> Option<String> {
    for (at, (was, is)) in captured.iter().zip(now).enumerate() {
        if was.op.name() != is.op.name() {
            return Some(format!(
                "operation {at} was `{}` at capture, the code now submits `{}`: a branch has changed",
                was.op.name(),
                is.op.name()
            ));
        }
        let (old, new) = (format!("{:#?}", was.op), format!("{:#?}", is.op));
        if old != new {
            return Some(format!("operation {at}, `{}`: {}", was.op.name(), first_field(&old, &new)));
        }
        if (was.stream, &was.dependencies) != (is.stream, &is.dependencies) {
            return Some(format!("operation {at}, `{}`, is on another stream or waits for others", was.op.name()));
        }
    }
    let (was, is) = (captured.len(), now.len());
    let was_some = counted(was, "operation");
    (was != is).then(|| format!("it had {was_some} at capture, the code now submits {is}: a branch has changed"))
}

/// The first line that differs between two values printed with a field a line.
fn first_field(was: &str, is: &str) -> String {
    let mut lines = was.lines().zip(is.lines()).map(|(was, is)| (was.trim(), is.trim()));
    let Some((was, is)) = lines.find(|(was, is)| was != is) else { return "it has another number of fields".into() };
    match (was.trim_end_matches(',').split_once(": "), is.trim_end_matches(',').split_once(": ")) {
        (Some((field, was)), Some((_, is))) => format!("`{field}` was {was} at capture and is now {is}"),
        _ => format!("`{was}` at capture is now `{is}`"),
    }
}
