//! The answers in a conversation whose template marks no answers, found by comparing renderings.

use std::collections::BTreeMap;
use std::ops::Range;

use minijinja::Value;

use super::form::ASSISTANT;
use super::template::Rendering;

/// The text of a conversation, and the ranges of bytes that are answers.
pub(crate) type Marked = (String, Vec<Range<usize>>);

/// A text put behind a message's content, to see where the content ends. Unicode reserves this character for such uses,
/// so no text has it.
const MORE: &str = "\u{fdd2}";

/// The text of a conversation, and the answers as ranges of bytes. An answer includes the text that the template writes
/// behind it, so that the model learns to end. The inner error is for an answer that cannot be told apart.
///
/// # Errors
/// The template's error for messages that it does not take; too much work.
pub(crate) fn with_answers(conversation: &Rendering<'_>) -> Result<Result<Marked, String>, String> {
    let messages = &conversation.messages;
    let text = conversation.text(messages, false)?;
    let mut answers = Vec::new();
    for (number, message) in messages.iter().enumerate() {
        if message.get_attr("role").unwrap_or_default().as_str() != Some(ASSISTANT) {
            continue;
        }
        let before = conversation.text(&messages[..number], true)?;
        let with = conversation.text(&messages[..=number], false)?;
        let found = match with.starts_with(&before) && text.starts_with(&with) {
            true => Some(before.len()..with.len()),
            false => searched(conversation, &text, number, &before)?,
        };
        match found.filter(|found| !found.is_empty()) {
            Some(found) => answers.push(found),
            None => {
                return Ok(Err(format!(
                    "has an answer, message {}, that cannot be told apart: the chat template writes what is around it otherwise \
                     when more follows. A template with {{% generation %}} around answers says it",
                    number + 1
                )));
            }
        }
    }
    Ok(Ok((text, answers)))
}

/// The answer of message `number` in a text that does not begin as that of the messages up to it: some templates leave
/// thoughts out of earlier turns. The answer begins where the message before it ends, behind the beginning of an answer's
/// message. `before` is the text of the messages before, with that beginning.
fn searched(
    conversation: &Rendering<'_>,
    text: &str,
    number: usize,
    before: &str,
) -> Result<Option<Range<usize>>, String> {
    let messages = &conversation.messages;
    let start = match number {
        0 => text.starts_with(before).then_some(before.len()),
        _ => {
            let without = conversation.text(&messages[..number], false)?;
            let end = end_of(conversation, text, number - 1)?;
            let begins = before.strip_prefix(&without);
            let start = |(end, begins): (MessageEnd, &str)| {
                text[end.message..].starts_with(begins).then_some(end.message + begins.len())
            };
            end.zip(begins).and_then(start)
        }
    };
    let end = end_of(conversation, text, number)?;
    Ok(start.zip(end).filter(|(start, end)| *start <= end.content).map(|(start, end)| start..end.message))
}

/// The ends of a message in the text of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MessageEnd {
    /// The end of the content, or of the part of the content that is shown.
    content: usize,
    /// The end of the text that the template writes behind the content.
    message: usize,
}

/// The ends of message `number` in the text of the conversation. `None` if they cannot be told: its content is not shown,
/// or shows in several places, or has other text behind it than in a conversation that ends with it.
fn end_of(conversation: &Rendering<'_>, text: &str, number: usize) -> Result<Option<MessageEnd>, String> {
    let messages = &conversation.messages;
    let mut changed = messages.clone();
    changed[number] = longer(&messages[number]);
    let Some(whole) = changed_part(text, &conversation.text(&changed, false)?) else { return Ok(None) };
    let alone = conversation.text(&messages[..=number], false)?;
    let changed = conversation.text(&changed[..=number], false)?;
    let Some(part) = changed_part(&alone, &changed) else { return Ok(None) };
    let behind = &alone[part.end..];
    let end = MessageEnd { content: whole.start, message: whole.end + behind.len() };
    Ok(text[whole.end..].starts_with(behind).then_some(end))
}

/// A message with more content.
fn longer(message: &Value) -> Value {
    let keys = message.try_iter().into_iter().flatten();
    let field = |key: Value| Some((key.as_str()?.to_string(), message.get_item(&key).unwrap_or_default()));
    let mut fields: BTreeMap<String, Value> = keys.filter_map(field).collect();
    let content = fields.get("content").and_then(Value::as_str).unwrap_or_default();
    fields.insert("content".into(), format!("{content}{MORE}").into());
    fields.into()
}

/// The part of a text that is otherwise in another, as short as possible. `None` if they are the same.
fn changed_part(text: &str, other: &str) -> Option<Range<usize>> {
    fn same(pairs: impl Iterator<Item = (char, char)>) -> usize {
        pairs.take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8()).sum()
    }
    let start = same(text.chars().zip(other.chars()));
    let behind = same(text[start..].chars().rev().zip(other[start..].chars().rev()));
    (text != other).then(|| start..text.len() - behind)
}

