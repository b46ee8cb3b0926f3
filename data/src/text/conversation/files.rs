//! Files of conversations, all of one form.

use std::rc::Rc;

use common::UserError;
use common::format::counted;

use super::form::{ChatForm, has_fields};
use super::template::ChatTemplate;
use crate::file_notices::FileNotices;
use crate::text::conversation::Conversation;
use crate::text::files::{Holds, JsonLine, Records, Segment, TextFile, in_parallel, read_files};
use crate::text::tokenizer::Tokenizer;

/// The files of a data set of conversations, after reading.
pub(crate) struct ReadConversations {
    /// The form of all conversations. `None` if there are none.
    pub(crate) form: Option<ChatForm>,
    /// Notices about the files.
    pub(crate) notices: FileNotices,
    /// A notice about answers of which the template leaves something out.
    pub(crate) lost: Option<String>,
}

/// The form of a data set: that of its first record.
struct Form {
    form: ChatForm,
    /// The first record's file and place.
    first: String,
    template: Option<Rc<ChatTemplate>>,
}

/// Tokenises the conversations of files in order, and passes each to `sink`; of a pair of answers both at once. `template` is called if they need one.
///
/// # Errors
/// A file that cannot be read or has no records; a record that is not a conversation, or one of another form than the
/// first, or has answers that cannot be told apart; an error of `template` or `sink`.
pub(crate) fn encode_conversations<E: From<UserError> + Send>(
    files: &[TextFile],
    records: Records<'_>,
    tokenizer: &Tokenizer,
    mut template: impl FnMut() -> Result<Rc<ChatTemplate>, UserError>,
    mut sink: impl FnMut(Vec<Conversation>) -> Result<(), E>,
) -> Result<ReadConversations, E> {
    let mut known: Option<Form> = None;
    let mut lost = LostAnswers::default();
    let notices = read_files(files, tokenizer, records, |segments| {
        let Some(first) = segments.first() else { return Ok(()) };
        if known.is_none() {
            let form = form_of(first, records)?;
            let template = form.needs_template().then(&mut template).transpose()?;
            known = Some(Form { form, first: first.name(), template });
        }
        let Some(Form { form, first, template }) = &known else { return Ok(()) };
        let (form, template) = (*form, template.as_deref());
        let encoded = in_parallel(segments, |segment| encoded(segment, records, (form, first), template, tokenizer))?;
        segments.iter().zip(encoded).try_for_each(|(segment, conversations)| {
            conversations.iter().try_for_each(|conversation| lost.add(segment, conversation, template))?;
            sink(conversations)
        })
    })?;
    let (form, template) = known.map_or((None, None), |known| (Some(known.form), known.template));
    Ok(ReadConversations { form, notices, lost: lost.told(template.as_deref())? })
}

/// The number of conversations without a whole answer that is enough to refuse a template.
const ENOUGH: u64 = 16;

/// Conversations with answers of which the template leaves something out.
#[derive(Default)]
struct LostAnswers {
    /// Conversations with learned answers.
    read: u64,
    lost: u64,
    /// The first conversation that lost an answer.
    first: String,
}

impl LostAnswers {
    /// Counts a conversation.
    ///
    /// # Errors
    /// The first [`ENOUGH`] conversations all have such an answer.
    fn add(
        &mut self,
        segment: &Segment,
        conversation: &Conversation,
        template: Option<&ChatTemplate>,
    ) -> Result<(), UserError> {
        let Conversation { counts, lost, .. } = conversation;
        self.read += u64::from(lost.is_some() || counts.contains(&true));
        if let Some(lost) = lost {
            if self.lost == 0 {
                self.first = format!("{} {lost}", segment.name());
            }
            self.lost += 1;
        }
        if self.read == ENOUGH { self.ensure_some_are_whole(template) } else { Ok(()) }
    }

