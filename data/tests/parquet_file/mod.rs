//! Parquet files for the tests.

use parquet::basic::{Compression, Encoding};
use parquet::data_type::{ByteArray, ByteArrayType, Int32Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

/// A Parquet file with a number in column `id` and these texts in column `body`, `group` rows in each group of rows.
pub fn parquet_file(texts: &[Option<String>], group: usize) -> Vec<u8> {
    packed_parquet_file(texts, group, Compression::SNAPPY, Encoding::PLAIN)
}

/// The same, packed and encoded in another way.
pub fn packed_parquet_file(
    texts: &[Option<String>],
    group: usize,
    packing: Compression,
    encoding: Encoding,
) -> Vec<u8> {
    let schema = parse_message_type("message rows { required int32 id; optional binary body (utf8); }").unwrap();
    let properties = WriterProperties::builder().set_compression(packing);
    // Texts are in a dictionary unless they have another encoding.
    let properties = match encoding {
        Encoding::PLAIN => properties,
        other => properties.set_dictionary_enabled(false).set_column_encoding("body".into(), other),
    };
    let properties = properties.build();
    let mut writer = SerializedFileWriter::new(Vec::new(), schema.into(), properties.into()).unwrap();
    for texts in texts.chunks(group) {
        let mut rows = writer.next_row_group().unwrap();
        let mut ids = rows.next_column().unwrap().unwrap();
        let numbers: Vec<i32> = (0..texts.len() as i32).collect();
        ids.typed::<Int32Type>().write_batch(&numbers, None, None).unwrap();
        ids.close().unwrap();
        let values: Vec<ByteArray> = texts.iter().flatten().map(|text| text.as_str().into()).collect();
        let levels: Vec<i16> = texts.iter().map(|text| i16::from(text.is_some())).collect();
        let mut bodies = rows.next_column().unwrap().unwrap();
        bodies.typed::<ByteArrayType>().write_batch(&values, Some(&levels), None).unwrap();
        bodies.close().unwrap();
        rows.close().unwrap();
    }
    writer.into_inner().unwrap()
}
