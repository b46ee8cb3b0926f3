//! The forms in which people keep conversations, told apart by the fields of a record.

use std::collections::BTreeMap;

use minijinja::Value;
use minijinja::value::ValueKind;
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// The role that writes the answers.
pub(crate) const ASSISTANT: &str = "assistant";

/// The roles of messages. Templates know some of them.
const ROLES: [&str; 7] = ["system", "developer", "user", ASSISTANT, "tool", "function", "ipython"];

/// The names for roles in ShareGPT and in data sets of that kind.
const SHARE_GPT: [(&str, &str); 8] = [
    ("system", "system"),
    ("human", "user"),
    ("user", "user"),
    ("gpt", ASSISTANT),
    ("chatgpt", ASSISTANT),
    ("assistant", ASSISTANT),
    ("tool", "tool"),
    ("observation", "tool"),
];

common::choice! {
    /// The form of a conversation in a record.
    pub enum ChatForm {
        /// `messages`, each with `role` and `content`.
        Messages = "messages",
        /// `conversations`, each message with `from` and `value`, or with `role` and `content`.
        ShareGpt = "ShareGPT",
        /// `prompt` and `completion`, both lists of messages.
        PromptMessages = "prompt and completion as messages",
        /// `prompt` and `completion`, both texts. No template has a part in it.
        PromptText = "prompt and completion as texts",
        /// `instruction`, often an `input`, and `output`.
        Alpaca = "Alpaca",
        /// Two answers, `chosen` and `rejected`, as lists of messages. They have the `prompt` in front, or begin alike.
        PairMessages = "a pair of messages",
        /// The same as texts. No template has a part in it.
        PairTexts = "a pair of texts",
    }
}

/// A conversation in the form of a record.
#[derive(Debug)]
pub(crate) enum Talk {
    /// Messages, for a template.
    Messages {
        /// Objects with `role`, `content` and the other keys that templates read.
        messages: Vec<Value>,
        /// Descriptions of functions that the model may call.
        tools: Option<Value>,
        /// For each message of the assistant, whether the message is learned.
        learned: Vec<bool>,
        /// The texts of the learned messages, each with the message's number from 1.
        answers: Vec<(usize, String)>,
    },
    /// A text, and the text to learn behind the first.
    Text {
        /// The text that is read.
        prompt: String,
        /// The text that is learned.
        completion: String,
    },
}

impl Talk {
    /// Whether a text of the conversation has a NUL character.
    pub(crate) fn has_nul(&self) -> bool {
        match self {
            Talk::Text { prompt, completion } => [prompt, completion].into_iter().any(|text| text.contains('\0')),
            Talk::Messages { messages, .. } => messages.iter().any(|message| {
                message.get_attr("content").is_ok_and(|text| text.as_str().is_some_and(|text| text.contains('\0')))
            }),
        }
    }
}

impl ChatForm {
    /// Whether a record with the given fields is a pair of answers.
    pub(crate) fn is_pair(fields: &[String]) -> bool {
        ["chosen", "rejected"].iter().all(|name| fields.iter().any(|field| field == name))
    }

    /// Whether a record with the given fields is an answer with a label.
    pub(crate) fn is_labelled(fields: &[String]) -> bool {
        ["prompt", "completion", "label"].iter().all(|name| fields.iter().any(|field| field == name))
    }

    /// The label of an answer: whether it is desirable.
    ///
    /// # Errors
    /// A record without a label, as the end of a sentence that begins with its name.
    pub(crate) fn label(record: &str) -> Result<bool, String> {
        let label = &read::<serde_json::Value>(record)?["label"];
        label.as_bool().ok_or_else(|| format!("has a `label` of {label}: it is true or false"))
    }

    /// The form of a record with the given fields that is a pair of answers.
    ///
    /// # Errors
    /// A record without a form, as the end of a sentence that begins with the record's name.
    pub(crate) fn of_pair(record: &str, fields: &[String]) -> Result<ChatForm, String> {
        if !ChatForm::is_pair(fields) {
            return Err(has_fields(fields));
        }
        let Pair { chosen, rejected, .. } = read(record)?;
        match [chosen.kind(), rejected.kind()] {
            [ValueKind::String, ValueKind::String] => Ok(ChatForm::PairTexts),
            [ValueKind::Seq, ValueKind::Seq] => Ok(ChatForm::PairMessages),
            [chosen, rejected] => Err(format!(
                "has a {chosen} as `chosen` and a {rejected} as `rejected`: both are texts, or both lists of messages"
            )),
        }
    }

    /// Whether a record with the given fields is a conversation.
    pub(crate) fn is_in(fields: &[String]) -> bool {
        ChatForm::of_fields(fields).is_some()
    }

