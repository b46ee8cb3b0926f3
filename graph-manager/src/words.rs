//! Words of messages.

use tracing::subscriber::NoSubscriber;

/// A number of things, in the singular for one: `1 graph`, `2 graphs`, `2 microbatches`.
pub(crate) fn counted(number: usize, noun: &str) -> String {
    let ending = match number {
        1 => "",
        _ if noun.ends_with("ch") => "es",
        _ => "s",
    };
    format!("{number} {noun}{ending}")
}

/// Warns by `tracing`, or on stderr in a program without a subscriber.
pub(crate) fn tell(words: &str) {
    if tracing::dispatcher::get_default(|subscriber| subscriber.is::<NoSubscriber>()) {
        eprintln!("graph-manager: {words}");
    } else {
        tracing::warn!("{words}");
    }
}

#[cfg(test)]
mod tests {
    use super::counted;

    #[test]
    fn several_microbatches_are_no_microbatchs() {
        assert_eq!([1, 2].map(|number| counted(number, "microbatch")), ["1 microbatch", "2 microbatches"]);
        assert_eq!([0, 1].map(|number| counted(number, "graph")), ["0 graphs", "1 graph"]);
    }
}
