//! Weights in a folder of safetensors files, read one tensor at a time.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use common::UserError;
use common::files::{is_plain_name, open_file, read_file};
use rayon::prelude::*;
use serde::Deserialize;

use super::expert_tensors::Packed;
use super::names::{self, Naming};
use crate::checkpoint::{DataType, FileHeader, MANIFEST, Manifest, TensorEntry, TensorHeader, copy_overlap};
use crate::families::FileLayout;
use crate::told::tell;

/// The file of all weights, or of none, and the list of several. If both are there, `transformers` reads the first.
const FILE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// The largest index that is read, in bytes.
const LARGEST_INDEX: u64 = 64 << 20;

/// The name of the head's weight, with us and at Hugging Face.
const HEAD: &str = "lm_head.weight";

/// The values that a core reads at once.
const VALUES_AT_ONCE: usize = 256 << 10;

/// Rows of two tensors that are compared at once.
pub(super) const ROWS_AT_ONCE: usize = 4096;

/// A block of a tensor, and the block's place in a file.
pub(super) struct Located {
    file: usize,
    header: TensorHeader,
    /// The offset of the first value in the file.
    data: u64,
    /// The offset of the block in the tensor, by axis.
    offset: Vec<usize>,
}

/// A tensor: one block, or those that several ranks wrote.
pub(super) struct Whole {
    pub(super) shape: Vec<usize>,
    blocks: Vec<Located>,
}

/// The tensors of `model.safetensors`, of the files that `model.safetensors.index.json` lists, or of a checkpoint that
/// several ranks wrote.
pub struct WeightFolder {
    folder: PathBuf,
    naming: Naming,
    files: Vec<(PathBuf, File)>,
    tensors: BTreeMap<String, Whole>,
}

/// The error of a damaged file.
fn broken(path: &Path, problem: impl std::fmt::Display) -> UserError {
    UserError::new(
        format!("{} {problem}", path.display()),
        "weights are safetensors files, as `transformers` saves them",
        "get the file again, or save the model anew",
    )
}

/// The error of sound files that belong to another model than the options describe.
fn unfit(folder: &Path, problem: impl std::fmt::Display) -> UserError {
    UserError::new(
        format!("{} {problem}", folder.display()),
        "weights fit the model's options",
        "leave out the model options that differ from the folder's own, or get its files again",
    )
}

/// The error of a value that no training makes of sound weights.
fn not_finite(path: &Path, tensor: &str, value: f32, element: usize) -> UserError {
    UserError::new(
        format!("{} has {value} in tensor `{tensor}`, element {element} of its file", path.display()),
        "weights are finite numbers",
        "get the file again, or name a model from before its training diverged",
    )
}

/// The files that an index lists.
fn indexed(index: &Path) -> Result<Vec<String>, UserError> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let text = read_file(index, LARGEST_INDEX);
    let text = text.map_err(|error| broken(index, format!("cannot be read: {error}")))?;
    let parsed: Index =
        serde_json::from_slice(&text).map_err(|error| broken(index, format!("is not an index: {error}")))?;
    let names: BTreeSet<String> = parsed.weight_map.into_values().collect();
    match names.iter().find(|name| !is_plain_name(name)) {
        Some(name) => Err(broken(index, format!("names a file `{name}`, which is no name of a file in its folder"))),
        None => Ok(names.into_iter().collect()),
    }
}

/// Prints a notice of weights in a folder that are not read, as others are there.
pub(super) fn tell_of_unread(folder: &Path) {
    let index = folder.join(INDEX);
    let lists_others = || indexed(&index).map_or(true, |names| names != [FILE]);
    if folder.join(FILE).exists() && index.exists() && lists_others() {
        let folder = folder.display();
        tell(&format!("notice: {FILE} of {folder} is read, as transformers does, and not the files of its {INDEX}"));
    }
}