    /// The form of a record with the given fields. The first that fits: some data sets have a column `prompt` beside
    /// `messages`.
    fn of_fields(fields: &[String]) -> Option<ChatForm> {
        let has = |name: &str| fields.iter().any(|field| field == name);
        match () {
            () if has("messages") => Some(ChatForm::Messages),
            () if has("conversations") => Some(ChatForm::ShareGpt),
            () if has("prompt") && has("completion") => Some(ChatForm::PromptText),
            () if has("instruction") && has("output") => Some(ChatForm::Alpaca),
            () => None,
        }
    }

    /// The form of a record with the given fields.
    ///
    /// # Errors
    /// It has none, as the end of a sentence that begins with the record's name.
    pub(crate) fn of(record: &str, fields: &[String]) -> Result<ChatForm, String> {
        #[derive(Deserialize)]
        struct Completed {
            prompt: Value,
            completion: Value,
        }
        match ChatForm::of_fields(fields) {
            Some(ChatForm::PromptText) => {
                let Completed { prompt, completion } = read(record)?;
                match [prompt.kind(), completion.kind()] {
                    [ValueKind::String, ValueKind::String] => Ok(ChatForm::PromptText),
                    [ValueKind::Seq, ValueKind::Seq] => Ok(ChatForm::PromptMessages),
                    [prompt, completion] => Err(format!(
                        "has a {prompt} as `prompt` and a {completion} as `completion`: both are texts, or both lists of messages"
                    )),
                }
            }
            Some(form) => Ok(form),
            None => Err(has_fields(fields)),
        }
    }

    /// The form in words, with the fields that are read.
    pub(crate) fn describe(self) -> &'static str {
        match self {
            ChatForm::Messages => "messages: `role` and `content` of each",
            ChatForm::ShareGpt => "ShareGPT: `conversations`, of each `from` and `value`",
            ChatForm::PromptMessages => "prompt and completion, lists of messages: those of `completion` are learned",
            ChatForm::PromptText => {
                "prompt and completion, texts: `completion` is learned, and no chat template has a part in it"
            }
            ChatForm::Alpaca => "Alpaca: `instruction` and `input` are the question, `output` is the answer",
            ChatForm::PairMessages => "pairs of answers, lists of messages: `chosen` is preferred to `rejected`",
            ChatForm::PairTexts => {
                "pairs of answers, texts: `chosen` is preferred to `rejected`, and no chat template has a part in it"
            }
        }
    }

    /// Whether the form's text is made by a chat template.
    pub(crate) fn needs_template(self) -> bool {
        !matches!(self, ChatForm::PromptText | ChatForm::PairTexts)
    }

    /// The conversation of a record of this form; of a pair the one with the chosen answer, then that with the rejected
    /// one.
    ///
    /// # Errors
    /// The mistake in the record, as the end of a sentence that begins with its name.
    pub(crate) fn read(self, record: &str) -> Result<Vec<Talk>, String> {
        let Common { tools, weight } = read(record)?;
        if let Some(weight) = weight {
            let beside = "beside the messages: a weight is a part of a message";
            return Err(format!("has a `weight` of {weight} {beside}"));
        }
        let (messages, only_read) = match self {
            ChatForm::Messages => (read::<Messages>(record)?.messages, 0),
            ChatForm::ShareGpt => (share_gpt(read(record)?)?, 0),
            ChatForm::PromptMessages => {
                let PromptMessages { prompt, completion } = read(record)?;
                let only_read = prompt.len();
                ([prompt, completion].concat(), only_read)
            }
            ChatForm::PromptText => {
                let PromptText { prompt, completion } = read(record)?;
                return Ok(vec![Talk::Text { prompt, completion }]);
            }
            ChatForm::Alpaca => (alpaca(read(record)?), 0),
            ChatForm::PairTexts => return texts_of_pair(read(record)?),
            ChatForm::PairMessages => {
                let tools = tools.map(described).transpose()?;
                let of_answer = |(messages, only_read)| Talk::of_messages(messages, only_read, tools.clone());
                return messages_of_pair(read(record)?)?.into_iter().map(of_answer).collect();
            }
        };
        Ok(vec![Talk::of_messages(messages, only_read, tools.map(described).transpose()?)?])
    }
}

impl Talk {
    /// The conversation of messages, of which the first so many are only read.
    fn of_messages(messages: Vec<Value>, only_read: usize, tools: Option<Value>) -> Result<Talk, String> {
        let (mut learned, mut answers, mut checked) = (Vec::new(), Vec::new(), Vec::new());
        for (number, message) in messages.into_iter().enumerate() {
            let wrong = |problem| format!("has a message, number {}, {problem}", number + 1);
            let message = &with_text(message).map_err(wrong)?;
            check(message).map_err(wrong)?;
            let answer = is_learned(message).map_err(wrong)?.map(|is_learned| is_learned && number >= only_read);
            let content = message.get_attr("content").unwrap_or_default();
            if let (Some(true), Some(text)) = (answer, content.as_str()) {
                answers.push((number + 1, text.to_string()));
            }
            learned.extend(answer);
            checked.push(message.clone());
        }
        Ok(Talk::Messages { messages: checked, tools, learned, answers })
    }
}

