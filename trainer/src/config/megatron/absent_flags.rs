//! Megatron's flags that nothing here takes the place of, and those about what is always so here: `absent_flags.txt`.

use std::sync::LazyLock;

use super::meaning::Meaning::{self, Ignored, Refused};
use super::meaning::Takes::{Nothing, Value, Values};

/// Groups of flags without dashes in front, each with its effect.
pub static ABSENT_FLAGS: LazyLock<Vec<(Meaning, Vec<&str>)>> = LazyLock::new(|| {
    let mut groups: Vec<(Meaning, Vec<&str>)> = Vec::new();
    for line in include_str!("absent_flags.txt").lines().filter(|line| !line.starts_with('#')) {
        match (line.strip_prefix("    "), groups.last_mut()) {
            (Some(names), Some((_, flags))) => flags.extend(names.split(' ')),
            _ => groups.push((meaning(line), Vec::new())),
        }
    }
    groups
});

fn meaning(line: &'static str) -> Meaning {
    match line.split(" | ").collect::<Vec<_>>()[..] {
        ["ignored nothing", reason] => Ignored(Nothing, reason),
        ["ignored value", reason] => Ignored(Value, reason),
        ["ignored values", reason] => Ignored(Values, reason),
        [refused, rule, fix] => Refused(refused.split(' ').skip(1).collect::<Vec<_>>().leak(), rule, fix),
        _ => unreachable!("absent_flags.txt: {line}"),
    }
}
