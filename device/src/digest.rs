//! Digests of bytes, to compare two states.

/// The digest of bytes: the sum of all words of 8 bytes (the last one filled up with zeros), each mixed with its place by
/// the last steps of SplitMix64 (Steele, Lea, Flood 2014), which never give two words the same value. So memories of one
/// size that differ in a single word never have the same digest. `kernels/digest.cu` computes the same.
pub(crate) fn digest(bytes: &[u8]) -> u64 {
    digest_part(bytes, 0)
}

/// The part of a digest that comes from bytes with so many words before them. The digest is the sum of its parts.
pub(crate) fn digest_part(bytes: &[u8], words_before: u64) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let all = words.iter().chain((!rest.is_empty()).then_some(&last));
    let placed = all.zip(words_before + 1..).map(|(word, place): (_, u64)| {
        u64::from_le_bytes(*word).wrapping_add(place.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    });
    placed.map(mixed).fold(0, u64::wrapping_add)
}

fn mixed(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