impl WeightFolder {
    /// Reads the headers of a folder's files.
    ///
    /// # Errors
    /// A folder without weights, or with damaged files.
    pub fn open(folder: &Path, naming: Naming) -> Result<WeightFolder, UserError> {
        let (file, index) = (folder.join(FILE), folder.join(INDEX));
        let mut weights = WeightFolder { folder: folder.into(), naming, files: Vec::new(), tensors: BTreeMap::new() };
        if folder.join(MANIFEST).exists() && !file.exists() {
            let manifest =
                Manifest::read(folder).map_err(|damage| broken(&folder.join(&damage.file), &damage.problem))?;
            let files = manifest.files.iter().filter(|file| file.name.starts_with("model-"));
            for name in files.map(|file| &file.name) {
                let parts = manifest.tensors.iter().filter(|part| part.file == *name);
                weights.add(folder.join(name), &parts.map(|part| (part.key(), part)).collect())?;
            }
            return Ok(weights);
        }
        let names = if file.exists() || !index.exists() { vec![FILE.into()] } else { indexed(&index)? };
        for name in names {
            weights.add(folder.join(name), &BTreeMap::new())?;
        }
        Ok(weights)
    }

    /// Reads the header of one file of a folder. Its tensors have the names that are asked for.
    ///
    /// # Errors
    /// A file that is missing or damaged.
    pub(super) fn of_file(folder: &Path, name: &str) -> Result<WeightFolder, UserError> {
        let (naming, files, tensors) = (Naming::Ours, Vec::new(), BTreeMap::new());
        let mut weights = WeightFolder { folder: folder.into(), naming, files, tensors };
        weights.add(folder.join(name), &BTreeMap::new())?;
        Ok(weights)
    }

    /// The names and shapes of all tensors.
    pub(super) fn shapes(&self) -> impl Iterator<Item = (&str, &[usize])> {
        self.tensors.iter().map(|(name, whole)| (name.as_str(), &whole.shape[..]))
    }

    /// The shape and all values of a tensor.
    ///
    /// # Errors
    /// There is none of that name; a type that is not f32, f16 or bf16; a file that cannot be read.
    pub(super) fn tensor(&self, name: &str) -> Result<(&[usize], Vec<f32>), UserError> {
        let missing = || unfit(&self.folder, format!("has no tensor `{name}`"));
        let whole = self.tensors.get(name).ok_or_else(missing)?;
        Ok((&whole.shape, self.joined(name, whole, 0..whole.shape[0])?))
    }

    /// Reads the header of one more file. `parts` are the tensors that the file has only a part of, by their names in
    /// it.
    fn add(&mut self, path: PathBuf, parts: &BTreeMap<&str, &TensorEntry>) -> Result<(), UserError> {
        let file = open_file(&path).map_err(|error| broken(&path, format!("cannot be read: {error}")))?;
        let header = FileHeader::read(&file).map_err(|problem| broken(&path, problem))?;
        let data = header.data;
        for (name, header) in header.tensors {
            let part = parts.get(name.as_str()).copied();
            if let Some(part) = part.filter(|part| part.sizes != header.shape) {
                let (found, wanted) = (&header.shape, &part.sizes);
                return Err(broken(&path, format!("has `{name}` with shape {found:?}, and its manifest {wanted:?}")));
            }
            let offset = part.map_or(vec![0; header.shape.len()], |part| part.offset.clone());
            let shape = part.map_or(&header.shape, |part| &part.shape).clone();
            let located = Located { file: self.files.len(), header, data, offset };
            match (part, self.tensors.entry(part.map_or(name, |part| part.name.clone()))) {
                (_, Entry::Vacant(entry)) => {
                    entry.insert(Whole { shape, blocks: vec![located] });
                }
                (Some(_), Entry::Occupied(mut entry)) => entry.get_mut().blocks.push(located),
                (None, Entry::Occupied(entry)) => {
                    return Err(broken(&path, format!("has `{}`, as another file does", entry.key())));
                }
            }
        }
        self.files.push((path, file));
        Ok(())
    }

