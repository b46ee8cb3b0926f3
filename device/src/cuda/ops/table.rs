//! Work over many tensors, cut into chunks; several launches where one table does not hold them all.

/// Elements of a chunk, which a block works on; `CHUNK` in `kernels/table.cuh`.
const CHUNK: usize = 1 << 14;

/// Chunks of a tensor of so many elements.
pub(super) fn chunks(elements: usize) -> usize {
    elements.div_ceil(CHUNK)
}

/// Groups what has elements by tables of `N`: calls `launch(entries, number of entries, chunks before, chunks)` for each,
/// `entry` making an entry from an item and the chunk that it begins at within its table.
pub(super) fn for_each_table<I, E: bytemuck::Zeroable + Copy, const N: usize>(
    items: impl IntoIterator<Item = (I, usize)>,
    entry: impl Fn(I, u32) -> E,
    mut launch: impl FnMut(&[E; N], u32, usize, usize) -> crate::Result<()>,
) -> crate::Result<()> {
    let mut items = items.into_iter().filter(|(_, elements)| *elements > 0).peekable();
    let mut before = 0;
    while items.peek().is_some() {
        let (mut entries, mut count, mut first) = ([E::zeroed(); N], 0, 0);
        for (item, elements) in items.by_ref().take(N) {
            entries[count] = entry(item, first as u32);
            count += 1;
            first += chunks(elements);
        }
        launch(&entries, count as u32, before, first)?;
        before += first;
    }
    Ok(())
}
