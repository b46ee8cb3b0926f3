#![doc = include_str!("../README.md")]

mod choice;
pub mod escape;
pub mod files;
pub mod fit;
pub mod format;
mod host;
mod mistakes;
mod panic;
mod stop;
pub mod terminal;
pub mod time;
mod user_error;

pub use choice::Choice;
pub use host::host_name;
pub use mistakes::Mistakes;
pub use panic::{caught, panic_text};
pub use stop::Stop;
pub use user_error::{UserError, nearest};
