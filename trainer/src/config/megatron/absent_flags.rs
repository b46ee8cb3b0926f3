//! Megatron's flags that nothing here takes the place of, and flags about what is always so here: `absent_flags.txt`.

use std::sync::LazyLock;

use super::meaning::Meaning::{self, Ignored, Refused};
use super::meaning::Takes::{Nothing, Value, Values};
use crate::config::groups;

/// Groups of flags without dashes in front, with the effect of each flag.
pub static ABSENT_FLAGS: LazyLock<Vec<(Meaning, Vec<&str>)>> = LazyLock::new(|| {
    groups(include_str!("absent_flags.txt")).into_iter().map(|(line, flags)| (meaning(line), flags)).collect()
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
