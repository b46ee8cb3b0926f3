//! The header of a safetensors file, written, or read and checked: the file's tensors and their places.
//!
//! The format: 8 bytes with the length of the header, the header as JSON, then the values of all tensors end to end. See
//! <https://huggingface.co/docs/safetensors>.

use std::collections::BTreeMap;
use std::fmt::Formatter;
use std::fs::File;
use std::os::unix::fs::FileExt;

use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, Visitor};

use super::data_type::DataType;

/// The format's own limit on the length of headers.
const LONGEST: u64 = 100_000_000;

/// Most axes of a tensor.
pub(super) const MOST_AXES: usize = 8;

/// Bits of a value of a type, by the safetensors library; `None` for an unknown type.
fn bits(dtype: &str) -> Option<u64> {
    match dtype {
        "BOOL" | "U8" | "I8" | "F8_E5M2" | "F8_E4M3" | "F8_E8M0" => Some(8),
        "I16" | "U16" | "F16" | "BF16" => Some(16),
        "I32" | "U32" | "F32" => Some(32),
        "F64" | "I64" | "U64" => Some(64),
        _ => None,
    }
}

/// The beginning of a file of the given tensors, with each tensor's name, type and shape: all but the values.
pub(crate) fn beginning(tensors: impl Iterator<Item = (String, DataType, Vec<usize>)>) -> Vec<u8> {
    let mut end = 0;
    let info = |(name, dtype, shape): (String, DataType, Vec<usize>)| {
        let start = end;
        end += shape.iter().product::<usize>() * dtype.size();
        let dtype = match dtype {
            DataType::F32 => Dtype::F32,
            DataType::F16 => Dtype::F16,
            DataType::Bf16 => Dtype::BF16,
        };
        (name, TensorInfo { dtype, shape, data_offsets: (start, end) })
    };
    // Hugging Face's readers ask for the library that has this layout.
    let library = [("format".to_string(), "pt".to_string())].into();
    let metadata = Metadata::new(Some(library), tensors.map(info).collect())
        .unwrap_or_else(|error| unreachable!("offsets follow from shapes: {error}"));
    let text = serde_json::to_vec(&metadata).unwrap_or_else(|error| unreachable!("names are text: {error}"));
    let mut header = (text.len().next_multiple_of(8) as u64).to_le_bytes().to_vec();
    header.extend(&text);
    header.resize(header.len().next_multiple_of(8), b' ');
    header
}

/// A tensor of a file.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct TensorHeader {
    /// The type of the tensor's values.
    pub(crate) dtype: String,
    /// The tensor's sizes.
    pub(crate) shape: Vec<usize>,
    /// The tensor's first byte, and the byte after the last, counted from the end of the header.
    pub(crate) data_offsets: [u64; 2],
}

/// The header of a file.
#[derive(Debug)]
pub(crate) struct FileHeader {
    /// The file's tensors by name.
    pub(crate) tensors: BTreeMap<String, TensorHeader>,
    /// The offset of the first value in the file.
    pub(crate) data: u64,
}

impl FileHeader {
    /// Reads the header of a file.
    ///
    /// # Errors
    /// In words, the problem: the file cannot be read; the header is not one; two tensors have one name; tensors
    /// overlap, leave gaps, do not have the bytes of their shape, or do not fill the file.
    pub(crate) fn read(file: &File) -> Result<FileHeader, String> {
        let unreadable = |error: std::io::Error| format!("cannot be read: {error}");
        let bytes = file.metadata().map_err(unreadable)?.len();
        let mut length = [0; 8];
        file.read_exact_at(&mut length, 0).map_err(unreadable)?;
        let length = u64::from_le_bytes(length);
        if length > LONGEST || length + 8 > bytes {
            return Err(format!("says its header has {length} bytes, of {bytes} in all"));
        }
        let mut text = vec![0; length as usize];
        file.read_exact_at(&mut text, 8).map_err(unreadable)?;
        let Entries(tensors) =
            serde_json::from_slice(&text).map_err(|error| format!("has a header that is not one: {error}"))?;
        let data = 8 + length;
        lie_end_to_end(&tensors, bytes - data)?;
        Ok(FileHeader { tensors, data })
    }
}

