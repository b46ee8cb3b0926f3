//! A tokenizer's chat template: from messages to the text that a model reads.
//!
//! Templates are written for Hugging Face's `apply_chat_template`: Jinja with Python's methods, blocks that leave no
//! blank lines, and `{% generation %}` around the model's answers.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::ops::Range;
use std::path::Path;

use common::UserError;
use common::files::read_text;
use fancy_regex::Regex;
use minijinja::{Value, context};

use super::built_in_templates::BuiltIn;
use super::template_engine::{Engine, Renderer, Size};
use crate::text::copied_file::CopiedFile;
use crate::text::tokenizer::{LARGEST_CONFIG, Tokenizer, read_config};

/// Marks in rendered text: begin and end of a part that `{% generation %}` encloses. Unicode reserves these characters
/// for such uses, so no text has them.
const MARKS: [char; 2] = ['\u{fdd0}', '\u{fdd1}'];

/// The tokens that templates may name.
const SPECIAL: [&str; 4] = ["bos_token", "eos_token", "pad_token", "unk_token"];

/// A chat template that was read and compiled.
#[derive(Clone)]
pub struct ChatTemplate {
    /// The template's origin.
    name: String,
    engine: Engine,
    source: String,
    /// The tokens that the template may name, as text.
    special: BTreeMap<String, String>,
    /// Whether the template marks the model's answers.
    has_marks: bool,
}

/// A conversation that a template is rendering, whole or only the first messages.
pub(crate) struct Rendering<'r> {
    renderer: &'r Renderer,
    /// Objects with `role`, `content` and the other keys that the template reads.
    pub(crate) messages: Vec<Value>,
    /// Descriptions of functions that the model may call.
    tools: Option<Value>,
    special: Value,
}

impl ChatTemplate {
    /// The template `name`: one that is built in, or a file. `None`: that of the tokenizer's folder. `folder` is the folder of the
    /// tokenizer, if it has one.
    ///
    /// # Errors
    /// There is no template, or it is wrong.
    pub fn open(name: Option<&str>, folder: Option<&Path>, tokenizer: &Tokenizer) -> Result<ChatTemplate, UserError> {
        let config = match folder {
            Some(folder) => read_config(folder)?,
            None => serde_json::Value::Null,
        };
        let (shown, source) = match (name.and_then(BuiltIn::named), name, folder) {
            (Some(built_in), ..) => (built_in.name.into(), built_in.source.into()),
            (None, Some(file), _) => {
                let read = read_text(file.as_ref(), LARGEST_CONFIG).map_err(|error| {
                    let rule = format!("it is one of {}, or a file with a Jinja template", BuiltIn::names());
                    UserError::new(format!("chat template {file} cannot be read: {error}"), rule, "check the path")
                })?;
                (file.into(), read)
            }
            (None, None, Some(folder)) => {
                of_folder(folder, &config)?.ok_or_else(|| no_template(&folder.display().to_string()))?
            }
            (None, None, None) => return Err(no_template("the byte tokenizer")),
        };
        ChatTemplate::compile(&shown, source, &config, tokenizer)
    }

    /// The template to train with: as [`ChatTemplate::of`], but if there is none, the one that is built in for the
    /// tokenizer's family. Then also a notice about it.
    ///
    /// # Errors
    /// As [`ChatTemplate::open`].
    pub(crate) fn to_train(
        name: Option<&str>,
        opened: &str,
        tokenizer: &Tokenizer,
    ) -> Result<(ChatTemplate, Option<String>), UserError> {
        let built_in = match (name, folder_of(opened)) {
            (None, Some(folder)) if of_folder(folder, &read_config(folder)?)?.is_none() => BuiltIn::of(tokenizer),
            _ => None,
        };
        let Some(BuiltIn { name, token, .. }) = built_in else {
            return Ok((ChatTemplate::of(name, opened, tokenizer)?, None));
        };
        let notice = format!(
            "{opened} has no chat template: the built-in one of {name} is used, because its tokenizer has {token}. \
             --chat-template names another"
        );
        Ok((ChatTemplate::of(Some(name), opened, tokenizer)?, Some(notice)))
    }

    /// The template of a tokenizer's folder. `None` if it has none.
    ///
    /// # Errors
    /// It is wrong.
    pub fn of_folder(folder: &Path, tokenizer: &Tokenizer) -> Result<Option<ChatTemplate>, UserError> {
        let config = read_config(folder)?;
        let found = of_folder(folder, &config)?;
        found.map(|(shown, source)| ChatTemplate::compile(&shown, source, &config, tokenizer)).transpose()
    }