    /// The tensor of that name, with or without the family's prefix.
    pub(super) fn find(&self, name: &str) -> Option<(&str, &Whole)> {
        let bare = match self.naming {
            Naming::Ours => None,
            Naming::Family(family) => name.strip_prefix(family.tensors.prefix),
        };
        let found = self.tensors.get_key_value(name).or_else(|| self.tensors.get_key_value(bare?));
        found.map(|(name, whole)| (name.as_str(), whole))
    }

    /// Some rows of a parameter in our layout: no others are read, unless files have the transpose.
    ///
    /// # Errors
    /// A tensor that is missing, has another shape, or a type that is not f32, f16 or bf16.
    pub fn rows(&self, entry: &names::Entry, rows: Range<usize>) -> Result<Vec<f32>, UserError> {
        if let Some((name, tensor)) = self.fused(entry) {
            let (width, block) = (entry.width(), self.fused_block(entry, name, tensor)?);
            return self.values(name, block, rows.start * width..rows.end * width);
        }
        if let FileLayout::OfExperts { .. } = entry.layout {
            return self.rows_of_experts(entry, rows);
        }
        let (width, mut values) = (entry.width(), vec![0.0; rows.len() * entry.width()]);
        let (mut parts, mut rest) = (Vec::new(), &mut values[..]);
        for part in &entry.parts {
            let (first, end) = (rows.start.max(part.rows.start), rows.end.min(part.rows.end));
            if first < end {
                let (here, after) = rest.split_at_mut((end - first) * width);
                parts.push((part, first - part.rows.start..end - part.rows.start, here));
                rest = after;
            }
        }
        let read = |(part, here, values): (&names::TensorRows, Range<usize>, &mut [f32])| {
            let (name, tensor) = self.part(entry, part)?;
            match entry.layout {
                FileLayout::Ours => self.join(name, tensor, here, values),
                layout => {
                    let whole = self.joined(name, tensor, 0..tensor.shape[0])?;
                    let whole = layout.as_ours(whole, entry.shape[0], width);
                    values.copy_from_slice(&whole[here.start * width..here.end * width]);
                    Ok(())
                }
            }
        };
        let failed = parts.into_par_iter().find_map_first(|part| read(part).err());
        failed.map_or(Ok(values), Err)
    }

    /// The tensor of a part of a parameter.
    pub(super) fn part(&self, entry: &names::Entry, part: &names::TensorRows) -> Result<(&str, &Whole), UserError> {
        let missing = || unfit(&self.folder, format!("has no tensor `{}`", part.name));
        let (name, tensor) = self.find(&part.name).ok_or_else(missing)?;
        let wanted = entry.part_shape(part);
        match tensor.shape == wanted {
            true => Ok((name, tensor)),
            false => Err(self.misshapen(name, &tensor.shape, &wanted)),
        }
    }

    /// The tensor that has a parameter's rows in place of the parts, if any.
    fn fused(&self, entry: &names::Entry) -> Option<(&str, &Whole)> {
        self.find(entry.fused.as_deref()?)
    }