/// Fields beside the fields of a form.
#[derive(Deserialize)]
struct Common {
    tools: Option<Value>,
    weight: Option<Value>,
}

#[derive(Deserialize)]
struct Messages {
    messages: Vec<Value>,
}

#[derive(Deserialize)]
struct ShareGpt {
    system: Option<String>,
    conversations: Vec<BTreeMap<String, Value>>,
}

#[derive(Deserialize)]
struct PromptMessages {
    prompt: Vec<Value>,
    completion: Vec<Value>,
}

#[derive(Deserialize)]
struct PromptText {
    prompt: String,
    completion: String,
}

#[derive(Deserialize)]
struct Alpaca {
    system: Option<String>,
    /// Earlier questions, each with the answer.
    history: Option<Vec<[String; 2]>>,
    instruction: String,
    input: Option<String>,
    output: String,
}

#[derive(Deserialize)]
struct Pair {
    prompt: Option<Value>,
    chosen: Value,
    rejected: Value,
}

/// The texts of a pair. A prompt of another kind than the answers is left out, as in TRL: the answers then have it.
fn texts_of_pair(Pair { prompt, chosen, rejected }: Pair) -> Result<Vec<Talk>, String> {
    let [chosen, rejected] = [&chosen, &rejected].map(|text| text.as_str().unwrap_or_default());
    let talk = |prompt: &str, completion: &str| Talk::Text { prompt: prompt.into(), completion: completion.into() };
    if let Some(prompt) = prompt.as_ref().and_then(Value::as_str) {
        return Ok(vec![talk(prompt, chosen), talk(prompt, rejected)]);
    }
    let same = chosen.char_indices().zip(rejected.chars()).take_while(|((_, a), b)| a == b).last();
    let mut end = same.map_or(0, |((at, a), _)| at + a.len_utf8());
    if end == chosen.len() && end == rejected.len() {
        return Err("has the same text as `chosen` and as `rejected`".into());
    }
    // A space belongs to the word behind it.
    end -= usize::from(chosen[..end].ends_with(' '));
    Ok([chosen, rejected].map(|text| talk(&text[..end], &text[end..])).into())
}

/// The messages of a pair's two conversations, each with the number of messages that are only read. A prompt of another
/// kind than the answers is left out, as in TRL: the answers then have it.
fn messages_of_pair(Pair { prompt, chosen, rejected }: Pair) -> Result<[(Vec<Value>, usize); 2], String> {
    let list = |value: &Value| -> Vec<Value> { value.try_iter().into_iter().flatten().collect() };
    let [chosen, rejected] = [list(&chosen), list(&rejected)];
    if let Some(prompt) = prompt.filter(|prompt| prompt.kind() == ValueKind::Seq) {
        let prompt = list(&prompt);
        let with = |answer: Vec<Value>| ([prompt.clone(), answer].concat(), prompt.len());
        return Ok([with(chosen), with(rejected)]);
    }
    let same = chosen.iter().zip(&rejected).take_while(|(a, b)| a == b).count();
    match same == chosen.len() && same == rejected.len() {
        true => Err("has the same messages as `chosen` and as `rejected`".into()),
        false => Ok([(chosen, same), (rejected, same)]),
    }
}

/// What is said of a record that has none of the forms.
pub(crate) fn has_fields(fields: &[String]) -> String {
    match fields {
        [] => "has no fields".into(),
        fields => format!("has the fields {}", fields.join(", ")),
    }
}

fn read<T: DeserializeOwned>(record: &str) -> Result<T, String> {
    serde_json::from_str(record).map_err(|error| format!("is no conversation: {error}"))
}

/// Descriptions of functions. Some data sets have them as text that is JSON, because columns have one type.
fn described(tools: Value) -> Result<Value, String> {
    match tools.as_str() {
        None => Ok(tools),
        Some("") => Ok(Value::from(())),
        Some(text) => serde_json::from_str(text).map_err(|error| format!("has `tools` that are no JSON: {error}")),
    }
}

fn message(role: &str, content: &str) -> Value {
    Value::from_pairs([("role", role), ("content", content)])
}

