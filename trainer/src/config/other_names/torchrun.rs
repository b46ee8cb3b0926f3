//! The flags of torchrun, the launcher of PyTorch. They stand before a script, not in a configuration.

use std::sync::LazyLock;

use super::settings::{OtherName, names};

pub(super) static NAMES: LazyLock<Vec<OtherName>> = LazyLock::new(|| names(include_str!("torchrun.txt"), &[]));