    /// The template `name`, or if that is `None` the one of the tokenizer that was opened as `opened`: `byte`, a file or a
    /// folder.
    ///
    /// # Errors
    /// As [`ChatTemplate::open`].
    pub fn of(name: Option<&str>, opened: &str, tokenizer: &Tokenizer) -> Result<ChatTemplate, UserError> {
        ChatTemplate::open(name, folder_of(opened), tokenizer)
    }

    /// `config` is the tokenizer's configuration, with the special tokens that the template may name.
    fn compile(
        shown: &str,
        source: String,
        config: &serde_json::Value,
        tokenizer: &Tokenizer,
    ) -> Result<ChatTemplate, UserError> {
        let mut special = special_tokens(config);
        special.entry("eos_token".into()).or_insert_with(|| tokenizer.end_of_text_as_text());
        let wrong = |problem: String| {
            let what = format!("the chat template of {shown} is wrong: {problem}");
            UserError::new(what, "a chat template is Jinja, as transformers reads it", "correct it, or name another")
        };
        // Before its tags are searched.
        Engine::check_length(&source).map_err(wrong)?;
        let marked = with_marks(&source);
        let has_marks = marked != source;
        let engine = Engine::compile(marked).map_err(wrong)?;
        Ok(ChatTemplate { name: shown.into(), engine, source, special, has_marks })
    }

    /// The template's origin, for messages.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Whether the template marks the model's answers, by `{% generation %}`.
    pub(crate) fn has_marks(&self) -> bool {
        self.has_marks
    }

    /// The result of `work` on a conversation, with as many renderings as `work` likes. Each rendering has limits, by the
    /// size of the conversation.
    ///
    /// # Errors
    /// The error of `work`; a rendering that takes longer than it may.
    pub(crate) fn render<T: Send + 'static>(
        &self,
        messages: Vec<Value>,
        tools: Option<Value>,
        work: impl FnOnce(&Rendering<'_>) -> Result<T, String> + Send + 'static,
    ) -> Result<T, String> {
        let special = Value::from(self.special.clone());
        let size = Size::of(messages.iter().chain(&tools).chain([&special]));
        self.engine.run(size, move |renderer| work(&Rendering { renderer, messages, tools, special }))
    }

    /// The text after an answer in a conversation, without surrounding white space. An answer is complete when the model
    /// has written this text. Empty if the template writes nothing there, or fails.
    pub fn end_of_answer(&self) -> String {
        self.sample().rsplit_once("answer").map_or("", |(_, end)| end).trim().into()
    }

    /// The text of a question with an answer, from the template. Empty if the template fails.
    pub(crate) fn sample(&self) -> String {
        let message = |role: &str, content: &str| Value::from_pairs([("role", role), ("content", content)]);
        let messages = vec![message("user", "question"), message("assistant", "answer")];
        let rendered = self.render(messages, None, |conversation| conversation.text(&conversation.messages, false));
        rendered.unwrap_or_default()
    }

    /// The prompt for the next answer in a conversation of `(role, content)`.
    ///
    /// # Errors
    /// The template's error for messages that it does not take.
    pub fn prompt(&self, messages: &[(String, String)]) -> Result<String, String> {
        let message = |(role, content): &(String, String)| Value::from_pairs([("role", role), ("content", content)]);
        let messages: Vec<Value> = messages.iter().map(message).collect();
        self.render(messages, None, |conversation| conversation.text(&conversation.messages, true))
    }

    /// The template's text.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The tokens that the template may name, as text, by the template's own names.
    pub fn special_tokens(&self) -> &BTreeMap<String, String> {
        &self.special
    }

    /// The files of a copy of the template, names and contents, to lie beside a copy of the tokenizer.
    pub fn files(&self) -> Vec<(CopiedFile, Vec<u8>)> {
        let special = serde_json::to_string_pretty(&self.special).unwrap_or_default();
        vec![
            (CopiedFile::ChatTemplate, self.source.clone().into()),
            (CopiedFile::TokenizerConfig, format!("{special}\n").into()),
        ]
    }
}