    /// The block of such a tensor.
    fn fused_block<'w>(&self, entry: &names::Entry, name: &str, tensor: &'w Whole) -> Result<&'w Located, UserError> {
        let fits = match tensor.shape[..] {
            [rows, columns] => [rows, columns] == entry.shape[..],
            [experts, rows, columns] => columns == entry.width() && experts.checked_mul(rows) == Some(entry.shape[0]),
            _ => false,
        };
        match &tensor.blocks[..] {
            [whole] if fits => Ok(whole),
            _ => Err(self.misshapen(name, &tensor.shape, &entry.shape)),
        }
    }

    pub(super) fn misshapen(&self, name: &str, found: &[usize], wanted: &[usize]) -> UserError {
        UserError::new(
            format!("tensor `{name}` of {} has shape {found:?}, the model {wanted:?}", self.folder.display()),
            "weights fit the model's options",
            "leave out the model options that differ from the folder's own",
        )
    }

    /// Some rows of a tensor.
    pub(super) fn joined(&self, name: &str, tensor: &Whole, rows: Range<usize>) -> Result<Vec<f32>, UserError> {
        let mut values = vec![0.0; rows.len() * tensor.shape[1..].iter().product::<usize>()];
        self.join(name, tensor, rows, &mut values)?;
        Ok(values)
    }

    /// Reads some rows of a tensor.
    fn join(&self, name: &str, tensor: &Whole, rows: Range<usize>, values: &mut [f32]) -> Result<(), UserError> {
        let width = |sizes: &[usize]| sizes[1..].iter().product::<usize>();
        if let [whole] = &tensor.blocks[..]
            && whole.header.shape == tensor.shape
        {
            return self.read_values(name, whole, rows.start * width(&tensor.shape), values);
        }
        let sizes = [&[rows.len()], &tensor.shape[1..]].concat();
        let offset = [&[rows.start], &vec![0; tensor.shape.len() - 1][..]].concat();
        for block in &tensor.blocks {
            let (at, shape) = (block.offset[0], &block.header.shape);
            let (first, end) = (rows.start.max(at), rows.end.min(at + shape[0]));
            if first >= end {
                continue;
            }
            let width = width(shape);
            let part = self.values(name, block, (first - at) * width..(end - at) * width)?;
            let (part_offset, part_sizes) =
                ([&[first], &block.offset[1..]].concat(), [&[end - first], &shape[1..]].concat());
            copy_overlap((&part[..], &part_offset, &part_sizes), (&mut *values, &offset, &sizes));
        }
        Ok(())
    }

    /// Some elements of a block.
    fn values(&self, name: &str, located: &Located, elements: Range<usize>) -> Result<Vec<f32>, UserError> {
        let mut values = vec![0.0; elements.len()];
        self.read_values(name, located, elements.start, &mut values)?;
        Ok(values)
    }

    /// Reads the elements of a block from the one with index `first` on, on all cores.
    fn read_values(&self, name: &str, located: &Located, first: usize, values: &mut [f32]) -> Result<(), UserError> {
        let dtype = self.data_type(name, located)?;
        let read = |(number, values): (usize, &mut [f32])| {
            let first = first + number * VALUES_AT_ONCE;
            let bytes = self.bytes(located, first * dtype.size()..(first + values.len()) * dtype.size())?;
            values.copy_from_slice(&dtype.decode(&bytes));
            match values.iter().position(|value| !value.is_finite()) {
                None => Ok(()),
                Some(at) => Err(self.not_finite(name, values[at], first + at)),
            }
        };
        let failed = values.par_chunks_mut(VALUES_AT_ONCE).enumerate().find_map_first(|values| read(values).err());
        failed.map_or(Ok(()), Err)
    }

    /// Some bytes of a block.
    fn bytes(&self, located: &Located, range: Range<usize>) -> Result<Vec<u8>, UserError> {
        let (path, file) = &self.files[located.file];
        let [begin, _] = located.header.data_offsets;
        // No more than the shape says, and the file has as many: the header was checked.
        let mut bytes = vec![0; range.len()];
        file.read_exact_at(&mut bytes, located.data + begin + range.start as u64)
            .map_err(|error| broken(path, format!("cannot be read: {error}")))?;
        Ok(bytes)
    }

    /// The rows of a tensor of bytes, which [`WeightFolder::check_bytes`] has checked.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub(super) fn bytes_of(&self, name: &str, tensor: &Whole, rows: Range<usize>) -> Result<Vec<u8>, UserError> {
        let width: usize = tensor.shape[1..].iter().product();
        self.bytes(self.check_bytes(name, tensor)?, rows.start * width..rows.end * width)
    }

    /// The block of a tensor of bytes.
    ///
    /// # Errors
    /// A tensor of another type.
    pub(super) fn check_bytes<'w>(&self, name: &str, tensor: &'w Whole) -> Result<&'w Located, UserError> {
        match &tensor.blocks[..] {
            [whole] if whole.header.dtype == "U8" => Ok(whole),
            blocks => {
                let dtype = &blocks[0].header.dtype;
                Err(broken(&self.files[blocks[0].file].0, format!("has `{name}` as {dtype}, which is not U8")))
            }
        }
    }

    /// The error of a value of a tensor that no training makes of sound weights.
    pub(super) fn not_finite(&self, tensor: &str, value: f32, element: usize) -> UserError {
        let file = self.tensors.get(tensor).map_or(0, |whole| whole.blocks[0].file);
        not_finite(&self.files[file].0, tensor, value, element)
    }

    /// The type of a block's values.
    fn data_type(&self, name: &str, located: &Located) -> Result<DataType, UserError> {
        let (path, dtype) = (&self.files[located.file].0, &located.header.dtype);
        let unknown = || broken(path, format!("has `{name}` as {dtype}, which is not F32, F16 or BF16"));
        DataType::named(dtype).ok_or_else(unknown)
    }

    /// Fails unless the files have the tensors of all parameters, in the right shapes, and no other: the model would not
    /// be the one that was saved. Headers tell that.
    ///
    /// # Errors
    /// Names the tensor.
    pub fn check(&self, entries: &[names::Entry]) -> Result<(), UserError> {
        let mut used: HashSet<&str> = HashSet::new();
        for entry in entries {
            match self.fused(entry) {
                Some((name, _)) => used.extend([name]),
                None => used.extend(entry.parts.iter().flat_map(|part| match self.packed(&part.name) {
                    Some(Packed { blocks, scales }) => vec![blocks.0, scales.0],
                    None => self.find(&part.name).into_iter().map(|(name, _)| name).collect(),
                })),
            }
        }
        let tied = !entries.iter().any(|entry| entry.name == HEAD);
        let layer = |entry: &names::Entry| entry.name.strip_prefix("h.")?.split_once('.')?.0.parse::<usize>().ok();
        let layers = entries.iter().filter_map(layer).max().map_or(0, |last| last + 1);
        let known = |name: &str| {
            (tied && name == HEAD)
                || matches!(self.naming, Naming::Family(family) if (family.tensors.is_leftover)(name, layers))
        };
        if let Some(name) = self.tensors.keys().find(|name| !used.contains(name.as_str()) && !known(name)) {
            return Err(unfit(&self.folder, format!("has a tensor `{name}` that no parameter of the model takes")));
        }
        for entry in entries {
            match self.fused(entry) {
                Some((name, tensor)) => {
                    self.data_type(name, self.fused_block(entry, name, tensor)?)?;
                }
                None => {
                    for part in &entry.parts {
                        if let Some(packed) = self.packed(&part.name) {
                            self.check_packed(entry, &packed)?;
                            continue;
                        }
                        let (name, tensor) = self.part(entry, part)?;
                        tensor.blocks.iter().try_for_each(|block| self.data_type(name, block).map(drop))?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Fails if the files of a tied model have a head that is not the embedding.
    ///
    /// # Errors
    /// Names the folder; tensors that cannot be read.
    pub fn check_tied_head(&self, entries: &[names::Entry]) -> Result<(), UserError> {
        let is_tied = !entries.iter().any(|entry| entry.name == HEAD);
        let embedding = entries.iter().find(|entry| is_tied && entry.name == "wte.weight");
        let Some((embedding, head)) = embedding.zip(self.tensors.get(HEAD)) else { return Ok(()) };
        let (rows, sizes) = (embedding.shape[0], &head.shape);
        let mut equal = *sizes == embedding.shape;
        for first in (0..rows).step_by(ROWS_AT_ONCE) {
            let some = first..rows.min(first + ROWS_AT_ONCE);
            equal = equal && self.joined(HEAD, head, some.clone())? == self.rows(embedding, some)?;
        }
        if equal {
            return Ok(());
        }
        Err(UserError::new(
            format!(
                "{} has a tensor `{HEAD}` that differs from the embedding, and the model is tied",
                self.folder.display()
            ),
            "the head of a tied model is its embedding",
            "use --tie-embeddings false to have that head (tie_word_embeddings in config.json), or remove the tensor",
        ))
    }
}