/// The messages of a conversation in ShareGPT's form, with our names for roles.
fn share_gpt(ShareGpt { system, conversations }: ShareGpt) -> Result<Vec<Value>, String> {
    let mut messages: Vec<Value> =
        system.iter().filter(|text| !text.is_empty()).map(|text| message("system", text)).collect();
    for (number, mut turn) in conversations.into_iter().enumerate() {
        if let Some(from) = turn.remove("from") {
            let known = SHARE_GPT.iter().find(|(name, _)| from.as_str() == Some(name));
            let Some((_, role)) = known else {
                let names: Vec<&str> = SHARE_GPT.iter().map(|(name, _)| *name).collect();
                let names = names.join(", ");
                let from = serde_json::to_string(&from).unwrap_or_default();
                return Err(format!("has a message, number {}, from {from}: messages are from {names}", number + 1));
            };
            turn.insert("role".into(), (*role).into());
        }
        if let Some(value) = turn.remove("value") {
            turn.insert("content".into(), value);
        }
        messages.push(turn.into());
    }
    Ok(messages)
}

/// The messages of a question and an answer in Alpaca's form.
fn alpaca(Alpaca { system, history, instruction, input, output }: Alpaca) -> Vec<Value> {
    let mut messages: Vec<Value> =
        system.iter().filter(|text| !text.is_empty()).map(|text| message("system", text)).collect();
    let question = match input.filter(|input| !input.trim().is_empty()) {
        Some(input) => format!("{instruction}\n\n{input}"),
        None => instruction,
    };
    for [question, answer] in history.unwrap_or_default().into_iter().chain([[question, output]]) {
        messages.extend([message("user", &question), message(ASSISTANT, &answer)]);
    }
    messages
}

/// A message with the content as text: a list of parts, as OpenAI has them, becomes the texts one after the other.
fn with_text(message: Value) -> Result<Value, String> {
    let content = message.get_attr("content").unwrap_or_default();
    if content.kind() != ValueKind::Seq {
        return Ok(message);
    }
    let mut texts = String::new();
    for part in content.try_iter().into_iter().flatten() {
        let field = |name: &str| part.get_attr(name).unwrap_or_default();
        match (field("type").as_str(), field("text").as_str()) {
            (Some("text"), Some(text)) => texts += text,
            (Some(kind), _) if kind != "text" => {
                return Err(format!("whose `content` has a part of the type {kind:?}: parts are text"));
            }
            _ => return Err("whose `content` has a part without `type` and `text`".into()),
        }
    }
    let fields = message.try_iter().into_iter().flatten();
    let fields = fields.map(|key| (key.to_string(), message.get_item(&key).unwrap_or_default()));
    let mut fields: BTreeMap<String, Value> = fields.collect();
    fields.insert("content".into(), texts.into());
    Ok(Value::from(fields))
}

/// Fails unless a message has a known role, and text or calls of tools.
fn check(message: &Value) -> Result<(), String> {
    let field = |name: &str| message.get_attr(name).unwrap_or_default();
    let role = field("role");
    let Some(role) = role.as_str() else { return Err("without a `role`".into()) };
    if !ROLES.contains(&role) {
        return Err(format!("with the role {role:?}: roles are {}", ROLES.join(", ")));
    }
    let content = field("content");
    match content.as_str().is_some()
        || (content.is_none() || content.is_undefined()) && !field("tool_calls").is_undefined()
    {
        true => Ok(()),
        false => Err("whose `content` is not text".into()),
    }
}

/// Whether an answer is learned: `weight`, as OpenAI's format for fine-tuning has it, or `train`, as axolotl's, may say no.
/// `None` for messages that are no answers.
fn is_learned(message: &Value) -> Result<Option<bool>, String> {
    let field = |name: &str| message.get_attr(name).ok().filter(|value| !value.is_none() && !value.is_undefined());
    let shown = |value: &Value| serde_json::to_string(value).unwrap_or_default();
    let weight = field("weight").map(|weight| match (weight.kind(), weight.as_i64()) {
        (ValueKind::Number, Some(0)) => Ok(false),
        (ValueKind::Number, Some(1)) => Ok(true),
        _ => Err(format!("with a `weight` of {}: 1 has an answer learned, 0 has it only read", shown(&weight))),
    });
    let train = field("train").map(|train| match train.kind() {
        ValueKind::Bool => Ok(train.is_true()),
        _ => Err(format!("with a `train` of {}: it is true or false", shown(&train))),
    });
    let is_answer = field("role").is_some_and(|role| role.as_str() == Some(ASSISTANT));
    match (is_answer, weight.transpose()?, train.transpose()?) {
        (_, Some(weight), Some(train)) if weight != train => {
            Err("whose `weight` and `train` contradict each other".into())
        }
        (false, Some(true), _) | (false, _, Some(true)) => {
            Err("to be learned, which is no answer: only answers of the assistant are learned".into())
        }
        (false, ..) => Ok(None),
        (true, weight, train) => Ok(Some(weight.or(train).unwrap_or(true))),
    }
}