#[cfg(test)]
mod tests {
    use crate::text::conversation::tests::shown;
    use crate::text::tokenizer::Tokenizer;

    /// In the manner of models that are shipped: none marks answers.
    const QWEN3: &str = include_str!("../../../tests/templates/qwen3.jinja");
    const LLAMA3: &str = include_str!("../../../tests/templates/llama3.jinja");
    const GEMMA: &str = include_str!("../../../tests/templates/gemma.jinja");
    const MISTRAL: &str = include_str!("../../../tests/templates/mistral.jinja");

    fn messages(messages: &str) -> String {
        format!("{{\"messages\": [{}]}}", messages.replace('\'', "\""))
    }

    const CHAT: &str = "{'role': 'user', 'content': 'Hi'}, {'role': 'assistant', 'content': 'Hello'}, {'role': 'user', \
                        'content': 'Bye'}, {'role': 'assistant', 'content': 'See you'}";
    const SYSTEM: &str = "{'role': 'system', 'content': 'Be brief.'}";

    #[test]
    fn of_qwen3_all_but_the_last_answer_is_learned_without_thoughts() {
        let expected = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n[Hello<|im_end|>\n]<|im_start|>user\nBye<|im_end|>\n\
                        <|im_start|>assistant\n[<think>\n\n</think>\n\nSee you<|im_end|>\n]";
        assert_eq!(shown(QWEN3, &Tokenizer::Bytes, &messages(CHAT)).unwrap(), expected);
        let thoughts = CHAT
            .replace("'Hello'", "'<think>\\na greeting\\n</think>\\n\\nHello'")
            .replace("'See you'", "'<think>\\nan end\\n</think>\\n\\nSee you'");
        let expected = expected.replace("<think>\n\n", "<think>\nan end\n");
        assert_eq!(shown(QWEN3, &Tokenizer::Bytes, &messages(&thoughts)).unwrap(), expected);
        let apart = CHAT
            .replace("'Hello'", "'Hello', 'reasoning_content': 'a greeting'")
            .replace("'See you'", "'See you', 'reasoning_content': 'an end'");
        assert_eq!(shown(QWEN3, &Tokenizer::Bytes, &messages(&apart)).unwrap(), expected);
        // Thoughts that say the same as the answer do not confuse.
        let same = thoughts.replace("a greeting", "Hello<|im_end|>\\nHello");
        assert_eq!(shown(QWEN3, &Tokenizer::Bytes, &messages(&same)).unwrap(), expected);
    }

    #[test]
    fn of_qwen3_calls_of_tools_are_learned_and_their_results_are_not() {
        let call = "'tool_calls': [{'type': 'function', 'function': {'name': 'add', 'arguments': {'a': 1}}}]";
        let turn = format!(
            "{{'role': 'user', 'content': 'Add'}}, {{'role': 'assistant', 'content': '<think>\\nhow\\n</think>\\n\\n', {call}}}, \
             {{'role': 'tool', 'content': '2'}}, {{'role': 'tool', 'content': '3'}}, \
             {{'role': 'assistant', 'content': '<think>\\nso\\n</think>\\n\\nIt is 2'}}"
        );
        let called = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call><|im_end|>\n";
        let results =
            "<|im_start|>user\n<tool_response>\n2\n</tool_response>\n<tool_response>\n3\n</tool_response><|im_end|>\n";
        let one = format!(
            "<|im_start|>user\nAdd<|im_end|>\n<|im_start|>assistant\n[<think>\nhow\n</think>\n\n{called}]{results}\
             <|im_start|>assistant\n[<think>\nso\n</think>\n\nIt is 2<|im_end|>\n]"
        );
        assert_eq!(shown(QWEN3, &Tokenizer::Bytes, &messages(&turn)).unwrap(), one);
        // With another question behind, the thoughts are gone, and the call is still all that is learned there.
        let two =
            format!("{turn}, {{'role': 'user', 'content': 'Bye'}}, {{'role': 'assistant', 'content': 'See you'}}");
        let without = one.replace("<think>\nhow\n</think>\n\n", "").replace("<think>\nso\n</think>\n\n", "");
        let end =
            "<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n[<think>\n\n</think>\n\nSee you<|im_end|>\n]";
        assert_eq!(shown(QWEN3, &Tokenizer::Bytes, &messages(&two)).unwrap(), format!("{without}{end}"));
        let tools = messages(CHAT).replacen('{', "{\"tools\": [{\"name\": \"add\"}], ", 1);
        let shown = shown(QWEN3, &Tokenizer::Bytes, &tools).unwrap();
        assert!(shown.starts_with("<|im_start|>system\n") && shown.contains("\n{\"name\": \"add\"}\n"), "{shown}");
        assert!(shown.contains("assistant\n[Hello<|im_end|>\n]<|im_start|>user"), "{shown}");
    }