    fn ensure_some_are_whole(&self, template: Option<&ChatTemplate>) -> Result<(), UserError> {
        let Some(template) = template.filter(|_| self.lost > 0 && self.lost == self.read) else { return Ok(()) };
        Err(UserError::new(
            format!(
                "the chat template of {} leaves out or changes an answer of each of the first {}: {}",
                template.name(),
                counted(self.read as usize, "conversation"),
                self.first
            ),
            "the text of an answer stands in what is learned, up to white space around it and thoughts before </think>",
            "correct the template, such as the name of a message's content, or name another: --chat-template FILE",
        ))
    }

    /// A notice about all files.
    ///
    /// # Errors
    /// All conversations have such an answer.
    fn told(&self, template: Option<&ChatTemplate>) -> Result<Option<String>, UserError> {
        self.ensure_some_are_whole(template)?;
        let Some(template) = template.filter(|_| self.lost > 0) else { return Ok(None) };
        Ok(Some(format!(
            "the chat template of {} leaves out or changes an answer in {} of {} ({:.0} %): {}",
            template.name(),
            self.lost,
            counted(self.read as usize, "conversation"),
            100.0 * self.lost as f64 / self.read as f64,
            self.first
        )))
    }
}

fn wrong(segment: &Segment, records: Records<'_>, what: &str, fix: &str) -> UserError {
    UserError::new(format!("{} {what}", segment.name()), records.rule(), fix)
}

/// The form of a record.
fn form_of(segment: &Segment, records: Records<'_>) -> Result<ChatForm, UserError> {
    let wrong = |what: &str, fix: &str| wrong(segment, records, what, fix);
    if segment.holds != Holds::Json {
        return Err(wrong("has no JSON lines", "name a .jsonl, .json or .parquet file with such records"));
    }
    segment.ensure_record().map_err(|what| wrong(&what, "break it into several"))?;
    let line = JsonLine::of_record(&segment.text, None).map_err(|what| wrong(&what, "correct it"))?;
    match records {
        Records::Pairs => ChatForm::of_pair(&segment.text, &line.fields)
            .map_err(|what| wrong(&what, "rename its fields, or train on conversations: --sft in place of --dpo")),
        Records::Labelled => {
            let fix = match ChatForm::is_pair(&line.fields) {
                true => "for pairs of answers give --dpo in place of --kto",
                false => "rename its fields, or train on conversations: --sft in place of --kto",
            };
            match ChatForm::is_labelled(&line.fields) {
                true => ChatForm::of(&segment.text, &line.fields).map_err(|what| wrong(&what, "correct it")),
                false => Err(wrong(&has_fields(&line.fields), fix)),
            }
        }
        _ => ChatForm::of(&segment.text, &line.fields).map_err(|what| {
            let fix = match ChatForm::is_pair(&line.fields) {
                true => "for pairs of answers give --dpo in place of --sft",
                false => "rename its fields, or leave --sft out to train on documents",
            };
            wrong(&what, fix)
        }),
    }
}

