//! Files of conversations: JSON lines, each an object with `messages`.

use std::path::PathBuf;

use common::UserError;

use crate::text::chat_template::ChatTemplate;
use crate::text::conversation::{Conversation, MESSAGES};
use crate::text::documents::{in_parallel, read_files};
use crate::text::text_file::Piece;
use crate::text::text_files::TextFile;
use crate::text::tokenizer::Tokenizer;

/// Tokenises the conversations of files in order, and passes each to `sink`. Returns the files in folders that were left out
/// because they are not text.
///
/// # Errors
/// A file that cannot be read or has no JSON lines, a line that is not a conversation or whose answers cannot be told apart,
/// and what `sink` returns.
pub(crate) fn encode_conversations<E: From<UserError> + Send>(
    files: &[TextFile],
    tokenizer: &Tokenizer,
    template: &ChatTemplate,
    mut sink: impl FnMut(Conversation) -> Result<(), E>,
) -> Result<Vec<PathBuf>, E> {
    read_files(files, tokenizer, MESSAGES, |pieces| {
        let encoded = in_parallel(pieces, |piece| encoded(piece, tokenizer, template))?;
        encoded.into_iter().try_for_each(&mut sink)
    })
}

fn encoded(piece: &Piece, tokenizer: &Tokenizer, template: &ChatTemplate) -> Result<Conversation, UserError> {
    let name = piece.path.display();
    let rule = "each line is {\"messages\": [{\"role\": ..., \"content\": ...}, ...]}, which the chat template takes";
    let wrong = |what: String, fix: &str| UserError::new(format!("{name} {what}"), rule, fix);
    let Some(line) = piece.line else {
        return Err(wrong("has no JSON lines".into(), "name a .jsonl file with conversations"));
    };
    let read = piece.ensure_record().and_then(|()| Conversation::of_line(&piece.text, template, tokenizer));
    read.map_err(|what| {
        wrong(format!("line {line} {what}"), "correct that line, or name a template: --chat-template FILE")
    })
}
