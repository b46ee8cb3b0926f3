//! This machine.

/// The machine's name; `localhost` for a machine without a name.
pub fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    if name.trim().is_empty() { "localhost".into() } else { name.trim().into() }
}
