//! A small hash that depends on the text alone.

/// FNV-1a, 64 bits, in hexadecimal digits.
pub fn digest(text: &str) -> String {
    let hash = text
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    format!("{hash:016x}")
}

#[test]
fn digests_are_those_of_fnv() {
    assert_eq!(
        [digest(""), digest("a"), digest("foobar")],
        ["cbf29ce484222325", "af63dc4c8601ec8c", "85944171f73967e8"]
    );
}
