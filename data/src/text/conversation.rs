//! From a line of JSON with a conversation to tokens, and which of them are the answers of the assistant.

use std::ops::Range;

use minijinja::Value;
use minijinja::value::ValueKind;
use serde::Deserialize;

use crate::text::chat_template::{ChatTemplate, Rendering};
use crate::text::tokenizer::Tokenizer;

/// The key of a conversation's messages.
pub(crate) const MESSAGES: &str = "messages";

/// Who writes the answers.
const ASSISTANT: &str = "assistant";

/// The text of a conversation, and the ranges of its bytes that are answers.
type Marked = (String, Vec<Range<usize>>);

/// A line of a file with conversations. Other keys are not read.
#[derive(Deserialize)]
struct Line {
    messages: Vec<Value>,
    tools: Option<Value>,
    weight: Option<Value>,
}

/// The tokens of a conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Conversation {
    /// All tokens, in order.
    pub(crate) tokens: Vec<u32>,
    /// For each token, whether it belongs to an answer.
    pub(crate) counts: Vec<bool>,
}

impl Conversation {
    /// The conversation of a line.
    ///
    /// # Errors
    /// What is wrong with the line, as the end of a sentence that begins with its name.
    pub(crate) fn of_line(line: &str, template: &ChatTemplate, tokenizer: &Tokenizer) -> Result<Conversation, String> {
        let Line { messages, tools, weight } =
            serde_json::from_str(line).map_err(|error| format!("is no object with `messages`: {error}"))?;
        if let Some(weight) = weight {
            return Err(format!("has a `weight` of {weight} beside `messages`: a weight is a part of a message"));
        }
        let mut learned = Vec::new();
        for (number, message) in messages.iter().enumerate() {
            let wrong = |problem| format!("has a message, number {}, {problem}", number + 1);
            check(message).map_err(wrong)?;
            learned.extend(is_learned(message).map_err(wrong)?);
        }
        let has_marks = template.has_marks();
        let rendered = template.render(messages, tools, move |conversation| match has_marks {
            true => Ok(Ok(conversation.text_and_ranges()?)),
            false => with_answers(conversation),
        });
        let (text, answers) = rendered.map_err(|error| format!("is refused by the chat template: {error}"))??;
        let answers = of_learned(answers, &learned)?;
        let encoded =
            tokenizer.encode_chat_with_ends(&text).map_err(|error| format!("is refused by the tokenizer: {error}"))?;
        let (mut conversation, mut at) = (Conversation::default(), 0);
        for (token, end) in encoded {
            while answers.get(at).is_some_and(|answer| answer.end < end) {
                at += 1;
            }
            conversation.tokens.push(token);
            conversation.counts.push(answers.get(at).is_some_and(|answer| answer.start < end));
        }
        Ok(conversation)
    }
}

