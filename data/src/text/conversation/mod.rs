//! From a record with a conversation to tokens. Each token is marked as belonging to an answer of the assistant
//! or not.

mod answers;
mod built_in_templates;
mod files;
mod form;
pub(crate) mod markers;
mod python_json;
mod template;
mod template_engine;

use std::ops::Range;

use crate::text::tokenizer::Tokenizer;
use answers::with_answers;
pub(crate) use files::{ReadConversations, encode_conversations};
pub(crate) use form::ChatForm;
use form::Talk;
pub(crate) use markers::WithMarkers;
pub use template::ChatTemplate;

/// Characters of a text in messages.
const SHOWN: usize = 60;

/// The tokens of a conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Conversation {
    /// All tokens, in order.
    pub(crate) tokens: Vec<u32>,
    /// For each token, whether the token belongs to an answer.
    pub(crate) counts: Vec<bool>,
    /// The label of an answer; without meaning in other records.
    pub(crate) is_desirable: bool,
    /// The first answer of which the template leaves something out, and what is learned instead, in words.
    pub(crate) lost: Option<String>,
}

impl Conversation {
    /// The conversation of a record of this form, or the two of a pair. `template` makes text of messages.
    ///
    /// # Errors
    /// The mistake in the record, as the end of a sentence that begins with its name.
    pub(crate) fn of_record(
        record: &str,
        form: ChatForm,
        template: Option<&ChatTemplate>,
        tokenizer: &Tokenizer,
    ) -> Result<Vec<Conversation>, String> {
        form.read(record)?.into_iter().map(|talk| Conversation::of_talk(talk, template, tokenizer)).collect()
    }

    fn of_talk(talk: Talk, template: Option<&ChatTemplate>, tokenizer: &Tokenizer) -> Result<Conversation, String> {
        if matches!(tokenizer, Tokenizer::Bytes) && talk.has_nul() {
            return Err("has a NUL character, and the tokenizer is bytes: among them NUL ends a document".into());
        }
        match (talk, template) {
            (Talk::Text { prompt, completion }, _) => {
                let text = format!("{prompt}{completion}");
                let completion = prompt.len()..text.len();
                let mut conversation = Conversation::of_text(&text, &[completion], tokenizer)?;
                conversation.tokens.push(tokenizer.end_of_text());
                conversation.counts.push(true);
                Ok(conversation)
            }
            (Talk::Messages { .. }, None) => Err("has messages, and there is no chat template".into()),
            (Talk::Messages { messages, tools, learned, answers: said }, Some(template)) => {
                let has_marks = template.has_marks();
                let rendered = template.render(messages, tools, move |conversation| match has_marks {
                    true => Ok(Ok(conversation.text_and_ranges()?)),
                    false => with_answers(conversation),
                });
                let (text, answers) =
                    rendered.map_err(|error| format!("is refused by the chat template: {error}"))??;
                let answers = of_learned(answers, &learned)?;
                let lost = first_lost(&said, &text, &answers);
                Ok(Conversation { lost, ..Conversation::of_text(&text, &answers, tokenizer)? })
            }
        }
    }

    /// The tokens of a text with the given answers, as ranges of bytes.
    fn of_text(text: &str, answers: &[Range<usize>], tokenizer: &Tokenizer) -> Result<Conversation, String> {
        let encoded =
            tokenizer.encode_chat_with_ends(text).map_err(|error| format!("is refused by the tokenizer: {error}"))?;
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

/// The first answer, in words, that lies in no range of `learned`; each answer is there with the message's number.
/// Templates leave out white space around an answer, and thoughts before it.
fn first_lost(said: &[(usize, String)], text: &str, learned: &[Range<usize>]) -> Option<String> {
    let is_in = |part: &str| learned.iter().any(|range| text[range.clone()].contains(part.trim()));
    let behind_thoughts = |answer: &str| answer.rsplit_once("</think>").is_some_and(|(_, rest)| is_in(rest));
    let is_lost = |answer: &str| !answer.trim().is_empty() && !is_in(answer) && !behind_thoughts(answer);
    let (number, answer) = said.iter().find(|(_, answer)| is_lost(answer))?;
    let shown = |text: &str| match text.char_indices().nth(SHOWN) {
        None => format!("{text:?}"),
        Some((end, _)) => format!("{:?}...", &text[..end]),
    };
    let in_place: Vec<String> = learned.iter().map(|range| shown(&text[range.clone()])).take(3).collect();
    let in_place = if in_place.is_empty() { "nothing".into() } else { in_place.join(" and ") };
    Some(format!("message {number}, {}, and what is learned is {in_place}", shown(answer.trim())))
}

/// The answers of a conversation that are learned. `learned` has a value for each message of the assistant.
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

#[cfg(test)]
pub(crate) mod tests {
    use super::built_in_templates::BuiltIn;
    use super::*;
    use crate::text::files::JsonLine;

    /// A conversation's text, with `[` and `]` around the parts that count.
    pub(crate) fn shown(template: &str, tokenizer: &Tokenizer, line: &str) -> Result<String, String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("template.jinja");
        std::fs::write(&file, template).unwrap();
        let name = if BuiltIn::named(template).is_some() { template } else { file.to_str().unwrap() };
        let template = ChatTemplate::open(Some(name), None, tokenizer).unwrap();
        let Conversation { tokens, counts, .. } = {
            let form = ChatForm::of(line, &JsonLine::read(line.as_bytes(), None).unwrap().fields).unwrap();
            Conversation::of_record(line, form, Some(&template), tokenizer)?.remove(0)
        };
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
            ("chatml", r#"{"messages": [{"content": "x"}]}"#, "number 1, without a `role`"),
            ("chatml", r#"{"messages": [{"role": "user", "content": 1}]}"#, "number 1, whose `content` is not text"),
            ("chatml", r#"{"messages": [{"role": "user", "content": [1]}]}"#, "a part without `type` and `text`"),
            (
                "chatml",
                r#"{"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]}"#,
                "number 1, whose `content` has a part of the type \"image_url\": parts are text",
            ),
            (
                INST,
                r#"{"messages": [{"role": "clown", "content": "x"}]}"#,
                "with the role \"clown\": roles are system, ",
            ),
            (INST, r#"{"messages": [{"role": "tool", "content": "x"}]}"#, "refused by the chat template: no role tool"),
            ("{{ messages | length }}{{ messages[-1].content }}", TWO_TURNS, "message 2, that cannot be told apart"),
        ];
        for (template, line, says) in cases {
            let problem = shown(template, &Tokenizer::Bytes, line).unwrap_err();
            assert!(problem.contains(says), "{problem}");
        }
    }

    #[test]
    fn a_content_of_parts_is_their_texts_one_after_the_other() {
        let parts = TWO_TURNS
            .replace("\"Hi\"", r#"[{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]"#)
            .replace("\"Hello\"", r#"[{"type": "text", "text": "Hello"}]"#);
        assert_ne!(parts, TWO_TURNS);
        for template in ["chatml", INST, THINKS] {
            let read = |line: &str| shown(template, &Tokenizer::Bytes, line).unwrap();
            assert_eq!(read(&parts), read(TWO_TURNS));
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
            (r#"{"messages": [], "weight": 0}"#, "has a `weight` of 0 beside the messages"),
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

    /// In the manner of Qwen3, with a search for the last question from the end, and of templates that take texts
    /// apart.
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