impl Rendering<'_> {
    /// The text of messages, with [`MARKS`] around answers if the template marks answers. If it `prompts`, the text ends
    /// with the beginning of an answer's message.
    fn marked(&self, messages: &[Value], prompts: bool) -> Result<String, String> {
        let tools = &self.tools;
        let special = self.special.clone();
        self.renderer.render(context! { messages, tools, add_generation_prompt => prompts, ..special })
    }

    /// The text of messages: the conversation's first ones, or nearly so. If it `prompts`, it ends with the beginning of an
    /// answer's message.
    ///
    /// # Errors
    /// The template's error for messages that it does not take; too much work.
    pub(crate) fn text(&self, messages: &[Value], prompts: bool) -> Result<String, String> {
        Ok(self.marked(messages, prompts)?.replace(MARKS, ""))
    }

    /// The text of all messages, and the ranges of bytes that `{% generation %}` encloses.
    ///
    /// # Errors
    /// As [`Rendering::text`].
    pub(crate) fn text_and_ranges(&self) -> Result<(String, Vec<Range<usize>>), String> {
        let marked = self.marked(&self.messages, false)?;
        let (mut text, mut ranges, mut begin) = (String::new(), Vec::new(), 0);
        for part in marked.split_inclusive(MARKS) {
            text += part.trim_end_matches(MARKS);
            if part.ends_with(MARKS[0]) {
                begin = text.len();
            } else if part.ends_with(MARKS[1]) {
                ranges.push(begin..text.len());
            }
        }
        Ok((text, ranges))
    }
}

/// The tokens of a tokenizer's configuration that templates may name, as text.
fn special_tokens(config: &serde_json::Value) -> BTreeMap<String, String> {
    let text = |value: &serde_json::Value| {
        let text = value.as_str().or_else(|| value.get("content").and_then(serde_json::Value::as_str));
        text.map(str::to_string)
    };
    SPECIAL.iter().filter_map(|name| Some((name.to_string(), text(config.get(*name)?)?))).collect()
}

/// The template of a tokenizer's folder, and the file with the template. `config` is the folder's configuration.
fn of_folder(folder: &Path, config: &serde_json::Value) -> Result<Option<(String, String)>, UserError> {
    let path = CopiedFile::ChatTemplate.at(folder);
    let shown = path.display().to_string();
    match read_text(&path, LARGEST_CONFIG) {
        Ok(source) => return Ok(Some((shown, source))),
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => {
            let what = format!("{shown} cannot be read: {error}");
            return Err(UserError::new(what, "a chat template is UTF-8 text", "write the tokenizer again"));
        }
    }
    let of_config = config.get("chat_template");
    // One template, or a list of several by name.
    let default = |list: &Vec<serde_json::Value>| {
        let named = list.iter().find(|one| one.get("name").is_some_and(|name| name == "default"))?;
        named.get("template")?.as_str().map(str::to_string)
    };
    let source = of_config.and_then(|found| match found.as_array() {
        Some(list) => default(list),
        None => found.as_str().map(str::to_string),
    });
    Ok(source.map(|source| (CopiedFile::TokenizerConfig.at(folder).display().to_string(), source)))
}

/// The folder of the tokenizer that was opened as `opened`. `None` for bytes.
fn folder_of(opened: &str) -> Option<&Path> {
    let path = Path::new(opened);
    let folder = if path.is_dir() { Some(path) } else { path.parent() };
    folder.filter(|_| opened != "byte")
}

fn no_template(of: &str) -> UserError {
    UserError::new(
        format!("{of} has no chat template"),
        "a chat template makes text of messages; models for chat have one in chat_template.jinja or tokenizer_config.json",
        format!("name a file with one, or one that is built in ({}): --chat-template chatml", BuiltIn::names()),
    )
}

/// The template with [`MARKS`] in place of `{% generation %}` and `{% endgeneration %}`. White space around them is treated as
/// around any block.
fn with_marks(source: &str) -> String {
    let mut text = source.to_string();
    for (tag, mark) in ["generation", "endgeneration"].into_iter().zip(MARKS) {
        let Ok(pattern) = Regex::new(&format!(r"\{{%([-+]?)\s*{tag}\s*([-+]?)%\}}")) else {
            unreachable!("it is a pattern")
        };
        let marked = format!("{{%${{1}} if true %}}{{{{ '{mark}' }}}}{{% endif ${{2}}%}}");
        text = pattern.replace_all(&text, marked).into_owned();
    }
    text
}