/// Fails unless the tensors have the bytes of their shapes, lie end to end, and fill `bytes` bytes.
fn lie_end_to_end(tensors: &BTreeMap<String, TensorHeader>, bytes: u64) -> Result<(), String> {
    let mut order: Vec<(&String, &TensorHeader)> = tensors.iter().collect();
    order.sort_by_key(|(_, tensor)| tensor.data_offsets);
    let mut next = 0;
    for (name, TensorHeader { dtype, shape, data_offsets: [begin, end] }) in order {
        if begin > end || *end > bytes {
            return Err(format!("ends before its tensor `{name}` does"));
        }
        if *begin != next {
            let what = if *begin < next { "overlaps another" } else { "begins after a gap" };
            return Err(format!("has a tensor `{name}` that {what}: it begins at byte {begin}, not {next}"));
        }
        next = *end;
        if shape.len() > MOST_AXES {
            return Err(format!("has `{name}` with {} axes", shape.len()));
        }
        // Of an unknown type the shape says nothing. Such a tensor cannot be read either.
        let elements = shape.iter().try_fold(1u64, |all, &size| all.checked_mul(size as u64));
        let wanted = bits(dtype).map(|bits| elements.and_then(|elements| elements.checked_mul(bits / 8)));
        if wanted.is_some_and(|wanted| wanted != Some(end - begin)) {
            return Err(format!("has `{name}` with shape {shape:?} of {dtype} in {} bytes", end - begin));
        }
    }
    if next != bytes {
        return Err(format!("has {bytes} bytes of values, and its tensors have {next}"));
    }
    Ok(())
}

/// The tensors of a header. A name that stands there twice is an error: other readers may take the other one.
struct Entries(BTreeMap<String, TensorHeader>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Entries, D::Error> {
        struct EntriesVisitor;
        impl<'de> Visitor<'de> for EntriesVisitor {
            type Value = Entries;

            fn expecting(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object with an entry for each tensor")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let mut tensors = BTreeMap::new();
                let mut described = false;
                while let Some(name) = map.next_key::<String>()? {
                    let twice = match name.as_str() {
                        "__metadata__" => {
                            map.next_value::<IgnoredAny>()?;
                            std::mem::replace(&mut described, true)
                        }
                        _ => tensors.insert(name.clone(), map.next_value()?).is_some(),
                    };
                    if twice {
                        return Err(A::Error::custom(format!("`{name}` stands in it twice")));
                    }
                }
                Ok(Entries(tensors))
            }
        }
        deserializer.deserialize_map(EntriesVisitor)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// The problem of a file with this header and so many bytes of values.
    fn problem(header: &str, values: usize) -> String {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
        file.write_all(header.as_bytes()).unwrap();
        file.write_all(&vec![0; values]).unwrap();
        FileHeader::read(&file).err().unwrap_or_default()
    }

    #[test]
    fn tensors_lie_end_to_end_and_each_name_stands_once() {
        let tensor = |name: &str, begin: usize, end: usize| {
            format!(r#""{name}":{{"dtype":"F32","shape":[{}],"data_offsets":[{begin},{end}]}}"#, (end - begin) / 4)
        };
        let of = |parts: &[String], values| problem(&format!("{{{}}}", parts.join(",")), values);
        assert_eq!(of(&[tensor("b", 8, 12), tensor("a", 0, 8), r#""__metadata__":{}"#.into()], 12), "");
        assert_eq!(of(&[], 0), "");
        let overlap = of(&[tensor("a", 0, 8), tensor("b", 4, 12)], 12);
        assert_eq!(overlap, "has a tensor `b` that overlaps another: it begins at byte 4, not 8");
        let same = of(&[tensor("a", 0, 8), tensor("b", 0, 8)], 8);
        assert_eq!(same, "has a tensor `b` that overlaps another: it begins at byte 0, not 8");
        assert!(of(&[tensor("a", 0, 8), tensor("b", 12, 16)], 16).contains("begins after a gap"));
        assert!(of(&[tensor("a", 0, 8), tensor("a", 8, 16)], 16).contains("`a` stands in it twice"));
        assert!(of(&[tensor("a", 0, 8)], 12).contains("has 12 bytes of values, and its tensors have 8"));
        assert!(of(&[tensor("a", 0, 8)], 4).contains("ends before its tensor `a` does"));
    }

    #[test]
    fn sizes_that_overflow_or_do_not_fit_the_bytes_are_refused() {
        let of =
            |shape: &str| problem(&format!(r#"{{"a":{{"dtype":"F32","shape":{shape},"data_offsets":[0,4]}}}}"#), 4);
        assert_eq!(of("[1]"), "");
        assert_eq!(of("[]"), "", "a scalar has one value");
        assert!(of("[2]").contains("with shape [2] of F32 in 4 bytes"));
        assert!(of("[4294967296,4294967296,4294967296]").contains("in 4 bytes"));
        assert!(of("[1,1,1,1,1,1,1,1,1]").contains("9 axes"));
        assert!(of("[-1]").contains("a header that is not one"));
        assert!(problem(&"[".repeat(100_000), 0).contains("a header that is not one"));
    }
}
