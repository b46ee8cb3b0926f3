//! Files that give tokens their meaning. They lie beside tokens or weights.

common::choice! {
    /// A file that gives tokens their meaning. It lies beside them in a folder of tokens, a checkpoint or an exported
    /// model.
    pub enum CopiedFile {
        /// The name of the tokenizer that made the tokens of the folder.
        Tokens = "tokens.json",
        /// A Hugging Face tokenizer.
        Tokenizer = "tokenizer.json",
        /// A chat template.
        ChatTemplate = "chat_template.jinja",
        /// A tokenizer's special tokens, and in older folders the chat template.
        TokenizerConfig = "tokenizer_config.json",
    }
}

impl CopiedFile {
    /// The file's path in a folder.
    pub fn at(self, folder: &std::path::Path) -> std::path::PathBuf {
        folder.join(common::Choice::word(self))
    }
}
