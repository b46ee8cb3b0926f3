//! Checks of single values of a configuration, each with a rule and a fix.

use common::UserError;

/// Fails unless `ok`.
pub fn require(ok: bool, error: impl FnOnce() -> UserError) -> Result<(), UserError> {
    if ok { Ok(()) } else { Err(error()) }
}

/// Fails on a number below `least`.
pub fn at_least(key: &str, value: usize, least: usize) -> Result<(), UserError> {
    require(value >= least, || {
        UserError::new(format!("{key} = {value}"), format!("it is at least {least}"), format!("set {key} = {least}"))
    })
}

/// Fails on a number above `most`.
pub fn at_most(key: &str, value: usize, most: usize) -> Result<(), UserError> {
    require(value <= most, || {
        UserError::new(format!("{key} = {value}"), format!("it is at most {most}"), format!("set a smaller {key}"))
    })
}

/// Fails on a tensor that no machine can hold. Such a size is a typing mistake, and sizes derived from it would overflow.
pub fn holdable(what: &str, sizes: &[usize]) -> Result<(), UserError> {
    let elements: f64 = sizes.iter().map(|&size| size as f64).product();
    require(elements <= (1u64 << 44) as f64, || {
        let sizes: Vec<String> = sizes.iter().map(usize::to_string).collect();
        let sizes = sizes.join(" x ");
        UserError::new(format!("{what} = {sizes}"), "a tensor has at most 2^44 elements", "set smaller sizes")
    })
}

/// Fails on a number unless `ok`.
pub fn within(key: &str, value: f64, ok: bool, rule: &str, fix: &str) -> Result<(), UserError> {
    require(ok, || UserError::new(format!("{key} = {value}"), rule, fix))
}

/// Fails on a number that f32 holds as infinity, or as 0 though the number is not 0. Devices compute with f32.
pub fn fits_f32(key: &str, value: f64) -> Result<(), UserError> {
    let near = value as f32;
    within(
        key,
        value,
        near.is_finite() && (near != 0.0 || value == 0.0),
        "devices compute with f32, which holds 0, and numbers from 1e-45 to 3.4e38",
        "set a number in that range",
    )
}
