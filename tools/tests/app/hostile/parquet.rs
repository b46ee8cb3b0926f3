//! Parquet files, byte by byte to their published layout. They may announce things that they do not have.

/// A value of Thrift's compact protocol.
pub enum Value {
    I32(i64),
    I64(i64),
    Bytes(Vec<u8>),
    /// Items of a type, as many as announced or fewer.
    List {
        kind: u8,
        announced: u64,
        items: Vec<Value>,
    },
    Struct(Vec<(u8, Value)>),
    /// Bytes that are written as they are, as a value of a type.
    Raw(u8, Vec<u8>),
}

use Value::{Bytes, I32, I64, Struct};

const STRUCT: u8 = 12;

pub fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value > 0x7f {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

pub fn list(kind: u8, items: Vec<Value>) -> Value {
    Value::List { kind, announced: items.len() as u64, items }
}

impl Value {
    fn kind(&self) -> u8 {
        match self {
            Value::I32(_) => 5,
            Value::I64(_) => 6,
            Value::Bytes(_) => 8,
            Value::List { .. } => 9,
            Value::Struct(_) => STRUCT,
            Value::Raw(kind, _) => *kind,
        }
    }

    fn write(&self) -> Vec<u8> {
        match self {
            Value::I32(value) | Value::I64(value) => varint((value << 1 ^ value >> 63) as u64),
            Value::Bytes(bytes) => [varint(bytes.len() as u64), bytes.clone()].concat(),
            Value::List { kind, announced, items } => {
                let items: Vec<u8> = items.iter().flat_map(Value::write).collect();
                [vec![0xf0 | kind], varint(*announced), items].concat()
            }
            Value::Struct(fields) => {
                let mut bytes = Vec::new();
                let mut last = 0;
                for (number, value) in fields {
                    bytes.push((number - last) << 4 | value.kind());
                    bytes.extend(value.write());
                    last = *number;
                }
                bytes.push(0);
                bytes
            }
            Value::Raw(_, bytes) => bytes.clone(),
        }
    }
}

/// A page: its header and its packed content.
pub fn page(header: Vec<(u8, Value)>, content: &[u8]) -> Vec<u8> {
    [Struct(header).write(), content.to_vec()].concat()
}

/// The header of a page with values that are stored in an encoding.
pub fn data_header(unpacked: i64, packed: usize, values: i64, encoding: i64) -> Vec<(u8, Value)> {
    let data = Struct(vec![(1, I32(values)), (2, I32(encoding)), (3, I32(3)), (4, I32(3))]);
    vec![(1, I32(0)), (2, I32(unpacked)), (3, I32(packed as i64)), (5, data)]
}

/// The header of a page with the texts of a dictionary.
pub fn dictionary_header(unpacked: i64, packed: usize, texts: i64) -> Vec<(u8, Value)> {
    let dictionary = Struct(vec![(1, I32(texts)), (2, I32(0))]);
    vec![(1, I32(2)), (2, I32(unpacked)), (3, I32(packed as i64)), (7, dictionary)]
}

/// A file that ends with this description of itself.
pub fn described(pages: &[u8], description: Value) -> Vec<u8> {
    let description = description.write();
    let length = (description.len() as u32).to_le_bytes();
    [b"PAR1", pages, &description, &length, b"PAR1"].concat()
}

/// The column `text` of required texts, and its parent.
pub fn schema() -> Value {
    let text = vec![(1, I32(6)), (3, I32(0)), (4, Bytes(b"text".into())), (6, I32(0))];
    list(STRUCT, vec![Struct(vec![(4, Bytes(b"rows".into())), (5, I32(1))]), Struct(text)])
}

/// A file with a column `text`. Its pages are packed by a codec and lie from byte 4 on. `has_dictionary`: the first is
/// one.
pub fn file(pages: &[u8], codec: i64, rows: i64, has_dictionary: bool) -> Vec<u8> {
    let length = pages.len() as i64;
    let mut column = vec![
        (1, I32(6)),
        (2, list(5, vec![I32(0)])),
        (3, list(8, vec![Bytes(b"text".into())])),
        (4, I32(codec)),
        (5, I64(rows)),
        (6, I64(length)),
        (7, I64(length)),
        (9, I64(4)),
    ];
    if has_dictionary {
        column.push((11, I64(4)));
    }
    let chunk = Struct(vec![(2, I64(4)), (3, Struct(column))]);
    let group = Struct(vec![(1, list(STRUCT, vec![chunk])), (2, I64(length)), (3, I64(rows))]);
    let groups = list(STRUCT, vec![group]);
    described(pages, Struct(vec![(1, I32(1)), (2, schema()), (3, I64(rows)), (4, groups)]))
}