    #[test]
    fn of_llama3_a_header_with_dates_is_read_and_answers_are_learned_to_their_end() {
        let system = format!("{SYSTEM}, {CHAT}");
        let expected = "<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n\
                        Be brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>\
                        <|start_header_id|>assistant<|end_header_id|>\n\n[Hello<|eot_id|>]\
                        <|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|>\
                        <|start_header_id|>assistant<|end_header_id|>\n\n[See you<|eot_id|>]";
        assert_eq!(shown(LLAMA3, &Tokenizer::Bytes, &messages(&system)).unwrap(), expected);
        let header = expected.split_once("<|eot_id|>").unwrap().0;
        let built_in = shown("llama3", &Tokenizer::Bytes, &messages(&system)).unwrap();
        assert_eq!(built_in, expected.replace(header, "<|start_header_id|>system<|end_header_id|>\n\nBe brief."));
        // A template that cannot do without a clock is refused: tokens would depend on the day.
        let problem = shown("{{ strftime_now('%Y') }}", &Tokenizer::Bytes, &messages(CHAT)).unwrap_err();
        assert!(problem.contains("asks for the date with strftime_now, and templates have no clock"), "{problem}");
        // White space around an answer is not the answer's.
        let spaced = messages(&system.replace("'Hello'", "' Hello\\n'"));
        assert_eq!(shown(LLAMA3, &Tokenizer::Bytes, &spaced).unwrap(), expected);
    }

    #[test]
    fn of_gemma_answers_are_the_models_and_a_system_is_refused() {
        let expected = "<start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n[Hello<end_of_turn>\n]\
                        <start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n[See you<end_of_turn>\n]";
        assert_eq!(shown(GEMMA, &Tokenizer::Bytes, &messages(CHAT)).unwrap(), expected);
        assert_eq!(shown("gemma", &Tokenizer::Bytes, &messages(CHAT)).unwrap(), expected);
        let problem = shown(GEMMA, &Tokenizer::Bytes, &messages(&format!("{SYSTEM}, {CHAT}"))).unwrap_err();
        assert!(problem.contains("refused by the chat template: no system here"), "{problem}");
        let twice = CHAT.replace("'assistant'", "'user'");
        assert!(shown(GEMMA, &Tokenizer::Bytes, &messages(&twice)).unwrap_err().contains("turns alternate"));
    }

    #[test]
    fn of_mistral_answers_follow_the_instruction_and_turns_alternate() {
        let expected = "[INST] Be brief.\n\nHi[/INST][ Hello\0][INST] Bye[/INST][ See you\0]";
        let system = messages(&format!("{SYSTEM}, {CHAT}"));
        assert_eq!(shown(MISTRAL, &Tokenizer::Bytes, &system).unwrap(), expected);
        assert_eq!(shown("mistral", &Tokenizer::Bytes, &system).unwrap(), expected);
        for name in [MISTRAL, "mistral"] {
            let twice = messages(&CHAT.replace("'assistant'", "'user'"));
            assert!(shown(name, &Tokenizer::Bytes, &twice).unwrap_err().contains("refused by the chat template"));
        }
        // Some show the system in the last turn alone: earlier turns then change when more follows.
        let last = "{% for m in messages %}{% if m.role == 'user' %}[INST] {% if loop.last or loop.index0 == messages | length - 2 %}\
                    {{ messages[0].content }} {% endif %}{{ m.content }}[/INST]{% elif m.role == 'assistant' %} {{ m.content }}</s>{% endif %}{% endfor %}";
        let expected = "[INST] Hi[/INST][ Hello</s>][INST] Be brief. Bye[/INST][ See you</s>]";
        assert_eq!(shown(last, &Tokenizer::Bytes, &system).unwrap(), expected);
    }

    #[test]
    fn answers_that_cannot_be_told_apart_are_refused() {
        for template in [
            // Nothing of earlier messages is left.
            "{{ messages | length }}{{ messages[-1].content }}",
            // The end of a conversation is not the end of an answer.
            "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ ' #' if loop.last else '\n' }}{% endfor %}",
            // The answer is shown twice.
            "{{ messages | length }}{% for m in messages %}{{ m.content }};{% endfor %}{% for m in messages %}{{ m.content }}.{% endfor %}",
            // The number of messages stands behind each.
            "{% for m in messages %}{{ m.content }} {{ messages | length }};{% endfor %}",
        ] {
            let problem = shown(template, &Tokenizer::Bytes, &messages(CHAT)).unwrap_err();
            assert!(problem.contains("message 2, that cannot be told apart"), "{template}: {problem}");
        }
    }
}