/// The conversations of a record. The data set has a form, which its first record has.
fn encoded(
    segment: &Segment,
    records: Records<'_>,
    (form, first): (ChatForm, &str),
    template: Option<&ChatTemplate>,
    tokenizer: &Tokenizer,
) -> Result<Vec<Conversation>, UserError> {
    let found = form_of(segment, records)?;
    if found != form {
        return Err(UserError::new(
            format!("{} is {found}, and {first} is {form}", segment.name()),
            "the records of a data set have one form",
            "name the files of one form, or blend the others as data sets of their own: --data-path 0.5 A 0.5 B",
        ));
    }
    let wrong = |what: String, fix: &str| wrong(segment, records, &what, fix);
    let mut all = Conversation::of_record(&segment.text, form, template, tokenizer)
        .map_err(|what| wrong(what, "correct it, or name a template: --chat-template FILE"))?;
    if let Records::Labelled = records {
        let is_desirable = ChatForm::label(&segment.text).map_err(|what| wrong(what, "correct it"))?;
        all.iter_mut().for_each(|answer| answer.is_desirable = is_desirable);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use parquet::data_type::{ByteArray, ByteArrayType};
    use parquet::file::writer::SerializedFileWriter;
    use parquet::schema::parser::parse_message_type;

    use super::*;
    use crate::splits::Purpose;
    use crate::text::files::text_files;

    /// The form of the conversations of a path, and the conversations' texts with `[` and `]` around what is learned.
    fn read(path: &std::path::Path, records: Records<'_>) -> Result<(Option<ChatForm>, Vec<String>), UserError> {
        let files = text_files("x", path, records, Purpose::Train)?.files;
        let template = || Ok(Rc::new(ChatTemplate::open(Some("chatml"), None, &Tokenizer::Bytes)?));
        let mut shown = Vec::new();
        let read = encode_conversations(&files, records, &Tokenizer::Bytes, template, |all| {
            for Conversation { tokens, counts, .. } in all {
                let mut text = String::new();
                for part in tokens.into_iter().zip(counts).collect::<Vec<_>>().chunk_by(|a, b| a.1 == b.1) {
                    let tokens: Vec<u32> = part.iter().map(|(token, _)| *token).collect();
                    let part_text = Tokenizer::Bytes.decode(&tokens);
                    text += &if part[0].1 { format!("[{part_text}]") } else { part_text };
                }
                shown.push(text);
            }
            Ok::<(), UserError>(())
        })?;
        Ok((read.form, shown))
    }

    /// The same for a file of that name and content.
    fn read_file(name: &str, content: impl AsRef<[u8]>) -> Result<(Option<ChatForm>, Vec<String>), UserError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        read(&path, Records::Conversations)
    }

    /// The same for a file of pairs.
    fn read_pairs(content: &str) -> Result<(Option<ChatForm>, Vec<String>), UserError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.jsonl");
        std::fs::write(&path, content).unwrap();
        read(&path, Records::Pairs)
    }

    #[test]
    fn pairs_are_read_in_the_forms_of_trl() {
        let (user, bye) = (r#"{"role": "user", "content": "Hi"}"#, HELLO.replace("Hello", "Bye"));
        let said = |text: &str| format!(r#"{{"role": "assistant", "content": "{text}"}}"#);
        let (hello, no) = (said("Hello"), said("Bye"));
        for record in [
            format!(r#"{{"prompt": [{user}], "chosen": [{hello}], "rejected": [{no}]}}"#),
            format!(r#"{{"chosen": [{user}, {hello}], "rejected": [{user}, {no}], "score": 3}}"#),
            // As UltraFeedback has it: the answers have the prompt too.
            format!(r#"{{"prompt": "Hi", "chosen": [{user}, {hello}], "rejected": [{user}, {no}]}}"#),
        ] {
            let (form, shown) = read_pairs(&record).unwrap();
            assert_eq!((form, &shown[..]), (Some(ChatForm::PairMessages), &[HELLO.to_string(), bye.clone()][..]));
        }
        for record in [
            r#"{"prompt": "The sky is", "chosen": " blue.", "rejected": " green."}"#,
            r#"{"chosen": "The sky is blue.", "rejected": "The sky is green."}"#,
        ] {
            let (form, shown) = read_pairs(record).unwrap();
            let expected = ["The sky is[ blue.\0]", "The sky is[ green.\0]"].map(String::from);
            assert_eq!((form, shown), (Some(ChatForm::PairTexts), expected.to_vec()), "{record}");
        }
        for (record, says) in [
            (r#"{"prompt": "a", "chosen": "b"}"#, "has the fields prompt, chosen"),
            (r#"{"chosen": "b", "rejected": ["c"]}"#, "has a string as `chosen` and a sequence as `rejected`"),
            (r#"{"chosen": "b", "rejected": "b"}"#, "has the same text as `chosen` and as `rejected`"),
            (MESSAGES, "train on conversations: --sft in place of --dpo"),
        ] {
            let problem = read_pairs(record).unwrap_err().to_string();
            assert!(problem.contains(says) && problem.contains("a pair is"), "{problem}");
        }
        let problem = read_file("x.jsonl", r#"{"chosen": "b", "rejected": "c"}"#).unwrap_err().to_string();
        assert!(problem.contains("give --dpo in place of --sft"), "{problem}");
    }

    const HELLO: &str = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n[Hello<|im_end|>\n]";

    const MESSAGES: &str = r#"{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}], "prompt": "x"}"#;

    #[test]
    fn every_form_is_known_by_its_fields_and_gives_the_same_conversation() {
        for (form, record) in [
            (ChatForm::Messages, MESSAGES),
            (
                ChatForm::ShareGpt,
                r#"{"id": 1, "conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]}"#,
            ),
            (
                ChatForm::ShareGpt,
                r#"{"conversations": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}], "system": ""}"#,
            ),
            (
                ChatForm::PromptMessages,
                r#"{"prompt": [{"role": "user", "content": "Hi"}], "completion": [{"role": "assistant", "content": "Hello"}]}"#,
            ),
            (ChatForm::Alpaca, r#"{"instruction": "Hi", "input": "", "output": "Hello", "text": "x"}"#),
            (ChatForm::Alpaca, r#"{"instruction": "Hi", "output": "Hello"}"#),
        ] {
            let (found, shown) = read_file("x.jsonl", format!("{record}\n\n{record}\n")).unwrap();
            assert_eq!((found, &shown[..]), (Some(form), &[HELLO.to_string(), HELLO.into()][..]), "{record}");
        }
        // No template has a part in texts, and the tokens that end a document are learned.
        let (form, shown) = read_file("x.jsonl", r#"{"prompt": "1 + 1 =", "completion": " 2"}"#).unwrap();
        assert_eq!((form, &shown[0][..]), (Some(ChatForm::PromptText), "1 + 1 =[ 2\0]"));
    }

    #[test]
    fn parts_that_only_some_records_have_are_read_too() {
        for (record, says) in [
            (
                r#"{"system": "Be brief.", "conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b", "weight": 0},
                    {"from": "observation", "value": "c"}, {"from": "gpt", "value": "d"}]}"#,
                &["<|im_start|>system\nBe brief.<|im_end|>", "assistant\nb<|im_end|>", "tool\nc<|", "[d<|im_end|>\n]"]
                    [..],
            ),
            (
                r#"{"instruction": "Add.", "input": "1 and 1", "output": "2", "system": "Count.", "history": [["a", "b"]]}"#,
                &[
                    "system\nCount.<|im_end|>",
                    "user\na<|",
                    "[b<|im_end|>\n]",
                    "user\nAdd.\n\n1 and 1<|",
                    "[2<|im_end|>\n]",
                ],
            ),
            (
                r#"{"prompt": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}],
                    "completion": [{"role": "assistant", "content": "d"}]}"#,
                &["assistant\nb<|im_end|>", "[d<|im_end|>\n]"],
            ),
        ] {
            let (_, shown) = read_file("x.jsonl", record.replace('\n', " ")).unwrap();
            assert!(says.iter().all(|part| shown[0].contains(part)), "{shown:?}");
        }
    }

    #[test]
    fn records_stand_on_lines_or_in_a_list_on_any_number_of_lines() {
        let pretty = MESSAGES.replace(", ", ",\n  ");
        for (name, content) in [
            ("x.json", format!("[{MESSAGES},{MESSAGES}]")),
            ("x.json", format!("\n[\n{pretty} ,\n{pretty}\n]\n")),
            ("x.jsonl", format!(" [ {MESSAGES} , {MESSAGES} ] ")),
            ("x.json", format!("{MESSAGES}\n{MESSAGES}")),
            ("x", format!("{MESSAGES}\n{MESSAGES}")),
        ] {
            let (form, shown) = read_file(name, &content).unwrap();
            assert_eq!((form, shown.len(), &shown[1][..]), (Some(ChatForm::Messages), 2, HELLO), "{content}");
        }
        assert_eq!(read_file("x.json", "[]").unwrap(), (None, vec![]));
        let long = format!("[{}]", vec![MESSAGES; 30_000].join(", "));
        assert_eq!(read_file("x.json", long).unwrap().1, vec![HELLO; 30_000]);
        // In a folder, a list is found beside other files.
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in
            [("README.md", "words"), ("info.json", "{\"a\": 1}"), ("part.json", &format!("[\n{pretty}]"))]
        {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        assert_eq!(read(folder.path(), Records::Conversations).unwrap().1, [HELLO]);
        for (content, says) in [
            (format!("[{MESSAGES}"), "line 1 ends inside of its list"),
            (format!("[\n{MESSAGES}\n{MESSAGES}]"), "line 3 is no list of JSON"),
            (format!("[{MESSAGES}] {MESSAGES}"), "line 1 is no list of JSON"),
            (format!("[\n{},", &MESSAGES[..50]), "line 2 has no item, or one that does not end"),
            (format!("[{MESSAGES},\n]"), "line 2 has no item"),
            (format!("[{MESSAGES},\n\n3]"), "line 3 has no fields"),
            (format!("[{MESSAGES},\n{{\"messages\" 3}}]"), "line 2 is not JSON"),
        ] {
            let problem = read_file("x.json", &content).unwrap_err().to_string();
            assert!(problem.contains(says), "{content}: {problem}");
        }
    }

    /// A file with lists of messages in columns: for each row, roles with contents.
    fn parquet_of_messages(rows: &[&[(&str, Option<&str>)]]) -> Vec<u8> {
        let schema = "message rows { required int32 id; optional group messages (LIST) { repeated group list {
            optional group element { optional binary content (utf8); optional binary role (utf8);
            optional binary name (utf8); } } } optional binary tools (utf8); }";
        let schema = parse_message_type(schema).unwrap();
        let mut writer = SerializedFileWriter::new(Vec::new(), schema.into(), Default::default()).unwrap();
        for rows in rows.chunks(2) {
            let mut group = writer.next_row_group().unwrap();
            let mut ids = group.next_column().unwrap().unwrap();
            ids.typed::<parquet::data_type::Int32Type>().write_batch(&vec![7; rows.len()], None, None).unwrap();
            ids.close().unwrap();
            // A list is at level 1, its elements at 2, their structures at 3, their values at 4.
            let repetitions: Vec<i16> =
                rows.iter().flat_map(|row| (0..row.len()).map(|at| i16::from(at > 0))).collect();
            let values: [Vec<Option<&str>>; 3] = [
                rows.iter().flat_map(|row| row.iter().map(|(_, content)| *content)).collect(),
                rows.iter().flat_map(|row| row.iter().map(|(role, _)| Some(*role))).collect(),
                vec![None; repetitions.len()],
            ];
            for values in values {
                let levels: Vec<i16> = values.iter().map(|value| 3 + i16::from(value.is_some())).collect();
                let texts: Vec<ByteArray> = values.into_iter().flatten().map(Into::into).collect();
                let mut column = group.next_column().unwrap().unwrap();
                column.typed::<ByteArrayType>().write_batch(&texts, Some(&levels), Some(&repetitions)).unwrap();
                column.close().unwrap();
            }
            let mut tools = group.next_column().unwrap().unwrap();
            tools.typed::<ByteArrayType>().write_batch(&[], Some(&vec![0; rows.len()]), None).unwrap();
            tools.close().unwrap();
            group.close().unwrap();
        }
        writer.into_inner().unwrap()
    }

    #[test]
    fn a_folder_as_the_hub_has_it_gives_the_rows_of_all_its_shards_of_parquet() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, content: Vec<u8>| std::fs::write(folder.path().join(name), content).unwrap();
        std::fs::create_dir(folder.path().join("data")).unwrap();
        write("README.md", b"words".to_vec());
        let hello: &[(&str, Option<&str>)] = &[("user", Some("Hi")), ("assistant", Some("Hello"))];
        let other: &[(&str, Option<&str>)] = &[("user", Some("a")), ("assistant", Some("b")), ("user", Some("c"))];
        write("data/train-00000-of-00002.parquet", parquet_of_messages(&[hello, other, hello]));
        write("data/train-00001-of-00002.parquet", parquet_of_messages(&[other]));
        write("data/test-00000-of-00001.parquet", parquet_of_messages(&[hello; 9]));
        let (form, shown) = read(folder.path(), Records::Conversations).unwrap();
        assert_eq!((form, shown.len()), (Some(ChatForm::Messages), 4));
        assert_eq!([&shown[0], &shown[2]], [HELLO; 2]);
        assert!(shown[1].contains("[b<|im_end|>\n]<|im_start|>user\nc<|") && shown[1] == shown[3], "{}", shown[1]);

        let wrong = parquet_of_messages(&[hello, hello, &[("user", None)]]);
        let problem = read_file("x.parquet", wrong).unwrap_err().to_string();
        assert!(problem.contains("x.parquet row 3 has a message, number 1, whose `content` is not text"), "{problem}");
    }

    #[test]
    fn other_forms_in_a_data_set_unknown_roles_and_other_fields_are_refused_by_name() {
        let alpaca = r#"{"instruction": "a", "output": "b"}"#;
        let text = r#"{"prompt": "a", "completion": "b"}"#;
        for (content, says) in [
            (
                format!("{MESSAGES}\n{alpaca}"),
                &["x.jsonl line 2 is Alpaca, and ", "x.jsonl line 1 is messages", "have one form"][..],
            ),
            (
                format!("{text}\n{{\"prompt\": [], \"completion\": []}}"),
                &["line 2 is prompt and completion as messages, and", "as texts"],
            ),
            (r#"{"prompt": [], "completion": "x"}"#.into(), &["a sequence as `prompt` and a string as `completion`"]),
            (
                r#"{"question": "x", "answer": "y"}"#.into(),
                &["line 1 has the fields question, answer", "`conversations` ("],
            ),
            (
                r#"{"conversations": [{"from": "human", "value": "x"}, {"from": "clown", "value": "x"}]}"#.into(),
                &["number 2, from \"clown\": messages are from system, human, user, gpt,"],
            ),
            (
                r#"{"messages": [{"role": "gpt", "content": "x"}]}"#.into(),
                &["number 1, with the role \"gpt\": roles are system, developer, user, assistant, tool"],
            ),
            (r#"{"messages": [], "tools": "f("}"#.into(), &["has `tools` that are no JSON"]),
            ("words".into(), &["line 1 is not JSON"]),
        ] {
            let problem = read_file("x.jsonl", &content).unwrap_err().to_string();
            assert!(says.iter().all(|part| problem.contains(part)), "{content}: {problem}");
        }
        let problem = read_file("words.txt", "words").unwrap_err().to_string();
        assert!(problem.contains("words.txt has no JSON lines") && problem.contains(".parquet"), "{problem}");
        let schema = parse_message_type("message rows { required binary text (utf8); required binary id (utf8); }");
        let empty = SerializedFileWriter::new(Vec::new(), schema.unwrap().into(), Default::default()).unwrap();
        let problem = read_file("x.parquet", empty.into_inner().unwrap()).unwrap_err().to_string();
        assert!(
            problem.contains("x.parquet has the columns text, id. Rule: a conversation is `messages`"),
            "{problem}"
        );
    }
}
