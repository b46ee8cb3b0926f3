//! Panics that were caught.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

/// The message of a caught panic.
pub fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message").into()
}

thread_local! {
    /// Whether this thread is in [`caught`].
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// The result of `work`, or the message of the panic. The message is not printed. It is for libraries that panic on wrong
/// input. Data that `work` changed must not be used after a panic.
///
/// # Errors
/// The message.
pub fn caught<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let print = take_hook();
        set_hook(Box::new(move |panic| {
            if !QUIET.get() {
                print(panic);
            }
        }));
    });
    let before = QUIET.replace(true);
    let result = catch_unwind(AssertUnwindSafe(work));
    QUIET.set(before);
    result.map_err(|panic| panic_text(&*panic))
}

#[cfg(test)]
mod tests {
    use super::caught;

    #[test]
    fn a_panic_becomes_its_message() {
        assert_eq!(caught(|| 1), Ok(1));
        assert_eq!(
            caught(|| [0][std::hint::black_box(3)]),
            Err("index out of bounds: the len is 1 but the index is 3".into())
        );
        assert_eq!(caught(|| -> u8 { panic!("a {}", "word") }), Err("a word".into()));
    }
}
