//! Work over many tensors, split into chunks. It takes several launches if one table does not hold all tensors.

/// Elements of a chunk, the work of one block; `CHUNK` in `kernels/headers/table.cuh`.
const CHUNK: usize = 1 << 14;

/// Chunks of a tensor of so many elements.
pub(crate) fn table_chunks(elements: usize) -> usize {
    elements.div_ceil(CHUNK)
}

/// Groups the items that have elements into tables of `N`, and calls `launch(entries, number of entries, chunks before,
/// chunks)` for each table. `entry` makes an entry from an item and the number of its first chunk within its table.
pub(crate) fn for_each_table<I, E: bytemuck::Zeroable + Copy, const N: usize>(
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
            first += table_chunks(elements);
        }
        launch(&entries, count as u32, before, first)?;
        before += first;
    }
    Ok(())
}