/// Fails unless a message has a role, and text or calls of tools.
fn check(message: &Value) -> Result<(), String> {
    let field = |name: &str| message.get_attr(name).unwrap_or_default();
    if field("role").as_str().is_none() {
        return Err("without a `role`".into());
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

/// Those of a conversation's answers that are learned. `learned` has a value for each message of the assistant.
fn of_learned(answers: Vec<Range<usize>>, learned: &[bool]) -> Result<Vec<Range<usize>>, String> {
    if learned.iter().all(|learned| *learned) {
        return Ok(answers);
    }
    if answers.len() != learned.len() {
        return Err(format!(
            "has answers that are not to be learned, and they cannot be told apart: its assistant has {} messages, and the \
             chat template marks {} parts with {{% generation %}}",
            learned.len(),
            answers.len()
        ));
    }
    Ok(answers.into_iter().zip(learned).filter_map(|(answer, learned)| learned.then_some(answer)).collect())
}

/// The text of a conversation and where its answers are, in bytes. An answer includes what the template writes behind it, so
/// that the model learns to end. The inner error says of an answer that it cannot be told apart.
fn with_answers(conversation: &Rendering<'_>) -> Result<Result<Marked, String>, String> {
    let messages = &conversation.messages;
    let text = conversation.text(messages.len(), false)?;
    let mut answers = Vec::new();
    for (number, message) in messages.iter().enumerate() {
        let field = |name: &str| message.get_attr(name).unwrap_or_default();
        if field("role").as_str() != Some(ASSISTANT) {
            continue;
        }
        let (before, with) = (conversation.text(number, true)?, conversation.text(number + 1, false)?);
        let content = field("content");
        let end = match text.starts_with(&with) {
            true => Some(with.len()),
            false => end_of(&text, before.len(), &with, content.as_str().unwrap_or_default()),
        };
        match end {
            Some(end) if text.starts_with(&before) && before.len() <= end => answers.push(before.len()..end),
            _ => {
                return Ok(Err(format!(
                    "has an answer, message {}, that cannot be told apart: the chat template writes what comes before it \
                     otherwise when more follows. A template with {{% generation %}} around answers says it",
                    number + 1
                )));
            }
        }
    }
    Ok(Ok((text, answers)))
}

/// The end of an answer in the text of a whole conversation. `with` is the text of the messages up to it. Some templates write
/// the last answer in another way than those before: then its content is searched, and what `with` has behind it.
fn end_of(text: &str, start: usize, with: &str, content: &str) -> Option<usize> {
    let content = content.trim();
    let (_, behind) = with.rsplit_once(content).filter(|_| !content.is_empty())?;
    let answer = format!("{content}{behind}");
    Some(start + text.get(start..)?.find(&answer)? + answer.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What counts of a conversation stands between `[` and `]`.
    fn shown(template: &str, tokenizer: &Tokenizer, line: &str) -> Result<String, String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("template.jinja");
        std::fs::write(&file, template).unwrap();
        let name = if template == "chatml" { "chatml" } else { file.to_str().unwrap() };
        let template = ChatTemplate::open(Some(name), None, tokenizer).unwrap();
        let Conversation { tokens, counts } = Conversation::of_line(line, &template, tokenizer)?;
        let mut text = String::new();
        for part in tokens.into_iter().zip(counts).collect::<Vec<_>>().chunk_by(|a, b| a.1 == b.1) {
            let tokens: Vec<u32> = part.iter().map(|(token, _)| *token).collect();
            let decoded = tokenizer.decode(&tokens);
            text += &if part[0].1 { format!("[{decoded}]") } else { decoded };
        }
        Ok(text)
    }

    const TWO_TURNS: &str = r#"{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "Bye"}, {"role": "assistant", "content": "See you"}]}"#;

    /// In the manner of Llama 2: no generation prompt.
    const INST: &str = "{% for m in messages %}{% if m['role'] == 'user' %}{{ (bos_token or '') + '[INST] ' + m['content'].strip() + ' [/INST]' }}\
                        {% elif m['role'] == 'assistant' %}{{ ' ' + m['content'] + eos_token }}\
                        {% else %}{{ raise_exception('no role ' + m['role']) }}{% endif %}{% endfor %}";

    /// In the manner of Qwen3: only the last answer has thoughts.
    const THINKS: &str = "{% for m in messages %}<{{ m.role }}>{% if loop.last and m.role == 'assistant' %}<think></think>{% endif %}\
                          {{ m.content }}</s>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";

    #[test]
    fn answers_count_and_so_does_what_ends_them() {
        for (template, expected) in [
            (
                "chatml",
                "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n[Hello<|im_end|>\n]<|im_start|>user\nBye<|im_end|>\n\
                 <|im_start|>assistant\n[See you<|im_end|>\n]",
            ),
            (INST, "[INST] Hi [/INST][ Hello\0][INST] Bye [/INST][ See you\0]"),
            (THINKS, "<user>Hi</s><assistant>[Hello</s>]<user>Bye</s><assistant>[<think></think>See you</s>]"),
        ] {
            assert_eq!(shown(template, &Tokenizer::Bytes, TWO_TURNS).unwrap(), expected);
        }
    }

    #[test]
    fn marks_of_a_template_say_what_counts_and_leave_no_trace() {
        let marked = "{% for m in messages %}\n{{ m.role }}:\n  {% if m.role == 'assistant' %}\n    {%- generation %} {{ m.content }};\
                      {% endgeneration -%}\n  {% else %}{{ m.content }}{% endif %}\n{% endfor %}";
        let plain =
            marked.replace("{%- generation %}", "{%- if true %}").replace("{% endgeneration -%}", "{% endif -%}");
        let with_marks = shown(marked, &Tokenizer::Bytes, TWO_TURNS).unwrap();
        assert!(with_marks.contains("[ Hello;]") && with_marks.contains("[ See you;]"), "{with_marks}");
        // The same text as with any other block in their place.
        let text = with_marks.replace(['[', ']'], "");
        assert_eq!(shown(&plain, &Tokenizer::Bytes, TWO_TURNS).unwrap().replace(['[', ']'], ""), text);
    }

    #[test]
    fn what_cannot_be_read_or_told_apart_is_said() {
        let cases = [
            ("chatml", "{", "is no object with `messages`"),
            ("chatml", r#"{"text": "x"}"#, "missing field `messages`"),
            ("chatml", r#"{"messages": [{"content": "x"}]}"#, "number 1, without a `role`"),
            ("chatml", r#"{"messages": [{"role": "user", "content": [1]}]}"#, "number 1, whose `content` is not text"),
            (INST, r#"{"messages": [{"role": "clown", "content": "x"}]}"#, "no role clown"),
            ("{{ messages | length }}{{ messages[-1].content }}", TWO_TURNS, "message 2, that cannot be told apart"),
        ];
        for (template, line, says) in cases {
            let problem = shown(template, &Tokenizer::Bytes, line).unwrap_err();
            assert!(problem.contains(says), "{problem}");
        }
    }

    #[test]
    fn an_answer_of_weight_0_is_read_and_not_learned() {
        let marked =
            "{% for m in messages %}{{ m.role[0] }}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}";
        let answers_marked = "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}\
                              {% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}";
        let line = |first: &str, second: &str| {
            let with = |text: &str, more: &str| TWO_TURNS.replace(&format!("\"{text}\""), &format!("\"{text}\"{more}"));
            with("Hello", first).replace("\"See you\"", &format!("\"See you\"{second}"))
        };
        for (first, second, expected) in [
            (r#", "weight": 0"#, r#", "weight": 1"#, "HiHelloBye[See you]"),
            (r#", "train": true"#, r#", "train": false"#, "Hi[Hello]ByeSee you"),
            (r#", "weight": 0.0, "train": false"#, r#", "weight": null"#, "HiHelloBye[See you]"),
            (r#", "weight": 0"#, r#", "weight": 0"#, "HiHelloByeSee you"),
        ] {
            let line = line(first, second);
            assert_eq!(shown(answers_marked, &Tokenizer::Bytes, &line).unwrap(), expected, "{line}");
            let text = shown(INST, &Tokenizer::Bytes, &line).unwrap();
            assert_eq!(text.contains("[ Hello"), expected.contains("[Hello"), "{text}");
            assert_eq!(text.contains("[ See you"), expected.contains("[See you"), "{text}");
        }
        for (template, first, second, says) in [
            (INST, r#", "weight": 2"#, "", "number 2, with a `weight` of 2"),
            (INST, r#", "weight": 0.5"#, "", "number 2, with a `weight` of 0.5"),
            (INST, r#", "weight": true"#, "", "number 2, with a `weight` of true"),
            (INST, "", r#", "weight": "1""#, "number 4, with a `weight` of \"1\""),
            (INST, "", r#", "train": 1"#, "number 4, with a `train` of 1"),
            (INST, r#", "weight": 0, "train": true"#, "", "number 2, whose `weight` and `train` contradict"),
            (marked, r#", "weight": 0"#, "", "its assistant has 2 messages, and the chat template marks 4 parts"),
        ] {
            let problem = shown(template, &Tokenizer::Bytes, &line(first, second)).unwrap_err();
            assert!(problem.contains(says), "{problem}");
        }
        for (line, says) in [
            (
                r#"{"messages": [{"role": "user", "content": "x", "weight": 1}]}"#,
                "number 1, to be learned, which is no answer",
            ),
            (r#"{"messages": [], "weight": 0}"#, "has a `weight` of 0 beside `messages`"),
        ] {
            let problem = shown("chatml", &Tokenizer::Bytes, line).unwrap_err();
            assert!(problem.contains(says), "{problem}");
        }
        let question = r#"{"messages": [{"role": "user", "content": "x", "weight": 0}], "weight": null}"#;
        assert!(shown("chatml", &Tokenizer::Bytes, question).is_ok());
    }

    #[test]
    fn tools_are_written_as_python_writes_json() {
        let template = "{{ tools | tojson }}|{{ tools | tojson(indent=2) }}";
        let line = r#"{"messages": [], "tools": [{"b": "<é'>", "a": [1, 2.5]}]}"#;
        let indented = "[\n  {\n    \"b\": \"<é'>\",\n    \"a\": [\n      1,\n      2.5\n    ]\n  }\n]";
        let expected = format!("[{{\"b\": \"<é'>\", \"a\": [1, 2.5]}}]|{indented}");
        assert_eq!(shown(template, &Tokenizer::Bytes, line).unwrap(), expected);
    }

    /// In the manner of Qwen3, which looks for the last question from the end, and of templates that take texts apart.
    const LOOKS_BACK: &str = "{%- set ns = namespace(last=0, found=false) %}{%- for m in messages[::-1] %}{%- set at = (messages | length - 1) - loop.index0 %}\
        {%- if not ns.found and m.role == 'user' and not m.content.startswith('<tool>') %}{%- set ns.found = true %}{%- set ns.last = at %}{%- endif %}{%- endfor %}\
        {%- for m in messages %}{%- set content = m.content if m.content is string else '' %}{%- set thought = '' %}\
        {%- if '</think>' in content %}{%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}\
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}{%- endif %}\
        {{- '<' + m.role + '>' + (thought if loop.index0 > ns.last else '') + content | trim + '</s>' }}{%- endfor %}";

    #[test]
    fn a_conversation_of_thousands_of_messages_and_megabytes_keeps_within_the_limits() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("template.jinja");
        std::fs::write(&file, LOOKS_BACK).unwrap();
        for name in [file.to_str().unwrap(), "chatml"] {
            let template = ChatTemplate::open(Some(name), None, &Tokenizer::Bytes).unwrap();
            let answer = format!("<think>\n{}</think>\n\n{}", "thoughts ".repeat(60), "words ".repeat(60));
            let messages: Vec<(String, String)> = (0..5000)
                .map(|at| {
                    if at % 2 == 0 {
                        ("user".into(), "a question".into())
                    } else {
                        ("assistant".into(), answer.clone())
                    }
                })
                .collect();
            let text = template.prompt(&messages).unwrap();
            assert!(text.matches("words words").count() >= 2500, "{name}: {} bytes", text.len());
        }
    }
}
